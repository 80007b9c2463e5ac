"""Every config both ways, and the options that are refused."""

from typing import Any

import pytest
import transformers

from kinfolk.errors import UserError
from kinfolk.families import families, family
from kinfolk.families.base import Family
from kinfolk.families.bert import BertConfig
from kinfolk.families.gpt2 import GPT2Config
from kinfolk.families.t5 import T5Config
from support.loops import every_case

gpt2: Any
bert: Any
t5: Any
gpt2, bert, t5 = (family(name).hf for name in ("gpt2", "bert", "t5"))
CASES = [
    *((family(name).hf, c) for name in ("gpt2", "bert", "t5") for c in family(name).sizes.values()),
    (
        gpt2,
        GPT2Config(
            intermediate_size=100,
            activation="relu",
            dropout=0.0,
            attention_dropout=0.2,
            layer_norm_eps=1e-3,
        ),
    ),
    (
        bert,
        BertConfig(intermediate_size=100, activation="gelu_new", type_vocab_size=4, max_length=77),
    ),
    (
        t5,
        T5Config(
            num_decoder_layers=2,
            head_dim=40,
            intermediate_size=9,
            gated=True,
            activation="gelu",
            num_buckets=8,
        ),
    ),
    (
        t5,
        T5Config(
            gated=True, activation="gelu_pytorch_tanh", tie_word_embeddings=False, max_distance=20
        ),
    ),
]
OURS = pytest.mark.parametrize("member", [gpt2, bert, t5], ids=lambda member: member.model_type)


@OURS
def test_a_config_comes_back_as_it_went(member: Any) -> None:
    configs = [config for owner, config in CASES if owner is member]
    assert len(configs) > 7
    assert [member.from_config(member.to_config(c, None)) for c in configs] == configs


@pytest.mark.parity
@OURS
def test_a_config_comes_back_through_transformers(member: Any) -> None:
    with every_case() as case:
        for owner, config in CASES:
            with case(config):
                if owner is member:
                    said = member.to_config(config, None)
                    peer = transformers.AutoConfig.for_model(member.model_type, **said)
                    assert member.from_config(peer.to_dict()) == config


@pytest.mark.parity
@pytest.mark.parametrize("member", [m for m in families().values() if m.hf], ids=lambda m: m.name)
def test_what_a_config_leaves_out_is_what_transformers_takes_for_it(member: Family) -> None:
    assert member.hf is not None
    defaults = transformers.AutoConfig.for_model(member.hf.model_type).to_dict()
    assert member.hf.from_config({}) == member.hf.from_config(defaults)


@pytest.mark.parametrize(
    ("form", "gated", "bend"),
    [
        ("relu", False, "relu"),
        ("gelu", False, "gelu"),
        ("gated-gelu", True, "gelu_new"),
        ("gated-silu", True, "silu"),
    ],
)
def test_feed_forwards_of_t5_are_read_by_their_name(form: str, gated: bool, bend: str) -> None:
    config = t5.from_config({"feed_forward_proj": form, "tie_word_embeddings": not gated})
    assert (config.gated, config.activation, config.tie_word_embeddings) == (gated, bend, not gated)


@pytest.mark.parametrize(
    ("member", "option"),
    [
        (gpt2, {"scale_attn_by_inverse_layer_idx": True}),
        (gpt2, {"scale_attn_weights": False}),
        (gpt2, {"add_cross_attention": True}),
        (gpt2, {"tie_word_embeddings": False}),
        (bert, {"position_embedding_type": "relative_key"}),
        (bert, {"is_decoder": True}),
        (bert, {"tie_word_embeddings": False}),
        (t5, {"is_encoder_decoder": False}),
    ],
)
def test_what_our_network_cannot_follow_is_refused(member: Any, option: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=next(iter(option))):
        member.from_config(option)


def test_a_second_dropout_that_gpt2_does_not_have_here_is_told() -> None:
    with pytest.warns(UserWarning, match="embd_pdrop"):
        gpt2.from_config({"embd_pdrop": 0.5})
