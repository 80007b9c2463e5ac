"""Pieces: stretches of documents, cut without chance and found again by number."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from kinfolk.errors import UserError

IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]
Rng = np.random.Generator


class TokenizedDocuments(Protocol):
    """Tokenised documents in a row, wherever they lie."""

    @property
    def starts(self) -> IntArray:
        """Where each document starts in the stream of tokens, and where the last one ends."""
        ...

    def ids(self, start: int, stop: int, /) -> IntArray:
        """Return a stretch of the stream."""
        ...

    def sentences(self, start: int, stop: int, /) -> IntArray:
        """Return the lengths of the sentences in a stretch of the stream."""
        ...

    def words(self, start: int, stop: int, /) -> BoolArray:
        """Tell which tokens of a stretch begin a word, or complain that this is not known."""
        ...


@dataclass(frozen=True)
class InMemoryDocuments:
    """Documents held in memory."""

    token_ids: IntArray
    ends: IntArray  # of sentences
    starts: IntArray  # of documents, and the end of the last
    begins: BoolArray | None = None  # which tokens begin a word, where that is known

    @classmethod
    def from_lists(
        cls, documents: Sequence[Sequence[Sequence[int]]], *, words: Sequence[bool] | None = None
    ) -> "InMemoryDocuments":
        """Take documents as lists of sentences, each a list of ids; `words` runs through all."""
        sentences = [sentence for document in documents for sentence in document]
        ends = np.cumsum([0, *map(len, sentences)], dtype=np.int64)
        stream = np.array([i for sentence in sentences for i in sentence], np.int64)
        begins = None if words is None else np.array(words, np.bool_)
        return cls(stream, ends[1:], ends[np.cumsum([0, *map(len, documents)])], begins)

    def ids(self, start: int, stop: int) -> IntArray:
        """Return a stretch of the stream."""
        return self.token_ids[start:stop]

    def sentences(self, start: int, stop: int) -> IntArray:
        """Return the lengths of the sentences in a stretch of the stream."""
        inside = self.ends[(self.ends > start) & (self.ends < stop)]
        return np.diff(np.concatenate([[start], inside, [stop]]))

    def words(self, start: int, stop: int) -> BoolArray:
        """Tell which tokens of a stretch begin a word."""
        if self.begins is None:
            raise UserError("these documents do not know their words: say where words begin")
        return self.begins[start:stop]


@dataclass(frozen=True)
class Chunk:
    """A stretch of one document, and a door to the others."""

    documents: TokenizedDocuments
    document: int
    start: int  # counted from the start of the document
    stop: int  # may lie past the document's end, where an objective predicts that end too
    repeat: int = 0  # which of several examples from one stretch

    @cached_property
    def ids(self) -> IntArray:
        """The tokens."""
        first, end = self._bounds
        return self.documents.ids(first + self.start, min(first + self.stop, end))

    @cached_property
    def sentences(self) -> IntArray:
        """The lengths of the sentences it is made of."""
        first, end = self._bounds
        return self.documents.sentences(first + self.start, min(first + self.stop, end))

    @cached_property
    def words(self) -> BoolArray:
        """Which of the tokens begin a word."""
        first, end = self._bounds
        return self.documents.words(first + self.start, min(first + self.stop, end))

    @property
    def previous_token(self) -> int | None:
        """The token just before it in its document; None at the start."""
        if self.start == 0:
            return None
        first = self._bounds[0] + self.start
        return int(self.documents.ids(first - 1, first)[0])

    @property
    def ends_document(self) -> bool:
        """Whether it reaches past the end of its document."""
        first, end = self._bounds
        return first + self.stop > end

    def split(self, at: int) -> tuple["Chunk", "Chunk"]:
        """Cut it in two."""
        return replace(self, stop=self.start + at), replace(self, start=self.start + at)

    def random_other_chunk(self, rng: Rng, longest: int) -> "Chunk":
        """Draw a stretch that starts a sentence in another document, each token as likely."""
        starts, (own, end) = self.documents.starts, self._bounds
        token = int(rng.integers(starts[-1] - (end - own)))
        token += (end - own) if token >= own else 0
        other = int(np.searchsorted(starts, token, side="right")) - 1
        first, end = int(starts[other]), int(starts[other + 1])
        sentences = np.concatenate([[0], np.cumsum(self.documents.sentences(first, end))[:-1]])
        # Starts with enough text behind them, if there are any.
        enough = sentences[sentences + longest <= end - first]
        begin = int(rng.choice(enough) if len(enough) else 0)
        return Chunk(self.documents, other, begin, min(begin + longest, end - first))

    @property
    def _bounds(self) -> tuple[int, int]:
        starts = self.documents.starts
        return int(starts[self.document]), int(starts[self.document + 1])


@dataclass(frozen=True)
class ChunkIndex(Sequence[Chunk]):
    """All pieces of some documents, as numbers: 32 bytes each however long they are."""

    documents: TokenizedDocuments
    document: IntArray
    start: IntArray
    stop: IntArray
    repeat: IntArray
    sizes: IntArray  # (pieces, streams): how many slots the example of each will take, at most

    def __len__(self) -> int:
        return len(self.document)

    def __getitem__(self, index: int) -> Chunk:  # type: ignore[override]
        return Chunk(
            self.documents,
            int(self.document[index]),
            int(self.start[index]),
            int(self.stop[index]),
            int(self.repeat[index]),
        )

    def with_repeats(self, counts: IntArray) -> "ChunkIndex":
        """Take each piece several times, numbering the turns."""
        which = np.repeat(np.arange(len(self)), counts)
        turn = np.arange(len(which)) - np.repeat(np.cumsum(counts) - counts, counts)
        return ChunkIndex(
            self.documents,
            self.document[which],
            self.start[which],
            self.stop[which],
            turn,
            self.sizes[which],
        )


def split_documents(
    documents: TokenizedDocuments, longest: int, *, extra: int = 0
) -> tuple[IntArray, IntArray, IntArray]:
    """Cut every document into stretches of the longest length and a rest: document, start, stop.

    `extra` counts slots past the end of each document, for the token that ends it.
    """
    lengths = np.diff(documents.starts)
    lengths = np.where(lengths > 0, lengths + extra, 0)
    counts = -(-lengths // longest)
    document = np.repeat(np.arange(len(lengths)), counts)
    nth = np.arange(len(document)) - np.repeat(np.cumsum(counts) - counts, counts)
    start = nth * longest
    return document, start, np.minimum(start + longest, lengths[document])
