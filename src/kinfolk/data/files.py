"""Find input files; open, decompress and decode them; split them into lines."""

import gzip
import io
import lzma
import os
import sys
import zlib
from codecs import utf_8_decode
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from glob import iglob
from pathlib import Path
from typing import IO, Any

from kinfolk.errors import UserError

STDIN = Path("-")
COMPRESSION_SUFFIXES = (".gz", ".xz", ".zst")
READ_BYTES = 1 << 20  # bytes read at once
MAX_LINE_CHARS = 1 << 28  # of one document, which is held in memory
MAX_LISTED_LINES = 5  # lines with invalid bytes that are listed


@dataclass
class FileProblems:
    """Counts of the problems of a file that is read leniently."""

    lines: int = 0
    blank: int = 0  # lines
    errors: int = 0  # sequences of bytes that are not UTF-8
    line_numbers: list[int] = field(default_factory=list)  # of the first of them
    invalid_json_lines: int = 0  # lines of a .jsonl file that are not JSON

    def count_errors(self, data: bytes, text: str, line: int) -> None:
        """Count what was decoded as U+FFFD, in data that begins on a line."""
        errors = text.count("\ufffd") - data.count(b"\xef\xbf\xbd")  # which is no error
        self.errors += errors
        for number, part in enumerate(data.split(b"\n") if errors else (), line):
            if len(self.line_numbers) < MAX_LISTED_LINES and number not in self.line_numbers:
                try:
                    part.decode()
                except UnicodeDecodeError:
                    self.line_numbers.append(number)

    def count_lines(self, parts: Iterable[str]) -> Iterator[str]:
        """Count the lines of text while it is passed on."""
        pending = visible = False  # the line in progress has characters, and some not blank
        for part in parts:
            *ended, last = part.split("\n")
            for line in ended:
                self.lines += 1
                self.blank += not (visible or line.strip())
                pending = visible = False
            pending, visible = pending or bool(last), visible or bool(last.strip())
            yield part
        self.lines += pending
        self.blank += pending and not visible


class InputFile:
    """A file while it is read: its bytes, the decompressed bytes, and the position of reading."""

    def __init__(self, path: Path, raw: IO[bytes]) -> None:
        self.path, self.raw = path, raw
        self.name = "standard input" if path == STDIN else str(path)
        self.place = 0  # bytes of the file read so far
        self.line = 1  # the line that decoding has reached
        self.document_line = 1  # the line on which the present document begins
        counted = io.BufferedReader(_CountingReader(self), 1 << 16)
        self.empty = not counted.peek(1)
        self.stream = _decompressed(counted, path)

    def too_long_error(self, line: int) -> UserError:
        """Return the error about a document that is too long."""
        return UserError(
            f"the document that begins on line {line:,} of {self.name} is longer than "
            f"{MAX_LINE_CHARS:,} characters: split it with blank lines, or into rows of a table"
        )


class _CountingReader(io.RawIOBase):
    """Counts the bytes that are read of a source."""

    def __init__(self, source: InputFile) -> None:
        self._source = source

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._source.raw.read(len(buffer))
        buffer[: len(data)] = data
        self._source.place += len(data)
        return len(data)


@contextmanager
def open_input(path: Path, read: Callable[[], bytes] | None = None) -> Iterator[InputFile]:
    """Open a file or the standard input; damage and denied access become user errors.

    `read` returns the bytes of a file that is in memory already.
    """
    try:
        if path == STDIN:
            yield InputFile(path, sys.stdin.buffer)
        else:
            with path.open("rb") if read is None else io.BytesIO(read()) as raw:
                yield InputFile(path, raw)
    except (gzip.BadGzipFile, lzma.LZMAError, zlib.error, EOFError) as error:
        raise UserError(f"{path} is corrupt or truncated ({error}): download it again") from error
    except OSError as error:
        raise UserError(
            f"{path} cannot be read ({error.strerror or error}): check its permissions"
        ) from error


def decoded_text(source: InputFile, problems: FileProblems | None = None) -> Iterator[str]:
    """Read text part by part, with Unix line ends.

    Invalid UTF-8 and NUL are errors; with `problems`, invalid bytes become U+FFFD and are counted.
    """
    text = normalize_newlines(decode_utf8(source, problems))
    return text if problems is None else problems.count_lines(text)


def decoded_lines(source: InputFile, problems: FileProblems | None = None) -> Iterator[str]:
    """Read the lines of a source, without their ends."""
    return iter_lines(source, decoded_text(source, problems))


def decode_utf8(source: InputFile, problems: FileProblems | None = None) -> Iterator[str]:
    """Decode a source part by part; a sequence of bytes that is cut waits for the next part."""
    rest, read, final = b"", 0, False
    while not final:
        part = source.stream.read(READ_BYTES)
        final, data = not part, rest + part
        try:
            text, used = utf_8_decode(data, "strict" if problems is None else "replace", final)
        except UnicodeDecodeError as error:
            line = source.line + data.count(b"\n", 0, error.start)
            raise UserError(
                f"{source.name} is not UTF-8 at byte {read + error.start:,} (line {line:,}): "
                "convert it first, for example with iconv -t utf-8"
            ) from error
        if problems is not None:
            problems.count_errors(data[:used], text, source.line)
        elif (nul := data.find(b"\0")) >= 0:
            line = source.line + data.count(b"\n", 0, nul)
            raise UserError(
                f"{source.name} holds a NUL byte on line {line:,}: it is not text, or not UTF-8; "
                "convert or remove it"
            )
        source.line += data.count(b"\n", 0, used)
        yield text.removeprefix("\ufeff") if read == 0 else text
        rest, read = data[used:], read + used


def normalize_newlines(parts: Iterable[str]) -> Iterator[str]:
    """Replace CRLF by LF, also where the two characters come in two parts."""
    held = ""
    for part in parts:
        text = held + part
        if "\r" in text:
            held = "\r" if text.endswith("\r") else ""
            text = text.removesuffix("\r").replace("\r\n", "\n")
        else:
            held = ""
        yield text


def iter_lines(source: InputFile, parts: Iterable[str]) -> Iterator[str]:
    """Split text into its lines, without their ends."""
    held: list[str] = []
    size, number = 0, 1
    for part in parts:
        first, *others = part.split("\n")
        held.append(first)
        size += len(first)
        if size > MAX_LINE_CHARS:
            raise source.too_long_error(number)
        if others:
            yield "".join(held)
            number += len(others)
            yield from others[:-1]
            held, size = [others[-1]], len(others[-1])
    if size:
        yield "".join(held)


def content_suffix(path: Path) -> str:
    """Return the suffix of a file without that of its compression, in lower case."""
    plain = path.with_suffix("") if path.suffix.lower() in COMPRESSION_SUFFIXES else path
    return plain.suffix.lower()


def _decompressed(raw: "io.BufferedReader[Any]", path: Path) -> io.BufferedIOBase:
    match path.suffix.lower():
        case ".gz":
            return gzip.GzipFile(fileobj=raw)
        case ".xz":
            return lzma.LZMAFile(raw)
        case ".zst":
            return io.BufferedReader(_Zstandard(raw, path))
        case _:
            return raw


class _Zstandard(io.RawIOBase):
    """Decompress, and raise when the file was cut short, which the library's reader does not."""

    def __init__(self, raw: IO[bytes], path: Path) -> None:
        try:
            import zstandard
        except ImportError as error:
            raise UserError(
                f"{path} needs the zstandard package: pip install 'kinfolk[zst]'"
            ) from error
        self._raw, self._library = raw, zstandard
        self._frame = zstandard.ZstdDecompressor().decompressobj()
        self._ready = memoryview(b"")
        self._begun = False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._ready:
            if self._frame.eof:
                rest = self._frame.unused_data
                self._frame = self._library.ZstdDecompressor().decompressobj()
                self._begun = False
            else:
                rest = b""
            part = rest or self._raw.read(1 << 16)
            if not part:
                if self._begun:
                    raise EOFError("the last frame has no end")
                return 0
            try:
                self._ready, self._begun = memoryview(self._frame.decompress(part)), True
            except self._library.ZstdError as error:
                raise EOFError(str(error)) from error
        size = min(len(buffer), len(self._ready))
        buffer[:size], self._ready = self._ready[:size], self._ready[size:]
        return size


TEXT = ("", ".txt", ".md")
JSON = (".jsonl", ".ndjson", ".json")
DELIMITED_SUFFIXES = (".tsv", ".csv")
PARQUET = (".parquet",)
DATASET_PREFIX = "hf:"
# In folders, a .json file is more often a settings file than text.
FOLDER_SUFFIXES = {*TEXT, *JSON, *DELIMITED_SUFFIXES, *PARQUET} - {".json"}


def is_dataset_name(path: Path) -> bool:
    """Return whether a path names a Hugging Face dataset."""
    return str(path).startswith(DATASET_PREFIX) and not path.exists()


def find_files(paths: Sequence[Path], *, any_suffix: bool = False) -> list[Path]:
    """List the inputs, each once: files, those of folders in sorted order, other sources.

    `-` is the standard input and `hf:NAME` a dataset; a pattern that the shell did not expand, such
    as `notes/**/*.txt`, means the same here. Of folders, files with the suffixes of text are
    listed, or with `any_suffix` all that are not hidden.
    """
    if not paths:
        raise UserError("no input files: pass files or folders of text")
    return list(dict.fromkeys(file for path in paths for file in _resolve(Path(path), any_suffix)))


def file_sizes(paths: Sequence[Path], *, any_suffix: bool = False) -> dict[Path, int | None]:
    """Return the inputs with their bytes, None where the size is not known before the end."""
    found = find_files(paths, any_suffix=any_suffix)
    return {path: path.stat().st_size if path.is_file() else None for path in found}


def _resolve(path: Path, any_suffix: bool) -> list[Path]:
    if path == STDIN or is_dataset_name(path):
        return [path]
    try:
        if path.exists() and not path.is_dir():
            return [path]
        matches = [path] if path.is_dir() else _expand_glob(path)
        folders = (_files_in_folder(p, any_suffix) if p.is_dir() else [p] for p in matches)
        found = [file for folder in folders for file in folder]
        if any(file.stat().st_size for file in found):
            return found
    except OSError as error:
        raise UserError(
            f"{error.filename or path} cannot be read ({error.strerror}): check its permissions"
        ) from error
    raise UserError(
        f"{path} holds no text: kinfolk reads .txt, .md, .jsonl, .tsv, .csv, .parquet and files "
        "without a suffix in folders, also with .gz, .xz or .zst; name other files one by one"
    )


def _files_in_folder(folder: Path, any_suffix: bool) -> list[Path]:
    """Return the files of a folder that hold text, none of them hidden."""
    found = [
        file
        for file in _walk(folder)
        if (any_suffix or content_suffix(file) in FOLDER_SUFFIXES) and file.is_file()
    ]
    return sorted(found, key=lambda file: file.relative_to(folder).parts)


def _walk(folder: Path) -> Iterator[Path]:
    def refused(error: OSError) -> None:
        raise error

    for inner, folders, names in os.walk(folder, onerror=refused):
        folders[:] = [name for name in folders if not name.startswith(".")]
        yield from (Path(inner, name) for name in names if not name.startswith("."))


def _expand_glob(pattern: Path) -> list[Path]:
    """Return the files and folders that a pattern matches."""
    if not any(mark in str(pattern) for mark in "*?["):
        raise UserError(f"{pattern} does not exist: pass a file or folder of text")
    # Path.glob would find hidden files, too.
    matches = [Path(match) for match in sorted(iglob(str(pattern), recursive=True))]  # noqa: PTH207
    if not matches:
        raise UserError(f"{pattern} matches no file: check the pattern")
    return matches
