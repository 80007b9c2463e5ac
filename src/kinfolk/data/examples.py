"""Training examples, and collating rows of them into tensors.

Objectives and labelled tasks build the same `Example`, and one `collate` serves both.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

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
    starts = [np.cumsum([0, *row])[:-1] for row in sizes]

    def optional(of: Callable[[Example], IntArray | None]) -> Tensor | None:
        arrays = [[array for e in row if (array := of(e)) is not None] for row in rows]
        if not any(arrays):
            return None
        assert all(len(some) == len(row) for some, row in zip(arrays, rows, strict=True))
        return pad_rows(arrays, length, 0)

    document_ids, position_ids = document_and_position_ids(
        sizes, length, [[e.document_id for e in row] for row in rows]
    )
    own_positions = optional(lambda e: e.position_ids)
    inputs = Inputs(
        input_ids=pad_rows([[e.input_ids for e in row] for row in rows], length, pad_id),
        attention_mask=_attention_mask(rows, starts, document_ids),
        position_ids=position_ids if own_positions is None else own_positions,
        token_type_ids=optional(lambda e: e.token_type_ids),
        block_position_ids=optional(lambda e: e.block_position_ids),
        character_ids=optional(lambda e: e.character_ids),
        encoder_inputs=_encoder_inputs(rows, encoder_length[0], pad_id) if encoder_length else None,
    )
    flat = [row * length + start for row, start in enumerate(starts)]
    return Collated(inputs, np.concatenate(flat).astype(np.int64))


def _attention_mask(
    rows: Sequence[Sequence[Example]], starts: Sequence[IntArray], document_ids: Tensor
) -> AttentionMask:
    """Return the mask of packed examples.

    The order of an example is raised by where it starts in its row: the mask is the same, and its
    blocks tell earlier documents from later ones. Documents that continue keep their own order,
    which the memory of earlier batches shares.
    """
    if all(e.order is None for row in rows for e in row):
        return AttentionMask.bidirectional(document_ids)
    orders = np.tile(np.arange(document_ids.shape[1], dtype=np.int32), (len(rows), 1))
    for order, row, first in zip(orders, rows, starts, strict=True):
        for example, start in zip(row, first.tolist(), strict=True):
            stop = start + len(example.input_ids)
            order[start:stop] = 0 if example.order is None else example.order
            order[start:stop] += start if example.document_id is None else 0
    tensor = torch.from_numpy(orders)
    return AttentionMask(document_ids, tensor, tensor)


def _encoder_inputs(rows: Sequence[Sequence[Example]], length: int, pad_id: int) -> Inputs:
    arrays = [[e.encoder_input_ids for e in row if e.encoder_input_ids is not None] for row in rows]
    document_ids, position_ids = document_and_position_ids(
        [[len(array) for array in row] for row in arrays], length
    )
    return Inputs(
        input_ids=pad_rows(arrays, length, pad_id),
        attention_mask=AttentionMask.bidirectional(document_ids),
        position_ids=position_ids,
    )


def pad_rows(rows: Sequence[Sequence[IntArray]], length: int, fill: int) -> Tensor:
    """Concatenate the arrays of each row and pad: (rows, length), or more axes if these have."""
    inner = next((array.shape[1:] for arrays in rows for array in arrays), ())
    padded = np.full((len(rows), length, *inner), fill, np.int64)
    for row, arrays in zip(padded, rows, strict=True):
        if arrays:
            joined = np.concatenate(arrays)
            row[: len(joined)] = joined
    return torch.from_numpy(padded)


def document_and_position_ids(
    sizes: Sequence[Sequence[int]],
    length: int,
    ids: Sequence[Sequence[int | None]] | None = None,
) -> tuple[Tensor, Tensor]:
    """Return document ids, by default counted in each row, and positions: two (rows, length)."""
    document_ids = np.full((len(sizes), length), PADDING_ID, np.int32)
    position_ids = np.zeros((len(sizes), length), np.int64)
    for row, lengths in enumerate(sizes):
        counts, total = np.array(lengths, np.int64), sum(lengths)
        known = [None] * len(lengths) if ids is None else ids[row]
        numbers = np.array([i if d is None else d for i, d in enumerate(known)], np.int64)
        document_ids[row, :total] = np.repeat(numbers, counts)
        starts = np.cumsum(counts) - counts
        position_ids[row, :total] = np.arange(total) - np.repeat(starts, counts)
    return torch.from_numpy(document_ids), torch.from_numpy(position_ids)


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
