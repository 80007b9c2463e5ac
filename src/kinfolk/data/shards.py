"""Shards of a corpus: which bytes of which files belong to each, and what a shard records.

The input files in their order are cut into n parts of the same number of bytes. A document belongs
to the part in which it begins. Plain text in blocks and JSON lines are cut inside a file; a
compressed file, a table and a file that is one document belong whole to the part in which they
begin.
"""

import json
import re
from base64 import b64decode, b64encode
from codecs import getincrementaldecoder
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import IO, Any

import numpy as np

from kinfolk.data.corpus import SHARD_FILE
from kinfolk.data.dedup import (
    PREVIEW_CHARS,
    DocumentFilter,
    Dropped,
    ExactDeduplicator,
    OnDrop,
    Signature,
    minhash_signature,
)
from kinfolk.data.documents import MAX_BLANK_CHARS, Document, ReadOptions, is_plain_text
from kinfolk.data.files import COMPRESSION_SUFFIXES, JSON_SUFFIXES, ByteRange, content_suffix
from kinfolk.errors import UserError
from kinfolk.files import new_file

SHARD_VERSION = 1
MAX_SHARDS = 100_000
LINE_BYTES = 1 << 16  # of a line, read at once

FileParts = Mapping[Path, ByteRange | None]  # None is the whole file


@dataclass(frozen=True)
class Shard:
    """One of several parts of the input, counted from 1."""

    number: int
    count: int

    @classmethod
    def parse(cls, text: str) -> "Shard":
        """Read "2/8", the second of eight."""
        found = re.fullmatch(r"(\d{1,9})/(\d{1,9})", text, re.ASCII)
        shard = cls(int(found[1]), int(found[2])) if found else cls(0, 0)
        if not 1 <= shard.number <= shard.count <= MAX_SHARDS:
            raise UserError(
                f"shard {text}: it must be i/n with i from 1 to n and n up to {MAX_SHARDS:,}, "
                "e.g. 2/8"
            )
        return shard

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"

    def parts(self, sizes: Mapping[Path, int | None], options: ReadOptions) -> FileParts:
        """Return the files of this shard, each with the range of its bytes."""
        known = [size for size in sizes.values() if size is not None]
        if len(known) < len(sizes):
            path = next(path for path, size in sizes.items() if size is None)
            raise UserError(
                f"{path} has no size before it is read, and cannot be cut into shards: save it to "
                "a file first"
            )
        total = sum(known)
        first, last = (total * n // self.count for n in (self.number - 1, self.number))
        parts: dict[Path, ByteRange | None] = {}
        for path, size, before in zip(sizes, known, accumulate(known, initial=0), strict=False):
            if not _can_be_cut(path, options) or not size:
                # The last shard also has the empty files at the end.
                if first <= before < last or (before == total and self.number == self.count):
                    parts[path] = None
            elif before < last and first < before + size:
                bounds = (min(max(at - before, 0), size) for at in (first, last))
                start, stop = (_document_start(path, at, size) for at in bounds)
                if start < stop:
                    parts[path] = ByteRange(start, stop) if stop - start < size else None
        return parts


def _can_be_cut(path: Path, options: ReadOptions) -> bool:
    if path.suffix.lower() in COMPRESSION_SUFFIXES:
        return False
    return content_suffix(path) in JSON_SUFFIXES or (is_plain_text(path) and options.per == "block")


def _document_start(path: Path, at: int, size: int) -> int:
    """Return where the first document begins at or after a position; at the end there is none."""
    if at in (0, size):
        return at
    try:
        with path.open("rb") as file:
            return (
                _next_line(file, at)
                if content_suffix(path) in JSON_SUFFIXES
                else _next_block(file, at)
            )
    except OSError as error:
        raise UserError(
            f"{path} cannot be read ({error.strerror or error}): check its permissions"
        ) from error


def _next_line(file: IO[bytes], at: int) -> int:
    file.seek(at - 1)
    while (part := file.readline(LINE_BYTES)) and not part.endswith(b"\n"):
        pass
    return file.tell()


def _next_block(file: IO[bytes], at: int) -> int:
    """Return where the first line begins, at or after a position, that follows a blank line.

    No cut is made after white space so long that the reader takes it for text.
    """
    longest = MAX_BLANK_CHARS - 4  # with the bytes of a visible character before it
    position = max(0, at - MAX_BLANK_CHARS)
    file.seek(position)
    decode = getincrementaldecoder("utf-8")("ignore").decode
    line_begins = after_blank = position == 0
    line_visible = False  # it has a visible character so far
    blank = 0 if position == 0 else MAX_BLANK_CHARS  # bytes since the last visible character
    while part := file.readline(LINE_BYTES):
        text = decode(part)
        kept = text.rstrip()
        if line_begins and kept and after_blank and blank <= longest and position >= at:
            return position
        line_visible = bool(kept) or (line_visible and not line_begins)
        blank = (0 if kept else blank) + len(text[len(kept) :].encode())
        line_begins = part.endswith(b"\n")
        if line_begins:
            after_blank = not line_visible
        position += len(part)
    return position


class DuplicateCandidates(DocumentFilter):
    """Documents, each recorded for the search of duplicates in all shards; none is left out."""

    def __init__(
        self,
        documents: Iterable[Document],
        mode: str,
        is_held_out: Callable[[str], bool],
        on_drop: OnDrop,
    ) -> None:
        super().__init__(documents, [], on_drop)
        self._near, self._is_held_out = mode == "near", is_held_out

    def check(self, document: Document) -> Dropped | None:
        """Record a document."""
        text = document.text
        signature = minhash_signature(text) if self._near else None
        candidate = Candidate(
            str(document.source),
            document.line,
            text.strip()[:PREVIEW_CHARS],
            self._is_held_out(text),
            len(text.encode()),
            ExactDeduplicator.hash(text),
            None if signature is None else b64encode(signature.tobytes()).decode(),
        )
        self._on_drop(asdict(candidate))
        return None


@dataclass(frozen=True)
class Candidate:
    """What tells of a document whether it is a duplicate, and where it came from."""

    source: str
    source_line: int
    excerpt: str
    held_out: bool
    bytes: int
    hash: int
    minhash: str | None  # in base64; only where near duplicates are searched

    def signature(self) -> Signature | None:
        """Return the MinHash signature; None without words."""
        return None if self.minhash is None else np.frombuffer(b64decode(self.minhash), np.uint32)


@dataclass(frozen=True)
class FilePart:
    """A file of a shard: which bytes of it were read, and what is in them."""

    path: str
    start: int
    stop: int
    newlines: int  # 0 where the file is whole
    documents: int  # that are not empty


@dataclass(frozen=True)
class ShardRecord:
    """What shard.json holds: the input and the options of all shards, and the files of this one."""

    shard: int
    of: int
    tokenizer: str  # its hash
    files: list[list[Any]]  # path and size of every input file, also of other shards
    named: list[str]  # the files that must have text
    skipped: list[list[str]]  # path and reason of the files of folders that are not read
    options: dict[str, Any]  # of the command, by their names
    parts: list[FilePart]
    dropped_sha256: str  # of dropped.jsonl
    version: int = field(default=SHARD_VERSION)

    def save(self, folder: Path) -> None:
        """Write the record into the folder of its shard."""
        with new_file(folder / SHARD_FILE, durable=True) as file:
            json.dump(asdict(self), file, indent=2, ensure_ascii=False)
            file.write("\n")

    @classmethod
    def load(cls, folder: Path) -> "ShardRecord":
        """Read the record of a shard; a folder that is none is refused."""
        file = folder / SHARD_FILE
        unfinished = folder.absolute().with_name(f".{folder.absolute().name}.part")
        if not file.is_file():
            if unfinished.is_dir():
                raise UserError(
                    f"{folder} is not complete: repeat the kinfolk prepare --shard that writes it"
                )
            problem = "is no shard" if folder.exists() else "does not exist"
            raise UserError(f"{folder} {problem}: make it with kinfolk prepare --shard i/n")
        try:
            fields = json.loads(file.read_text(encoding="utf-8"))
            parts = [FilePart(**part) for part in fields.pop("parts")]
            record = cls(parts=parts, **fields)
        except (OSError, ValueError, TypeError, LookupError, AttributeError) as error:
            raise UserError(f"{file} is corrupt: prepare this shard again") from error
        if record.version != SHARD_VERSION:
            raise UserError(
                f"{file} has format {record.version}, and only {SHARD_VERSION} is supported: "
                "prepare all shards again"
            )
        return record


def count_newlines(path: Path, part: ByteRange) -> int:
    """Return the line ends in a part of a file."""
    count, left = 0, part.stop - part.start
    with path.open("rb") as file:
        file.seek(part.start)
        while left and (data := file.read(min(left, 1 << 20))):
            count += data.count(b"\n")
            left -= len(data)
    return count


class CountedDocuments(Iterator[Document]):
    """Documents, and how many of each file are not empty."""

    def __init__(self, documents: Iterable[Document]) -> None:
        self._documents = iter(documents)
        self.counts: dict[Path, int] = {}

    def __next__(self) -> Document:
        document = next(self._documents)
        visible = bool(document.text.strip())
        self.counts[document.source] = self.counts.get(document.source, 0) + visible
        return document
