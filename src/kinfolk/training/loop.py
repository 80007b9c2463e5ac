"""The loop owns time: steps, and what happens between them. It knows no model and no objective."""

import math
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from kinfolk.batch import Batch
from kinfolk.errors import UserError
from kinfolk.training.log import MetricsLog, token_loss
from kinfolk.training.step import StepOutput


@dataclass(frozen=True)
class Progress:
    """Where a run stands."""

    step: int  # updates done
    steps: int
    loss: float  # of tokens, where it has other parts: what the page of the run shows
    eval_loss: float | None  # the same on held-out documents, where they were scored at this step
    tokens_per_second: float  # tokens read in a second
    losses: Mapping[str, float] = field(default_factory=dict)  # of the loss, where it has several


@contextmanager
def defer_signals() -> Iterator[None]:
    """Let Ctrl-C wait for the end: half an update, or half its line, must never be saved."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before or signal.SIG_DFL)
    if came:
        raise KeyboardInterrupt


@dataclass(kw_only=True)
class TrainLoop:
    """Run steps; write, score and save between them."""

    steps: int
    step: Callable[[int, Sequence[Batch[Any]]], StepOutput]
    log: MetricsLog
    log_every: int  # steps between reads of the device: each read waits for it
    # Where there are held-out documents: the loss on them, "eval_loss", and what else is logged.
    evaluate: Callable[[], Mapping[str, Any]] | None
    eval_every: int
    save: Callable[[int, float | None], None]
    save_every: int
    watch: Callable[[Progress], None]
    should_stop: Callable[[], bool] | None = None  # asked after each scoring: may the run end here?
    keep: Callable[[], bool] | None = None  # asked after each scoring: must it be saved?
    remedy: Callable[[], str] = lambda: ""  # what to do where loss or gradient are not finite

    global_step: int = field(default=0, init=False)
    unlogged: list[tuple[int, StepOutput]] = field(default_factory=list, init=False)
    eval_loss: float | None = field(default=None, init=False)
    since: float = field(default=0.0, init=False)

    def run(self, start: int, batches: Iterable[Sequence[Batch[Any]]]) -> None:
        """Run from update `start` to the end, or enough; an interrupt saves what was learned."""
        self.global_step, saved, self.since = start, start, time.perf_counter()
        try:
            for batch in batches:
                with defer_signals():
                    outcome = self.step(self.global_step, batch)
                    self.unlogged.append((self.global_step + 1, outcome))
                    if not outcome.updated:
                        self.write(False)  # raises
                    self.global_step += 1
                    saving = self.is_due(self.save_every)
                    scoring = self.evaluate is not None and (saving or self.is_due(self.eval_every))
                    if saving or scoring or self.is_due(self.log_every):
                        self.write(scoring)
                    ending = scoring and self.should_stop is not None and self.should_stop()
                    keeping = scoring and self.keep is not None and self.keep()
                    if saving or ending or keeping:
                        self.save(self.global_step, self.eval_loss)
                        saved, self.since = self.global_step, time.perf_counter()
                if ending:
                    return
        except KeyboardInterrupt:
            if self.global_step > saved:
                self.write(False)
                self.save(self.global_step, None)
            raise

    def is_due(self, every: int) -> bool:
        """Say whether this step is one of every so many, or the last."""
        return self.global_step % every == 0 or self.global_step == self.steps

    def write(self, scoring: bool) -> None:
        """Write the lines that wait, the newest with its score on held-out documents."""
        if not self.unlogged:
            return
        lines = [(number, outcome.to_numbers()) for number, outcome in self.unlogged]  # waits
        now = time.perf_counter()
        tokens = sum(int(outcome.tokens) for _, outcome in self.unlogged)
        speed = tokens / max(now - self.since, 1e-9)
        self.unlogged.clear()
        for place, (number, line) in enumerate(lines):
            for name, value in (("loss", line["loss"]), ("gradient norm", line["grad_norm"])):
                if not math.isfinite(value):
                    for earlier, healthy in lines[:place]:
                        self.log.write(earlier, healthy, {"tokens_per_second": speed})
                    said = "NaN" if math.isnan(value) else "infinite"
                    raise UserError(f"{name} is {said} at step {number}. {self.remedy()}".rstrip())
        if scoring and self.evaluate is not None:
            scores = self.evaluate()
            assert scores.keys().isdisjoint(lines[-1][1]), "a score has the name of something else"
            self.eval_loss = scores["eval_loss"]
            lines[-1][1].update(scores)
        else:
            self.eval_loss = None
        for number, line in lines:
            self.log.write(number, line, {"tokens_per_second": speed})
        newest = lines[-1][1]
        held_out = None if self.eval_loss is None else token_loss(newest, "eval_loss")
        parts = newest.get("losses", {})
        self.watch(
            Progress(self.global_step, self.steps, token_loss(newest), held_out, speed, parts)
        )
        self.since = time.perf_counter()
