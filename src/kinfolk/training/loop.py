"""The training loop: steps, and the logging, evaluation and saving between them."""

import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kinfolk.batch import Batch
from kinfolk.errors import Terminated, UserError
from kinfolk.training.config import TrainConfig
from kinfolk.training.distributed import LostProcessError, Processes
from kinfolk.training.loader import LostWorkerError, is_lost_worker
from kinfolk.training.log import Log
from kinfolk.training.recovery import NonFiniteError
from kinfolk.training.step import StepOutput
from kinfolk.training.watch import Watch

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True)
class Progress:
    """The state of a run after a step."""

    step: int  # optimizer steps done
    steps: int
    loss: float  # the sum of its parts, as in the log
    eval_loss: float | None  # the same on held-out data, if evaluated at this step
    tokens_per_second: float  # input tokens
    # Parts of both, if there are several, that of tokens first, which baselines compare with.
    losses: Mapping[str, float] = field(default_factory=dict)
    eval_losses: Mapping[str, float] = field(default_factory=dict)
    baseline: tuple[str, float] | None = None  # name and loss of the next to fall below, if any
    compile_seconds: float = 0.0  # since the last progress, in which the compiler ran


@dataclass(frozen=True)
class Evaluation:
    """The metrics of a model on held-out data."""

    metrics: Mapping[str, Any]  # "eval_loss" among them
    score: tuple[float, ...] = ()  # selects the best checkpoint; larger is better
    is_best: bool = False  # better than every checkpoint saved so far
    main_metrics: Mapping[str, float] = field(default_factory=dict)  # of each task


class Callback:
    """Hooks of a run: override those of interest."""

    def on_message(self, message: str) -> None:
        """Called with a message about the data or the settings, and with each alarm."""

    def on_step(self, progress: Progress) -> None:
        """Called when steps are logged: each one on a CPU, every tenth on CUDA."""

    def on_evaluate(self, step: int, evaluation: Evaluation) -> None:
        """Called after an evaluation, before `on_step` of the same step."""

    def on_save(self, checkpoint: Path) -> None:
        """Called when a checkpoint is complete."""

    def on_end(self, step: int, *, interrupted: bool) -> None:
        """Called when training ends, with the last step, or is interrupted by a signal."""


def check_callbacks(callbacks: object) -> None:
    """Refuse what is no list of callbacks, before a run is started."""
    if not isinstance(callbacks, Sequence):
        raise UserError(
            f"callbacks is of type {type(callbacks).__name__}: give a list of callbacks"
        )
    for callback in callbacks:
        if not isinstance(callback, Callback):
            raise UserError(
                f"callbacks: {callback!r} is not an object of a subclass of kinfolk.Callback"
            )


@contextmanager
def raise_on_signals() -> Iterator[list[int]]:
    """Raise Terminated on SIGTERM and SIGHUP in the block, as Python does for Ctrl-C.

    None are collected.
    """
    process, terminals = os.getpid(), [stream for stream in (1, 2) if os.isatty(stream)]

    def terminate(number: int, frame: object) -> None:
        if os.getpid() != process:  # a worker, which its parent ends
            return
        for stream in terminals:
            if not os.isatty(stream):  # closed: printing would fail before the checkpoint is saved
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
        raise Terminated(number)

    with _handlers(terminate, SIGNALS[1:]):
        yield []


@contextmanager
def defer_signals(pending: list[int]) -> Iterator[None]:
    """Delay signals to the end of the block: no half-done step or log line is saved.

    After a loss that is not finite they are pending: the run may drop the batch and go on.
    """
    received: list[int] = []
    try:
        # Torch raises an error from SIGCHLD where a process of the data loader has ended.
        with _handlers(lambda number, frame: received.append(number), (*SIGNALS, signal.SIGCHLD)):
            yield
    except NonFiniteError:
        pending += [number for number in received if number in SIGNALS]
        raise
    for number in sorted({*received}, key=lambda number: number not in SIGNALS):
        signal.raise_signal(number)  # now to the handler of before


@contextmanager
def record_signals() -> Iterator[list[int]]:
    """Collect signals in the block, for processes that must stop at the same step."""
    received: list[int] = []
    with _handlers(lambda number, frame: received.append(number), SIGNALS):
        yield received


@contextmanager
def _handlers(
    handler: Callable[[int, object], object], numbers: Sequence[signal.Signals]
) -> Iterator[None]:
    """Handle these signals, but for those that are ignored (nohup); in the main thread only."""
    previous: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        previous = {number: signal.getsignal(number) for number in numbers}
    ours = [number for number, other in previous.items() if other is not signal.SIG_IGN]
    try:
        for number in ours:
            signal.signal(number, handler)
        yield
    finally:
        for number in ours:
            signal.signal(number, previous[number] or signal.SIG_DFL)


@dataclass(kw_only=True)
class TrainLoop:
    """Run optimizer steps; log, evaluate and save between them."""

    train: TrainConfig
    step: Callable[[int, Sequence[Batch[Any]]], StepOutput]
    log: Log
    log_every: int  # steps between reads of the device: each read waits for it
    evaluate: Callable[[], Evaluation] | None  # None without held-out data
    save: Callable[[int, Evaluation | None], None]
    save_best: bool = False  # save whenever an evaluation is the best so far
    should_stop: Callable[[], bool] = lambda: False  # called after each evaluation
    callbacks: Sequence[Callback] = ()
    remedy: Callable[[], str] = lambda: ""  # advice for a loss or gradient that is not finite
    watch: Watch | None = None
    memory: Callable[[], Mapping[str, float]] = dict  # bytes, for the log of speed
    # Given the newest step and the seconds of each since the last call, the settings from now on:
    # the clock of a run with a budget of seconds sets its number of steps.
    follow_clock: Callable[[int, float], TrainConfig] | None = None
    processes: Processes = Processes()  # that run this loop together
    saves_alone: bool = True  # process 0 has all that a checkpoint holds
    # Signals that stop all of them before the next step.
    received: list[int] = field(default_factory=list)

    global_step: int = field(default=0, init=False)
    unlogged: list[tuple[int, StepOutput]] = field(default_factory=list, init=False)
    evaluation: Evaluation | None = field(default=None, init=False)  # of the newest step
    since: float = field(default=0.0, init=False)
    waited: float = field(default=0.0, init=False)  # seconds for batches, of the unlogged steps

    def run(
        self, start: int, batches: Iterable[Sequence[Batch[Any]]], saved: int | None = None
    ) -> None:
        """Run from step `start` to the end, or to early stopping; an interrupt saves first.

        `saved` is the step of the newest checkpoint, if that is not `start`.
        """
        saved = start if saved is None else saved
        self.global_step, self.since = start, time.perf_counter()
        try:
            for batch in self.timed(batches):
                self.processes.raise_signals(self.received)
                with defer_signals(self.received):
                    self.evaluation = None
                    output = self.step(self.global_step, batch)
                    self.unlogged.append((self.global_step + 1, output))
                    if not output.updated:
                        self.write(False)  # raises
                    self.global_step += 1
                    saving = self.is_due(self.train.save_every)
                    evaluating = self.evaluate is not None and (
                        saving or self.is_due(self.train.eval_every)
                    )
                    if saving or evaluating or self.is_due(self.log_every):
                        self.write(evaluating)
                    stopping = evaluating and self.should_stop()
                    if saving or stopping or self.is_new_best():
                        self.save(self.global_step, self.evaluation)
                        saved, self.since = self.global_step, time.perf_counter()
                by_clock = self.follow_clock is not None  # its batches have no end
                if stopping or (by_clock and self.global_step == self.train.steps):
                    return
        except (KeyboardInterrupt, Terminated, LostProcessError, RuntimeError) as error:
            lost_worker = isinstance(error, RuntimeError)
            if lost_worker and not is_lost_worker(error):
                raise
            # Other processes do not know of a lost worker; of a lost process some know, and the
            # others wait in the exchange that it has left.
            lost = lost_worker or isinstance(error, LostProcessError)
            alone = self.saves_alone if not lost_worker else not self.processes.several
            if self.global_step > saved and (alone or not lost):
                self._write_before_the_end(error)
                self.save(self.global_step, self.evaluation if self.is_new_best() else None)
            if lost_worker:
                raise LostWorkerError(str(error)) from error
            raise

    def _write_before_the_end(self, error: BaseException) -> None:
        """Write the pending lines of a run that a signal or a lost process ends.

        One of them may be of a loss that is not finite, after which the run goes on without its
        batch: the signal is then raised again before the next step. The clock decides nothing at
        a step of chance, between those at which it is read.
        """
        self.follow_clock = None
        try:
            self.write(False)
        except NonFiniteError:
            if isinstance(error, Terminated):
                self.received.append(error.signal)
            elif isinstance(error, KeyboardInterrupt):
                self.received.append(signal.SIGINT)
            raise

    def timed(self, batches: Iterable[Sequence[Batch[Any]]]) -> Iterator[Sequence[Batch[Any]]]:
        """Yield the batches, and add up the seconds that each was waited for."""
        began = time.monotonic()
        for batch in batches:
            self.waited += time.monotonic() - began
            yield batch
            began = time.monotonic()

    def is_due(self, every: int) -> bool:
        """Return whether this step is a multiple of `every`, or the last."""
        return self.global_step % every == 0 or self.global_step == self.train.steps

    def is_new_best(self) -> bool:
        """Return whether the newest step must be saved because it is the best so far."""
        return self.save_best and self.evaluation is not None and self.evaluation.is_best

    def write(self, evaluating: bool) -> None:
        """Write the pending lines of the log, the newest with its evaluation."""
        if not self.unlogged:
            return
        began = time.monotonic()
        # Waits for the device.
        lines = [(number, output.to_numbers()) for number, output in self.unlogged]
        # While the device was busy, waiting for batches cost nothing.
        waited, self.waited = max(0.0, self.waited - (time.monotonic() - began)), 0.0
        tokens = sum(int(output.tokens) for _, output in self.unlogged)
        compiling = sum(output.compile_seconds for _, output in self.unlogged)
        seconds = max(time.perf_counter() - self.since - compiling, 1e-9)
        speed = tokens / seconds
        timed = {
            "seconds": seconds / len(lines),
            "tokens_per_second": speed,
            "wait_seconds": waited / len(lines),
            **({"compile_seconds": compiling / len(lines)} if compiling else {}),
            **self.memory(),
        }
        for index, (number, line) in enumerate(lines):
            norm = line.get("grad_norm", 0.0)
            for name, value in (("loss", line["loss"]), ("gradient norm", norm)):
                if not math.isfinite(value):
                    for earlier, finite in lines[:index]:
                        self.log.write(earlier, finite, timed)
                    kind = "NaN" if math.isnan(value) else "infinite"
                    raise NonFiniteError(f"{name} is {kind}", number, self.remedy())
        newest = lines[-1][1]
        if evaluating and self.evaluate is not None:
            self.evaluation = self.evaluate()
            metrics = self.evaluation.metrics
            assert metrics.keys().isdisjoint(newest), "a metric has the name of another value"
            newest.update(metrics)
        self.unlogged.clear()
        for number, line in lines:
            self.log.write(number, line, timed)
            if self.watch is not None:
                self.watch.observe(number, line, timed)
        if self.follow_clock is not None:
            self.train = self.follow_clock(self.global_step, seconds / len(lines))
            if self.watch is not None:
                self.watch.train = self.train
        progress = Progress(
            self.global_step,
            self.train.steps,
            newest["loss"],
            newest.get("eval_loss"),
            speed,
            newest.get("losses", {}),
            newest.get("eval_losses", {}),
            None if self.watch is None else self.watch.baseline,
            compiling,
        )
        for callback in self.callbacks:
            if self.evaluation is not None:
                callback.on_evaluate(self.global_step, self.evaluation)
            callback.on_step(progress)
        self.since = time.perf_counter()
