"""Runs of words as numbers, to find text that two documents share.

A word is what lies between white space, in lower case and without punctuation; in scripts that are
written without spaces (Chinese, Japanese, Thai ...) every character is a word:

    "Don't panic, 世界!"  ->  dont  panic  世  界
"""

import unicodedata
from collections.abc import Iterator
from functools import cache
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

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
