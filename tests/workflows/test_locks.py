"""A run folder belongs to one process at a time, and signals leave it in order."""

import os
import pty
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kinfolk.errors import Terminated, UserError
from kinfolk.files import folder_lock
from kinfolk.training.loop import Progress
from kinfolk.training.run import Run
from kinfolk.workflows.finetuning.finetune import finetune
from kinfolk.workflows.pretrain import PretrainWorkload, pretrain, resume
from support.runs import Home, OnStep, tree

HOLD = """
import sys, time
from pathlib import Path
from kinfolk.files import folder_lock
with folder_lock(Path(sys.argv[1]), wait=False):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_run_cannot_be_resumed_while_it_runs(
    home: Home, runs: dict[str, Path], tmp_path: Path
) -> None:
    out, refused = tmp_path / "run", []

    def again(progress: Progress) -> None:
        if progress.step == 5:
            with pytest.raises(UserError, match="run is in use: another process trains in it"):
                resume(out)
            refused.append(progress.step)

    pretrain(home.recipe("gpt2"), out, callbacks=[OnStep(again)])
    assert refused == [5]
    assert (out / "log.jsonl").read_bytes() == (runs["gpt2"] / "log.jsonl").read_bytes()


def test_two_fine_tunings_do_not_share_a_folder(runs: dict[str, Path], tmp_path: Path) -> None:
    out, refused = tmp_path / "run", []
    rows = [{"text": f"a {word} thing", "label": word} for word in ("good", "bad") * 8]

    def again(progress: Progress) -> None:
        with pytest.raises(UserError, match="run already exists: choose another folder"):
            finetune(runs["bert"], rows, out, steps=2, device="cpu")
        with pytest.raises(UserError, match="run is in use: another process trains in it"):
            resume(out)
        refused.append(progress.step)

    finetune(runs["bert"], rows, out, steps=2, device="cpu", callbacks=[OnStep(again)])
    assert refused == [1, 2]
    alone = finetune(runs["bert"], rows, tmp_path / "alone", steps=2, device="cpu")
    assert (out / "log.jsonl").read_bytes() == (alone / "log.jsonl").read_bytes()


def test_of_two_runs_started_together_in_one_folder_one_is_refused(
    home: Home, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    first, second = (PretrainWorkload(home.recipe("gpt2", f"train.seed={n}")) for n in (0, 1))
    Run.start(first, out)
    before = tree(out)
    with pytest.raises(UserError, match="run exists by now: another run was started in it"):
        Run.start(second, out)
    assert tree(out) == before
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_the_lock_of_a_killed_process_is_gone(dead_lock: Path) -> None:
    with folder_lock(dead_lock, wait=False):
        pass


@pytest.fixture
def dead_lock(tmp_path: Path) -> Path:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    held = folder_lock(tmp_path, wait=False)
    with pytest.raises(BlockingIOError, match="another process is writing"), held:
        raise AssertionError("two processes hold one lock")
    process.kill()
    process.communicate()
    return tmp_path


@pytest.fixture
def handled() -> Iterator[None]:
    """Have no signal ignored, as under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("handled")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_terminated_run_is_saved_and_ends_like_one_left_alone(
    number: signal.Signals, home: Home, runs: dict[str, Path], tmp_path: Path
) -> None:
    before = signal.getsignal(number)

    def terminate(progress: Progress) -> None:
        if progress.step == 6:
            signal.raise_signal(number)

    run = tmp_path / "run"
    with pytest.raises(Terminated) as raised:
        pretrain(home.recipe("gpt2"), run, callbacks=[OnStep(terminate)])
    assert raised.value.code == 128 + number and signal.getsignal(number) is before
    assert (run / "checkpoints" / "last").readlink() == Path("step-00000006")
    resume(run)
    assert (run / "log.jsonl").read_bytes() == (runs["gpt2"] / "log.jsonl").read_bytes()


@pytest.mark.usefixtures("handled")
def test_a_signal_that_is_ignored_stays_ignored(home: Home, tmp_path: Path) -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    hang_up = OnStep(lambda progress: signal.raise_signal(signal.SIGHUP))
    run = pretrain(home.recipe("gpt2", "train.steps=3"), tmp_path / "run", callbacks=[hang_up])
    assert (run / "checkpoints" / "step-00000003").is_dir()


@pytest.mark.slow
@pytest.mark.usefixtures("handled")
def test_a_closed_terminal_saves_the_run(home: Home, tmp_path: Path) -> None:
    run = tmp_path / "run"
    settings = ["--steps", "5000", "--batch", "2", "--length", "16", "--workers", "1"]
    settings += ["train.save_every=5000", "--device", "cpu"]
    command = ["pretrain", "gpt2/nano", "--corpus", str(home.corpus), *settings]
    child, terminal = pty.fork()
    if child == 0:
        os.execv(sys.executable, [sys.executable, "-m", "kinfolk", *command, "-o", str(run)])
    seen = b""
    while b"5000" not in seen or not (run / "log.jsonl").exists():
        seen += os.read(terminal, 1024)
    while not (run / "log.jsonl").read_bytes():
        os.read(terminal, 1024)
    os.close(terminal)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 128 + signal.SIGHUP
    assert (run / "checkpoints" / "last").exists() and (run / "report.html").is_file()


def test_a_finished_run_that_was_killed_before_its_report_gets_it(
    runs: dict[str, Path], tmp_path: Path
) -> None:
    run = shutil.copytree(runs["gpt2"], tmp_path / "run", symlinks=True)
    (run / "report.html").unlink()
    seen: list[int] = []
    resume(run, callbacks=[OnStep(lambda progress: seen.append(progress.step))])
    assert seen == [] and (run / "report.html").is_file()
