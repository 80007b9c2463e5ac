"""Two bidirectional LSTMs, whose first layer reads each text in both directions separately."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from kinfolk.attention_mask import PADDING_ID, AttentionMask
from kinfolk.batch import Inputs
from kinfolk.errors import UserError
from kinfolk.families.base import STANDARD_SIZES
from kinfolk.families.cvt import CVT, FAMILY, CVTConfig

LENGTHS = [[5, 3, 1], [9], [2, 6]]  # of the texts in each row of ten tokens
Array = NDArray[np.float64]


def network(**fields: float) -> CVT:
    torch.manual_seed(0)
    sizes = {"vocab_size": 40, "embedding_size": 10, "lstm_size": 9, "projection_size": 6}
    sizes |= {"num_filters": 4}
    return CVTConfig(**{**sizes, **fields}).build().eval()  # type: ignore[arg-type]


def rows() -> Inputs:
    """Make rows of several texts, with padding behind most, and numbers that repeat by row."""
    document = torch.full((3, 10), PADDING_ID)
    for row, lengths in zip(document, LENGTHS, strict=True):
        numbers = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths))
        row[: len(numbers)] = numbers
    ids = torch.randint(40, (3, 10), generator=torch.Generator().manual_seed(1))
    return Inputs(
        input_ids=ids,
        attention_mask=AttentionMask.bidirectional(document),
        position_ids=torch.zeros_like(ids),
    )


def texts(x: Tensor) -> list[Tensor]:
    return [
        part
        for row, lengths in zip(x, LENGTHS, strict=True)
        for part in row[: sum(lengths)].split(lengths)
    ]


def lstm(x: Array, layer: nn.LSTM, suffix: str) -> Array:
    """Run one direction of an LSTM with projected output (Sak et al. 2014), step by step."""
    w_in, w_state, b_in, b_state, project = (
        layer.get_parameter(f"{name}_l0{suffix}").detach().double().numpy()
        for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh", "weight_hr")
    )
    state, cell, states = np.zeros(len(project)), np.zeros(project.shape[1]), []
    for vector in x[::-1] if suffix else x:
        gates = np.split(w_in @ vector + b_in + w_state @ state + b_state, 4)
        write, keep, read = (1 / (1 + np.exp(-gate)) for gate in (gates[0], gates[1], gates[3]))
        cell = keep * cell + write * np.tanh(gates[2])
        state = project @ (read * np.tanh(cell))
        states.append(state)
    return np.array(states[::-1] if suffix else states)


def test_packed_texts_are_read_as_if_each_were_alone() -> None:
    model, inputs = network(), rows()
    hidden = model(inputs).hidden
    assert hidden.shape == (3, 10, 24)
    for packed, ids in zip(texts(hidden), texts(inputs.input_ids), strict=True):
        alone = model(Inputs.from_ids(ids[None], causal=False)).hidden[0]
        torch.testing.assert_close(packed, alone, rtol=0, atol=1e-6)


def test_both_layers_equal_the_equations_of_a_projected_lstm() -> None:
    model = network()
    ids = torch.tensor([[3, 1, 4, 1, 5, 9]])
    vectors = model.token_embeddings(ids) + model.characters(ids)
    x = vectors[0].detach().double().numpy()
    expected = []
    for layer in model.layers:
        assert isinstance(layer, nn.LSTM)
        x = np.concatenate([lstm(x, layer, ""), lstm(x, layer, "_reverse")], -1)
        expected.append(x)
    hidden = model(Inputs.from_ids(ids, causal=False)).hidden[0]
    np.testing.assert_allclose(hidden.detach(), np.concatenate(expected, -1), atol=1e-6)


def test_each_direction_of_the_first_layer_sees_its_side_of_the_text_alone() -> None:
    model, inputs = network(), rows()
    vectors: list[Tensor] = []
    model.token_embeddings.register_forward_hook(
        lambda _, __, out: vectors.append(out.retain_grad() or out)
    )
    for direction, seen in enumerate((range(6), range(5, 9))):  # in the text of nine tokens
        vectors.clear()
        part = model.directions(model(inputs).hidden)[direction]
        part[1, 5].square().sum().backward()
        (found,) = (v.grad.abs().sum(-1) > 0 for v in vectors if v.grad is not None)
        expected = torch.zeros(3, 10, dtype=torch.bool)
        expected[1, [*seen]] = True
        assert torch.equal(found, expected)


def test_words_and_states_are_dropped_in_training_alone_at_the_given_rate() -> None:
    model, inputs = network(dropout=0.5).train(), rows()
    kept = inputs.attention_mask.document_ids >= 0
    dropped = {
        rate: float((model.encode(inputs, dropout=rate).hidden[kept] == 0).float().mean())
        for rate in (0.0, 0.2, 0.5)
    }
    assert dropped[0.0] == 0 and 0.1 < dropped[0.2] < 0.3 and 0.4 < dropped[0.5] < 0.6
    assert 0.4 < float((model(inputs).hidden[kept] == 0).float().mean()) < 0.6
    still = model.encode(inputs, dropout=0.0).hidden
    model.eval()
    assert torch.equal(model.encode(inputs, dropout=0.5).hidden, still)


def test_a_word_outside_the_vocabulary_is_read_by_its_characters() -> None:
    model = network()
    ids = torch.tensor([[3, 1, 4]])
    inputs = Inputs.from_ids(ids, causal=False)
    known = model.characters.table[ids].long()
    spelled = replace(inputs, character_ids=known)
    torch.testing.assert_close(model(spelled).hidden, model(inputs).hidden)
    other = known.clone()
    other[0, 1] = model.characters.table[7]
    changed = model(replace(inputs, character_ids=other)).hidden
    assert not torch.allclose(changed[0, 1], model(inputs).hidden[0, 1], atol=1e-4)


def test_padding_is_zero() -> None:
    inputs = rows()
    hidden = network()(inputs).hidden
    assert not hidden[inputs.attention_mask.document_ids == PADDING_ID].any()


def test_gradients_reach_every_parameter() -> None:
    model = network().train()
    model(rows()).hidden.square().sum().backward()
    assert all(p.grad is not None and p.grad.any() for p in model.parameters())


def test_sizes_are_the_standard_ones_and_the_paper_s() -> None:
    assert [*FAMILY.sizes] == [*STANDARD_SIZES, "cvt"]
    paper = FAMILY.sizes["cvt"]
    with torch.device("meta"):
        model = paper.build()
    first, second = (4 * 1024 * (size + 512 + 2) + 512 * 1024 for size in (300, 1024))
    layers = sum(p.numel() for p in model.layers.parameters())
    assert layers == 2 * (first + second) == 21_364_736
    filters = sum(100 * (50 * width + 1) for width in (2, 3, 4))
    characters = 262 * 50 + filters + 300 * (300 + 1)
    assert sum(p.numel() for p in model.characters.parameters()) == characters
    assert sum(p.numel() for p in model.parameters()) == layers + characters + 400_000 * 300
    assert paper.hidden_size == 2048


def test_a_projection_that_is_not_smaller_is_a_sentence() -> None:
    with pytest.raises(UserError, match=r"model.projection_size=9 must be smaller than model.lstm"):
        CVTConfig(lstm_size=9, projection_size=9)
