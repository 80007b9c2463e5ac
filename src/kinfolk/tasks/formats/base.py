"""Format (detect, read, write), FileSpec, ReadReport, the registry, and writers that formats share.

A format is a `Format` value that its module passes to `register`.
"""

import json
import pkgutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, TypeAlias

from kinfolk.config import config
from kinfolk.errors import UserError
from kinfolk.extensions import HINT
from kinfolk.tasks.formats.labelled_file import LabelledFile
from kinfolk.tasks.rows import CorefDocument, QuestionRow, Row
from kinfolk.tasks.task import Prediction, Task

Column: TypeAlias = str | int
MAX_LINES_SHOWN = 5  # line numbers in one message


class ReadReport:
    """Counts of rows that were skipped or repaired, by reason.

    `count("rows with an empty text, on lines", 7)` gives "1 rows with an empty text, on lines: 7".
    """

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._locations: dict[str, list[str]] = {}

    def count(self, reason: str, location: int | str) -> None:
        """Count a case of a reason at a line, or at another location."""
        self.counts[reason] += 1
        shown = self._locations.setdefault(reason, [])
        if len(shown) < MAX_LINES_SHOWN:
            shown.append(f"{location:,}" if isinstance(location, int) else location)

    def messages(self) -> list[str]:
        """Return a message for each reason, with the first locations."""
        return [
            f"{count:,} {reason}: {', '.join(self._locations[reason])}"
            f"{', …' if count > MAX_LINES_SHOWN else ''}"
            for reason, count in self.counts.items()
        ]


@config("columns", kw_only=False)
class Columns:
    """The columns of the texts and of the label: names, or numbers from 1."""

    texts: tuple[Column, ...]
    label: Column | None

    def __str__(self) -> str:
        """Return the columns as `--columns` takes them."""
        return ",".join(map(str, (*self.texts, "" if self.label is None else self.label)))


def parse_columns(text: str) -> Columns:
    """Parse columns as a user writes them, the label last: `a,b,label`; without a label, `a,b,`."""
    if not isinstance(text, str):
        raise UserError(f'columns={text!r} must be a text such as "text,label"')
    names = [name.strip() for name in text.split(",")]
    if len(names) < 2 or not all(names[:-1]):
        raise UserError(
            f"--columns must list the text columns and then the label, e.g. text,label or 1,2,3, "
            f"or text, without a label (got {text})"
        )
    *texts, label = (int(name) if name.isdecimal() else name for name in names)
    return Columns(tuple(texts), None if label == "" else label)


@config("format", kw_only=False)
class FileSpec:
    """The task of a file and how it is read, with a description for messages."""

    task: str
    format: str
    description: str
    columns: Columns | None = None
    header: bool = False
    missing_label: str = "-"  # in tables: the annotators did not agree (SNLI, Bowman et al. 2015)


@dataclass(frozen=True)
class Predictions:
    """The predictions for the rows of a file."""

    file: LabelledFile
    spec: FileSpec
    task: Task
    rows: Sequence[Any]
    values: Sequence[Prediction]
    all_probabilities: bool = False  # write the probability of every class, also into tables

    def pairs(self) -> Iterator[tuple[Any, Prediction]]:
        """Return the rows with their predictions."""
        return zip(self.rows, self.values, strict=True)

    def by_number(self) -> dict[int, list[tuple[Any, Prediction]]]:
        """Return the rows and predictions of each line or record."""
        pairs: dict[int, list[tuple[Any, Prediction]]] = {}
        for row, prediction in self.pairs():
            pairs.setdefault(row.number, []).append((row, prediction))
        return pairs


@dataclass(frozen=True)
class Format:
    """One file format: how it is detected and read, and how predictions are written into it.

    `detect` returns None for a file of another format. Formats are tried by their order, equal ones
    as they are registered: formats with a distinctive syntax come before formats that are inferred
    from the contents of columns.
    """

    name: str  # as FileSpec.format has it; one name serves several tasks
    tasks: tuple[str, ...]
    read: Callable[[LabelledFile, FileSpec, ReadReport], Iterator[Row]]
    write: Callable[[Predictions], Iterator[str]]  # lines, each with its end
    detect: Callable[[LabelledFile], FileSpec | None] = lambda file: None
    _: KW_ONLY
    order: int = 0


_FORMATS: list[Format] = []


def register(*formats: Format) -> None:
    """Register formats, so that files in them are detected, read and written."""
    _FORMATS.extend(formats)


@cache
def _import_formats() -> None:
    package = import_module(__package__)
    for module in pkgutil.iter_modules(package.__path__):
        import_module(f"{__package__}.{module.name}")


def all_formats() -> list[Format]:
    """Return every registered format in the order of detection."""
    _import_formats()
    return sorted(_FORMATS, key=lambda format: format.order)


def find_format(spec: FileSpec) -> Format:
    """Return the format that a spec names."""
    for format in all_formats():
        if format.name == spec.format and spec.task in format.tasks:
            return format
    known = ", ".join(f"{task} {format.name}" for format in all_formats() for task in format.tasks)
    raise UserError(f"unknown format {spec.task} {spec.format} (known formats: {known}); {HINT}")


def read_rows(
    file: Path | LabelledFile,
    spec: FileSpec,
    *,
    target: Path | str | None = None,
    report: ReadReport | None = None,
) -> Iterator[Any]:
    """Stream the rows of a file; the report counts skipped and repaired ones."""
    opened = file if isinstance(file, LabelledFile) else LabelledFile(file, target=target)
    return find_format(spec).read(opened, spec, report or ReadReport())


def write_predictions(predictions: Predictions) -> Iterator[str]:
    """Yield the lines of the file with the predictions added to it."""
    return find_format(predictions.spec).write(predictions)


def write_jsonl(predictions: Predictions) -> Iterator[str]:
    """Yield the predictions alone, one JSON object per line, for any format."""
    for row, prediction in predictions.pairs():
        key = {"id": row.id} if isinstance(row, QuestionRow | CorefDocument) else {}
        fields = {"number": row.number, **key, **predictions.task.to_json(row, prediction)}
        yield json.dumps(fields, ensure_ascii=False) + "\n"


def write_json(
    predictions: Predictions,
    of_record: Callable[[int, Any], Sequence[tuple[Any, Prediction]]] | None = None,
) -> Iterator[str]:
    """Add fields to each object of JSON lines or of a list.

    `of_record` returns the rows of a record; without it they are found by their number.
    """
    by_number, records = predictions.by_number(), list(predictions.file.records())
    is_json_lines = predictions.file.is_json_lines
    for index, (number, record) in enumerate(records):
        pairs = of_record(number, record) if of_record else by_number.get(number, [])
        fields = [predictions.task.to_json(*pair) for pair in pairs]
        added: dict[str, Any] = fields[0] if len(fields) == 1 else {
            name: [row[name] for row in fields] for name in (fields[0] if fields else ())
        }  # fmt: skip
        written = {**record, **added} if isinstance(record, dict) else [*record, added]
        text = json.dumps(written, ensure_ascii=False)
        if is_json_lines:
            yield text + "\n"
            continue
        yield ("[" if index == 0 else "") + text + (",\n" if index + 1 < len(records) else "]\n")


def single_line(text: Any) -> str:
    """Return a text without tabs and line breaks."""
    return str(text).replace("\t", " ").replace("\n", " ")


def write_lines(predictions: Predictions) -> Iterator[str]:
    """Append the cells of the prediction to each line, after tabs."""
    by_number, every = predictions.by_number(), predictions.all_probabilities
    for number, line in predictions.file.lines():
        cells = [
            single_line(cell)
            for _, prediction in by_number.get(number, [])
            for cell in predictions.task.to_cells(prediction, all_probabilities=every)
        ]
        yield "\t".join([line, *cells]) + "\n"
