"""What a way makes of a labelled row: texts as a network reads them, and how they lie in rows."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kinfolk.attention_mask import AttentionMask
from kinfolk.batch import IGNORE_INDEX, Inputs, TokenTargets
from kinfolk.data.packing import Rows, lay, number, pack
from kinfolk.data.pieces import Ids

GRAIN = 8  # rows are a multiple of so many slots long
STRETCHES = (1.0, 1.5, 2.0)  # how long rows may be, against the longest reading
SHORT = 256  # slots, beyond which a longer row costs more in attention than it saves
WORTH = 0.97  # a longer row takes less than this share of the slots
NOWHERE: Ids = np.zeros(0, np.int64)


@dataclass(frozen=True, kw_only=True)
class Reading:
    """One text as a network reads it: an array has a number for each token."""

    ids: Ids
    time: Ids  # of birth, and the clock: all 0 to read both ways, 0 1 2 ... to see the past
    places: Ids | None = None  # None is 0 1 2 ...
    segments: Ids | None = None
    within: Ids | None = None  # where a token stands in its blank (GLM)
    source: Ids | None = None  # what an encoder reads before
    labels: Ids | None = None  # the token that each slot predicts, IGNORED where it predicts none
    slots: Ids = field(default_factory=lambda: NOWHERE)  # whose hidden states are scored

    @property
    def sizes(self) -> tuple[int, ...]:
        """How much room it takes: among sources, where there are any, and in its own row."""
        own = len(self.ids)
        return (own,) if self.source is None else (len(self.source), own)


@dataclass(frozen=True, kw_only=True)
class Example:
    """What is learned or asked at once: one reading, or one for each option."""

    readings: tuple[Reading, ...]
    target: Any = None  # what is right, as the way counts it; None where nobody knows
    soft: Any = None  # what a teacher thinks is right
    cut: int = 0  # tokens of the row that do not fit, and are lost
    about: Any = None  # what it takes to turn a reply into an answer

    @property
    def tokens(self) -> int:
        """How many slots its readings take."""
        return sum(sum(reading.sizes) for reading in self.readings)


@dataclass(frozen=True)
class Page:
    """Readings packed into rows, and where each of them went."""

    inputs: Inputs
    starts: Ids  # the first slot of each reading, through the flattened rows

    def slots(self, readings: Sequence[Reading]) -> Tensor:
        """Return the slots that are scored, reading by reading, through the flattened rows."""
        parts = [start + r.slots for start, r in zip(self.starts, readings, strict=True)]
        return torch.from_numpy(np.concatenate(parts))

    def tokens(self, readings: Sequence[Reading]) -> tuple[TokenTargets, Tensor]:
        """Return the tokens that are predicted, and the number of the reading of each."""
        at, ids, owner = [], [], []
        for place, reading in enumerate(readings):
            if reading.labels is not None:
                kept = np.flatnonzero(reading.labels != IGNORE_INDEX)
                at.append(self.starts[place] + kept)
                ids.append(reading.labels[kept])
                owner.append(np.full(len(kept), place))
        whole = [torch.from_numpy(np.concatenate(p or [NOWHERE])) for p in (ids, at, owner)]
        return TokenTargets(whole[0], whole[1]), whole[2]


def lay_out(readings: Sequence[Reading], pad: int) -> Page:
    """Pack readings into rows as long as the longest of them, or somewhat longer if that fits."""
    sizes = np.array([reading.sizes for reading in readings], np.int64)
    packed, capacity = rowed(sizes)
    rows = [[int(i) for i in packed[row]] for row in range(len(packed))]
    length = capacity[-1]
    document, places = number([[int(sizes[i, -1]) for i in row] for row in rows], length)

    def spread(name: str, fill: int = 0) -> Tensor | None:
        arrays = [[getattr(readings[i], name) for i in row] for row in rows]
        return None if arrays[0][0] is None else lay(arrays, length, fill)

    ids, time = spread("ids", pad), spread("time")
    assert ids is not None and time is not None
    own = spread("places")
    time = time.to(document.dtype)
    inputs = Inputs(
        input_ids=ids,
        attention_mask=AttentionMask(document, time, time),
        position_ids=places if own is None else own,
        token_type_ids=spread("segments"),
        block_position_ids=spread("within"),
        encoder_inputs=sources(readings, rows, capacity[0], pad) if len(capacity) > 1 else None,
    )
    starts = np.zeros(len(readings), np.int64)
    for number_of_row, row in enumerate(rows):
        ends = np.cumsum([0, *(int(sizes[i, -1]) for i in row)])
        starts[row] = number_of_row * length + ends[:-1]
    return Page(inputs, starts)


def rowed(sizes: Ids) -> tuple[Rows, list[int]]:
    """Choose how long rows are, so that few slots stay empty: a longer row must be worth it."""
    longest = sizes.max(0)
    found: tuple[Rows, list[int]] | None = None
    least = np.inf
    for stretch in STRETCHES if longest.max() <= SHORT else STRETCHES[:1]:
        capacity = [int(-(-int(stretch * size) // GRAIN) * GRAIN) for size in longest]
        packed = pack(sizes, capacity)
        slots = len(packed) * sum(capacity)
        if slots < WORTH * least:
            found, least = (packed, capacity), slots
    assert found is not None
    return found


def sources(
    readings: Sequence[Reading], rows: Sequence[Sequence[int]], length: int, pad: int
) -> Inputs:
    """Lay out what an encoder reads, in rows that match those of the decoder."""
    arrays = [[readings[i].source for i in row] for row in rows]
    kept = [[array for array in row if array is not None] for row in arrays]
    document, places = number([[len(array) for array in row] for row in kept], length)
    return Inputs(
        input_ids=lay(kept, length, pad),
        attention_mask=AttentionMask.bidirectional(document),
        position_ids=places,
    )
