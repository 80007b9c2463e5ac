"""Exact and near duplicates, and documents that share n-grams with evaluation files."""

import json
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from kinfolk.data.documents import Document
from kinfolk.data.rows import FileProblems, RawDocument, rows
from kinfolk.errors import UserError

Hashes: TypeAlias = npt.NDArray[np.uint64]
Places: TypeAlias = npt.NDArray[np.int64]

SILENT, SPACE, LETTER, ALONE = range(4)  # what a character is to a word
# Thai to Burmese, Khmer, Japanese kana, Han and its extensions
UNSPACED_RANGES = (
    (0x0E00, 0x109F),
    (0x1780, 0x17FF),
    (0x3005, 0x3007),
    (0x3040, 0x30FF),
    (0x31F0, 0x31FF),
    (0x3400, 0x9FFF),
    (0xF900, 0xFAFF),
    (0xFF66, 0xFF9F),
    (0x1B000, 0x1B16F),
    (0x20000, 0x3FFFF),
)
MAX_SLICE_CHARS = (
    1 << 20
)  # characters looked at together: memory does not follow the longest document
HASH_BASE = 0x9E3779B97F4A7C15  # odd; any would do, but it has to stay the same


@cache
def _character_classes() -> npt.NDArray[np.uint8]:
    """Say of every character what it is to a word."""
    kinds = np.full(0x110000, SILENT, dtype=np.uint8)
    for code in range(len(kinds)):
        character = chr(code)
        if unicodedata.category(character)[0] in "LMN":
            kinds[code] = LETTER
        elif character.isspace():
            kinds[code] = SPACE
    for first, last in UNSPACED_RANGES:
        part = kinds[first : last + 1]
        part[part == LETTER] = ALONE
    return kinds


def words(text: str) -> tuple[Hashes, Places]:
    """Return a number for each word, and where in the text the words begin."""
    parts = [_words(text[start:end], start) for start, end in _slices(text)]
    if len(parts) == 1:
        return parts[0]
    hashes, indices = zip(*parts, strict=True)
    return np.concatenate(hashes), np.concatenate(indices)


def normalized_words(text: str, indices: Places) -> str:
    """Write some words of a text that follow each other, as they are compared."""
    return " ".join(_spelled(text, place) for place in indices.tolist())


def _spelled(text: str, place: int) -> str:
    word = ""
    for at in range(place, len(text)):
        kind = _character_classes()[ord(text[at])]
        if kind == SPACE or (kind == ALONE and word):
            break
        word += text[at].lower() if kind != SILENT else ""
        if kind == ALONE:
            break
    return word


def hash_ngrams(words: Hashes, length: int) -> Hashes:
    """Return a number for each run of so many words; none where there are fewer."""
    count = max(0, len(words) - length + 1)
    found = np.zeros(count, dtype=np.uint64)
    for place in range(length):
        found = found * np.uint64(HASH_BASE) + words[place : place + count]
    return _mixed(found)


def _slices(text: str) -> Iterator[tuple[int, int]]:
    """Cut a long text, between words where it has spaces."""
    start = 0
    while len(text) - start > MAX_SLICE_CHARS:
        space = max(text.rfind(mark, start, start + MAX_SLICE_CHARS) for mark in " \n")
        end = space if space > start else start + MAX_SLICE_CHARS
        yield start, end
        start = end
    yield start, len(text)


def _words(text: str, start: int) -> tuple[Hashes, Places]:
    lower = text.lower()
    if len(lower) != len(text):  # a few letters grow: İ
        lower = "".join(c.lower()[:1] for c in text)
    codes = np.frombuffer(lower.encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
    kinds = _character_classes()[codes]
    indices = (kinds >= LETTER).nonzero()[0]
    if not len(indices):
        return np.empty(0, dtype=np.uint64), indices
    alone = kinds[indices] == ALONE
    gaps = (kinds == SPACE).cumsum(dtype=np.int32)[indices]
    begins = np.ones(len(indices), dtype=bool)
    begins[1:] = alone[1:] | alone[:-1] | (gaps[1:] != gaps[:-1])
    first = begins.nonzero()[0]
    inside = np.arange(len(indices)) - first[begins.cumsum() - 1]  # each letter's place in its word
    powers = _powers(int(inside.max()).bit_length())
    values = codes[indices] * powers[inside]
    return _mixed(np.add.reduceat(values, first)), indices[first] + start


@cache
def _powers(bits: int) -> Hashes:
    return np.multiply.accumulate(np.full(1 << bits, HASH_BASE, dtype=np.uint64))


def _mixed(values: Hashes) -> Hashes:
    """Spread values over all 64 bits (the finaliser of MurmurHash3, Appleby 2011)."""
    values = (values ^ (values >> np.uint64(33))) * np.uint64(0xFF51AFD7ED558CCD)
    values = (values ^ (values >> np.uint64(33))) * np.uint64(0xC4CEB9FE1A85EC53)
    return values ^ (values >> np.uint64(33))


Signature: TypeAlias = npt.NDArray[np.uint32]

SHINGLE_WORDS = 5  # words in a gram
JACCARD_THRESHOLD = 0.8  # the share of common grams from which documents are near-duplicates
NUM_PERM = 128  # values in a sketch: its estimate of the share is within 0.07 for 19 in 20 pairs
# Two sketches are compared if they agree in a whole band of 8: 95 % of pairs at 0.8, 6 % at 0.5.
BAND_ROWS = 8
PART = 1 << 12  # grams sketched together, with SKETCH values for each


def hash64(text: str) -> int:
    """Return 64 bits that stand for a text."""
    return int.from_bytes(blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest())


class ExactDeduplicator:
    """The marks of texts: about 100 bytes each."""

    def __init__(self) -> None:
        self._seen: set[int] = set()

    def seen(self, text: str) -> bool:
        """Tell whether the text was there before, and remember it; white space at ends is none."""
        before = len(self._seen)
        self._seen.add(hash64(text.strip()))
        return len(self._seen) == before


class MinHashDeduplicator:
    """The sketches of texts (MinHash, Broder 1997): about 2 kB each, whatever their length.

    A text that is much like an earlier one is not remembered. Deviation: of several texts with
    one band in common only the first is found by it, so that no look-up takes long.
    """

    def __init__(self) -> None:
        self._bands: dict[int, int] = {}
        self._sketches = np.empty((1024, NUM_PERM), dtype=np.uint32)
        self._texts = 0

    def seen(self, text: str) -> bool:
        """Tell whether a text much like this one was there before, and remember it if not."""
        mine = minhash_signature(text)
        if mine is None:
            return False
        bands = _bands(mine)
        alike = {self._bands[band] for band in bands if band in self._bands}
        if alike:
            shares = (self._sketches[list(alike)] == mine).mean(axis=1)
            if shares.max() >= JACCARD_THRESHOLD:
                return True
        if self._texts == len(self._sketches):
            self._sketches = np.concatenate([self._sketches, np.empty_like(self._sketches)])
        self._sketches[self._texts] = mine
        for band in bands:
            self._bands.setdefault(band, self._texts)
        self._texts += 1
        return False


def _bands(sketch: Signature) -> list[int]:
    """Return a number for each band of a sketch, another for the same values elsewhere."""
    pairs = sketch.view(np.uint64)
    bands = hash_ngrams(pairs, BAND_ROWS // 2)[:: BAND_ROWS // 2]
    found: list[int] = (bands + np.arange(len(bands), dtype=np.uint64)).tolist()
    return found


def minhash_signature(text: str) -> Signature | None:
    """Return values of which two texts share as many as of their grams; None without words."""
    found = words(text)[0]
    if not len(found):
        return None
    numbers = hash_ngrams(found, min(SHINGLE_WORDS, len(found))) >> np.uint64(32)
    minhash = _minhash()
    minhash.clear()
    for start in range(0, len(numbers), PART):
        minhash.update_batch(numbers[start : start + PART].tolist())
    values: Signature = minhash.hashvalues
    return values


@cache
def _minhash() -> Any:
    from datasketch import MinHash

    return MinHash(num_perm=NUM_PERM, seed=1, hashfunc=int, scheme="affine32")


NGRAM_WORDS = 13  # words in a gram


@dataclass(frozen=True)
class NgramMatch:
    """Words in a row that a document shares with a test."""

    ngram: str
    file: Path
    line: int


class ContaminationIndex:
    """The grams of test files: about 32 bytes each."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self.files = _files(paths)
        found = [part for number in range(len(self.files)) for part in self._grams(number)]
        if not found:
            raise UserError(
                f"nothing in {', '.join(map(str, paths))} has {NGRAM_WORDS} words in a row: texts "
                "so short cannot be told from chance; leave these files out"
            )
        hashes, lines, numbers = (np.concatenate(part) for part in zip(*found, strict=True))
        self._hashes, first = np.unique(hashes, return_index=True)
        self._lines, self._numbers = lines[first], numbers[first]
        # Most grams of training text are told to be no test's by one look at their first bits.
        self._shift = np.uint64(64 - 3 - len(self._hashes).bit_length())
        self._prefilter = np.zeros(1 << (64 - int(self._shift)), dtype=bool)
        self._prefilter[self._hashes >> self._shift] = True

    def _grams(self, number: int) -> Iterator[tuple[Hashes, Places, Places]]:
        for row in rows(self.files[number], FileProblems()):
            hashes, indices = words(row.text)
            found = hash_ngrams(hashes, NGRAM_WORDS)
            if len(found):
                lines = _lines(row, indices[: len(found)])
                yield found, lines, np.full(len(found), number, dtype=np.int32)

    def first_match(self, text: str) -> NgramMatch | None:
        """Return the first words in a row that the text shares with a test."""
        hashes, indices = words(text)
        found = hash_ngrams(hashes, NGRAM_WORDS)
        likely = np.flatnonzero(self._prefilter[found >> self._shift])
        at = np.searchsorted(self._hashes, found[likely])
        at[at == len(self._hashes)] = 0
        (equal,) = np.nonzero(self._hashes[at] == found[likely])
        if not len(equal):
            return None
        start, known = likely[equal[0]], at[equal[0]]
        return NgramMatch(
            normalized_words(text, indices[start : start + NGRAM_WORDS]),
            self.files[self._numbers[known]],
            int(self._lines[known]),
        )


def _files(paths: Sequence[Path]) -> list[Path]:
    found: list[Path] = []
    for path in map(Path, paths):
        if not path.exists():
            raise UserError(f"{path} does not exist: give files of test data")
        inside = sorted(path.rglob("[!.]*")) if path.is_dir() else [path]
        found += [file for file in inside if file.is_file()]
    return found


def _lines(row: RawDocument, indices: Places) -> Places:
    """Say on which line of the file each place of a text lies."""
    if not row.plain or "\n" not in row.text:
        return np.full(len(indices), row.line, dtype=np.int64)
    lengths = [len(line) + 1 for line in row.text.split("\n")]
    return row.line + np.searchsorted(np.cumsum(lengths), indices, side="right")


DEDUP_MODES = ("exact", "near")
SHOWN = 80  # characters of a dropped document


def deduplicated(documents: Iterable[Document], how: str) -> "DedupFilter":
    """Keep the first of equal documents ("exact"), and of those nearly equal too ("near")."""
    return DedupFilter(documents, how)


def decontaminated(
    documents: Iterable[Document], evaluation: Sequence[Path], dropped: Path
) -> "DecontaminationFilter":
    """Keep documents that share no 13 words in a row with test files, and list the others.

    A line of `dropped` is {"source", "gram", "evaluation", "line", "text"}; an earlier list is
    written over.
    """
    return DecontaminationFilter(documents, evaluation, dropped)


class DedupFilter(Iterator[Document]):
    """A stream without its duplicates."""

    def __init__(self, documents: Iterable[Document], how: str) -> None:
        if how not in DEDUP_MODES:
            raise UserError(f"--dedup {how}: choose exact or near")
        self.num_kept = self.exact = self.near = 0
        self._documents = iter(documents)
        self._exact, self._near = (
            ExactDeduplicator(),
            MinHashDeduplicator() if how == "near" else None,
        )

    @property
    def num_dropped(self) -> int:
        return self.exact + self.near

    def __next__(self) -> Document:
        for document in self._documents:
            if self._exact.seen(document.text):
                self.exact += 1
            elif self._near is not None and self._near.seen(document.text):
                self.near += 1
            else:
                self.num_kept += 1
                return document
        raise StopIteration


class DecontaminationFilter(Iterator[Document]):
    """A stream without what test files hold."""

    def __init__(
        self, documents: Iterable[Document], evaluation: Sequence[Path], dropped: Path
    ) -> None:
        self.num_kept = self.num_dropped = 0
        self._documents = iter(documents)
        self._evaluation = ContaminationIndex(evaluation)
        self._list = dropped
        self._list.write_text("")

    def __next__(self) -> Document:
        for document in self._documents:
            shared = self._evaluation.first_match(document.text)
            if shared is None:
                self.num_kept += 1
                return document
            self.num_dropped += 1
            record = {
                "source": str(document.source),
                "gram": shared.ngram,
                "evaluation": str(shared.file),
                "line": shared.line,
                "text": document.text[:SHOWN],
            }
            with self._list.open("a", encoding="utf-8", errors="replace") as file:
                file.write(json.dumps(record, ensure_ascii=False) + "\n")
        raise StopIteration
