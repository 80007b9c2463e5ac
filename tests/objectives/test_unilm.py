"""UniLM's mixture: the picture, its four sights by hand, and its shares."""

from typing import Any

import numpy as np
import pytest

from kinfolk.batch import IGNORE_INDEX
from kinfolk.data.examples import Example
from kinfolk.objectives.mlm import MLMScorer
from kinfolk.objectives.unilm import UniLM, attention_order
from kinfolk.rng import Stream, generator

SLOTS = range(7)
SIGHTS = {
    "both": [[1] * 7] * 7,
    "right": [[int(key <= query) for key in SLOTS] for query in SLOTS],
    "left": [[int(key >= query) for key in SLOTS] for query in SLOTS],
    "across": [
        [1, 1, 1, 1, 0, 0, 0],
        [1, 1, 1, 1, 0, 0, 0],
        [1, 1, 1, 1, 0, 0, 0],
        [1, 1, 1, 1, 0, 0, 0],
        [1, 1, 1, 1, 1, 0, 0],
        [1, 1, 1, 1, 1, 1, 0],
        [1, 1, 1, 1, 1, 1, 1],
    ],
}


def unilm(special_tokens: Any, **settings: Any) -> UniLM:
    return UniLM(special_tokens=special_tokens, vocab_size=26, **({"max_length": 16} | settings))


def example(ids: Any, way: str) -> Example:
    """The picture's example."""
    segments = np.array([0, 0, 0, 0, 1, 1, 1])
    hidden, labels = ids("[C] the [M] [S] sat [M] [S]"), ids(". . cat . . down .")
    return Example(
        input_ids=np.array(hidden),
        labels=np.array(labels),
        token_type_ids=segments,
        order=attention_order(way, segments),
    )


def test_the_picture_holds(special_tokens: Any, ids: Any, chunk: Any) -> None:
    objective, seen = unilm(special_tokens), set()
    for index in range(40):
        drawn = objective.example(
            chunk(ids("the cat sat down")), generator(0, Stream.EXAMPLE, 0, index)
        )
        text = np.where(drawn.labels == IGNORE_INDEX, drawn.input_ids, drawn.labels)
        first = int(np.argmax(text == special_tokens.sep))
        words = ["the", "cat", "sat", "down"]
        words.insert(first - 1, "[S]")
        assert text.tolist() == ids(" ".join(["[C]", *words, "[S]"]))
        assert drawn.token_type_ids is not None and drawn.order is not None
        assert drawn.token_type_ids.tolist() == [0] * (first + 1) + [1] * (6 - first)
        seen.add((first, tuple(drawn.order.tolist())))
    assert {first for first, _ in seen} == {2, 3, 4} and len(seen) > 6
    segments = np.array([0, 0, 0, 0, 1, 1, 1])
    assert attention_order("both", segments).tolist() == [0, 0, 0, 0, 0, 0, 0]
    assert attention_order("right", segments).tolist() == [0, 1, 2, 3, 4, 5, 6]
    assert attention_order("left", segments).tolist() == [6, 5, 4, 3, 2, 1, 0]
    assert attention_order("across", segments).tolist() == [0, 0, 0, 0, 1, 2, 3]


@pytest.mark.parametrize("way", SIGHTS)
def test_sight_of_each_way(special_tokens: Any, ids: Any, way: str) -> None:
    batch = unilm(special_tokens, max_length=9).collate([[example(ids, way)]])
    table = batch.inputs.attention_mask.dense()[0].int()
    assert table[:7, :7].tolist() == SIGHTS[way]
    assert not table[:7, 7:].any() and not table[7:, :7].any()
    assert batch.inputs.token_type_ids is not None
    assert batch.inputs.token_type_ids[0].tolist() == [0, 0, 0, 0, 1, 1, 1, 0, 0]
    assert batch.counts == {"unilm": 2}


def test_sight_is_each_texts_own(special_tokens: Any, ids: Any) -> None:
    """Two texts in one row are seen in two ways, and not by each other."""
    batch = unilm(special_tokens).collate([[example(ids, "left"), example(ids, "across")]])
    table = batch.inputs.attention_mask.dense()[0].int()
    assert table[:7, :7].tolist() == SIGHTS["left"]
    assert table[7:14, 7:14].tolist() == SIGHTS["across"]
    assert not table[:7, 7:].any() and not table[7:14, :7].any()


def test_the_four_ways_come_in_the_shares_of_the_paper(
    special_tokens: Any, ids: Any, chunk: Any
) -> None:
    """Section 2.4: a third both ways, a third across, a sixth to each side."""
    way, text = unilm(special_tokens), chunk(ids("the cat sat down on"))
    counts = dict.fromkeys(SIGHTS, 0)
    middles = []
    for number in range(3000):
        found = way.example(text, generator(0, Stream.EXAMPLE, 0, number))
        (name,) = (
            n
            for n in counts
            if attention_order(n, found.token_type_ids).tolist() == found.order.tolist()
        )
        counts[name] += 1
        middles.append(int((found.token_type_ids == 0).sum()) - 2)
    assert list(counts.values()) == pytest.approx([1000, 500, 500, 1000], abs=110)
    assert np.bincount(middles)[1:].tolist() == pytest.approx([750] * 4, abs=100)


def test_a_text_of_one_token_has_an_empty_second_half(
    special_tokens: Any, ids: Any, chunk: Any
) -> None:
    found = unilm(special_tokens).example(chunk(ids("cat")), generator(0, Stream.EXAMPLE, 0, 0))
    assert found.token_type_ids.tolist() == [0, 0, 0, 1]
    assert found.labels.tolist()[1] == ids("cat")[0]


def test_the_exam_is_that_of_hidden_words(special_tokens: Any) -> None:
    assert unilm(special_tokens).for_evaluation() == MLMScorer(
        special_tokens=special_tokens, vocab_size=26, max_length=16
    )
