"""How often each line of a text is there."""

from array import array
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from kinfolk.data.dedup import ExactDeduplicator, MinHashDeduplicator, hash64
from kinfolk.data.files import file_sizes
from kinfolk.data.rows import FileProblems, RawDocument, Reading, rows
from kinfolk.errors import UserError
from kinfolk.text.unicode import count_scripts, guess_language

NUM_TOP_LINES = 10  # of the most repeated lines are kept as text
MAX_PENDING_LINES = 1 << 16  # different lines held as text before they become numbers
LONGEST = 200  # characters of a line that are kept


class LineCounter:
    """Counts by mark: 16 bytes for each different line, and the text of the top ten only."""

    def __init__(self) -> None:
        self.total = 0
        self._hashes = np.empty(0, dtype=np.uint64)  # sorted
        self._counts = np.empty(0, dtype=np.int64)
        self._top: dict[int, str] = {}
        self._waiting: Counter[int] = Counter()
        self._texts: dict[int, str] = {}

    def add(self, text: str) -> None:
        """Count the lines of a text; white space at their ends is none, and blank ones are none."""
        for line in map(str.strip, text.split("\n")):
            if line:
                number = hash64(line)
                self._waiting[number] += 1
                self._texts.setdefault(number, line[:LONGEST])
                self.total += 1
        if len(self._waiting) >= MAX_PENDING_LINES:
            self._flush()

    @property
    def distinct(self) -> int:
        self._flush()
        return len(self._hashes)

    def top(self) -> list[tuple[str, int]]:
        """Return the lines that are there most often, and more than once."""
        self._flush()
        counts = self._count(list(self._top))
        return [(line, n) for line, n in zip(self._top.values(), counts, strict=True) if n > 1]

    def _count(self, marks: list[int]) -> list[int]:
        at = np.searchsorted(self._hashes, np.array(marks, dtype=np.uint64))
        found: list[int] = self._counts[at].tolist()
        return found

    def _flush(self) -> None:
        if not self._waiting:
            return
        marks = np.array(sorted(self._waiting), dtype=np.uint64)
        counts = np.array([self._waiting[number] for number in marks.tolist()])
        at = np.searchsorted(self._hashes, marks)
        old = np.isin(marks, self._hashes[at[at < len(self._hashes)]])
        self._counts[at[old]] += counts[old]
        self._hashes = np.insert(self._hashes, at[~old], marks[~old])
        self._counts = np.insert(self._counts, at[~old], counts[~old])
        # Counts only grow: a line of the top ten is in this batch, or was in the top ten before.
        texts = self._texts | self._top
        numbers = zip(self._count(list(texts)), texts, strict=True)
        best = sorted(numbers, key=lambda one: (-one[0], one[1]))[:NUM_TOP_LINES]
        self._top = {number: texts[number] for _, number in best}
        self._waiting, self._texts = Counter(), {}


BATCH_CHARS = 1 << 20  # characters counted together
SHOWN = 80  # characters of a document in a list
MAX_EXAMPLES = 5  # near-duplicates that are named

# Tab, new line and carriage return are meant; U+0080 to U+009F come from a wrong code page.
CONTROLS = np.array([c for c in (*range(32), *range(127, 160)) if chr(c) not in "\t\n\r"])


@dataclass(frozen=True)
class FileAudit:
    """What is in one file."""

    path: Path
    bytes: int | None  # on disk; None if it is no file
    documents: int
    characters: int  # in documents
    problems: FileProblems
    error: str = ""  # why it could not be read to its end


@dataclass(frozen=True)
class DuplicateExample:
    """A document, by where it begins."""

    path: Path
    line: int
    text: str


@dataclass(frozen=True)
class Audit:
    """What is in all files together."""

    files: tuple[FileAudit, ...]
    documents: int
    empty: int  # documents without a visible character
    characters: int
    exact_duplicates: int  # documents that are there before, word for word
    near_duplicates: int | None  # documents that are nearly there before; None if nobody looked
    examples: tuple[DuplicateExample, ...]  # the first of the near-duplicates
    lines: int  # with text, in documents
    repeated_lines: int  # lines that are there before
    most_repeated_lines: tuple[tuple[str, int], ...]  # the lines that are there most often
    lengths: tuple[tuple[int, int], ...]  # [(64, 12), ...]: 12 documents of 64 to 127 characters
    shortest: int
    median: int
    longest: int
    scripts: dict[str, int]  # letters of each, most first
    languages: dict[str, int]  # documents of each, by a light guess, most first
    control_characters: int  # characters that control something
    replacement_characters: int  # U+FFFD that the files themselves hold

    @property
    def errors(self) -> int:
        return sum(one.problems.errors for one in self.files)

    @property
    def file_lines(self) -> int:
        return sum(one.problems.lines for one in self.files)

    @property
    def blank(self) -> int:
        return sum(one.problems.blank for one in self.files)

    @property
    def empty_files(self) -> int:
        return sum(not one.documents and not one.error for one in self.files)


@dataclass
class _AuditCounts:
    """What is counted while documents go by."""

    near_duplicates: MinHashDeduplicator | None
    exact_duplicates: ExactDeduplicator = field(default_factory=ExactDeduplicator)
    lines: LineCounter = field(default_factory=LineCounter)
    lengths: "array[int]" = field(default_factory=lambda: array("Q"))
    empty: int = 0
    equal: int = 0
    alike: int = 0
    examples: list[DuplicateExample] = field(default_factory=list)
    scripts: Counter[str] = field(default_factory=Counter)
    languages: Counter[str] = field(default_factory=Counter)
    control_characters: int = 0
    replacement_characters: int = 0
    _waiting: list[str] = field(default_factory=list)
    _size: int = 0

    def add(self, row: RawDocument, path: Path) -> None:
        text = row.text
        self.lengths.append(len(text))
        if not text.strip():
            self.empty += 1
            return
        if self.exact_duplicates.seen(text):
            self.equal += 1
        elif self.near_duplicates is not None and self.near_duplicates.seen(text):
            self.alike += 1
            if len(self.examples) < MAX_EXAMPLES:
                self.examples.append(DuplicateExample(path, row.line, text.strip()[:SHOWN]))
        self.lines.add(text)
        self.languages[guess_language(text)] += 1
        self._waiting.append(text)
        self._size += len(text)
        if self._size >= BATCH_CHARS:
            self.flush()

    def flush(self) -> None:
        """Count the characters of the documents that wait."""
        text = "".join(self._waiting)
        codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
        self.scripts.update(count_scripts(text))
        self.control_characters += int(np.isin(codes[codes < 160], CONTROLS).sum())
        self.replacement_characters += text.count("\ufffd")
        self._waiting, self._size = [], 0


def audit(
    paths: Sequence[Path],
    *,
    reading: Reading | None = None,
    near: bool = True,
    progress: Callable[[int, int | None], None] | None = None,
) -> Audit:
    """Read files and folders to their end, whatever is in them, and count.

    Of JSON and tables every string is text, or that of one field or column. `progress` is told the
    bytes of files read so far, and those of all files, if they are known.
    """
    counts = _AuditCounts(MinHashDeduplicator() if near else None)
    known = file_sizes(paths)
    whole = None if None in known.values() else sum(size or 0 for size in known.values())
    found: list[FileAudit] = []
    for path, size in known.items():
        before = sum(one.bytes or 0 for one in found)

        def told(place: int, before: int = before) -> None:
            if progress is not None:
                progress(before + place, whole)

        found.append(_file(path, size, reading, counts, told))
    counts.flush()
    problems = [one.error for one in found if one.error]
    if problems and not counts.lengths:
        raise UserError(problems[0])
    return _audit(tuple(found), counts)


def _file(
    path: Path,
    size: int | None,
    reading: Reading | None,
    counts: _AuditCounts,
    told: Callable[[int], None],
) -> FileAudit:
    notes, problem = FileProblems(), ""
    before, characters = len(counts.lengths), 0
    try:
        for row in rows(path, notes, reading):
            counts.add(row, path)
            characters += len(row.text)
            told(row.place)
    except UserError as error:  # one bad file does not hide what is in the others
        problem = str(error)
    return FileAudit(path, size, len(counts.lengths) - before, characters, notes, problem)


def _audit(audits: tuple[FileAudit, ...], counts: _AuditCounts) -> Audit:
    lengths = np.array(counts.lengths or [0])
    return Audit(
        files=audits,
        documents=len(counts.lengths),
        empty=counts.empty,
        characters=sum(counts.lengths),
        exact_duplicates=counts.equal,
        near_duplicates=None if counts.near_duplicates is None else counts.alike,
        examples=tuple(counts.examples),
        lines=counts.lines.total,
        repeated_lines=counts.lines.total - counts.lines.distinct,
        most_repeated_lines=tuple(counts.lines.top()),
        lengths=histogram(counts.lengths),
        shortest=int(lengths.min()),
        median=int(np.median(lengths)),
        longest=int(lengths.max()),
        scripts=dict(counts.scripts.most_common()),
        languages=dict(counts.languages.most_common()),
        control_characters=counts.control_characters,
        # Bytes that are no UTF-8 were read as U+FFFD, and have their own count.
        replacement_characters=counts.replacement_characters
        - sum(one.problems.errors for one in audits),
    )


def histogram(lengths: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Count lengths between powers of two: [3, 5, 7] gives ((2, 1), (4, 2))."""
    bits = Counter(length.bit_length() for length in lengths)
    if not bits:
        return ()
    steps = range(min(bits), max(bits) + 1)
    return tuple((1 << step - 1 if step else 0, bits[step]) for step in steps)
