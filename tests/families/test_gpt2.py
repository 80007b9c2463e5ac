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
from support.peers import (
    LENGTHS,
    SMALL_SIZE,
    cached_steps,
    count_both,
    ids,
    inputs,
    near,
    open_without_a_word,
    ragged,
    same_causal,
    same_causal_step,
    shake,
)

table: Any = FAMILY.hf
PUBLISHED = {
    "gpt2": 124_439_808,
    "gpt2-medium": 354_823_168,
    "gpt2-large": 774_030_080,
    "gpt2-xl": 1_557_611_200,
}
SMALL = GPT2Config(**SMALL_SIZE, max_length=32, dropout=0, attention_dropout=0)


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


@pytest.mark.parity
@pytest.mark.parametrize("activation", ["gelu_new", "gelu", "gelu_pytorch_tanh", "relu"])
@pytest.mark.parametrize("vocab", [70, 128])
def test_their_folder_says_the_same_here(activation: str, vocab: int, tmp_path: Path) -> None:
    peer = theirs(
        activation_function=activation, vocab_size=vocab, n_inner=24 if vocab == 128 else None
    )
    peer.save_pretrained(tmp_path)
    ours = load_model(tmp_path)
    assert isinstance(ours, GPT2) and ours.config.activation == activation
    same_causal(ours, peer)


@pytest.mark.parity
@pytest.mark.parametrize("activation", ["gelu_new", "gelu"])
@pytest.mark.parametrize("vocab", [70, 128])
def test_our_folder_says_the_same_there(activation: str, vocab: int, tmp_path: Path) -> None:
    config = GPT2Config(
        **SMALL_SIZE | {"vocab_size": vocab},
        intermediate_size=40,
        max_length=32,
        activation=activation,
        layer_norm_eps=1e-3,
    )
    ours = shake(config.build(), by=0.2)
    save(tmp_path, ours, None)
    peer = open_without_a_word(AutoModelForCausalLM, tmp_path)
    assert isinstance(peer, Theirs)
    same_causal(ours, peer)


@pytest.mark.parity
def test_training_gives_the_same_gradients() -> None:
    same_causal_step(theirs(), SMALL, table)


@pytest.mark.parity
@pytest.mark.parametrize("name", [name for name in FAMILY.sizes if name.startswith("gpt2")])
def test_published_sizes_have_their_published_count(name: str) -> None:
    assert count_both(FAMILY.sizes[name], table, Theirs) == (PUBLISHED[name], PUBLISHED[name])


@torch.no_grad()
def test_cached_steps_equal_a_full_pass_in_rows_of_any_length() -> None:
    model = shake(SMALL.build(), by=0.2)
    tokens, document = ids(70), ragged()
    rows = inputs(tokens, AttentionMask.causal(document))
    whole, real = model(rows).hidden, document == 0
    near(cached_steps(model, rows)[real], whole[real])
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
