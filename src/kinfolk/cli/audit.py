"""The command `audit`: what is in text files, before a model learns it."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn
from rich.table import Table

from kinfolk.cli.app import AsJson, Files, app, console, errors, example, print_json
from kinfolk.errors import UserError

if TYPE_CHECKING:
    from kinfolk.data.audit import Audit

# Keys that programs have read so far, and what they are called now.
EARLIER = {
    "exact": "exact_duplicates",
    "near": "near_duplicates",
    "repeated": "repeated_lines",
    "top": "most_repeated_lines",
    "controls": "control_characters",
    "replacements": "replacement_characters",
}


@app.command(epilog=example("kinfolk audit notes/ -o audit.html"))
def audit(
    files: Files,
    out: Annotated[Path | None, typer.Option("-o", "--out", help="The page to write.")] = None,
    per: Annotated[str, typer.Option(help="A document is a `block` or a `file`.")] = "block",
    field: Annotated[str | None, typer.Option(help="The field of JSON lines that is text.")] = None,
    column: Annotated[str | None, typer.Option(help="The column of tables that is text.")] = None,
    near: Annotated[bool, typer.Option(help="Look for near-duplicates too: slower.")] = True,
    json: AsJson = False,
) -> None:
    """Look at text: damage, duplicates, lengths, scripts, repeated lines.

    Files are read to their end whatever is in them. Of JSON and tables every string is text, unless
    `--field` or `--column` names one.
    """
    from kinfolk.data.audit import audit
    from kinfolk.data.documents import ReadOptions
    from kinfolk.reports.audit_page import render
    from kinfolk.reports.page import write
    from kinfolk.workflows.audit import audit_page

    if per not in ("block", "file"):
        raise UserError(f"--per {per}: a document is a block or a file")
    if out is not None and out.is_dir():
        raise UserError(f"{out} is a folder: give -o the name of a page, such as {out}/audit.html")
    columns = ("[progress.description]{task.description}", BarColumn(), DownloadColumn())
    seen = errors.is_terminal
    with Progress(
        *columns, TimeRemainingColumn(), console=errors, transient=True, disable=not seen
    ) as bar:
        task = bar.add_task("reading", total=None)
        found = audit(
            files,
            reading=ReadOptions("file" if per == "file" else "block", field, column),
            near=near,
            progress=lambda read, whole: bar.update(task, completed=read, total=whole),
        )
    if out is not None:
        write(render(audit_page(found)), out)
    if json:
        values = _plain(asdict(found))
        print_json(values | {old: values[new] for old, new in EARLIER.items()})
        return
    _show(found)
    if out is not None:
        print(f"\nthe pictures are in {out}")


def _show(found: "Audit") -> None:
    from kinfolk.reports.page import percent
    from kinfolk.workflows.audit import findings

    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, said in _facts(found):
        table.add_row(name, escape(said))
    console.print(table)
    if found.most_repeated_lines:
        console.print("\n[bold]the most repeated lines[/]")
        lines = Table(box=None, pad_edge=False, show_header=False)
        lines.add_column(justify="right")
        lines.add_column(overflow="ellipsis", no_wrap=True)
        for line, count in found.most_repeated_lines:
            lines.add_row(f"{count:,}", escape(_visible(line)))
        console.print(lines)
    if len(found.files) > 1:
        console.print()
        each = Table("file", "documents", "characters", "blank lines", box=None, pad_edge=False)
        for one in found.files:
            blank = percent(one.problems.blank, one.problems.lines)
            each.add_row(escape(str(one.path)), f"{one.documents:,}", f"{one.characters:,}", blank)
        console.print(each)
    for finding in findings(found):
        console.print(f"[yellow]![/] {escape(_visible(finding))}", highlight=False, soft_wrap=True)


def _facts(found: "Audit") -> list[tuple[str, str]]:
    from kinfolk.reports.page import percent, plural

    near = (
        "near ones not looked for"
        if found.near_duplicates is None
        else f"{found.near_duplicates:,} nearly"
    )
    repeated = percent(found.repeated_lines, found.lines)
    empty = plural(found.empty, "document")
    blank = percent(found.blank, found.file_lines)
    return [
        ("documents", f"{found.documents:,} in {plural(len(found.files), 'file')}"),
        ("characters", f"{found.characters:,}"),
        ("lengths", f"{found.shortest:,} to {found.longest:,}, the median {found.median:,}"),
        ("duplicates", f"{found.exact_duplicates:,} word for word, {near}"),
        ("repeated lines", f"{found.repeated_lines:,} of {found.lines:,} ({repeated})"),
        ("scripts", _shares(found.scripts)),
        ("languages", f"{_shares(found.languages)} (a guess)"),
        ("empty", f"{empty}, {plural(found.empty_files, 'file')}, {blank} of lines"),
        ("errors of UTF-8", f"{found.errors:,}"),
        (
            "odd characters",
            f"{found.control_characters:,} control, {found.replacement_characters:,} replacement",
        ),
    ]


def _shares(counts: dict[str, int]) -> str:
    from kinfolk.reports.page import percent

    whole = sum(counts.values())
    said = [f"{name} {percent(count, whole)}" for name, count in list(counts.items())[:4]]
    return ", ".join([*said, *(["..."] if len(counts) > 4 else [])]) or "none"


def _visible(text: str) -> str:
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)


def _plain(value: Any) -> Any:
    """Let paths be strings, for JSON."""
    if isinstance(value, dict):
        return {name: _plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return str(value) if isinstance(value, Path) else value
