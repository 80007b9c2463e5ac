"""Progress on stderr: a live bar on a terminal, lines elsewhere."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)

from kinfolk.cli.app import errors, note

if TYPE_CHECKING:
    from kinfolk.training.loop import Progress as RunState

SECONDS = 30  # between lines, at most


@contextmanager
def run_progress(
    name: str, header: Sequence[str] = (), score: Callable[[], str] | None = None
) -> Iterator[Callable[["RunState"], None]]:
    """Show the progress of a run; elsewhere than on a terminal, a line every 30 s or 10 %.

    The lines of `header` are printed with the first report: nothing is wrong with the run then.
    `score` returns the text of the newest score, and is called after each evaluation.
    """
    columns = (
        TextColumn("[bold]{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[values]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=errors, disable=not errors.is_terminal) as bar:
        task = bar.add_task(name, total=None, values="")
        evaluation = ""
        began = shown = time.monotonic()
        first: int | None = None  # step of the first report: a resumed run does not begin at 0

        def watch(state: "RunState") -> None:
            nonlocal evaluation, first, shown
            values = f"loss {state.loss:.3f}"
            for part, value in state.losses.items():
                values += "" if part == "tokens" else f"  {part} {value:.3f}"
            if state.eval_loss is not None:
                newest = f"  eval_loss {state.eval_loss:.3f}"
                newest += "" if score is None else f"  {score()}"
                values, evaluation = values + newest, f"{newest} (step {state.step:,})"
            else:
                values += evaluation
            values += f"  {state.tokens_per_second:,.0f} tokens/s"
            bar.update(task, completed=state.step, total=state.steps, values=values)
            now = time.monotonic()
            if first is None:
                first = state.step - 1
                for line in header:
                    note(line)
            due = state.step % max(1, state.steps // 10) == 0 or now - shown >= SECONDS
            if not errors.is_terminal and due:
                shown, left = now, state.steps - state.step
                if left:
                    values += f"  ETA {duration((now - began) / (state.step - first) * left)}"
                note(f"{name}  step {state.step}/{state.steps}  {values}")

        yield watch


@contextmanager
def resumable(command: str, run: Path) -> Iterator[None]:
    """Print how to resume a run that is interrupted, and exit with 130."""
    try:
        yield
    except KeyboardInterrupt:
        from kinfolk.training import checkpoint

        saved = checkpoint.latest_valid(run)
        step = 0 if saved is None else checkpoint.checkpoint_step(saved)
        where = "interrupted" if saved is None else f"interrupted at step {step}: saved {saved}"
        if run.is_dir():
            note(f"{where}; resume with: kinfolk {command} --resume {run}")
        raise typer.Exit(130) from None


@contextmanager
def byte_progress(label: str) -> Iterator[Callable[[int, int | None], None]]:
    """Show how many bytes of all are read, on a terminal."""
    columns = ("[progress.description]{task.description}", BarColumn(), DownloadColumn())
    hidden = not errors.is_terminal
    with Progress(
        *columns, TimeRemainingColumn(), console=errors, transient=True, disable=hidden
    ) as bar:
        task = bar.add_task(label, total=None)
        yield lambda read, whole: bar.update(task, completed=read, total=whole)


@contextmanager
def row_progress(label: str, rows: int) -> Iterator[Callable[[int], None]]:
    """Show how many rows of all are done, on a terminal."""
    columns = (
        TextColumn("[bold]{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    hidden = not errors.is_terminal
    with Progress(*columns, console=errors, disable=hidden, redirect_stdout=False) as bar:
        task = bar.add_task(label, total=rows)
        yield lambda done: bar.update(task, completed=done)


def duration(seconds: float) -> str:
    """Return a time in the two largest units: 1h02m, 3m05s, 12s."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}h{minutes:02}m"
    return f"{minutes}m{rest:02}s" if minutes else f"{rest}s"
