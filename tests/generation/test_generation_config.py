"""Settings of generation: ranges, methods, and constraints of every kind of tokenizer."""

import math
from dataclasses import replace
from typing import Any

import pytest

from kinfolk.errors import UserError
from kinfolk.families.gpt2 import GPT2Config
from kinfolk.families.t5 import T5Config
from kinfolk.generation.config import GREEDY, GenerationConfig
from kinfolk.generation.logits_process import (
    MAX_SPELLINGS,
    Constraints,
    segmentations,
    token_spellings,
)
from kinfolk.generation.prompts import encode_prompt
from kinfolk.text import Tokenizer


def test_a_word_is_spelled_in_every_way(tokenizer: Tokenizer) -> None:
    found = token_spellings(tokenizer, "the")
    assert found[0] == tuple(tokenizer.encode("the", add_special_tokens=False))
    assert len(set(found)) == len(found) <= 2 * MAX_SPELLINGS
    assert all(tokenizer.decode(way).strip() == "the" for way in found)
    if tokenizer.kind == "bpe":
        letters = tuple(tokenizer.encode(letter, add_special_tokens=False)[0] for letter in "the")
        assert (
            letters in found and tuple(tokenizer.encode(" the", add_special_tokens=False)) in found
        )


def test_a_long_word_has_its_shortest_spellings(tokenizer: Tokenizer) -> None:
    word = "thethethethethethethethe"
    found = token_spellings(tokenizer, word)
    assert 1 <= len(found) <= 2 * MAX_SPELLINGS + 2
    assert all(tokenizer.decode(way).strip() == word for way in found)
    if tokenizer.kind == "bpe":
        lengths = list(map(len, segmentations(tokenizer, word)))
        assert len(found) > MAX_SPELLINGS and lengths == sorted(lengths)


def test_constraints_are_encoded(tokenizer: Tokenizer) -> None:
    config = GenerationConfig(
        forced_prefix="the cat", allowed_texts=("sat", "the mat"), bad_words=("dog",)
    )
    constraints = Constraints.from_config(config, tokenizer, {7})
    assert constraints.forced_prefix == tokenizer.encode("the cat", add_special_tokens=False)
    assert constraints.allowed_ids == [
        tokenizer.encode(t, add_special_tokens=False) for t in ("sat", "the mat")
    ]
    assert tuple(tokenizer.encode("dog", add_special_tokens=False)) in constraints.bad_words_ids
    assert constraints.suppress_ids == {7}
    assert Constraints.from_config(GREEDY, tokenizer).allowed_ids is None
    with pytest.raises(UserError, match=r"need \d+ tokens, and max_new_tokens is 1: raise it"):
        Constraints.from_config(replace(config, max_new_tokens=1), tokenizer)


@pytest.mark.parametrize(
    ("options", "method"),
    [
        ({}, "sample"),
        ({"top_p": 0.9, "temperature": 0.5}, "sample"),
        ({"do_sample": False}, "greedy"),
        ({"num_beams": 3}, "beam"),
        ({"num_beams": 4, "num_beam_groups": 2}, "diverse-beam"),
        ({"penalty_alpha": 0.6, "top_k": 4}, "contrastive"),
    ],
)
def test_the_fields_select_the_method(options: dict[str, Any], method: str) -> None:
    assert GenerationConfig(**options).method == method


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"max_new_tokens": 0}, "max_new_tokens=0: it must be at least 1"),
        ({"max_new_tokens": 2.5}, "max_new_tokens=2.5: it must be a whole number"),
        ({"min_new_tokens": 9, "max_new_tokens": 8}, "min_new_tokens=9 exceeds max_new_tokens=8"),
        ({"top_p": 2}, "top_p=2: it must be above 0 and at most 1"),
        ({"temperature": -1.0}, "temperature=-1.0: it must be at least 0"),
        ({"temperature": math.nan}, "temperature=nan: it must be a number"),
        ({"seed": -1}, "seed=-1: it must be at least 0"),
        ({"stop_strings": ("a", "")}, "stop_strings has an empty string"),
        ({"bad_words": (" ",)}, "bad_words has an empty string"),
        ({"allowed_texts": ("",)}, "allowed_texts has an empty string"),
        ({"do_sample": False, "top_p": 0.5}, "top_p=0.5 applies to the method sample, and the"),
        ({"num_beams": 4, "top_k": 5}, "top_k=5 applies to the method sample or contrastive, and"),
        ({"penalty_alpha": 0.6, "num_beams": 4}, "num_beams=4 applies to the method beam or"),
        ({"num_beams": 3, "diversity_penalty": 9.0}, "applies to the method diverse-beam, and the"),
        ({"num_beams": 4, "do_sample": True}, "do_sample=True does not combine with the method b"),
        ({"length_penalty": 2.0}, "length_penalty=2.0 applies to the method beam or diverse-beam"),
        ({"num_beams": 4, "num_return_sequences": 5}, "num_return_sequences=5 exceeds num_beams=4"),
        ({"do_sample": False, "num_return_sequences": 2}, "greedy decoding gives one output"),
        ({"temperature": 0, "num_return_sequences": 2}, "greedy decoding gives one output"),
        ({"penalty_alpha": 0.6, "num_return_sequences": 2}, "contrastive search gives one output"),
    ],
)
def test_wrong_settings_are_refused(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError) as error:
        GenerationConfig(**options)
    assert sentence in str(error.value)


def test_options_are_fields_by_name() -> None:
    assert GenerationConfig.from_options({"stop_strings": ["a", "b"], "bad_words": "c"}) == (
        GenerationConfig(stop_strings=("a", "b"), bad_words=("c",))
    )
    for name, right in (("tokens", "max_new_tokens"), ("num", "num_return_sequences")):
        with pytest.raises(UserError, match=f"unknown argument '{name}': did you mean {right}?"):
            GenerationConfig.from_options({name: 3})


@pytest.mark.parametrize(
    ("name", "way"),
    [
        ("stopping_criteria", "stop_strings .*kinfolk.stream"),
        ("eos_token_id", "the end token .*stop_strings"),
        ("logits_processor", "allowed_texts, bad_words, .*kinfolk.logits"),
        ("prefix_allowed_tokens_fn", "allowed_texts, bad_words"),
        ("streamer", "kinfolk.stream"),
    ],
)
def test_arguments_of_transformers_are_answered_with_another_way(name: str, way: str) -> None:
    with pytest.raises(UserError, match=f"^unknown argument '{name}': {way}"):
        GenerationConfig.from_options({name: []})


def test_the_start_token_opens_an_empty_prompt_and_others_on_request(tokenizer: Tokenizer) -> None:
    sizes = {"hidden_size": 8, "num_layers": 1, "num_heads": 1, "max_length": 32}
    model = GPT2Config(vocab_size=tokenizer.vocab_size, **sizes).build()
    start = tokenizer.special_tokens.bos
    ids = tokenizer.encode("the cat", add_special_tokens=False)
    for add_bos_token, text, prompt in (
        (False, "the cat", ids),
        (True, "the cat", [start, *ids]),
        (False, "", [start]),
        (True, "", [start]),
    ):
        config = GenerationConfig(add_bos_token=add_bos_token)
        assert encode_prompt(model, tokenizer, text, config)[0].prompt == prompt


def test_a_prompt_fills_the_context_but_for_a_token(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("the cat sat on the mat", add_special_tokens=False)
    text, size = tokenizer.decode(ids), len(ids)
    fits, narrow = (
        GPT2Config(
            vocab_size=tokenizer.vocab_size, hidden_size=8, num_layers=1, num_heads=1, max_length=c
        ).build()
        for c in (size + 1, size)
    )
    assert encode_prompt(fits, tokenizer, text, GREEDY)[1] == 0
    with pytest.raises(
        UserError, match=f"has room for {size - 1}: shorten it, or .*--truncate-prompt"
    ):
        encode_prompt(narrow, tokenizer, text, GREEDY)
    asked, over = encode_prompt(
        narrow, tokenizer, text, GenerationConfig(truncate_left=True, max_new_tokens=2)
    )
    assert over == 2 and asked.prompt == tokenizer.encode(text, add_special_tokens=False)[2:]
    with pytest.raises(UserError, match=f"max_new_tokens={size} leaves no room for a prompt"):
        encode_prompt(
            narrow, tokenizer, text, GenerationConfig(truncate_left=True, max_new_tokens=size)
        )
    asked, over = encode_prompt(
        fits, tokenizer, text, GenerationConfig(truncate_left=True, max_new_tokens=1)
    )
    assert over == 0 and len(asked.prompt) == size
    reader = T5Config(
        vocab_size=tokenizer.vocab_size, hidden_size=8, num_layers=1, num_heads=1
    ).build()
    assert encode_prompt(reader, tokenizer, text * 50, GREEDY)[1] == 0  # any length will do
