"""A labelled file that is opened once, and checked access to the fields of JSON records."""

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from functools import cached_property
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias

from kinfolk.data.documents import TableLine, missing_name_error, read_csv_rows, read_tsv_rows
from kinfolk.data.files import (
    DELIMITED_SUFFIXES,
    JSON_SUFFIXES,
    InputFile,
    content_suffix,
    decoded_lines,
    open_input,
)
from kinfolk.errors import UserError

NumberedRecord: TypeAlias = tuple[int, Any]  # a line or record number, from 1, and its JSON value
HTML_ENTITY = re.compile(r"&#?\w+;")  # of text from web pages
SAMPLE_ROWS = 2000  # lines, table rows or records from which the format is detected


class LabelledFile:
    """A file whose bytes are read once and stay in memory, compressed as they are on disk.

    Lines, table rows and JSON records are decoded from them on demand, any number of times. A file
    of source lines holds the file of its target lines as `target`.
    """

    def __init__(
        self, path: Path | str, *, data: bytes | None = None, target: Path | str | None = None
    ) -> None:
        self.path = Path(path)
        self.target = None if target is None else LabelledFile(target)
        self.in_memory = data is not None  # not on disk
        if data is not None:
            self.data = data
        self.suffix = content_suffix(self.path)
        self.is_json = self.suffix in JSON_SUFFIXES
        self.is_delimited = self.suffix in DELIMITED_SUFFIXES

    def __str__(self) -> str:
        """Return the path, for messages."""
        return str(self.path)

    def option(self, name: str, value: str) -> str:
        """Return how an option is set: of a command, or of a function for rows in memory."""
        return f'{name}="{value}"' if self.in_memory else f"--{name} {value}"

    def place(self, number: int) -> str:
        """Return where a record is, for messages: rows in memory are no lines of a file."""
        if self.in_memory:
            return f"row {number:,} of {self.path.stem}"
        return f"line {number:,} of {self}"

    @cached_property
    def data(self) -> bytes:
        """The bytes of the file."""
        return self.path.read_bytes()

    @cached_property
    def fingerprint(self) -> str:
        """The hash of the name and of all bytes."""
        digest = sha256(f"{self.path.name}\n".encode())
        digest.update(self.data)
        return digest.hexdigest()

    def release(self) -> None:
        """Drop the bytes of files that are on disk, and keep their fingerprints."""
        for file in (self, self.target):
            if file is not None and not file.in_memory and "data" in vars(file):
                _ = file.fingerprint  # computed before the bytes are dropped
                del file.data

    def open(self) -> AbstractContextManager[InputFile]:
        """Open the bytes as an input file, decompressed."""
        return open_input(self.path, lambda: self.data)

    def lines(self) -> Iterator[tuple[int, str]]:
        """Stream the numbered lines, also blank ones."""
        with self.open() as source:
            yield from enumerate(decoded_lines(source), 1)

    def cells(self) -> Iterator[TableLine]:
        """Stream the numbered rows of a table; quotes have a meaning in CSV only."""
        with self.open() as source:
            yield from read_csv_rows(source) if self.suffix == ".csv" else read_tsv_rows(source)

    def records(self) -> Iterator[NumberedRecord]:
        """Stream JSON values, one per line; a file that is one list or one object is read whole."""
        with self.open() as source:
            numbered = enumerate(decoded_lines(source), 1)
            nonblank = ((n, line) for n, line in numbered if line and not line.isspace())
            first = next(nonblank, None)
            if first is None:
                return
            value = _parse_or_none(first[1])
            if isinstance(value, dict):
                yield first[0], _check_unicode(value, *first, source)
                yield from ((n, _parse(line, n, source)) for n, line in nonblank)
                return
            rest = "\n".join(line for _, line in numbered)  # the rest of an indented file
            value = _parse(f"{first[1]}\n{rest}", first[0], source)
        yield from enumerate(value if isinstance(value, list) else [value], 1)

    @property
    def is_json_lines(self) -> bool:
        """Whether the first line is an object of its own."""
        first = next((line for _, line in self.lines() if line.strip()), "")
        return isinstance(_parse_or_none(first), dict)

    @cached_property
    def sample_lines(self) -> list[str]:
        """The first lines."""
        return [line for _, line in islice(self.lines(), SAMPLE_ROWS)]

    @cached_property
    def sample_cells(self) -> list[list[str]]:
        """The first rows of a table."""
        self.check_commas()
        return [cells for _, cells in islice(self.cells(), SAMPLE_ROWS)]

    @property
    def begins_with_columns(self) -> bool:
        """Whether the first row of a table has several cells, which may go over several lines."""
        try:
            return any(len(cells) > 1 for _, cells in islice(self.cells(), 1))
        except UserError:
            return False

    def check_commas(self) -> None:
        """Refuse a .csv file whose columns are separated by semicolons or tabs.

        Its first row has no columns by commas, and most lines have them; texts may hold commas.
        """
        lines = [HTML_ENTITY.sub("", line) for line in self.sample_lines if line.strip()]
        if self.suffix != ".csv" or len(lines) < 2 or "," in lines[0] or self.begins_with_columns:
            return
        for name, separator in (("semicolons", ";"), ("tabs", "\t")):
            if separator in lines[0] and 2 * sum(separator in line for line in lines) > len(lines):
                raise UserError(
                    f"the columns of {self} are separated by {name}, and those of a .csv file by "
                    "commas: save it with commas, or with tabs as a .tsv file"
                )

    @cached_property
    def sample_records(self) -> list[Any]:
        """The first records; none where the file is not JSON."""
        records = islice(self.records(), SAMPLE_ROWS) if self.is_json else ()
        return [value for _, value in records]

    @property
    def first_record(self) -> Any:
        """The first record, None where there is none."""
        return next(iter(self.sample_records), None)


def json_lines(rows: Sequence[Any]) -> bytes:
    """Return rows as the bytes of a JSON lines file; values that JSON lacks are written as text."""
    lines = []
    for number, row in enumerate(rows, 1):
        line = json.dumps(row, ensure_ascii=False, default=str) + "\n"
        try:
            lines.append(line.encode())
        except UnicodeEncodeError as error:
            raise _surrogate_error(f"row {number:,}", error) from error
    return b"".join(lines)


def get_field(record: Any, name: str, where: str) -> Any:
    """Return a field of an object; a dot separates the names of nested fields."""
    value = record
    for key in [name] if isinstance(record, dict) and name in record else name.split("."):
        if not isinstance(value, dict):
            raise UserError(f"{where} has no field {name!r}: it must be a JSON object")
        if key not in value:
            raise missing_name_error(name, list(value), where)
        value = value[key]
    return value


def field_text(value: Any, name: str, where: str) -> str:
    """Return the text of a field; a list of texts is joined with spaces."""
    if isinstance(value, list) and all(isinstance(part, str) for part in value):
        return unix_newlines(" ".join(value))
    if not isinstance(value, str):
        raise UserError(f"{name!r} in {where} must be a string (got {preview(value)})")
    return unix_newlines(value)


def unix_newlines(text: str) -> str:
    """Return a text whose lines end in LF, so that the format of a file changes no token."""
    return text.replace("\r\n", "\n").replace("\r", "\n")


def as_text_list(value: Any, name: str, where: str) -> tuple[str, ...]:
    """Return the list of texts of a field."""
    if not isinstance(value, list) or not all(isinstance(part, str) for part in value):
        raise UserError(f"{name!r} in {where} must be a list of strings (got {preview(value)})")
    return tuple(value)


def first_key(record: Any, names: Sequence[str]) -> str | None:
    """Return the first of the names that an object has, None for none."""
    return next((n for n in names if isinstance(record, dict) and n in record), None)


def preview(value: Any, max_chars: int = 40) -> str:
    """Return a JSON value for a message, truncated where it is long."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= max_chars else f"{text[: max_chars - 1]}…"


def _parse_or_none(line: str) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None  # the first line of a value that spans several


def _parse(text: str, number: int, source: InputFile) -> Any:
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise UserError(
            f"line {number + error.lineno - 1:,} of {source.name} is not JSON ({error.msg}, column "
            f"{error.colno}): write one object per line, for example with jq -c, or one list"
        ) from error
    except (ValueError, RecursionError) as error:
        raise UserError(
            f"line {number:,} of {source.name} cannot be parsed as JSON ({error}): remove it"
        ) from error
    return _check_unicode(value, number, text, source)


def _check_unicode(value: Any, number: int, text: str, source: InputFile) -> Any:
    """Return a JSON value; half a surrogate pair in its escapes is refused."""
    if "\\ud" in text.lower():
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            raise _surrogate_error(f"line {number:,} of {source.name}", error) from error
    return value


def _surrogate_error(where: str, error: UnicodeEncodeError) -> UserError:
    return UserError(
        f"{where} contains a lone surrogate ({error.object[error.start]!r}), which is not valid "
        "Unicode: fix it, or leave it out"
    )
