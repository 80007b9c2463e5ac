"""A mixture: one feed of several corpora, each with its share of the rows.

Corpora take turns in a round that repeats for ever, so the corpus of any row, and which of its own
rows that is, are found in one look-up. Each corpus keeps its own epochs and its own order.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from math import gcd, lcm
from typing import Any

import numpy as np
from torch.utils.data import Dataset

from kinfolk.batch import Batch
from kinfolk.data.chunks import IntArray
from kinfolk.data.feed import PackedDataset

LONGEST = 1 << 16  # rows in a round


@dataclass(frozen=True)
class MixtureSchedule:
    """Which corpus each row of a mixture comes from."""

    counts: tuple[int, ...]  # rows of each corpus in a round

    @classmethod
    def from_weights(cls, weights: Sequence[float]) -> "MixtureSchedule":
        """Find the shortest round with these shares: 0.7 and 0.3 take 7 and 3 rows of 10.

        Where it would be longer than `LONGEST` rows, shares are rounded to one row in so many.
        """
        exact = [Fraction(str(weight)) for weight in weights]  # 0.7 as it was written
        common = lcm(*(share.denominator for share in exact))
        counts = [int(share * common) for share in exact]
        divisor = gcd(*counts)
        if sum(counts) // divisor > LONGEST:
            whole = sum(exact)
            return cls(tuple(max(1, round(share / whole * LONGEST)) for share in exact))
        return cls(tuple(count // divisor for count in counts))

    @property
    def whole(self) -> int:
        """How many rows a round has."""
        return sum(self.counts)

    @cached_property
    def corpus_of_slot(self) -> IntArray:
        """The corpus of each row of a round.

        Row k of a corpus with share s may come after k / s rows of the mixture, and must come
        before (k + 1) / s of them. The most urgent row that may come always does, and none is ever
        late (Baruah et al. 1996, section 2): after any number of rows, each corpus is less than one
        row away from its share.
        """
        done = [0] * len(self.counts)
        order = np.empty(self.whole, np.int64)
        for place in range(self.whole):
            corpus = min(
                (
                    c
                    for c, count in enumerate(self.counts)
                    if done[c] * self.whole < count * (place + 1)
                ),
                key=lambda c: -(-(done[c] + 1) * self.whole // self.counts[c]),
            )
            order[place] = corpus
            done[corpus] += 1
        return order

    @cached_property
    def slots(self) -> list[IntArray]:
        """Where in a round the rows of each corpus stand."""
        return [np.flatnonzero(self.corpus_of_slot == c) for c in range(len(self.counts))]

    @cached_property
    def index_within_corpus(self) -> IntArray:
        """How many rows of the same corpus stand before each row of a round."""
        ranks = np.empty(self.whole, np.int64)
        for indices in self.slots:
            ranks[indices] = np.arange(len(indices))
        return ranks

    def locate(self, position: int) -> tuple[int, int]:
        """Return the corpus of a row of the mixture, and which of its own rows it is."""
        rounds, place = divmod(position, self.whole)
        corpus = int(self.corpus_of_slot[place])
        return corpus, rounds * self.counts[corpus] + int(self.index_within_corpus[place])

    def slot_of(self, corpus: int, row: int) -> int:
        """Return where in the mixture a row of a corpus stands."""
        rounds, rank = divmod(row, self.counts[corpus])
        return rounds * self.whole + int(self.slots[corpus][rank])


class MixtureDataset(Dataset[Batch[Any]]):
    """The batches of a run on several corpora, by number; all feeds have one objective."""

    def __init__(self, feeds: Sequence[PackedDataset], weights: Sequence[float]) -> None:
        self.feeds, self.turns = feeds, MixtureSchedule.from_weights(weights)
        self.objective, self.batch_size = feeds[0].objective, feeds[0].batch_size

    @property
    def num_batches(self) -> int:
        """How many batches show every row of some corpus once, and no row of any twice.

        The last one may begin anew, so as to be full.
        """
        ends = [self.turns.slot_of(c, len(f.packing) - 1) for c, f in enumerate(self.feeds)]
        return -(-(min(ends) + 1) // self.batch_size)

    def __len__(self) -> int:
        return self.num_batches

    def __getitem__(self, number: int) -> Batch[Any]:
        """Return batch `number` of the run, each of its rows from the corpus whose turn it is."""
        found = map(
            self.turns.locate, range(number * self.batch_size, (number + 1) * self.batch_size)
        )
        return self.objective.collate([self.feeds[corpus].sequence(row) for corpus, row in found])
