"""ULMFiT: parameter counts, and what each dropout drops."""

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from kinfolk.batch import Inputs
from kinfolk.families.ulmfit import FAMILY, ULMFiT, ULMFiTConfig
from kinfolk.hub import load_model, save
from support.networks import hollow
from support.peers import parameters

RATES = [f.name for f in fields(ULMFiTConfig) if f.name.endswith("dropout")]


@pytest.mark.parametrize(
    ("size", "parameters"),
    [
        ("awd-lstm-ptb", 24_221_600),  # as the released code prints them
        ("awd-lstm-wt2", 33_556_078),
        ("ulmfit-wt103", 238_462 * 401 + 20_211_600),
        ("ulmfit-wt103-fastai", 60_000 * 401 + 20_273_280),
    ],
)
def test_the_published_sizes_have_their_parameters(size: str, parameters: int) -> None:
    with hollow():
        model: Any = FAMILY.config(size).build()
    padding = model.token_embeddings.num_embeddings - model.config.vocab_size
    total = sum(p.numel() for p in model.parameters())
    assert total - padding * model.config.hidden_size == parameters


def network(**rates: Any) -> ULMFiT:
    torch.manual_seed(0)
    return replace(FAMILY.sizes["nano"], vocab_size=50, **rates).build()


def ids(*shape: int) -> Tensor:
    return torch.randint(50, shape, generator=torch.Generator().manual_seed(1))


def test_a_dropped_word_is_dropped_wherever_it_occurs() -> None:
    model, tokens = network(embedding_dropout=0.5).train(), ids(4, 30)
    embedded = model.embed(tokens)
    for word in tokens.unique():
        own = embedded[tokens == word]
        kept = bool(own.any())
        expected = model.token_embeddings.weight[word] * (2.0 if kept else 0.0)
        torch.testing.assert_close(own, expected.expand_as(own))
    assert (embedded == 0).all(-1).any() and embedded.any()
    assert torch.equal(model.eval().embed(tokens), model.token_embeddings(tokens))


@pytest.mark.parametrize("rate", RATES)
def test_each_dropout_acts_in_training_alone_and_follows_the_seed(rate: str) -> None:
    model, inputs = network(**{rate: 0.5}), Inputs.from_ids(ids(2, 12), causal=True)
    plain = network().eval()(inputs).hidden

    def hidden(seed: int) -> Tensor:
        torch.manual_seed(seed)
        return model.train()(inputs).hidden

    assert torch.equal(hidden(1), hidden(1))
    assert not torch.equal(hidden(1), hidden(2))
    assert torch.equal(model.eval()(inputs).hidden, plain)


def test_all_layers_but_the_last_are_of_the_inner_size() -> None:
    shapes = [layer.weight_hh_l0.shape for layer in network().lstm_layers]
    assert shapes == [(4 * 128, 128), (4 * 128, 128), (4 * 64, 64)]


def test_an_untied_output_layer_has_weights_of_its_own(tmp_path: Path) -> None:
    tied, untied = network(), network(tie_word_embeddings=False)
    assert parameters(untied) - parameters(tied) == 50 * 64
    inputs = Inputs.from_ids(ids(2, 12), causal=True)
    hidden = untied(inputs).hidden
    assert untied.lm_head is not None
    tied.load_state_dict({k: v for k, v in untied.state_dict().items() if k != "lm_head.weight"})
    assert torch.equal(hidden, tied(inputs).hidden)
    expected = hidden @ untied.lm_head.weight[:50].T + untied.bias
    torch.testing.assert_close(untied.lm_logits(hidden).logits(), expected)
    assert not torch.isclose(tied.lm_logits(hidden).logits(), expected).any(-1).all()
    save(tmp_path, untied, None)
    again: Any = load_model(tmp_path)
    assert again.config == untied.config
    assert torch.equal(again.lm_head.weight, untied.lm_head.weight)
