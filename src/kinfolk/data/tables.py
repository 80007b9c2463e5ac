"""Tables of text: JSON lines, tab- and comma-separated values, Parquet; a row is a document."""

import csv
import json
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any

from kinfolk.data.streams import (
    COMPRESSION_SUFFIXES,
    InputFile,
    content_suffix,
    decode_utf8,
    iter_lines,
    normalize_newlines,
)
from kinfolk.errors import UserError

DEFAULT_TEXT_FIELD = "text"  # where a row keeps its text, unless told otherwise
CELL = 1 << 26  # characters between two quotes; beyond, the second was forgotten
PARQUET_BATCH_ROWS = 256  # of a Parquet file, held at once

Row = tuple[int, list[str]]  # the line on which it begins, and its cells


def read_jsonl(
    source: InputFile, field: str = DEFAULT_TEXT_FIELD, *, allow_nul: bool = False
) -> Iterator[str]:
    """Read a field of each line's object; a dot leads into a field of a field."""
    for number, line in enumerate(iter_lines(source, decode_utf8(source)), 1):
        if not line or line.isspace():
            continue
        where = f"line {number:,} of {source.name}"
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise UserError(
                f"{where} is not JSON ({error.msg}, column {error.colno}): write one object a "
                "line, for example with jq -c"
            ) from error
        except (ValueError, RecursionError) as error:  # a number too long, brackets too deep
            raise UserError(
                f"{where} is no JSON that can be read ({error}): leave it out"
            ) from error
        yield get_text(row, field, where, allow_nul=allow_nul)


def read_delimited(source: InputFile, column: str | int | None = None) -> Iterator[str]:
    """Read a column by its number, from 1, or by its name in the first row."""
    rows = read_csv_rows(source) if content_suffix(source.path) == ".csv" else read_tsv_rows(source)
    first = next(rows, None)
    if first is None:
        return
    place = _place(first[1], column, source.name)
    if not named(column):
        yield first[1][place]
    for number, row in rows:
        if place >= len(row):
            raise UserError(
                f"line {number:,} of {source.name} has no column {place + 1}, it is too short: "
                "mend the row, or choose another --column"
            )
        yield row[place]


def read_parquet(source: InputFile, column: str | int = DEFAULT_TEXT_FIELD) -> Iterator[str]:
    """Read a column, a few hundred rows at a time; a dot leads into a field of a struct."""
    try:
        from pyarrow import lib
        from pyarrow.parquet import ParquetFile
    except ImportError as error:
        raise UserError(
            f"{source.name} needs the pyarrow package: pip install 'kinfolk[parquet]'"
        ) from error
    size, done = source.path.stat().st_size, 0
    with _seekable_file(source) as file:
        try:
            table = ParquetFile(file, buffer_size=1 << 20, pre_buffer=False)
            names = table.schema_arrow.names
            name = str(column) if named(column) else names[_place(names, column, source.name)]
            if name not in names and name.split(".")[0] not in names:
                raise missing_name_error(name, names, source.name)
            for batch in table.iter_batches(PARQUET_BATCH_ROWS, columns=[name]):
                source.place = size * (done + len(batch)) // table.metadata.num_rows
                for number, row in enumerate(batch.to_pylist(), done + 1):
                    yield get_text(row, name, f"row {number:,} of {source.name}")
                done += len(batch)
        except (lib.ArrowException, OSError, UnicodeDecodeError) as error:
            said = str(error).partition("\n")[0]
            raise UserError(
                f"{source.name} is damaged or no Parquet ({said}): fetch it again"
            ) from error


def get_text(row: Any, field: str, where: str, *, allow_nul: bool = False) -> str:
    """Return the text of a row's field, if it is one that can be written as UTF-8."""
    value, steps = row, [field] if isinstance(row, dict) and field in row else field.split(".")
    for step in steps:
        if not isinstance(value, dict):
            raise UserError(f"{where} has no field {field!r}: it is {_kind(value)}, not an object")
        if step not in value:
            raise missing_name_error(field, list(value), where)
        value = value[step]
    if not isinstance(value, str):
        raise UserError(f"{field!r} in {where} is {_kind(value)}, not text: choose another --field")
    if "\0" in value and not allow_nul:
        raise UserError(f"{field!r} in {where} holds a NUL character: it is not text; leave it out")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise UserError(
            f"{field!r} in {where} holds half a character ({value[error.start]!r}, a surrogate "
            "alone), which UTF-8 cannot write: mend it, or leave it out"
        ) from error
    return value


def named(column: str | int | None) -> bool:
    """Tell whether a column is given by name; digits are a number."""
    return isinstance(column, str) and not column.lstrip("-").isdecimal()


def missing_name_error(name: str, names: list[str], where: str) -> UserError:
    """Say that something is missing, and what there is."""
    rest = f"choose one of {_listed(names)}" if names else "nothing is there"
    return UserError(f"{where} has no {name!r}: {rest}")


def _place(first: list[str], column: str | int | None, name: str) -> int:
    """Find a column in the first row, from 0."""
    if column is None and len(first) > 1:
        raise UserError(
            f"{name} has {len(first)} columns ({_listed(first)}): choose the one with the text, "
            "--column NAME or, where the first row holds no names, --column NUMBER"
        )
    if named(column):
        titles = [title.strip() for title in first]
        if column not in titles:
            raise missing_name_error(str(column), titles, f"the first row of {name}")
        return titles.index(str(column))
    number = 1 if column is None else int(column)
    if not 1 <= number <= len(first):
        raise UserError(
            f"--column {number}: {name} has {len(first)} columns ({_listed(first)}), counted from 1"
        )
    return number - 1


def read_tsv_rows(source: InputFile) -> Iterator[Row]:
    """Part lines at tabs and nothing else: quotes are text, as in most published files."""
    for number, line in enumerate(iter_lines(source, normalize_newlines(decode_utf8(source))), 1):
        if line:
            yield number, line.split("\t")


def read_csv_rows(source: InputFile) -> Iterator[Row]:
    """Read comma-separated values, whose quotes may hold commas and line ends."""
    csv.field_size_limit(CELL)
    # Not strict, a forgotten quote would swallow the rest of the file without a word.
    reader = csv.reader(
        (line + "\n" for line in iter_lines(source, decode_utf8(source))), strict=True
    )
    while True:
        number = reader.line_num + 1
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise UserError(
                f"the row that begins on line {number:,} of {source.name} is not CSV ({error}): "
                "check its quotes"
            ) from error
        if row:  # a blank line is none
            yield number, row


@contextmanager
def _seekable_file(source: InputFile) -> Iterator[IO[bytes]]:
    """Lend a file that can be read in any order: the compressed ones are unpacked on disk."""
    if source.path.suffix.lower() not in COMPRESSION_SUFFIXES:
        yield source.raw
        return
    with tempfile.TemporaryFile() as file:
        shutil.copyfileobj(source.stream, file, 1 << 20)
        yield file


def _listed(names: list[str], most: int = 12) -> str:
    short = [name if len(name) <= 24 else f"{name[:23]}…" for name in names[:most]]
    return ", ".join([*short, *(["…"] if len(names) > most else [])])


def _kind(value: Any) -> str:
    """Name the kind of a JSON value in plain words."""
    kinds = {dict: "an object", list: "a list", str: "text", bool: "true or false", bytes: "bytes"}
    return "null" if value is None else kinds.get(type(value), "a number")
