"""Oracle labels: a greedy search by ROUGE-1 and ROUGE-2, against one that is written out."""

import random

import pytest

from kinfolk.metrics.extractive import greedy_oracle
from kinfolk.metrics.text import MIXED_WORDS, ROUGE

WORDS = ("cat", "dog", "bird", "king", "river", "song", "letter", "garden", "apple", "ball")


def text(chance: random.Random, most: int) -> str:
    return " ".join(chance.choices(WORDS, k=chance.randint(1, most)))


@pytest.mark.parametrize("seed", range(60))
def test_one_sentence_is_the_one_with_the_highest_rouge(seed: int) -> None:
    chance = random.Random(seed)
    sentences, reference = [text(chance, 7) for _ in range(6)], text(chance, 7)
    values = [sum(metric([s], [reference]) for metric in ROUGE[:2]) for s in sentences]
    found = greedy_oracle(sentences, reference, 1)
    assert len(found) == (max(values) > 0)
    if found:
        assert values[found[0]] == pytest.approx(max(values))


def test_sentences_are_added_until_none_raises_the_score() -> None:
    sentences = ["the old king slept", "a bird sang", "the river rose", "nobody knew why"]
    reference = "the river rose and the old king slept"
    assert greedy_oracle(sentences, reference, 3) == (0, 2)
    assert greedy_oracle(sentences, reference, 1) == (0,)
    assert greedy_oracle(sentences, "unrelated words alone", 3) == ()
    assert greedy_oracle([], reference, 3) == ()


def test_of_two_sentences_with_the_same_words_of_the_summary_the_shorter_is_chosen() -> None:
    sentences = ["the king slept while a bird sang in the old garden", "so the king slept"]
    assert greedy_oracle(sentences, "the king slept", 3) == (1,)


def test_a_repeated_word_counts_as_often_as_the_reference_has_it() -> None:
    assert greedy_oracle(["cat cat cat cat", "cat dog"], "cat dog", 3) == (1,)


def test_of_several_references_the_one_that_fits_best_decides() -> None:
    sentences = ["a bird sang", "the king slept well"]
    assert greedy_oracle(sentences, ("a bird flew", "the king slept well"), 1) == (1,)


def test_chinese_is_compared_by_characters() -> None:
    assert greedy_oracle(["今天下雨。", "股市大涨。", "他去上海。"], "上海股市大涨", 1) == (1,)


def test_texts_in_the_words_of_two_languages_are_compared_by_both() -> None:
    sentences = ["the猫 sat", "a dog ran"]
    assert greedy_oracle(sentences, "my 猫", 1) == ()  # mostly Latin letters: Chinese is left out
    assert greedy_oracle(sentences, "my 猫", 1, MIXED_WORDS) == (0,)
    assert MIXED_WORDS.findall("the猫 grün3号") == ["the", "猫", "grün3", "号"]
