"""What is wanted of a text, in words, for every kind of tokenizer."""

import pytest

from kinfolk.errors import UserError
from kinfolk.generation import GREEDY, Beam, Contrastive, Sampling
from kinfolk.generation.wishes import WAYS, Wishes, spellings, ways
from kinfolk.models.gpt2 import GPT2Config
from kinfolk.models.t5 import T5Config
from kinfolk.text import Tokenizer


def test_a_word_is_spelled_in_every_way(tokenizer: Tokenizer) -> None:
    found = spellings(tokenizer, "the")
    assert found[0] == tuple(tokenizer.encode("the", specials=False))
    assert len(set(found)) == len(found) <= 2 * WAYS
    assert all(tokenizer.decode(way).strip() == "the" for way in found)
    if tokenizer.kind == "bpe":
        letters = tuple(tokenizer.encode(letter, specials=False)[0] for letter in "the")
        assert letters in found and tuple(tokenizer.encode(" the", specials=False)) in found


def test_a_long_word_has_its_shortest_spellings(tokenizer: Tokenizer) -> None:
    word = "thethethethethethethethe"
    found = spellings(tokenizer, word)
    assert 1 <= len(found) <= 2 * WAYS + 2
    assert all(tokenizer.decode(way).strip() == word for way in found)
    if tokenizer.kind == "bpe":
        lengths = list(map(len, ways(tokenizer, word)))
        assert len(found) > WAYS and lengths == sorted(lengths)


def test_wishes_are_rules(tokenizer: Tokenizer) -> None:
    wishes = Wishes(prefix="the cat", allow=["sat", "the mat"], ban=["dog"], fewest=2, ngram=3)
    rules = wishes.rules(tokenizer)
    assert rules.prefix == tokenizer.encode("the cat", specials=False)
    assert rules.allowed == [tokenizer.encode(t, specials=False) for t in ("sat", "the mat")]
    assert tuple(tokenizer.encode("dog", specials=False)) in rules.words
    assert (rules.fewest, rules.ngram, rules.repetition) == (2, 3, 1.0)
    assert Wishes().rules(tokenizer).allowed is None


@pytest.mark.parametrize("method", [GREEDY, Sampling(temperature=0), Contrastive()])
def test_one_text_is_all_that_some_methods_find(method: Sampling | Contrastive) -> None:
    Wishes().check(method)
    with pytest.raises(UserError, match="finds one text, not 2"):
        Wishes(num=2).check(method)


def test_others_find_more() -> None:
    for method in (Sampling(), Sampling(temperature=0.1), Beam()):
        Wishes(num=2).check(method)


def test_a_prompt_fills_the_context_but_for_a_token(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("the cat sat on the mat", specials=False)
    text, size = tokenizer.decode(ids), 1 + len(ids)  # a token opens it
    fits, narrow = (
        GPT2Config(
            vocab_size=tokenizer.vocab, hidden_size=8, num_layers=1, num_heads=1, max_length=c
        ).build()
        for c in (size + 1, size)
    )
    assert Wishes().frame(fits, tokenizer, text)[1] == 0
    with pytest.raises(UserError, match=f"shorten it to {size - 1} at most, or .*--truncate left"):
        Wishes().frame(narrow, tokenizer, text)
    asked, over = Wishes(truncate=True, tokens=2).frame(narrow, tokenizer, text)
    assert over == 2 and asked.prompt[1:] == tokenizer.encode(text, specials=False)[2:]
    asked, over = Wishes(truncate=True, tokens=1).frame(fits, tokenizer, text)
    assert over == 0 and len(asked.prompt) == size
    reader = T5Config(vocab_size=tokenizer.vocab, hidden_size=8, num_layers=1, num_heads=1).build()
    assert Wishes().frame(reader, tokenizer, text * 50)[1] == 0  # any length will do
