"""Text in, text out, for every kind of tokenizer."""

from collections.abc import Sequence
from typing import Any

import pytest

from kinfolk.errors import UserError
from kinfolk.families.bert import Bert, BertConfig
from kinfolk.families.gpt2 import GPT2, GPT2Config
from kinfolk.families.t5 import T5, T5Config
from kinfolk.generation import fill as fill_module
from kinfolk.generation import generate as texts
from kinfolk.generation import prompts
from kinfolk.generation.config import GenerationConfig
from kinfolk.generation.fill import FillResult, MaskFill, fill_text
from kinfolk.text import Tokenizer, train_tokenizer
from kinfolk.workflows.generate import generate


@pytest.fixture
def writer(tokenizer: Tokenizer) -> GPT2:
    # More ids than the tokenizer has: none of those may be written.
    return GPT2Config(
        vocab_size=tokenizer.vocab_size + 9,
        hidden_size=16,
        num_layers=1,
        num_heads=2,
        max_length=64,
    ).build()


@pytest.fixture
def reader(tokenizer: Tokenizer) -> Bert:
    return BertConfig(
        vocab_size=tokenizer.vocab_size + 9,
        hidden_size=16,
        num_layers=1,
        num_heads=2,
        max_length=64,
    ).build()


@pytest.fixture
def both(tokenizer: Tokenizer) -> T5:
    return T5Config(
        vocab_size=tokenizer.vocab_size + 9, hidden_size=16, num_layers=1, num_heads=2
    ).build()


@pytest.mark.parametrize("prompt", ["", "the cat"])
def test_a_text_goes_on(writer: GPT2, tokenizer: Tokenizer, prompt: str) -> None:
    one, two, other = (
        generate(writer, tokenizer, prompt, max_new_tokens=20, temperature=5.0, seed=s)
        for s in (1, 1, 2)
    )
    assert one == two != other
    assert one and "[MASK]" not in one and "<extra_id" not in one


def test_an_encoder_decoder_generates_and_an_encoder_does_not(
    both: T5, reader: Bert, tokenizer: Tokenizer
) -> None:
    hot = {"max_new_tokens": 20, "temperature": 5.0}
    assert any(generate(both, tokenizer, "the cat", **hot, seed=s) for s in range(5))
    with pytest.raises(UserError, match="bert models do not support generate"):
        generate(reader, tokenizer, "the cat")


def test_an_encoder_fills_a_token_a_hole(reader: Bert, tokenizer: Tokenizer) -> None:
    filled = fill_text(reader, tokenizer, "The [MASK] sat on [MASK].", candidates=3)
    first, second = filled.masks
    assert [len(hole.candidates) for hole in filled.masks] == [3, 3]
    assert all(0 < p < 1 for hole in filled.masks for _, p in hole.candidates)
    assert first.text == first.candidates[0][0]
    assert filled.text.startswith("The ") and filled.text.endswith(".")
    assert " sat on" in filled.text and second.text.strip() in filled.text


def test_a_hole_reads_as_its_tokens_do(
    reader: Bert, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = tokenizer.encode("with a red", add_special_tokens=False)
    red = {"char": "d", "unigram": "d"}.get(tokenizer.kind, "red")

    def fake(*args: object, **options: object) -> list[list[tuple[int, float]]]:
        return [[(ids[-1], 0.5)]]

    monkeypatch.setattr(fill_module, "fill_masks", fake)
    assert fill_text(reader, tokenizer, "A [MASK] ball").text == f"A {red} ball"
    assert fill_text(reader, tokenizer, "[MASK] ball").text == f"{red} ball"


def test_a_decoder_fills_a_span_a_hole(
    both: T5, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    spans = [
        tokenizer.encode(
            " old dog" if tokenizer.kind == "bpe" else "old dog", add_special_tokens=False
        )
    ]
    asked = []

    def fake(model: T5, source: Sequence[int], **options: object) -> list[list[int]]:
        asked.append(list(source))
        return [*spans, []]

    monkeypatch.setattr(fill_module, "fill_sentinels", fake)
    filled = fill_text(both, tokenizer, "The [MASK] sat on[MASK].")
    assert filled.text == "The old dog sat on."
    assert filled.masks[1] == MaskFill("", [])
    held = [id for id in asked[0] if id in tokenizer.special_tokens.sentinels]
    assert held == list(tokenizer.special_tokens.sentinels[:2])
    assert asked[0][-1] == tokenizer.special_tokens.eos


def test_a_tokenizer_without_a_mask_has_sentinels_all_the_same() -> None:
    ours = train_tokenizer(["the old dog sat"] * 9, kind="word", vocab_size=110)
    theirs = Tokenizer(ours._backend, {"pad": "[PAD]", "unk": "[UNK]", "eos": "<|endoftext|>"})
    assert theirs.special_tokens.mask is None
    for tokenizer in (ours, theirs):
        ids = fill_module._encode_with_masks(tokenizer, "the [MASK] dog [MASK]")
        assert [tokenizer.id_to_token(id) for id in ids] == [
            "the",
            "<extra_id_0>",
            "dog",
            "<extra_id_1>",
        ]


def test_an_untrained_decoder_fills_without_complaint(both: T5, tokenizer: Tokenizer) -> None:
    filled = fill_text(
        both, tokenizer, "The [MASK] sat.", GenerationConfig(max_new_tokens=20, seed=3)
    )
    assert isinstance(filled, FillResult) and filled.masks[0].candidates == []
    assert "[MASK]" not in filled.text and "<extra_id" not in filled.text


def test_a_text_that_cannot_be_filled_is_refused(
    reader: Bert, both: T5, writer: GPT2, tokenizer: Tokenizer
) -> None:
    for model in (reader, both):
        with pytest.raises(UserError, match=r"contains no \[MASK\]"):
            fill_text(model, tokenizer, "no hole")
    with pytest.raises(UserError, match="101 masks, and the tokenizer has 100 sentinel"):
        fill_text(both, tokenizer, "[MASK]" * 101)
    with pytest.raises(UserError, match="the text contains the special token <extra_id_3>"):
        fill_text(both, tokenizer, "The [MASK] and <extra_id_3>")
    with pytest.raises(UserError, match="decoder models cannot fill"):
        fill_text(writer, tokenizer, "The [MASK].")


def test_long_prompts_share_a_batch_with_fewer_and_the_texts_stay_the_same(
    both: T5, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = ["the cat sat on the mat " * n for n in (1, 3, 2, 1)]
    short = GenerationConfig(do_sample=False, max_new_tokens=5)
    whole = list(texts.transform_lines(both, tokenizer, lines, short, fixed_limit=True))
    sizes: list[int] = []
    make = texts.GenerationRequest.from_prompts

    def count(encoded: Any, *values: Any, **options: Any) -> Any:
        sizes.append(len(encoded))
        return make(encoded, *values, **options)

    monkeypatch.setattr(texts.GenerationRequest, "from_prompts", count)
    monkeypatch.setattr(texts, "MAX_BATCH_SCORES", 1)
    assert list(texts.transform_lines(both, tokenizer, lines, short, fixed_limit=True)) == whole
    assert sizes == [1, 1, 1, 1]
    monkeypatch.setattr(prompts, "MAX_ATTENTION_SCORES", 100)
    with pytest.raises(
        UserError, match=r"line \d: the text has .* split it into texts of at most 7"
    ):
        list(texts.transform_lines(both, tokenizer, lines, short))
