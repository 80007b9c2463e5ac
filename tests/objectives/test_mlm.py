"""Masked language modelling: the picture, who sees whom, and the shares of the paper."""

import dataclasses
from typing import Any

import numpy as np
import pytest

from kinfolk.data.feed import draw
from kinfolk.errors import UserError
from kinfolk.objectives.mlm import MLM, hide
from kinfolk.types import IGNORED

RNG = np.random.default_rng(0)


def mlm(specials: Any, **settings: Any) -> MLM:
    return MLM(specials=specials, vocab=80, **settings)


def test_the_picture_holds(specials: Any, ids: Any, piece: Any, chosen: Any) -> None:
    rng = chosen([[2], []], [0.5])  # the token in slot 2, none swapped; a die that says [MASK]
    example = mlm(specials).example(piece(ids("the cat sat down")), rng)
    assert example.ids.tolist() == ids("[C] the [M] sat down [S]")
    assert example.labels.tolist() == ids(". . cat . . .")


def test_sight_is_the_whole_of_ones_own_text(
    specials: Any, ids: Any, piece: Any, chosen: Any
) -> None:
    way = mlm(specials, length=9)
    first = way.example(piece(ids("the cat")), chosen([[2], []], [0.5]))
    second = way.example(piece(ids("sat")), chosen([[1], []], [0.5]))
    batch = way.collate([[first, second]])
    assert batch.inputs.sight.table()[0].int().tolist() == [
        [1, 1, 1, 1, 0, 0, 0, 0, 0],
        [1, 1, 1, 1, 0, 0, 0, 0, 0],
        [1, 1, 1, 1, 0, 0, 0, 0, 0],
        [1, 1, 1, 1, 0, 0, 0, 0, 0],
        [0, 0, 0, 0, 1, 1, 1, 0, 0],
        [0, 0, 0, 0, 1, 1, 1, 0, 0],
        [0, 0, 0, 0, 1, 1, 1, 0, 0],
        [0, 0, 0, 0, 0, 0, 0, 1, 1],
        [0, 0, 0, 0, 0, 0, 0, 1, 1],
    ]
    assert batch.inputs.ids[0].tolist() == ids("[C] the [M] [S] [C] [M] [S] <p> <p>")
    assert batch.inputs.places[0].tolist() == [0, 1, 2, 3, 0, 1, 2, 0, 0]
    assert batch.inputs.segments is None
    assert batch.targets.ids.tolist() == ids("cat sat")
    assert batch.targets.at is not None and batch.targets.at.tolist() == [2, 5]
    assert batch.counts == {"tokens": 2}


@pytest.mark.parametrize(
    ("tokens", "hidden"), [(1, 1), (3, 1), (9, 1), (10, 2), (40, 6), (100, 15), (510, 76)]
)
def test_fifteen_percent_are_predicted_in_every_draw(
    specials: Any, tokens: int, hidden: int
) -> None:
    ids = np.arange(10, 10 + tokens)
    for index in range(20):
        masked = hide(ids, 0.15, specials, np.arange(10, 20), draw(0, 1, index))
        assert (masked.labels != IGNORED).sum() == hidden


def test_the_shares_behind_a_mask_behind_another_and_kept_are_those_of_the_paper(
    specials: Any,
) -> None:
    """80, 10 and 10 %, by chi-square with two degrees of freedom at one in ten thousand."""
    ordinary = np.arange(10, 1000)
    counts = np.zeros(3)
    swaps: list[int] = []
    for index in range(400):
        ids = draw(1, 1, index).integers(10, 1000, 200)
        masked = hide(ids, 0.15, specials, ordinary, draw(2, 1, index))
        at = masked.labels != IGNORED
        assert (masked.labels[at] == ids[at]).all()
        assert (masked.ids[~at] == ids[~at]).all()
        behind, kept = masked.ids[at] == specials.mask, masked.ids[at] == ids[at]
        counts += behind.sum(), kept.sum(), (~behind & ~kept).sum()
        swaps += masked.ids[at][~behind & ~kept].tolist()
    expected = np.array([0.8, 0.1, 0.1]) * counts.sum()
    assert counts.sum() == 400 * 30
    assert ((counts - expected) ** 2 / expected).sum() < 18.4
    # What is swapped in may be any ordinary token, and no other.
    assert set(swaps) <= set(ordinary.tolist()) and len(set(swaps)) > 600


def test_specials_in_a_text_are_neither_hidden_nor_swapped_in(specials: Any) -> None:
    way = mlm(specials)
    assert set(way.ordinary.tolist()) == set(range(80)) - specials.all
    ids = np.array([specials.cls, 20, specials.unk, 21, specials.sentinels[0], specials.sep])
    touched: set[int] = set()
    for index in range(200):
        masked = hide(ids, 0.5, specials, way.ordinary, draw(0, 1, index))
        touched |= set(np.flatnonzero(masked.labels != IGNORED).tolist())
        assert (masked.labels != IGNORED).sum() == 1
    assert touched == {1, 3}


def test_a_text_of_specials_alone_predicts_nothing(specials: Any) -> None:
    masked = hide(np.array([specials.unk] * 3), 0.15, specials, np.array([20]), RNG)
    assert (masked.labels == IGNORED).all() and (masked.ids == specials.unk).all()


def test_the_text_itself_is_left_as_it_was(specials: Any, piece: Any) -> None:
    text = piece(range(20, 60))
    mlm(specials, rate=0.9).example(text, RNG)
    assert text.ids.tolist() == list(range(20, 60))


def test_the_exam_hides_each_token_by_itself(specials: Any, ids: Any, piece: Any) -> None:
    exam = mlm(specials).exam()
    pieces = exam.pieces(piece(ids("the cat sat")).documents)
    examples = [exam.example(p, RNG) for p in pieces]
    assert [e.ids.tolist() for e in examples] == [
        ids("[C] [M] cat sat [S]"),
        ids("[C] the [M] sat [S]"),
        ids("[C] the cat [M] [S]"),
    ]
    assert [e.labels.tolist() for e in examples] == [
        ids(". the . . ."),
        ids(". . cat . ."),
        ids(". . . sat ."),
    ]


@pytest.mark.parametrize("role", ["mask", "cls", "sep"])
def test_a_tokenizer_that_lacks_a_token_is_refused(specials: Any, role: str) -> None:
    with pytest.raises(UserError, match=role):
        mlm(dataclasses.replace(specials, **{role: None}))


@pytest.mark.parametrize("rate", [0.0, -0.1, 1.0, 1.5])
def test_a_rate_that_is_no_share_is_refused(specials: Any, rate: float) -> None:
    with pytest.raises(UserError, match="a share of"):
        mlm(specials, rate=rate)
