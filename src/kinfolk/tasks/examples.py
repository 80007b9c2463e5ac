"""Instances: the examples that a formulation makes of a labelled row, and how they are packed."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kinfolk.data.chunks import IntArray
from kinfolk.data.examples import Collated, Example, Packing, collate, pack

PAD_TO_MULTIPLE_OF = 8  # the length of rows
ROW_LENGTH_FACTORS = (1.0, 1.5, 2.0)  # candidates for the length of rows over the longest example
SHORT_ROW = 256  # beyond this, the attention of a longer row costs more than packing saves
MIN_POSITION_RATIO = 0.97  # a longer row must take less than this fraction of the positions


@dataclass(frozen=True, kw_only=True)
class Instance:
    """One training or inference item of a task: one example, or one for each option."""

    examples: tuple[Example, ...]
    target: Any = None  # as the formulation encodes it; None where it is not known
    teacher_probs: Any = None  # soft targets of a teacher
    truncated_tokens: int = 0  # tokens of the row that were cut off
    metadata: Any = None  # what decoding the prediction needs

    @property
    def tokens(self) -> int:
        """The tokens of its examples."""
        return sum(sum(example.lengths) for example in self.examples)


def pack_examples(examples: Sequence[Example], pad_id: int) -> Collated:
    """Pack examples into rows as long as the longest of them, or longer where that saves space."""
    sizes = np.array([example.lengths for example in examples], np.int64)
    packing, row_lengths = choose_row_length(sizes)
    rows = [[examples[i] for i in packing[row]] for row in range(len(packing))]
    collated = collate(rows, row_lengths, pad_id)
    offsets = np.empty(len(examples), np.int64)
    offsets[packing.chunks] = collated.offsets
    return Collated(collated.inputs, offsets)


def choose_row_length(sizes: IntArray) -> tuple[Packing, list[int]]:
    """Choose the length of rows that leaves few positions empty, preferring shorter rows."""
    longest = sizes.max(0)
    best: tuple[Packing, list[int]] | None = None
    fewest = np.inf
    for factor in ROW_LENGTH_FACTORS if longest.max() <= SHORT_ROW else ROW_LENGTH_FACTORS[:1]:
        row_lengths = [
            int(-(-int(factor * size) // PAD_TO_MULTIPLE_OF) * PAD_TO_MULTIPLE_OF)
            for size in longest
        ]
        packing = pack(sizes, row_lengths)
        positions = len(packing) * sum(row_lengths)
        if positions < MIN_POSITION_RATIO * fewest:
            best, fewest = (packing, row_lengths), positions
    assert best is not None
    return best
