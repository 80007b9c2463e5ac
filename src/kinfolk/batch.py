"""The data types of a training step: inputs, batches, targets, outputs, losses, lazy logits."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import Tensor

from kinfolk.attention_mask import AttentionMask, SparseKernel, SparseMask, sparse_mask
from kinfolk.errors import UserError
from kinfolk.kv_cache import KVCache as KVCache
from kinfolk.tensor_tree import BufferTensors, Place, lay_out, moved_with, write_buffer
from kinfolk.tensor_tree import TensorTree as TensorTree
from kinfolk.tensor_tree import tree_map as tree_map

IGNORE_INDEX = -100  # the label of a position that is not predicted
T = TypeVar("T")


def with_texts(value: T) -> T:
    """Find the texts of every attention mask in a tree of dataclasses, for recurrent layers."""
    return tree_map(value, AttentionMask.with_texts, AttentionMask)


def with_sequence_offsets(value: T) -> T:
    """Find the documents of every attention mask in a tree of dataclasses, for varlen attention."""
    return tree_map(value, AttentionMask.with_sequence_offsets, AttentionMask)


def gather_positions(hidden: Tensor, positions: Tensor | None) -> Tensor:
    """Gather hidden states by position in the flattened rows, all by default: (positions, size)."""
    flat = hidden.flatten(0, 1)
    return flat if positions is None else flat.index_select(0, positions)


@dataclass(frozen=True, eq=False)
class SegmentMemory(TensorTree):
    """The inputs of each layer for earlier segments, of fixed length (Transformer-XL).

    They are detached: no gradient flows into earlier segments.
    """

    hidden: Tensor  # (layers, batch, memory, hidden_size)
    document_ids: Tensor  # (batch, memory): EMPTY_SLOT_ID in empty slots
    key_order: Tensor  # (batch, memory)

    def key_mask(self, attention_mask: AttentionMask) -> AttentionMask:
        """Return the mask of the memory and of the segment after it."""
        document_ids = torch.cat([self.document_ids, attention_mask.document_ids], dim=1)
        key_order = torch.cat([self.key_order, attention_mask.key_order], dim=1)
        return AttentionMask(document_ids, key_order, key_order)


@dataclass(frozen=True, eq=False, kw_only=True)
class Inputs(TensorTree):
    """All inputs of a model."""

    input_ids: Tensor  # (batch, length)
    attention_mask: AttentionMask
    position_ids: Tensor  # (batch, length): position of each token in its own text
    # (batch, length): 0 in the first text of a pair, 1 in the second
    token_type_ids: Tensor | None = None
    block_position_ids: Tensor | None = None  # (batch, length): position in the span (GLM)
    # (batch, length, characters): of each token; None: those that the network knows by its id
    character_ids: Tensor | None = None
    # (batch, predictions): target positions of the query stream (XLNet)
    target_positions: Tensor | None = None
    # (predictions,): the only hidden states that are read, by position in the flattened rows; of
    # networks that declare `skips_unread`
    read_positions: Tensor | None = None
    encoder_inputs: "Inputs | None" = None  # of an encoder-decoder
    # (batch, length, hidden_size): the output of the stage before this one (pipeline parallel)
    hidden: Tensor | None = None
    cache: KVCache | None = None
    # Mask of the cached tokens and of these; `append_to_cache` sets it.
    key_mask: AttentionMask | None = None
    memory: SegmentMemory | None = None  # of the rows before these (Transformer-XL)
    cross_block_mask: SparseMask | None = None  # of the encoder's tokens; see with_block_masks
    # Of the memory and the row, by window; None is without one; see with_block_masks.
    memory_block_masks: Mapping[int | None, SparseMask] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("position_ids", "token_type_ids", "block_position_ids"):
            value = getattr(self, name)
            if value is not None and value.shape != self.input_ids.shape:
                raise UserError(
                    f"{name} has shape {tuple(value.shape)}, "
                    f"input_ids have {tuple(self.input_ids.shape)}: they must be the same"
                )
        if self.attention_mask.document_ids.shape != self.input_ids.shape:
            raise UserError(
                f"the attention mask has shape {tuple(self.attention_mask.document_ids.shape)}, "
                f"input_ids have {tuple(self.input_ids.shape)}: they must be the same"
            )

    def with_block_masks(
        self, windows: Collection[int] = (), kernel: SparseKernel = "flex"
    ) -> "Inputs":
        """Compute the block mask of every mask, for a block-sparse kernel, outside compiled code.

        `windows` are those of the network's banded layers: its `attention_windows`.
        """
        if self.memory is not None:
            key_mask = self.memory.key_mask(self.attention_mask)
            block_masks = {
                window: sparse_mask(kernel, self.attention_mask, key_mask, window)
                for window in (None, *windows)
            }
            return replace(self, memory_block_masks=block_masks)
        attention_mask = self.attention_mask.with_block_masks(windows, kernel)
        if self.encoder_inputs is None:
            return replace(self, attention_mask=attention_mask)
        return replace(
            self,
            attention_mask=attention_mask,
            encoder_inputs=self.encoder_inputs.with_block_masks(kernel=kernel),
            cross_block_mask=sparse_mask(kernel, *self.cross_masks()),
        )

    def cross_masks(self) -> tuple[AttentionMask, AttentionMask]:
        """Return the masks of queries and keys of cross-attention: only documents matter.

        Padding attends to the document of the first encoder token: its row of the encoder may have
        no padding, and the softmax of a query that attends to nothing is not defined.
        """
        assert self.encoder_inputs is not None
        own = self.attention_mask.document_ids
        source = self.encoder_inputs.attention_mask.document_ids
        return (
            AttentionMask.bidirectional(torch.where(own < 0, source[:, :1], own)),
            AttentionMask.bidirectional(source),
        )

    def select(self, tokens: slice) -> "Inputs":
        """Return a part of each row, of one stream and without block masks."""
        return Inputs(
            input_ids=self.input_ids[:, tokens],
            attention_mask=self.attention_mask.select(tokens),
            position_ids=self.position_ids[:, tokens],
            cache=self.cache,
        )

    def append_to_cache(self) -> "Inputs":
        """Append the mask of these tokens to the cache and return the inputs of the model.

        It is called once per decoding step.
        """
        assert self.cache is not None and self.key_mask is None
        return replace(self, key_mask=self.cache.append_mask(self.attention_mask))

    def full_key_mask(self) -> AttentionMask:
        """Return the mask of all keys: the memory or the cache, then these tokens."""
        if self.memory is not None:
            return self.memory.key_mask(self.attention_mask)
        if self.cache is None:
            return self.attention_mask
        assert self.key_mask is not None, "call append_to_cache() first"
        return self.key_mask

    @classmethod
    def from_ids(
        cls, input_ids: Tensor, *, causal: bool, encoder_inputs: "Inputs | None" = None
    ) -> "Inputs":
        """Wrap whole texts of one length, (batch, length), without padding."""
        document = torch.zeros_like(input_ids)
        attention_mask = (
            AttentionMask.causal(document, unpacked=True)
            if causal
            else AttentionMask.bidirectional(document, unpacked=True)
        )
        position_ids = torch.arange(input_ids.shape[1], device=input_ids.device).expand_as(
            input_ids
        )
        return cls(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            encoder_inputs=encoder_inputs,
        )


@dataclass(frozen=True, eq=False)
class Batch(Generic[T]):
    """The data of a training step.

    `counts` has the number of terms in each component of the loss. It is known before the forward
    pass, so that a step in micro-batches divides by the same number as a whole one.
    """

    inputs: Inputs
    targets: T
    counts: Mapping[str, int]
    buffer: Tensor | None = None  # bytes of which the others are views; None: each has its own

    @classmethod
    def in_buffer(cls, layout: "Batch[T]", buffer: Tensor, counts: Mapping[str, int]) -> "Batch[T]":
        """Return the batch whose tensors lie in a buffer."""
        tensor_at = BufferTensors(buffer)
        inputs = tree_map(layout.inputs, tensor_at, Place)
        return cls(inputs, tree_map(layout.targets, tensor_at, Place), counts, buffer)

    def to(self, device: torch.device | str, *, copy: bool = False) -> "Batch[T]":
        """Copy every tensor to a device, asynchronously from pinned memory, a buffer as a whole.

        With `copy`, also those that are there already.
        """

        def move(tensor: Tensor) -> Tensor:
            return tensor.to(device, non_blocking=True, copy=copy)

        change: Callable[[Tensor], Tensor] = move
        buffer = None if self.buffer is None else move(self.buffer)
        if self.buffer is not None and buffer is not None and buffer is not self.buffer:
            change = moved_with(self.buffer, buffer, move)
        inputs, targets = tree_map(self.inputs, change), tree_map(self.targets, change)
        return Batch(inputs, targets, self.counts, buffer)

    def pin_memory(self) -> "Batch[T]":
        """Copy all tensors to one buffer of pinned memory, from which copies are asynchronous."""
        layout, tensors, size = lay_out(replace(self, buffer=None))
        buffer = torch.empty(size, dtype=torch.uint8, pin_memory=True)
        write_buffer(tensors, buffer)
        return Batch.in_buffer(layout, buffer, self.counts)

    def with_memory(self, memory: SegmentMemory | None) -> "Batch[T]":
        """Return the batch with the memory of the rows before."""
        return replace(self, inputs=replace(self.inputs, memory=memory))


@dataclass(frozen=True, eq=False)
class TokenTargets(TensorTree):
    """Labels and their positions in the flattened hidden states."""

    labels: Tensor  # (predictions,), IGNORE_INDEX where there is no label
    positions: Tensor | None = None  # (predictions,), None where every position is predicted

    def gather(self, hidden: Tensor) -> Tensor:
        """Gather the hidden states at the positions: (predictions, hidden_size)."""
        return gather_positions(hidden, self.positions)


@dataclass(frozen=True, eq=False)
class Output:
    """The output of a model: hidden states, and the state for its next call."""

    # (batch, length, hidden_size); (batch, predictions, ...) of target_positions and
    # (1, predictions, ...) of read_positions
    hidden: Tensor
    cache: KVCache | None = None
    memory: SegmentMemory | None = None  # for the next segment, if the inputs had one
    undropped: Tensor | None = None  # the hidden states before dropout, where they are penalized


@dataclass(frozen=True, eq=False)
class Loss:
    """Summed losses by name: unlike means, sums add up over micro-batches and processes."""

    sums: Mapping[str, Tensor]
    weights: Mapping[str, float] = field(default_factory=dict)
    memory: SegmentMemory | None = None  # for the next batch

    def __add__(self, other: "Loss") -> "Loss":
        names, losses = dict.fromkeys([*self.sums, *other.sums]), (self, other)
        return Loss(
            {n: sum(loss.sums[n] for loss in losses if n in loss.sums) for n in names},  # type: ignore[misc]
            {**self.weights, **other.weights},
        )

    def mean(self, counts: Mapping[str, int]) -> Tensor:
        """Return the weighted sum of the mean losses: the value that is differentiated."""
        # Each operation on a number costs the host as much as one on a matrix.
        parts = [
            (total if (weight := self.weights.get(name, 1.0)) == 1 else weight * total)
            / max(counts[name], 1)
            for name, total in self.sums.items()
        ]
        return parts[0] if len(parts) == 1 else torch.stack(parts).sum()

    def means(self, counts: Mapping[str, int]) -> dict[str, float]:
        """Return the mean of each loss by name, without its weight."""
        return {name: float(total) / max(counts[name], 1) for name, total in self.sums.items()}


class LazyLogits(Protocol):
    """Logits over the vocabulary that are computed on demand."""

    def logits(self) -> Tensor:
        """Return the logits: (..., vocabulary)."""
        ...

    def nll(self, labels: Tensor, /) -> Tensor:
        """Return the summed negative log-likelihood of the labels, in nats."""
        ...


class ComputesLoss(Protocol):
    """A pretraining objective, or a formulation of a task, as a training step knows it."""

    def loss(self, model: Any, batch: Batch[Any], /) -> Loss:
        """Return the summed losses of a batch."""
        ...
