"""GPT against its published size and against transformers."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers import OpenAIGPTConfig as TheirConfig
from transformers import OpenAIGPTLMHeadModel as Theirs

from kinfolk.attention_mask import AttentionMask
from kinfolk.batch import Inputs, KVCache
from kinfolk.errors import UserError
from kinfolk.families.gpt import FAMILY, GPT, GPTConfig
from kinfolk.hub import load, load_model, save
from kinfolk.text import train_tokenizer
from support.networks import hollow
from support.peers import (
    ids,
    inputs,
    near,
    open_without_a_word,
    parameters,
    ragged,
    same_gradients,
    shake,
)

table: Any = FAMILY.hf
SMALL = GPTConfig(
    vocab_size=70,
    hidden_size=16,
    num_layers=2,
    num_heads=2,
    max_length=32,
    dropout=0,
    attention_dropout=0,
)


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


def theirs(**options: object) -> Theirs:
    sizes = {"vocab_size": 70, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 32}
    drops = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    return shake(Theirs(TheirConfig(**{**sizes, **drops, **options})), by=0.2)


@torch.no_grad()
def same(ours: GPT, peer: Theirs) -> None:
    tokens = ids(ours.config.vocab_size)
    said = peer(tokens, output_hidden_states=True)
    hidden = ours(Inputs.from_ids(tokens, causal=True)).hidden
    near(hidden, said.hidden_states[-1])
    near(ours.lm_logits(hidden).logits(), said.logits)
    document = ragged()
    real = document == 0
    said = peer(tokens, attention_mask=real.long()).logits
    hidden = ours(inputs(tokens, AttentionMask.causal(document))).hidden
    near(ours.lm_logits(hidden).logits()[real], said[real])


@pytest.mark.parity
@pytest.mark.parametrize("bend", ["gelu", "relu", "silu", "swish"])
@pytest.mark.parametrize("vocab", [70, 128])
def test_their_folder_says_the_same_here(bend: str, vocab: int, tmp_path: Path) -> None:
    peer = theirs(afn=bend, vocab_size=vocab)
    peer.save_pretrained(tmp_path)
    ours = load_model(tmp_path)
    assert isinstance(ours, GPT)
    same(ours, peer)


@pytest.mark.parity
@pytest.mark.parametrize("bend", ["gelu_new", "relu", "silu"])
@pytest.mark.parametrize("vocab", [70, 128])
def test_our_folder_says_the_same_there(bend: str, vocab: int, tmp_path: Path) -> None:
    config = GPTConfig(
        vocab_size=vocab,
        hidden_size=16,
        num_layers=2,
        num_heads=2,
        max_length=32,
        activation=bend,
        layer_norm_eps=1e-3,
    )
    ours = shake(config.build(), by=0.2)
    save(tmp_path, ours, None)
    peer = open_without_a_word(AutoModelForCausalLM, tmp_path)
    assert isinstance(peer, Theirs)
    same(ours, peer)
    assert load_model(tmp_path).config == config


@pytest.mark.parity
def test_training_gives_the_same_gradients() -> None:
    peer = theirs().train()
    ours = SMALL.build().train()
    names = table.parameters(SMALL)
    ours.load_state_dict(names.from_hf(dict(peer.named_parameters()), ours.state_dict(), "there"))
    tokens = ids(70)
    loss = peer(tokens, labels=tokens).loss
    loss.backward()
    hidden = ours(Inputs.from_ids(tokens, causal=True)).hidden[:, :-1].flatten(0, 1)
    mean = ours.lm_logits(hidden).nll(tokens[:, 1:].flatten()) / len(hidden)
    mean.backward()
    near(mean, loss)
    gradients = {k: p.grad for k, p in ours.named_parameters() if p.grad is not None}
    same_gradients(names.to_hf(gradients), peer)


@pytest.mark.parity
def test_the_published_size_has_its_published_count() -> None:
    with hollow():
        ours = FAMILY.sizes["gpt"].build()
        peer = Theirs(TheirConfig(**table.to_config(FAMILY.sizes["gpt"], None)))
    assert parameters(ours) == 116_534_784 == sum(p.numel() for p in peer.parameters())


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
    tokens = ids(70)
    places = torch.arange(tokens.shape[1]).expand_as(tokens)
    whole = model(Inputs.from_ids(tokens, causal=True)).hidden
    state, steps = KVCache(max_length=tokens.shape[1]), []
    for start, stop in [(0, 4), (4, 6), (6, 7), (7, 9)]:
        now = slice(start, stop)
        attention_mask = AttentionMask.causal(torch.zeros_like(tokens[:, now]), start=start)
        step = Inputs(
            input_ids=tokens[:, now],
            attention_mask=attention_mask,
            position_ids=places[:, now],
            cache=state,
        )
        steps.append(model(step.append_to_cache()).hidden)
    near(torch.cat(steps, dim=1), whole)


@torch.no_grad()
def test_every_residual_ends_in_a_norm() -> None:
    """Post-norm: what leaves the last block has a mean of zero and a variance of one."""
    hidden = SMALL.build().eval()(Inputs.from_ids(ids(70), causal=True)).hidden
    assert hidden.mean(-1).abs().max() < 1e-5
    assert (hidden.var(-1, unbiased=False) - 1).abs().max() < 1e-2
