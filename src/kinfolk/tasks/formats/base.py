"""Lines, cells and JSON values of labelled files, and the report of what was skipped."""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias

from kinfolk.data.documents import Row, missing_name_error, read_csv_rows, read_tsv_rows
from kinfolk.data.files import (
    JSON,
    InputFile,
    content_suffix,
    decode_utf8,
    iter_lines,
    normalize_newlines,
    open_input,
)
from kinfolk.errors import UserError

MAX_LINES_SHOWN = 5  # lines that are named


class ReadReport:
    """Count what is worth saying about a file, by its words.

    `add("rows with an empty text", 7)` is said as "rows with an empty text: 1 (7)".
    """

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._places: dict[str, list[str]] = {}

    def count(self, what: str, place: int | str) -> None:
        """Count one case of something, and remember its line or what was found there."""
        self.counts[what] += 1
        indices = self._places.setdefault(what, [])
        if len(indices) < MAX_LINES_SHOWN:
            indices.append(f"{place:,}" if isinstance(place, int) else place)

    def messages(self) -> list[str]:
        """Say all that was counted, with the first places of each."""
        return [
            f"{what}: {count:,} ({', '.join(self._places[what])}"
            f"{', …' if count > MAX_LINES_SHOWN else ''})"
            for what, count in self.counts.items()
        ]


NumberedRecord: TypeAlias = tuple[int, Any]  # a line or record, from 1, and its JSON value
SAMPLE_ROWS = 2000  # lines or records that are looked at before a guess


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Stream the lines of a file, blank ones too."""
    with open_input(path) as source:
        yield from enumerate(iter_lines(source, normalize_newlines(decode_utf8(source))), 1)


def read_table(path: Path) -> Iterator[Row]:
    """Stream the rows of a table; only commas are quoted, as in published files."""
    with open_input(path) as source:
        yield from (
            read_csv_rows(source) if content_suffix(path) == ".csv" else read_tsv_rows(source)
        )


def read_json(path: Path) -> Iterator[NumberedRecord]:
    """Stream JSON values, one a line; a file that is one list or one object is read whole."""
    with open_input(path) as source:
        numbered = enumerate(iter_lines(source, normalize_newlines(decode_utf8(source))), 1)
        written = ((n, line) for n, line in numbered if line and not line.isspace())
        first = next(written, None)
        if first is None:
            return
        value = _first(first[1])
        if isinstance(value, dict):
            yield first[0], value
            yield from ((n, _parsed(line, n, source)) for n, line in written)
            return
        rest = "\n".join(line for _, line in numbered)  # most of it: an indented file
        value = _parsed(f"{first[1]}\n{rest}", first[0], source)
    yield from enumerate(value if isinstance(value, list) else [value], 1)


def sample_json(path: Path) -> list[NumberedRecord]:
    """Return the first records of a file."""
    return list(islice(read_json(path), SAMPLE_ROWS))


def is_json(path: Path) -> bool:
    """Tell by its name whether a file holds JSON."""
    return content_suffix(path) in JSON


def get_field(row: Any, name: str, where: str) -> Any:
    """Return a field of an object; a dot leads into a field of a field."""
    value = row
    for step in [name] if isinstance(row, dict) and name in row else name.split("."):
        if not isinstance(value, dict):
            raise UserError(f"{where} has no field {name!r}: write an object with named fields")
        if step not in value:
            raise missing_name_error(name, list(value), where)
        value = value[step]
    return value


def as_text(value: Any, name: str, where: str) -> str:
    """Return a field's text; a list of texts is joined with spaces."""
    if isinstance(value, list) and all(isinstance(part, str) for part in value):
        return " ".join(value)
    if not isinstance(value, str):
        raise UserError(f"{name!r} in {where} is {preview(value)}, not text: choose another field")
    return value


def as_text_list(value: Any, name: str, where: str) -> tuple[str, ...]:
    """Return a field's list of texts."""
    if not isinstance(value, list) or not all(isinstance(part, str) for part in value):
        raise UserError(f"{name!r} in {where} is {preview(value)}: give a list of texts")
    return tuple(value)


def first_key(row: Any, names: Sequence[str]) -> str | None:
    """Return the first of some names that an object has."""
    return next((n for n in names if isinstance(row, dict) and n in row), None)


def preview(value: Any, most: int = 40) -> str:
    """Write a JSON value for a sentence, cut where it is long."""
    said = json.dumps(value, ensure_ascii=False)
    return said if len(said) <= most else f"{said[: most - 1]}…"


def _first(line: str) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None  # the beginning of a value that goes on


def _parsed(written: str, number: int, source: InputFile) -> Any:
    try:
        return json.loads(written)
    except json.JSONDecodeError as error:
        raise UserError(
            f"line {number + error.lineno - 1:,} of {source.name} is not JSON ({error.msg}, column "
            f"{error.colno}): write one object a line, for example with jq -c, or one list"
        ) from error
    except (ValueError, RecursionError) as error:
        raise UserError(
            f"line {number:,} of {source.name} is no JSON that can be read ({error}): leave it out"
        ) from error
