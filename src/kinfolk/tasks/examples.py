"""What a way makes of a labelled row: texts as a network reads them, and how they lie in rows."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kinfolk.attention_mask import AttentionMask
from kinfolk.batch import IGNORE_INDEX, Inputs, TokenTargets
from kinfolk.data.chunks import IntArray
from kinfolk.data.examples import Packing, document_and_position_ids, pack, pad_rows

PAD_TO_MULTIPLE_OF = 8  # rows are a multiple of so many slots long
ROW_LENGTH_FACTORS = (1.0, 1.5, 2.0)  # how long rows may be, against the longest reading
SHORT_ROW = 256  # slots, beyond which a longer row costs more in attention than it saves
MIN_SLOT_RATIO = 0.97  # a longer row takes less than this share of the slots
EMPTY: IntArray = np.zeros(0, np.int64)


@dataclass(frozen=True, kw_only=True)
class Example:
    """One text as a network reads it: an array has a number for each token."""

    ids: IntArray
    order: IntArray  # of birth, and the clock: all 0 to read both ways, 0 1 2 ... to see the past
    position_ids: IntArray | None = None  # None is 0 1 2 ...
    token_type_ids: IntArray | None = None
    block_position_ids: IntArray | None = None  # where a token stands in its blank (GLM)
    source: IntArray | None = None  # what an encoder reads before
    labels: IntArray | None = (
        None  # the token that each slot predicts, IGNORED where it predicts none
    )
    read_at: IntArray = field(default_factory=lambda: EMPTY)  # whose hidden states are scored

    @property
    def lengths(self) -> tuple[int, ...]:
        """How much room it takes: among sources, where there are any, and in its own row."""
        own = len(self.ids)
        return (own,) if self.source is None else (len(self.source), own)


@dataclass(frozen=True, kw_only=True)
class Instance:
    """What is learned or asked at once: one reading, or one for each option."""

    examples: tuple[Example, ...]
    target: Any = None  # what is right, as the way counts it; None where nobody knows
    teacher_probs: Any = None  # what a teacher thinks is right
    truncated_tokens: int = 0  # tokens of the row that do not fit, and are lost
    metadata: Any = None  # what it takes to turn a reply into an answer

    @property
    def tokens(self) -> int:
        """How many slots its readings take."""
        return sum(sum(reading.lengths) for reading in self.examples)


@dataclass(frozen=True)
class Collated:
    """Readings packed into rows, and where each of them went."""

    inputs: Inputs
    offsets: IntArray  # the first slot of each reading, through the flattened rows

    def read_at(self, readings: Sequence[Example]) -> Tensor:
        """Return the slots that are scored, reading by reading, through the flattened rows."""
        parts = [start + r.read_at for start, r in zip(self.offsets, readings, strict=True)]
        return torch.from_numpy(np.concatenate(parts))

    def tokens(self, readings: Sequence[Example]) -> tuple[TokenTargets, Tensor]:
        """Return the tokens that are predicted, and the number of the reading of each."""
        at, ids, owner = [], [], []
        for place, reading in enumerate(readings):
            if reading.labels is not None:
                kept = np.flatnonzero(reading.labels != IGNORE_INDEX)
                at.append(self.offsets[place] + kept)
                ids.append(reading.labels[kept])
                owner.append(np.full(len(kept), place))
        whole = [torch.from_numpy(np.concatenate(p or [EMPTY])) for p in (ids, at, owner)]
        return TokenTargets(whole[0], whole[1]), whole[2]


def pack_examples(readings: Sequence[Example], pad: int) -> Collated:
    """Pack readings into rows as long as the longest of them, or somewhat longer if that fits."""
    sizes = np.array([reading.lengths for reading in readings], np.int64)
    packed, capacity = choose_row_length(sizes)
    rows = [[int(i) for i in packed[row]] for row in range(len(packed))]
    length = capacity[-1]
    document, position_ids = document_and_position_ids(
        [[int(sizes[i, -1]) for i in row] for row in rows], length
    )

    def spread(name: str, fill: int = 0) -> Tensor | None:
        arrays = [[getattr(readings[i], name) for i in row] for row in rows]
        return None if arrays[0][0] is None else pad_rows(arrays, length, fill)

    ids, time = spread("ids", pad), spread("order")
    assert ids is not None and time is not None
    own = spread("position_ids")
    time = time.to(document.dtype)
    inputs = Inputs(
        input_ids=ids,
        attention_mask=AttentionMask(document, time, time),
        position_ids=position_ids if own is None else own,
        token_type_ids=spread("token_type_ids"),
        block_position_ids=spread("block_position_ids"),
        encoder_inputs=pack_sources(readings, rows, capacity[0], pad)
        if len(capacity) > 1
        else None,
    )
    starts = np.zeros(len(readings), np.int64)
    for number_of_row, row in enumerate(rows):
        ends = np.cumsum([0, *(int(sizes[i, -1]) for i in row)])
        starts[row] = number_of_row * length + ends[:-1]
    return Collated(inputs, starts)


def choose_row_length(sizes: IntArray) -> tuple[Packing, list[int]]:
    """Choose how long rows are, so that few slots stay empty: a longer row must be worth it."""
    longest = sizes.max(0)
    found: tuple[Packing, list[int]] | None = None
    least = np.inf
    for stretch in ROW_LENGTH_FACTORS if longest.max() <= SHORT_ROW else ROW_LENGTH_FACTORS[:1]:
        capacity = [
            int(-(-int(stretch * size) // PAD_TO_MULTIPLE_OF) * PAD_TO_MULTIPLE_OF)
            for size in longest
        ]
        packed = pack(sizes, capacity)
        slots = len(packed) * sum(capacity)
        if slots < MIN_SLOT_RATIO * least:
            found, least = (packed, capacity), slots
    assert found is not None
    return found


def pack_sources(
    readings: Sequence[Example], rows: Sequence[Sequence[int]], length: int, pad: int
) -> Inputs:
    """Lay out what an encoder reads, in rows that match those of the decoder."""
    arrays = [[readings[i].source for i in row] for row in rows]
    kept = [[array for array in row if array is not None] for row in arrays]
    document, position_ids = document_and_position_ids(
        [[len(array) for array in row] for row in kept], length
    )
    return Inputs(
        input_ids=pad_rows(kept, length, pad),
        attention_mask=AttentionMask.bidirectional(document),
        position_ids=position_ids,
    )
