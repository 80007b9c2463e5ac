"""The loop: what happens when, and that nothing is lost."""

import itertools
import math
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from kinfolk.errors import Terminated, UserError
from kinfolk.training import loop
from kinfolk.training.config import TrainConfig
from kinfolk.training.log import MetricsLog, read, speed_lines
from kinfolk.training.loop import Evaluation, Progress, TrainLoop
from kinfolk.training.recovery import NonFiniteError
from kinfolk.training.step import StepOutput
from support.runs import OnStep


class Run:
    """A loop whose parts write down when they were called."""

    def __init__(
        self, folder: Path, *, steps: int = 10, start: int = 0, log_every: int = 1, **every: int
    ) -> None:
        self.folder, self.steps, self.start, self.log_every = folder, steps, start, log_every
        self.train = TrainConfig(steps=steps, **{"eval_every": 4, "save_every": 5, **every})
        self.stepped: list[int] = []
        self.scored: list[int] = []
        self.saved: list[tuple[int, float | None]] = []  # the loss of an evaluation beside it
        self.watched: list[Progress] = []
        self.losses: Callable[[int], float] = lambda number: 1.0 / (number + 1)
        self.norms: Callable[[int], float] = lambda number: 0.5
        self.updated: Callable[[int], bool] = lambda number: True
        self.held = True
        self.beside: dict[str, float] = {}
        self.enough: Callable[[], bool] = lambda: False
        self.best = False
        self.received: list[int] = []

    def step(self, number: int, batches: Any) -> StepOutput:
        assert batches == [f"batch {number}"]
        self.stepped.append(number)
        loss = torch.tensor(self.losses(number))
        norm, updated = torch.tensor(self.norms(number)), self.updated(number)
        return StepOutput(loss, norm, {"tokens": loss}, {"tokens": 7}, 0.1, 7, updated)

    def score(self) -> Evaluation:
        self.scored.append(len(self.stepped) + self.start)
        return Evaluation({"eval_loss": 0.25} | self.beside, is_best=self.best)

    def save(self, number: int, evaluation: Evaluation | None) -> None:
        # What a checkpoint counts on is in the log before it is written.
        assert [e["step"] for e in read(self.folder)][-1] == number
        loss = None if evaluation is None else evaluation.metrics["eval_loss"]
        self.saved.append((number, loss))

    def batches(self) -> Iterator[list[str]]:
        for number in range(self.start, self.steps):
            yield [f"batch {number}"]

    def go(self, batches: Iterator[Any] | None = None) -> list[dict[str, Any]]:
        with MetricsLog.open(self.folder, self.start) as log:
            TrainLoop(
                train=self.train,
                step=self.step,
                log=log,
                log_every=self.log_every,
                evaluate=self.score if self.held else None,
                save=self.save,
                save_best=self.best,
                callbacks=[OnStep(self.watched.append)],
                should_stop=self.enough,
                remedy=lambda: "Rest.",
                received=self.received,
            ).run(self.start, batches or self.batches())
        return read(self.folder)


def test_every_step_is_taken_once_and_logged_once(tmp_path: Path) -> None:
    run = Run(tmp_path)
    lines = run.go()
    assert run.stepped == list(range(10))
    assert [line["step"] for line in lines] == list(range(1, 11))
    assert [line["loss"] for line in lines] == pytest.approx([1 / n for n in range(1, 11)])


def test_scores_and_checkpoints_come_when_due_and_at_the_end(tmp_path: Path) -> None:
    run = Run(tmp_path, steps=11)
    lines = run.go()
    assert run.scored == [4, 5, 8, 10, 11]  # every four, and before each checkpoint
    assert run.saved == [(5, 0.25), (10, 0.25), (11, 0.25)]
    assert [line["step"] for line in lines if "eval_loss" in line] == run.scored


def test_the_log_waits_for_the_device_no_more_often_than_told(tmp_path: Path) -> None:
    run = Run(tmp_path, steps=10, log_every=3, eval_every=100, save_every=100)
    lines = run.go()
    assert [p.step for p in run.watched] == [3, 6, 9, 10]
    assert [line["step"] for line in lines] == list(range(1, 11))


def test_the_best_step_is_saved_once_although_the_log_is_written_later(tmp_path: Path) -> None:
    run = Run(tmp_path, steps=9, log_every=10, eval_every=3, save_every=100)
    run.best = True
    run.go()
    assert run.saved == [(3, 0.25), (6, 0.25), (9, 0.25)]


def test_where_nothing_is_held_out_nothing_is_scored(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.held = False
    lines = run.go()
    assert run.scored == [] and run.saved == [(5, None), (10, None)]
    assert not any("eval_loss" in line for line in lines)


def test_a_run_goes_on_where_it_was(tmp_path: Path) -> None:
    Run(tmp_path, steps=5).go()
    run = Run(tmp_path, start=5)
    lines = run.go()
    assert run.stepped == [5, 6, 7, 8, 9]
    assert [line["step"] for line in lines] == list(range(1, 11))
    assert run.saved == [(10, 0.25)]


def test_progress_says_where_the_run_stands(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.go()
    assert [p.step for p in run.watched] == list(range(1, 11))
    scored = [p.step for p in run.watched if p.eval_loss is not None]
    assert scored == run.scored == [4, 5, 8, 10]  # no score is told twice
    last = run.watched[-1]
    assert last.steps == 10 and last.loss == pytest.approx(0.1) and last.tokens_per_second > 0


def interrupted(run: Run, after: int) -> Iterator[list[str]]:
    for number, batch in enumerate(run.batches()):
        if number == after:
            raise KeyboardInterrupt
        yield batch


def test_an_interrupt_saves_what_was_learned(tmp_path: Path) -> None:
    run = Run(tmp_path, log_every=10)
    with pytest.raises(KeyboardInterrupt):
        run.go(interrupted(run, 7))
    assert run.saved == [(5, 0.25), (7, None)]
    assert [line["step"] for line in read(tmp_path)] == list(range(1, 8))


def test_an_interrupt_just_after_a_checkpoint_saves_nothing_twice(tmp_path: Path) -> None:
    run = Run(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        run.go(interrupted(run, 5))
    assert run.saved == [(5, 0.25)]


@pytest.mark.parametrize("sick", [math.nan, math.inf])
@pytest.mark.parametrize("what", ["loss", "gradient norm"])
def test_a_run_with_a_value_that_is_not_finite_stops_and_is_not_saved(
    tmp_path: Path, sick: float, what: str
) -> None:
    run = Run(tmp_path, log_every=10)
    wrong = lambda number: sick if number == 3 else 1.0  # noqa: E731
    if what == "loss":
        run.losses = wrong
    else:
        run.norms = wrong
    said = "NaN" if math.isnan(sick) else "infinite"
    with pytest.raises(UserError, match=rf"^{what} is {said} at step 4\. Rest\.$"):
        run.go()
    assert run.saved == []
    assert [line["step"] for line in read(tmp_path)] == [1, 2, 3]  # those before it are written


def test_a_step_that_changed_nothing_ends_the_run_at_once(tmp_path: Path) -> None:
    run = Run(tmp_path, log_every=10)
    run.norms = lambda number: math.inf if number == 3 else 1.0
    run.updated = lambda number: number != 3
    with pytest.raises(UserError, match="gradient norm is infinite at step 4"):
        run.go()
    assert run.stepped == [0, 1, 2, 3] and run.saved == []


def test_whatever_is_scored_is_logged_beside_the_loss(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.beside = {"accuracy": 0.75, "f1": 0.5}
    lines = run.go()
    found = {line["step"]: (line["eval_loss"], line["f1"]) for line in lines if "accuracy" in line}
    assert found == dict.fromkeys(run.scored, (0.25, 0.5))


def test_a_score_never_hides_what_the_step_said(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.beside = {"loss": 0.75}
    with pytest.raises(AssertionError, match="the name of another value"):
        run.go()


def test_a_run_ends_when_it_is_enough_and_is_saved(tmp_path: Path) -> None:
    run = Run(tmp_path, steps=20)
    asked: list[int] = []

    def enough() -> bool:
        asked.append(run.scored[-1])
        return run.scored[-1] == 8

    run.enough = enough
    lines = run.go()
    assert asked == run.scored == [4, 5, 8], "it is asked after each scoring, and then alone"
    assert run.stepped == list(range(8))
    assert run.saved == [(5, 0.25), (8, 0.25)]
    assert [line["step"] for line in lines] == list(range(1, 9))
    assert run.watched[-1].step == 8


def test_a_run_that_ends_at_a_checkpoint_is_saved_once(tmp_path: Path) -> None:
    run = Run(tmp_path, steps=20)
    run.enough = lambda: run.scored[-1] == 5
    run.go()
    assert run.saved == [(5, 0.25)]


def test_where_nothing_is_scored_nobody_asks_whether_it_is_enough(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.held, run.enough = False, lambda: True
    run.go()
    assert run.saved == [(5, None), (10, None)]


@pytest.mark.parametrize("busy", [0.0, 0.1])
def test_waiting_for_batches_is_timed_but_for_the_time_in_which_the_device_is_busy(
    tmp_path: Path, busy: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]

    def now() -> float:
        return clock[0]

    def sleep(seconds: float) -> None:
        clock[0] += seconds

    class Pending(StepOutput):
        def to_numbers(self) -> dict[str, Any]:
            sleep(busy)  # until the device has done the step
            return super().to_numbers()

    def late(run: Run) -> Iterator[list[str]]:
        for batch in run.batches():
            sleep(0.02)
            yield batch

    monkeypatch.setattr(loop, "time", SimpleNamespace(perf_counter=now, monotonic=now))
    run = Run(tmp_path, steps=4, log_every=2, eval_every=100, save_every=100)
    step = run.step
    run.step = lambda number, batches: Pending(**vars(step(number, batches)))  # type: ignore[method-assign]
    run.go(late(run))
    waits = [line["wait_seconds"] for line in speed_lines(tmp_path)]
    assert waits == pytest.approx(4 * [0.0 if busy else 0.02])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_is_kept_if_a_pending_loss_is_not_finite(tmp_path: Path, number: int) -> None:
    run = Run(tmp_path, steps=20, log_every=10, eval_every=100, save_every=100)
    run.losses = lambda step: math.nan if step == 2 else 1.0

    def ended() -> Iterator[list[str]]:
        yield from itertools.islice(run.batches(), 4)
        raise KeyboardInterrupt if number == signal.SIGINT else Terminated(number)

    with pytest.raises(NonFiniteError):
        run.go(ended())
    assert run.received == [number] and run.saved == []
