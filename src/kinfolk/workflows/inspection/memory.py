"""The activations that a training step keeps for its backward pass, counted without running it."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from kinfolk.attention_mask import AttentionBackend
from kinfolk.batch import Inputs
from kinfolk.families.electra import Electra
from kinfolk.families.elmo import ELMo
from kinfolk.nn.attention import Attention, CrossAttention, MaskedSdpa
from kinfolk.nn.characters import CharacterEmbedding
from kinfolk.nn.language_model import EncoderDecoder, LanguageModel
from kinfolk.nn.relative_attention import RelativeAttention

LSTM_VALUES = 6  # of a cell and a token: four gates, the cell state and its tanh


class FusedAttention(torch.autograd.Function):
    """A stand-in for a fused kernel: it keeps inputs and output, and no probabilities."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None) -> Tensor:
        """Return a tensor of the output's shape."""
        batch, heads, length, _ = query.shape
        out = query.new_empty(batch, length, heads, value.shape[3]).transpose(1, 2)
        logsumexp = query.new_empty(batch, heads, length)
        ctx.save_for_backward(query, key, value, out, logsumexp, *([] if bias is None else [bias]))
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        """Refuse: nothing was computed."""
        raise NotImplementedError


def fused(backend: AttentionBackend) -> AttentionBackend:
    """Return a backend that keeps what a fused kernel keeps."""

    def attend(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        /,
        *,
        scale: float | None,
        dropout: float,
        bias: Tensor | None = None,
    ) -> Tensor:
        mask = backend.mask if isinstance(backend, MaskedSdpa) else None
        learned = mask if mask is not None and mask.requires_grad else None
        kernel: Any = FusedAttention
        out: Tensor = kernel.apply(query, key, value, learned if bias is None else bias)
        return out

    return attend


@contextmanager
def fused_attention(model: nn.Module) -> Iterator[None]:
    """Let the attention modules of a network keep what they keep under a fused kernel."""

    def of_self(_: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        return args[0], fused(args[1]), *args[2:]

    def of_cross(_: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        return args[0], args[1], fused(args[2]), *args[3:]

    def of_relative(_: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        return args[0], args[1], replace(args[2], attend=fused(args[2].attend))

    hooks = ((Attention, of_self), (CrossAttention, of_cross), (RelativeAttention, of_relative))
    handles = [
        part.register_forward_pre_hook(hook)
        for part in model.modules()
        for kind, hook in hooks
        if isinstance(part, kind)
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def activation_bytes(model: LanguageModel, length: int) -> int:
    """Return the bytes that a row of this length keeps, of a network on the meta device.

    Encoder and decoder read as many tokens each. The loss keeps no logits, which are computed in
    chunks.
    """
    layers = [part for part in model.modules() if isinstance(part, nn.LSTM)]
    if layers:
        reads = 2 if isinstance(model, ELMo) else 1  # both language models read the words
        words = sum(
            character_bytes(part, length)
            for part in model.modules()
            if isinstance(part, CharacterEmbedding)
        )
        return reads * words + 4 * length * sum(map(lstm_values, layers))
    ids = torch.zeros(1, length, dtype=torch.int64, device="meta")
    encoder = Inputs.from_ids(ids, causal=False) if isinstance(model, EncoderDecoder) else None
    inputs = Inputs.from_ids(ids, causal=model.architecture != "encoder", encoder_inputs=encoder)
    return saved_bytes(model, inputs)


def lstm_values(layer: nn.LSTM) -> int:
    """Return the numbers that an LSTM layer keeps of each token: inputs, gates and states."""
    directions = 2 if layer.bidirectional else 1
    return layer.input_size + directions * (
        LSTM_VALUES * layer.hidden_size + (layer.proj_size or layer.hidden_size)
    )


def character_bytes(embedding: CharacterEmbedding, words: int) -> int:
    """Return the bytes that the character CNN keeps of different words, on the meta device."""
    characters = embedding.table.new_empty((words, embedding.table.shape[1]), dtype=torch.int64)
    return kept_bytes(embedding.cnn, lambda: [embedding.cnn(characters)])


def saved_bytes(model: LanguageModel, inputs: Inputs) -> int:
    """Return the bytes of all tensors that a forward pass saves, parameters left out."""

    def run() -> list[Tensor]:
        outputs = [model(inputs).hidden]
        if isinstance(model, Electra):
            outputs.append(model.forward_lm(inputs).hidden)
        return outputs

    training = model.training
    model.train()
    with fused_attention(model):
        found = kept_bytes(model, run)
    model.train(training)
    return found


def kept_bytes(module: nn.Module, run: Callable[[], Sequence[Tensor]]) -> int:
    """Return the bytes of all tensors that a forward pass of a module saves, but its parameters."""
    weights = {weight.untyped_storage()._cdata for weight in module.parameters()}
    kept: dict[int, tuple[int, Tensor]] = {}

    def keep(saved: Tensor) -> Tensor:
        storage = saved.untyped_storage()
        if storage._cdata not in weights:
            kept[storage._cdata] = storage.nbytes(), saved  # held, so that no number is used twice
        return saved

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        _outputs = run()  # held until all is counted
    return sum(size for size, _ in kept.values())
