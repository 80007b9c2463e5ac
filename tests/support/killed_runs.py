"""Runs that die: each in a process of its own, by the signal that nothing can catch."""

import multiprocessing
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kinfolk.data.ngram_counts import OrderCounts, SortedRuns
from kinfolk.training import checkpoint
from kinfolk.training.loop import Progress
from kinfolk.workflows.pretrain import pretrain, resume
from kinfolk.workflows.recipe import Recipe
from support.crash import server
from support.runs import OnStep

Plan = Callable[[], Callable[[Progress], None]]


def at(step: int) -> Callable[[Progress], None]:
    """Die when a step has been logged, and before it is saved."""

    def watch(progress: Progress) -> None:
        if progress.step == step:
            die()

    return watch


def inside(part: str, step: int) -> Callable[[Progress], None]:
    """Die where a part of `checkpoints.save` would begin, at the checkpoint of a step."""
    original = getattr(checkpoint, part)
    now = 0

    def dying(*arguments: Any, **named: Any) -> Any:
        return die() if now == step else original(*arguments, **named)

    def watch(progress: Progress) -> None:
        nonlocal now
        now = progress.step

    setattr(checkpoint, part, dying)
    return watch


def counting(order: int) -> Callable[[Progress], None]:
    """Die when the sorted runs of an order of n-grams would be merged."""
    merge = SortedRuns.merge

    def dying(self: SortedRuns, counts: OrderCounts) -> None:
        die() if counts.order == order else merge(self, counts)

    SortedRuns.merge = dying  # type: ignore[method-assign]
    return lambda progress: None


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def go(recipe: Recipe, out: Path, plan: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    """Begin a run, or go on with one."""
    # Its workers are started as in any process: those of a server would outlive it.
    multiprocessing.set_start_method(None, force=True)
    watch = plan(*arguments)
    if out.exists():
        resume(out, callbacks=[OnStep(watch)])
    else:
        pretrain(recipe, out, callbacks=[OnStep(watch)])


def death(recipe: Recipe, out: Path, plan: Callable[..., Any], *arguments: Any) -> None:
    """Run until death, and see that it was death."""
    process = server.Process(target=go, args=(recipe, out, plan, arguments))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL, process.exitcode
