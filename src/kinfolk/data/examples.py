"""Training examples, and collating rows of them into tensors.

Objectives and labelled tasks build the same `Example`, and one `collate` serves both.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kinfolk.attention_mask import PADDING_ID, AttentionMask
from kinfolk.batch import IGNORE_INDEX, Inputs, TokenTargets
from kinfolk.data.chunks import IntArray


@dataclass(frozen=True, kw_only=True)
class Example:
    """One input sequence of a network; arrays have one element per token."""

    input_ids: IntArray
    labels: IntArray | None = None  # IGNORE_INDEX where nothing is predicted
    order: IntArray | None = None  # i attends to j where order[j] <= order[i]; None: to all
    position_ids: IntArray | None = None  # None: 0, 1, 2, ...
    block_position_ids: IntArray | None = None  # position inside a blank (GLM)
    token_type_ids: IntArray | None = None
    character_ids: IntArray | None = None  # (tokens, characters), for words by their characters
    encoder_input_ids: IntArray | None = None
    backward: "Example | None" = None  # of the same length, for a backward model (ELMo)
    document_id: int | None = None  # of a document that continues in the next batch
    sequence_label: int = IGNORE_INDEX  # next-sentence or sentence-order prediction
    uniforms: IntArray | None = None  # random numbers for sampling (ELECTRA)
    # Tokens whose hidden state a task head reads.
    read_positions: IntArray = field(default_factory=lambda: np.zeros(0, np.int64))

    def with_fields(self, **fields: Any) -> "Example":
        """Return it with other values of some fields: `replace` in a third of the time."""
        return Example(**{**vars(self), **fields})

    @property
    def lengths(self) -> tuple[int, ...]:
        """Tokens in each stream: (decoder,) or (encoder, decoder)."""
        own = len(self.input_ids)
        return (own,) if self.encoder_input_ids is None else (len(self.encoder_input_ids), own)


@dataclass(frozen=True, eq=False)
class Collated:
    """Packed examples as tensors."""

    inputs: Inputs
    offsets: IntArray  # first token of each example in the flattened rows

    def read_positions(self, examples: Sequence[Example]) -> Tensor:
        """Return the positions that a task head reads, in the flattened rows."""
        pairs = zip(self.offsets, examples, strict=True)
        return torch.from_numpy(np.concatenate([first + e.read_positions for first, e in pairs]))

    def lay_out(self, arrays: Sequence[IntArray]) -> Tensor:
        """Lay out the arrays of examples as their tokens are, 0 in padding: flattened rows."""
        flat = np.zeros(self.inputs.input_ids.numel(), np.int64)
        for offset, array in zip(self.offsets.tolist(), arrays, strict=True):
            flat[offset : offset + len(array)] = array
        return torch.from_numpy(flat)

    def token_targets(self, examples: Sequence[Example]) -> tuple[TokenTargets, Tensor]:
        """Return the tokens that are predicted, and the index of the example of each."""
        empty = np.zeros(0, np.int64)
        positions, labels, owners = [empty], [empty], [empty]
        for index, example in enumerate(examples):
            if example.labels is not None:
                kept = np.flatnonzero(example.labels != IGNORE_INDEX)
                positions.append(self.offsets[index] + kept)
                labels.append(example.labels[kept])
                owners.append(np.full(len(kept), index))
        ids, where, owner = (
            torch.from_numpy(np.concatenate(part)) for part in (labels, positions, owners)
        )
        return TokenTargets(ids, where), owner


def collate(rows: Sequence[Sequence[Example]], row_lengths: Sequence[int], pad_id: int) -> Collated:
    """Collate packed examples into tensors; padding has document id -1."""
    *encoder_length, length = row_lengths
    sizes = [[len(e.input_ids) for e in row] for row in rows]
    starts = [[*accumulate(row, initial=0)][:-1] for row in sizes]

    def optional(of: Callable[[Example], IntArray | None]) -> Tensor | None:
        arrays = [[array for e in row if (array := of(e)) is not None] for row in rows]
        if not any(arrays):
            return None
        assert all(len(some) == len(row) for some, row in zip(arrays, rows, strict=True))
        return pad_rows(arrays, length, 0)

    numbers = [
        [i if e.document_id is None else e.document_id for i, e in enumerate(row)] for row in rows
    ]
    document_ids = repeat_by_size(numbers, sizes, length, PADDING_ID)
    own_positions = optional(lambda e: e.position_ids)
    inputs = Inputs(
        input_ids=pad_rows([[e.input_ids for e in row] for row in rows], length, pad_id),
        attention_mask=_attention_mask(rows, starts, sizes, document_ids),
        position_ids=count_by_size(sizes, length) if own_positions is None else own_positions,
        token_type_ids=optional(lambda e: e.token_type_ids),
        block_position_ids=optional(lambda e: e.block_position_ids),
        character_ids=optional(lambda e: e.character_ids),
        encoder_inputs=_encoder_inputs(rows, encoder_length[0], pad_id) if encoder_length else None,
    )
    offsets = [row * length + start for row, some in enumerate(starts) for start in some]
    return Collated(inputs, np.array(offsets, np.int64))


def _attention_mask(
    rows: Sequence[Sequence[Example]],
    starts: Sequence[Sequence[int]],
    sizes: Sequence[Sequence[int]],
    document_ids: Tensor,
) -> AttentionMask:
    """Return the mask of packed examples.

    The order of an example is raised by where it starts in its row: the mask is the same, and its
    blocks tell earlier documents from later ones. Documents that continue keep their own order,
    which the memory of earlier batches shares.
    """
    if all(e.order is None for row in rows for e in row):
        return AttentionMask.bidirectional(document_ids)
    length = document_ids.shape[1]
    same = np.zeros(length, np.int64)  # of an example whose tokens attend to all of it
    orders = [
        [same[: len(e.input_ids)] if e.order is None else e.order for e in row] for row in rows
    ]
    raised = [
        [first if e.document_id is None else 0 for e, first in zip(row, firsts, strict=True)]
        for row, firsts in zip(rows, starts, strict=True)
    ]
    order = _join(orders, np.arange(length)).astype(np.int32)
    tensor = torch.from_numpy(order) + repeat_by_size(raised, sizes, length, 0)
    return AttentionMask(document_ids, tensor, tensor)


def _encoder_inputs(rows: Sequence[Sequence[Example]], length: int, pad_id: int) -> Inputs:
    arrays = [[e.encoder_input_ids for e in row if e.encoder_input_ids is not None] for row in rows]
    sizes = [[*map(len, row)] for row in arrays]
    numbers = [range(len(row)) for row in arrays]
    return Inputs(
        input_ids=pad_rows(arrays, length, pad_id),
        attention_mask=AttentionMask.bidirectional(
            repeat_by_size(numbers, sizes, length, PADDING_ID)
        ),
        position_ids=count_by_size(sizes, length),
    )


def pad_rows(rows: Sequence[Sequence[IntArray]], length: int, fill: int) -> Tensor:
    """Concatenate the arrays of each row and pad: (rows, length), or more axes if these have."""
    inner = next((array.shape[1:] for arrays in rows for array in arrays), ())
    return torch.from_numpy(_join(rows, np.full((length, *inner), fill, np.int64)))


def count_by_size(sizes: Sequence[Sequence[int]], length: int) -> Tensor:
    """Return 0, 1, 2, ... for each of the examples of a row; 0 in padding: (rows, length)."""
    count = np.arange(max((size for row in sizes for size in row), default=0))
    return pad_rows([[count[:size] for size in row] for row in sizes], length, 0)


def repeat_by_size(
    values: Sequence[Sequence[int]], sizes: Sequence[Sequence[int]], length: int, fill: int
) -> Tensor:
    """Repeat the number of each example for all its tokens: (rows, length), int32."""
    numbers = [number for row in values for number in (*row, fill)]
    counts = [size for row in sizes for size in (*row, length - sum(row))]
    flat = np.repeat(np.array(numbers, np.int32), counts)
    return torch.from_numpy(flat.reshape(len(sizes), length))


def _join(rows: Sequence[Sequence[IntArray]], padding: IntArray) -> IntArray:
    """Concatenate the arrays of each row, and the end of `padding`, which is as long as a row."""
    length, parts = len(padding), list[IntArray]()
    for arrays in rows:
        used = sum(map(len, arrays))
        assert used <= length, "the examples of a row are longer than the row"
        parts += (*arrays, padding[used:])
    joined = np.concatenate(parts, dtype=padding.dtype, casting="unsafe")
    return joined.reshape(len(rows), *padding.shape)


def select_targets(labels: Tensor, buckets: int = 64) -> tuple[TokenTargets, int]:
    """Return the positions that predict, and how many there are.

    Ignored predictions fill up to a multiple of 1/buckets of all positions, so that the number of
    predictions, and with it every shape, is the same from step to step.
    """
    flat = labels.flatten()
    positions = torch.nonzero(flat != IGNORE_INDEX)[:, 0]
    empty = -len(positions) % max(1, flat.numel() // buckets)
    ids = torch.cat([flat[positions], flat.new_full((empty,), IGNORE_INDEX)])
    return TokenTargets(ids, torch.cat([positions, positions.new_zeros(empty)])), len(positions)
