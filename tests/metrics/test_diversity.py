"""Diversity of texts: values counted by hand, and BLEU equal to sacrebleu's."""

import math
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sacrebleu.metrics import bleu as sacrebleu

from kinfolk.metrics.diversity import (
    distinct_n,
    diversity_scores,
    ends_in_loop,
    perplexity,
    repetition_rate,
    self_bleu,
    word_tokenize,
)

CAT = "the cat sat on the mat"
DOG = "the dog sat on the cat"


def test_words_are_parted_by_spaces_and_chinese_by_character() -> None:
    assert word_tokenize("It's  3 o'clock.\n") == ["It's", "3", "o'clock", "."]
    assert word_tokenize("我爱PyTorch。") == ["我", "爱", "PyTorch", "。"]
    assert word_tokenize("") == word_tokenize(" \n ") == []


def test_distinct_is_the_share_of_different_grams() -> None:
    texts = [CAT.split(), DOG.split()]
    # the cat sat on mat dog; of ten pairs, "sat on", "on the" and "the cat" come twice
    assert distinct_n(texts, 1) == 6 / 12
    assert distinct_n(texts, 2) == 7 / 10
    assert distinct_n(texts, 4) == 6 / 6
    assert distinct_n([["a"] * 100], 2) == 1 / 99
    assert distinct_n([["a", "b"]], 3) is None


def test_repetition_is_the_share_of_words_in_phrases_said_before() -> None:
    assert repetition_rate(list("abcdefgh")) == 0
    assert repetition_rate(list("abcdxabcd")) == 4 / 9
    assert repetition_rate(list("abcdxabc")) == 0  # three words are no phrase
    assert repetition_rate(list("ababab")) == 4 / 6
    assert repetition_rate(["a"] * 5) == 4 / 5
    assert repetition_rate([]) == 0


@pytest.mark.parametrize(
    ("text", "ends"),
    [
        ("so it goes on and on and on and on", True),
        ("he said he said he said", True),
        ("one two three one two three one two three one", True),  # cut inside the phrase
        ("no no no no no no", True),
        ("very very very good", False),
        ("ha ha ha", False),  # people do
        ("he said he said", False),
        ("he said he said he said nothing", False),
        ("", False),
    ],
)
def test_a_loop_is_a_phrase_three_times_over_at_the_end(text: str, ends: bool) -> None:
    assert ends_in_loop(text.split()) is ends


def test_self_bleu_by_hand() -> None:
    """Each text has 5 of 6 words of the other, 3 of 5 pairs, 1 of 4 triples, 0 of 3 fours."""
    found = self_bleu([CAT.split(), DOG.split()])
    assert found == pytest.approx((5 / 6 * 3 / 5 * 1 / 4 * 0.1 / 3) ** 0.25)


WORDS = st.lists(st.sampled_from("abcd"), min_size=1, max_size=9)


@given(st.lists(WORDS, min_size=2, max_size=7))
@settings(max_examples=60)
def test_self_bleu_is_the_mean_of_sacrebleu(texts: list[list[str]]) -> None:
    metric = sacrebleu.BLEU(
        smooth_method="floor", smooth_value=0.1, effective_order=True, tokenize="none"
    )
    lines = [" ".join(text) for text in texts]
    expected = [
        metric.sentence_score(line, lines[:n] + lines[n + 1 :]).score / 100
        for n, line in enumerate(lines)
    ]
    assert self_bleu(texts) == pytest.approx(np.mean(expected), rel=1e-9, abs=1e-12)


def test_texts_that_are_all_equal() -> None:
    found = diversity_scores([CAT] * 50)
    assert found.self_bleu == pytest.approx(1)
    assert found.distinct_n == (5 / 300, 5 / 250, 4 / 200, 3 / 150)
    assert (found.texts, found.empty, found.words) == (50, 0, 6)
    assert diversity_scores(["yes"] * 2).self_bleu == pytest.approx(1)  # shorter than four words


def test_texts_that_have_nothing_in_common() -> None:
    found = diversity_scores(["a b c d e", "f g h i j"])
    assert (found.self_bleu, found.repetition_rate, found.loop_rate) == (0, 0, 0)
    assert all(share == 1 for share in found.distinct_n)


def test_one_text_is_like_no_other() -> None:
    found = diversity_scores([CAT])
    assert found.self_bleu is None and found.perplexity is None
    assert found.distinct_n == (5 / 6, 1, 1, 1)


def test_empty_texts_are_counted_and_left_out() -> None:
    some, none = diversity_scores([CAT, DOG, "", "  "]), diversity_scores([CAT, DOG])
    assert (some.texts, some.empty, some.words) == (4, 2, 3)
    assert (some.distinct_n, some.self_bleu) == (none.distinct_n, none.self_bleu)
    nothing = diversity_scores([""])
    assert (nothing.texts, nothing.empty, nothing.words) == (1, 1, 0)
    assert nothing.distinct_n == (None,) * 4
    assert nothing.repetition_rate is nothing.loop_rate is nothing.self_bleu is None


def test_chinese_that_loops_is_found_character_by_character() -> None:
    found = diversity_scores(["他说他很高兴，很高兴，很高兴，很高兴，", "今天天气很好。"])
    # 他说他 and four times 很高兴， of which three were said before
    assert found.words == (19 + 7) / 2
    assert found.repetition_rate == pytest.approx(12 / 19 / 2)
    assert found.loop_rate == 0.5


def test_perplexity_is_that_of_the_tokens_and_not_of_the_end() -> None:
    losses = [np.array([1.0, 2.0, 9.0]), np.array([3.0, 9.0]), np.array([9.0])]
    assert perplexity(losses) == pytest.approx(math.exp((1 + 2 + 3) / 3))
    assert perplexity(losses[2:]) is None


@pytest.mark.slow
def test_a_thousand_samples_take_seconds() -> None:
    rng = np.random.default_rng(0)
    texts = [" ".join(f"w{n}" for n in rng.zipf(1.3, 200).clip(max=9999)) for _ in range(1000)]
    before = time.process_time()
    diversity_scores(texts)
    assert time.process_time() - before < 15
