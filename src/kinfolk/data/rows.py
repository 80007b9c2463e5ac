"""Every text in a file, whatever is wrong with the file: for looking at data, not for training.

What `sources` refuses is read here as well as it can be: bytes that are no UTF-8 become U+FFFD and
are counted, and a line that should be JSON and is not gives the strings that are in it.
"""

import csv
import io
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

from kinfolk.data.documents import DocumentUnit, read_documents
from kinfolk.data.files import (
    DELIMITED_SUFFIXES,
    JSON,
    MAX_LINE_CHARS,
    PARQUET,
    InputFile,
    content_suffix,
    is_dataset_name,
    open_input,
)
from kinfolk.errors import UserError

CELL = 1 << 26  # characters; a quote that is never closed ends here
MAX_LISTED_LINES = 5  # lines with errors that are named

Numbered: TypeAlias = Iterator[tuple[int, str]]  # a text, and the line where it begins

_MARKS: dict[str, tuple[str, Literal[0, 3]]] = {
    ".csv": (",", csv.QUOTE_MINIMAL),
    ".tsv": ("\t", csv.QUOTE_NONE),
}
_STRING = re.compile(r'("(?:[^"\\]|\\.)*+")(\s*+:)?')  # and whether it names a field


@dataclass(frozen=True)
class Reading:
    """What a document is, and which strings of JSON and of tables are text: all, unless named."""

    per: DocumentUnit = "block"
    field: str | None = None
    column: str | None = None


@dataclass
class FileProblems:
    """What was noticed while a file was read."""

    lines: int = 0
    blank: int = 0  # lines
    errors: int = 0  # stretches of bytes that are no UTF-8
    line_numbers: list[int] = field(default_factory=list)  # the lines of the first of them
    invalid_json_lines: int = 0  # lines of a .jsonl file that are no JSON


@dataclass(frozen=True)
class RawDocument:
    """Text that belongs together: a block of lines, a line of JSON, a row of a table."""

    text: str
    line: int  # where it begins
    place: int  # bytes of the file read by its end
    plain: bool  # whether a new line in the text is one in the file


def rows(path: Path, notes: FileProblems, reading: Reading | None = None) -> Iterator[RawDocument]:
    """Stream the texts of a file or another source, and note what is wrong with it."""
    reading = reading or Reading()
    kind = content_suffix(path)
    if kind in PARQUET or is_dataset_name(path):  # their strings are UTF-8, or they are no strings
        chosen = read_documents([path], field=reading.field, column=reading.column)
        for notes.lines, one in enumerate(chosen, 1):
            yield RawDocument(one.text, notes.lines, one.bytes_read, plain=False)
        return
    with open_input(path) as source:
        lines = _lines(source, notes)
        if kind in JSON:
            found = _objects(lines, reading.field, notes, whole=kind != ".json")
        elif kind in DELIMITED_SUFFIXES:
            found = _cells(lines, kind, reading.column, source.name)
        else:
            found = _blocks(lines, source, whole=reading.per == "file")
        for line, text in found:
            yield RawDocument(
                text, line, source.place, plain=kind not in (*JSON, *DELIMITED_SUFFIXES)
            )


def _lines(source: InputFile, notes: FileProblems) -> Numbered:
    stream = io.BufferedReader(source.stream)
    number = 0
    while line := stream.readline(MAX_LINE_CHARS):
        number += 1
        if len(line) == MAX_LINE_CHARS:
            raise source.too_long_error(number)
        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError:
            text = line.decode("utf-8", "replace")
            # U+FFFD that the file itself holds is no error.
            notes.errors += text.count("\ufffd") - line.count(b"\xef\xbf\xbd")
            notes.line_numbers += [number] if len(notes.line_numbers) < MAX_LISTED_LINES else []
        text = text.removeprefix("\ufeff") if number == 1 else text
        notes.lines, notes.blank = number, notes.blank + (not text.strip())
        yield number, text.removesuffix("\n").removesuffix("\r")


def _blocks(lines: Numbered, source: InputFile, *, whole: bool) -> Numbered:
    """Part text at blank lines, or nowhere."""
    first, size, block = 0, 0, list[str]()
    for number, line in lines:
        if line.strip() or (whole and block):
            first, size = (first, size) if block else (number, 0)
            block.append(line)
            size += len(line)
            if size > MAX_LINE_CHARS:
                raise source.too_long_error(first)
        elif block:
            yield first, "\n".join(block)
            block = []
    if block:
        yield first, "\n".join(block).rstrip("\n")


def _objects(lines: Numbered, field: str | None, notes: FileProblems, *, whole: bool) -> Numbered:
    for number, line in lines:
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            # A .json file may be one value over many lines, none of which is whole.
            notes.invalid_json_lines += whole
            strings = [_parse_json_string(s[1]) for s in _STRING.finditer(line) if not s[2]]
            if whole or strings:
                yield number, "\n".join(strings if field is None else ())
        else:
            yield number, "\n".join(_strings(_within(value, field)))


def _within(value: Any, path: str | None) -> Any:
    """Follow a dotted path of names into a value."""
    for name in path.split(".") if path else ():
        value = value.get(name) if isinstance(value, dict) else None
    return value


def _parse_json_string(quoted: str) -> str:
    try:
        return str(json.loads(quoted))
    except ValueError:
        return quoted[1:-1]


def _strings(value: Any) -> Iterator[str]:
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, str):
            yield one
        elif isinstance(one, dict | list):
            waiting += reversed(list(one.values() if isinstance(one, dict) else one))


def _cells(lines: Numbered, kind: str, column: str | None, name: str) -> Numbered:
    csv.field_size_limit(CELL)
    texts = (text + "\n" for _, text in lines)
    # A quote in a .tsv file is a letter like any other.
    mark, quoting = _MARKS[kind]
    table = csv.reader(texts, delimiter=mark, quoting=quoting)
    before, place = 0, slice(None)  # lines of the file; the columns that are text
    try:
        if column is not None:
            first = next(table, [])
            place = _place(column, first, name)
            if column.isdecimal():
                yield 1, "\n".join(first[place])
            before = table.line_num
        for cells in table:
            yield before + 1, "\n".join(cells[place])
            before = table.line_num
    except csv.Error as error:
        raise UserError(
            f"line {before + 1} of {name} cannot be read ({error}): check its quotes"
        ) from error


def _place(column: str, first: list[str], name: str) -> slice:
    """Find a column by its number from 1, or by its name in the first row."""
    titles = [title.strip() for title in first]
    if not column.isdecimal() and column not in titles:
        raise UserError(f"{name} has no column {column!r}: choose one of {', '.join(titles)}")
    number = int(column) - 1 if column.isdecimal() else titles.index(column)
    return slice(number, number + 1)
