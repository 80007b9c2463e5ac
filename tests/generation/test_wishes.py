"""What is wanted of a text, in words, for every kind of tokenizer."""

import pytest

from kinfolk.errors import UserError
from kinfolk.families.gpt2 import GPT2Config
from kinfolk.generation.beam_search import BeamSearch
from kinfolk.generation.config import (
    MAX_SPELLINGS,
    GenerationConfig,
    segmentations,
    token_spellings,
)
from kinfolk.generation.contrastive_search import ContrastiveSearch
from kinfolk.generation.sampling import GREEDY, Sampling
from kinfolk.models.t5 import T5Config
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


def test_wishes_are_rules(tokenizer: Tokenizer) -> None:
    wishes = GenerationConfig(
        forced_prefix="the cat",
        allowed_texts=["sat", "the mat"],
        bad_words=["dog"],
        min_new_tokens=2,
        no_repeat_ngram_size=3,
    )
    rules = wishes.rules(tokenizer)
    assert rules.forced_prefix == tokenizer.encode("the cat", add_special_tokens=False)
    assert rules.allowed_ids == [
        tokenizer.encode(t, add_special_tokens=False) for t in ("sat", "the mat")
    ]
    assert tuple(tokenizer.encode("dog", add_special_tokens=False)) in rules.bad_words_ids
    assert (rules.min_new_tokens, rules.no_repeat_ngram_size, rules.repetition_penalty) == (
        2,
        3,
        1.0,
    )
    assert GenerationConfig().rules(tokenizer).allowed_ids is None


@pytest.mark.parametrize("method", [GREEDY, Sampling(temperature=0), ContrastiveSearch()])
def test_one_text_is_all_that_some_methods_find(method: Sampling | ContrastiveSearch) -> None:
    GenerationConfig().check(method)
    with pytest.raises(UserError, match="finds one text, not 2"):
        GenerationConfig(num_return_sequences=2).check(method)


def test_others_find_more() -> None:
    for method in (Sampling(), Sampling(temperature=0.1), BeamSearch()):
        GenerationConfig(num_return_sequences=2).check(method)


def test_a_prompt_fills_the_context_but_for_a_token(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("the cat sat on the mat", add_special_tokens=False)
    text, size = tokenizer.decode(ids), 1 + len(ids)  # a token opens it
    fits, narrow = (
        GPT2Config(
            vocab_size=tokenizer.vocab_size, hidden_size=8, num_layers=1, num_heads=1, max_length=c
        ).build()
        for c in (size + 1, size)
    )
    assert GenerationConfig().encode(fits, tokenizer, text)[1] == 0
    with pytest.raises(UserError, match=f"shorten it to {size - 1} at most, or .*--truncate left"):
        GenerationConfig().encode(narrow, tokenizer, text)
    asked, over = GenerationConfig(truncate_left=True, max_new_tokens=2).encode(
        narrow, tokenizer, text
    )
    assert over == 2 and asked.prompt[1:] == tokenizer.encode(text, add_special_tokens=False)[2:]
    asked, over = GenerationConfig(truncate_left=True, max_new_tokens=1).encode(
        fits, tokenizer, text
    )
    assert over == 0 and len(asked.prompt) == size
    reader = T5Config(
        vocab_size=tokenizer.vocab_size, hidden_size=8, num_layers=1, num_heads=1
    ).build()
    assert GenerationConfig().encode(reader, tokenizer, text * 50)[1] == 0  # any length will do
