"""What commands print: notes and progress bars on stderr; tables and JSON on stdout."""

import json
import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Column, Table

LINE_SECONDS = 10  # between two lines about the progress, where there is no terminal
MAX_CHARS = 60  # of a text in a cell
# Control characters except tab and new line, which a terminal would obey.
CONTROL = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if code not in (9, 10)}

console = Console()
errors = Console(stderr=True)


def visible(text: str) -> str:
    """Return a text whose control characters are written as escapes: \\x1b."""
    return text.translate(CONTROL)


def note(sentence: str) -> None:
    """Print a sentence on stderr, unchanged and in one line."""
    errors.print(visible(sentence), highlight=False, markup=False, soft_wrap=True)


def print_line(text: str) -> None:
    """Print a line on stdout; names in it may hold any character."""
    print(visible(text))


def print_json(value: Any) -> None:
    """Print JSON, with paths as strings, and nothing else."""
    print(json.dumps(value, ensure_ascii=False, default=os.fspath))


def table(*headings: str | Column) -> Table:
    """Return an empty table without lines; without headings it has no header."""
    return Table(*headings, box=None, pad_edge=False, show_header=bool(headings))


def numbers(*headings: str) -> list[Column]:
    """Return columns whose cells are aligned at the right."""
    return [Column(heading, justify="right") for heading in headings]


def print_table(table: Table, title: str = "") -> None:
    """Print a table, under its title where it has one."""
    if title:
        console.print(f"\n[bold]{title}[/]")
    console.print(table)


def print_facts(facts: Iterable[tuple[str, str]]) -> None:
    """Print names and values in two columns."""
    rows = table()
    rows.add_column(style="bold")
    rows.add_column(overflow="fold")
    for name, value in facts:
        rows.add_row(name, escape(visible(value)))
    console.print(rows)


def short(text: str) -> str:
    """Return the beginning of a text in one line, for a cell."""
    line = visible(" ".join(text.split()))
    return escape(line if len(line) <= MAX_CHARS else f"{line[: MAX_CHARS - 1]}…")


def duration(seconds: float) -> str:
    """Return a time in the two largest units: 1h02m, 3m05s, 12s."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}h{minutes:02}m"
    return f"{minutes}m{rest:02}s" if minutes else f"{rest}s"


def progress_bar(*columns: ProgressColumn, hidden: bool = False, **settings: Any) -> Progress:
    """Return a progress bar on stderr, which is shown on a terminal only.

    The columns follow the bar; `settings` are those of `rich.progress.Progress`.
    """
    label = TextColumn("{task.description}", style="bold", markup=False)
    shown = (label, BarColumn(), *columns, TimeRemainingColumn())
    return Progress(*shown, console=errors, disable=hidden or not errors.is_terminal, **settings)


@contextmanager
def byte_progress(label: str) -> Iterator[Callable[[int, int | None], None]]:
    """Show the progress in bytes; the function takes those read so far and their total."""
    with progress_bar(DownloadColumn(), transient=True) as bar:
        task = bar.add_task(label, total=None)
        yield lambda read, total: bar.update(task, completed=read, total=total)


@contextmanager
def batch_progress(label: str) -> Iterator[Callable[[int, int], None]]:
    """Show the progress in batches; the function takes those done and their total.

    Without a terminal a sentence says now and then how much time is left.
    """
    began = shown = time.monotonic()
    with progress_bar(MofNCompleteColumn(), transient=True) as bar:
        task = bar.add_task(label, total=None)

        def update(done: int, total: int) -> None:
            nonlocal shown
            bar.update(task, completed=done, total=total)
            now = time.monotonic()
            if done and now - shown >= LINE_SECONDS and not errors.is_terminal:
                shown, left = now, duration((now - began) / done * (total - done))
                note(f"{label}: {done:,} of {total:,} batches, about {left} left")

        yield update


@contextmanager
def row_progress(label: str, rows: int, *, hidden: bool = False) -> Iterator[Callable[..., None]]:
    """Show the progress in rows; the function takes `completed` or `advance`.

    Rows may be printed to stdout meanwhile: they are not redirected above the bar.
    """
    with progress_bar(MofNCompleteColumn(), hidden=hidden, redirect_stdout=False) as bar:
        yield partial(bar.update, bar.add_task(label, total=rows))
