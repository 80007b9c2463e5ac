"""FULL-SENTENCES (Liu et al., 2019): MLM over rows full of sentences, from one document or several.

text        the  cat  |  sat  down
ids    [C]  the  [M] [S] sat  down [S]
labels  .    .   cat  .   .    .    .
sight  everyone sees everyone, also across the border of two documents

A row takes whole sentences as they come, as many as fit. Where one document ends and another
begins there is a [SEP] more. DOC-SENTENCES, which crosses no border, is `mlm`.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

import numpy as np

from kinfolk.config import config
from kinfolk.data.chunks import BoolArray, Chunk, ChunkIndex, IntArray, Rng, TokenizedDocuments
from kinfolk.objectives.mlm import MLM, Masked, mask_tokens

WINDOW_TOKENS = 1 << 20  # tokens whose sentences are looked at together


@dataclass(frozen=True)
class ConcatenatedDocuments:
    """Documents seen as a single one, which remembers where they met."""

    documents: TokenizedDocuments

    @property
    def starts(self) -> IntArray:
        """Where everything starts, and where it ends."""
        return self.documents.starts[[0, -1]]

    @cached_property
    def document_boundaries(self) -> IntArray:
        """Where one document ends and the next one starts."""
        return np.unique(self.documents.starts)[1:-1]

    def ids(self, start: int, stop: int) -> IntArray:
        """Return a stretch of the stream."""
        return self.documents.ids(start, stop)

    def sentences(self, start: int, stop: int) -> IntArray:
        """Return the lengths of the sentences in a stretch of the stream."""
        return self.documents.sentences(start, stop)

    def words(self, start: int, stop: int) -> BoolArray:
        """Tell which tokens of a stretch begin a word."""
        return self.documents.words(start, stop)

    def parts(self, chunk: Chunk) -> list[Chunk]:
        """Cut a piece where documents meet."""
        first, last = np.searchsorted(self.document_boundaries, [chunk.start + 1, chunk.stop])
        cuts = [chunk.start, *self.document_boundaries[first:last].tolist(), chunk.stop]
        return [replace(chunk, start=a, stop=b) for a, b in pairwise(cuts)]

    def cut(self, longest: int) -> Iterator[tuple[int, int, int]]:
        """Fill rows with whole sentences: start, stop, and the room taken, borders included.

        A sentence that is longer than a row is cut.
        """
        start, end = (int(bound) for bound in self.starts)
        while start < end:
            horizon = min(start + max(WINDOW_TOKENS, 2 * longest), end)
            ends = start + np.cumsum(self.sentences(start, horizon))
            position_ids = ends + np.searchsorted(
                self.document_boundaries, ends
            )  # each border takes a slot
            while start < horizon and (horizon == end or start + longest < horizon):
                first = start + int(np.searchsorted(self.document_boundaries, start, side="right"))
                fitting = int(np.searchsorted(position_ids, first + longest, side="right")) - 1
                if fitting < 0 or ends[fitting] <= start:
                    stop, room = start + longest, longest
                else:
                    stop, room = int(ends[fitting]), int(position_ids[fitting]) - first
                yield start, stop, room
                start = stop


@config("full_sentences")
class FullSentences(MLM):
    """Predict hidden tokens in rows that may run on from one document into the next."""

    def chunks(self, documents: TokenizedDocuments, /) -> ChunkIndex:
        """Fill rows with sentences, whatever document they are in."""
        self.require_word_starts(documents)
        joined = ConcatenatedDocuments(documents)
        numbers = (number for cut in joined.cut(self.max_length - 2) for number in cut)
        start, stop, room = np.fromiter(numbers, np.int64).reshape(-1, 3).T
        nothing = np.zeros_like(start)
        return ChunkIndex(joined, nothing, start, stop, nothing, room[:, None] + 2)

    def example(self, chunk: Chunk, rng: Rng, /) -> Masked:
        """Put [SEP] behind the part of each document, and hide some of the tokens."""
        assert isinstance(chunk.documents, ConcatenatedDocuments)
        parts = chunk.documents.parts(chunk)
        sep = self.special_tokens.require("sep")
        ids = np.concatenate([[self.special_tokens.cls], *(np.append(p.ids, sep) for p in parts)])
        return mask_tokens(
            ids, self.mask_rate, self.special_tokens, self.replacement_ids, rng, self.words(*parts)
        )
