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
from kinfolk.data.pieces import Documents, Flags, Ids, Piece, Pieces, Rng
from kinfolk.objectives.mlm import MLM, Masked, hide

STRETCH = 1 << 20  # tokens whose sentences are looked at together


@dataclass(frozen=True)
class Joined:
    """Documents seen as a single one, which remembers where they met."""

    documents: Documents

    @property
    def starts(self) -> Ids:
        """Where everything starts, and where it ends."""
        return self.documents.starts[[0, -1]]

    @cached_property
    def borders(self) -> Ids:
        """Where one document ends and the next one starts."""
        return np.unique(self.documents.starts)[1:-1]

    def ids(self, start: int, stop: int) -> Ids:
        """Return a stretch of the stream."""
        return self.documents.ids(start, stop)

    def sentences(self, start: int, stop: int) -> Ids:
        """Return the lengths of the sentences in a stretch of the stream."""
        return self.documents.sentences(start, stop)

    def words(self, start: int, stop: int) -> Flags:
        """Tell which tokens of a stretch begin a word."""
        return self.documents.words(start, stop)

    def parts(self, piece: Piece) -> list[Piece]:
        """Cut a piece where documents meet."""
        first, last = np.searchsorted(self.borders, [piece.start + 1, piece.stop])
        cuts = [piece.start, *self.borders[first:last].tolist(), piece.stop]
        return [replace(piece, start=a, stop=b) for a, b in pairwise(cuts)]

    def cut(self, longest: int) -> Iterator[tuple[int, int, int]]:
        """Fill rows with whole sentences: start, stop, and the room taken, borders included.

        A sentence that is longer than a row is cut.
        """
        start, end = (int(bound) for bound in self.starts)
        while start < end:
            horizon = min(start + max(STRETCH, 2 * longest), end)
            ends = start + np.cumsum(self.sentences(start, horizon))
            places = ends + np.searchsorted(self.borders, ends)  # each border takes a slot
            while start < horizon and (horizon == end or start + longest < horizon):
                first = start + int(np.searchsorted(self.borders, start, side="right"))
                fitting = int(np.searchsorted(places, first + longest, side="right")) - 1
                if fitting < 0 or ends[fitting] <= start:
                    stop, room = start + longest, longest
                else:
                    stop, room = int(ends[fitting]), int(places[fitting]) - first
                yield start, stop, room
                start = stop


@config("full_sentences")
class FullSentences(MLM):
    """Predict hidden tokens in rows that may run on from one document into the next."""

    def pieces(self, documents: Documents, /) -> Pieces:
        """Fill rows with sentences, whatever document they are in."""
        self.check(documents)
        joined = Joined(documents)
        numbers = (number for cut in joined.cut(self.length - 2) for number in cut)
        start, stop, room = np.fromiter(numbers, np.int64).reshape(-1, 3).T
        nothing = np.zeros_like(start)
        return Pieces(joined, nothing, start, stop, nothing, room[:, None] + 2)

    def example(self, piece: Piece, rng: Rng, /) -> Masked:
        """Put [SEP] behind the part of each document, and hide some of the tokens."""
        assert isinstance(piece.documents, Joined)
        parts = piece.documents.parts(piece)
        sep = self.specials.need("sep")
        ids = np.concatenate([[self.specials.cls], *(np.append(p.ids, sep) for p in parts)])
        return hide(ids, self.rate, self.specials, self.ordinary, rng, self.words(*parts))
