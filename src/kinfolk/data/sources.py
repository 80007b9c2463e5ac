"""Text files, plain or compressed, as a stream of documents."""

import gzip
import io
import lzma
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal

from kinfolk.errors import UserError

Per = Literal["block", "file"]

SUFFIXES = ("", ".txt", ".md")
COMPRESSED = (".gz", ".xz", ".zst")


@dataclass(frozen=True)
class Document:
    """One text, the file it came from, and how many bytes of that file were read by its end."""

    text: str
    source: Path
    place: int


def documents(paths: Sequence[Path], *, per: Per = "block") -> Iterator[Document]:
    """Stream the documents of files and folders: one a block between blank lines, or one a file."""
    found, named = files(paths), {Path(path) for path in paths}
    return (document for path in found for document in _read(path, per, named=path in named))


def files(paths: Sequence[Path]) -> list[Path]:
    """List the files to read: those named, and in folders every text file, in sorted order."""
    if not paths:
        raise UserError("no text was named: give files or folders of text")
    return [file for path in paths for file in _within(Path(path))]


def _within(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise UserError(f"{path} does not exist: give a file or folder of text")
    inside = sorted(path.rglob("*"), key=lambda file: file.relative_to(path).parts)
    found = [file for file in inside if _textual(file.relative_to(path)) and file.is_file()]
    if not any(file.stat().st_size for file in found):
        raise UserError(
            f"{path} holds no text: kinfolk reads .txt, .md and files without a suffix in folders, "
            "also with .gz, .xz or .zst; name other files one by one"
        )
    return found


def _textual(path: Path) -> bool:
    stem = path.with_suffix("") if path.suffix in COMPRESSED else path
    return stem.suffix in SUFFIXES and not any(part.startswith(".") for part in path.parts)


def _read(path: Path, per: Per, *, named: bool) -> Iterator[Document]:
    empty = True
    with _opened(path) as (raw, stream):
        lines = _lines(stream, path)
        for text in _blocks(lines) if per == "block" else _whole(lines):
            empty = False
            yield Document(text, path, raw.tell())
    # In a folder an empty file is no mistake: it has no documents.
    if empty and named:
        raise UserError(f"{path} is empty: give a file with text in it")


def _blocks(lines: Iterable[str]) -> Iterator[str]:
    block: list[str] = []
    for line in lines:
        if line.strip():
            block.append(line)
        elif block:
            yield "\n".join(block)
            block = []
    if block:
        yield "\n".join(block)


def _whole(lines: Iterable[str]) -> Iterator[str]:
    text = "\n".join(lines).strip("\n")
    if text.strip():
        yield text


def _lines(stream: IO[bytes], path: Path) -> Iterator[str]:
    """Decode line by line: memory follows the longest line, and an error knows its byte."""
    read = 0
    for line in stream:
        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError as error:
            raise UserError(
                f"{path} is not UTF-8 at byte {read + error.start:,}: convert it first, for "
                "example with iconv -t utf-8"
            ) from error
        text = text.removeprefix("\ufeff") if read == 0 else text
        yield text.removesuffix("\n").removesuffix("\r")
        read += len(line)


@contextmanager
def _opened(path: Path) -> Iterator[tuple[IO[bytes], IO[bytes]]]:
    """Open a file twice over: its own bytes, and those bytes decompressed."""
    try:
        with path.open("rb") as raw, _decompressed(raw, path) as stream:
            yield raw, stream
    except (gzip.BadGzipFile, lzma.LZMAError, zlib.error, EOFError) as error:
        raise UserError(f"{path} is damaged or cut short ({error}): fetch it again") from error
    except OSError as error:
        raise UserError(
            f"{path} cannot be read ({error.strerror or error}): check its rights"
        ) from error


def _decompressed(raw: IO[bytes], path: Path) -> IO[bytes]:
    if path.suffix == ".gz":
        return gzip.open(raw)  # type: ignore[return-value]
    if path.suffix == ".xz":
        return lzma.open(raw)
    if path.suffix == ".zst":
        return io.BufferedReader(_Zstandard(raw, path))
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
        self._ready = b""
        self._begun = False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "memoryview[int]") -> int:  # type: ignore[override]
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
                self._ready, self._begun = self._frame.decompress(part), True
            except self._library.ZstdError as error:
                raise EOFError(str(error)) from error
        size = min(len(buffer), len(self._ready))
        buffer[:size], self._ready = self._ready[:size], self._ready[size:]
        return size
