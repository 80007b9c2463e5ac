"""What travels between the parts: inputs, batches, outputs, losses, and what models can claim."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any, Generic, Protocol, Self, TypeVar

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from kinfolk.errors import UserError
from kinfolk.sight import Sight, Visible, blocks, see
from kinfolk.state import State as State

IGNORED = -100  # the label of what is not predicted
T = TypeVar("T")


def each(value: T, change: Callable[[Tensor], Tensor]) -> T:
    """Change every tensor in a tree of dataclasses."""
    if isinstance(value, Tensor):
        return change(value)  # type: ignore[return-value]
    if is_dataclass(value) and not isinstance(value, type):
        changes = {f.name: each(getattr(value, f.name), change) for f in fields(value)}
        return replace(value, **changes)
    return value


class Tree:
    """A dataclass of tensors that moves as a whole."""

    def to(self, device: torch.device | str) -> Self:
        """Move every tensor to a device, without waiting where memory is pinned."""
        return each(self, lambda t: t.to(device, non_blocking=True))

    def pin_memory(self) -> Self:
        """Pin every tensor, so that copies to an accelerator need not wait."""
        return each(self, lambda t: t.contiguous().pin_memory())


@dataclass(frozen=True, eq=False)
class Memory(Tree):
    """What a network keeps of the rows before these: a state of one size, given back anew.

    It holds what each layer read, without its gradient, so that a layer learns how to look at it.
    """

    hidden: Tensor  # (layers, batch, memory, width)
    document: Tensor  # (batch, memory): UNWRITTEN where there is nothing yet
    birth: Tensor  # (batch, memory)

    def before(self, sight: Sight) -> Sight:
        """Return the sight of what is remembered and of a row after it."""
        document = torch.cat([self.document, sight.document], dim=1)
        birth = torch.cat([self.birth, sight.birth], dim=1)
        return Sight(document, birth, birth)


@dataclass(frozen=True, eq=False, kw_only=True)
class Inputs(Tree):
    """All that a model may read."""

    ids: Tensor  # (batch, length)
    sight: Sight
    places: Tensor  # (batch, length): where each token stands in its own text
    segments: Tensor | None = (
        None  # (batch, length): 0 in the first text of a pair, 1 in the second
    )
    within: Tensor | None = None  # (batch, length): where each token stands in its span (GLM)
    asked: Tensor | None = None  # (batch, predictions): slots to guess without seeing (XLNet)
    source: "Inputs | None" = None  # what an encoder reads before
    state: State | None = None
    # The sight of the cached tokens and of these: `append_to_cache` sets it.
    key_mask: Sight | None = None
    memory: Memory | None = None  # of the rows before these (Transformer-XL)
    crossing: BlockMask | None = None  # who sees what of the source, once resolved
    # Who sees what of the memory and the row, under each window or none, once resolved.
    recalling: Mapping[int | None, BlockMask] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("places", "segments", "within"):
            value = getattr(self, name)
            if value is not None and value.shape != self.ids.shape:
                raise UserError(
                    f"{name} has shape {tuple(value.shape)}, ids have {tuple(self.ids.shape)}: "
                    "they must be the same"
                )
        if self.sight.document.shape != self.ids.shape:
            raise UserError(
                f"the sight has shape {tuple(self.sight.document.shape)}, "
                f"ids have {tuple(self.ids.shape)}: they must be the same"
            )

    def visible(self, *, dropout: bool = False, window: int | None = None) -> Visible:
        """Make ready who sees whom among these tokens and those the state has seen."""
        across = self.recalling.get(window)
        return see(self.sight, self.seen(), dropout=dropout, window=window, across=across)

    def across(self, *, dropout: bool = False) -> Visible:
        """Make ready who of these tokens sees what of the source: all of its own document."""
        assert self.source is not None
        return see(*self._streams(), dropout=dropout, across=self.crossing)

    def resolved(self, windows: Collection[int] = ()) -> "Inputs":
        """Find the blocks of every mask, for the block-sparse kernel; before what is compiled.

        `windows` are those of the network's banded layers: its `attention_windows`.
        """
        if self.memory is not None:
            seen = self.memory.before(self.sight)
            found = {window: blocks(self.sight, seen, window) for window in (None, *windows)}
            return replace(self, recalling=found)
        sight = self.sight.resolved(windows)
        if self.source is None:
            return replace(self, sight=sight)
        return replace(
            self, sight=sight, source=self.source.resolved(), crossing=blocks(*self._streams())
        )

    def _streams(self) -> tuple[Sight, Sight]:
        assert self.source is not None
        return Sight.full(self.sight.document), Sight.full(self.source.sight.document)

    def append_to_cache(self) -> "Inputs":
        """Add the sight of these tokens to the cache, and return the inputs that a model reads.

        It is done once a step, by whoever builds the step; nothing that a model asks changes it.
        """
        assert self.state is not None and self.key_mask is None
        return replace(self, key_mask=self.state.extend(self.sight))

    def seen(self) -> Sight:
        """Return the sight of all tokens there are: in the memory or the cache, and these."""
        if self.memory is not None:
            return self.memory.before(self.sight)
        if self.state is None:
            return self.sight
        assert self.key_mask is not None, "the tokens of a step are appended to its cache first"
        return self.key_mask

    @classmethod
    def of(cls, ids: Tensor, *, causal: bool, source: "Inputs | None" = None) -> "Inputs":
        """Wrap whole texts of one length, (batch, length), without padding."""
        document = torch.zeros_like(ids)
        sight = Sight.causal(document, plain=True) if causal else Sight.full(document, plain=True)
        places = torch.arange(ids.shape[1], device=ids.device).expand_as(ids)
        return cls(ids=ids, sight=sight, places=places, source=source)


@dataclass(frozen=True, eq=False)
class Batch(Tree, Generic[T]):
    """What a step learns from.

    `counts` says how many things each part of the loss is summed over. They are known before
    anything runs, so that a step in micro-batches divides by the same number as a whole one.
    """

    inputs: Inputs
    targets: T
    counts: Mapping[str, int]

    def after(self, memory: Memory | None) -> "Batch[T]":
        """Let the rows go on from what is remembered of those before."""
        return replace(self, inputs=replace(self.inputs, memory=memory))


@dataclass(frozen=True, eq=False)
class Labels(Tree):
    """What is predicted, and where: `at` counts through the flattened hidden states."""

    ids: Tensor  # (predictions,), IGNORED where a slot is empty
    at: Tensor | None = None  # (predictions,), None where every slot is predicted

    def select(self, hidden: Tensor) -> Tensor:
        """Pick the hidden states that predict: (predictions, width)."""
        flat = hidden.flatten(0, 1)
        return flat if self.at is None else flat.index_select(0, self.at)


@dataclass(frozen=True, eq=False)
class Output:
    """What a model says: a vector a token, and what it carries to its next call."""

    hidden: Tensor  # (batch, length, width); where slots are asked about, a vector for each
    state: State | None = None
    memory: Memory | None = None  # where one was given: for the rows that go on from these


@dataclass(frozen=True, eq=False)
class Loss:
    """Sums, never means: sums add up over micro-batches and processes."""

    sums: Mapping[str, Tensor]
    weights: Mapping[str, float] = field(default_factory=dict)
    memory: Memory | None = None  # for the next batch, where an objective carries one along

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


class Prediction(Protocol):
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

    def predict(self, hidden: Tensor, /) -> Prediction:
        """Turn hidden states into scores over the vocabulary."""
        ...


class PredictsPairs(PredictsTokens, Protocol):
    """A model that can also say whether two texts belong together."""

    def judge(self, hidden: Tensor, /) -> Tensor:
        """Turn the hidden state of each pair's first token into two scores: (pairs, 2)."""
        ...


class Detects(PredictsTokens, Protocol):
    """A model that tells which tokens its own small generator wrote; `predict` is that one's."""

    def guess(self, inputs: Inputs, /) -> Output:
        """Run the generator."""
        ...

    def detect(self, hidden: Tensor, /) -> Tensor:
        """Score whether each token was replaced: (batch, length), above zero where it was."""
        ...


class Remembers(PredictsTokens, Protocol):
    """A model that can read a text row by row, with a memory of the rows before."""

    def blank(self, rows: int, /) -> Memory:
        """Return the memory of rows that nothing stands before."""
        ...


class Objective(Protocol):
    """A way of learning: how a text becomes inputs, who sees whom, and what is scored."""

    def loss(self, model: Any, batch: Batch[Any], /) -> Loss:
        """Sum what the model got wrong."""
        ...
