"""Read documents: blocks of text, whole files, rows of tables, Hugging Face datasets."""

import csv
import json
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import IO, Any, Literal

from kinfolk.data.files import (
    COMPRESSION_SUFFIXES,
    DATASET_PREFIX,
    DELIMITED_SUFFIXES,
    JSON,
    MAX_LINE_CHARS,
    PARQUET,
    STDIN,
    InputFile,
    content_suffix,
    decode_utf8,
    file_sizes,
    find_files,
    is_dataset_name,
    iter_lines,
    normalize_newlines,
    open_input,
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
    if not is_column_name(column):
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
            name = (
                str(column) if is_column_name(column) else names[_place(names, column, source.name)]
            )
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
            raise UserError(
                f"{where} has no field {field!r}: it is {_json_type(value)}, not an object"
            )
        if step not in value:
            raise missing_name_error(field, list(value), where)
        value = value[step]
    if not isinstance(value, str):
        raise UserError(
            f"{field!r} in {where} is {_json_type(value)}, not text: choose another --field"
        )
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


def is_column_name(column: str | int | None) -> bool:
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
    if is_column_name(column):
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


def _json_type(value: Any) -> str:
    """Name the kind of a JSON value in plain words."""
    kinds = {dict: "an object", list: "a list", str: "text", bool: "true or false", bytes: "bytes"}
    return "null" if value is None else kinds.get(type(value), "a number")


def read_dataset(source: InputFile, field: str = DEFAULT_TEXT_FIELD) -> Iterator[str]:
    """Read a field of each row; nothing is fetched before it is asked for."""
    path = source.path
    try:
        from datasets import load_dataset
    except ImportError as error:
        raise UserError(f"{path} needs the datasets package: pip install 'kinfolk[hub]'") from error
    name, part, split = parse_dataset_name(path)
    found = _call_datasets(
        path, lambda: iter(load_dataset(name, part, split=split, streaming=True))
    )
    number = 0
    while (row := _call_datasets(path, lambda: next(found, None))) is not None:
        number += 1
        text = get_text(row, field, f"row {number:,} of {path}")
        source.place += len(text.encode())
        yield text


def parse_dataset_name(path: Path) -> tuple[str, str | None, str]:
    """Take an address apart: the dataset (or its folder), its configuration and its split.

    hf:allenai/c4/en:validation gives ("allenai/c4", "en", "validation").
    """
    name, _, split = str(path).removeprefix(DATASET_PREFIX).partition(":")
    owner, *rest = name.split("/", 2)
    if Path(name).is_dir() or len(rest) < 2:
        return name, None, split or "train"
    return f"{owner}/{rest[0]}", rest[1], split or "train"


def _call_datasets(path: Path, ask: Callable[[], Any]) -> Any:
    """Ask the library, whose failures are of many kinds: the network's, the hub's, a file's."""
    try:
        return ask()
    except Exception as error:
        said = str(error).strip().partition("\n")[0] or type(error).__name__
        raise UserError(
            f"{path} cannot be read ({said}): check the network and the address, "
            "hf:OWNER/NAME/CONFIGURATION:SPLIT"
        ) from error


__all__ = [
    "Document",
    "DocumentUnit",
    "Reading",
    "file_sizes",
    "find_files",
    "parts",
    "read_documents",
]

DocumentUnit = Literal["block", "file"]
TextPart = tuple[str, bool]  # some text, and whether its document ends with it

PART = 1 << 20  # characters that `parts` gives at once, at most
MAX_BLANK_CHARS = 1 << 20  # white space that waits for what follows it
_LEADING = re.compile(r"\A\s*\n")
_BLANK = re.compile(r"\n\s*\n")


@dataclass(frozen=True)
class Document:
    """One text, where it came from, and how many bytes of that were read by its end."""

    text: str
    source: Path
    bytes_read: int


@dataclass(frozen=True)
class Reading:
    """What a document is, and where a table keeps its text."""

    per: DocumentUnit
    field: str | None
    column: str | int | None


def read_documents(
    paths: Sequence[Path],
    *,
    per: DocumentUnit = "block",
    field: str | None = None,
    column: str | int | None = None,
) -> Iterator[Document]:
    """Stream the documents of files, folders and datasets.

    A text file has one a block between blank lines, or is one; a table has one a row, in a `field`
    of JSON lines ("text", or "meta.text") or in a `column`, by its name or its number from 1.
    """
    found, named = find_files(paths), {Path(path) for path in paths}
    reading = Reading(per, field, column)
    _check(reading, found)
    return (document for path in found for document in _read(path, reading, named=path in named))


def parts(
    paths: Sequence[Path], *, field: str | None = None, column: str | int | None = None
) -> Iterator[str]:
    """Stream the text of the same documents, a long one in several parts: joined, they are it.

    Memory is bounded however long a line is, for those who learn from text and need no documents.
    """
    found, named = find_files(paths), {Path(path) for path in paths}
    reading = Reading("block", field, column)
    _check(reading, found)
    return (part for path in found for part in _parts(path, reading, named=path in named))


def _read(path: Path, reading: Reading, *, named: bool) -> Iterator[Document]:
    held: list[str] = []
    size = 0
    for source, text, ends in _pieces(path, reading, named=named):
        held.append(text)
        size += len(text)
        if size > MAX_LINE_CHARS:
            raise source.too_long_error(source.document_line)
        if ends:
            whole = "".join(held)
            held, size = [], 0
            if whole and not whole.isspace():
                yield Document(whole, path, source.place)


def _parts(path: Path, reading: Reading, *, named: bool) -> Iterator[str]:
    rest = ""
    for _, text, ends in _pieces(path, reading, named=named):
        rest, start = rest + text, 0
        while len(rest) - start > PART:
            stop = _cut(rest, start, start + PART)
            yield rest[start:stop]
            start = stop
        rest = rest[start:]
        if ends and rest:
            yield rest
            rest = ""


def _cut(text: str, start: int, stop: int) -> int:
    """Find the last place for a cut: before white space or after a Chinese sentence's mark."""
    spaces = (text.rfind(mark, start + 1, stop) for mark in " \n\t")
    marks = (text.rfind(mark, start, stop) + 1 for mark in "。！？；，")
    place = max(*spaces, *marks)
    return place if place > start else stop


def _check(reading: Reading, found: Sequence[Path]) -> None:
    """Refuse a field or a column that no source has."""
    kinds = {_file_type(path, reading) for path in found}
    if reading.field is not None and not kinds & {*JSON, *PARQUET, DATASET_PREFIX}:
        raise UserError(f"--field {reading.field}: only .jsonl, .json and .parquet have fields")
    if reading.column is not None and not kinds & {
        *DELIMITED_SUFFIXES,
        *PARQUET,
        DATASET_PREFIX,
    }:
        raise UserError(f"--column {reading.column}: only .tsv, .csv and .parquet have columns")


def _file_type(path: Path, reading: Reading) -> str:
    """Tell the kind of a source by its name; the standard input is what it is said to be."""
    if is_dataset_name(path):
        return DATASET_PREFIX
    if path == STDIN and reading.column is not None:
        return ".tsv"
    if path == STDIN and reading.field is not None:
        return ".jsonl"
    return content_suffix(path)


def _pieces(path: Path, reading: Reading, *, named: bool) -> Iterator[tuple[InputFile, str, bool]]:
    """Read a source in pieces, and refuse one that was named and has no text."""
    # The bytes of a dataset are elsewhere.
    found = nullcontext(InputFile(path, BytesIO())) if is_dataset_name(path) else open_input(path)
    empty = True
    with found as source:
        rows = _rows(source, reading)
        chunks = _blocks(source, reading.per) if rows is None else ((row, True) for row in rows)
        for text, ends in chunks:
            empty = empty and not text.strip()
            yield source, text, ends
    # In a folder an empty file is no mistake: it has no documents.
    if empty and named:
        raise UserError(f"{source.name} is empty: give a file with text in it")


def _rows(source: InputFile, reading: Reading) -> Iterator[str] | None:
    """Read a table, if it is one."""
    field = DEFAULT_TEXT_FIELD if reading.field is None else reading.field
    either = field if reading.column is None else reading.column
    kind = _file_type(source.path, reading)
    if kind == DATASET_PREFIX:
        return read_dataset(source, str(either))
    if source.empty:
        return iter(())
    if kind in JSON:
        return read_jsonl(source, field)
    if kind in DELIMITED_SUFFIXES:
        return read_delimited(source, reading.column)
    return read_parquet(source, either) if kind in PARQUET else None


def _blocks(source: InputFile, per: DocumentUnit) -> Iterator[TextPart]:
    """Part text at its blank lines, or nowhere; what is not blank at its end is passed on."""
    rest, begun = "", False
    for part in normalize_newlines(decode_utf8(source)):
        text = rest + part if begun else _LEADING.sub("", rest + part)
        *whole, last = _BLANK.split(text) if per == "block" else [text]
        yield from ((block, True) for block in whole)
        kept = last.rstrip()
        rest = last[len(kept) :]
        if len(rest) > MAX_BLANK_CHARS:  # no line of blanks is that long: it is text
            kept, rest = last, ""
        if whole or not begun:
            source.document_line = source.line - last.count("\n")
            begun = False
        if kept:
            yield kept, False
            begun = True
    if begun:
        yield rest.partition("\n")[0], True
