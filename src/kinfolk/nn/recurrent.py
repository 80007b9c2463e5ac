"""Recurrent layers over packed rows: a text starts from zeros, or continues the row before.

A `Recurrence` is one forward pass of LSTM layers. Where each row is one text, layers read whole
rows; else they read the texts of all rows in the order of a `PackedSequence`, so that no state
crosses from one text to another.
"""

import warnings
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kinfolk.attention_mask import EMPTY_SLOT_ID
from kinfolk.batch import Inputs, Output, SegmentMemory
from kinfolk.packed_texts import PackedTexts, WholeRows

LSTMState = tuple[Tensor, Tensor]  # hidden and cell state: (directions, texts or rows, size)
STATES, STATE_DOCUMENTS = 0, 1  # keys of KVCache.extra
SCATTERED_WEIGHTS = "RNN module weights are not part of single"  # a warning of torch
MAX_ERROR = 0.03  # of a bfloat16 LSTM over 70 steps; 0.01 is that of rounding


@torch.no_grad()
def open_forget_gates_(model: nn.Module) -> None:
    """Set the biases of the forget gates to 1, all others to 0 (Jozefowicz et al. 2015)."""
    for module in model.modules():
        if not isinstance(module, nn.LSTM):
            continue
        for name, parameter in module.named_parameters():  # torch's own names
            if name.startswith(("bias_ih", "bias_hh")):  # gates: input, forget, cell, output
                parameter.zero_()
            if name.startswith("bias_ih"):
                parameter.chunk(4)[1].fill_(1.0)


def run_eagerly(run: Callable[[Inputs], Output], inputs: Inputs) -> Output:
    """Run a network whose shapes depend on the lengths of texts, outside of compiled code."""
    # A decorator would import the compiler with the file of a network, which takes seconds.
    if torch.compiler.is_compiling():
        return torch.compiler.disable(run)(inputs)
    return run(inputs)


class Recurrence:
    """One forward pass of LSTM layers over the texts of packed rows.

    The first text of a row continues from the memory or the cache if it is the same document; all
    others start from zeros. `carried` are the layers whose states are kept for the next row, in
    the order in which they run.
    """

    def __init__(self, inputs: Inputs, carried: Sequence[nn.LSTM] = ()) -> None:
        self.inputs, self.carried = inputs, carried
        # From the batch, or found now: on an accelerator, this waits for it.
        self.texts = inputs.attention_mask.find_texts()
        self.initial = self._initial_states()  # two of each layer, before the first token of a text
        self.final: list[Tensor] = []  # the same after the last token of a text
        self.copies: dict[nn.LSTM, list[Tensor]] = {}  # weights in the type that layers run in

    def flatten(self, x: Tensor) -> Tensor:
        """Return the vectors of rows, (rows, length, size), as layers read them."""
        return self.texts.flatten(x)

    def unflatten(self, x: Tensor) -> Tensor:
        """Return the vectors to their rows: (rows, length, size); those of padding are zero."""
        return self.texts.unflatten(x)

    def locked_dropout(self, x: Tensor, rate: float, *, training: bool) -> Tensor:
        """Drop the same features of all tokens of a text (Gal and Ghahramani 2016)."""
        return x * self.texts.dropout_mask(x, rate) if training and rate > 0 else x

    def run(
        self, layer: nn.LSTM, x: Tensor, *, weight_dropout: float = 0.0, cast_back: bool = True
    ) -> Tensor:
        """Run a layer on flattened vectors and keep its states.

        `weight_dropout` is the rate at which recurrent weights are dropped in training, the same
        for all tokens (Merity et al. 2018, section 2). Without `cast_back` the output has the type
        in which the layer ran, for a layer that runs in the same.
        """
        own, dtype = layer.all_weights[0][0].dtype, lstm_dtype(layer, x.device)
        # Autocast itself would run cuDNN in float16, in which small gradients are lost.
        with torch.autocast(x.device.type, enabled=False):
            x = x.to(dtype)
            state = self._text_states(layer, x)
            weights = self._weights(layer, dtype, weight_dropout if layer.training else 0.0)
            output, *final = lstm(layer, x, state, self.texts, weights)
        if self.carried:
            self.final += final
        return output.to(own) if cast_back else output

    def final_states(self) -> Tensor:
        """Return the states of all layers at the end of each row: (1, rows, sum of the sizes)."""
        with torch.no_grad():  # all layers together: few operations for the host to launch
            states = self.texts.final_states(torch.cat(self.final, dim=-1))
            return states.to(self.carried[0].all_weights[0][0].dtype)

    def output(self, hidden: Tensor) -> Output:
        """Return the output of the network, with the states for its next call."""
        cache, memory = self.inputs.cache, self.inputs.memory
        if cache is None and memory is None:
            return Output(hidden)
        states = self.final_states()
        document_ids = self.inputs.attention_mask.document_ids[:, -1:]
        if cache is not None:
            cache.extra = {STATES: states[0], STATE_DOCUMENTS: document_ids}
            return Output(hidden, cache)
        return Output(hidden, memory=SegmentMemory(states[:, :, None], document_ids, document_ids))

    def _initial_states(self) -> list[Tensor]:
        """Return the states that texts start from: of rows that continue a document, else zeros."""
        cache, memory = self.inputs.cache, self.inputs.memory
        if memory is not None:
            states, document_ids = memory.hidden[:, :, 0], memory.document_ids
        elif cache is not None and cache.extra:
            states, document_ids = cache.extra[STATES][None], cache.extra[STATE_DOCUMENTS]
        else:
            return []
        continues = document_ids == self.inputs.attention_mask.document_ids[:, :1]
        states = self.texts.initial_states(states * continues)
        return list(torch.split(states, state_sizes(self.carried), dim=-1))

    def _text_states(self, layer: nn.LSTM, x: Tensor) -> LSTMState:
        """Return the states that a layer starts each text from."""
        if self.initial:
            hidden, cell = self.initial[len(self.final) :][:2]
            # cuDNN requires contiguous ones, which a copy to another type already is.
            return hidden.to(x.dtype).contiguous(), cell.to(x.dtype).contiguous()
        texts = x.shape[1] if self.texts.batch_sizes is None else self.texts.num_texts
        count = layer.num_layers * (2 if layer.bidirectional else 1)
        hidden_size, cell_size = state_sizes([layer])
        return x.new_zeros(count, texts, hidden_size), x.new_zeros(count, texts, cell_size)

    def _weights(self, layer: nn.LSTM, dtype: torch.dtype, dropout: float) -> list[Tensor]:
        """Return the weights of a layer in the type that it runs in, some of them dropped."""
        weights = layer_weights(layer)
        own, device = weights[0].dtype, weights[0].device
        if dropout > 0:
            weights[1] = F.dropout(weights[1], dropout)
        if own == dtype and not (dropout > 0 and device.type == "cuda"):
            return weights
        if not has_one_block(layer):
            return [weight.to(dtype) for weight in weights]
        if dropout > 0:
            return weights_in_blocks([weights], dtype)[0]
        if layer not in self.copies:  # those of all layers in one operation, unless some are frozen
            layers = [
                one
                for one in self.carried
                if has_one_block(one) and lstm_dtype(one, device) == dtype
            ]
            trained = {weight.requires_grad for one in layers for weight in one.parameters()}
            if layer not in layers or len(trained) > 1:
                layers = [layer]
            copies = weights_in_blocks([layer_weights(one) for one in layers], dtype)
            self.copies.update(zip(layers, copies, strict=True))
        return self.copies[layer]


def lstm_dtype(layer: nn.LSTM, device: torch.device) -> torch.dtype:
    """Return the type in which a layer runs: under bfloat16 autocast, where cuDNN has it, that."""
    own = layer.all_weights[0][0].dtype
    if device.type != "cuda" or isinstance(layer, ClippedLSTM):
        return own
    autocast = torch.is_autocast_enabled("cuda") and torch.get_autocast_dtype("cuda")
    return torch.bfloat16 if autocast == torch.bfloat16 and bfloat16_is_exact(device) else own


@cache
def bfloat16_is_exact(device: torch.device) -> bool:
    """Return whether torch has a bfloat16 LSTM of cuDNN, whose results are those of float32.

    cuDNN has it since 9.13. Elsewhere torch takes one step after the other, which is slower.
    """
    sample = torch.ones(1, device=device, dtype=torch.bfloat16)
    if not torch.cudnn_is_acceptable(sample):
        return False
    try:  # small layers have a kernel of their own
        return all(bfloat16_error(device, size) < MAX_ERROR for size in (64, 256))
    except RuntimeError:  # cuDNN refuses it
        return False


@torch.inference_mode(mode=False)  # an evaluation may be the first to ask
@torch.enable_grad()
def bfloat16_error(device: torch.device, size: int) -> float:
    """Return the largest relative error of the output and the gradients of a bfloat16 LSTM.

    Its inputs and weights are the same in float32. The forget gates are open, so that an error in
    the cell state stays in it.
    """
    steps, rows, bound = 70, 8, size**-0.5
    draws = torch.Generator().manual_seed(0)
    shapes = (4 * size, size), (4 * size, size), (4 * size,), (4 * size,)
    weights = [torch.empty(shape).uniform_(-bound, bound, generator=draws) for shape in shapes]
    weights[2].chunk(4)[1].fill_(3.0)
    x, seed = (torch.randn(steps, rows, size, generator=draws) for _ in range(2))
    results = []
    for dtype in (torch.float32, torch.bfloat16):
        given = [part.bfloat16().to(device, dtype).requires_grad_() for part in (x, *weights)]
        zeros = torch.zeros(1, rows, size, device=device, dtype=dtype)
        with torch.autocast(device.type, enabled=False), warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=SCATTERED_WEIGHTS)
            output, *_ = torch.lstm(
                given[0], (zeros, zeros), given[1:], True, 1, 0.0, True, False, False
            )
        grads = torch.autograd.grad(output, given, seed.to(device, dtype))
        results.append([part.detach().float() for part in (output, *grads)])
    pairs = zip(*results, strict=True)
    return max(float((found - exact).norm() / exact.norm()) for exact, found in pairs)


def lstm(
    layer: nn.LSTM,
    x: Tensor,
    state: LSTMState,
    texts: WholeRows | PackedTexts,
    weights: list[Tensor],
) -> tuple[Tensor, Tensor, Tensor]:
    """Run a layer of torch with these weights; return output and states."""
    if isinstance(layer, ClippedLSTM):
        return layer.steps(x, state, texts)
    if x.is_cuda and not has_one_block(layer):
        # cuDNN copies weights that are not in one block: less than a step costs.
        warnings.filterwarnings("ignore", message=SCATTERED_WEIGHTS)
    # `train` keeps what the backward pass needs; there is no dropout inside of the layer.
    settings = layer.bias, layer.num_layers, 0.0, torch.is_grad_enabled(), layer.bidirectional

    def run_layer(rows: Tensor, start: LSTMState) -> tuple[Tensor, Tensor, Tensor]:
        if not layer.proj_size:
            return torch.lstm(rows, start, weights, *settings, False)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "LSTM with projections is not supported with oneDNN")
            return torch.lstm(rows, start, weights, *settings, False)

    if texts.batch_sizes is None:
        return run_layer(x, state)
    if x.device.type == "cpu" and not layer.bidirectional and not layer.proj_size:
        return lstm_in_runs(run_layer, x, state, texts.runs)
    return torch.lstm(x, texts.batch_sizes, state, weights, *settings)


def layer_weights(layer: nn.LSTM) -> list[Tensor]:
    """Return all weights of a layer, in torch's order."""
    return [weight for part in layer.all_weights for weight in part]


def has_one_block(layer: nn.LSTM) -> bool:
    """Return whether cuDNN reads the weights of a layer one after the other, in torch's order."""
    return layer.num_layers == 1 and not layer.bidirectional and not layer.proj_size


def weights_in_blocks(groups: Sequence[Sequence[Tensor]], dtype: torch.dtype) -> list[list[Tensor]]:
    """Copy the weights of layers to a type, those of each layer in one block of memory.

    cuDNN would copy weights that are not in one block, each by itself.
    """
    sizes = [len(group) for group in groups]
    flat = [weight for group in groups for weight in group]
    copies = iter(_WeightsInBlocks.apply(sizes, dtype, *flat))  # type: ignore[no-untyped-call]
    return [[next(copies) for _ in group] for group in groups]


class _WeightsInBlocks(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, sizes: list[int], dtype: torch.dtype, *weights: Tensor) -> Any:
        copies: list[Tensor] = []
        for size in sizes:
            copies += empty_block(weights[len(copies) : len(copies) + size], dtype)
        torch._foreach_copy_(copies, weights)
        ctx.dtype = weights[0].dtype
        return tuple(copies)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        copies = empty_block(gradients, ctx.dtype)
        torch._foreach_copy_(copies, gradients)
        return None, None, *copies


def empty_block(like: Sequence[Tensor], dtype: torch.dtype) -> list[Tensor]:
    """Return tensors of the same shapes, without values, in one block of memory."""
    block = torch.empty(sum(part.numel() for part in like), dtype=dtype, device=like[0].device)
    parts = torch.split(block, [part.numel() for part in like])
    return [
        part if model.ndim == 1 else part.view(model.shape)
        for part, model in zip(parts, like, strict=True)
    ]


class ClippedLSTM(nn.LSTM):
    """One layer whose cell and projected states are limited at every step, as in ELMo.

    cuDNN has no such limits, so that this takes one step after the other.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        proj_size: int,
        cell_clip: float,
        projection_clip: float,
    ) -> None:
        super().__init__(input_size, hidden_size, proj_size=proj_size)
        self.cell_clip, self.projection_clip = cell_clip, projection_clip

    def steps(
        self, x: Tensor, state: LSTMState, texts: WholeRows | PackedTexts
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the output and the final states, as `torch.lstm` does."""
        w_ih, w_hh, b_ih, b_hh, w_hr = self.all_weights[0]
        sizes = [x.shape[1]] * len(x) if isinstance(texts, WholeRows) else [*texts.step_sizes]
        gates_of_inputs = torch.split(F.linear(x, w_ih, b_ih + b_hh).flatten(0, -2), sizes)
        (hidden,), (cell,) = state
        outputs = []
        for size, of_inputs in zip(sizes, gates_of_inputs, strict=True):
            gates = of_inputs + F.linear(hidden[:size], w_hh)
            i, f, g, o = gates.chunk(4, dim=-1)
            now = torch.sigmoid(f) * cell[:size] + torch.sigmoid(i) * torch.tanh(g)
            now = now.clamp(-self.cell_clip, self.cell_clip)
            out = F.linear(torch.sigmoid(o) * torch.tanh(now), w_hr)
            out = out.clamp(-self.projection_clip, self.projection_clip)
            outputs.append(out)
            hidden, cell = torch.cat([out, hidden[size:]]), torch.cat([now, cell[size:]])
        output = torch.cat(outputs).view(*x.shape[:-1], self.proj_size)
        return output, hidden[None], cell[None]


def mirrored_positions(document_ids: Tensor) -> Tensor:
    """Return the position at which each text of a row, read from its end, has its tokens.

    (rows, length), each text a run of equal ids; a gather by it twice changes nothing.
    """
    positions = torch.arange(document_ids.shape[1], device=document_ids.device)
    positions = positions.expand_as(document_ids)
    starts = F.pad(document_ids[:, 1:] != document_ids[:, :-1], (1, 0), value=True)
    ends = F.pad(document_ids[:, 1:] != document_ids[:, :-1], (0, 1), value=True)
    first = torch.where(starts, positions, 0).cummax(1).values
    last = torch.where(ends, positions, document_ids.shape[1]).flip(1).cummin(1).values.flip(1)
    return first + last - positions


def lstm_in_runs(
    run_layer: Callable[[Tensor, LSTMState], tuple[Tensor, Tensor, Tensor]],
    x: Tensor,
    state: LSTMState,
    runs: Sequence[tuple[int, int]],
) -> tuple[Tensor, Tensor, Tensor]:
    """Run a layer on packed texts: steps with as many texts are one call, as for whole rows.

    oneDNN, the fast kernel of CPUs, takes no packed texts; so they take 10 to 70 % less time.
    """
    outputs, ended, start = [], [], 0
    for (size, length), (left, _) in pairwise([*runs, (0, 0)]):
        rows = x[start : start + size * length].view(length, size, -1)
        output, *last = run_layer(rows, (state[0].contiguous(), state[1].contiguous()))
        outputs.append(output.flatten(0, 1))
        ended.append([part[:, left:] for part in last])
        state = last[0][:, :left], last[1][:, :left]
        start += size * length
    # The shortest texts end first and are the last in the order.
    hidden, cell = (torch.cat(parts[::-1], dim=1) for parts in zip(*ended, strict=True))
    return torch.cat(outputs), hidden, cell


def state_sizes(layers: Iterable[nn.LSTM]) -> list[int]:
    """Return the sizes of the hidden and the cell state of each layer."""
    return [
        size
        for layer in layers
        for size in (layer.proj_size or layer.hidden_size, layer.hidden_size)
    ]


def empty_lstm_memory(layers: Sequence[nn.LSTM], batch_size: int) -> SegmentMemory:
    """Return the memory of LSTM layers before the first row: one slot with all states."""
    like = layers[0].all_weights[0][0]
    hidden = like.new_zeros(1, batch_size, 1, sum(state_sizes(layers)))
    document_ids = torch.full((batch_size, 1), EMPTY_SLOT_ID, dtype=torch.int32, device=like.device)
    return SegmentMemory(hidden, document_ids, document_ids)
