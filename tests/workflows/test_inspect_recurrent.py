"""Gates and states of LSTM layers: what is shown equals what the network computes."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from kinfolk import families, inspect
from kinfolk.batch import Inputs
from kinfolk.text import train_tokenizer
from kinfolk.text.characters import character_table
from kinfolk.workflows.inspection.inspect import Inspection
from kinfolk.workflows.inspection.recurrent import LSTMTrace
from support.contracts import shaken

TEXT = "the cat sat on the mat. it was a red mat, and the cat was old."
TOKENIZER = train_tokenizer([TEXT], kind="word", vocab_size=1000, fewer=True)


def network(name: str) -> Any:
    """Build a network with random weights."""
    sizes = {"vocab_size": TOKENIZER.vocab_size, "decoder_start_token_id": 0}
    config = families.family(name).config("nano").with_fields(**sizes)
    torch.manual_seed(0)
    model = shaken(config.build())
    if config.max_characters is not None:
        table = character_table(TOKENIZER, config.max_characters)
        model.set_character_table(torch.from_numpy(table))
    return model.eval()


def row_of(found: Inspection) -> Inputs:
    """Return the inputs of a row, as they are without an inspection."""
    encoder = None
    if found.encoder_ids:
        encoder = Inputs.from_ids(torch.tensor([found.encoder_ids]), causal=False)
    return Inputs.from_ids(torch.tensor([found.input_ids]), causal=True, encoder_inputs=encoder)


def step(
    layer: nn.LSTM, direction: int, x: Tensor, state: tuple[Tensor, Tensor]
) -> tuple[Tensor, Tensor]:
    """Run torch's layer on one token in one direction; return its hidden and its cell state."""
    count = 2 if layer.bidirectional else 1
    hidden, cell = (torch.stack([part] * count)[:, None] for part in state)
    after = layer(x[None, None], (hidden, cell))[1]
    return after[0][direction, 0], after[1][direction, 0]


def open_candidates(layer: nn.LSTM, direction: int) -> nn.LSTM:
    """Return a copy whose candidates are 1, so that a step adds the input gate to the cell."""
    other: Any = nn.LSTM(
        layer.input_size,
        layer.hidden_size,
        bidirectional=layer.bidirectional,
        proj_size=layer.proj_size,
    )
    other.load_state_dict(layer.state_dict())
    with torch.no_grad():
        other.all_weights[direction][2].chunk(4)[2].fill_(100.0)
    return other


def check_trace(trace: LSTMTrace, layer: nn.LSTM, inputs: Tensor, state: Any = None) -> None:
    """Compare every step of a trace with torch's own layer; gates are what the cell says."""
    backward = "backward" in trace.name
    direction = int(layer.bidirectional and backward)
    added = open_candidates(layer, direction)
    weights = layer.all_weights[direction]
    if state is None:
        size = layer.proj_size or layer.hidden_size
        state = torch.zeros(size), torch.zeros(layer.hidden_size)
    for place in reversed(range(len(inputs))) if backward else range(len(inputs)):
        x, (hidden, cell) = inputs[place], state
        cell = cell.detach().requires_grad_()
        state = step(layer, direction, x, (hidden, cell))
        torch.testing.assert_close(trace.hidden[place], state[0])
        torch.testing.assert_close(trace.cell[place], state[1])
        (forget,) = torch.autograd.grad(state[1].sum(), cell)
        torch.testing.assert_close(trace.forget_gate[place], forget)
        gained = step(added, direction, x, (hidden, cell))[1] - forget * cell
        torch.testing.assert_close(trace.input_gate[place], gained, atol=1e-5, rtol=1e-4)
        output = trace.output_gate[place] * state[1].tanh()
        output = weights[4] @ output if layer.proj_size else output
        torch.testing.assert_close(output, state[0])
        state = state[0].detach(), state[1].detach()


def layer_of(model: Any, name: str, trace: str) -> Any:
    """Return the layer of the network that a trace is of."""
    number = int(trace.rpartition(" ")[2]) - 1
    if name == "elmo":
        return (model.forward_lstms if "forward" in trace else model.backward_lstms)[number]
    if name == "cove":
        return (model.decoder if "decoder" in trace else model.encoder).layers[number]
    return model.lstm_layers[number]


@pytest.mark.parametrize(("name", "count"), [("ulmfit", 3), ("elmo", 4), ("cove", 6)])
def test_every_gate_and_state_is_that_of_the_layer_of_the_network(name: str, count: int) -> None:
    model = network(name)
    found = inspect(model, TEXT, TOKENIZER, target="a red cat" if name == "cove" else None)
    states = found.values.traces
    assert states is not None
    by_name = {trace.name: trace for trace in states.traces}
    assert len(by_name) == count  # of each layer and direction
    for trace in states.traces:
        stack = next((part for part in states.hidden if part and part in trace.name), "")
        number = int(trace.name.rpartition(" ")[2])
        start = None
        if stack == "decoder":  # continues from where both directions of the encoder end
            names = [f"encoder {direction} layer {number}" for direction in ("forward", "backward")]
            right, left = (by_name[name] for name in names)
            start = (
                torch.cat([right.hidden[-1], left.hidden[0]]),
                torch.cat([right.cell[-1], left.cell[0]]),
            )
        inputs = states.hidden[stack][number - 1]
        check_trace(trace, layer_of(model, name, trace.name), inputs, start)


@torch.no_grad()
def test_states_of_ulmfit_are_those_of_its_forward_pass() -> None:
    model = network("ulmfit")
    found = inspect(model, TEXT, TOKENIZER)
    states = found.values.traces
    assert states is not None
    output = model(row_of(found)).hidden[0]
    torch.testing.assert_close(states.hidden[""][-1], output)
    # Rows that continue from a memory, of any lengths (stream, bptt), compute the same.
    memory, parts = model.init_memory(1), []
    whole, length = row_of(found), len(found.input_ids)
    for start, stop in ((0, 3), (3, 10), (10, length)):
        part = model(replace(whole.select(slice(start, stop)), memory=memory))
        memory = part.memory
        parts.append(part.hidden[0])
    torch.testing.assert_close(states.hidden[""][-1], torch.cat(parts))


@torch.no_grad()
def test_both_directions_of_elmo_are_those_of_its_language_models() -> None:
    model = network("elmo")
    found = inspect(model, TEXT, TOKENIZER)
    states = found.values.traces
    assert states is not None
    row = row_of(found)
    ids = list(found.input_ids)
    mirrored = Inputs.from_ids(torch.tensor([ids[::-1]]), causal=True)
    forward, backward, _ = model.forward_bilm(row, mirrored)
    torch.testing.assert_close(states.hidden["forward"][-1], forward[0])
    torch.testing.assert_close(states.hidden["backward"][-1], backward[0].flip(0))
    for name, hidden in (("forward", forward[0]), ("backward", backward[0].flip(0))):
        logits = model.lm_logits(hidden).logits()
        np.testing.assert_allclose(found[f"{name}_logits"], logits, atol=1e-5)
    layers = model.layer_outputs(row)
    for number, layer in enumerate(layers):
        both = torch.cat([states.hidden[name][number] for name in ("forward", "backward")], dim=-1)
        torch.testing.assert_close(both, layer[0])


@torch.no_grad()
def test_states_and_attention_of_cove_are_those_of_its_network() -> None:
    model = network("cove")
    found = inspect(model, TEXT, TOKENIZER, target="a red cat")
    states = found.values.traces
    assert states is not None
    row = row_of(found)
    encoded, decoded = model.encode(row.encoder_inputs)[0], model(row).hidden[0]
    torch.testing.assert_close(states.hidden["encoder"][-1], encoded)
    torch.testing.assert_close(states.hidden["decoder"][-1], decoded)
    np.testing.assert_allclose(found["logits"], model.lm_logits(decoded).logits(), atol=1e-5)
    # McCann et al. 2017: a_t = tanh(W2 [H^T softmax(H (W1 h_t + b1)); h_t] + b2).
    decoder, last = model.decoder, states.hidden["decoder"][-2]
    attention = (decoder.query_proj(last) @ encoded.T).softmax(-1)
    np.testing.assert_allclose(found["cross_attention"][0, 0], attention, atol=1e-6)
    context = torch.from_numpy(found["cross_attention"][0, 0]) @ encoded
    torch.testing.assert_close(decoder.out_proj(torch.cat([context, last], 1)).tanh(), decoded)


# Hidden states and layers of the logit lens, as docs/inspect.md lists them.
STACKS = {
    "ulmfit": ([f"hidden_states_{n}" for n in range(4)], {"lens_ids": 2}),
    "cove": (
        [f"encoder_hidden_states_{n}" for n in range(3)]
        + [f"decoder_hidden_states_{n}" for n in range(4)],
        {"lens_ids": 1},
    ),
    "elmo": (
        ["forward_hidden_states", "backward_hidden_states"],
        {"forward_lens_ids": 3, "backward_lens_ids": 3},
    ),
    "cvt": (["hidden_states"], {}),
    "bilstm": (["hidden_states"], {}),
    "ngram": ([], {"lens_ids": 1}),
}


@pytest.mark.parametrize("name", list(STACKS))
def test_arrays_of_recurrent_families_have_the_names_that_the_docs_list(name: str) -> None:
    found, (states, lenses) = inspect(network(name), TEXT, TOKENIZER), STACKS[name]
    assert [one for one in found.names if "hidden_states" in one] == states
    shapes = {one: found[one].shape for one in found.names if one.endswith("lens_ids")}
    assert shapes == {one: (layers, len(found.input_ids), 5) for one, layers in lenses.items()}
