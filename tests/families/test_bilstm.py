"""The baseline: each text of a row is read by itself, and its first token sums it up."""

import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from kinfolk.attention_mask import PADDING_ID, AttentionMask
from kinfolk.batch import Inputs, Output
from kinfolk.errors import UserError
from kinfolk.families.bilstm import FAMILY, BiLSTM, BiLSTMConfig
from kinfolk.nn.task_heads import ModelWithHeadConfig, pooling_of

LENGTHS = [[5, 3, 1], [9], [2, 6]]  # of the texts in each row of ten slots


def network(**sizes: int) -> BiLSTM:
    torch.manual_seed(0)
    return BiLSTMConfig(vocab_size=40, **{"hidden_size": 16, **sizes}).build().eval()


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


@pytest.mark.parametrize("depth", [1, 2])
def test_packed_texts_are_read_as_if_each_were_alone(depth: int) -> None:
    model, inputs = network(num_layers=depth), rows()
    hidden = model(inputs).hidden
    assert hidden.shape == (3, 10, 16)
    for packed, ids in zip(texts(hidden), texts(inputs.input_ids), strict=True):
        alone = model(Inputs.from_ids(ids[None], causal=False)).hidden[0]
        torch.testing.assert_close(packed, alone, rtol=0, atol=1e-6)


def test_padding_is_zero() -> None:
    inputs = rows()
    hidden = network()(inputs).hidden
    assert not hidden[inputs.attention_mask.document_ids == PADDING_ID].any()
    assert hidden[inputs.attention_mask.document_ids != PADDING_ID].any(-1).all()


def test_rows_of_nothing_but_padding_change_nothing() -> None:
    model, inputs = network(), rows()
    ids = torch.cat([torch.zeros(1, 10, dtype=torch.long), inputs.input_ids])
    document = torch.cat([torch.full((1, 10), PADDING_ID), inputs.attention_mask.document_ids])
    more = Inputs(
        input_ids=ids,
        attention_mask=AttentionMask.bidirectional(document),
        position_ids=torch.zeros_like(ids),
    )
    torch.testing.assert_close(model(more).hidden[1:], model(inputs).hidden, rtol=0, atol=1e-6)


def test_it_is_the_lstm_of_torch_with_the_maximum_on_the_first_token() -> None:
    model = network(num_layers=2)
    whole = nn.LSTM(16, 8, num_layers=2, bidirectional=True, batch_first=True)
    whole.load_state_dict(
        {
            name.replace("_l0", f"_l{layer}"): value
            for layer, block in enumerate(model.layers)
            for name, value in block.state_dict().items()
        }
    )
    ids = torch.tensor([[3, 1, 4, 1, 5]])
    expected, _ = whole(model.token_embeddings(ids))
    expected[:, 0] = expected[:, 0] + expected.amax(1)
    torch.testing.assert_close(model(Inputs.from_ids(ids, causal=False)).hidden, expected)


def test_no_text_sees_another_and_the_first_token_sees_all_of_its_own() -> None:
    model, inputs = network(), rows()
    vectors: list[Tensor] = []
    model.token_embeddings.register_forward_hook(
        lambda _, __, out: vectors.append(out.retain_grad() or out)
    )
    hidden = model(inputs).hidden
    hidden[0, 5].square().sum().backward()  # the first token of the first row's second text
    (seen,) = (v.grad.abs().sum(-1) > 0 for v in vectors if v.grad is not None)
    expected = torch.zeros(3, 10, dtype=torch.bool)
    expected[0, 5:8] = True
    assert torch.equal(seen, expected)


def test_gradients_reach_every_parameter_in_training() -> None:
    model = network().train()
    model(rows()).hidden.square().sum().backward()
    assert all(p.grad is not None and p.grad.any() for p in model.parameters())


def test_an_lstm_starts_by_keeping_what_it_read() -> None:
    for block in network().layers:
        for name, bias in block.named_parameters():
            if "bias" in name:
                gates = [1.0 if "ih" in name and gate == 1 else 0.0 for gate in range(4)]
                assert bias.reshape(4, -1).mean(1).tolist() == gates


def test_what_it_adds_up_to_can_be_learned_from_the_first_token() -> None:
    """Whether a text has a 7 somewhere: no one state of a long text knows by itself."""
    torch.manual_seed(0)
    config = ModelWithHeadConfig(
        backbone=BiLSTMConfig(vocab_size=20, hidden_size=32, num_layers=1),
        head="text",
        labels=("no", "yes"),
        pooling=pooling_of(BiLSTMConfig()),
    )
    model = config.build().train()
    ids = torch.randint(20, (256, 15))
    wants = (ids == 7).any(1).long()
    assert 64 < wants.sum() < 192
    learner = torch.optim.Adam(model.parameters(), lr=1e-2)
    for start in range(0, 60 * 64, 64):
        at = torch.arange(start, start + 64) % 256
        hidden = model(Inputs.from_ids(ids[at], causal=False)).hidden
        loss = nn.functional.cross_entropy(model.logits(hidden[:, 0]), wants[at])
        learner.zero_grad()
        loss.backward()
        learner.step()
    model.eval()
    fresh = torch.randint(20, (256, 15), generator=torch.Generator().manual_seed(9))
    said = model.logits(model(Inputs.from_ids(fresh, causal=False)).hidden[:, 0]).argmax(-1)
    assert (said == (fresh == 7).any(1)).float().mean() > 0.95


def test_sizes_follow_the_ladder() -> None:
    assert {name: config.hidden_size for name, config in FAMILY.sizes.items()} == {
        "nano": 64,
        "tiny": 128,
        "mini": 256,
        "small": 512,
        "base": 768,
    }
    model = FAMILY.sizes["nano"].build()
    assert sum(p.numel() for p in model.layers.parameters()) == 2 * 2 * 4 * 32 * (64 + 32 + 2)


def test_an_odd_width_is_a_sentence() -> None:
    with pytest.raises(UserError, match=r"model.hidden_size=15 must be even"):
        BiLSTMConfig(hidden_size=15)


def test_importing_it_does_not_import_the_compiler() -> None:
    code = "import sys, kinfolk.families.bilstm; print('torch._dynamo' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_a_compiler_leaves_it_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model = BiLSTMConfig(vocab_size=30, hidden_size=8, dropout=0.0).build()
    traced: list[bool] = []
    plain = BiLSTM.run

    def run(self: BiLSTM, inputs: Inputs) -> Output:
        traced.append(torch.compiler.is_dynamo_compiling())
        return plain(self, inputs)

    monkeypatch.setattr(BiLSTM, "run", run)
    compiled: Any = torch.compile(model, backend="eager", dynamic=True)
    for length in (3, 5):
        inputs = Inputs.from_ids(torch.randint(30, (2, length)), causal=False)
        assert torch.equal(compiled(inputs).hidden, model(inputs).hidden)
    assert traced == [False] * 4
