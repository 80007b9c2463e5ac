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
from glob import iglob
from pathlib import Path
from typing import IO, Any

from kinfolk.errors import UserError

STDIN = Path("-")
COMPRESSION_SUFFIXES = (".gz", ".xz", ".zst")
READ_BYTES = 1 << 20  # bytes read at once
MAX_LINE_CHARS = 1 << 28  # characters of one document: it is held in memory whole


class InputFile:
    """A file while it is read: its own bytes, those bytes decompressed, and how far reading is."""

    def __init__(self, path: Path, raw: IO[bytes]) -> None:
        self.path, self.raw = path, raw
        self.name = "standard input" if path == STDIN else str(path)
        self.place = 0  # bytes of the file read so far
        self.line = 1  # the line that decoding has reached
        self.document_line = 1  # the line on which the present document began
        counted = io.BufferedReader(_CountingReader(self), 1 << 16)
        self.empty = not counted.peek(1)
        self.stream = _decompressed(counted, path)

    def too_long_error(self, line: int) -> UserError:
        """Say that what begins on a line is too long to be held."""
        return UserError(
            f"the document that begins on line {line:,} of {self.name} is longer than "
            f"{MAX_LINE_CHARS:,} characters: part it with blank lines, or into rows of a table"
        )


class _CountingReader(io.RawIOBase):
    """The bytes of a source, counted."""

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
    """Open a file or the standard input, and say in a sentence what is wrong with it.

    `read` returns the bytes of a file that is in memory already.
    """
    try:
        if path == STDIN:
            yield InputFile(path, sys.stdin.buffer)
        else:
            with path.open("rb") if read is None else io.BytesIO(read()) as raw:
                yield InputFile(path, raw)
    except (gzip.BadGzipFile, lzma.LZMAError, zlib.error, EOFError) as error:
        raise UserError(f"{path} is damaged or cut short ({error}): fetch it again") from error
    except OSError as error:
        raise UserError(
            f"{path} cannot be read ({error.strerror or error}): check its rights"
        ) from error


def decode_utf8(source: InputFile) -> Iterator[str]:
    """Decode a source part by part; a sequence of bytes that is cut waits for the next part."""
    rest, read, final = b"", 0, False
    while not final:
        part = source.stream.read(READ_BYTES)
        final, data = not part, rest + part
        try:
            text, used = utf_8_decode(data, "strict", final)
        except UnicodeDecodeError as error:
            line = source.line + data.count(b"\n", 0, error.start)
            raise UserError(
                f"{source.name} is not UTF-8 at byte {read + error.start:,} (line {line:,}): "
                "convert it first, for example with iconv -t utf-8"
            ) from error
        if (nul := data.find(b"\0")) >= 0:
            line = source.line + data.count(b"\n", 0, nul)
            raise UserError(
                f"{source.name} holds a NUL byte on line {line:,}: it is not text, or not UTF-8; "
                "convert it, or leave it out"
            )
        source.line += data.count(b"\n", 0, used)
        yield text.removeprefix("\ufeff") if read == 0 else text
        rest, read = data[used:], read + used


def normalize_newlines(parts: Iterable[str]) -> Iterator[str]:
    """Let every line end as on Unix, also where its two characters come in two parts."""
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
    """Cut text into its lines, without their ends."""
    held: list[str] = []
    size, number = 0, 1
    for part in parts:
        first, *whole = part.split("\n")
        held.append(first)
        size += len(first)
        if size > MAX_LINE_CHARS:
            raise source.too_long_error(number)
        if whole:
            yield "".join(held)
            number += len(whole)
            yield from whole[:-1]
            held, size = [whole[-1]], len(whole[-1])
    if size:
        yield "".join(held)


def content_suffix(path: Path) -> str:
    """Return what a file's name says of its contents, in lower case and uncompressed."""
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
    """Decompress, and say when the file was cut short: the library's own reader keeps silent."""

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
# In folders, a .json file is more often somebody's settings than text.
FOLDER_SUFFIXES = {*TEXT, *JSON, *DELIMITED_SUFFIXES, *PARQUET} - {".json"}


def is_dataset_name(path: Path) -> bool:
    """Return whether a path names a Hugging Face dataset."""
    return str(path).startswith(DATASET_PREFIX) and not path.exists()


def find_files(paths: Sequence[Path]) -> list[Path]:
    """List what is to be read, each once: files, those of folders in sorted order, other sources.

    `-` is the standard input and `hf:NAME` a dataset; a pattern that the shell left alone, such as
    `notes/**/*.txt`, means what it means there.
    """
    if not paths:
        raise UserError("no text was named: give files or folders of text")
    return list(dict.fromkeys(file for path in paths for file in _within(Path(path))))


def file_sizes(paths: Sequence[Path]) -> dict[Path, int | None]:
    """Return the bytes of each of them, None where nobody knows before the end."""
    return {path: path.stat().st_size if path.is_file() else None for path in find_files(paths)}


def _within(path: Path) -> list[Path]:
    if path == STDIN or is_dataset_name(path):
        return [path]
    try:
        if path.exists() and not path.is_dir():
            return [path]
        found = _files_in_folder(path) if path.is_dir() else _expand_glob(path)
        if any(file.stat().st_size for file in found):
            return found
    except OSError as error:
        raise UserError(
            f"{error.filename or path} cannot be read ({error.strerror}): check its rights"
        ) from error
    raise UserError(
        f"{path} holds no text: kinfolk reads .txt, .md, .jsonl, .tsv, .csv, .parquet and files "
        "without a suffix in folders, also with .gz, .xz or .zst; name other files one by one"
    )


def _files_in_folder(folder: Path) -> list[Path]:
    """Find the files of a folder that hold text, none of them hidden."""
    found = [
        file for file in _walk(folder) if content_suffix(file) in FOLDER_SUFFIXES and file.is_file()
    ]
    return sorted(found, key=lambda file: file.relative_to(folder).parts)


def _walk(folder: Path) -> Iterator[Path]:
    def refused(error: OSError) -> None:
        raise error

    for inner, folders, names in os.walk(folder, onerror=refused):
        folders[:] = [name for name in folders if not name.startswith(".")]
        yield from (Path(inner, name) for name in names if not name.startswith("."))


def _expand_glob(pattern: Path) -> list[Path]:
    """Find what a pattern matches; the files of a folder that it matches, too."""
    if not any(mark in str(pattern) for mark in "*?["):
        raise UserError(f"{pattern} does not exist: give a file or folder of text")
    # Path.glob would find hidden files, too.
    matches = [Path(match) for match in sorted(iglob(str(pattern), recursive=True))]  # noqa: PTH207
    if not matches:
        raise UserError(f"{pattern} matches nothing: check the pattern, or name files")
    return [
        file for path in matches for file in (_files_in_folder(path) if path.is_dir() else [path])
    ]
