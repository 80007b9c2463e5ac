"""Text from files, folders, tables and datasets, as a stream of documents."""

import re
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Literal

from kinfolk.data.remote import read_dataset
from kinfolk.data.listing import DATASET_PREFIX, is_dataset_name, DELIMITED_SUFFIXES, JSON, PARQUET, file_sizes, find_files
from kinfolk.data.streams import (
    MAX_LINE_CHARS,
    STDIN,
    InputFile,
    content_suffix,
    decode_utf8,
    normalize_newlines,
    open_input,
)
from kinfolk.data.tables import DEFAULT_TEXT_FIELD, read_delimited, read_jsonl, read_parquet
from kinfolk.errors import UserError

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
    kinds = {_kind(path, reading) for path in found}
    if reading.field is not None and not kinds & {*JSON, *PARQUET, DATASET_PREFIX}:
        raise UserError(f"--field {reading.field}: only .jsonl, .json and .parquet have fields")
    if reading.column is not None and not kinds & {
        *DELIMITED_SUFFIXES,
        *PARQUET,
        DATASET_PREFIX,
    }:
        raise UserError(f"--column {reading.column}: only .tsv, .csv and .parquet have columns")


def _kind(path: Path, reading: Reading) -> str:
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
    kind = _kind(source.path, reading)
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
