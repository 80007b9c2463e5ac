"""GPT-2 against its published sizes and against transformers."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM
from transformers import GPT2Config as TheirConfig
from transformers import GPT2LMHeadModel as Theirs

from kinfolk.attention_mask import AttentionMask
from kinfolk.batch import Inputs, KVCache
from kinfolk.families.gpt2 import FAMILY, GPT2, GPT2Config
from kinfolk.hub import load_model, save
from support.networks import hollow
from support.peers import (
    LENGTHS,
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
PUBLISHED = {
    "gpt2": 124_439_808,
    "gpt2-medium": 354_823_168,
    "gpt2-large": 774_030_080,
    "gpt2-xl": 1_557_611_200,
}
SMALL = GPT2Config(
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
    config = TheirConfig(
        **{
            "vocab_size": 70,
            "n_embd": 16,
            "n_layer": 2,
            "n_head": 2,
            "n_positions": 32,
            "resid_pdrop": 0.0,
            "embd_pdrop": 0.0,
            "attn_pdrop": 0.0,
            "bos_token_id": 0,
            "eos_token_id": 0,
            **options,
        }
    )
    return shake(Theirs(config), by=0.2)


@torch.no_grad()
def same(ours: GPT2, peer: Theirs) -> None:
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
@pytest.mark.parametrize("bend", ["gelu_new", "gelu", "gelu_pytorch_tanh", "relu"])
@pytest.mark.parametrize("vocab", [70, 128])
def test_their_folder_says_the_same_here(bend: str, vocab: int, tmp_path: Path) -> None:
    peer = theirs(activation_function=bend, vocab_size=vocab, n_inner=24 if vocab == 128 else None)
    peer.save_pretrained(tmp_path)
    ours = load_model(tmp_path)
    assert isinstance(ours, GPT2) and ours.config.activation == bend
    same(ours, peer)


@pytest.mark.parity
@pytest.mark.parametrize("bend", ["gelu_new", "gelu"])
@pytest.mark.parametrize("vocab", [70, 128])
def test_our_folder_says_the_same_there(bend: str, vocab: int, tmp_path: Path) -> None:
    config = GPT2Config(
        vocab_size=vocab,
        hidden_size=16,
        num_layers=2,
        num_heads=2,
        intermediate_size=40,
        max_length=32,
        activation=bend,
        layer_norm_eps=1e-3,
    )
    ours = shake(config.build(), by=0.2)
    save(tmp_path, ours, None)
    peer = open_without_a_word(AutoModelForCausalLM, tmp_path)
    assert isinstance(peer, Theirs)
    same(ours, peer)


@pytest.mark.parity
def test_training_gives_the_same_gradients() -> None:
    peer = theirs().train()
    ours = SMALL.build().train()
    names = table.parameters(SMALL)
    like = ours.state_dict()
    ours.load_state_dict(names.from_hf(dict(peer.named_parameters()), like, "there"))
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
@pytest.mark.parametrize("name", [name for name in FAMILY.sizes if name.startswith("gpt2")])
def test_published_sizes_have_their_published_count(name: str) -> None:
    config = FAMILY.sizes[name]
    with hollow():
        ours = config.build()
        peer = Theirs(TheirConfig(**table.to_config(config, None)))
    assert parameters(ours) == PUBLISHED[name] == sum(p.numel() for p in peer.parameters())


@torch.no_grad()
def test_cached_steps_equal_a_full_pass_in_rows_of_any_length() -> None:
    model = shake(SMALL.build(), by=0.2)
    tokens, document = ids(70), ragged()
    places = torch.arange(tokens.shape[1]).expand_as(tokens)
    whole = model(inputs(tokens, AttentionMask.causal(document))).hidden
    state = KVCache(max_length=tokens.shape[1])
    steps = []
    for start, stop in [(0, 4), (4, 6), (6, 7), (7, 8), (8, 9)]:
        now = slice(start, stop)
        step = Inputs(
            input_ids=tokens[:, now],
            attention_mask=AttentionMask.causal(document[:, now], start=start),
            position_ids=places[:, now],
            cache=state,
        )
        steps.append(model(step.append_to_cache()).hidden)
    real = document == 0
    near(torch.cat(steps, dim=1)[real], whole[real])
    alone = [
        model(Inputs.from_ids(tokens[i : i + 1, :n], causal=True)).hidden
        for i, n in enumerate(LENGTHS)
    ]
    near(whole[real], torch.cat([row[0] for row in alone]))


@torch.no_grad()
def test_a_prompt_padded_in_front_goes_on_as_if_it_were_not() -> None:
    model = shake(SMALL.build(), by=0.2)
    tokens, document = ids(70, length=7), ragged((7, 3, 5)).flip(1)
    attention_mask, state = AttentionMask.causal(document), KVCache(max_length=9)
    places = (document + 1).cumsum(1) - 1
    start = Inputs(
        input_ids=tokens,
        attention_mask=attention_mask,
        position_ids=places.clamp(min=0),
        cache=state,
    )
    model(start.append_to_cache())
    following = ids(70, length=2)
    for i in range(2):
        step = Inputs(
            input_ids=following[:, i : i + 1],
            attention_mask=AttentionMask.causal(torch.zeros(3, 1, dtype=torch.long), start=7 + i),
            position_ids=places[:, -1:] + 1 + i,
            cache=state,
        )
        hidden = model(step.append_to_cache()).hidden[:, 0]
    for row, length in enumerate((7, 3, 5)):
        text = torch.cat([tokens[row, 7 - length :], following[row]])[None]
        near(hidden[row], model(Inputs.from_ids(text, causal=True)).hidden[0, -1])
