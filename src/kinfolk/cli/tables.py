"""Tables in the terminal: aligned columns without lines."""

from collections.abc import Iterable

from rich.markup import escape
from rich.table import Column, Table

from kinfolk.cli.app import console

MAX_CHARS = 60  # of a text in a cell


def table(*headings: str | Column) -> Table:
    """Return an empty table; without headings its first row is the first row added."""
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
        rows.add_row(name, escape(value))
    console.print(rows)


def short(text: str) -> str:
    """Return the beginning of a text in one line, for a cell."""
    line = " ".join(text.split())
    return escape(line if len(line) <= MAX_CHARS else f"{line[: MAX_CHARS - 1]}…")
