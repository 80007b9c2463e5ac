"""GPT against its published size and against transformers."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers import OpenAIGPTConfig as TheirConfig
from transformers import OpenAIGPTLMHeadModel as Theirs

from kinfolk.batch import Inputs
from kinfolk.errors import UserError
from kinfolk.families.gpt import FAMILY, GPT, GPTConfig
from kinfolk.hub import load, load_model, save
from kinfolk.text import train_tokenizer
from support.peers import (
    SMALL_SIZE,
    cached_steps,
    count_both,
    ids,
    near,
    open_without_a_word,
    same_causal,
    same_causal_step,
    shake,
)

table: Any = FAMILY.hf
SMALL = GPTConfig(**SMALL_SIZE, max_length=32, dropout=0, attention_dropout=0)


def theirs(**options: object) -> Theirs:
    sizes = {"vocab_size": 70, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 32}
    drops = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    return shake(Theirs(TheirConfig(**{**sizes, **drops, **options})), by=0.2)


@pytest.mark.parity
@pytest.mark.parametrize("activation", ["gelu", "relu", "silu", "swish"])
@pytest.mark.parametrize("vocab", [70, 128])
def test_their_folder_says_the_same_here(activation: str, vocab: int, tmp_path: Path) -> None:
    peer = theirs(afn=activation, vocab_size=vocab)
    peer.save_pretrained(tmp_path)
    ours = load_model(tmp_path)
    assert isinstance(ours, GPT)
    same_causal(ours, peer)


@pytest.mark.parity
@pytest.mark.parametrize("activation", ["gelu_new", "relu", "silu"])
@pytest.mark.parametrize("vocab", [70, 128])
def test_our_folder_says_the_same_there(activation: str, vocab: int, tmp_path: Path) -> None:
    config = GPTConfig(
        **SMALL_SIZE | {"vocab_size": vocab},
        max_length=32,
        activation=activation,
        layer_norm_eps=1e-3,
    )
    ours = shake(config.build(), by=0.2)
    save(tmp_path, ours, None)
    peer = open_without_a_word(AutoModelForCausalLM, tmp_path)
    assert isinstance(peer, Theirs)
    same_causal(ours, peer)
    assert load_model(tmp_path).config == config


@pytest.mark.parity
def test_training_gives_the_same_gradients() -> None:
    same_causal_step(theirs(), SMALL, table)


@pytest.mark.parity
def test_the_published_size_has_its_published_count() -> None:
    assert count_both(FAMILY.sizes["gpt"], table, Theirs) == (116_534_784, 116_534_784)


@pytest.mark.parity
def test_gpt_as_it_was_published_opens(tmp_path: Path) -> None:
    """Without a prefix, and with the mask among the weights."""
    peer = theirs()
    old = peer.transformer.state_dict()
    old |= {f"h.{i}.attn.bias": torch.ones(1, 1, 32, 32).tril() for i in range(2)}
    like = SMALL.build().state_dict()
    found = table.parameters(SMALL).from_hf(old, like, "there")
    assert found.keys() == like.keys()
    assert torch.equal(found["position_embeddings.weight"], peer.transformer.positions_embed.weight)


@pytest.mark.parity
def test_text_goes_in_and_out_in_transformers(tmp_path: Path) -> None:
    tokenizer = train_tokenizer(
        ["low lower lowest new newer newest wide wider"] * 9, kind="byte", vocab_size=400
    )
    config = GPTConfig(
        vocab_size=tokenizer.vocab_size, hidden_size=8, num_layers=1, num_heads=2, max_length=64
    )
    save(tmp_path, config.build(), tokenizer)
    _, mine = load(tmp_path)
    reader = AutoTokenizer.from_pretrained(tmp_path)
    text = "a lower, newer wide low"
    assert (
        mine.encode(text)
        == reader(text)["input_ids"]
        == mine.encode(text, add_special_tokens=False)
    )
    writer = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert writer.generation_config.eos_token_id == mine.special_tokens.eos
    written = writer.generate(**reader(text, return_tensors="pt"), max_new_tokens=3)
    assert written.shape[0] == 1


def test_what_either_side_cannot_follow_is_refused() -> None:
    with pytest.raises(UserError, match=r"model.activation='gelu': .*gelu_new"):
        table.to_config(GPTConfig(activation="gelu"), None)
    with pytest.raises(UserError, match="afn='tanh'"):
        table.from_config({"afn": "tanh"})
    with pytest.raises(UserError, match="tie_word_embeddings"):
        table.from_config({"tie_word_embeddings": False})
    with pytest.warns(UserWarning, match="embd_pdrop"):
        table.from_config({"embd_pdrop": 0.5})


@torch.no_grad()
def test_cached_steps_equal_a_full_pass() -> None:
    model = shake(SMALL.build(), by=0.2)
    whole = Inputs.from_ids(ids(70), causal=True)
    near(cached_steps(model, whole, (0, 4, 6, 7, 9)), model(whole).hidden)


@torch.no_grad()
def test_every_residual_ends_in_a_norm() -> None:
    """Post-norm: what leaves the last block has a mean of zero and a variance of one."""
    hidden = SMALL.build().eval()(Inputs.from_ids(ids(70), causal=True)).hidden
    assert hidden.mean(-1).abs().max() < 1e-5
    assert (hidden.var(-1, unbiased=False) - 1).abs().max() < 1e-2
