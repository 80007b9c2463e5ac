"""Prefix language modelling: the picture, who sees whom, and how long a prefix is."""

from typing import Any

import numpy as np
import pytest

from kinfolk.objectives.clm import CLM, Line
from kinfolk.objectives.prefix import Prefix, opened
from kinfolk.rng import Stream, generator


def prefix(specials: Any, **settings: Any) -> Prefix:
    return Prefix(specials=specials, vocab=100, **({"length": 16} | settings))


def line(ids: Any) -> Line:
    return Line(np.array(ids("<s> the cat sat down")), np.array(ids("the cat sat down </s>")))


def test_the_picture_holds(ids: Any) -> None:
    found = opened(line(ids), 3)
    assert found.ids.tolist() == ids("<s> the cat sat down")
    assert found.labels.tolist() == ids(". . sat down </s>")
    assert found.time.tolist() == [0, 0, 0, 1, 2]


def test_sight_of_a_prefix_and_what_follows(specials: Any, ids: Any) -> None:
    batch = prefix(specials, length=8).collate([[opened(line(ids), 3), opened(line(ids), 1)][:1]])
    assert batch.inputs.attention_mask.dense()[0].int().tolist() == [
        [1, 1, 1, 0, 0, 0, 0, 0],
        [1, 1, 1, 0, 0, 0, 0, 0],
        [1, 1, 1, 0, 0, 0, 0, 0],
        [1, 1, 1, 1, 0, 0, 0, 0],
        [1, 1, 1, 1, 1, 0, 0, 0],
        [0, 0, 0, 0, 0, 1, 1, 1],
        [0, 0, 0, 0, 0, 1, 1, 1],
        [0, 0, 0, 0, 0, 1, 1, 1],
    ]
    assert batch.counts == {"tokens": 3}


def test_a_prefix_of_one_token_is_causal_language_modelling(specials: Any, ids: Any) -> None:
    rows = [[opened(line(ids), 1), opened(line(ids), 1)]]
    found = prefix(specials).collate(rows)
    causal = CLM(specials=specials, vocab=100, length=16).collate([[line(ids), line(ids)]])
    text = causal.inputs.attention_mask.document_ids[0] >= 0
    tables = [b.inputs.attention_mask.dense()[0][text] for b in (found, causal)]
    assert (tables[0] == tables[1]).all()
    assert (found.targets.labels == causal.targets.labels).all()
    assert (found.inputs.position_ids == causal.inputs.position_ids).all()


def test_every_length_of_a_prefix_is_as_likely(specials: Any, ids: Any, piece: Any) -> None:
    way = prefix(specials)
    whole = piece(ids("the cat sat down"), extra=1)
    drawn = [way.example(whole, generator(0, Stream.EXAMPLE, 0, i)).prefix for i in range(2000)]
    assert np.bincount(drawn, minlength=6)[1:].tolist() == pytest.approx([400] * 5, abs=80)


def test_the_exam_asks_from_left_to_right(specials: Any) -> None:
    exam = prefix(specials, length=12).exam()
    assert exam == CLM(specials=specials, vocab=100, length=12)
