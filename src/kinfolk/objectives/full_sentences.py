"""FULL-SENTENCES (Liu et al., 2019): MLM over rows full of sentences, from one document or several.

text             the  cat  |  sat  down
input_ids  [C]   the  [M] [S] sat  down [S]
labels      .     .   cat  .   .    .    .
attention  every token attends to every token, also across the boundary of two documents

A row takes whole sentences in their order, as many as fit, with one more [SEP] where a document
ends and another begins. DOC-SENTENCES, which crosses no boundary, is `mlm`.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

import numpy as np

from kinfolk.config import config
from kinfolk.data.chunks import BoolArray, Chunk, ChunkIndex, IntArray, Rng, TokenizedDocuments
from kinfolk.data.examples import Example
from kinfolk.objectives.mlm import MLM

WINDOW_TOKENS = 1 << 20  # tokens whose sentences are read at once


@dataclass(frozen=True)
class ConcatenatedDocuments:
    """Documents as a single one, with the boundaries between them."""

    documents: TokenizedDocuments

    @property
    def starts(self) -> IntArray:
        """Start and end of the stream."""
        return self.documents.starts[[0, -1]]

    @cached_property
    def document_boundaries(self) -> IntArray:
        """Where one document ends and the next one starts, in tokens."""
        return np.unique(self.documents.starts)[1:-1]

    def ids(self, start: int, stop: int) -> IntArray:
        """Return the tokens of a range of the stream."""
        return self.documents.ids(start, stop)

    def sentences(self, start: int, stop: int) -> IntArray:
        """Return the lengths of the sentences in a range of the stream."""
        return self.documents.sentences(start, stop)

    def words(self, start: int, stop: int) -> BoolArray:
        """Return which tokens of a range begin a word."""
        return self.documents.words(start, stop)

    def parts(self, chunk: Chunk) -> list[Chunk]:
        """Split a chunk at document boundaries."""
        first, last = np.searchsorted(self.document_boundaries, [chunk.start + 1, chunk.stop])
        cuts = [chunk.start, *self.document_boundaries[first:last].tolist(), chunk.stop]
        return [replace(chunk, start=a, stop=b) for a, b in pairwise(cuts)]

    def sentence_rows(self, max_length: int) -> Iterator[tuple[int, int, int]]:
        """Fill rows with whole sentences; yield start, stop, and the tokens with boundaries.

        A sentence that is longer than a row is cut.
        """
        start, end = (int(bound) for bound in self.starts)
        while start < end:
            horizon = min(start + max(WINDOW_TOKENS, 2 * max_length), end)
            ends = start + np.cumsum(self.sentences(start, horizon))
            # Each boundary takes one token.
            row_ends = ends + np.searchsorted(self.document_boundaries, ends)
            while start < horizon and (horizon == end or start + max_length < horizon):
                first = start + int(np.searchsorted(self.document_boundaries, start, side="right"))
                fitting = int(np.searchsorted(row_ends, first + max_length, side="right")) - 1
                if fitting < 0 or ends[fitting] <= start:
                    stop, size = start + max_length, max_length
                else:
                    stop, size = int(ends[fitting]), int(row_ends[fitting]) - first
                yield start, stop, size
                start = stop


@config("full_sentences")
class FullSentences(MLM):
    """Predict masked tokens in rows that may continue from one document into the next."""

    loss_name = "full_sentences"

    def chunks(self, documents: TokenizedDocuments, /) -> ChunkIndex:
        """Fill rows with sentences of any document."""
        self.require_word_starts(documents)
        joined = ConcatenatedDocuments(documents)
        numbers = (n for row in joined.sentence_rows(self.max_length - 2) for n in row)
        start, stop, size = np.fromiter(numbers, np.int64).reshape(-1, 3).T
        zeros = np.zeros_like(start)
        return ChunkIndex(joined, zeros, start, stop, zeros, size[:, None] + 2)

    def example(self, chunk: Chunk, rng: Rng, /) -> Example:
        """Add [SEP] after the part of each document, and mask some of the tokens."""
        assert isinstance(chunk.documents, ConcatenatedDocuments)
        parts = chunk.documents.parts(chunk)
        ids = self.add_special_tokens(*(part.ids for part in parts))
        return self.mask(ids, rng, self.word_starts(*parts))
