"""Record attention probabilities and hidden states of a forward pass, without changing it.

Hooks wrap the attention backend of every attention module: the recording backend computes
softmax(q k^T * scale + mask + bias) in the open. They are removed when the block ends.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from kinfolk.attention_mask import AttentionBackend
from kinfolk.nn.attention import Attention, CrossAttention, MaskedSdpa, UnmaskedSdpa
from kinfolk.nn.language_model import LanguageModel, LayerStack, SharedLayers
from kinfolk.nn.relative_attention import RelativeAttention, RelativeContext

CROSS, QUERY = "cross", "query"  # streams besides those of a stack of layers


@dataclass
class Recording:
    """What the layers of a network computed, in the order in which they ran.

    A stack of layers has the name of its parent: `encoder`, `decoder`, `generator`; "" where the
    network has one. Cross-attention is `cross`, and the query stream of XLNet is `query`.
    """

    attention: dict[str, list[Tensor]] = field(default_factory=dict)  # (batch, heads, query, key)
    # The input of the first layer and the output of each, before the norm after the last one.
    hidden: dict[str, list[Tensor]] = field(default_factory=dict)  # (batch, length, size)

    def add_attention(self, name: str, probabilities: Tensor) -> None:
        """Keep the probabilities of one layer."""
        self.attention.setdefault(name, []).append(probabilities)

    def add_layer(self, name: str, before: Tensor, after: Tensor) -> None:
        """Keep the output of a layer, and the input of the first."""
        self.hidden.setdefault(name, [before]).append(after)


@dataclass(frozen=True, eq=False)
class RecordingBackend:
    """An attention backend that computes the probabilities of another one and keeps them."""

    backend: AttentionBackend
    recording: Recording
    name: str

    def __call__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        /,
        *,
        scale: float | None,
        dropout: float,
        bias: Tensor | None = None,
    ) -> Tensor:
        """Attend as the other backend does, in several operations."""
        assert dropout == 0, "probabilities are recorded in evaluation mode"
        scores = masked_scores(self.backend, query, key, scale=scale, bias=bias)
        # As in torch's kernels, a query without a key (padding) attends to nothing.
        empty = scores.isneginf().all(-1, keepdim=True)
        probabilities = scores.softmax(-1).masked_fill(empty, 0.0)
        self.recording.add_attention(self.name, probabilities)
        return probabilities @ value


def masked_scores(
    backend: AttentionBackend,
    query: Tensor,
    key: Tensor,
    *,
    scale: float | None,
    bias: Tensor | None,
) -> Tensor:
    """Return the scores before the softmax, -inf where the mask forbids: (batch, heads, q, k)."""
    scores = query @ key.transpose(2, 3) * (query.shape[3] ** -0.5 if scale is None else scale)
    if bias is not None:
        scores = scores + bias
    if isinstance(backend, MaskedSdpa):
        if backend.mask.dtype == torch.bool:
            return scores.masked_fill(~backend.mask, float("-inf"))
        return scores + backend.mask.to(scores.dtype)
    assert isinstance(backend, UnmaskedSdpa), "recorded inputs have no block masks"
    if not backend.causal:
        return scores
    queries, keys = scores.shape[-2:]
    allowed = torch.ones(queries, keys, dtype=torch.bool, device=scores.device)
    return scores.masked_fill(~allowed.tril(keys - queries), float("-inf"))


@contextmanager
def record_layers_and_attention(model: LanguageModel) -> Iterator[Recording]:
    """Record the forward passes in the block; the network is as it was when the block ends."""
    recording, handles = Recording(), list[RemovableHandle]()
    try:
        for path, stack in layer_stacks(model).items():
            handles += _record_stack(recording, path.rpartition(".")[0], stack)
        yield recording
    finally:
        for handle in handles:
            handle.remove()


def layer_stacks(model: LanguageModel) -> dict[str, LayerStack | SharedLayers]:
    """Return the stacks of layers by their path."""
    return {
        path: part
        for path, part in model.named_modules()
        if isinstance(part, LayerStack | SharedLayers)
    }


def _record_stack(recording: Recording, name: str, stack: nn.Module) -> list[RemovableHandle]:
    """Add hooks to the layers of a stack, and to the attention modules in them."""

    def wrapped(backend: AttentionBackend, stream: str) -> RecordingBackend:
        return RecordingBackend(backend, recording, stream)

    def of_self(module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        return args[0], wrapped(args[1], name), *args[2:]

    def of_cross(module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        return args[0], args[1], wrapped(args[2], CROSS), *args[3:]

    def of_relative(module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        context: RelativeContext = args[2]
        attend = wrapped(context.attend, stream_of(args, name))
        return args[0], args[1], replace(context, attend=attend)

    def of_layer(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        if isinstance(output, Tensor):
            recording.add_layer(stream_of(args, name), args[0], output)

    def of_shared(module: nn.Module, args: tuple[Any, ...], output: list[Tensor]) -> None:
        for before, after in pairwise(output):
            recording.add_layer(name, before, after)

    handles = []
    for part in stack.modules():
        if isinstance(part, Attention):
            handles.append(part.register_forward_pre_hook(of_self))
        elif isinstance(part, CrossAttention):
            handles.append(part.register_forward_pre_hook(of_cross))
        elif isinstance(part, RelativeAttention):
            handles.append(part.register_forward_pre_hook(of_relative))
    if isinstance(stack, LayerStack):
        handles += [layer.register_forward_hook(of_layer) for layer in stack]
    else:
        handles.append(stack.register_forward_hook(of_shared))
    return handles


def stream_of(args: tuple[Any, ...], name: str) -> str:
    """Return the stream that a layer runs on: the query stream where its positions are given."""
    queries = any(isinstance(a, RelativeContext) and a.query_positions is not None for a in args)
    return QUERY if queries else name
