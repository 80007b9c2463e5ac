"""Tables of labelled texts (TSV, CSV, JSON), SST trees, and two files that are aligned by line."""

import csv
import io
import itertools
import math
import re
from collections.abc import Iterator, Sequence
from typing import Any

from kinfolk.data.documents import missing_name_error
from kinfolk.errors import UserError
from kinfolk.tasks.formats.base import (
    Column,
    Columns,
    FileSpec,
    Format,
    Predictions,
    ReadReport,
    register,
    single_line,
    write_json,
    write_lines,
)
from kinfolk.tasks.formats.detect import find_columns, table_spec
from kinfolk.tasks.formats.labelled_file import (
    LabelledFile,
    field_text,
    get_field,
    preview,
    unix_newlines,
)
from kinfolk.tasks.rows import Article, LabelledText, SourceTarget

ONE_SENTENCE = "texts of one sentence, of which none can be chosen, on lines"
TREE = re.compile(r"\((\S+) .*\)")
LEAF = re.compile(r"\(\S+ ([^()\s]+)\)")
PAIR_ROW_TYPES = {"write": SourceTarget, "extract": Article}  # of pairs, by their task
PTB_BRACKETS = {"-LRB-": "(", "-RRB-": ")"}


def detect_table(file: LabelledFile) -> FileSpec | None:
    """Detect a table by its suffix, or by a tab in every line."""
    lines = [line for line in file.sample_lines if line.strip()]
    if not (file.is_json or file.is_delimited or all("\t" in line for line in lines)):
        return None
    columns, header = find_columns(file)
    if columns is None or (file.is_json and columns.label is None and len(columns.texts) == 1):
        return None
    return table_spec(file, columns, header)


def read_table(
    file: LabelledFile, spec: FileSpec, report: ReadReport
) -> Iterator[LabelledText | SourceTarget]:
    """Stream the labelled texts, or the pairs of source and target, of a table."""
    assert spec.columns is not None
    cells = _record_cells(file, spec.columns) if file.is_json else _cells(file, spec, report)
    if spec.task not in PAIR_ROW_TYPES:
        return _labelled_texts(file, spec, report, cells)
    return _pairs(file, spec, report, cells)


def write_table(predictions: Predictions) -> Iterator[str]:
    """Add the columns `prediction` and, for classes, `probability`; JSON records get fields."""
    if predictions.file.is_json:
        yield from write_json(predictions)
        return
    by_number, task = predictions.by_number(), predictions.task
    every = predictions.all_probabilities
    names = task.cell_names(all_probabilities=every)
    for index, (number, cells) in enumerate(predictions.file.cells()):
        if index == 0 and predictions.spec.header:
            added = names
        elif number in by_number:
            _, prediction = by_number[number][0]
            added = task.to_cells(prediction, all_probabilities=every)
        else:
            added = [""] * len(names)
        yield format_row(predictions.file, [*cells, *added])


def format_row(file: LabelledFile, cells: Sequence[str]) -> str:
    """Return a row of a table as a line: quoted in CSV, without tabs and line breaks in TSV."""
    if file.suffix != ".csv":
        return "\t".join(map(single_line, cells)) + "\n"
    line = io.StringIO()
    csv.writer(line, lineterminator="\n").writerow(cells)
    return line.getvalue()


def detect_trees(file: LabelledFile) -> FileSpec | None:
    """Detect trees by the brackets of every line."""
    lines = [line.strip() for line in file.sample_lines if line.strip()]
    if file.is_json or file.is_delimited or not all(map(TREE.fullmatch, lines)):
        return None
    return FileSpec("classify", "trees", "classify the words of each tree as its top label")


def read_trees(file: LabelledFile, spec: FileSpec, report: ReadReport) -> Iterator[LabelledText]:
    """Stream the words of each tree with the label of its root."""
    for number, line in file.lines():
        if not (tree := line.strip()):
            continue
        match = TREE.fullmatch(tree)
        if match is None or tree.count("(") != tree.count(")"):
            raise UserError(
                f"line {number:,} of {file} is not a tree: write (label (label word) ...), every "
                "bracket closed"
            )
        words = (PTB_BRACKETS.get(word, word) for word in LEAF.findall(tree))
        yield LabelledText((" ".join(words),), match[1], number)


def read_parallel(file: LabelledFile, spec: FileSpec, report: ReadReport) -> Iterator[SourceTarget]:
    """Stream the pairs of two files that are aligned by line."""
    assert file.target is not None
    sources, targets = ([line.strip() for _, line in f.lines()] for f in (file, file.target))
    if len(sources) != len(targets):
        raise UserError(
            f"{file} has {len(sources):,} lines and {file.target} has {len(targets):,}: "
            "the lines of the two files must be aligned"
        )
    if not any(map(all, zip(sources, targets, strict=True))):
        raise UserError(f"{file} and {file.target} have no pair of lines that are not empty")
    for number, (source, target) in enumerate(zip(sources, targets, strict=True), 1):
        if source and target:
            yield _pair(spec, report, source, (target,), number)
        else:
            report.count("pairs with an empty side skipped, on lines", number)


def write_targets(predictions: Predictions) -> Iterator[str]:
    """Yield one line per prediction, like the file of targets."""
    return (single_line(prediction.value) + "\n" for prediction in predictions.values)


Cells = tuple[int, list[str], Any]  # line or record, texts, label


def _labelled_texts(
    file: LabelledFile, spec: FileSpec, report: ReadReport, rows: Iterator[Cells]
) -> Iterator[LabelledText]:
    assert spec.columns is not None
    for number, texts, value in rows:
        where = file.place(number)
        column = spec.columns.label
        label = None if column is None else _label(value, spec.task, column, where)
        if label == spec.missing_label:
            report.count(f"rows without an agreed label ({label!r}) skipped, on lines", number)
            continue
        if not all(texts):
            report.count("rows with an empty text, on lines", number)
        yield LabelledText(tuple(texts), label, number)


def _pairs(
    file: LabelledFile, spec: FileSpec, report: ReadReport, rows: Iterator[Cells]
) -> Iterator[SourceTarget]:
    """Stream pairs of source and target; those with an empty side are skipped and counted."""
    assert spec.columns is not None
    for number, texts, value in rows:
        where, column = file.place(number), spec.columns.label
        values = filter(_has_value, value if isinstance(value, list) else [value])
        references = (field_text(text, str(column), where).strip() for text in values)
        targets, source = [text for text in references if text], " ".join(texts).strip()
        if (column is not None and not targets) or not source:
            report.count("pairs with an empty side skipped, on lines", number)
            continue
        yield _pair(spec, report, source, targets, number)


def _pair(
    spec: FileSpec, report: ReadReport, source: str, targets: Sequence[str], number: int
) -> SourceTarget:
    """Return the row of a text and its references; articles of one sentence are counted."""
    first = targets[0] if targets else None
    row = PAIR_ROW_TYPES[spec.task](source, first, number, tuple(targets[1:]))
    if isinstance(row, Article) and len(row.sentences) < 2:
        report.count(ONE_SENTENCE, number)
    return row


def mark_wsc_spans(record: Any, where: str) -> str:
    """Mark the two spans of a Winograd example: `_span1_` and `[span2]`, as CLUE's baselines do."""
    text = field_text(get_field(record, "text", where), "text", where)
    spans = [
        (
            get_field(record, f"target.span{n}_index", where),
            get_field(record, f"target.span{n}_text", where),
            *marks,
        )
        for n, marks in ((1, "__"), (2, "[]"))
    ]
    for start, span, *_ in spans:
        if not isinstance(start, int) or not isinstance(span, str):
            raise UserError(
                f"'target' in {where} must have indices as span1_index and texts as span1_text "
                f"(got {preview(record['target'])})"
            )
    for start, span, left, right in sorted(spans, reverse=True):  # the later span first
        end = start + len(span)
        text = f"{text[:start]}{left}{text[start:end]}{right}{text[end:]}"
    return text


def _record_cells(file: LabelledFile, columns: Columns) -> Iterator[Cells]:
    for number, record in file.records():
        where = file.place(number)
        winograd = isinstance(record, dict) and isinstance(record.get("target"), dict)
        if winograd and columns.texts == ("text",) and "span1_index" in record["target"]:
            texts = [mark_wsc_spans(record, where)]
        else:
            fields = [(str(name), get_field(record, str(name), where)) for name in columns.texts]
            texts = [field_text(v, name, where) if _has_value(v) else "" for name, v in fields]
        label = None if columns.label is None else get_field(record, str(columns.label), where)
        yield number, texts, label


def _cells(file: LabelledFile, spec: FileSpec, report: ReadReport) -> Iterator[Cells]:
    assert spec.columns is not None
    rows = file.cells()
    first = next(rows, None)
    if first is None:
        raise UserError(f"{file} has no rows: every line needs a text and a label")
    width, label = len(first[1]), spec.columns.label
    names = [name.strip() for name in first[1]] if spec.header else None
    text_indices = [_column_index(column, names, width, file) for column in spec.columns.texts]
    label_index = None if label is None else _column_index(label, names, width, file)
    # Extra cells are harmless after the last column that is read, but would shift a later label.
    may_be_longer = not spec.header and (label_index is None or label_index < max(text_indices))
    for number, row in rows if spec.header else itertools.chain([first], rows):
        if len(row) != width:
            if len(row) < width or not may_be_longer:
                raise UserError(
                    f"line {number:,} of {file} has {len(row)} columns and the first row has "
                    f"{width}: check the tabs, commas and quotes of that line"
                )
            report.count("rows with extra columns ignored, on lines", number)
        yield (
            number,
            [unix_newlines(row[n]) for n in text_indices],
            None if label_index is None else row[label_index],
        )


def _has_value(value: Any) -> bool:
    """Return whether a field is neither null nor NaN."""
    return value is not None and value == value


def _column_index(column: Column, names: list[str] | None, width: int, file: LabelledFile) -> int:
    """Return the index of a column, from 0."""
    if isinstance(column, int):
        if not 1 <= column <= width:
            raise UserError(
                f"{file.option('columns', str(column))}: {file} has the columns 1 to {width}"
            )
        return column - 1
    if names is None:
        raise UserError(
            f"{file.option('columns', column)}: the first row of {file} is not a header; use "
            f"numbers from 1 to {width}"
        )
    if column not in names:
        raise missing_name_error(column, names, f"the first row of {file}")
    if (count := names.count(column)) > 1:
        raise UserError(
            f"{count} columns of {file} are called {column!r}: rename them, or give numbers, such "
            f"as {file.option('columns', '1,2')}"
        )
    return names.index(column)


def _label(value: Any, task: str, column: Column, where: str) -> str | float:
    """Return a class as text or a number; a missing label is refused."""
    label = value.strip() if isinstance(value, str) else value
    if label is None or label == "" or str(label).lower() == "nan":
        raise UserError(
            f"the label in {where} ({column}) is {preview(value) if label != '' else 'empty'}: "
            "fix or remove the row"
        )
    if isinstance(label, list | dict):
        raise UserError(
            f"the label in {where} ({column}) must be a string or a number (got {preview(value)})"
        )
    if task == "classify":
        return str(label).lower() if isinstance(label, bool) else str(label)
    try:
        number = float(label)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise UserError(
            f"the label in {where} ({column}) is {preview(value)}, not a number: fix it, or use "
            "--task classify"
        )
    return number


register(
    Format("trees", ("classify",), read_trees, write_lines, detect_trees),
    Format(
        "table",
        ("classify", "regress", *PAIR_ROW_TYPES),
        read_table,
        write_table,
        detect_table,
        order=4,
    ),
    Format("parallel", tuple(PAIR_ROW_TYPES), read_parallel, write_targets),
)
