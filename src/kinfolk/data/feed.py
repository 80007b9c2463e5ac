"""The feed: batch number n of a run, found in one look-up.

Order, packing, masks and everything else drawn are functions of the seed and the position, so the
state of the whole data pipeline is one integer, and the number of workers changes nothing.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import Any, Protocol

from torch.utils.data import Dataset

from kinfolk.batch import Batch
from kinfolk.data.chunks import Chunk, ChunkIndex, IntArray, Rng, TokenizedDocuments
from kinfolk.data.packing import Packing, pack
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
