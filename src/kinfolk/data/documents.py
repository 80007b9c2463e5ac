"""Read documents: blocks of text, whole files, rows of tables, Hugging Face datasets.

`read_documents` is strict: an invalid file is an error with a line number.
`read_leniently` reads a file to its end and counts its problems: bytes that are not UTF-8 become
U+FFFD, and a line that should be JSON and is not gives the strings in it.
"""

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from io import BytesIO
from itertools import accumulate
from pathlib import Path
from typing import Literal, TypeVar

from kinfolk.data.files import (
    DATASET_PREFIX,
    DELIMITED_SUFFIXES,
    JSON_SUFFIXES,
    MAX_LINE_CHARS,
    PARQUET,
    STDIN,
    ByteRange,
    FileProblems,
    InputFile,
    OnSkip,
    content_suffix,
    decoded_text,
    file_sizes,
    find_files,
    is_dataset_name,
    open_input,
)
from kinfolk.data.table_texts import (
    DEFAULT_TEXT_FIELD,
    read_dataset,
    read_delimited,
    read_json_strings,
    read_jsonl,
    read_parquet,
)
from kinfolk.errors import UserError

PART = 1 << 20  # characters of a part, at most
MAX_BLANK_CHARS = 1 << 20  # white space that is held until text follows it
MAX_LISTED_FAULTS = 5  # files in one error
MAX_CHECKED_BYTES = 1 << 28  # of the files after a faulty one: a few seconds
T = TypeVar("T")
_LEADING = re.compile(r"\A\s*\n")
_BLANK = re.compile(r"(\n\s*\n)")

DocumentUnit = Literal["block", "file"]
TextPart = tuple[str, bool]  # some text, and whether its document ends with it
ReadProgress = Callable[[int, int | None], None]  # receives bytes read, and those of all files


@dataclass(frozen=True)
class Document:
    """One text and where it came from."""

    text: str
    source: Path
    bytes_read: int  # of the source, by the end of the text
    line: int = 1  # on which it begins


ReadFile = Callable[[Path], Iterator[Document]]


@dataclass(frozen=True)
class ReadOptions:
    """What a document is, and where a table has its text.

    A text file has a document for each block between blank lines, or is one document. A table has
    a document for each row, in a `field` of JSON lines ("text", or "meta.text") or in a `column`,
    by its name or its number from 1.
    """

    per: DocumentUnit = "block"
    field: str | None = None
    column: str | int | None = None


def read_documents(
    paths: Sequence[Path], options: ReadOptions = ReadOptions()
) -> Iterator[Document]:
    """Stream the documents of files, folders and datasets that are not empty."""
    documents = read_files(find_files(paths), options, named={Path(path) for path in paths})
    return (document for document in documents if document.text.strip())


def read_files(
    files: Sequence[Path],
    options: ReadOptions,
    *,
    named: Collection[Path] = (),
    parts: Mapping[Path, ByteRange | None] | None = None,
) -> Iterator[Document]:
    """Stream the documents of files, empty ones too; a file that was `named` must have text.

    `parts` are the files that are read, each with a range of its bytes or None for all of them.
    """
    _check(options, files)
    ranges = dict.fromkeys(files) if parts is None else parts

    def read(path: Path) -> Iterator[Document]:
        part = ranges[path]
        return _read(path, options, named=part is None and path in named, part=part)

    return _naming_all_faults(list(ranges), read, read)


def read_leniently(
    path: Path, problems: FileProblems, options: ReadOptions = ReadOptions()
) -> Iterator[Document]:
    """Stream the documents of a file, empty ones too, and count what is wrong with it.

    Of JSON and tables every string is text, unless a field or column is chosen.
    """
    return _read(path, options, problems=problems)


def read_text_parts(
    paths: Sequence[Path],
    options: ReadOptions = ReadOptions(),
    *,
    progress: ReadProgress = lambda read, total: None,
    on_skip: OnSkip = lambda skipped: None,
) -> Iterator[str]:
    """Stream the text of the same documents, a long one in several parts.

    Memory is bounded however long a line is, for training a tokenizer, which needs no documents.
    """
    sizes, named = file_sizes(paths, on_skip=on_skip), {Path(path) for path in paths}
    _check(options, list(sizes))
    report = progress_reporter(sizes, progress)
    return _naming_all_faults(
        list(sizes),
        lambda path: _bounded_parts(path, options, named=path in named, report=report),
        lambda path: _read(path, options, named=path in named),
    )


def progress_reporter(
    sizes: Mapping[Path, int | None], progress: ReadProgress
) -> Callable[[Path, int], None]:
    """Return a function that reports the bytes read up to a place in a file."""
    known = [size or 0 for size in sizes.values()]
    before = dict(zip(sizes, accumulate(known, initial=0), strict=False))
    total = None if None in sizes.values() else sum(known)
    read = 0

    def report(source: Path, bytes_read: int) -> None:
        nonlocal read
        read = max(read, before[source] + bytes_read)
        progress(read, total)

    return report


def is_plain_text(path: Path) -> bool:
    """Return whether the lines of a document are lines of its file."""
    tables = (*JSON_SUFFIXES, *DELIMITED_SUFFIXES, *PARQUET)
    return content_suffix(path) not in tables and not is_dataset_name(path)


def _read(
    path: Path,
    options: ReadOptions,
    *,
    named: bool = False,
    problems: FileProblems | None = None,
    part: ByteRange | None = None,
) -> Iterator[Document]:
    held: list[str] = []
    size = 0
    for source, text, ends in _text_parts(path, options, named=named, problems=problems, part=part):
        held.append(text)
        size += len(text)
        if size > MAX_LINE_CHARS:
            raise source.too_long_error(source.document_line)
        if ends:
            yield Document("".join(held), path, source.place, source.document_line)
            held, size = [], 0


def _naming_all_faults(
    files: Sequence[Path], read: Callable[[Path], Iterator[T]], check: ReadFile
) -> Iterator[T]:
    """Read files in turn; the error about a faulty file also names the faulty ones after it."""
    for number, path in enumerate(files, 1):
        try:
            yield from read(path)
        except UserError as error:
            # The standard input and pipes can be read only once.
            faults, all_read = _faults([file for file in files[number:] if file.is_file()], check)
            if not faults:
                raise
            count = f"{len(faults) + 1:,} files{'' if all_read else ' or more'}"
            first = [str(error), *faults][:MAX_LISTED_FAULTS]
            left = "" if len(faults) < MAX_LISTED_FAULTS else ", the first of them"
            raise UserError(
                "\n".join([f"{count} cannot be read{left}:", *(f"  {fault}" for fault in first)])
            ) from error


def _faults(files: Sequence[Path], check: ReadFile) -> tuple[list[str], bool]:
    """Return the first fault of each file, and whether all were read, which takes bounded time."""
    faults: list[str] = []
    done = 0
    for path in files:
        try:
            for document in check(path):
                if done + document.bytes_read > MAX_CHECKED_BYTES:
                    return faults, False
        except UserError as error:
            faults.append(str(error))
        done += path.stat().st_size
        if done > MAX_CHECKED_BYTES:
            return faults, path == files[-1]
    return faults, True


def _bounded_parts(
    path: Path, options: ReadOptions, *, named: bool, report: Callable[[Path, int], None]
) -> Iterator[str]:
    rest = ""
    for source, text, ends in _text_parts(path, options, named=named):
        report(path, source.place)
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
    """Return the last position for a cut: before white space or after Chinese punctuation."""
    spaces = (text.rfind(mark, start + 1, stop) for mark in " \n\t")
    marks = (text.rfind(mark, start, stop) + 1 for mark in "。！？；，")
    last = max(*spaces, *marks)
    return last if last > start else stop


def _check(options: ReadOptions, files: Sequence[Path]) -> None:
    """Refuse a field or a column that no source has."""
    kinds = {_file_type(path, options) for path in files}
    tables = {*PARQUET, DATASET_PREFIX}
    if options.field is not None and not kinds & {*JSON_SUFFIXES, *tables}:
        raise UserError(f"--field {options.field}: only .jsonl, .json and .parquet have fields")
    if options.column is not None and not kinds & {*DELIMITED_SUFFIXES, *tables}:
        raise UserError(f"--column {options.column}: only .tsv, .csv and .parquet have columns")


def _file_type(path: Path, options: ReadOptions) -> str:
    """Return the type of a source by its name, of the standard input by the options."""
    if is_dataset_name(path):
        return DATASET_PREFIX
    if path == STDIN and options.column is not None:
        return ".tsv"
    if path == STDIN and options.field is not None:
        return ".jsonl"
    return content_suffix(path)


def _text_parts(
    path: Path,
    options: ReadOptions,
    *,
    named: bool = False,
    problems: FileProblems | None = None,
    part: ByteRange | None = None,
) -> Iterator[tuple[InputFile, str, bool]]:
    """Read a source in parts, and refuse one that was named and has no text."""
    # A dataset has no bytes here.
    opened = (
        nullcontext(InputFile(path, BytesIO()))
        if is_dataset_name(path)
        else open_input(path, part=part)
    )
    empty = True
    with opened as source:
        for text, ends in _texts(source, options, problems):
            empty = empty and not text.strip()
            yield source, text, ends
    # In a folder an empty file is no mistake: it has no documents.
    if empty and named:
        raise UserError(f"{source.name} is empty: pass a file with text")


def _texts(
    source: InputFile, options: ReadOptions, problems: FileProblems | None
) -> Iterator[TextPart]:
    """Read the text of each row of a table, or the blocks of a plain text."""
    kind = _file_type(source.path, options)
    field = DEFAULT_TEXT_FIELD if options.field is None else options.field
    column = field if options.column is None else options.column
    if kind == DATASET_PREFIX:
        rows = read_dataset(source, str(column))
    elif source.empty:
        return iter(())
    elif kind in DELIMITED_SUFFIXES:  # whose line ends are normalized
        return ((row, True) for row in read_delimited(source, options.column, problems))
    elif kind in PARQUET:
        rows = read_parquet(source, column)
    elif kind not in JSON_SUFFIXES:
        return _blocks(source, options.per, problems)
    elif problems is None:
        rows = read_jsonl(source, field)
    else:
        rows = read_json_strings(source, options.field, problems)
    return ((row.replace("\r\n", "\n"), True) for row in rows)


def _blocks(
    source: InputFile, per: DocumentUnit, problems: FileProblems | None
) -> Iterator[TextPart]:
    """Split text at its blank lines, or not at all, and yield the parts of each block."""
    rest, begun, line = "", False, 1  # on which `rest` begins
    for part in decoded_text(source, problems):
        text = rest + part
        if not begun:
            stripped = _LEADING.sub("", text)
            line += text.count("\n") - stripped.count("\n")
            text, source.document_line = stripped, line
        *ended, last = _BLANK.split(text) if per == "block" else [text]
        for block, separator in zip(ended[::2], ended[1::2], strict=True):
            yield block, True
            line += block.count("\n") + separator.count("\n")
            source.document_line, begun = line, False
        kept = last.rstrip()
        rest = last[len(kept) :]
        if len(rest) > MAX_BLANK_CHARS:  # no blank line is that long: it is text
            kept, rest = last, ""
        line += kept.count("\n")
        if kept:
            yield kept, False
            begun = True
    if begun:
        yield rest.partition("\n")[0], True
