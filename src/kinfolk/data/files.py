"""Find input files; open, decompress and decode them; split them into lines."""

import bz2
import codecs
import gzip
import io
import lzma
import os
import re
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from glob import iglob
from pathlib import Path
from typing import IO, Any

from kinfolk.errors import UserError

STDIN = Path("-")
ENCODING_SAMPLE = 1 << 16  # bytes by which an encoding is recognised
NON_ASCII_BYTES = re.compile(rb"[\x80-\xff]+")
COMPRESSION_SUFFIXES = (".gz", ".bz2", ".xz", ".zst")
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
    refusal: str = ""  # the first error that the strict reader raises

    def refuse(self, error: UserError) -> None:
        """Keep the error that the strict reader raises, if it is the first."""
        self.refusal = self.refusal or str(error)

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


@dataclass(frozen=True)
class ByteRange:
    """The bytes of a file from `start` up to `stop`, which begin and end between documents."""

    start: int
    stop: int


class InputFile:
    """A file while it is read: its bytes, the decompressed bytes, and the position of reading."""

    def __init__(self, path: Path, raw: IO[bytes], part: ByteRange | None = None) -> None:
        self.path, self.raw = path, raw
        self.name = "standard input" if path == STDIN else str(path)
        self.start = 0 if part is None else part.start
        self.size = None if part is None else part.stop - part.start  # None: up to the end
        if part is not None:
            raw.seek(part.start)
            self.name += f" (lines counted from byte {part.start:,})" if part.start else ""
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
        size = len(buffer)
        if self._source.size is not None:
            size = min(size, self._source.size - self._source.place)
        data = self._source.raw.read(size)
        buffer[: len(data)] = data
        self._source.place += len(data)
        return len(data)


@contextmanager
def open_input(
    path: Path, read: Callable[[], bytes] | None = None, part: ByteRange | None = None
) -> Iterator[InputFile]:
    """Open a file, a part of it or the standard input; damage and denied access are user errors.

    `read` returns the bytes of a file that is in memory already.
    """
    try:
        if path == STDIN:
            yield InputFile(path, sys.stdin.buffer)
        else:
            with path.open("rb") if read is None else io.BytesIO(read()) as raw:
                yield InputFile(path, raw, part)
    except (gzip.BadGzipFile, lzma.LZMAError, zlib.error, EOFError) as error:
        raise UserError(f"{path} is corrupt or truncated ({error}): download it again") from error
    except OSError as error:
        if error.errno is None:  # of bz2
            raise UserError(f"{path} is corrupt ({error}): download it again") from error
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
        # A part of a file is read in the blocks in which the whole is.
        part = source.stream.read(READ_BYTES - (source.start + read + len(rest)) % READ_BYTES)
        final, data = not part, rest + part
        try:
            text, used = codecs.utf_8_decode(data, "strict", final)
        except UnicodeDecodeError as error:
            line = source.line + data.count(b"\n", 0, error.start)
            byte = source.start + read + error.start
            fault = UserError(
                f"{source.name} is not UTF-8 at byte {byte:,} (line {line:,}): {remedy(data)}"
            )
            if problems is None:
                raise fault from error
            problems.refuse(fault)
            text, used = codecs.utf_8_decode(data, "replace", final)
        if (nul := data.find(b"\0")) >= 0:
            line = source.line + data.count(b"\n", 0, nul)
            fault = UserError(
                f"{source.name} holds a NUL byte on line {line:,}: it is not text, or not UTF-8; "
                "convert or remove it"
            )
            if problems is None:
                raise fault
            problems.refuse(fault)
        if problems is not None:
            problems.count_errors(data[:used], text, source.line)
        source.line += data.count(b"\n", 0, used)
        yield text.removeprefix("\ufeff") if source.start + read == 0 else text
        rest, read = data[used:], read + used


def remedy(data: bytes) -> str:
    """Return what to do with a file that is not UTF-8, by its bytes."""
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "convert it first, with iconv -f utf-16 -t utf-8"
    if b"\0" in data:
        return "it is a binary file; give a file of text"
    head = data[:ENCODING_SAMPLE]
    text = head.decode(errors="replace")
    damaged = text.count("\ufffd")
    if sum(char > "\x7f" for char in text) > 2 * damaged:
        return (
            "the text around it is UTF-8; fix it, or leave it out with iconv -c -f utf-8 -t utf-8"
        )
    if is_gbk(head):
        return "it may be Chinese in GBK; convert it first, with iconv -f gb18030 -t utf-8"
    return (
        "convert it first, with iconv -f ENCODING -t utf-8, where ENCODING is that of the file, "
        "such as latin1"
    )


def is_gbk(data: bytes) -> bool:
    """Return whether bytes can be Chinese in GBK: most characters have two bytes above 127.

    In Latin alphabets such bytes stand alone, and words of others have odd numbers of them.
    """
    runs = [len(run) for run in NON_ASCII_BYTES.findall(data)]
    try:
        codecs.getincrementaldecoder("gb18030")().decode(data)
    except UnicodeDecodeError:
        return False
    return sum(length for length in runs if length > 1) > 0.9 * sum(runs)


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
        case ".bz2":
            return bz2.BZ2File(raw)
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


TEXT_SUFFIXES = (".txt", ".md")
JSON_SUFFIXES = (".jsonl", ".ndjson", ".json")
DELIMITED_SUFFIXES = (".tsv", ".csv")
PARQUET = (".parquet",)
DATASET_PREFIX = "hf:"
# Files of a folder with these suffixes are read, and one that is not valid is an error.
FOLDER_SUFFIXES = {*TEXT_SUFFIXES, *JSON_SUFFIXES, *DELIMITED_SUFFIXES, *PARQUET} - {".json"}
# Files of a folder that are text, but seldom prose: they are read where they are named.
MARKUP, CODE = "markup or JSON", "source code or settings"
NAMED_ONLY = {
    **dict.fromkeys((".json", ".html", ".htm", ".xhtml", ".xml", ".svg", ".css"), MARKUP),
    **dict.fromkeys((".py", ".ipynb", ".js", ".ts", ".c", ".h", ".cc", ".cpp", ".java"), CODE),
    **dict.fromkeys((".go", ".rs", ".sh", ".yaml", ".yml", ".toml", ".ini", ".cfg", ".conf"), CODE),
}
DETECTION_BYTES = 1 << 16  # of a file with another suffix, from which text is told
MAX_BLANK_BYTES = 1 << 10  # of a file that is opened to see whether it has any text
MAX_SHOWN_NAMES = 3  # of skipped files, for each reason


@dataclass(frozen=True)
class SkippedFile:
    """A file or link in an input folder that is not read."""

    path: Path
    reason: str


def skipped_summary(skipped: Sequence[SkippedFile]) -> str:
    """Return the number of skipped files for each reason: "2 not text in UTF-8 (a.pdf, b.png)"."""
    by_reason: dict[str, list[str]] = {}
    for file in skipped:
        by_reason.setdefault(file.reason, []).append(file.path.name)
    return ", ".join(
        f"{len(names):,} {reason} ("
        + ", ".join([*names[:MAX_SHOWN_NAMES], *(["..."] if len(names) > MAX_SHOWN_NAMES else [])])
        + ")"
        for reason, names in by_reason.items()
    )


def is_dataset_name(path: Path) -> bool:
    """Return whether a path names a Hugging Face dataset."""
    return str(path).startswith(DATASET_PREFIX) and not path.exists()


OnSkip = Callable[[SkippedFile], None]  # receives the files of folders that are not read


def find_files(
    paths: Sequence[Path],
    *,
    any_suffix: bool = False,
    max_files: int | None = None,
    on_skip: OnSkip = lambda skipped: None,
) -> list[Path]:
    """List the inputs, each once: files, those of folders in sorted order, other sources.

    `-` is the standard input and `hf:NAME` a dataset; a pattern that the shell did not expand, such
    as `notes/**/*.txt`, means the same here. Of folders, also linked ones, the files that hold text
    are listed; `on_skip` receives the others, but for hidden ones. With `any_suffix`, markup, JSON
    and source code are text too.
    """
    if not paths:
        raise UserError("no input files: pass files or folders of text")
    listing = _FolderListing(any_suffix, max_files, on_skip)
    return list(dict.fromkeys(file for path in paths for file in _resolve(Path(path), listing)))


def file_sizes(
    paths: Sequence[Path],
    *,
    any_suffix: bool = False,
    max_files: int | None = None,
    on_skip: OnSkip = lambda skipped: None,
) -> dict[Path, int | None]:
    """Return the inputs with their bytes, None where the size is not known before the end."""
    found = find_files(paths, any_suffix=any_suffix, max_files=max_files, on_skip=on_skip)
    return {path: path.stat().st_size if path.is_file() else None for path in found}


def _resolve(path: Path, listing: "_FolderListing") -> list[Path]:
    if path == STDIN or is_dataset_name(path):
        return [path]
    skipped: list[SkippedFile] = []
    try:
        if path.exists() and not path.is_dir():
            return [path]
        matches = [path] if path.is_dir() else _expand_glob(path)
        folders = (listing.files(p, skipped) if p.is_dir() else [p] for p in matches)
        found = [file for folder in folders for file in folder]
        if any(file.stat().st_size for file in found):
            for file in skipped:
                listing.on_skip(file)
            return found
    except OSError as error:
        raise UserError(
            f"{error.filename or path} cannot be read ({error.strerror}): check its permissions"
        ) from error
    left_out = f" (left out: {skipped_summary(skipped)})" if skipped else ""
    raise UserError(
        f"{path} holds no text{left_out}: kinfolk reads UTF-8 text, .jsonl, .tsv, .csv and "
        ".parquet in folders, also with .gz, .bz2, .xz or .zst; name other files one by one"
    )


@dataclass(frozen=True)
class _FolderListing:
    """How the files of folders are listed."""

    any_suffix: bool
    max_files: int | None
    on_skip: OnSkip

    def files(self, folder: Path, skipped: list[SkippedFile]) -> list[Path]:
        """Return the files of a folder that hold text, none of them hidden; list the others."""
        links: list[SkippedFile] = []
        names: list[Path] = []
        for file in _walk(folder, links):
            names.append(file)
            if self.max_files is not None and len(names) > self.max_files:
                raise UserError(
                    f"{folder} has more than {self.max_files:,} files: name the files, or a folder "
                    "with fewer"
                )
        names.sort(key=lambda file: file.relative_to(folder).parts)
        reasons = [(file, self._reason_to_skip(file)) for file in names]
        links += [SkippedFile(file, reason) for file, reason in reasons if reason]
        skipped += sorted(links, key=lambda link: link.path.relative_to(folder).parts)
        return [file for file, reason in reasons if reason is None]

    def _reason_to_skip(self, file: Path) -> str | None:
        if not file.is_file():
            return "broken link" if file.is_symlink() else "no regular file"
        suffix = content_suffix(file)
        if suffix in FOLDER_SUFFIXES:
            return None
        if suffix in NAMED_ONLY and not self.any_suffix:
            return NAMED_ONLY[suffix]
        return None if not file.stat().st_size or is_text(file) else "not text in UTF-8"


def is_blank(file: Path, size: int | None) -> bool:
    """Return whether a file of this size is empty, or small and of white space alone."""
    if size is None or size > MAX_BLANK_BYTES:
        return False
    try:
        return size == 0 or not file.read_bytes().strip()
    except OSError:  # the error is raised when the file is read
        return False


def is_text(file: Path) -> bool:
    """Return whether a file begins with UTF-8 and no NUL."""
    try:
        with open_input(file) as source:
            data = source.stream.read(DETECTION_BYTES)
        codecs.utf_8_decode(data, "strict", len(data) < DETECTION_BYTES)
    except (UserError, UnicodeDecodeError):
        return False
    return b"\0" not in data


def _walk(folder: Path, skipped: list[SkippedFile]) -> Iterator[Path]:
    """Yield the files of a folder, then those of the folders that it links to, each once."""

    def refused(error: OSError) -> None:
        raise error

    root, seen, pending = folder.resolve(), set[tuple[int, int]](), [folder]
    while pending:
        start = pending.pop(0)
        if start != folder and root.is_relative_to(start.resolve()):
            skipped.append(SkippedFile(start, "link to a folder that contains it"))
            continue
        if start != folder and _identity(start) in seen:
            skipped.append(SkippedFile(start, "link to a folder that is read already"))
            continue
        for inner, folders, names in os.walk(start, onerror=refused):
            if _identity(Path(inner)) in seen:
                folders.clear()
                continue
            seen.add(_identity(Path(inner)))
            visible = [Path(inner, name) for name in sorted(folders) if not name.startswith(".")]
            pending += [path for path in visible if path.is_symlink()]
            folders[:] = [path.name for path in visible]
            yield from (Path(inner, name) for name in names if not name.startswith("."))


def _identity(folder: Path) -> tuple[int, int]:
    status = folder.stat()
    return status.st_dev, status.st_ino


def _expand_glob(pattern: Path) -> list[Path]:
    """Return the files and folders that a pattern matches."""
    if not any(mark in str(pattern) for mark in "*?["):
        raise UserError(f"{pattern} does not exist: pass a file or folder of text")
    # Path.glob would find hidden files, too.
    matches = [Path(match) for match in sorted(iglob(str(pattern), recursive=True))]  # noqa: PTH207
    if not matches:
        raise UserError(f"{pattern} matches no file: check the pattern")
    return matches
