"""Exact and near duplicates, and documents that share n-grams with evaluation files."""

import unicodedata
from abc import abstractmethod
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from kinfolk.data.corpus import Corpus
from kinfolk.data.documents import Document, is_plain_text, read_leniently
from kinfolk.data.files import FileProblems, file_sizes
from kinfolk.errors import UserError

Hashes: TypeAlias = npt.NDArray[np.uint64]
Offsets: TypeAlias = npt.NDArray[np.int64]

# Classes of characters: in no word, between words, in a word, a word by itself.
IGNORED_CHAR, SPACE, WORD, SINGLE = range(4)
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
MAX_SLICE_CHARS = 1 << 20  # characters hashed together, so that memory is bounded
HASH_BASE = 0x9E3779B97F4A7C15  # odd; part of the meaning of a hash, so it must not change


@cache
def _character_classes() -> npt.NDArray[np.uint8]:
    """Return the class of every character."""
    kinds = np.full(0x110000, IGNORED_CHAR, dtype=np.uint8)
    for code in range(len(kinds)):
        character = chr(code)
        if unicodedata.category(character)[0] in "LMN":
            kinds[code] = WORD
        elif character.isspace():
            kinds[code] = SPACE
    for first, last in UNSPACED_RANGES:
        part = kinds[first : last + 1]
        part[part == WORD] = SINGLE
    return kinds


def hashed_words(text: str) -> tuple[Hashes, Offsets]:
    """Return the hash of each word, and the offsets in the text at which words begin."""
    parts = [_words(text[start:end], start) for start, end in _slices(text)]
    if len(parts) == 1:
        return parts[0]
    hashes, indices = zip(*parts, strict=True)
    return np.concatenate(hashes), np.concatenate(indices)


def normalized_words(text: str, indices: Offsets) -> str:
    """Return the words at some offsets, as they are compared."""
    return " ".join(_normalized_word(text, offset) for offset in indices.tolist())


def _normalized_word(text: str, offset: int) -> str:
    word = ""
    for at in range(offset, len(text)):
        kind = _character_classes()[ord(text[at])]
        if kind == SPACE or (kind == SINGLE and word):
            break
        word += text[at].lower() if kind != IGNORED_CHAR else ""
        if kind == SINGLE:
            break
    return word


def hash_ngrams(words: Hashes, length: int) -> Hashes:
    """Return the hash of each n-gram of words; none where there are fewer words."""
    count = max(0, len(words) - length + 1)
    hashes = np.zeros(count, dtype=np.uint64)
    for start in range(length):
        hashes = hashes * np.uint64(HASH_BASE) + words[start : start + count]
    return _mixed(hashes)


def _slices(text: str) -> Iterator[tuple[int, int]]:
    """Split a long text, between words where it has spaces."""
    start = 0
    while len(text) - start > MAX_SLICE_CHARS:
        space = max(text.rfind(mark, start, start + MAX_SLICE_CHARS) for mark in " \n")
        end = space if space > start else start + MAX_SLICE_CHARS
        yield start, end
        start = end
    yield start, len(text)


def _words(text: str, start: int) -> tuple[Hashes, Offsets]:
    lower = text.lower()
    if len(lower) != len(text):  # a few letters grow: İ
        lower = "".join(c.lower()[:1] for c in text)
    codes = np.frombuffer(lower.encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
    kinds = _character_classes()[codes]
    indices = (kinds >= WORD).nonzero()[0]
    if not len(indices):
        return np.empty(0, dtype=np.uint64), indices
    alone = kinds[indices] == SINGLE
    gaps = (kinds == SPACE).cumsum(dtype=np.int32)[indices]
    begins = np.ones(len(indices), dtype=bool)
    begins[1:] = alone[1:] | alone[:-1] | (gaps[1:] != gaps[:-1])
    first = begins.nonzero()[0]
    inside = np.arange(len(indices)) - first[begins.cumsum() - 1]  # of each letter in its word
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

SHINGLE_WORDS = 5  # words in an n-gram
JACCARD_THRESHOLD = 0.8  # least fraction of common n-grams of near duplicates
NUM_PERM = 128  # values of a signature: its estimate is within 0.07 for 19 in 20 pairs
# Two signatures are compared if they agree in a band of 8: 95 % of pairs at 0.8, 6 % at 0.5.
BAND_ROWS = 8
BATCH_NGRAMS = 1 << 12  # n-grams hashed together, with NUM_PERM values for each


def hash64(text: str) -> int:
    """Return a 64-bit hash of a text."""
    return int.from_bytes(blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest())


LINE_BITS = 40  # of a location; the others number its file


class Locations:
    """Files and lines of documents as integers."""

    def __init__(self) -> None:
        self._numbers: dict[Path, int] = {}
        self._sources: list[Path] = []

    def pack(self, document: Document) -> int:
        """Return the location of a document as an integer."""
        number = self._numbers.setdefault(document.source, len(self._sources))
        if number == len(self._sources):
            self._sources.append(document.source)
        return number << LINE_BITS | document.line

    def unpack(self, location: int) -> tuple[Path, int]:
        """Return the file and the line of a location."""
        return self._sources[location >> LINE_BITS], location & (1 << LINE_BITS) - 1


class ExactDeduplicator:
    """Hashes of texts and their locations: about 150 bytes each."""

    def __init__(self) -> None:
        self._locations: dict[int, int] = {}

    def find_or_add(self, text: str, location: int) -> int | None:
        """Return the location of an equal text, but for white space at its ends, or add this."""
        return self.find_or_add_hash(self.hash(text), location)

    @staticmethod
    def hash(text: str) -> int:
        """Return the hash by which texts are compared."""
        return hash64(text.strip())

    def find_or_add_hash(self, value: int, location: int) -> int | None:
        """Return the location of a text with this hash, or add it."""
        before = len(self._locations)
        first = self._locations.setdefault(value, location)
        return first if len(self._locations) == before else None


class MinHashDeduplicator:
    """MinHash signatures of texts (Broder 1997): about 2 kB each, whatever their length.

    A text that is similar to an earlier one is not added. Deviation: of several texts with a common
    band only the first is compared, so that no look-up takes long.
    """

    def __init__(self) -> None:
        self._bands: dict[int, int] = {}
        self._signatures = np.empty((1024, NUM_PERM), dtype=np.uint32)
        self._locations = array("q")

    def find_or_add(self, text: str, location: int) -> int | None:
        """Return the location of the most similar text before, or add this one."""
        return self.find_or_add_signature(minhash_signature(text), location)

    def find_or_add_signature(self, signature: Signature | None, location: int) -> int | None:
        """Return the location of the text with the most similar signature before, or add this."""
        if signature is None:
            return None
        bands, texts = _bands(signature), len(self._locations)
        alike = sorted({self._bands[band] for band in bands if band in self._bands})
        if alike:
            shares = (self._signatures[alike] == signature).mean(axis=1)
            if shares.max() >= JACCARD_THRESHOLD:
                return self._locations[alike[int(shares.argmax())]]
        if texts == len(self._signatures):
            self._signatures = np.concatenate([self._signatures, np.empty_like(self._signatures)])
        self._signatures[texts] = signature
        for band in bands:
            self._bands.setdefault(band, texts)
        self._locations.append(location)
        return None


def _bands(signature: Signature) -> list[int]:
    """Return a hash for each band, which depends on the position of the band too."""
    pairs = signature.view(np.uint64)
    bands = hash_ngrams(pairs, BAND_ROWS // 2)[:: BAND_ROWS // 2]
    hashes: list[int] = (bands + np.arange(len(bands), dtype=np.uint64)).tolist()
    return hashes


def minhash_signature(text: str) -> Signature | None:
    """Return values of which two texts share as many as of their n-grams; None without words."""
    hashes = hashed_words(text)[0]
    if not len(hashes):
        return None
    numbers = hash_ngrams(hashes, min(SHINGLE_WORDS, len(hashes))) >> np.uint64(32)
    minhash = _minhash()
    minhash.clear()
    for start in range(0, len(numbers), BATCH_NGRAMS):
        minhash.update_batch(numbers[start : start + BATCH_NGRAMS].tolist())
    values: Signature = minhash.hashvalues
    return values


@cache
def _minhash() -> Any:
    from datasketch import MinHash

    return MinHash(num_perm=NUM_PERM, seed=1, hashfunc=int, scheme="affine32")


NGRAM_WORDS = 13  # in an n-gram that counts as contamination (Brown et al. 2020)
MAX_EVALUATION_FILES = 100_000  # in a folder
# Of all files and of their text, whose n-grams take some six times as much memory.
MAX_EVALUATION_BYTES = 1 << 29

OnRead = Callable[[Path, int], None]  # receives a file, and the bytes that are read of it


@dataclass(frozen=True)
class NgramMatch:
    """An n-gram that a document shares with an evaluation file."""

    ngram: str
    file: Path
    line: int


def evaluation_files(paths: Sequence[Path]) -> dict[Path, int | None]:
    """Return the text files of an evaluation set with their sizes, if they are not too many."""
    sizes = file_sizes(paths, any_suffix=True, max_files=MAX_EVALUATION_FILES)
    total = sum(size or 0 for size in sizes.values())
    if total > MAX_EVALUATION_BYTES:
        raise _too_large_error(paths, f"{len(sizes):,} evaluation files of {total:,} bytes are")
    return sizes


def _too_large_error(paths: Sequence[Path], found: str) -> UserError:
    return UserError(
        f"{', '.join(map(str, paths))}: {found} more than the {MAX_EVALUATION_BYTES:,} whose "
        "n-grams are held in memory: name the evaluation files"
    )


class ContaminationIndex:
    """The n-grams of evaluation files: about 32 bytes each."""

    def __init__(self, paths: Sequence[Path], on_read: OnRead = lambda file, read: None) -> None:
        self.files = list(evaluation_files(paths))
        parts, size = [], 0
        for number, document in self._documents():
            size += len(document.text.encode(errors="replace"))
            if size > MAX_EVALUATION_BYTES:  # compressed files have more text than bytes
                raise _too_large_error(paths, f"{size:,} bytes of text are")
            parts += self._ngrams(number, document)
            on_read(self.files[number], document.bytes_read)
        if not parts:
            raise UserError(
                f"nothing in {', '.join(map(str, paths))} has {NGRAM_WORDS} words in a row: texts "
                "so short cannot show contamination; remove these files"
            )
        hashes, lines, numbers = (np.concatenate(part) for part in zip(*parts, strict=True))
        self._hashes, first = np.unique(hashes, return_index=True)
        self._lines, self._numbers = lines[first], numbers[first]
        # The first bits rule most n-grams of training text out.
        self._shift = np.uint64(64 - 3 - len(self._hashes).bit_length())
        self._prefilter = np.zeros(1 << (64 - int(self._shift)), dtype=bool)
        self._prefilter[self._hashes >> self._shift] = True

    def _documents(self) -> Iterator[tuple[int, Document]]:
        for number, file in enumerate(self.files):
            for document in read_leniently(file, FileProblems()):
                yield number, document

    @staticmethod
    def _ngrams(number: int, document: Document) -> list[tuple[Hashes, Offsets, Offsets]]:
        hashes, offsets = hashed_words(document.text)
        ngrams = hash_ngrams(hashes, NGRAM_WORDS)
        if not len(ngrams):
            return []
        lines = _line_numbers(document, offsets[: len(ngrams)])
        return [(ngrams, lines, np.full(len(ngrams), number, dtype=np.int32))]

    def first_match(self, text: str) -> NgramMatch | None:
        """Return the first n-gram that a text shares with an evaluation file."""
        hashes, offsets = hashed_words(text)
        ngrams = hash_ngrams(hashes, NGRAM_WORDS)
        likely = np.flatnonzero(self._prefilter[ngrams >> self._shift])
        at = np.searchsorted(self._hashes, ngrams[likely])
        at[at == len(self._hashes)] = 0
        (equal,) = np.nonzero(self._hashes[at] == ngrams[likely])
        if not len(equal):
            return None
        start, known = likely[equal[0]], at[equal[0]]
        return NgramMatch(
            normalized_words(text, offsets[start : start + NGRAM_WORDS]),
            self.files[self._numbers[known]],
            int(self._lines[known]),
        )


def _line_numbers(document: Document, offsets: Offsets) -> Offsets:
    """Return the line of the file for each offset of a document."""
    if not is_plain_text(document.source) or "\n" not in document.text:
        return np.full(len(offsets), document.line, dtype=np.int64)
    lengths = [len(line) + 1 for line in document.text.split("\n")]
    return document.line + np.searchsorted(np.cumsum(lengths), offsets, side="right")


DEDUP_MODES = ("exact", "near")
PREVIEW_CHARS = 80  # of a document that is left out
EMPTY, CONTAMINATED = "empty", "contaminated"
EXACT_DUPLICATE, NEAR_DUPLICATE = "exact duplicate", "near duplicate"

Dropped = dict[str, Any]  # a record of dropped.jsonl
OnDrop = Callable[[Dropped], None]


def dropped_record(found: Dropped, document: Document) -> Dropped:
    """Return the record of a document that is left out for a reason that was found."""
    where = {"source": str(document.source), "source_line": document.line}
    excerpt = document.text.strip()[:PREVIEW_CHARS]
    return {"reason": found["reason"]} | where | found | {"excerpt": excerpt}


class DocumentFilter(Iterator[Document]):
    """Documents, without those that there is a reason to leave out.

    `on_drop` receives a record of each that is left out: `reason`, `source`, `source_line`, what
    the filter compared it with, and the `excerpt` with which it begins.
    """

    def __init__(
        self, documents: Iterable[Document], reasons: Sequence[str], on_drop: OnDrop
    ) -> None:
        self._documents, self._on_drop = iter(documents), on_drop
        self.left_out = dict.fromkeys(reasons, 0)  # documents so far, by reason

    @abstractmethod
    def check(self, document: Document) -> Dropped | None:
        """Return the reason to leave a document out, with details; None keeps it."""

    def __next__(self) -> Document:
        for document in self._documents:
            found = self.check(document)
            if found is None:
                return document
            self.left_out[found["reason"]] += 1
            self._on_drop(dropped_record(found, document))
        raise StopIteration


class EmptyFilter(DocumentFilter):
    """Documents with a visible character."""

    def __init__(
        self, documents: Iterable[Document], on_drop: OnDrop = lambda dropped: None
    ) -> None:
        super().__init__(documents, [EMPTY], on_drop)

    def check(self, document: Document) -> Dropped | None:
        """Return the reason for a document without a visible character."""
        text = document.text
        return {"reason": EMPTY} if not text or text.isspace() else None


class DuplicateIndex:
    """The documents so far: the first of equal ones ("exact"), or of similar ones too ("near")."""

    def __init__(self, mode: str) -> None:
        if mode not in DEDUP_MODES:
            raise UserError(f"dedup {mode}: choose exact or near")
        self.reasons = [EXACT_DUPLICATE, *([NEAR_DUPLICATE] if mode == "near" else [])]
        self._locations = Locations()
        self._exact = ExactDeduplicator()
        self._near = MinHashDeduplicator() if mode == "near" else None

    def find_or_add(
        self, document: Document, value: int, signature: Callable[[], Signature | None]
    ) -> Dropped | None:
        """Return the kind of duplicate and of which document, or add one by hash and signature."""
        location, reason = self._locations.pack(document), EXACT_DUPLICATE
        first = self._exact.find_or_add_hash(value, location)
        if first is None and self._near is not None:
            first, reason = self._near.find_or_add_signature(signature(), location), NEAR_DUPLICATE
        if first is None:
            return None
        source, line = self._locations.unpack(first)
        return {"reason": reason, "same_as": {"source": str(source), "source_line": line}}


class DedupFilter(DocumentFilter):
    """Documents without duplicates: the first of equal ones ("exact"), or of similar ones too."""

    def __init__(
        self,
        documents: Iterable[Document],
        mode: str,
        on_drop: OnDrop = lambda dropped: None,
    ) -> None:
        self._index = DuplicateIndex(mode)
        super().__init__(documents, self._index.reasons, on_drop)

    def check(self, document: Document) -> Dropped | None:
        """Return which kind of duplicate this is, and of which earlier document."""
        text = document.text
        return self._index.find_or_add(
            document, ExactDeduplicator.hash(text), lambda: minhash_signature(text)
        )


class DecontaminationFilter(DocumentFilter):
    """Documents that share no 13 consecutive words with evaluation files."""

    def __init__(
        self,
        documents: Iterable[Document],
        evaluation: Sequence[Path],
        on_drop: OnDrop = lambda dropped: None,
        on_read: OnRead = lambda file, read: None,
    ) -> None:
        super().__init__(documents, [CONTAMINATED], on_drop)
        self._index = ContaminationIndex(evaluation, on_read)

    def check(self, document: Document) -> Dropped | None:
        """Return the first n-gram that an evaluation file has too, and where."""
        match = self._index.first_match(document.text)
        if match is None:
            return None
        return {
            "reason": CONTAMINATED,
            "evaluation_file": str(match.file),
            "evaluation_line": match.line,
            "ngram": match.ngram,
        }


def left_out_summary(left_out: Mapping[str, int]) -> str:
    """Return the documents left out for each reason: "1 exact duplicate, 2 near duplicates"."""
    plurals = {EXACT_DUPLICATE: "exact duplicates", NEAR_DUPLICATE: "near duplicates"}
    return ", ".join(
        f"{count:,} {reason if count == 1 else plurals.get(reason, reason)}"
        for reason, count in left_out.items()
    )


MAX_COMPARED_TOKENS = 20_000_000  # of a corpus, from its beginning: about a second


def duplicate_fraction(corpus: Corpus) -> float:
    """Return the fraction of the tokens of a corpus in documents that equal an earlier one."""
    seen: set[bytes] = set()
    tokens = duplicates = 0
    for i in range(corpus.documents):
        ids = corpus.document(i)
        key = blake2b(ids.tobytes(), digest_size=16).digest()
        tokens += len(ids)
        duplicates += len(ids) if key in seen else 0
        seen.add(key)
        if tokens >= MAX_COMPARED_TOKENS:
            break
    return duplicates / max(tokens, 1)
