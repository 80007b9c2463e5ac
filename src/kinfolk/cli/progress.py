"""Progress bars on stderr, shown on a terminal only."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)

from kinfolk.cli.app import errors


@contextmanager
def byte_progress(label: str) -> Iterator[Callable[[int, int | None], None]]:
    """Show a progress bar of bytes on a terminal."""
    columns = ("[progress.description]{task.description}", BarColumn(), DownloadColumn())
    hidden = not errors.is_terminal
    with Progress(
        *columns, TimeRemainingColumn(), console=errors, transient=True, disable=hidden
    ) as bar:
        task = bar.add_task(label, total=None)
        yield lambda read, total: bar.update(task, completed=read, total=total)


@contextmanager
def row_progress(label: str, rows: int) -> Iterator[Callable[[int], None]]:
    """Show a progress bar of rows on a terminal."""
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
