"""Prefix language modelling: the picture, who sees whom, and how long a prefix is."""

from typing import Any

import numpy as np
import pytest

from kinfolk.data.examples import Example
from kinfolk.objectives.clm import CLM
from kinfolk.objectives.prefix_lm import PrefixLM, with_prefix
from kinfolk.rng import Stream, generator


def prefix(special_tokens: Any, **settings: Any) -> PrefixLM:
    return PrefixLM(
        special_tokens=special_tokens, vocab_size=100, **({"max_length": 16} | settings)
    )


def line(ids: Any) -> Example:
    return Example(
        input_ids=np.array(ids("<s> the cat sat down")),
        labels=np.array(ids("the cat sat down </s>")),
        order=np.arange(5),
    )


def test_the_picture_holds(ids: Any) -> None:
    found = with_prefix(line(ids), 3)
    assert found.input_ids.tolist() == ids("<s> the cat sat down")
    assert found.labels.tolist() == ids(". . sat down </s>")
    assert found.order.tolist() == [0, 0, 0, 1, 2]


def test_sight_of_a_prefix_and_what_follows(special_tokens: Any, ids: Any) -> None:
    batch = prefix(special_tokens, max_length=8).collate(
        [[with_prefix(line(ids), 3), with_prefix(line(ids), 1)][:1]]
    )
    assert batch.inputs.attention_mask.dense()[0].int().tolist() == [
        [1, 1, 1, 0, 0, 0, 0, 0],
        [1, 1, 1, 0, 0, 0, 0, 0],
        [1, 1, 1, 0, 0, 0, 0, 0],
        [1, 1, 1, 1, 0, 0, 0, 0],
        [1, 1, 1, 1, 1, 0, 0, 0],
        [0, 0, 0, 0, 0, 1, 0, 0],
        [0, 0, 0, 0, 0, 1, 1, 0],
        [0, 0, 0, 0, 0, 1, 1, 1],
    ]
    assert batch.counts == {"prefix": 3}


def test_a_prefix_of_one_token_is_causal_language_modelling(special_tokens: Any, ids: Any) -> None:
    rows = [[with_prefix(line(ids), 1), with_prefix(line(ids), 1)]]
    found = prefix(special_tokens).collate(rows)
    causal = CLM(special_tokens=special_tokens, vocab_size=100, max_length=16).collate(
        [[line(ids), line(ids)]]
    )
    text = causal.inputs.attention_mask.document_ids[0] >= 0
    tables = [b.inputs.attention_mask.dense()[0][text] for b in (found, causal)]
    assert (tables[0] == tables[1]).all()
    assert (found.targets.labels == causal.targets.labels).all()
    assert (found.inputs.position_ids == causal.inputs.position_ids).all()


def test_every_length_of_a_prefix_is_as_likely(special_tokens: Any, ids: Any, chunk: Any) -> None:
    way = prefix(special_tokens)
    whole = chunk(ids("the cat sat down"), extra=1)
    drawn = [way.example(whole, generator(0, Stream.EXAMPLE, 0, i)) for i in range(2000)]
    lengths = [int((example.order == 0).sum()) for example in drawn]
    assert np.bincount(lengths, minlength=6)[1:].tolist() == pytest.approx([400] * 5, abs=80)


def test_the_exam_asks_from_left_to_right(special_tokens: Any) -> None:
    exam = prefix(special_tokens, max_length=12).for_evaluation()
    assert exam == CLM(special_tokens=special_tokens, vocab_size=100, max_length=12)
