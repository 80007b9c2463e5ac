"""Rows of any task as JSON lines, as `stored_rows` writes them: for splits of other files.

The format is never detected: a `FileSpec` names it.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from kinfolk.errors import UserError
from kinfolk.tasks.formats.base import FileSpec, Format, ReadReport, register, write_jsonl
from kinfolk.tasks.formats.labelled_file import LabelledFile, json_lines
from kinfolk.tasks.rows import (
    Article,
    CompletionRow,
    CorefDocument,
    LabelledText,
    MultipleChoiceRow,
    QuestionRow,
    Row,
    SourceTarget,
    TaggedSentence,
)
from kinfolk.tasks.task import kinds

NAME = "rows"
ROW_TYPES: dict[str, type[Any]] = {
    cls.__name__: cls
    for cls in (
        *(CompletionRow, CorefDocument, LabelledText, MultipleChoiceRow, QuestionRow),
        *(SourceTarget, TaggedSentence, Article),
    )
}


def stored_rows_spec(task: str) -> FileSpec:
    """Return the spec of a file of rows of a task."""
    return FileSpec(task, NAME, f"{task} rows")


def stored_rows(rows: Sequence[Any]) -> bytes:
    """Return rows as the bytes of a file in this format."""
    return json_lines([{"row": type(row).__name__, **asdict(row)} for row in rows])


def read_stored_rows(file: LabelledFile, spec: FileSpec, report: ReadReport) -> Iterator[Row]:
    """Yield the rows of a file."""
    for number, record in file.records():
        try:
            cls = ROW_TYPES[record.pop("row")]
            row: Row = cls(**{name: _as_tuples(value) for name, value in record.items()})
        except (AttributeError, KeyError, TypeError) as error:
            shown = json.dumps(record)[:60]
            raise UserError(
                f"line {number:,} of {file} is not a stored row ({shown}): write the file again"
            ) from error
        yield row


def _as_tuples(value: Any) -> Any:
    return tuple(map(_as_tuples, value)) if isinstance(value, list) else value


register(Format(NAME, tuple(kinds()), read_stored_rows, write_jsonl))
