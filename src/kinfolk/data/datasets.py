"""Batches by number: packed datasets, mixtures, contiguous batches for recurrence."""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from math import gcd, lcm
from typing import Any, Protocol

import numpy as np
from torch.utils.data import Dataset

from kinfolk.batch import Batch
from kinfolk.data.chunks import Chunk, ChunkIndex, IntArray, Rng, TokenizedDocuments
from kinfolk.data.examples import Packing, pack
from kinfolk.errors import UserError
from kinfolk.rng import Stream, generator


class Teacher(Protocol):
    """The half of an objective that makes batches."""

    @property
    def row_lengths(self) -> Sequence[int]:
        """How many slots a row has, in each stream."""
        ...

    def chunks(self, documents: TokenizedDocuments, /) -> ChunkIndex:
        """Cut documents into pieces, without chance."""
        ...

    def example(self, chunk: Chunk, rng: Rng, /) -> Any:
        """Draw an example from a piece: all chance is here."""
        ...

    def collate(self, rows: Sequence[Sequence[Any]], /) -> Batch[Any]:
        """Lay rows of examples out as tensors."""
        ...


class PackedDataset(Dataset[Batch[Any]]):
    """A run's batches by number: rows are packed once, and come in a new order every epoch."""

    def __init__(
        self,
        objective: Teacher,
        documents: TokenizedDocuments,
        *,
        batch_size: int,  # in a batch
        seed: int = 0,
        shuffled: bool = True,
    ) -> None:
        self.objective, self.batch_size, self.seed, self.shuffled = (
            objective,
            batch_size,
            seed,
            shuffled,
        )
        self.chunks = objective.chunks(documents)
        if not len(self.chunks):
            raise UserError("the corpus holds no text to learn from: prepare one with more text")
        self._order: tuple[int, IntArray] | None = None

    @cached_property
    def packing(self) -> Packing:
        """Which pieces lie in which row; the same in every epoch."""
        return pack(self.chunks.sizes, self.objective.row_lengths)

    @property
    def num_batches(self) -> int:
        """How many batches show every piece once, the last one perhaps not full."""
        return -(-len(self.packing) // self.batch_size)

    @property
    def fill_rate(self) -> float:
        """The share of slots that hold text."""
        slots = len(self.packing) * sum(self.objective.row_lengths)
        return float(self.chunks.sizes.sum()) / slots

    def __len__(self) -> int:
        return self.num_batches

    def __getitem__(self, number: int) -> Batch[Any]:
        """Return batch `number` of the run, which may lie in any epoch."""
        first = number * self.batch_size
        last = (
            first + self.batch_size
            if self.shuffled
            else min(first + self.batch_size, len(self.packing))
        )
        return self.objective.collate([self.sequence(position) for position in range(first, last)])

    def sequence(self, position: int) -> list[Any]:
        """Return the examples of one row of the run, which may lie in any epoch."""
        epoch, place = divmod(position, len(self.packing))
        row = self.epoch_order(epoch)[place] if self.shuffled else place
        return [
            self.objective.example(
                self.chunks[int(i)], generator(self.seed, Stream.EXAMPLE, epoch, int(i))
            )
            for i in self.packing[int(row)]
        ]

    def epoch_order(self, epoch: int) -> IntArray:
        """Return the order of rows in one epoch."""
        if self._order is None or self._order[0] != epoch:
            self._order = (
                epoch,
                generator(self.seed, Stream.ORDER, epoch).permutation(len(self.packing)),
            )
        return self._order[1]


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


MAX_DOCUMENT_ID = 1 << 30  # documents are numbered below this, and then from 0 again


@dataclass(frozen=True)
class StreamSegment:
    """An example from a stretch of a document, and where it belongs."""

    number: int  # of the document: no two have the same in one epoch, nor in one and the next
    start: int  # its first place in the document
    example: Any


class Joins(Teacher, Protocol):
    """The half of an objective that makes batches of rows which go on."""

    def collate_stream(self, rows: Sequence[Sequence[StreamSegment]], /) -> Batch[Any]:
        """Lay rows out as tensors, in which documents keep their numbers and places."""
        ...


@dataclass(frozen=True)
class EpochLayout:
    """The documents of an epoch one after the other."""

    number: int

    order: IntArray  # of the documents
    ends: IntArray  # the slot after the end of each, in that order
    streams: IntArray  # the slot each lane starts at, and where the last one ends


class ContiguousDataset(Dataset[Batch[Any]]):
    """A run's batches by number; a document takes a slot for each token and one for its end.

    Shuffled, all lanes are of one length, wherever that cuts a document. In the order of an exam
    each lane is of whole documents, so that no token lacks what stands before it.
    """

    def __init__(
        self,
        objective: Joins,
        documents: TokenizedDocuments,
        *,
        batch_size: int,  # in a batch
        parts: int = 1,  # batches in a step, each with lanes of its own
        seed: int = 0,
        shuffled: bool = True,
    ) -> None:
        self.objective, self.documents = objective, documents
        self.seed, self.shuffled, self.parts = seed, shuffled, parts
        lengths = np.diff(documents.starts)
        self.sizes: IntArray = np.where(lengths > 0, lengths + 1, 0)
        if not self.sizes.any():
            raise UserError("the corpus holds no text to learn from: prepare one with more text")
        self.batch_size = (
            batch_size if shuffled else min(batch_size, int(np.count_nonzero(self.sizes)))
        )
        (self.length,) = objective.row_lengths
        self._epoch: EpochLayout | None = None

    @cached_property
    def num_batches(self) -> int:
        """How many batches show every document once; the last may end in padding."""
        longest = int(np.diff(self.epoch(0).streams).max())
        return self.parts * -(-longest // self.length)

    def __len__(self) -> int:
        return self.num_batches

    def __getitem__(self, number: int) -> Batch[Any]:
        """Return batch `number` of the run, which may lie in any epoch."""
        turn, number = divmod(number, self.num_batches)
        place, part = divmod(number, self.parts)
        lanes, epoch = range(part * self.batch_size, (part + 1) * self.batch_size), self.epoch(turn)
        return self.objective.collate_stream([self.row(epoch, lane, place) for lane in lanes])

    def row(self, epoch: EpochLayout, lane: int, place: int) -> list[StreamSegment]:
        """Return one row of a lane, empty where a lane has ended before others."""
        start = int(epoch.streams[lane]) + place * self.length
        stop = min(start + self.length, int(epoch.streams[lane + 1]))
        found = []
        while start < stop:
            nth = int(np.searchsorted(epoch.ends, start, side="right"))
            document, end = int(epoch.order[nth]), int(epoch.ends[nth])
            begin = end - int(self.sizes[document])
            chunk = Chunk(self.documents, document, start - begin, min(stop, end) - begin)
            example = self.objective.example(
                chunk, generator(self.seed, Stream.EXAMPLE, epoch.number, document)
            )
            number = (epoch.number * len(self.sizes) + nth) % MAX_DOCUMENT_ID
            found.append(StreamSegment(number, chunk.start, example))
            start = min(stop, end)
        return found

    def epoch(self, number: int) -> EpochLayout:
        """Return one epoch's order of documents, in lanes."""
        if self._epoch is None or self._epoch.number != number:
            count = self.batch_size * self.parts
            order = generator(self.seed, Stream.ORDER, number).permutation(len(self.sizes))
            shared = (
                split_evenly(self.sizes, order, count)
                if self.shuffled
                else whole(self.sizes, count)
            )
            self._epoch = EpochLayout(number, *shared)
        return self._epoch


def split_evenly(
    sizes: IntArray, order: IntArray, count: int
) -> tuple[IntArray, IntArray, IntArray]:
    """Cut documents in an order into lanes of one length: their order, ends and lanes."""
    ends = np.cumsum(sizes[order])
    length = -(-int(ends[-1]) // count)
    return order, ends, np.minimum(np.arange(count + 1) * length, ends[-1])


def whole(sizes: IntArray, count: int) -> tuple[IntArray, IntArray, IntArray]:
    """Share whole documents out among lanes, the longest first, each to the shortest lane."""
    lane_of, lengths = np.empty(len(sizes), np.int64), np.zeros(count, np.int64)
    for document in np.argsort(-sizes, kind="stable"):
        lane_of[document] = np.argmin(lengths)
        lengths[lane_of[document]] += sizes[document]
    order = np.argsort(lane_of, kind="stable")
    return order, np.cumsum(sizes[order]), np.concatenate([[0], np.cumsum(lengths)])


def evaluation_dataset(
    objective: Any, documents: TokenizedDocuments, *, rows: int
) -> PackedDataset | ContiguousDataset:
    """Return the batches of an exam: rows that go on where the objective joins them, or packed."""
    kind: type[PackedDataset] | type[ContiguousDataset] = (
        ContiguousDataset if hasattr(objective, "collate_stream") else PackedDataset
    )
    return kind(objective, documents, batch_size=rows, shuffled=False)
