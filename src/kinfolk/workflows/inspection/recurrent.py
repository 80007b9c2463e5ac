"""Gates and states of LSTM layers over time, computed once more from their weights."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from kinfolk.batch import Inputs
from kinfolk.families.cove import CoVe
from kinfolk.families.elmo import ELMo
from kinfolk.families.ulmfit import ULMFiT
from kinfolk.nn.language_model import LanguageModel
from kinfolk.nn.recurrent import ClippedLSTM, mirrored_positions
from kinfolk.packed_texts import PackedTexts

GATES = ("input", "forget", "output")  # those with values from 0 to 1


@dataclass(frozen=True, eq=False)
class LSTMTrace:
    """One direction of an LSTM layer at every token of a text, in the order of the text."""

    name: str
    input_gate: Tensor  # (length, size)
    forget_gate: Tensor
    output_gate: Tensor
    cell: Tensor
    hidden: Tensor  # (length, size), or projected

    @property
    def gates(self) -> Tensor:
        """Input, forget and output gates: (length, 3, size)."""
        return torch.stack([self.input_gate, self.forget_gate, self.output_gate], dim=1)


def trace_lstm(
    layer: nn.LSTM,
    x: Tensor,
    name: str,
    *,
    backward: bool = False,
    state: tuple[Tensor, Tensor] | None = None,
) -> LSTMTrace:
    """Compute the gates of one direction of a layer on one text, (length, size)."""
    w_ih, w_hh, b_ih, b_hh, *projection = layer.all_weights[1 if backward else 0]
    hidden = x.new_zeros(w_hh.shape[1])
    cell = x.new_zeros(w_hh.shape[0] // 4)
    if state is not None:
        hidden, cell = state
    of_inputs = F.linear(x.flip(0) if backward else x, w_ih, b_ih + b_hh)
    steps: list[tuple[Tensor, ...]] = []
    for of_input in of_inputs:
        i, f, g, o = (of_input + w_hh @ hidden).chunk(4)
        i, f, o = i.sigmoid(), f.sigmoid(), o.sigmoid()
        cell = f * cell + i * g.tanh()
        if isinstance(layer, ClippedLSTM):
            cell = cell.clamp(-layer.cell_clip, layer.cell_clip)
        hidden = o * cell.tanh()
        if projection:
            hidden = projection[0] @ hidden
        if isinstance(layer, ClippedLSTM):
            hidden = hidden.clamp(-layer.projection_clip, layer.projection_clip)
        steps.append((i, f, o, cell, hidden))
    columns = (torch.stack(column) for column in zip(*steps, strict=True))
    return LSTMTrace(name, *((c.flip(0) if backward else c) for c in columns))


@dataclass(frozen=True, eq=False)
class RecurrentStates:
    """What the layers of a recurrent network computed for one text."""

    # Embeddings and the output of each layer, (length, size), by the name of the stack.
    hidden: dict[str, list[Tensor]]
    traces: list[LSTMTrace]
    cross_attention: Tensor | None = None  # (query, key), of CoVe's decoder


def recurrent_states(model: LanguageModel, inputs: Inputs) -> RecurrentStates:
    """Return hidden states and gates of a network whose layers are LSTMs; the inputs are a row."""
    if isinstance(model, ULMFiT):
        outputs = [x[0] for x in model.all_layer_outputs(inputs)]
        traces = trace_layers(model.lstm_layers, outputs, "")
        return RecurrentStates({"": outputs}, traces)
    if isinstance(model, ELMo):
        return elmo_states(model, inputs)
    if isinstance(model, CoVe):
        return cove_states(model, inputs)
    return bidirectional_states(model, inputs)


def trace_layers(
    layers: Sequence[nn.LSTM], inputs: Sequence[Tensor], direction: str
) -> list[LSTMTrace]:
    """Trace layers of one direction, each on its own input."""
    names = (f"{direction} layer {n}".strip() for n in range(1, len(layers) + 1))
    pairs = zip(layers, inputs, names, strict=False)
    return [trace_lstm(layer, x, name) for layer, x, name in pairs]


def elmo_states(model: ELMo, inputs: Inputs) -> RecurrentStates:
    """Trace both language models, the backward one on the mirrored text."""
    mirrored = mirrored_positions(inputs.attention_mask.document_ids)[0]
    x = model.token_embeddings(inputs.input_ids, inputs.character_ids)
    plain = replace(inputs, memory=None)
    forward = [s[0] for s in model.run_direction(x, plain, model.forward_lstms)[0]]
    read = model.run_direction(x[:, mirrored], plain, model.backward_lstms)[0]
    backward = [s[0] for s in read]
    traces = trace_layers(model.forward_lstms, forward, "forward")
    for trace in trace_layers(model.backward_lstms, backward, "backward"):
        parts = ("input_gate", "forget_gate", "output_gate", "cell", "hidden")
        traces.append(replace(trace, **{name: vars(trace)[name][mirrored] for name in parts}))
    hidden = {"forward": forward, "backward": [x[mirrored] for x in backward]}
    return RecurrentStates(hidden, traces)


def bidirectional_states(model: LanguageModel, inputs: Inputs, run: Any = None) -> RecurrentStates:
    """Trace bidirectional layers of torch, whose inputs are recorded while the network runs."""
    found: list[tuple[nn.LSTM, Tensor, Tensor]] = []

    def keep(layer: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        assert isinstance(layer, nn.LSTM) and isinstance(args[0], PackedSequence)
        found.append((layer, args[0].data, output[0].data))

    layers = [part for part in model.modules() if isinstance(part, nn.LSTM)]
    handles = [layer.register_forward_hook(keep) for layer in layers]
    try:
        (run or model)(inputs)
    finally:
        for handle in handles:
            handle.remove()
    traces = [
        trace_lstm(layer, x, f"{direction} layer {n}", backward=direction == "backward")
        for n, (layer, x, _) in enumerate(found, start=1)
        for direction in ("forward", "backward")
    ]
    hidden = [found[0][1], *(output for _, _, output in found)]
    return RecurrentStates({"": hidden}, traces)


def cove_states(model: CoVe, inputs: Inputs) -> RecurrentStates:
    """Trace the encoder and, where there is a target, the decoder with its attention."""
    source = inputs.encoder_inputs
    encoder = bidirectional_states(model, inputs if source is None else source, model.encode)
    encoder = replace(
        encoder,
        hidden={"encoder": encoder.hidden[""]},
        traces=[replace(trace, name=f"encoder {trace.name}") for trace in encoder.traces],
    )
    if source is None or model.config.encoder_only:
        return encoder
    texts = PackedTexts.of(inputs.attention_mask.document_ids)
    attended, state = model.decoder_start(inputs, texts)
    attentional = model(inputs).hidden[0]  # (length, hidden_size)
    # A step reads the word and the attentional state of the step before, which starts from zeros.
    fed = torch.cat([torch.zeros_like(attentional[:1]), attentional[:-1]])
    x = torch.cat([model.target_embeddings(inputs.input_ids)[0], fed], dim=1)
    hidden, traces = [x], []
    for n, layer in enumerate(model.decoder.layers):
        assert isinstance(layer, nn.LSTM)
        start = state[0, 2 * n], state[0, 2 * n + 1]
        traces.append(trace_lstm(layer, hidden[-1], f"decoder layer {n + 1}", state=start))
        hidden.append(traces[-1].hidden)
    scores = attended.scores[0] + hidden[-1] @ attended.keys[0].T
    return RecurrentStates(
        {**encoder.hidden, "decoder": [*hidden, attentional]},
        [*encoder.traces, *traces],
        scores.softmax(-1),
    )
