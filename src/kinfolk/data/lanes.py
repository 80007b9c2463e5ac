"""Lanes: rows that go on from batch to batch, for models that remember the rows before.

An epoch's documents stand one after the other in a new order, and this line of text is cut into
lanes. Row l of a batch goes on where row l of the batch before ended:

    lane 0    the cat sat </s> | a dog ran </s> | ...
    lane 1    home . </s> I    | saw it . </s>  | ...
              batch 0            batch 1

Batch n is still found in one look-up, from how many slots stand before each document.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from torch.utils.data import Dataset

from kinfolk.batch import Batch
from kinfolk.data.chunks import Chunk, IntArray, TokenizedDocuments
from kinfolk.data.feed import PackedDataset, Teacher
from kinfolk.errors import UserError
from kinfolk.rng import Stream, generator

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
