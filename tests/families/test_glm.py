"""GLM against its published sizes, its places, and GPT-2, whose network it has."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from kinfolk.attention_mask import AttentionMask
from kinfolk.batch import Inputs, KVCache
from kinfolk.families.glm import FAMILY, GLM, GLMConfig
from kinfolk.families.gpt2 import GPT2Config
from kinfolk.hub import load_model, save
from support.networks import hollow
from support.peers import SMALL_SIZE, ids, near, parameters, shake

# What the paper's names and section 3 say, in millions.
PUBLISHED = {
    "glm-base": 110,
    "glm-large": 335,
    "glm-410m": 410,
    "glm-515m": 515,
    "glm-2b": 2000,
    "glm-10b": 10000,
}
SMALL = GLMConfig(**SMALL_SIZE, max_length=32, dropout=0, attention_dropout=0)
# The figure of the paper: five tokens of text, and two blanks of three and two.
PLACES = [0, 1, 2, 3, 4, 4, 4, 4, 2, 2]
WITHIN = [0, 0, 0, 0, 0, 1, 2, 3, 1, 2]
TIME = [0, 0, 0, 0, 0, 1, 2, 3, 4, 5]


def figure(tokens: Tensor, now: slice = slice(None), state: KVCache | None = None) -> Inputs:
    """Lay out rows of tokens as the paper's figure does, or a part of them."""
    places, within, time = (
        torch.tensor(line[now]).expand(len(tokens), -1) for line in (PLACES, WITHIN, TIME)
    )
    attention_mask = AttentionMask(torch.zeros_like(time), time, time)
    found = Inputs(
        input_ids=tokens[:, now],
        attention_mask=attention_mask,
        position_ids=places,
        block_position_ids=within,
        cache=state,
    )
    return found if state is None else found.append_to_cache()


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_sizes_have_about_their_published_count(name: str) -> None:
    with hollow():
        count = parameters(FAMILY.sizes[name].build())
    c = FAMILY.sizes[name]
    tables = (c.vocab_size + 2 * c.max_length) * c.hidden_size
    block = 12 * c.hidden_size**2 + 13 * c.hidden_size
    assert count == tables + c.num_layers * block + 2 * c.hidden_size
    # 2B is 1.9 and 10B is 9.9; the others are right to the last digit that is given.
    assert count / 1e6 == pytest.approx(PUBLISHED[name], rel=0.05 if "b" in name[4:] else 0.007)


@torch.no_grad()
def test_without_its_second_place_it_is_gpt2() -> None:
    ours = shake(SMALL.build(), by=0.2)
    ours.block_position_embeddings.weight.zero_()
    other = GPT2Config(
        vocab_size=70,
        hidden_size=16,
        num_layers=2,
        num_heads=2,
        max_length=32,
        dropout=0,
        attention_dropout=0,
    ).build()
    other.load_state_dict(
        {k: v for k, v in ours.state_dict().items() if k != "block_position_embeddings.weight"}
    )
    inputs = Inputs.from_ids(ids(70), causal=True)
    hidden, expected = ours(inputs).hidden, other.eval()(inputs).hidden
    near(hidden, expected)
    near(ours.lm_logits(hidden).logits(), other.lm_logits(expected).logits())


@torch.no_grad()
def test_a_token_is_the_sum_of_itself_and_of_both_its_places() -> None:
    model = shake(SMALL.build(), by=0.2)
    seen: list[Tensor] = []
    model.layers[0].register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    tokens = ids(70, length=10)
    inputs = figure(tokens)
    model(inputs)
    rows = (
        model.token_embeddings.weight[tokens],
        model.position_embeddings.weight[PLACES],
        model.block_position_embeddings.weight[WITHIN],
    )
    near(seen[0], rows[0] + rows[1] + rows[2])


@torch.no_grad()
def test_two_blanks_are_told_apart_by_place_and_their_tokens_by_place_within() -> None:
    model = shake(SMALL.build(), by=0.2)
    inputs = figure(ids(70, length=10))
    hidden = model(inputs).hidden
    assert inputs.block_position_ids is not None
    for name, values in (
        ("position_ids", inputs.position_ids),
        ("block_position_ids", inputs.block_position_ids),
    ):
        change: dict[str, Any] = {name: values.clone()}
        change[name][:, 6] += 1
        changed = model(replace(inputs, **change)).hidden
        assert torch.equal(changed[:, :6], hidden[:, :6])
        assert not torch.isclose(changed[:, 6:], hidden[:, 6:]).all(-1).any()


@torch.no_grad()
@pytest.mark.parametrize("cuts", [(5,), (5, 6, 7, 8, 9), (7, 9)])
def test_cached_steps_equal_a_full_pass_through_text_and_blanks(cuts: tuple[int, ...]) -> None:
    model = shake(SMALL.build(), by=0.2)
    tokens = ids(70, length=10)
    whole = model(figure(tokens)).hidden
    state = KVCache(max_length=10)
    bounds = zip((0, *cuts), (*cuts, 10), strict=True)
    steps = [model(figure(tokens, slice(a, b), state)).hidden for a, b in bounds]
    near(torch.cat(steps, dim=1), whole)


@torch.no_grad()
def test_with_one_dimension_the_tokens_of_a_blank_have_the_position_of_its_mask(
    tmp_path: Path,
) -> None:
    both = shake(SMALL.build(), by=0.2)
    one = replace(SMALL, two_dimensional_positions=False).build().eval()
    names = {k: v for k, v in both.state_dict().items() if k in one.state_dict()}
    assert both.state_dict().keys() - names.keys() == {"block_position_embeddings.weight"}
    one.load_state_dict(names)
    tokens = ids(70, length=10)
    inputs = figure(tokens)
    assert not torch.isclose(one(inputs).hidden, both(inputs).hidden).all(-1).any()
    both.block_position_embeddings.weight.zero_()
    near(one(inputs).hidden, both(inputs).hidden)
    near(
        one.embed(inputs),
        one.token_embeddings.weight[tokens] + one.position_embeddings.weight[PLACES],
    )
    save(tmp_path, one, None)
    again = load_model(tmp_path)
    assert again.config == one.config
    assert torch.equal(again(inputs).hidden, one(inputs).hidden)


def test_its_folder_keeps_our_names(tmp_path: Path) -> None:
    model = shake(SMALL.build())
    save(tmp_path, model, None)
    assert json.loads((tmp_path / "config.json").read_text())["model_type"] == "kinfolk_glm"
    again = load_model(tmp_path)
    assert isinstance(again, GLM) and again.config == SMALL
    tokens = ids(70, length=10)
    assert torch.equal(again(figure(tokens)).hidden, model(figure(tokens)).hidden)
