"""Recurrent layers over packed rows: a text starts from zeros, or continues the row before.

A `Recurrence` is one forward pass of LSTM layers. Where each row is one text, layers read whole
rows; else they read the texts of all rows in the order of a `PackedSequence`, so that no state
crosses from one text to another.
"""

import warnings
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from itertools import pairwise

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
        return torch.compiler.disable(run)(inputs)  # type: ignore[no-untyped-call]
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
        self.initial = self._initial_states()  # two of each layer, before the first token of a row
        self.final: list[Tensor] = []  # the same after the last token of a row

    def flatten(self, x: Tensor) -> Tensor:
        """Return the vectors of rows, (rows, length, size), as layers read them."""
        return self.texts.flatten(x)

    def unflatten(self, x: Tensor) -> Tensor:
        """Return the vectors to their rows: (rows, length, size); those of padding are zero."""
        return self.texts.unflatten(x)

    def locked_dropout(self, x: Tensor, rate: float, *, training: bool) -> Tensor:
        """Drop the same features of all tokens of a text (Gal and Ghahramani 2016)."""
        return x * self.texts.dropout_mask(x, rate) if training and rate > 0 else x

    def run(self, layer: nn.LSTM, x: Tensor, *, weight_dropout: float = 0.0) -> Tensor:
        """Run a layer on flattened vectors and keep its states.

        `weight_dropout` is the rate at which recurrent weights are dropped in training, the same
        for all tokens (Merity et al. 2018, section 2).
        """
        own, dtype = layer.all_weights[0][0].dtype, lstm_dtype(layer, x.device)
        # Autocast itself would run cuDNN in float16, in which small gradients are lost.
        with torch.autocast(x.device.type, enabled=False):
            x = x.to(dtype)
            state = self._text_states(layer, x)
            output, *final = lstm(layer, x, state, self.texts, weight_dropout)
        if self.carried:
            self.final += [self.texts.final_states(part).to(own) for part in final]
        return output.to(own)

    def output(self, hidden: Tensor) -> Output:
        """Return the output of the network, with the states for its next call."""
        cache, memory = self.inputs.cache, self.inputs.memory
        if cache is None and memory is None:
            return Output(hidden)
        states = torch.cat(self.final, dim=-1).detach()  # (1, rows, sum of the sizes)
        document_ids = self.inputs.attention_mask.document_ids[:, -1:]
        if cache is not None:
            cache.extra = {STATES: states[0], STATE_DOCUMENTS: document_ids}
            return Output(hidden, cache)
        return Output(hidden, memory=SegmentMemory(states[:, :, None], document_ids, document_ids))

    def _initial_states(self) -> list[Tensor]:
        """Return the states of rows that continue a document, zeros for the others."""
        cache, memory = self.inputs.cache, self.inputs.memory
        if memory is not None:
            states, document_ids = memory.hidden[:, :, 0], memory.document_ids
        elif cache is not None and cache.extra:
            states, document_ids = cache.extra[STATES][None], cache.extra[STATE_DOCUMENTS]
        else:
            return []
        continues = document_ids == self.inputs.attention_mask.document_ids[:, :1]
        return list(torch.split(states * continues, state_sizes(self.carried), dim=-1))

    def _text_states(self, layer: nn.LSTM, x: Tensor) -> LSTMState:
        """Return the states that a layer starts each text from."""
        if self.initial:
            hidden, cell = self.initial[len(self.final) :][:2]
            first, then = self.texts.initial_states(hidden), self.texts.initial_states(cell)
            return first.to(x.dtype), then.to(x.dtype)
        texts = x.shape[1] if self.texts.batch_sizes is None else self.texts.num_texts
        count = layer.num_layers * (2 if layer.bidirectional else 1)
        hidden_size, cell_size = state_sizes([layer])
        return x.new_zeros(count, texts, hidden_size), x.new_zeros(count, texts, cell_size)


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
    weight_dropout: float = 0.0,
) -> tuple[Tensor, Tensor, Tensor]:
    """Run a layer of torch, some of its recurrent weights dropped; return output and states."""
    if isinstance(layer, ClippedLSTM):
        return layer.steps(x, state, texts)
    weights: list[Tensor] = [weight for part in layer.all_weights for weight in part]
    dropped = layer.training and weight_dropout > 0
    if dropped:
        weights[1] = F.dropout(weights[1], weight_dropout)
    if dropped or x.dtype != weights[0].dtype:
        weights = [weight.to(x.dtype) for weight in weights]
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
