"""Runs that end by the clock: how exactly, and that they can be resumed and repeated."""

import itertools
import random
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from kinfolk.batch import Loss
from kinfolk.errors import UserError
from kinfolk.training import checkpoint
from kinfolk.training import run as run_module
from kinfolk.training.config import TrainConfig
from kinfolk.training.distributed import Processes
from kinfolk.training.first_estimate import seconds_per_step
from kinfolk.training.log import read, speed_lines
from kinfolk.training.loop import Callback, Progress
from kinfolk.training.optimizer import lr_schedule, with_steps
from kinfolk.training.run import Run
from kinfolk.training.time_budget import (
    DECISIONS,
    Decision,
    TimeBudget,
    read_decisions,
    to_the_end,
    write_decisions,
)
from kinfolk.workflows.finetuning.finetune import finetune
from kinfolk.workflows.lr_find import lr_find
from kinfolk.workflows.pretrain import PretrainWorkload, pretrain, resume
from kinfolk.workflows.recipe import Recipe, finalize, recipe
from support.clocks import StepClock
from support.runs import LENGTH, Home

DRIFT = 1.7  # between the two halves of a run
MINUTES = 0.1


def spent(folder: Path, seconds_of: Callable[[int], float], *, first: int, every: int = 1) -> float:
    """Return the seconds of a run of a minute, whose steps take as long as a function says."""
    budget, step, now = TimeBudget(TrainConfig(steps=first, minutes=1), folder), 0, 0.0
    steps = budget.restart(0)
    while step < steps:
        before, began = step, now
        while step < steps and (step == before or step % every):
            now += seconds_of(step)
            step += 1
        steps = budget.observe(step, (now - began) / (step - before))
    last = read_decisions(folder / DECISIONS)[-1]
    assert last == Decision(step, step, pytest.approx(now))  # type: ignore[arg-type]
    return now


@pytest.mark.parametrize("change", [DRIFT, 1 / DRIFT])
@pytest.mark.parametrize("first_estimate", [0.2, 1.0, 5.0])
@pytest.mark.parametrize("steps", [50, 300])
def test_seconds_are_met_within_2_percent_whatever_was_estimated_first(
    tmp_path: Path, change: float, first_estimate: float, steps: int
) -> None:
    each = 60 / steps / max(1.0, change)  # at least so many steps fill the minute
    found = spent(
        tmp_path,
        lambda step: each * (change if step > steps / 2 else 1.0),
        first=round(first_estimate * steps),
    )
    assert found == pytest.approx(60, rel=0.02)


@pytest.mark.parametrize("seed", range(3))
def test_seconds_are_met_where_each_step_takes_another_time(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    found = spent(tmp_path, lambda step: 0.1 * chance.choice((0.5, 1.0, 1.0, 3.0)), first=600)
    assert found == pytest.approx(60, rel=0.02)


def test_seconds_are_met_where_the_device_is_read_every_tenth_step(tmp_path: Path) -> None:
    slower = spent(tmp_path, lambda step: 0.1 * (DRIFT if step > 250 else 1), first=900, every=10)
    assert slower == pytest.approx(60, rel=0.02)


def test_an_estimate_knows_the_present_speed(tmp_path: Path) -> None:
    spent(tmp_path, lambda step: 0.1 * (DRIFT if step > 300 else 1), first=600)
    decisions = read_decisions(tmp_path / DECISIONS)
    late = next(decision for decision in decisions if decision.seconds > 48)
    assert late.steps == pytest.approx(decisions[-1].steps, rel=0.02)


@pytest.mark.parametrize("first_step", [0.6, 24, 26, 36])
def test_a_slow_first_step_does_not_end_a_run(tmp_path: Path, first_step: float) -> None:
    found = spent(tmp_path, lambda step: 0.6 if step else first_step, first=90)
    assert found == pytest.approx(60, rel=0.02)


@pytest.mark.parametrize("first", [10, 11, 20])
def test_a_low_estimate_does_not_end_a_run_that_is_read_every_tenth_step(
    tmp_path: Path, first: int
) -> None:
    assert spent(tmp_path, lambda step: 0.6, first=first, every=10) == pytest.approx(60, rel=0.02)


def test_decisions_are_few_in_long_runs(tmp_path: Path) -> None:
    spent(tmp_path, lambda step: 60 / 10_000, first=10_000)
    assert len(read_decisions(tmp_path / DECISIONS)) < 80


# Runs


def timed(home: Home, *settings: str, minutes: float = MINUTES) -> Recipe:
    """Return the recipe of a run of six seconds, estimated as 60 steps."""
    chosen = home.recipe("gpt2", "train.save_every=20", "train.eval_every=20", "train.warmup=5")
    train = replace(chosen.train, steps=60, minutes=minutes)
    return finalize(replace(chosen, train=train), settings)


def slows_down(monkeypatch: pytest.MonkeyPatch, at: int, *, each: float = 0.1) -> None:
    """Let steps take longer after some of them."""
    clock = StepClock(lambda step, done: each * (DRIFT if done >= at else 1.0))
    clock.install(monkeypatch)


def seconds(run: Path) -> float:
    """Return the seconds that the steps of a run took."""
    return sum(line["seconds"] for line in speed_lines(run))


def rates(run: Path) -> dict[int, float]:
    """Return the learning rate of each step."""
    return {line["step"]: line["lr"] for line in read(run)}


class Killed(BaseException):
    """The end of a process, of which nothing is told to the run."""


def kill_at(monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """End the process in a decision after some steps, when it is on disk."""
    observe: Any = TimeBudget.observe

    def killed(budget: TimeBudget, number: int, passed: float) -> int:
        steps: int = observe(budget, number, passed)
        if number == step:
            raise Killed
        return steps

    monkeypatch.setattr(TimeBudget, "observe", killed)


@pytest.mark.parametrize(("each", "least", "most"), [(0.1, 40, 50), (0.06, 70, 80)])
def test_a_run_ends_by_the_clock_with_the_schedule_at_its_end(
    home: Home,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    each: float,
    least: int,
    most: int,
) -> None:
    slows_down(monkeypatch, 30, each=each)
    chosen = timed(home)
    run = pretrain(chosen, tmp_path / "run", decisions=())
    assert seconds(run) == pytest.approx(60 * MINUTES, rel=0.02)
    decisions, lines = read_decisions(run / DECISIONS), read(run)
    steps = lines[-1]["step"]
    assert least < steps < most and decisions[0] == Decision(0, 60, 0.0)
    assert decisions[-1].step == decisions[-1].steps == steps
    assert lines[-1]["lr"] == pytest.approx(chosen.train.lr * chosen.train.min_lr_ratio)
    assert "eval_loss" in lines[-1]
    newest = checkpoint.latest_valid(run)
    assert newest is not None and checkpoint.checkpoint_step(newest) == steps
    assert checkpoint.load_training_state(newest)["finished"]
    assert f"{steps} (train.minutes=0.1)" in (run / "report.html").read_text(encoding="utf-8")
    with pytest.raises(
        UserError, match=f"is complete \\({steps} steps\\): start .* more --minutes"
    ):
        resume(run)


def test_each_learning_rate_is_that_of_the_estimate_in_force(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slows_down(monkeypatch, 30)
    chosen = timed(home)
    run = pretrain(chosen, tmp_path / "run", decisions=())
    decisions, found = read_decisions(run / DECISIONS), rates(run)
    assert len(decisions) > 10
    for step, rate in found.items():
        steps = [d.steps for d in decisions if d.step < step][-1]
        schedule = lr_schedule(with_steps(chosen.train, steps))
        assert rate == chosen.train.lr * schedule(step - 1)
    ramp = [found[step] / chosen.train.lr for step in range(1, 6)]
    assert ramp == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])


def test_a_warm_up_keeps_its_share_of_a_run_that_is_shorter_than_estimated(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    StepClock(lambda step, done: 0.3).install(monkeypatch)  # 20 steps, estimated as 60
    run = pretrain(timed(home, "train.warmup=30"), tmp_path / "run", decisions=())
    found = rates(run)
    highest = max(found, key=lambda step: found[step])
    assert len(found) == 20 and 8 <= highest <= 11
    assert found[20] == pytest.approx(timed(home).train.lr * timed(home).train.min_lr_ratio)
    assert Recipe.read(run / "recipe.json").train.warmup == 30  # a resume reads what was planned


@pytest.mark.parametrize(("steps", "warmup"), [(397, 200), (1000, 200), (96, 48), (2, 1), (1, 1)])
def test_a_warm_up_follows_the_estimate_and_never_becomes_longer(steps: int, warmup: int) -> None:
    planned = TrainConfig(steps=397, warmup=200, minutes=1)
    assert with_steps(planned, steps).warmup == warmup
    assert with_steps(replace(planned, warmup=0), steps).warmup == 0


@pytest.mark.parametrize(
    ("at", "warmup"),
    [
        *(((8, 14), 40), ((19, 33), 5)),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in (((8, 14), 5), ((19, 33), 40))),
        *(pytest.param((33, 39), warmup, marks=pytest.mark.slow) for warmup in (5, 40)),
    ],
)
def test_a_run_that_was_killed_repeats_its_learning_rates_and_goes_on(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: tuple[int, int], warmup: int
) -> None:
    chosen = timed(home, f"train.warmup={warmup}")
    run, logged = tmp_path / "run", dict[int, float]()
    for number, (step, each) in enumerate(zip(at, (0.12, 0.09), strict=True)):
        with monkeypatch.context() as patch:
            StepClock(lambda step, done, each=each: each).install(patch)  # type: ignore[misc]
            kill_at(patch, step)
            with pytest.raises(Killed):
                resume(run) if number else pretrain(chosen, run, decisions=())
        before = read_decisions(run / DECISIONS)
        logged |= rates(run)
    with monkeypatch.context() as patch:
        StepClock(lambda step, done: 0.14).install(patch)  # slower than before
        resume(run)
    assert read_decisions(run / DECISIONS)[: len(before)] == before
    after = rates(run)
    assert {step: after[step] for step in logged} == logged
    # Steps that are done again count with their first seconds.
    assert read_decisions(run / DECISIONS)[-1].seconds == pytest.approx(60 * MINUTES, rel=0.02)
    newest = checkpoint.latest_valid(run)
    assert newest is not None and checkpoint.checkpoint_step(newest) == max(after)


# 20: right after a checkpoint.
@pytest.mark.parametrize("at", [20, 26, pytest.param(31, marks=pytest.mark.slow)])
def test_a_run_that_was_stopped_by_a_signal_is_resumed(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    class Stop(Callback):
        def on_step(self, progress: Progress) -> None:
            if progress.step == at:
                raise KeyboardInterrupt

    run = tmp_path / "run"
    with monkeypatch.context() as patch:
        StepClock(lambda step, done: 0.12).install(patch)
        with pytest.raises(KeyboardInterrupt):
            pretrain(timed(home), run, decisions=(), callbacks=[Stop()])
    before, logged = read_decisions(run / DECISIONS), rates(run)
    assert max(logged) == at == checkpoint.checkpoint_step(run / "checkpoints" / "last")
    with monkeypatch.context() as patch:
        StepClock(lambda step, done: 0.14).install(patch)
        resume(run)
    found, after = read_decisions(run / DECISIONS), rates(run)
    assert found[: len(before)] == before
    assert {step: after[step] for step in logged} == logged
    assert seconds(run) == pytest.approx(60 * MINUTES, rel=0.02)
    assert found[-1].seconds == pytest.approx(seconds(run))


def test_steps_that_are_done_again_cost_nothing_where_the_device_is_read_every_tenth_step(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_module, "log_interval", lambda device: 10)
    run, each, stopped = tmp_path / "run", 0.12, 24
    with monkeypatch.context() as patch:

        def stop(step: Any, done: int) -> float:
            if done == stopped:
                raise KeyboardInterrupt
            return each

        def killed(run: Run, step: int, evaluation: Any) -> None:
            if step == stopped:  # the log has it by now
                raise Killed
            save(run, step, evaluation)

        save: Any = Run.save
        patch.setattr(Run, "save", killed)
        StepClock(stop).install(patch)
        with pytest.raises(Killed):
            pretrain(timed(home), run, decisions=())
    assert max(rates(run)) == stopped
    newest = checkpoint.latest_valid(run)
    assert newest is not None and checkpoint.checkpoint_step(newest) == 20
    with monkeypatch.context() as patch:
        StepClock(lambda step, done: each).install(patch)
        resume(run)
    last = read_decisions(run / DECISIONS)[-1]
    assert last.seconds == pytest.approx(each * last.step) == pytest.approx(60 * MINUTES)


@pytest.mark.parametrize("nan_at", [21, 22, 29])  # the first is the step after a checkpoint
def test_a_run_that_rolled_back_keeps_its_budget(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nan_at: int
) -> None:
    slows_down(monkeypatch, 30)
    mean, calls = Loss.mean, itertools.count(1)

    def with_nan(loss: Loss, counts: Any) -> Any:
        found = mean(loss, counts)
        bad = torch.is_grad_enabled() and next(calls) == nan_at
        return found * float("nan") if bad else found

    monkeypatch.setattr(Loss, "mean", with_nan)
    run = pretrain(timed(home, "train.on_nan=rollback"), tmp_path / "run", decisions=())
    assert any((run / "bad_batches").iterdir())
    last = read_decisions(run / DECISIONS)[-1]
    assert last.seconds == pytest.approx(60 * MINUTES, rel=0.02)


def test_a_run_repeats_the_decisions_of_another_also_after_a_kill(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        slows_down(patch, 30)
        first = pretrain(timed(home), tmp_path / "first", decisions=())
    decisions, again = to_the_end(read_decisions(first / DECISIONS)), tmp_path / "again"
    for step in (24, 42):
        with monkeypatch.context() as patch:
            StepClock(lambda step, done: 0.03).install(patch)
            kill_at(patch, step)
            with pytest.raises(Killed):
                if again.exists():
                    resume(again)
                else:
                    pretrain(timed(home), again, decisions=decisions)
    with monkeypatch.context() as patch:
        StepClock(lambda step, done: 0.5).install(patch)
        resume(again)
    assert read(again) == read(first)
    assert read_decisions(again / DECISIONS) == decisions
    weights = [run / "checkpoints" / "last" / "model.safetensors" for run in (first, again)]
    assert weights[0].read_bytes() == weights[1].read_bytes()


def test_decisions_of_an_unfinished_run_are_repeated_without_new_ones(tmp_path: Path) -> None:
    given = [Decision(0, 600, 0.0), Decision(60, 500, 7.2)]
    assert to_the_end(given) == [*given, Decision(500, 500, 7.2)]
    write_decisions(tmp_path / DECISIONS, to_the_end(given))
    budget = TimeBudget(TrainConfig(steps=600, minutes=1), tmp_path)
    found = [budget.restart(0), *(budget.observe(step, 99.0) for step in range(1, 501))]
    assert found == 60 * [600] + 441 * [500]


def test_a_first_estimate_is_measured(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slows_down(monkeypatch, 10**9, each=0.05)
    chosen = recipe(
        "gpt2/nano", home.corpus, length=LENGTH, batch_size=4, minutes=MINUTES, device="cpu"
    )
    assert chosen.train.warmup > 120
    run = pretrain(chosen, tmp_path / "run")
    train = Recipe.read(run / "recipe.json").train
    assert (train.steps, train.warmup, train.minutes) == (120, 12, MINUTES)
    assert len(read(run)) == 120 and seconds(run) == pytest.approx(6, rel=0.001)


def test_too_few_minutes_are_refused_with_enough(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slows_down(monkeypatch, 10**9, each=1.0)
    message = r"minutes=0.1 is enough for 6 steps of gpt2/nano, .* needs 10: use train.minutes=0.17"
    with pytest.raises(UserError, match=message):
        pretrain(timed(home), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_what_does_not_fit_into_memory_is_refused_before_a_step_is_timed(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = StepClock(lambda step, done: 0.05)
    clock.install(monkeypatch)
    monkeypatch.setattr("kinfolk.workflows.planning.preflight.available_memory", lambda: 10**6)
    with pytest.raises(UserError, match="weights, gradients and moments take"):
        pretrain(timed(home), tmp_path / "run")
    assert clock.steps == 0


@pytest.mark.parametrize(("each", "timed_steps"), [(2.0, 1), (1.0, 2), (0.05, 23)])
def test_steps_are_timed_until_it_is_clear_that_they_are_too_slow(
    home: Home, monkeypatch: pytest.MonkeyPatch, each: float, timed_steps: int
) -> None:
    clock = StepClock(lambda step, done: each)
    clock.install(monkeypatch)
    seconds_per_step(PretrainWorkload(timed(home)), budget=6)
    assert clock.steps == timed_steps


def test_a_batch_that_is_left_out_costs_no_budget(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slows_down(monkeypatch, 30)
    observe: Any = TimeBudget.restart
    restarts: list[int] = []

    def counted(budget: TimeBudget, step: int) -> int:
        restarts.append(step)
        steps: int = observe(budget, step)
        return steps

    monkeypatch.setattr(TimeBudget, "restart", counted)
    mean, calls = Loss.mean, itertools.count()
    bad = {25}

    def with_nan(loss: Loss, counts: Any) -> Any:
        found = mean(loss, counts)
        return found * float("nan") if next(calls) in bad else found

    monkeypatch.setattr(Loss, "mean", with_nan)
    run = pretrain(timed(home, "train.on_nan=skip"), tmp_path / "run", decisions=())
    assert len(restarts) == 2 and restarts[1] > 10
    assert seconds(run) == pytest.approx(60 * MINUTES, rel=0.02)


# What cannot be right is refused


@pytest.fixture(scope="module")
def killed(home: Home, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run that was killed after a checkpoint and some decisions."""
    run = tmp_path_factory.mktemp("killed") / "run"
    with pytest.MonkeyPatch.context() as patch:
        StepClock(lambda step, done: 0.12).install(patch)
        kill_at(patch, 29)
        with pytest.raises(Killed):
            pretrain(timed(home), run, decisions=())
    return run


@pytest.fixture
def unfinished(killed: Path, tmp_path: Path) -> Path:
    """Return a copy of the run that a test may change."""
    return shutil.copytree(killed, tmp_path / "run", symlinks=True)


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda lines: [], "it is empty"),
        (
            lambda lines: [*lines[:-1], lines[-1][:-4]],
            "line 8 is not a decision that follows those before",
        ),
        (
            lambda lines: [*lines[:-1], lines[-1].rstrip()],
            "line 8 is not a decision that follows those before",
        ),
        (lambda lines: [lines[1], lines[0]], "line 1 is not a decision that follows those before"),
        (
            lambda lines: [lines[0], lines[2], lines[1]],
            "line 3 is not a decision that follows those before",
        ),
        (lambda lines: [lines[0], "{}\n"], "line 2 is not a decision that follows those before"),
        (lambda lines: [lines[0], "[1]\n"], "line 2 is not a decision that follows those before"),
        (
            lambda lines: [lines[0], '{"step": 9, "steps": 8, "seconds": 1.0}\n'],
            "line 2 is not a decision that follows those before",
        ),
        (
            lambda lines: [lines[0], '{"step": 9, "steps": 80, "seconds": NaN}\n'],
            "line 2 is not a decision that follows those before",
        ),
        (
            lambda lines: lines[:2],
            "the decision in force at the checkpoint of step 20 is not in it",
        ),
        (None, "there is no such file"),
    ],
)
def test_decisions_that_are_damaged_are_one_sentence(
    unfinished: Path, change: Callable[[list[str]], list[str]] | None, fault: str
) -> None:
    path = unfinished / DECISIONS
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    if change is None:
        path.unlink()
    else:
        path.write_text("".join(change(lines)), encoding="utf-8")
    with pytest.raises(UserError) as caught:
        resume(unfinished)
    assert str(caught.value) == (
        f"{path} is damaged ({fault}), and the learning rates of the run follow from it: restore "
        "it, or start a new run"
    )


def test_a_log_without_the_seconds_of_a_step_is_one_sentence(unfinished: Path) -> None:
    path = unfinished / "speed.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    path.write_text("".join(lines[:3] + lines[4:]), encoding="utf-8")
    with pytest.raises(UserError, match=r"speed\.jsonl has not the seconds of .* first 20 steps"):
        resume(unfinished)


def test_a_decision_that_cannot_be_written_ends_the_run_with_its_checkpoints(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slows_down(monkeypatch, 30)
    write: Any = write_decisions

    def full(path: Path, decisions: list[Decision]) -> None:
        if decisions[-1].step > 25:
            raise OSError(28, "No space left on device")
        write(path, decisions)

    monkeypatch.setattr("kinfolk.training.time_budget.write_decisions", full)
    with pytest.raises(UserError, match=r"steps.jsonl could not be written \(No space left"):
        pretrain(timed(home), tmp_path / "run", decisions=())
    assert checkpoint.latest_valid(tmp_path / "run") is not None
    monkeypatch.setattr("kinfolk.training.time_budget.write_decisions", write)
    resume(tmp_path / "run")
    last = read_decisions(tmp_path / "run" / DECISIONS)[-1]
    assert last.seconds == pytest.approx(60 * MINUTES, rel=0.02)


def test_steps_and_minutes_exclude_each_other(home: Home) -> None:
    with pytest.raises(UserError, match=r"train.steps=9 and train.minutes=2 are both given"):
        recipe("gpt2/nano", home.corpus, length=LENGTH, steps=9, minutes=2)
    # Those of a recipe are overridden by either.
    chosen = timed(home)
    assert finalize(chosen, ["train.steps=30"]).train.minutes is None
    assert finalize(chosen, ["train.minutes=3"]).train.minutes == 3


def test_several_processes_are_refused(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    two = Processes(rank=0, count=2)
    monkeypatch.setattr(Processes, "from_environment", classmethod(lambda cls: two))
    with pytest.raises(UserError, match="clock of one process, and 2 train together"):
        pretrain(timed(home), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_what_has_no_clock_refuses_minutes(home: Home, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"train.minutes=2.0 does not apply to ngram"):
        recipe("ngram/2", home.corpus, minutes=2)
    with pytest.raises(UserError, match=r"train.minutes is set by the range test"):
        lr_find("gpt2/nano", home.corpus, settings=["train.minutes=1"])
    rows = tmp_path / "rows.tsv"
    lines = [f"{word} {n}\t{word}" for n in range(20) for word in ("good", "bad")]
    rows.write_text("text\tlabel\n" + "\n".join(lines) + "\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"train.minutes=1 applies to pretraining alone"):
        finetune("bilstm/nano", rows, tmp_path / "run", minutes=1, device="cpu")
