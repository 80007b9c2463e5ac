"""Neurons of feed-forward layers: their values in a forward pass, and passes with other values.

A neuron is a hidden unit of a feed-forward layer, after the activation function (and the gate, if
there is one), before `down_proj`. Hooks read and change them; they are removed after each pass.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from kinfolk.nn.language_model import LanguageModel
from kinfolk.nn.layers import FeedForward, GatedFeedForward
from kinfolk.nn.recording import layer_stacks

Change = Callable[[int, Tensor], Tensor]  # number of the call, (batch, length, neurons) -> the same
ForwardPass = Callable[[], Tensor]


@dataclass(frozen=True)
class NeuronLayer:
    """One application of a feed-forward layer; layers that share weights have one for each."""

    call: int  # how many feed-forward layers run before it
    stack: str  # as in `Recording`: encoder, decoder, generator; "" where the network has one
    number: int  # in its stack, from 1
    size: int  # neurons

    @property
    def title(self) -> str:
        """The name in tables."""
        return f"{self.stack} layer {self.number}".strip()


@dataclass(frozen=True, eq=False)
class ScaledNeurons:
    """Neurons by the number of their layer, and what their values are multiplied by."""

    neurons: Mapping[int, Sequence[int]]
    factor: float


def feed_forwards(model: LanguageModel) -> list[tuple[str, FeedForward | GatedFeedForward]]:
    """Return the feed-forward layers, each with the name of its stack."""
    return [
        (path.rpartition(".")[0], part)
        for path, stack in layer_stacks(model).items()
        for part in stack.modules()
        if isinstance(part, FeedForward | GatedFeedForward)
    ]


@contextmanager
def changed_neurons(model: LanguageModel, change: Change) -> Iterator[None]:
    """Replace the neurons of every feed-forward layer of one forward pass, in the order of calls.

    The network is as it was when the block ends.
    """
    calls = 0

    def hook(module: nn.Module, args: tuple[Tensor]) -> tuple[Tensor]:
        nonlocal calls
        calls += 1
        return (change(calls - 1, args[0]),)

    handles = [part.down_proj.register_forward_pre_hook(hook) for _, part in feed_forwards(model)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def record_neurons(model: LanguageModel, run: ForwardPass) -> list[tuple[NeuronLayer, Tensor]]:
    """Return the neurons of every feed-forward layer that a forward pass runs.

    Of a network with two streams (XLNet) they are those of the query stream, which predicts.
    """
    found: list[tuple[str, Tensor]] = []

    def keep(stack: str, module: nn.Module, args: tuple[Tensor]) -> None:
        found.append((stack, args[0].detach()))

    handles = [
        part.down_proj.register_forward_pre_hook(partial(keep, stack))
        for stack, part in feed_forwards(model)
    ]
    try:
        run()
    finally:
        for handle in handles:
            handle.remove()
    # Each layer of two streams runs on the query stream first, then on the content.
    layers, numbers = [], Counter[str]()
    for call in range(0, len(found), 2 if model.decoding == "two-stream" else 1):
        stack, values = found[call]
        numbers[stack] += 1
        layers.append((NeuronLayer(call, stack, numbers[stack], values.shape[-1]), values))
    return layers


def with_values(layer: NeuronLayer, positions: Tensor, values: Tensor) -> Change:
    """Put values, (batch, positions, neurons), into one layer."""

    def change(call: int, x: Tensor) -> Tensor:
        return x.index_copy(1, positions, values) if call == layer.call else x

    return change


def with_scales(
    layers: Sequence[NeuronLayer],
    positions: Sequence[Tensor],  # of each layer
    rows: Sequence[ScaledNeurons],
    device: torch.device,
) -> Change:
    """Multiply the neurons of each row of a batch, at the positions of their layer."""
    scales: dict[int, tuple[Tensor, Tensor]] = {}
    for number, (layer, where) in enumerate(zip(layers, positions, strict=True)):
        scale = torch.ones(len(rows), 1, layer.size)
        for row, scaled in enumerate(rows):
            if number in scaled.neurons:
                scale[row, 0, torch.as_tensor(scaled.neurons[number])] = scaled.factor
        if bool((scale != 1).any()):
            scales[layer.call] = where, scale.to(device)

    def change(call: int, x: Tensor) -> Tensor:
        if call not in scales:
            return x
        where, scale = scales[call]
        return x.index_copy(1, where, x.index_select(1, where) * scale.to(x.dtype))

    return change


@contextmanager
def frozen(model: LanguageModel) -> Iterator[None]:
    """Run the block without gradients of parameters; each requires them afterwards as before."""
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    for weight in trained:
        weight.requires_grad_(False)
    try:
        yield
    finally:
        for weight in trained:
            weight.requires_grad_(True)
