"""Documents already tokenised, on disk as Megatron-LM's pair of .bin (ids) and .idx (bounds).

tokens.idx   magic, version, type of id, sentences, documents + 1,
             length of each sentence, byte where each begins, first sentence of each document
bytes.bin    bytes of text (UTF-8) of each document, as uint32
words.bin    where it was asked for, a bit for each token: whether it begins a word
"""

import json
import struct
from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from kinfolk.errors import UserError
from kinfolk.text import Tokenizer

MAGIC = b"MMIDIDX\x00\x00"
VERSION = 1
FORMAT_VERSION = 2  # of corpus.json and what is ours beside Megatron's pair
HEADER = struct.Struct("<9sQBQQ")  # magic, version, type of id, sentences, documents + 1
DTYPES: dict[int, npt.DTypeLike] = {4: np.int32, 8: np.uint16}  # Megatron's codes
CHUNK = 1 << 20  # numbers handled at once

IntArray = npt.NDArray[np.int64]


class Corpus:
    """A folder of tokenised documents, read through memory maps."""

    def __init__(self, folder: Path, facts: Mapping[str, Any], type: npt.DTypeLike) -> None:
        self.folder = folder
        self.documents: int = facts["documents"]
        self.tokens: int = facts["tokens"]
        self.bytes: int = facts["bytes"]
        self.vocab_size: int = facts["vocab"]
        self.tokenizer_hash: str = facts["tokenizer_hash"]
        sentences: int = facts["sentences"]
        index = folder / "tokens.idx"
        begins = HEADER.size + 4 * sentences
        firsts = begins + 8 * sentences
        self._ids = _memmap(folder / "tokens.bin", type, self.tokens)
        self._sequence_pointers = _memmap(index, np.int64, sentences, offset=begins)
        self._document_indices = _memmap(index, np.int64, self.documents + 1, offset=firsts)
        self.document_bytes: npt.NDArray[np.uint32] = _memmap(
            folder / "bytes.bin", np.uint32, self.documents
        )
        self._words: npt.NDArray[np.uint8] | None = None
        if facts["words"] is not None:
            self._words = _memmap(folder / "words.bin", np.uint8, -(-self.tokens // 8))

    @classmethod
    def open(cls, folder: Path | str) -> "Corpus":
        """Open a folder that `prepare` wrote, once its files agree with each other."""
        folder = Path(folder)
        for name in ("corpus.json", "tokens.idx", "tokens.bin", "bytes.bin"):
            if not (folder / name).is_file():
                raise UserError(
                    f"{folder / name} does not exist, so {folder} is no corpus: "
                    "make one with kinfolk prepare"
                )
        facts = _facts(folder / "corpus.json")
        index = folder / "tokens.idx"
        with index.open("rb") as file:
            header = file.read(HEADER.size)
        if len(header) < HEADER.size or not header.startswith(MAGIC):
            raise _corrupt(index, "it does not begin as a Megatron index does")
        _, version, code, sentences, bounds = HEADER.unpack(header)
        if version != VERSION or code not in DTYPES:
            raise _corrupt(index, f"version {version} with ids of type {code} is not known here")
        if (sentences, bounds) != (facts["sentences"], facts["documents"] + 1):
            raise _corrupt(index, "it counts other documents than corpus.json")
        type = np.dtype(DTYPES[code])
        _check_size(index, HEADER.size + 12 * sentences + 8 * bounds)
        _check_size(folder / "tokens.bin", type.itemsize * facts["tokens"])
        _check_size(folder / "bytes.bin", 4 * facts["documents"])
        if facts["words"] is not None:
            _check_size(folder / "words.bin", -(-facts["tokens"] // 8))
        return cls(folder, facts, type)

    def __reduce__(self) -> tuple[Any, ...]:
        return Corpus.open, (self.folder,)

    @cached_property
    def starts(self) -> IntArray:
        """Return where each document begins among the tokens, and at last where all end."""
        starts = np.full(self.documents + 1, self.tokens)
        inside = self._document_indices < len(self._sequence_pointers)
        starts[inside] = (
            self._sequence_pointers[self._document_indices[inside]] // self._ids.itemsize
        )
        return starts

    def ids(self, start: int, stop: int) -> IntArray:
        """Return a slice of the stream of tokens."""
        return self._ids[start:stop].astype(np.int64)

    def document(self, i: int) -> IntArray:
        """Return the tokens of one document."""
        return self.ids(self.starts[i], self.starts[i + 1])

    def sentences(self, start: int, stop: int) -> IntArray:
        """Return the lengths of the sentences inside a slice, cut to it, in all stop - start."""
        if start >= stop:
            return np.zeros(0, np.int64)
        size = self._ids.itemsize
        # Not np.searchsorted: the index lies at odd addresses, so that it would copy all of it.
        first = bisect_right(self._sequence_pointers, start * size)
        last = bisect_left(self._sequence_pointers, stop * size, lo=first)
        bounds = np.empty(last - first + 2, np.int64)
        bounds[0], bounds[-1] = start, stop
        bounds[1:-1] = self._sequence_pointers[first:last] // size
        return bounds[1:] - bounds[:-1]

    def words(self, start: int, stop: int) -> npt.NDArray[np.bool_]:
        """Tell of each token in a slice whether it begins a word."""
        if self._words is None:
            raise UserError(
                f"{self.folder} does not say where words begin: prepare it with --words"
            )
        first = start // 8
        bits = np.unpackbits(self._words[first : -(-stop // 8)])
        return bits[start - 8 * first : stop - 8 * first].astype(np.bool_)

    def token_counts(self) -> IntArray:
        """Return how often each id occurs."""
        return self._counts

    @cached_property
    def _counts(self) -> IntArray:
        counts = np.zeros(self.vocab_size, np.int64)
        for start in range(0, self.tokens, CHUNK):
            counts += np.bincount(self._ids[start : start + CHUNK], minlength=self.vocab_size)
        return counts

    def tokenizer(self) -> Tokenizer:
        """Return the tokenizer the corpus was made with."""
        tokenizer = Tokenizer.load(self.folder / "tokenizer")
        if tokenizer.fingerprint != self.tokenizer_hash:
            raise _corrupt(self.folder / "tokenizer", "it is not the one that made this corpus")
        return tokenizer


def _memmap(file: Path, type: npt.DTypeLike, size: int, *, offset: int = 0) -> npt.NDArray[Any]:
    # An empty file cannot be mapped.
    if size == 0:
        return np.zeros(0, type)
    # A plain view: every slice of a memmap is made in Python.
    return np.memmap(file, type, mode="r", offset=offset, shape=(size,)).view(np.ndarray)


def _facts(file: Path) -> dict[str, Any]:
    needed = {"version", "documents", "sentences", "tokens", "bytes", "vocab", "tokenizer_hash"}
    needed |= {"words"}
    try:
        facts = dict(json.loads(file.read_text(encoding="utf-8")))
    except (ValueError, TypeError) as error:
        raise _corrupt(file, "it is not JSON") from error
    if facts.get("version", FORMAT_VERSION) != FORMAT_VERSION:
        raise _corrupt(
            file, f"it has format {facts['version']} where {FORMAT_VERSION} is known here"
        )
    if missing := sorted(needed - facts.keys()):
        raise _corrupt(file, f"it does not say its {missing[0]}")
    return facts


def _check_size(file: Path, size: int) -> None:
    if not file.is_file():
        raise _corrupt(file, "it is not there")
    if file.stat().st_size != size:
        raise _corrupt(file, f"it has {file.stat().st_size:,} bytes where {size:,} belong")


def _corrupt(file: Path, why: str) -> UserError:
    return UserError(f"{file} is damaged or foreign, {why}: make the corpus again")
