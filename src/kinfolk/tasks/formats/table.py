"""Tables of labelled texts: TSV, CSV, JSONL, SST trees."""

import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, TypeAlias

from kinfolk.config import config
from kinfolk.data.documents import missing_name_error
from kinfolk.errors import UserError
from kinfolk.tasks.formats.base import (
    ReadReport,
    as_text,
    get_field,
    is_json,
    preview,
    read_json,
    read_lines,
    read_table,
)
from kinfolk.tasks.rows import LabelledText, SourceTarget

TREE = re.compile(r"\((\S+) .*\)")
LEAF = re.compile(r"\(\S+ ([^()\s]+)\)")
PTB_BRACKETS = {"-LRB-": "(", "-RRB-": ")"}


def read(path: Path) -> Iterator[LabelledText]:
    """Stream the words of each tree with the label on its top."""
    for number, line in read_lines(path):
        if not (tree := line.strip()):
            continue
        match = TREE.fullmatch(tree)
        if match is None or tree.count("(") != tree.count(")"):
            raise UserError(
                f"line {number:,} of {path} is no tree: write (label (label word) ...), every "
                "bracket closed"
            )
        words = (PTB_BRACKETS.get(word, word) for word in LEAF.findall(tree))
        yield LabelledText((" ".join(words),), match[1], number)


Column: TypeAlias = str | int
LabelType: TypeAlias = Literal["classify", "regress"]
NO_GOLD_LABEL = (
    "-"  # the label of an example that its annotators did not agree on (Bowman et al., 2015)
)


@config("columns", kw_only=False)
class Columns:
    """Where the texts and the label are: names, or numbers from 1."""

    texts: tuple[Column, ...]
    label: Column | None

    def __str__(self) -> str:
        """Write them as the command line takes them."""
        return ",".join(map(str, (*self.texts, "" if self.label is None else self.label)))


def parse_columns(written: str) -> Columns:
    """Read columns as a user writes them, the label last: `a,b,label`; without one, `a,b,`."""
    names = [name.strip() for name in written.split(",")]
    if len(names) < 2 or not all(names[:-1]):
        raise UserError(
            f"--columns {written}: name the texts and then the label, as in text,label or 1,2,3; "
            "where there is no label, end with a comma"
        )
    *texts, label = (int(name) if name.isdecimal() else name for name in names)
    return Columns(tuple(texts), None if label == "" else label)


def read_labelled(
    path: Path,
    columns: Columns,
    *,
    task: LabelType = "classify",
    header: bool = True,
    notes: ReadReport | None = None,
) -> Iterator[LabelledText]:
    """Stream the labelled texts of a table; those without agreed label are left out and noted."""
    notes = notes or ReadReport()
    for number, found, label in _found(path, columns, header, notes):
        where = f"line {number:,} of {path}"
        read = None if columns.label is None else _label(label, task, columns.label, where)
        if read == NO_GOLD_LABEL:
            notes.count("rows without an agreed label ('-'), left out, on lines", number)
            continue
        if not all(found):
            notes.count("rows with an empty text, on lines", number)
        yield LabelledText(tuple(found), read, number)


def read_pairs(
    path: Path, columns: Columns, *, header: bool = True, notes: ReadReport | None = None
) -> Iterator[SourceTarget]:
    """Stream pairs of source and target, which is the label; pairs with an empty side are noted."""
    notes = notes or ReadReport()
    for number, found, label in _found(path, columns, header, notes):
        where = f"line {number:,} of {path}"
        several = label if isinstance(label, list) else [label]
        read = [as_text(one, str(columns.label), where).strip() for one in several if _held(one)]
        targets, source = list(filter(None, read)), " ".join(found).strip()
        if (columns.label is not None and not targets) or not source:
            notes.count("pairs with an empty side, left out, on lines", number)
            continue
        yield SourceTarget(source, targets[0] if targets else None, number, tuple(targets[1:]))


def mark_wsc_spans(row: Any, where: str) -> str:
    """Mark the two spans of a Winograd example: `_one_` and `[it]`, as CLUE's baselines do."""
    whole = as_text(get_field(row, "text", where), "text", where)
    spans = [
        (
            get_field(row, f"target.span{n}_index", where),
            get_field(row, f"target.span{n}_text", where),
            *by,
        )
        for n, by in ((1, "__"), (2, "[]"))
    ]
    for start, span, left, right in sorted(spans, reverse=True):  # the later one first
        end = start + len(span)
        whole = f"{whole[:start]}{left}{whole[start:end]}{right}{whole[end:]}"
    return whole


def _found(
    path: Path, columns: Columns, header: bool, notes: ReadReport
) -> Iterator[tuple[int, list[str], Any]]:
    """Stream the line, the texts and the label of every row."""
    yield from _named(path, columns) if is_json(path) else _cut(path, columns, header, notes)


def _named(path: Path, columns: Columns) -> Iterator[tuple[int, list[str], Any]]:
    for number, row in read_json(path):
        where = f"line {number:,} of {path}"
        winograd = isinstance(row, dict) and isinstance(row.get("target"), dict)
        if winograd and columns.texts == ("text",) and "span1_index" in row["target"]:
            found = [mark_wsc_spans(row, where)]
        else:
            named = [(str(column), get_field(row, str(column), where)) for column in columns.texts]
            found = [as_text(value, name, where) if _held(value) else "" for name, value in named]
        label = None if columns.label is None else get_field(row, str(columns.label), where)
        yield number, found, label


def _cut(
    path: Path, columns: Columns, header: bool, notes: ReadReport
) -> Iterator[tuple[int, list[str], Any]]:
    table = read_table(path)
    first = next(table, None)
    if first is None:
        raise UserError(f"{path} holds no rows: give a table with a text and a label on each line")
    titles = [title.strip() for title in first[1]] if header else None
    texts = [_place(column, titles, len(first[1]), path) for column in columns.texts]
    label = None if columns.label is None else _place(columns.label, titles, len(first[1]), path)
    # More cells after the texts do no harm; before the label, they would put a text in its place.
    loose = not header and (label is None or label < max(texts))
    for number, row in table if header else _again(first, table):
        if len(row) != len(first[1]):
            if len(row) < len(first[1]) or not loose:
                raise UserError(
                    f"line {number:,} of {path} has {len(row)} columns and the first row has "
                    f"{len(first[1])}: look for a tab, comma or quote too many or too few there"
                )
            notes.count(
                "rows with columns more than the first, which are not read, on lines", number
            )
        yield number, [row[place] for place in texts], None if label is None else row[label]


def _held(value: Any) -> bool:
    """Tell whether there is anything in a field: null and NaN are nothing."""
    return value is not None and value == value


def _again(first: Any, rest: Iterator[Any]) -> Iterator[Any]:
    yield first
    yield from rest


def _place(column: Column, titles: list[str] | None, width: int, path: Path) -> int:
    """Find a column, from 0."""
    if isinstance(column, int):
        if not 1 <= column <= width:
            raise UserError(f"--columns: {path} has {width} columns, counted from 1, no {column}")
        return column - 1
    if titles is None:
        raise UserError(
            f"--columns: the first row of {path} holds no names, so no {column!r}: give numbers "
            f"from 1 to {width}"
        )
    if column not in titles:
        raise missing_name_error(column, titles, f"the first row of {path}")
    return titles.index(column)


def _label(value: Any, task: LabelType, column: Column, where: str) -> str | float:
    """Return a class as text or a number; an example with neither is refused."""
    said = value.strip() if isinstance(value, str) else value
    if said is None or said == "" or str(said).lower() == "nan":
        raise UserError(
            f"the label in {where} ({column}) is {preview(value) if said != '' else 'empty'}: "
            "every "
            "example needs one; mend the row, or leave it out"
        )
    if isinstance(said, list | dict):
        raise UserError(
            f"the label in {where} ({column}) is {preview(value)}: give a text or number"
        )
    if task == "classify":
        return str(said).lower() if isinstance(said, bool) else str(said)
    try:
        number = float(said)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise UserError(
            f"the label in {where} ({column}) is {preview(value)}, not a number: mend it, or "
            "--task classify"
        )
    return number
