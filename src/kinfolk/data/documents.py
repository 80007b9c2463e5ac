"""Read documents: blocks of text, whole files, rows of tables, Hugging Face datasets.

`read_documents` is strict: an invalid file is an error with a line number.
`read_leniently` reads a file to its end and counts its problems: bytes that are not UTF-8 become
U+FFFD, and a line that should be JSON and is not gives the strings in it.
"""

import csv
import json
import re
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from io import BytesIO
from itertools import accumulate
from pathlib import Path
from typing import IO, Any, Literal, TypeVar

from kinfolk.data.files import (
    COMPRESSION_SUFFIXES,
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
    decoded_lines,
    decoded_text,
    file_sizes,
    find_files,
    is_dataset_name,
    open_input,
)
from kinfolk.data.row_faults import MAX_CHECKED_BYTES, texts_of_rows
from kinfolk.errors import UserError

DEFAULT_TEXT_FIELD = "text"  # of a row, unless another is chosen
TEXT_COLUMNS = (  # usual names in the header of a table
    "sentence", "text", "review", "content", "comment", "document", "tweet", "body", "query",
    "文本", "句子", "内容", "正文", "评论", "评论内容", "评价", "评价内容", "标题", "问题",
)  # fmt: skip
MAX_CELL_CHARS = 1 << 26  # of a quoted cell; a longer one lacks its closing quote
PARQUET_BATCH_ROWS = 256  # of a Parquet file, held at once
PART = 1 << 20  # characters of a part, at most
MAX_BLANK_CHARS = 1 << 20  # white space that is held until text follows it
MAX_LISTED_FAULTS = 5  # files in one error
T = TypeVar("T")
_LEADING = re.compile(r"\A\s*\n")
_BLANK = re.compile(r"(\n\s*\n)")
_STRING = re.compile(r'("(?:[^"\\]|\\.)*+")(\s*+:)?')  # and whether it names a field

DocumentUnit = Literal["block", "file"]
TableLine = tuple[int, list[str]]  # the line on which it begins, and its cells
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
                "\n".join([f"{count} cannot be read{left}:", *map(_indented, first)])
            ) from error


def _indented(fault: str) -> str:
    return "\n".join(f"  {line}" for line in fault.splitlines())


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
        rows = _json_strings(source, options.field, problems)
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


def read_jsonl(
    source: InputFile, field: str = DEFAULT_TEXT_FIELD, *, allow_nul: bool = False
) -> Iterator[str]:
    """Read a field of the object on each line; "meta.text" is a field of a field."""

    def text_of(numbered: tuple[int, str]) -> str:
        source.document_line, line = numbered
        row = _parse_row(line, source.document_line, source.name)
        where = f"line {source.document_line:,} of {source.name}"
        return get_text(row, field, where, allow_nul=allow_nul)

    return texts_of_rows(source, _nonblank(decoded_lines(source)), text_of)


def _parse_row(line: str, number: int, file: str) -> Any:
    where = f"line {number:,} of {file}"
    try:
        return json.loads(line)
    except json.JSONDecodeError as error:
        raise UserError(
            f"{where} is not JSON ({error.msg}, column {error.colno}): write one object per "
            "line, for example with jq -c"
        ) from error
    except (ValueError, RecursionError) as error:  # a number too long, brackets too deep
        raise UserError(f"{where} is not valid JSON ({error}): remove the line") from error


def _json_strings(source: InputFile, field: str | None, problems: FileProblems) -> Iterator[str]:
    """Read the strings of each line, or those of one field."""
    # A .json file may be one value over many lines, none of which is valid alone.
    by_line = content_suffix(source.path) != ".json"
    for number, line in _nonblank(decoded_lines(source, problems)):
        source.document_line = number
        try:
            value = _parse_row(line, number, source.name)
        except UserError as error:
            if by_line:
                problems.refuse(error)
                problems.invalid_json_lines += 1
            strings = [_parse_json_string(s[1]) for s in _STRING.finditer(line) if not s[2]]
            if by_line or strings:
                yield "\n".join(strings if field is None else ())
        else:
            if by_line:
                try:
                    get_text(
                        value, field or DEFAULT_TEXT_FIELD, f"line {number:,} of {source.name}"
                    )
                except UserError as error:
                    problems.refuse(error)
            for name in field.split(".") if field else ():
                value = value.get(name) if isinstance(value, dict) else None
            yield "\n".join(_strings(value))


def _parse_json_string(quoted: str) -> str:
    try:
        return str(json.loads(quoted))
    except ValueError:
        return quoted[1:-1]


def _strings(value: Any) -> Iterator[str]:
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, str):
            yield item
        elif isinstance(item, dict | list):
            waiting += reversed(list(item.values() if isinstance(item, dict) else item))


def _nonblank(lines: Iterator[str]) -> Iterator[tuple[int, str]]:
    return ((number, line) for number, line in enumerate(lines, 1) if line and not line.isspace())


def read_delimited(
    source: InputFile, column: str | int | None = None, problems: FileProblems | None = None
) -> Iterator[str]:
    """Read a column by its number, from 1, or by its name in the first row.

    Without either, the first row of a table of one column is no text where it is a usual name.
    With `problems`, no column means all of them, and a row may be too short.
    """
    read_rows = read_csv_rows if content_suffix(source.path) == ".csv" else read_tsv_rows
    rows = read_rows(source, problems)
    if problems is not None and column is None:
        for source.document_line, cells in rows:
            yield "\n".join(cells)
        return
    first = next(rows, None)
    if first is None:
        return
    index = _column_index(first[1], column, source.name)
    named = column is None and first[1][index].strip().lower() in TEXT_COLUMNS
    if not named and not is_column_name(column):
        source.document_line = first[0]
        yield first[1][index]

    def text_of(row: TableLine) -> str:
        source.document_line, cells = row
        if index < len(cells):
            return cells[index]
        error = UserError(
            f"line {source.document_line:,} of {source.name} has no column {index + 1}, it is too "
            "short: fix the row, or choose another --column"
        )
        if problems is None:
            raise error
        problems.refuse(error)
        return ""

    yield from texts_of_rows(source, rows, text_of)


def read_parquet(source: InputFile, column: str | int = DEFAULT_TEXT_FIELD) -> Iterator[str]:
    """Read a column, a few hundred rows at a time; "meta.text" is a field of a struct."""
    try:
        from pyarrow import lib
        from pyarrow.parquet import ParquetFile
    except ImportError as error:
        raise UserError(
            f"{source.name} needs the pyarrow package: pip install 'kinfolk[parquet]'"
        ) from error
    size = source.path.stat().st_size
    with _seekable_file(source) as file:
        try:
            table = ParquetFile(file, buffer_size=1 << 20, pre_buffer=False)
            names = table.schema_arrow.names
            name = str(column)
            if not is_column_name(column):
                name = names[_column_index(names, column, source.name)]
            if name not in names and name.split(".")[0] not in names:
                raise missing_name_error(name, names, source.name)

            def read_rows() -> Iterator[Any]:
                done = 0
                for batch in table.iter_batches(PARQUET_BATCH_ROWS, columns=[name]):
                    source.place = size * (done + len(batch)) // table.metadata.num_rows
                    yield from enumerate(batch.to_pylist(), done + 1)
                    done += len(batch)

            def text_of(row: tuple[int, Any]) -> str:
                source.document_line, value = row
                return get_text(value, name, f"row {source.document_line:,} of {source.name}")

            yield from texts_of_rows(source, read_rows(), text_of)
        except (lib.ArrowException, OSError, UnicodeDecodeError) as error:
            reason = str(error).partition("\n")[0]
            raise UserError(
                f"{source.name} is not a valid Parquet file ({reason}): download it again"
            ) from error


def get_text(row: Any, field: str, where: str, *, allow_nul: bool = False) -> str:
    """Return the text of a field of a row, if it can be written as UTF-8."""
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
        remedy = "choose another --field"
        if value is None:
            remedy = (
                f"remove the {where.split()[0]}, or name another --field if the text is elsewhere"
            )
        raise UserError(f"{field!r} in {where} is {_json_type(value)}, not text: {remedy}")
    if "\0" in value and not allow_nul:
        raise UserError(f"{field!r} in {where} holds a NUL character: it is not text; leave it out")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise UserError(
            f"{field!r} in {where} contains a lone surrogate ({value[error.start]!r}), "
            "which is not valid Unicode: fix it, or leave it out"
        ) from error
    return value


def is_column_name(column: str | int | None) -> bool:
    """Return whether a column is given by name; digits are a number."""
    return isinstance(column, str) and not column.lstrip("-").isdecimal()


def missing_name_error(name: str, names: list[str], where: str) -> UserError:
    """Return the error about a missing name, with those that there are."""
    rest = f"choose one of {_listed(names)}" if names else "nothing is there"
    return UserError(f"{where} has no {name!r}: {rest}")


def _column_index(first: list[str], column: str | int | None, name: str) -> int:
    """Return the index of a column by the first row, from 0."""
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


def read_tsv_rows(source: InputFile, problems: FileProblems | None = None) -> Iterator[TableLine]:
    """Split lines at tabs and nothing else: quotes are text, as in most published files."""
    for number, line in enumerate(decoded_lines(source, problems), 1):
        if line:
            yield number, line.split("\t")


def read_csv_rows(source: InputFile, problems: FileProblems | None = None) -> Iterator[TableLine]:
    """Read comma-separated values, whose quotes may hold commas and line ends."""
    csv.field_size_limit(MAX_CELL_CHARS)
    # Not strict, a forgotten quote would take the rest of the file without an error.
    lines = (line + "\n" for line in decoded_lines(source, problems))
    reader = csv.reader(lines, strict=problems is None)
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
    """Return a file that can be read in any order: a compressed one is unpacked on disk."""
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
    """Return the type of a JSON value in words."""
    kinds = {dict: "an object", list: "a list", str: "text", bool: "true or false", bytes: "bytes"}
    return "null" if value is None else kinds.get(type(value), "a number")


def read_dataset(source: InputFile, field: str = DEFAULT_TEXT_FIELD) -> Iterator[str]:
    """Read a field of each row; rows are fetched as they are read."""
    path = source.path
    try:
        from datasets import load_dataset
    except ImportError as error:
        raise UserError(f"{path} needs the datasets package: pip install 'kinfolk[hub]'") from error
    name, part, split = parse_dataset_name(path)
    rows = _call_datasets(path, lambda: iter(load_dataset(name, part, split=split, streaming=True)))
    number = 0
    while (row := _call_datasets(path, lambda: next(rows, None))) is not None:
        number += 1
        text = get_text(row, field, f"row {number:,} of {path}")
        source.place += len(text.encode())
        source.document_line = number
        yield text


def parse_dataset_name(path: Path) -> tuple[str, str | None, str]:
    """Return the dataset (or its folder), its configuration and its split.

    hf:allenai/c4/en:validation gives ("allenai/c4", "en", "validation").
    """
    name, _, split = str(path).removeprefix(DATASET_PREFIX).partition(":")
    owner, *rest = name.split("/", 2)
    if Path(name).is_dir() or len(rest) < 2:
        return name, None, split or "train"
    return f"{owner}/{rest[0]}", rest[1], split or "train"


def _call_datasets(path: Path, call: Callable[[], Any]) -> Any:
    """Call the library, which raises many kinds of exceptions, and convert them to UserError."""
    try:
        return call()
    except Exception as error:
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise UserError(
            f"{path} cannot be read ({reason}): check the network and the address, "
            "hf:OWNER/NAME/CONFIGURATION:SPLIT"
        ) from error
