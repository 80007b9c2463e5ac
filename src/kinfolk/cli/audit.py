"""The command `audit`: a report about the quality of text files."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.markup import escape
from rich.table import Column

from kinfolk.cli.app import COLUMN, DATA, FIELD, FILES, FORCE, JSON, REPORT, UNIT, command
from kinfolk.cli.output import (
    byte_progress,
    console,
    numbers,
    print_facts,
    print_json,
    print_line,
    print_table,
    saved_on_interrupt,
    table,
    visible,
)
from kinfolk.cli.prepare import document_unit
from kinfolk.workflows.folders import check_new_page

if TYPE_CHECKING:
    from kinfolk.data.audit import Audit

# Keys that programs read, and the present names.
EARLIER_AUDIT_KEYS = {
    "exact": "exact_duplicates",
    "near": "near_duplicates",
    "repeated": "repeated_lines",
    "top": "most_repeated_lines",
    "controls": "control_characters",
    "replacements": "replacement_characters",
}


@command("kinfolk audit notes/ -o audit.html", panel=DATA)
def audit_command(
    files: list[Path] = FILES,
    out: Path | None = REPORT,
    force: bool = FORCE,
    document: str = UNIT,
    field: str | None = FIELD,
    column: str | None = COLUMN,
    near_duplicates: bool = typer.Option(
        True, help="Also detect near-duplicates with MinHash (slower)."
    ),
    json: bool = JSON,
) -> None:
    """Report data quality: encoding errors, duplicates, lengths, scripts, repeated lines.

    Files with errors are read to the end. In JSON and tables every string is text, unless `--field`
    or `--column` names one.
    """
    unit = document_unit(document)
    if out is not None:
        check_new_page(out, files, force=force)
    from kinfolk.data.audit import audit
    from kinfolk.data.documents import ReadOptions
    from kinfolk.reports.audit_page import render
    from kinfolk.reports.page import write
    from kinfolk.workflows.audit import audit_page

    with (
        saved_on_interrupt(lambda: "nothing was written; run the same command again"),
        byte_progress("reading") as progress,
    ):
        result = audit(
            files, reading=ReadOptions(unit, field, column), near=near_duplicates, progress=progress
        )
    if out is not None:
        write(render(audit_page(result)), out)
    if json:
        values = asdict(result)
        print_json(values | {old: values[new] for old, new in EARLIER_AUDIT_KEYS.items()})
        return
    _show(result)
    if out is not None:
        print_line(f"\nreport: {out}")


def _show(result: "Audit") -> None:
    from kinfolk.reports.page import percent
    from kinfolk.workflows.audit import duplicate_row, findings

    print_facts(_facts(result))
    if result.most_repeated_lines:
        lines = table(*numbers("count"), Column("line", overflow="ellipsis", no_wrap=True))
        for line, count in result.most_repeated_lines:
            lines.add_row(f"{count:,}", escape(visible(line)))
        print_table(lines, "most repeated lines")
    for title, examples in (("exact", result.exact_examples), ("near", result.examples)):
        if examples:
            rows = table("document", "earlier", Column("text", overflow="ellipsis", no_wrap=True))
            for example in examples:
                rows.add_row(*(escape(visible(cell)) for cell in duplicate_row(example)))
            print_table(rows, f"{title} duplicates")
    if len(result.files) > 1:
        rows = table("file", "documents", "characters", "blank lines")
        for file in result.files:
            blank = percent(file.problems.blank, file.problems.lines)
            counts = (f"{file.documents:,}", f"{file.characters:,}", blank)
            rows.add_row(escape(visible(str(file.path))), *counts)
        print_table(rows, "files")
    for finding in findings(result):
        console.print(f"[yellow]![/] {escape(visible(finding))}", highlight=False, soft_wrap=True)


def _facts(result: "Audit") -> list[tuple[str, str]]:
    from kinfolk.reports.page import percent, plural

    count = result.near_duplicates
    near = "near-duplicates not searched" if count is None else f"{count:,} near"
    repeated = percent(result.repeated_lines, result.lines)
    empty = plural(result.empty, "document")
    blank = percent(result.blank, result.file_lines)
    odd = f"{result.control_characters:,} control, {result.replacement_characters:,} replacement"
    return [
        ("documents", f"{result.documents:,} in {plural(len(result.files), 'file')}"),
        ("characters", f"{result.characters:,}"),
        ("lengths", f"{result.shortest:,} to {result.longest:,}, median {result.median:,}"),
        ("duplicates", f"{result.exact_duplicates:,} exact, {near}"),
        ("repeated lines", f"{result.repeated_lines:,} of {result.lines:,} ({repeated})"),
        ("scripts", _shares(result.scripts)),
        ("languages", f"{_shares(result.languages)} (estimated)"),
        ("empty", f"{empty}, {plural(result.empty_files, 'file')}, {blank} of lines"),
        ("invalid UTF-8", f"{result.errors:,}"),
        ("odd characters", odd),
    ]


def _shares(counts: dict[str, int]) -> str:
    from kinfolk.reports.page import percent

    total = sum(counts.values())
    first = [f"{name} {percent(count, total)}" for name, count in list(counts.items())[:4]]
    return ", ".join([*first, *(["..."] if len(counts) > 4 else [])]) or "none"
