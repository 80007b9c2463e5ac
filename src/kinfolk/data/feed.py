"""The feed: batch number n of a run, found in one look-up.

Order, packing, masks and everything else drawn are functions of the seed and the position, so the
state of the whole data pipeline is one integer, and the number of workers changes nothing.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import Any, Protocol

from torch.utils.data import Dataset

from kinfolk.batch import Batch
from kinfolk.data.packing import Rows, pack
from kinfolk.data.pieces import Documents, Ids, Piece, Pieces, Rng
from kinfolk.errors import UserError
from kinfolk.rng import Stream, generator


class Teacher(Protocol):
    """The half of an objective that makes batches."""

    @property
    def capacity(self) -> Sequence[int]:
        """How many slots a row has, in each stream."""
        ...

    def pieces(self, documents: Documents, /) -> Pieces:
        """Cut documents into pieces, without chance."""
        ...

    def example(self, piece: Piece, rng: Rng, /) -> Any:
        """Draw an example from a piece: all chance is here."""
        ...

    def collate(self, rows: Sequence[Sequence[Any]], /) -> Batch[Any]:
        """Lay rows of examples out as tensors."""
        ...


class Feed(Dataset[Batch[Any]]):
    """A run's batches by number: rows are packed once, and come in a new order every epoch."""

    def __init__(
        self,
        objective: Teacher,
        documents: Documents,
        *,
        rows: int,  # in a batch
        seed: int = 0,
        shuffled: bool = True,
    ) -> None:
        self.objective, self.rows, self.seed, self.shuffled = objective, rows, seed, shuffled
        self.pieces = objective.pieces(documents)
        if not len(self.pieces):
            raise UserError("the corpus holds no text to learn from: prepare one with more text")
        self._order: tuple[int, Ids] | None = None

    @cached_property
    def packed(self) -> Rows:
        """Which pieces lie in which row; the same in every epoch."""
        return pack(self.pieces.sizes, self.objective.capacity)

    @property
    def batches(self) -> int:
        """How many batches show every piece once, the last one perhaps not full."""
        return -(-len(self.packed) // self.rows)

    @property
    def filled(self) -> float:
        """The share of slots that hold text."""
        slots = len(self.packed) * sum(self.objective.capacity)
        return float(self.pieces.sizes.sum()) / slots

    def __len__(self) -> int:
        return self.batches

    def __getitem__(self, number: int) -> Batch[Any]:
        """Return batch `number` of the run, which may lie in any epoch."""
        first = number * self.rows
        last = first + self.rows if self.shuffled else min(first + self.rows, len(self.packed))
        return self.objective.collate([self.row(position) for position in range(first, last)])

    def row(self, position: int) -> list[Any]:
        """Return the examples of one row of the run, which may lie in any epoch."""
        epoch, place = divmod(position, len(self.packed))
        row = self.order(epoch)[place] if self.shuffled else place
        return [
            self.objective.example(
                self.pieces[int(i)], generator(self.seed, Stream.EXAMPLE, epoch, int(i))
            )
            for i in self.packed[int(row)]
        ]

    def order(self, epoch: int) -> Ids:
        """Return the order of rows in one epoch."""
        if self._order is None or self._order[0] != epoch:
            self._order = (
                epoch,
                generator(self.seed, Stream.ORDER, epoch).permutation(len(self.packed)),
            )
        return self._order[1]
