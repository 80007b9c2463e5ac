"""Batches by number: packed datasets, mixtures, contiguous batches for recurrence.

An `objective` here is a kinfolk.objectives.objective.Objective, which this package does not import.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from math import gcd, lcm
from typing import Any

import numpy as np
from torch.utils.data import Dataset

from kinfolk.batch import IGNORE_INDEX, Batch
from kinfolk.data.chunks import Chunk, ChunkIndex, IntArray, TokenizedDocuments
from kinfolk.data.examples import Example
from kinfolk.data.packing import Packing, pack
from kinfolk.errors import UserError
from kinfolk.rng import ExampleGenerators, Stream, generator


class PackedDataset(Dataset[Batch[Any]]):
    """The batches of a run by number: rows are packed once and shuffled in every epoch."""

    def __init__(
        self,
        objective: Any,
        documents: TokenizedDocuments,
        *,
        batch_size: int,  # rows
        seed: int = 0,
        shuffled: bool = True,
    ) -> None:
        self.objective, self.batch_size = objective, batch_size
        self.seed, self.shuffled = seed, shuffled
        self.chunks: ChunkIndex = objective.chunks(documents)
        if not len(self.chunks):
            raise UserError("the corpus has no tokens to train on: prepare one with more text")
        # Which chunks share a row, in every epoch: packed here, before data workers copy it.
        self.packing: Packing = pack(self.chunks.sizes, objective.row_lengths)
        self._order: tuple[int, IntArray] | None = None
        self.generator_of = ExampleGenerators(seed)

    def __len__(self) -> int:
        """Return the batches of one epoch; the last one may not be full."""
        return -(-len(self.packing) // self.batch_size)

    def __getitem__(self, number: int) -> Batch[Any]:
        """Return batch `number` of the run, which may lie in any epoch."""
        first = number * self.batch_size
        last = first + self.batch_size
        if not self.shuffled:
            last = min(last, len(self.packing))
        return self.objective.collate([self.sequence(position) for position in range(first, last)])

    def sequence(self, position: int) -> list[Example]:
        """Return the examples of one row of the run, which may lie in any epoch."""
        epoch, index = divmod(position, len(self.packing))
        row = self.epoch_order(epoch)[index] if self.shuffled else index
        drawn, generator_of = self.objective.example_epoch(epoch), self.generator_of
        return [
            self.objective.example(self.chunks[i], generator_of(drawn, i))
            for i in self.packing[int(row)].tolist()
        ]

    def label_documents(self, number: int) -> IntArray:
        """Return the document of each label of a batch that is not shuffled, row by row."""
        rows = range(self.batch_size * number, self.batch_size * (number + 1))
        pairs = (
            (self.chunks.document[self.packing[row]].tolist(), self.sequence(row))
            for row in rows[: len(self.packing) - rows.start]
        )
        return repeat_by_labels(pairs)

    def epoch_order(self, epoch: int) -> IntArray:
        """Return the order of rows in one epoch."""
        if self._order is None or self._order[0] != epoch:
            rng = generator(self.seed, Stream.ORDER, epoch)
            self._order = epoch, rng.permutation(len(self.packing))
        return self._order[1]


MAX_ROUND = 1 << 16  # rows


@dataclass(frozen=True)
class MixtureSchedule:
    """Which corpus each row of a mixture comes from, repeated in rounds."""

    counts: tuple[int, ...]  # rows of each corpus in a round

    @classmethod
    def from_weights(cls, weights: Sequence[float]) -> "MixtureSchedule":
        """Return the shortest round with these weights: 0.7 and 0.3 take 7 and 3 rows of 10.

        Weights that need more than `MAX_ROUND` rows are rounded to multiples of 1 / MAX_ROUND.
        """
        exact = [Fraction(str(weight)) for weight in weights]  # 0.7 as it was written
        common = lcm(*(weight.denominator for weight in exact))
        counts = [int(weight * common) for weight in exact]
        divisor = gcd(*counts)
        if sum(counts) // divisor > MAX_ROUND:
            total = sum(exact)
            return cls(tuple(max(1, round(weight / total * MAX_ROUND)) for weight in exact))
        return cls(tuple(count // divisor for count in counts))

    @property
    def round_size(self) -> int:
        """The rows of a round."""
        return sum(self.counts)

    @cached_property
    def corpus_of_slot(self) -> IntArray:
        """The corpus of each row of a round.

        Row k of a corpus with weight w is eligible after k / w rows of the mixture and due before
        (k + 1) / w. Scheduling the eligible row with the earliest deadline meets all deadlines
        (Baruah et al. 1996, section 2), so each corpus is always less than one row from its weight.
        """
        done, size = [0] * len(self.counts), self.round_size
        order = np.empty(size, np.int64)
        for row in range(size):
            eligible = (
                c for c, count in enumerate(self.counts) if done[c] * size < count * (row + 1)
            )
            corpus = min(eligible, key=lambda c: -(-(done[c] + 1) * size // self.counts[c]))
            order[row] = corpus
            done[corpus] += 1
        return order

    @cached_property
    def slots(self) -> list[IntArray]:
        """The rows of a round that each corpus has."""
        return [np.flatnonzero(self.corpus_of_slot == c) for c in range(len(self.counts))]

    @cached_property
    def index_within_corpus(self) -> IntArray:
        """How many rows of the same corpus come before each row of a round."""
        ranks = np.empty(self.round_size, np.int64)
        for indices in self.slots:
            ranks[indices] = np.arange(len(indices))
        return ranks

    def locate(self, position: int) -> tuple[int, int]:
        """Return the corpus of a row of the mixture, and the index of the row in that corpus."""
        rounds, row = divmod(position, self.round_size)
        corpus = int(self.corpus_of_slot[row])
        return corpus, rounds * self.counts[corpus] + int(self.index_within_corpus[row])

    def slot_of(self, corpus: int, row: int) -> int:
        """Return the position in the mixture of a row of a corpus."""
        rounds, rank = divmod(row, self.counts[corpus])
        return rounds * self.round_size + int(self.slots[corpus][rank])


class MixtureDataset(Dataset[Batch[Any]]):
    """The batches of a run on several corpora by number; all datasets have one objective."""

    def __init__(self, datasets: Sequence[PackedDataset], weights: Sequence[float]) -> None:
        self.datasets, self.schedule = datasets, MixtureSchedule.from_weights(weights)
        self.objective, self.batch_size = datasets[0].objective, datasets[0].batch_size

    def __len__(self) -> int:
        """Return the batches until one corpus was read completely, before any row is repeated.

        The last one may repeat rows, so that it is full.
        """
        ends = [self.schedule.slot_of(c, len(d.packing) - 1) for c, d in enumerate(self.datasets)]
        return -(-(min(ends) + 1) // self.batch_size)

    def __getitem__(self, number: int) -> Batch[Any]:
        """Return batch `number` of the run, which may lie in any epoch."""
        positions = range(number * self.batch_size, (number + 1) * self.batch_size)
        rows = map(self.schedule.locate, positions)
        return self.objective.collate([self.datasets[corpus].sequence(row) for corpus, row in rows])


MAX_DOCUMENT_ID = 1 << 30  # documents are numbered below this, and then from 0 again


@dataclass(frozen=True)
class EpochLayout:
    """The concatenated documents of an epoch, cut into streams."""

    number: int
    order: IntArray  # of the documents
    ends: IntArray  # the position after the end of each, in that order
    streams: IntArray  # the start of each stream, and the end of the last
    segments: IntArray  # the start of each row in its stream, and the end of the last


class ContiguousDataset(Dataset[Batch[Any]]):
    """The batches of a run by number, for segment-level recurrence: row i continues row i.

    A document takes a position for each token and one for its end. Shuffled, all streams have one
    length, which may cut a document. Not shuffled, as for evaluation, a stream has complete
    documents, so that every token has its full context.
    """

    def __init__(
        self,
        objective: Any,
        documents: TokenizedDocuments,
        *,
        batch_size: int,  # rows
        parts: int = 1,  # batches per step, each with separate streams
        seed: int = 0,
        shuffled: bool = True,
    ) -> None:
        self.objective, self.documents = objective, documents
        self.seed, self.shuffled, self.parts = seed, shuffled, parts
        lengths = np.diff(documents.starts)
        self.sizes: IntArray = np.where(lengths > 0, lengths + 1, 0)
        if not self.sizes.any():
            raise UserError("the corpus has no tokens to train on: prepare one with more text")
        self.batch_size = (
            batch_size if shuffled else min(batch_size, int(np.count_nonzero(self.sizes)))
        )
        (self.length,) = objective.row_lengths
        self._epoch: EpochLayout | None = None
        self.generator_of = ExampleGenerators(seed)
        *_, streams = self.layout(0)
        # Drawn once and permuted in every epoch, so that all epochs have as many batches.
        self.segment_lengths: IntArray = objective.segment_lengths(
            int(np.diff(streams).max()), generator(seed, Stream.SEGMENTS)
        )

    def __len__(self) -> int:
        """Return the batches of one epoch; the last may end in padding."""
        return self.parts * len(self.segment_lengths)

    def __getitem__(self, number: int) -> Batch[Any]:
        """Return batch `number` of the run, which may lie in any epoch."""
        epoch_number, number = divmod(number, len(self))
        index, part = divmod(number, self.parts)
        epoch = self.epoch(epoch_number)
        streams = range(part * self.batch_size, (part + 1) * self.batch_size)
        length = int(epoch.segments[index + 1] - epoch.segments[index])
        objective = self.objective
        if length != self.length:
            objective = replace(objective, max_length=length)
        return objective.collate([self.row(epoch, stream, index) for stream in streams])

    def label_documents(self, number: int) -> IntArray:
        """Return the document of each label of a batch of the first epoch, row by row."""
        epoch = self.epoch(0)
        rows = (self.row(epoch, stream, number) for stream in range(self.batch_size))
        return repeat_by_labels(
            ([int(epoch.order[e.document_id or 0]) for e in examples], examples)
            for examples in rows
        )

    def row(self, epoch: EpochLayout, stream: int, index: int) -> list[Example]:
        """Return one row of a stream, empty where a stream has ended before others."""
        first, last = int(epoch.streams[stream]), int(epoch.streams[stream + 1])
        start, stop = (min(first + int(at), last) for at in epoch.segments[index : index + 2])
        examples = []
        while start < stop:
            nth = int(epoch.ends.searchsorted(start, side="right"))
            document, end = int(epoch.order[nth]), int(epoch.ends[nth])
            begin = end - int(self.sizes[document])
            chunk = Chunk(self.documents, document, start - begin, min(stop, end) - begin)
            example = self.objective.example(chunk, self.generator_of(epoch.number, document))
            positions = np.arange(chunk.start, chunk.start + len(example.input_ids))
            number = (epoch.number * len(self.sizes) + nth) % MAX_DOCUMENT_ID
            examples.append(
                example.with_fields(document_id=number, position_ids=positions, order=positions)
            )
            start = min(stop, end)
        return examples

    def epoch(self, number: int) -> EpochLayout:
        """Return the order of documents, the streams and their rows in one epoch."""
        if self._epoch is None or self._epoch.number != number:
            rng = generator(self.seed, Stream.SEGMENTS, number + 1)
            ends = np.cumsum(rng.permutation(self.segment_lengths))
            segments = np.concatenate([[0], ends])
            self._epoch = EpochLayout(number, *self.layout(number), segments)
        return self._epoch

    def step_tokens(self, epoch: int) -> IntArray:
        """Return the tokens of all parts of each step of an epoch."""
        found = self.epoch(epoch)
        starts, stops = found.streams[:-1, None], found.streams[1:, None]
        tokens: IntArray = np.diff(np.minimum(starts + found.segments, stops)).sum(0)
        return tokens

    def steps_for(self, tokens: float) -> int:
        """Return after how many steps a shuffled run has read about so many tokens: the nearest."""
        epochs, rest = divmod(tokens, int(self.sizes.sum()))
        ends = np.cumsum(np.append(0, self.step_tokens(int(epochs))))
        return int(epochs) * len(self.segment_lengths) + int(np.abs(ends - rest).argmin())

    def tokens_of(self, steps: int) -> int:
        """Return the tokens that a shuffled run reads in its first steps."""
        epochs, rest = divmod(steps, len(self.segment_lengths))
        return epochs * int(self.sizes.sum()) + int(self.step_tokens(epochs)[:rest].sum())

    def layout(self, epoch: int) -> tuple[IntArray, IntArray, IntArray]:
        """Return the order of documents, their ends, and the streams of one epoch."""
        count = self.batch_size * self.parts
        if not self.shuffled:
            return assign_whole_documents(self.sizes, count)
        order = generator(self.seed, Stream.ORDER, epoch).permutation(len(self.sizes))
        return split_evenly(self.sizes, order, count)


def split_evenly(
    sizes: IntArray, order: IntArray, count: int
) -> tuple[IntArray, IntArray, IntArray]:
    """Cut documents into streams of one length: return order, ends and streams of a layout."""
    ends = np.cumsum(sizes[order])
    length = -(-int(ends[-1]) // count)
    return order, ends, np.minimum(np.arange(count + 1) * length, ends[-1])


def assign_whole_documents(sizes: IntArray, count: int) -> tuple[IntArray, IntArray, IntArray]:
    """Assign whole documents to streams, the longest first, each to the shortest stream."""
    stream_of, lengths = np.empty(len(sizes), np.int64), np.zeros(count, np.int64)
    for document in np.argsort(-sizes, kind="stable"):
        stream_of[document] = np.argmin(lengths)
        lengths[stream_of[document]] += sizes[document]
    order = np.argsort(stream_of, kind="stable")
    return order, np.cumsum(sizes[order]), np.concatenate([[0], np.cumsum(lengths)])


def repeat_by_labels(rows: Iterable[tuple[Sequence[int], Sequence[Example]]]) -> IntArray:
    """Return the number of each example as often as it has labels; a row has both."""
    numbers, counts = list[int](), list[int]()
    for own, examples in rows:
        numbers += own
        counts += [
            0 if e.labels is None else int((e.labels != IGNORE_INDEX).sum()) for e in examples
        ]
    return np.repeat(np.array(numbers, np.int64), np.array(counts, np.int64))


def evaluation_dataset(
    objective: Any, documents: TokenizedDocuments, *, rows: int
) -> PackedDataset | ContiguousDataset:
    """Return the batches of an evaluation: contiguous for a recurrent objective, else packed."""
    dataset = ContiguousDataset if objective.recurrent else PackedDataset
    return dataset(objective, documents, batch_size=rows, shuffled=False)
