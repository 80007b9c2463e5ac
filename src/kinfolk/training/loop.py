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
from kinfolk.training.log import Log, token_loss
from kinfolk.training.step import Outcome


@dataclass(frozen=True)
class Progress:
    """Where a run stands."""

    step: int  # updates done
    steps: int
    loss: float  # of tokens, where it has other parts: what the page of the run shows
    held_out: float | None  # the same on held-out documents, where they were scored at this step
    speed: float  # tokens read in a second
    parts: Mapping[str, float] = field(default_factory=dict)  # of the loss, where it has several


@contextmanager
def uninterrupted() -> Iterator[None]:
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
class Loop:
    """Run steps; write, score and save between them."""

    steps: int
    step: Callable[[int, Sequence[Batch[Any]]], Outcome]
    log: Log
    log_every: int  # steps between reads of the device: each read waits for it
    # Where there are held-out documents: the loss on them, "held_out", and what else is logged.
    score: Callable[[], Mapping[str, Any]] | None
    score_every: int
    save: Callable[[int, float | None], None]
    save_every: int
    watch: Callable[[Progress], None]
    enough: Callable[[], bool] | None = None  # asked after each scoring: may the run end here?
    keep: Callable[[], bool] | None = None  # asked after each scoring: must it be saved?
    remedy: Callable[[], str] = lambda: ""  # what to do where loss or gradient are not finite

    done: int = field(default=0, init=False)
    pending: list[tuple[int, Outcome]] = field(default_factory=list, init=False)
    held_out: float | None = field(default=None, init=False)
    since: float = field(default=0.0, init=False)

    def run(self, start: int, batches: Iterable[Sequence[Batch[Any]]]) -> None:
        """Run from update `start` to the end, or enough; an interrupt saves what was learned."""
        self.done, saved, self.since = start, start, time.perf_counter()
        try:
            for batch in batches:
                with uninterrupted():
                    outcome = self.step(self.done, batch)
                    self.pending.append((self.done + 1, outcome))
                    if not outcome.updated:
                        self.write(False)  # raises
                    self.done += 1
                    saving = self.due(self.save_every)
                    scoring = self.score is not None and (saving or self.due(self.score_every))
                    if saving or scoring or self.due(self.log_every):
                        self.write(scoring)
                    ending = scoring and self.enough is not None and self.enough()
                    keeping = scoring and self.keep is not None and self.keep()
                    if saving or ending or keeping:
                        self.save(self.done, self.held_out)
                        saved, self.since = self.done, time.perf_counter()
                if ending:
                    return
        except KeyboardInterrupt:
            if self.done > saved:
                self.write(False)
                self.save(self.done, None)
            raise

    def due(self, every: int) -> bool:
        """Say whether this step is one of every so many, or the last."""
        return self.done % every == 0 or self.done == self.steps

    def write(self, scoring: bool) -> None:
        """Write the lines that wait, the newest with its score on held-out documents."""
        if not self.pending:
            return
        lines = [(number, outcome.values()) for number, outcome in self.pending]  # waits
        now = time.perf_counter()
        tokens = sum(int(outcome.tokens) for _, outcome in self.pending)
        speed = tokens / max(now - self.since, 1e-9)
        self.pending.clear()
        for place, (number, line) in enumerate(lines):
            for name, value in (("loss", line["loss"]), ("gradient norm", line["norm"])):
                if not math.isfinite(value):
                    for earlier, healthy in lines[:place]:
                        self.log.write(earlier, healthy, {"tokens_per_second": speed})
                    said = "NaN" if math.isnan(value) else "infinite"
                    raise UserError(f"{name} is {said} at step {number}. {self.remedy()}".rstrip())
        if scoring and self.score is not None:
            scores = self.score()
            assert scores.keys().isdisjoint(lines[-1][1]), "a score has the name of something else"
            self.held_out = scores["held_out"]
            lines[-1][1].update(scores)
        else:
            self.held_out = None
        for number, line in lines:
            self.log.write(number, line, {"tokens_per_second": speed})
        newest = lines[-1][1]
        held_out = None if self.held_out is None else token_loss(newest, "held_out")
        parts = newest.get("parts", {})
        self.watch(Progress(self.done, self.steps, token_loss(newest), held_out, speed, parts))
        self.since = time.perf_counter()
