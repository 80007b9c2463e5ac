"""A data loader process that is killed: the run is saved, says so, and resumes."""

import multiprocessing
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kinfolk.training import checkpoint
from kinfolk.training.loader import LostWorkerError, is_lost_worker
from kinfolk.training.log import read
from kinfolk.training.loop import Progress, defer_signals
from kinfolk.training.run_differences import differences
from kinfolk.workflows.pretrain import pretrain, resume
from support.runs import Home, Kinfolk, OnStep, one_sentence

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="workers are forked")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    return Home.make(tmp_path_factory.mktemp("home"))


@pytest.fixture
def kill_worker() -> Callable[[Progress], None]:
    """Return a hook that kills a data loader process after step 6."""
    others = set(multiprocessing.active_children())  # of earlier tests

    def kill(progress: Progress) -> None:
        if progress.step == 6:
            worker = next(p for p in multiprocessing.active_children() if p not in others)
            assert worker.pid is not None
            os.kill(worker.pid, signal.SIGKILL)
            worker.join()

    return kill


def test_a_killed_worker_saves_the_steps_before_and_the_run_resumes_to_the_bit(
    home: Home, tmp_path: Path, kill_worker: Callable[[Progress], None]
) -> None:
    recipe, out = home.recipe("gpt2", "train.workers=2"), tmp_path / "run"
    with pytest.raises(LostWorkerError) as error:
        pretrain(recipe, out, callbacks=[OnStep(kill_worker)])
    newest = checkpoint.latest_valid(out)
    assert newest is not None
    step = checkpoint.checkpoint_step(newest)
    assert step >= 6 and [line["step"] for line in read(out)] == [*range(1, step + 1)]
    assert str(error.value) == (
        f"a data loader process ended after step {step}; resume with: kinfolk pretrain --resume "
        f"{out}, with a lower train.workers in recipe.json if memory is short"
    )
    assert (out / "report.html").is_file()
    resume(out)
    whole = pretrain(recipe, tmp_path / "whole")
    assert differences(out, whole) == {}


def test_the_command_says_it_in_one_sentence(
    home: Home,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kinfolk: Kinfolk,
    kill_worker: Callable[[Progress], None],
) -> None:
    from kinfolk.cli.run_progress import TerminalProgress

    shown = TerminalProgress.on_step

    def on_step(self: TerminalProgress, progress: Progress) -> None:
        shown(self, progress)
        kill_worker(progress)

    monkeypatch.setattr(TerminalProgress, "on_step", on_step)
    home.recipe("gpt2", "train.workers=2").write(tmp_path / "recipe.json")
    said = kinfolk("pretrain", "--recipe", tmp_path / "recipe.json", "-o", tmp_path / "run")
    assert one_sentence(said).startswith("a data loader process ended after step ")
    assert "saved " in said.err


@pytest.fixture
def kinfolk(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Kinfolk:
    from support.runs import command

    return command(monkeypatch, capsys)


def test_the_signal_of_a_worker_waits_for_the_end_of_a_step() -> None:
    done: list[str] = []

    def handler(number: int, frame: object) -> None:
        done.append("handled")
        raise RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed. ")

    before = signal.signal(signal.SIGCHLD, handler)
    try:
        with pytest.raises(RuntimeError) as error, defer_signals([]):
            signal.raise_signal(signal.SIGCHLD)
            done.append("step")
    finally:
        signal.signal(signal.SIGCHLD, before)
    assert done == ["step", "handled"] and is_lost_worker(error.value)
    assert not is_lost_worker(RuntimeError("shapes differ"))
