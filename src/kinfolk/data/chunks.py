"""Chunks: ranges of tokens of documents, split deterministically and looked up by index."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from kinfolk.errors import UserError
from kinfolk.types import IntArray as IntArray

BoolArray = NDArray[np.bool_]
Rng = np.random.Generator


class TokenizedDocuments(Protocol):
    """Tokenised documents as one stream of tokens, in memory or on disk."""

    @property
    def starts(self) -> IntArray:
        """Start of each document in the stream of tokens, and the end of the last one."""
        ...

    def ids(self, start: int, stop: int, /) -> IntArray:
        """Return the tokens of a range of the stream."""
        ...

    def sentences(self, start: int, stop: int, /) -> IntArray:
        """Return the lengths of the sentences in a range of the stream."""
        ...

    def words(self, start: int, stop: int, /) -> BoolArray:
        """Return which tokens of a range begin a word; raise where this is not known."""
        ...


@dataclass(frozen=True)
class InMemoryDocuments:
    """Documents held in memory."""

    token_ids: IntArray
    ends: IntArray  # of sentences
    starts: IntArray  # of documents, and the end of the last
    begins: BoolArray | None = None  # which tokens begin a word, where known

    @classmethod
    def from_lists(
        cls, documents: Sequence[Sequence[Sequence[int]]], *, words: Sequence[bool] | None = None
    ) -> "InMemoryDocuments":
        """Build from documents as lists of sentences of ids; `words` has a flag for each token."""
        sentences = [sentence for document in documents for sentence in document]
        ends = np.cumsum([0, *map(len, sentences)], dtype=np.int64)
        stream = np.array([i for sentence in sentences for i in sentence], np.int64)
        begins = None if words is None else np.array(words, np.bool_)
        return cls(stream, ends[1:], ends[np.cumsum([0, *map(len, documents)])], begins)

    def ids(self, start: int, stop: int) -> IntArray:
        """Return the tokens of a range of the stream."""
        return self.token_ids[start:stop]

    def sentences(self, start: int, stop: int) -> IntArray:
        """Return the lengths of the sentences in a range of the stream."""
        first = self.ends.searchsorted(start, side="right")
        last = max(first, self.ends.searchsorted(stop, side="left"))
        bounds = np.concatenate([[start], self.ends[first:last], [stop]])
        return bounds[1:] - bounds[:-1]

    def words(self, start: int, stop: int) -> BoolArray:
        """Return which tokens of a range begin a word."""
        if self.begins is None:
            raise UserError(
                "whole-word masking needs word boundaries: prepare the corpus with --words"
            )
        return self.begins[start:stop]


@dataclass(frozen=True)
class Chunk:
    """A range of tokens of one document, with access to the other documents."""

    documents: TokenizedDocuments
    document: int
    start: int  # in tokens from the start of the document
    stop: int  # past the end of the document where its end token is predicted
    repeat: int = 0  # index among several examples of the same range

    @cached_property
    def ids(self) -> IntArray:
        """The tokens."""
        return self.documents.ids(*self._token_range)

    @cached_property
    def sentences(self) -> IntArray:
        """The lengths of its sentences."""
        return self.documents.sentences(*self._token_range)

    @cached_property
    def words(self) -> BoolArray:
        """Which of the tokens begin a word."""
        return self.documents.words(*self._token_range)

    @property
    def previous_token(self) -> int | None:
        """The token before it in its document; None at the start."""
        if self.start == 0:
            return None
        first = self._bounds[0] + self.start
        return int(self.documents.ids(first - 1, first)[0])

    @property
    def ends_document(self) -> bool:
        """Whether it reaches past the end of its document."""
        first, end = self._bounds
        return first + self.stop > end

    @property
    def reaches_document_end(self) -> bool:
        """Whether its last token is the last of its document."""
        first, end = self._bounds
        return first + self.stop == end

    def split(self, at: int) -> tuple["Chunk", "Chunk"]:
        """Split it into two chunks, the first of `at` tokens."""
        middle = self.start + at
        first = Chunk(self.documents, self.document, self.start, middle, self.repeat)
        second = Chunk(self.documents, self.document, middle, self.stop, self.repeat)
        vars(first)["ids"], vars(second)["ids"] = self.ids[:at], self.ids[at:]  # are not read again
        return first, second

    def random_other_chunk(self, rng: Rng, longest: int) -> "Chunk":
        """Draw a chunk of another document that starts with a sentence.

        The probability of a document is proportional to its tokens.
        """
        starts, (own, end) = self.documents.starts, self._bounds
        token = int(rng.integers(starts[-1] - (end - own)))
        token += (end - own) if token >= own else 0
        other = int(starts.searchsorted(token, side="right")) - 1
        first, end = int(starts[other]), int(starts[other + 1])
        sizes = self.documents.sentences(first, end)
        ends = sizes.cumsum()
        # Sentences that `longest` tokens follow, if there are any.
        enough = int((ends - sizes).searchsorted(end - first - longest, side="right"))
        number = int(rng.integers(enough)) if enough else 0
        begin = int(ends[number] - sizes[number]) if enough else 0
        return Chunk(self.documents, other, begin, min(begin + longest, end - first))

    @property
    def _token_range(self) -> tuple[int, int]:
        """The start and the stop of its tokens in the stream."""
        first, end = self._bounds
        return first + self.start, min(first + self.stop, end)

    @property
    def _bounds(self) -> tuple[int, int]:
        """The start and the end of its document in the stream."""
        starts = self.documents.starts
        return int(starts[self.document]), int(starts[self.document + 1])


@dataclass(frozen=True)
class ChunkIndex(Sequence[Chunk]):
    """All chunks of a set of documents, stored as integers: 40 bytes for each chunk."""

    documents: TokenizedDocuments
    document: IntArray
    start: IntArray
    stop: IntArray
    repeat: IntArray
    sizes: IntArray  # (chunks, streams): the most tokens that the example of each has

    @classmethod
    def from_bounds(cls, documents: TokenizedDocuments, bounds: IntArray) -> "ChunkIndex":
        """Build from document, start and stop of each chunk, (chunks, 3); sizes are lengths."""
        document, start, stop = bounds.T
        return cls(documents, document, start, stop, np.zeros_like(start), (stop - start)[:, None])

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

    def with_repeats(self, counts: IntArray, limit: int | None = None) -> "ChunkIndex":
        """Return each chunk `counts` times, with the repeats numbered from 0.

        At most `limit` of them are returned, at equal distances.
        """
        ends = np.cumsum(counts, dtype=np.int64)
        total = int(ends[-1]) if len(ends) else 0
        kept = total if limit is None else min(limit, total)
        nth = np.arange(kept) * total // max(kept, 1)
        which = np.searchsorted(ends, nth, side="right")
        repeat = nth - (ends - counts)[which]
        parts = (self.document[which], self.start[which], self.stop[which])
        return ChunkIndex(self.documents, *parts, repeat, self.sizes[which])


def split_documents(
    documents: TokenizedDocuments, max_length: int, *, extra: int = 0
) -> ChunkIndex:
    """Split every document into chunks of the maximum length; the last may be shorter.

    `extra` counts positions past the end of each document, for the token that ends it.
    """
    lengths = np.diff(documents.starts)
    lengths = np.where(lengths > 0, lengths + extra, 0)
    counts = -(-lengths // max_length)
    document = np.repeat(np.arange(len(lengths)), counts)
    nth = np.arange(len(document)) - np.repeat(np.cumsum(counts) - counts, counts)
    start = nth * max_length
    stop = np.minimum(start + max_length, lengths[document])
    return ChunkIndex.from_bounds(documents, np.stack([document, start, stop], axis=1))
