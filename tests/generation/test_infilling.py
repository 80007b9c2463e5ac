"""Filling blanks and going on with a text, for a model that reads both ways."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from kinfolk.attention_mask import AttentionMask
from kinfolk.batch import Inputs
from kinfolk.errors import UserError
from kinfolk.families.glm import GLM, GLMConfig
from kinfolk.families.gpt2 import GPT2
from kinfolk.generation import fill as fill_module
from kinfolk.generation.config import GREEDY, GenerationConfig
from kinfolk.generation.fill import FILL_CONFIG, fill_blanks, fill_text
from kinfolk.generation.prompts import encode_prompt
from kinfolk.text import Tokenizer
from kinfolk.text.tokenizer import GLMTokens, glm_tokens
from kinfolk.workflows.generate import generate
from support.decoding import write

MARKS = GLMTokens(mask=4, sentence=5, gmask=6, start=2, end=3)


@pytest.fixture
def glm() -> GLM:
    model = GLMConfig(
        vocab_size=50, hidden_size=32, num_layers=2, num_heads=2, max_length=40
    ).build()
    draws = torch.Generator().manual_seed(5)
    with torch.no_grad():  # so that the best token changes from place to place
        for weight in model.parameters():
            if weight.dim() > 1:
                weight.copy_(0.3 * torch.randn(weight.shape, generator=draws))
    return model


@pytest.fixture
def filler(tokenizer: Tokenizer) -> GLM:
    # More ids than the tokenizer has: none of those may be written.
    return GLMConfig(
        vocab_size=tokenizer.vocab_size + 9,
        hidden_size=16,
        num_layers=1,
        num_heads=2,
        max_length=64,
    ).build()


def slowly(model: GLM, text: list[int], spans: list[tuple[int, list[int]]], tokens: int) -> Any:
    """Fill the last of the blanks by a whole pass a token, laid out by hand."""
    spans = [(place, list(ids)) for place, ids in spans]
    model.eval()
    for _ in range(tokens):
        ids, places, within = list(text), list(range(len(text))), [0] * len(text)
        for place, written in spans:
            ids += [MARKS.start, *written]
            places += [place] * (len(written) + 1)
            within += range(1, len(written) + 2)
        time = [max(0, slot - len(text) + 1) for slot in range(len(ids))]
        rows = [torch.tensor([line]) for line in (ids, places, within, time)]
        attention_mask = AttentionMask(torch.zeros_like(rows[3]), rows[3], rows[3])
        with torch.no_grad():
            inputs = Inputs(
                input_ids=rows[0],
                attention_mask=attention_mask,
                position_ids=rows[1],
                block_position_ids=rows[2],
            )
            hidden = model(inputs).hidden[0, -1:]
            best = int(model.lm_logits(hidden).logits().argmax())
        if best == MARKS.end:
            break
        spans[-1][1].append(best)
    return spans[-1][1]


def test_blanks_are_filled_as_by_a_whole_pass_a_token(glm: GLM) -> None:
    text = [10, 4, 12, 5, 14]
    first, second = fill_blanks(glm, text, MARKS, config=replace(FILL_CONFIG, max_new_tokens=14))
    assert first == slowly(glm, text, [(1, [])], 7)
    assert second == slowly(glm, text, [(1, first), (3, [])], 14 - len(first))
    assert first and second and first != second


def test_prompts_of_several_lengths_go_on_as_each_alone(glm: GLM) -> None:
    texts = [[10, 6], [11, 12, 13, 6], [4, 20, 21, 6]]
    blanks = [[(1, 1)], [(3, 1)], [(0, 4), (3, 1)]]
    prompts = [[*texts[0], 2], [*texts[1], 2], [*texts[2], 2, 30, 31, 32, 2]]
    options: Any = {"max_new_tokens": 9, "eos_ids": {3}, "method": GREEDY}
    together = write(glm, prompts, blanks=blanks, **options)
    for prompt, blank, text, found in zip(prompts, blanks, texts, together, strict=True):
        (alone,) = write(glm, [prompt], blanks=[blank], **options)
        assert found.ids == alone.ids
        before = [(0, [30, 31, 32])] if len(blank) > 1 else []
        assert found.ids == slowly(glm, text, [*before, (blank[-1][0], [])], 9)


def test_a_blank_reads_what_stands_behind_it(glm: GLM) -> None:
    one, other = (
        fill_blanks(glm, [10, 4, last], MARKS, config=replace(FILL_CONFIG, max_new_tokens=6))
        for last in (20, 33)
    )
    assert one != other


def test_the_end_fills_no_blank_and_what_is_banned_neither(glm: GLM) -> None:
    hot = GenerationConfig(temperature=4.0, max_new_tokens=20)
    spans = [
        span
        for seed in range(20)
        for span in fill_blanks(
            glm, [4, 9, 4], MARKS, config=replace(hot, seed=seed), suppress_ids={7, 8}
        )
    ]
    assert any(spans) and not {3, 7, 8} & {id for span in spans for id in span}
    assert len({tuple(span) for span in spans}) > 20  # each blank has a chance of its own


def test_blanks_that_cannot_be_filled_are_refused(glm: GLM, gpt2: GPT2) -> None:
    with pytest.raises(UserError, match="no mask"):
        fill_blanks(glm, [10, 11], MARKS)
    with pytest.raises(UserError, match="leaves no room"):
        fill_blanks(glm, [10] * 38 + [4, 4], MARKS)
    with pytest.raises(UserError, match="1 tokens are too few for 2 blanks"):
        fill_blanks(glm, [10, 4, 4], MARKS, config=replace(FILL_CONFIG, max_new_tokens=1))
    with pytest.raises(UserError, match="got 1 prompts and blanks for 0"):
        write(glm, [[10, 6, 2]], max_new_tokens=3, eos_ids={3})
    with pytest.raises(UserError, match="blank infilling is not supported"):
        write(gpt2, [[10, 6, 2]], max_new_tokens=3, eos_ids={3}, blanks=[[(1, 1)]])


def test_a_text_goes_on_behind_its_last_mask(filler: GLM, tokenizer: Tokenizer) -> None:
    asked, _ = encode_prompt(filler, tokenizer, "the cat", GenerationConfig())
    known = glm_tokens(tokenizer.special_tokens)
    ids = tokenizer.encode("the cat", add_special_tokens=False)
    assert asked.prompt == [*ids, known.gmask, known.start] and asked.eos_ids == {known.end}
    assert asked.blanks == [(len(ids), 1)] and known.end not in asked.suppress_ids
    for prompt in ("", "the cat"):
        one, two, other = (
            generate(filler, tokenizer, prompt, max_new_tokens=20, temperature=5.0, seed=seed)
            for seed in (1, 1, 2)
        )
        assert one == two != other
        assert one and "MASK]" not in one and "<extra_id" not in one


def test_each_mask_is_its_own_mark_and_gets_its_own_words(
    filler: GLM, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [" old dog" if tokenizer.kind == "bpe" else "old dog", "mat", ""]
    spans = [tokenizer.encode(word, add_special_tokens=False) if word else [] for word in words]
    asked: list[list[int]] = []

    def fake(model: GLM, ids: list[int], marks: GLMTokens, **options: object) -> list[list[int]]:
        asked.append(list(ids))
        return spans

    monkeypatch.setattr(fill_module, "fill_blanks", fake)
    filled = fill_text(filler, tokenizer, "The [MASK] sat. [sMASK] on[gMASK]")
    known = glm_tokens(tokenizer.special_tokens)
    assert [id for id in asked[0] if id in known.masks] == list(known.masks)
    assert filled.text == "The old dog sat. mat on"
    assert [hole.candidates for hole in filled.masks] == [[], [], []]


def test_an_untrained_model_fills_without_complaint(filler: GLM, tokenizer: Tokenizer) -> None:
    filled = fill_text(
        filler,
        tokenizer,
        "[sMASK] The [MASK] sat. [gMASK]",
        replace(FILL_CONFIG, max_new_tokens=12),
    )
    assert len(filled.masks) == 3
    assert " The " in filled.text and "MASK]" not in filled.text


def test_a_text_that_cannot_be_filled_is_refused(filler: GLM, tokenizer: Tokenizer) -> None:
    with pytest.raises(UserError, match=r"contains no \[MASK\]"):
        fill_text(filler, tokenizer, "no hole")
    with pytest.raises(UserError, match="the text contains the special token <extra_id_3>"):
        fill_text(filler, tokenizer, "The [MASK] and <extra_id_3>")
