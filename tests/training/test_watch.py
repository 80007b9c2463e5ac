"""Alarms: each is raised by its cause, once, with the number and what to do; none without."""

import math
import random
from collections.abc import Callable, Iterable
from itertools import count
from typing import Any

import pytest

from kinfolk.training.config import TrainConfig
from kinfolk.training.watch import (
    HISTORY,
    RECENT,
    UNIGRAM_STEPS,
    Alarm,
    LossBaseline,
    Watch,
)

TRAIN = TrainConfig(steps=10_000, warmup=100, lr=1e-3)
Value = Callable[[int], float]


def falling(step: int) -> float:
    """Return a loss that falls from 7 to 3, with the noise of small batches."""
    return 3 + 4 * math.exp(-step / 300) + random.Random(step).gauss(0, 0.15)


def log_lines(
    steps: Iterable[int],
    loss: Value = falling,
    norm: Value = lambda step: 1 + random.Random(step).random(),
    lr: Value = lambda step: 1e-3,
    eval_loss: Value | None = None,
    eval_every: int = 100,
) -> list[dict[str, Any]]:
    lines = []
    for step in steps:
        line = {"step": step, "loss": loss(step), "grad_norm": norm(step), "lr": lr(step)}
        if eval_loss is not None and step % eval_every == 0:
            line["eval_loss"] = eval_loss(step)
        lines.append(line)
    return lines


class Watched(Watch):
    """A watch that keeps what it reports."""

    def __init__(self, train: TrainConfig = TRAIN, **settings: Any) -> None:
        self.alarms: list[Alarm] = []
        self.messages: list[str] = []
        super().__init__(
            train, on_alarm=self.alarms.append, on_message=self.messages.append, **settings
        )

    def follow(self, lines: Iterable[dict[str, Any]], waits: Value | None = None) -> "Watched":
        """Observe lines, of steps of a second that wait for their batches so long."""
        for line in lines:
            wait = 0.0 if waits is None else waits(line["step"])
            self.observe(line["step"], line, {"seconds": 1.0, "wait_seconds": wait})
        return self

    @property
    def causes(self) -> list[tuple[str, int]]:
        return [(alarm.cause, alarm.step) for alarm in self.alarms]


def unigram(loss: float) -> LossBaseline:
    return LossBaseline("unigram", lambda: loss)


@pytest.mark.parametrize("has_eval_data", [True, False])
def test_a_healthy_series_raises_nothing(has_eval_data: bool) -> None:
    watch = Watched(baselines=[unigram(6.0)], has_eval_data=has_eval_data)
    watch.start({"corpus": 0.05})
    eval_loss = (lambda step: falling(step) + 0.1) if has_eval_data else None
    watch.follow(log_lines(range(1, 2000), eval_loss=eval_loss), lambda step: 0.3)
    assert watch.alarms == []


def test_a_loss_that_stays_at_the_unigram_entropy_is_reported_after_the_warm_up() -> None:
    lines = log_lines(range(1, 2001), lambda step: 6.9, eval_loss=lambda step: 6.95)
    watch = Watched(baselines=[unigram(6.93)], has_eval_data=True).follow(lines)
    assert watch.causes == [("unigram", TRAIN.warmup + UNIGRAM_STEPS)]
    assert watch.alarms[0].message == (
        "held-out loss 6.950 after 1,100 steps is not 2% below the unigram entropy 6.930, which "
        "needs no context: halve train.lr (now 0.001) and warm up for a tenth of the steps "
        "(train.warmup=1000, now 100)"
    )
    # Without held-out text the training loss is compared; a long warm-up is not advised twice.
    train = TrainConfig(steps=2000, warmup=200)
    watch = Watched(train, baselines=[unigram(6.93)]).follow(log_lines(range(1, 2001), lambda s: 7))
    assert watch.causes == [("unigram", 1200)]
    assert "warm up" not in watch.alarms[0].message


@pytest.mark.parametrize("has_eval_data", [True, False])
def test_a_loss_above_the_unigram_entropy_that_falls_needs_more_steps(has_eval_data: bool) -> None:
    def slow(step: int) -> float:
        return 9 - step / 1000

    lines = log_lines(range(1, 1201), slow, eval_loss=slow if has_eval_data else None)
    watch = Watched(baselines=[unigram(6.93)], has_eval_data=has_eval_data).follow(lines)
    (alarm,) = watch.alarms
    assert "is above the unigram entropy 6.930, which needs no context, and still falls" in (
        alarm.message
    )
    assert alarm.message.endswith("train longer, or with a higher train.lr (now 0.001)")
    # One that rises is not told to train longer.
    lines = log_lines(range(1, 1201), lambda step: 8 + step / 1000)
    watch = Watched(baselines=[unigram(6.93)]).follow(lines)
    assert "halve train.lr" in watch.alarms[0].message


def test_the_end_says_that_the_unigram_entropy_was_not_passed() -> None:
    def end(loss: float) -> list[str]:
        baselines = [unigram(6.0), LossBaseline("3-gram", lambda: 4.0)]
        watch = Watched(baselines=baselines, has_eval_data=True)
        watch.follow(log_lines(range(1, 201), eval_loss=lambda step: loss))
        before = len(watch.messages)
        watch.finish()
        return watch.messages[before:]

    assert end(6.5) == [
        "not below unigram after the last step: held-out loss 6.500, unigram 6.000: the model "
        "reads no context yet; train longer, or with a higher train.lr (now 0.001)"
    ]
    assert end(5.0) == end(3.0) == []  # a masked LM cannot be compared with 3-grams
    nothing = Watched(baselines=[unigram(6.0)], has_eval_data=True)
    nothing.finish()
    assert nothing.messages == []


def test_a_loss_just_under_the_entropy_is_still_at_it_and_a_lower_one_is_not() -> None:
    for loss, expected in ((6.90, ["unigram"]), (6.5, [])):
        lines = log_lines(range(1, 1200), eval_loss=lambda step, loss=loss: loss)  # type: ignore[misc]
        watch = Watched(baselines=[unigram(6.93)], has_eval_data=True).follow(lines)
        assert [alarm.cause for alarm in watch.alarms] == expected


def test_baselines_are_reported_when_the_loss_is_below_them_and_computed_when_they_are_next() -> (
    None
):
    computed: list[str] = []

    def baseline(name: str, loss: float) -> LossBaseline:
        def compute() -> float:
            computed.append(name)
            return loss

        return LossBaseline(name, compute)

    watch = Watched(baselines=[baseline("unigram", 6.0), baseline("3-gram", 4.0)])
    watch.has_eval_data = True
    lines = log_lines(range(1, 601), eval_loss=lambda step: 7 - step / 150)
    watch.follow(lines[:150])
    assert computed == ["unigram"] and watch.baseline == ("unigram", 6.0)
    watch.follow(lines[150:300])
    assert computed == ["unigram", "3-gram"] and watch.baseline == ("3-gram", 4.0)
    watch.follow(lines[300:])
    assert watch.baseline is None
    assert watch.messages == [
        "below unigram at step 200: held-out loss 5.667, unigram 6.000",
        "below 3-gram at step 500: held-out loss 3.667, 3-gram 4.000",
    ]


def test_a_baseline_that_cannot_be_counted_ends_no_run() -> None:
    def fail() -> float:
        raise OSError("No space left on device")

    watch = Watched(baselines=[LossBaseline("unigram", fail), LossBaseline("3-gram", lambda: None)])
    watch.follow(log_lines(range(1, 200)))
    assert watch.baseline is None and watch.alarms == []
    assert watch.messages == ["unigram could not be computed (No space left on device)"]


def test_a_loss_that_rises_and_stays_is_reported_once_and_single_batches_are_not() -> None:
    odd = lambda step: falling(step) + 9 * (step % 40 < 2)  # noqa: E731
    assert Watched().follow(log_lines(range(1, 1000), odd)).alarms == []
    risen = lambda step: falling(step) + 2 * (step > 700) + 2 * (step > 1500)  # noqa: E731
    watch = Watched().follow(log_lines(range(1, 2000), risen))
    assert watch.causes == [("spike", 703)]  # with the third of five
    assert "lower train.lr (now 0.001) or train.grad_clip (now 1)" in watch.alarms[0].message


def test_losses_of_two_kinds_in_turn_are_no_spike() -> None:
    turns = lambda step: 3.5 if step % 2 else 0.1  # noqa: E731
    assert Watched().follow(log_lines(range(1, 500), turns)).alarms == []


def test_a_gradient_of_zero_is_reported_where_there_is_still_a_loss() -> None:
    dead = lambda step: 0.0 if step > 30 else 1.0  # noqa: E731
    watch = Watched().follow(log_lines(range(1, 100), norm=dead))
    assert watch.causes == [("dead_gradient", 40)]
    assert "gradient norm is 0 at step 40" in watch.alarms[0].message
    assert Watched().follow(log_lines(range(1, 100), lambda step: 1e-4, dead)).alarms == []


def test_a_norm_that_grows_tenfold_is_reported_and_a_large_one_that_falls_is_not() -> None:
    grown = lambda step: 35.0 if step > 200 else 1.0  # noqa: E731
    watch = Watched(TrainConfig(grad_clip=0)).follow(log_lines(range(1, 300), norm=grown))
    assert watch.causes == [("exploding_gradient", 203)]
    assert watch.alarms[0].message.startswith("gradient norm rose from 1 to 35 by step 203: lower")
    assert "train.grad_clip=1 (now 0" in watch.alarms[0].message
    shrunk = lambda step: 900 * math.exp(-step / 50)  # noqa: E731
    assert Watched().follow(log_lines(range(1, 300), norm=shrunk)).alarms == []
    small = lambda step: 2.0 if step > 200 else 0.01  # noqa: E731
    assert Watched().follow(log_lines(range(1, 300), norm=small)).alarms == []


def test_a_norm_that_is_huge_from_the_start_is_reported_without_a_comparison() -> None:
    watch = Watched().follow(log_lines(range(1, 20), norm=lambda step: 5e6))
    assert watch.causes == [("exploding_gradient", RECENT)]
    assert watch.alarms[0].message.startswith("gradient norm is 5e+06 by step 5")


def test_a_training_loss_far_below_a_rising_held_out_loss_is_reported() -> None:
    memorized = lambda step: 6 - step / 200  # noqa: E731
    rising = lambda step: 6 - step / 200 if step <= 400 else 4 + (step - 400) / 1000  # noqa: E731
    lines = log_lines(range(1, 1001), memorized, eval_loss=rising)
    watch = Watched(has_eval_data=True).follow(lines)
    assert watch.causes == [("overfitting", 600)]
    assert "held-out loss 4.200 at step 600, which was lowest (4.000) at step 400" in (
        watch.alarms[0].message
    )
    # Both losses of a model that diverges rise.
    jump = lambda step: falling(step) + 5 * (step > 495)  # noqa: E731
    diverged = log_lines(range(1, 600), jump, eval_loss=jump)
    assert Watched(has_eval_data=True).follow(diverged).causes == [("spike", 498)]
    # Fine-tuning selects by its metric, and a held-out loss that still falls is not wrong.
    assert Watched(has_eval_data=True, selects_by_loss=False).follow(lines).alarms == []
    still = log_lines(range(1, 1001), memorized, eval_loss=lambda step: 6 - step / 500)
    assert Watched(has_eval_data=True).follow(still).alarms == []


def test_a_learning_rate_of_zero_is_reported_unless_the_run_begins_or_ends() -> None:
    train = TrainConfig(steps=1000, warmup=100)
    ends = lambda step: 1e-3 * max(0, 1 - step / 500)  # noqa: E731
    watch = Watched(train).follow(log_lines(range(1, 1001), lr=ends))
    assert watch.causes == [("zero_lr", 509)]
    assert watch.alarms[0].message.startswith("learning rate is 0 at step 509 of 1,000")
    for lr in (
        lambda step: 0.0 if step <= 100 else 1e-3,
        lambda step: 1e-3 * (step <= 900),
        lambda step: 1e-8,
    ):
        assert Watched(train).follow(log_lines(range(1, 1001), lr=lr)).alarms == []


def test_a_loader_that_takes_longer_than_the_step_is_reported_after_its_start() -> None:
    lines = log_lines(range(1, 200))
    watch = Watched(TrainConfig(workers=1)).follow(lines, lambda step: 0.6)
    assert watch.causes == [("slow_loader", 10 + HISTORY)]
    assert watch.alarms[0].message == (
        "60% of the time is spent waiting for batches at step 60, 600.0 ms of 1,000.0 ms a step: "
        "raise train.workers (now 1)"
    )
    assert Watched().follow(lines, lambda step: 0.4).alarms == []
    assert Watched().follow(lines, lambda step: 1.0 * (step <= 10)).alarms == []


def test_a_corpus_of_repeated_documents_is_reported_before_the_first_step() -> None:
    watch = Watched()
    watch.start({"web": 0.1, "mail": 0.4, "news": 0.3})
    assert watch.causes == [("duplicates", 0)]
    assert watch.alarms[0].message.startswith("40% of the tokens in mail are in documents that")
    assert "--dedup exact" in watch.alarms[0].message


@pytest.mark.parametrize("stop", [250, 699, 702, 705, 900])
def test_a_resumed_run_raises_what_an_uninterrupted_one_does(stop: int) -> None:
    risen = lambda step: falling(step) + 2 * (step > 700)  # noqa: E731
    lines = log_lines(range(1, 1001), risen, eval_loss=lambda step: 8 - step / 200)
    settings: dict[str, Any] = {"baselines": [unigram(6.0)], "has_eval_data": True}
    whole = Watched(**settings).follow(lines)
    first, second = Watched(**settings).follow(lines[:stop]), Watched(**settings)
    second.restore(lines[:stop], [alarm.cause for alarm in first.alarms])
    assert second.messages == [], "a baseline that was passed is not passed again"
    second.follow(lines[stop:])
    assert [*first.alarms, *second.alarms] == whole.alarms and len(whole.alarms) == 1
    assert [*first.messages, *second.messages] == whole.messages and len(whole.messages) == 1
    assert second.baseline == whole.baseline


def test_an_evaluation_that_is_not_finite_is_passed_over() -> None:
    values = count()
    lines = log_lines(range(1, 300), eval_loss=lambda step: (math.nan, math.inf)[next(values)])
    watch = Watched(baselines=[unigram(6.0)], has_eval_data=True).follow(lines)
    assert watch.alarms == [] and watch.messages == []
