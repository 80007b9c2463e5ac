"""What travels between the parts: inputs, batches, outputs, losses, and what models can claim."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any, Generic, Protocol, Self, TypeVar

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from kinfolk.attention_mask import (
    AttentionBackend,
    AttentionMask,
    block_mask_from_bounds,
    select_backend,
)
from kinfolk.errors import UserError
from kinfolk.kv_cache import KVCache as KVCache

IGNORE_INDEX = -100  # the label of what is not predicted
T = TypeVar("T")


def tree_map(value: T, change: Callable[[Tensor], Tensor]) -> T:
    """Change every tensor in a tree of dataclasses."""
    if isinstance(value, Tensor):
        return change(value)  # type: ignore[return-value]
    if is_dataclass(value) and not isinstance(value, type):
        changes = {f.name: tree_map(getattr(value, f.name), change) for f in fields(value)}
        return replace(value, **changes)
    return value


class TensorTree:
    """A dataclass of tensors that moves as a whole."""

    def to(self, device: torch.device | str) -> Self:
        """Move every tensor to a device, without waiting where memory is pinned."""
        return tree_map(self, lambda t: t.to(device, non_blocking=True))

    def pin_memory(self) -> Self:
        """Pin every tensor, so that copies to an accelerator need not wait."""
        return tree_map(self, lambda t: t.contiguous().pin_memory())


@dataclass(frozen=True, eq=False)
class SegmentMemory(TensorTree):
    """What a network keeps of the rows before these: a state of one size, given back anew.

    It holds what each layer read, without its gradient, so that a layer learns how to look at it.
    """

    hidden: Tensor  # (layers, batch, memory, width)
    document_ids: Tensor  # (batch, memory): UNWRITTEN where there is nothing yet
    key_order: Tensor  # (batch, memory)

    def key_mask(self, attention_mask: AttentionMask) -> AttentionMask:
        """Return the sight of what is remembered and of a row after it."""
        document = torch.cat([self.document_ids, attention_mask.document_ids], dim=1)
        key_order = torch.cat([self.key_order, attention_mask.key_order], dim=1)
        return AttentionMask(document, key_order, key_order)


@dataclass(frozen=True, eq=False, kw_only=True)
class Inputs(TensorTree):
    """All that a model may read."""

    input_ids: Tensor  # (batch, length)
    attention_mask: AttentionMask
    position_ids: Tensor  # (batch, length): where each token stands in its own text
    token_type_ids: Tensor | None = (
        None  # (batch, length): 0 in the first text of a pair, 1 in the second
    )
    block_position_ids: Tensor | None = (
        None  # (batch, length): where each token stands in its span (GLM)
    )
    target_positions: Tensor | None = (
        None  # (batch, predictions): slots to guess without seeing (XLNet)
    )
    encoder_inputs: "Inputs | None" = None  # what an encoder reads before
    cache: KVCache | None = None
    # The sight of the cached tokens and of these: `append_to_cache` sets it.
    key_mask: AttentionMask | None = None
    memory: SegmentMemory | None = None  # of the rows before these (Transformer-XL)
    cross_block_mask: BlockMask | None = None  # who sees what of the source, once resolved
    # Who sees what of the memory and the row, under each window or none, once resolved.
    memory_block_masks: Mapping[int | None, BlockMask] = field(default_factory=dict)

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

    def attention_backend(
        self, *, dropout: bool = False, window: int | None = None
    ) -> AttentionBackend:
        """Make ready who sees whom among these tokens and those the state has seen."""
        across = self.memory_block_masks.get(window)
        return select_backend(
            self.attention_mask,
            self.full_key_mask(),
            dropout=dropout,
            window=window,
            block_mask=across,
        )

    def cross_attention_backend(self, *, dropout: bool = False) -> AttentionBackend:
        """Make ready who of these tokens sees what of the source: all of its own document."""
        assert self.encoder_inputs is not None
        return select_backend(*self._streams(), dropout=dropout, block_mask=self.cross_block_mask)

    def with_block_masks(self, windows: Collection[int] = ()) -> "Inputs":
        """Find the blocks of every mask, for the block-sparse kernel; before what is compiled.

        `windows` are those of the network's banded layers: its `attention_windows`.
        """
        if self.memory is not None:
            seen = self.memory.key_mask(self.attention_mask)
            found = {
                window: block_mask_from_bounds(self.attention_mask, seen, window)
                for window in (None, *windows)
            }
            return replace(self, memory_block_masks=found)
        attention_mask = self.attention_mask.with_block_masks(windows)
        if self.encoder_inputs is None:
            return replace(self, attention_mask=attention_mask)
        return replace(
            self,
            attention_mask=attention_mask,
            encoder_inputs=self.encoder_inputs.with_block_masks(),
            cross_block_mask=block_mask_from_bounds(*self._streams()),
        )

    def _streams(self) -> tuple[AttentionMask, AttentionMask]:
        assert self.encoder_inputs is not None
        return AttentionMask.bidirectional(
            self.attention_mask.document_ids
        ), AttentionMask.bidirectional(self.encoder_inputs.attention_mask.document_ids)

    def append_to_cache(self) -> "Inputs":
        """Add the sight of these tokens to the cache, and return the inputs that a model reads.

        It is done once a step, by whoever builds the step; nothing that a model asks changes it.
        """
        assert self.cache is not None and self.key_mask is None
        return replace(self, key_mask=self.cache.append_mask(self.attention_mask))

    def full_key_mask(self) -> AttentionMask:
        """Return the sight of all tokens there are: in the memory or the cache, and these."""
        if self.memory is not None:
            return self.memory.key_mask(self.attention_mask)
        if self.cache is None:
            return self.attention_mask
        assert self.key_mask is not None, "the tokens of a step are appended to its cache first"
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
class Batch(TensorTree, Generic[T]):
    """What a step learns from.

    `counts` says how many things each part of the loss is summed over. They are known before
    anything runs, so that a step in micro-batches divides by the same number as a whole one.
    """

    inputs: Inputs
    targets: T
    counts: Mapping[str, int]

    def with_memory(self, memory: SegmentMemory | None) -> "Batch[T]":
        """Let the rows go on from what is remembered of those before."""
        return replace(self, inputs=replace(self.inputs, memory=memory))


@dataclass(frozen=True, eq=False)
class TokenTargets(TensorTree):
    """What is predicted, and where: `at` counts through the flattened hidden states."""

    labels: Tensor  # (predictions,), IGNORED where a slot is empty
    positions: Tensor | None = None  # (predictions,), None where every slot is predicted

    def gather(self, hidden: Tensor) -> Tensor:
        """Pick the hidden states that predict: (predictions, width)."""
        flat = hidden.flatten(0, 1)
        return flat if self.positions is None else flat.index_select(0, self.positions)


@dataclass(frozen=True, eq=False)
class Output:
    """What a model says: a vector a token, and what it carries to its next call."""

    hidden: Tensor  # (batch, length, width); where slots are asked about, a vector for each
    cache: KVCache | None = None
    memory: SegmentMemory | None = None  # where one was given: for the rows that go on from these


@dataclass(frozen=True, eq=False)
class Loss:
    """Sums, never means: sums add up over micro-batches and processes."""

    sums: Mapping[str, Tensor]
    weights: Mapping[str, float] = field(default_factory=dict)
    memory: SegmentMemory | None = None  # for the next batch, where an objective carries one along

    def __add__(self, other: "Loss") -> "Loss":
        names = self.sums.keys() | other.sums.keys()
        parts = [{n: loss.sums[n] for n in names & loss.sums.keys()} for loss in (self, other)]
        return Loss(
            {n: sum(part[n] for part in parts if n in part) for n in sorted(names)},  # type: ignore[misc]
            {**self.weights, **other.weights},
        )

    def mean(self, counts: Mapping[str, int]) -> Tensor:
        """Divide each part by its count and add the parts by weight: what is differentiated."""
        parts = [
            self.weights.get(name, 1.0) * total / max(counts[name], 1)
            for name, total in self.sums.items()
        ]
        return torch.stack(parts).sum()


class LazyLogits(Protocol):
    """Scores over the vocabulary that are not computed before somebody asks."""

    def logits(self) -> Tensor:
        """Return the scores: (..., vocabulary)."""
        ...

    def nll(self, labels: Tensor, /) -> Tensor:
        """Return the summed negative log-likelihood of the labels, in nats."""
        ...


class Model(Protocol):
    """A network: it obeys the sight in its inputs and knows no objective."""

    @property
    def config(self) -> Any:
        """The frozen value it was built from."""
        ...

    def __call__(self, inputs: Inputs, /) -> Output:
        """Run the network."""
        ...


class PredictsTokens(Model, Protocol):
    """A model that can say which token stands at a place."""

    def lm_logits(self, hidden: Tensor, /) -> LazyLogits:
        """Turn hidden states into scores over the vocabulary."""
        ...


class SentencePairModel(PredictsTokens, Protocol):
    """A model that can also say whether two texts belong together."""

    def seq_relationship_logits(self, hidden: Tensor, /) -> Tensor:
        """Turn the hidden state of each pair's first token into two scores: (pairs, 2)."""
        ...


class DiscriminatorModel(PredictsTokens, Protocol):
    """A model that tells which tokens its own small generator wrote; `predict` is that one's."""

    def forward_lm(self, inputs: Inputs, /) -> Output:
        """Run the generator."""
        ...

    def discriminator_logits(self, hidden: Tensor, /) -> Tensor:
        """Score whether each token was replaced: (batch, length), above zero where it was."""
        ...


class RecurrentModel(PredictsTokens, Protocol):
    """A model that can read a text row by row, with a memory of the rows before."""

    def init_memory(self, rows: int, /) -> SegmentMemory:
        """Return the memory of rows that nothing stands before."""
        ...


class ComputesLoss(Protocol):
    """An objective or a formulation of a task, as a training step knows it."""

    def loss(self, model: Any, batch: Batch[Any], /) -> Loss:
        """Return the sums of the loss."""
        ...
