"""Corpus statistics before training: damage, duplicates, lengths, scripts, repeated lines."""

from array import array
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from kinfolk.data.dedup import (
    PREVIEW_CHARS,
    ExactDeduplicator,
    Locations,
    MinHashDeduplicator,
    hash64,
)
from kinfolk.data.documents import (
    Document,
    ReadOptions,
    ReadProgress,
    progress_reporter,
    read_leniently,
)
from kinfolk.data.files import FileProblems, SkippedFile, file_sizes
from kinfolk.errors import UserError
from kinfolk.text.unicode import count_scripts, guess_language

NUM_TOP_LINES = 10  # most repeated lines, kept as text
MAX_PENDING_LINES = 1 << 16  # different lines held as text before they become hashes
MAX_KEPT_CHARS = 200  # of a line


class LineCounter:
    """Counts lines by hash: 16 bytes for each different line, and the text of the top ten."""

    def __init__(self) -> None:
        self.total = 0
        self._hashes = np.empty(0, dtype=np.uint64)  # sorted
        self._counts = np.empty(0, dtype=np.int64)
        self._top: dict[int, str] = {}
        self._waiting: Counter[int] = Counter()
        self._texts: dict[int, str] = {}

    def add(self, text: str) -> None:
        """Count the lines of a text that are not blank, without white space at their ends."""
        for line in map(str.strip, text.split("\n")):
            if line:
                number = hash64(line)
                self._waiting[number] += 1
                self._texts.setdefault(number, line[:MAX_KEPT_CHARS])
                self.total += 1
        if len(self._waiting) >= MAX_PENDING_LINES:
            self._flush()

    @property
    def distinct(self) -> int:
        self._flush()
        return len(self._hashes)

    def top(self) -> list[tuple[str, int]]:
        """Return the most repeated lines."""
        self._flush()
        counts = self._count(list(self._top))
        return [(line, n) for line, n in zip(self._top.values(), counts, strict=True) if n > 1]

    def _count(self, hashes: list[int]) -> list[int]:
        at = np.searchsorted(self._hashes, np.array(hashes, dtype=np.uint64))
        counts: list[int] = self._counts[at].tolist()
        return counts

    def _flush(self) -> None:
        if not self._waiting:
            return
        hashes = np.array(sorted(self._waiting), dtype=np.uint64)
        counts = np.array([self._waiting[number] for number in hashes.tolist()])
        at = np.searchsorted(self._hashes, hashes)
        old = np.isin(hashes, self._hashes[at[at < len(self._hashes)]])
        self._counts[at[old]] += counts[old]
        self._hashes = np.insert(self._hashes, at[~old], hashes[~old])
        self._counts = np.insert(self._counts, at[~old], counts[~old])
        # Counts only grow: a line of the top ten is in this batch, or was in the top ten before.
        texts = self._texts | self._top
        numbers = zip(self._count(list(texts)), texts, strict=True)
        best = sorted(numbers, key=lambda pair: (-pair[0], pair[1]))[:NUM_TOP_LINES]
        self._top = {number: texts[number] for _, number in best}
        self._waiting, self._texts = Counter(), {}


BATCH_CHARS = 1 << 20  # counted together
MAX_EXAMPLES = 5  # duplicates of each kind that are listed

# Without tab and line ends; U+0080 to U+009F come from a wrong code page.
CONTROLS = np.array([c for c in (*range(32), *range(127, 160)) if chr(c) not in "\t\n\r"])


@dataclass(frozen=True)
class FileAudit:
    """The statistics of one file."""

    path: Path
    bytes: int | None  # on disk; None if it is no file
    documents: int
    characters: int  # in documents
    problems: FileProblems
    error: str = ""  # why it could not be read to its end


@dataclass(frozen=True)
class DuplicateExample:
    """A duplicate and the earlier document, by where they begin."""

    path: Path
    line: int
    text: str
    same_as_path: Path
    same_as_line: int


@dataclass(frozen=True)
class Audit:
    """The statistics of all files together."""

    files: tuple[FileAudit, ...]
    documents: int
    empty: int  # documents without a visible character
    characters: int
    exact_duplicates: int  # documents that are equal to an earlier one
    near_duplicates: int | None  # similar to an earlier one; None if not counted
    examples: tuple[DuplicateExample, ...]  # the first of the near-duplicates
    exact_examples: tuple[DuplicateExample, ...]  # the first of the exact duplicates
    skipped: tuple[SkippedFile, ...]  # files of folders that are not read
    lines: int  # with text, in documents
    repeated_lines: int  # lines that are equal to an earlier one
    most_repeated_lines: tuple[tuple[str, int], ...]  # with their counts
    lengths: tuple[tuple[int, int], ...]  # [(64, 12), ...]: 12 documents of 64 to 127 characters
    shortest: int
    median: int
    longest: int
    scripts: dict[str, int]  # letters of each, most first
    languages: dict[str, int]  # documents of each, guessed, most first
    control_characters: int  # except tab and line ends
    replacement_characters: int  # U+FFFD that the files themselves hold

    @property
    def errors(self) -> int:
        return sum(file.problems.errors for file in self.files)

    @property
    def file_lines(self) -> int:
        return sum(file.problems.lines for file in self.files)

    @property
    def blank(self) -> int:
        return sum(file.problems.blank for file in self.files)

    @property
    def empty_files(self) -> int:
        return sum(not file.documents and not file.error for file in self.files)


@dataclass
class _AuditCounts:
    """Counts while documents are read."""

    near_duplicates: MinHashDeduplicator | None
    exact_duplicates: ExactDeduplicator = field(default_factory=ExactDeduplicator)
    lines: LineCounter = field(default_factory=LineCounter)
    lengths: "array[int]" = field(default_factory=lambda: array("Q"))
    empty: int = 0
    equal: int = 0
    alike: int = 0
    examples: list[DuplicateExample] = field(default_factory=list)
    exact_examples: list[DuplicateExample] = field(default_factory=list)
    locations: Locations = field(default_factory=Locations)
    scripts: Counter[str] = field(default_factory=Counter)
    languages: Counter[str] = field(default_factory=Counter)
    control_characters: int = 0
    replacement_characters: int = 0
    _waiting: list[str] = field(default_factory=list)
    _size: int = 0

    def add(self, document: Document) -> None:
        text = document.text
        self.lengths.append(len(text))
        if not text.strip():
            self.empty += 1
            return
        self._compare(document)
        self.lines.add(text)
        self.languages[guess_language(text)] += 1
        self._waiting.append(text)
        self._size += len(text)
        if self._size >= BATCH_CHARS:
            self.flush()

    def _compare(self, document: Document) -> None:
        """Count a document that is equal or similar to an earlier one."""
        location = self.locations.pack(document)
        first = self.exact_duplicates.find_or_add(document.text, location)
        examples = self.exact_examples
        if first is not None:
            self.equal += 1
        elif self.near_duplicates is not None:
            first = self.near_duplicates.find_or_add(document.text, location)
            self.alike += first is not None
            examples = self.examples
        if first is not None and len(examples) < MAX_EXAMPLES:
            excerpt = document.text.strip()[:PREVIEW_CHARS]
            earlier = self.locations.unpack(first)
            examples.append(DuplicateExample(document.source, document.line, excerpt, *earlier))

    def flush(self) -> None:
        """Count the characters of the pending documents."""
        text = "".join(self._waiting)
        codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
        self.scripts.update(count_scripts(text))
        self.control_characters += int(np.isin(codes[codes < 160], CONTROLS).sum())
        self.replacement_characters += text.count("\ufffd")
        self._waiting, self._size = [], 0


def audit(
    paths: Sequence[Path],
    *,
    reading: ReadOptions = ReadOptions(),
    near: bool = True,
    progress: ReadProgress = lambda read, total: None,
) -> Audit:
    """Return the statistics of files and folders, which are read leniently.

    In JSON and tables every string is text, or only one field or column. `progress` receives the
    bytes read so far and the bytes of all files, if known.
    """
    counts = _AuditCounts(MinHashDeduplicator() if near else None)
    skipped: list[SkippedFile] = []
    sizes = file_sizes(paths, on_skip=skipped.append)
    report = progress_reporter(sizes, progress)
    audits = tuple(_file(path, size, reading, counts, report) for path, size in sizes.items())
    counts.flush()
    errors = [audit.error for audit in audits if audit.error]
    if errors and not counts.lengths:
        raise UserError(errors[0])
    return _audit(audits, counts, skipped)


def _file(
    path: Path,
    size: int | None,
    reading: ReadOptions,
    counts: _AuditCounts,
    report: Callable[[Path, int], None],
) -> FileAudit:
    problems, error = FileProblems(), ""
    before, characters = len(counts.lengths), 0
    try:
        for document in read_leniently(path, problems, reading):
            counts.add(document)
            characters += len(document.text)
            report(path, document.bytes_read)
    except UserError as raised:  # the other files are still read
        error = str(raised)
    return FileAudit(path, size, len(counts.lengths) - before, characters, problems, error)


def _audit(
    audits: tuple[FileAudit, ...], counts: _AuditCounts, skipped: Sequence[SkippedFile]
) -> Audit:
    lengths = np.array(counts.lengths or [0])
    return Audit(
        files=audits,
        documents=len(counts.lengths),
        empty=counts.empty,
        characters=sum(counts.lengths),
        exact_duplicates=counts.equal,
        near_duplicates=None if counts.near_duplicates is None else counts.alike,
        examples=tuple(counts.examples),
        exact_examples=tuple(counts.exact_examples),
        skipped=tuple(skipped),
        lines=counts.lines.total,
        repeated_lines=counts.lines.total - counts.lines.distinct,
        most_repeated_lines=tuple(counts.lines.top()),
        lengths=length_histogram(counts.lengths),
        shortest=int(lengths.min()),
        median=int(np.median(lengths)),
        longest=int(lengths.max()),
        scripts=dict(counts.scripts.most_common()),
        languages=dict(counts.languages.most_common()),
        control_characters=counts.control_characters,
        # Bytes that are not UTF-8 were read as U+FFFD, and have their own count.
        replacement_characters=counts.replacement_characters
        - sum(file.problems.errors for file in audits),
    )


def length_histogram(lengths: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Count lengths between powers of two: [3, 5, 7] gives ((2, 1), (4, 2))."""
    bits = Counter(length.bit_length() for length in lengths)
    if not bits:
        return ()
    steps = range(min(bits), max(bits) + 1)
    return tuple((1 << step - 1 if step else 0, bits[step]) for step in steps)
