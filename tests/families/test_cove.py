"""CoVe: its encoder is torch's LSTM, its decoder the equations of the paper, word by word."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from kinfolk.attention_mask import PADDING_ID, AttentionMask
from kinfolk.batch import Inputs
from kinfolk.errors import UserError
from kinfolk.families.cove import FAMILY, CoVe, CoVeConfig
from kinfolk.hub import load_model, save
from kinfolk.training.config import TrainConfig
from kinfolk.training.optimizer import build_optimizer
from support.contracts import shaken
from support.decoding import write
from support.networks import hollow

SOURCES, TARGETS = [[5, 3], [9], [2, 6]], [[2, 6], [4], [7, 1]]  # lengths in rows of ten slots


def network(**fields: Any) -> CoVe:
    torch.manual_seed(0)
    config = CoVeConfig(vocab_size=40, **{"hidden_size": 16, "embedding_size": 6, **fields})
    return shaken(config.build()).eval()


def rows(lengths: list[list[int]], seed: int, encoder_inputs: Inputs | None = None) -> Inputs:
    """Make rows of several texts, with padding behind them, and numbers that repeat by row."""
    document = torch.full((3, 10), PADDING_ID)
    for row, some in zip(document, lengths, strict=True):
        numbers = torch.arange(len(some)).repeat_interleave(torch.tensor(some))
        row[: len(numbers)] = numbers
    ids = torch.randint(40, (3, 10), generator=torch.Generator().manual_seed(seed))
    make = AttentionMask.bidirectional if encoder_inputs is None else AttentionMask.causal
    return Inputs(
        input_ids=ids,
        attention_mask=make(document),
        position_ids=torch.zeros_like(ids),
        encoder_inputs=encoder_inputs,
    )


def texts(x: Tensor, lengths: list[list[int]]) -> list[Tensor]:
    return [
        part for row, some in zip(x, lengths, strict=True) for part in row[: sum(some)].split(some)
    ]


def torch_lstm(model: CoVe) -> nn.LSTM:
    """Return the encoder as torch's LSTM, with the names of the published MT-LSTM."""
    c = model.config
    whole = nn.LSTM(
        c.embedding_size, c.hidden_size // 2, c.num_layers, bidirectional=True, batch_first=True
    )
    whole.load_state_dict(
        {
            name.replace("_l0", f"_l{i}"): tensor
            for i, layer in enumerate(model.encoder.layers)
            for name, tensor in layer.state_dict().items()
        }
    )
    return whole.eval()


def test_the_published_network_has_3_6_million_parameters_in_its_encoder() -> None:
    """The released file is 14.4 MB of float32 (salesforce/cove)."""
    with hollow():
        model = FAMILY.config("mt-lstm").build()
    assert isinstance(model, CoVe)
    assert sum(p.numel() for p in model.encoder.parameters()) == 3_609_600
    per_gate = (300 + 600) + 600 + 600 + 600  # inputs and states of the two layers
    decoder = 4 * 600 * (per_gate + 4) + 600 * 601 + 600 * 1201
    assert sum(p.numel() for p in model.decoder.parameters()) == decoder == 7_570_800
    assert [*model.lm_head.weight.shape] == [50_048, 600]


def test_the_encoder_is_the_lstm_of_torch_over_packed_sequences() -> None:
    model, inputs = network(), rows(SOURCES, 1)
    found = texts(model.encode(inputs), SOURCES)
    ids = texts(inputs.input_ids, SOURCES)
    lengths = torch.tensor([len(text) for text in ids])
    padded = nn.utils.rnn.pad_sequence(ids, batch_first=True)
    packed = pack_padded_sequence(
        model.token_embeddings(padded), lengths, batch_first=True, enforce_sorted=False
    )
    expected, _ = pad_packed_sequence(torch_lstm(model)(packed)[0], batch_first=True)
    for own, text, length in zip(found, expected, lengths, strict=True):
        torch.testing.assert_close(own, text[:length], rtol=0, atol=1e-6)


def slow_decoder(model: CoVe, source: Tensor, target: Tensor) -> Tensor:
    """Compute the attentional states of one pair by the equations of section 3, in order."""
    hidden, (last, cells) = torch_lstm(model)(model.token_embeddings(source)[None])
    hidden = hidden[0]
    size, decoder = model.config.hidden_size, model.decoder
    w_1, b_1 = decoder.query_proj.weight, decoder.query_proj.bias
    states = [
        (last[2 * i : 2 * i + 2].reshape(1, size), cells[2 * i : 2 * i + 2].reshape(1, size))
        for i in range(model.config.num_layers)
    ]
    attentional, outputs = torch.zeros(size), []
    for word in model.target_embeddings(target):
        x = torch.cat([word, attentional])[None]
        for i, layer in enumerate(decoder.layers):
            own: Any = layer
            x, (h, c) = own(x, states[i])
            states[i] = (h, c)
        (state,) = x
        attention = torch.softmax(hidden @ (w_1 @ state + b_1), 0)
        attentional = torch.tanh(decoder.out_proj(torch.cat([hidden.T @ attention, state])))
        outputs.append(attentional)
    return torch.stack(outputs)


@pytest.mark.parametrize("layers", [1, 2])
def test_the_decoder_follows_the_equations_of_the_paper(layers: int) -> None:
    model, source = network(num_layers=layers), rows(SOURCES, 1)
    target = rows(TARGETS, 2, source)
    found = texts(model(target).hidden, TARGETS)
    pairs = zip(texts(source.input_ids, SOURCES), texts(target.input_ids, TARGETS), strict=True)
    for own, (x, y) in zip(found, pairs, strict=True):
        torch.testing.assert_close(own, slow_decoder(model, x, y), rtol=0, atol=1e-6)


@torch.no_grad()
@pytest.mark.parametrize("beams", [1, 3])
def test_beams_have_the_probabilities_of_a_full_pass(beams: int) -> None:
    model, sources = network().double(), [[7, 8, 9, 3], [11, 3], [20, 21, 22, 23, 24, 3]]
    outputs = write(
        model, [[0]] * 3, encoder_ids=sources, eos_ids={3}, max_new_tokens=6, num_beams=beams
    )
    for source, output in zip(sources, outputs, strict=True):
        row = torch.tensor([[0, *output.ids]])
        inputs = Inputs.from_ids(
            row, causal=True, encoder_inputs=Inputs.from_ids(torch.tensor([source]), causal=False)
        )
        logs = model.lm_logits(model(inputs).hidden[0]).logits().log_softmax(-1)
        expected = [float(logs[i, id]) for i, id in enumerate(output.ids)]
        assert output.logprobs == pytest.approx(expected, abs=1e-5)
    assert len({tuple(output.ids) for output in outputs}) > 1, "the source has no effect"


@pytest.mark.parametrize("prefix", ["", "rnn.", "rnn1."])
@pytest.mark.parametrize("vectors", [False, True])
def test_the_published_layout_opens_and_gives_the_outputs_of_torch(
    prefix: str, vectors: bool, tmp_path: Path
) -> None:
    torch.manual_seed(3)
    theirs = nn.LSTM(300, 300, num_layers=2, bidirectional=True, batch_first=True)
    state = {f"{prefix}{name}": tensor for name, tensor in theirs.state_dict().items()}
    words = torch.randn(40, 300)
    torch.save(state | ({"vectors.weight": words} if vectors else {}), tmp_path / "wmtlstm.pth")
    model: Any = load_model(tmp_path / "wmtlstm.pth")
    assert model.config == replace(
        FAMILY.config("mt-lstm"), vocab_size=40 if vectors else 1, encoder_only=True
    )
    assert model.token_embeddings.weight[:40].equal(words) or not vectors
    inputs = rows(SOURCES, 1)
    ids = texts(inputs.input_ids, SOURCES)
    if not vectors:
        model.token_embeddings = nn.Embedding.from_pretrained(words)
    lengths = torch.tensor([len(text) for text in ids])
    padded = words[nn.utils.rnn.pad_sequence(ids, batch_first=True)]
    packed = pack_padded_sequence(padded, lengths, batch_first=True, enforce_sorted=False)
    expected, _ = pad_packed_sequence(theirs(packed)[0], batch_first=True)
    found = texts(model.encode(inputs), SOURCES)
    for own, text, length in zip(found, expected, lengths, strict=True):
        torch.testing.assert_close(own, text[:length], rtol=0, atol=1e-6)
    with pytest.raises(UserError, match="an encoder without a decoder"):
        model(rows(TARGETS, 2, inputs))


def test_an_imported_encoder_is_saved_and_opened_again(tmp_path: Path) -> None:
    torch.save(nn.LSTM(6, 8, 2, bidirectional=True).state_dict(), tmp_path / "lstm.pt")
    model: Any = load_model(tmp_path / "lstm.pt")
    save(tmp_path / "saved", model, None)
    again: Any = load_model(tmp_path / "saved")
    assert again.config == model.config
    assert all(t.equal(again.state_dict()[n]) for n, t in model.state_dict().items())


def test_a_lstm_of_one_direction_is_not_taken_for_the_encoder(tmp_path: Path) -> None:
    torch.save(nn.LSTM(6, 8).state_dict(), tmp_path / "lstm.pt")
    with pytest.raises(UserError, match="not a checkpoint that kinfolk can read"):
        load_model(tmp_path / "lstm.pt")


def test_frozen_word_vectors_are_not_trained() -> None:
    model, inputs = network(freeze_embeddings=True).train(), rows(TARGETS, 2, rows(SOURCES, 1))
    optimizer = build_optimizer(model, TrainConfig(lr=0.1))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    model.lm_logits(model(inputs).hidden).logits().logsumexp(-1).sum().backward()
    optimizer.step()
    same = {name for name, tensor in model.state_dict().items() if tensor.equal(before[name])}
    assert same == {"token_embeddings.weight"}


def test_an_odd_hidden_size_and_a_missing_source_are_sentences() -> None:
    with pytest.raises(UserError, match=r"hidden_size=15 must be even"):
        CoVeConfig(hidden_size=15)
    with pytest.raises(UserError, match="encoder_inputs"):
        network()(rows(TARGETS, 2))
