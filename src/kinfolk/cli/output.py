"""What commands print: notes and progress bars on stderr; tables and JSON on stdout."""

import json
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.filesize import decimal
from rich.markup import escape
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TimeRemainingColumn,
)
from rich.table import Column, Table
from rich.text import Text

from kinfolk.errors import Terminated

MAX_CHARS = 60  # of a text in a cell
# Control characters except tab and new line, which a terminal would obey.
CONTROL = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if code not in (9, 10)}
SECONDS_BETWEEN_UPDATES = 0.1  # of a progress bar: a report for each document costs little
SECONDS_BETWEEN_LINES = 30  # of progress, where stderr is no terminal

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


def publish(
    out: Path | None,
    page: Callable[[], str],
    *,
    json: bool,
    values: Callable[[], dict[str, Any]],
    show: Callable[[], None],
) -> None:
    """Write the page of a result where one is asked for, and print its values or its tables."""
    from kinfolk.reports.page import write

    if out is not None:
        write(page(), out)
    if json:
        print_json(values() | {"report": out})
        return
    show()
    if out is not None:
        print_line(f"\nreport: {out}")


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


class CutColumn(ProgressColumn):
    """Plain text of a task, which is cut where the terminal is narrow."""

    def __init__(self, text: Callable[[Task], str], style: str = "") -> None:
        super().__init__()
        self._text, self._style = text, style

    def render(self, task: Task) -> Text:
        """Return the text in one line, without markup."""
        return Text(self._text(task), self._style, no_wrap=True, overflow="ellipsis")


def fixed() -> Column:
    """Return a column that keeps its width where the terminal is narrow."""
    return Column(no_wrap=True)


class TimeLeftColumn(TimeRemainingColumn):
    """The time left; of a stage without a known end, the time since its start."""

    def render(self, task: Task) -> Text:
        """Return the time in one word."""
        if task.total is None:
            return Text(duration(task.elapsed or 0.0), "progress.elapsed")
        return super().render(task)


class BytesColumn(DownloadColumn):
    """The bytes done and their total; nothing in a stage that does not count them."""

    def render(self, task: Task) -> Text:
        """Return the amounts in one unit."""
        return super().render(task) if task.completed or task.total else Text()


def progress_bar(
    count: ProgressColumn, *others: ProgressColumn, hidden: bool = False, **settings: Any
) -> Progress:
    """Return a progress bar on stderr, which is shown on a terminal only.

    The count and the time left come before the bar, the other columns after it; `settings` are
    those of `rich.progress.Progress`.
    """
    shown = (
        CutColumn(lambda task: task.description, "bold"),
        count,
        TimeLeftColumn(table_column=fixed()),
        BarColumn(),
        *others,
    )
    return Progress(*shown, console=errors, disable=hidden or not errors.is_terminal, **settings)


class ProgressReporter:
    """Report what is done of a total: in the bar, or in a line every 30 seconds.

    Lines are also printed while nothing is reported, such as when a library trains a tokenizer.
    """

    def __init__(self, bar: Progress, label: str, total: int | None, in_bytes: bool) -> None:
        self._bar, self._label, self._in_bytes = bar, label, in_bytes
        self._task = bar.add_task(label, total=total)
        self._total, self.done = total, 0
        self._began = self._shown = self._updated = time.monotonic()
        self._printing, self._ended = threading.Lock(), threading.Event()

    @contextmanager
    def printing_lines(self) -> Iterator["ProgressReporter"]:
        """Print lines of progress in the background where stderr is no terminal."""
        if errors.is_terminal:
            yield self
            return
        thread = threading.Thread(target=self._print_until_the_end, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._ended.set()
            thread.join()

    def _print_until_the_end(self) -> None:
        while not self._ended.wait(max(SECONDS_BETWEEN_LINES / 10, 0.01)):
            self._print_line(time.monotonic())

    def __call__(self, done: int, total: int | None = None) -> None:
        """Report the amount that is done so far, and the total where it was not known before."""
        self.done, self._total = done, self._total if total is None else total
        now = time.monotonic()
        if done == self._total or now - self._updated >= SECONDS_BETWEEN_UPDATES:
            self._updated = now
            self._bar.update(self._task, completed=done, total=self._total)
        if not errors.is_terminal:
            self._print_line(now)

    def advance(self, amount: int) -> None:
        """Report an amount that was done since the last report."""
        self(self.done + amount)

    def stage(self, label: str, done: int, total: int | None) -> None:
        """Report the amount that is done in a stage; another stage starts at zero."""
        if label != self._label:
            self._label, self.done, self._total = label, 0, None
            self._began = time.monotonic()
            self._bar.remove_task(self._task)
            self._task = self._bar.add_task(label, total=None)
        self(done, total)

    def _print_line(self, now: float) -> None:
        """Print a line, unless one was printed less than 30 seconds ago."""
        with self._printing:
            if now - self._shown >= SECONDS_BETWEEN_LINES:
                self._shown = now
                note(self._line(now - self._began))

    def _line(self, seconds: float) -> str:
        if not self.done:
            return f"{self._label}  {duration(seconds)} elapsed"
        amount = decimal if self._in_bytes else "{:,}".format
        speed = self.done / max(seconds, 1e-3)
        line = f"{self._label}  {amount(self.done)}"
        if self._total is not None:
            line += f"/{amount(self._total)}"
        line += f"  {decimal(int(speed)) if self._in_bytes else f'{speed:,.3g}'}/s"
        if self._total is not None and speed:
            line += f"  ETA {duration((self._total - self.done) / speed)}"
        return line


@contextmanager
def byte_progress(label: str) -> Iterator[ProgressReporter]:
    """Show the progress in bytes; the reporter takes those read so far and their total."""
    with (
        progress_bar(BytesColumn(table_column=fixed()), transient=True) as bar,
        ProgressReporter(bar, label, None, in_bytes=True).printing_lines() as reporter,
    ):
        yield reporter


@contextmanager
def row_progress(
    label: str, rows: int | None = None, *, hidden: bool = False
) -> Iterator[ProgressReporter]:
    """Show the progress in rows or batches.

    Rows may be printed to stdout meanwhile: they are not redirected above the bar.
    """
    count = MofNCompleteColumn(table_column=fixed())
    with (
        progress_bar(count, hidden=hidden, redirect_stdout=False) as bar,
        ProgressReporter(bar, label, rows, in_bytes=False).printing_lines() as reporter,
    ):
        yield reporter


@contextmanager
def saved_on_signal(sentence: Callable[[], str]) -> Iterator[None]:
    """Let Ctrl-C, SIGTERM and SIGHUP say what was saved and how to continue."""
    from kinfolk.training.loop import raise_on_signals  # imports torch

    try:
        with saved_on_interrupt(sentence), raise_on_signals():
            yield
    except Terminated:
        note(f"stopped: {sentence()}")
        raise


@contextmanager
def saved_on_interrupt(sentence: Callable[[], str]) -> Iterator[None]:
    """Let Ctrl-C say what was saved and how to continue; the sentence is made when it comes."""
    try:
        yield
    except KeyboardInterrupt:
        raise KeyboardInterrupt(sentence()) from None
