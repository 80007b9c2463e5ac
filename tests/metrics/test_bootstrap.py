"""Intervals: as wide as the theory says, the same for a seed, and honest about two systems."""

import math

import numpy as np
import pytest

from kinfolk.errors import UserError
from kinfolk.metrics.bootstrap import (
    bootstrap_difference,
    bootstrap_interval,
    mean_difference,
    mean_interval,
)
from kinfolk.metrics.classification import accuracy, f1

RNG = np.random.default_rng(7)
TRUTH = RNG.choice(["a", "b", "c"], 200).tolist()
GOOD = [true if keep else "a" for true, keep in zip(TRUTH, RNG.random(200) < 0.9, strict=True)]
BAD = [true if keep else "a" for true, keep in zip(TRUTH, RNG.random(200) < 0.6, strict=True)]


def right(said: list[str]) -> list[float]:
    return [float(one == other) for one, other in zip(said, TRUTH, strict=True)]


def test_a_mean_has_the_interval_of_the_normal_distribution() -> None:
    values = RNG.normal(3, 2, 2000).tolist()
    found = mean_interval(values, draws=4000)
    half = 1.96 * np.std(values) / math.sqrt(2000)
    assert found.score == pytest.approx(np.mean(values))
    assert found.low == pytest.approx(found.score - half, abs=half / 10)
    assert found.high == pytest.approx(found.score + half, abs=half / 10)


def test_an_interval_holds_the_truth_as_often_as_it_says() -> None:
    """Of 300 samples with a mean of one half, 0.9 give an interval around it, give or take."""
    flips = np.random.default_rng(0).random((300, 100)) < 0.5
    found = [
        mean_interval(row.tolist(), level=0.9, draws=300, seed=n) for n, row in enumerate(flips)
    ]
    held = np.mean([one.low <= 0.5 <= one.high for one in found])
    assert abs(held - 0.9) < 3 * math.sqrt(0.9 * 0.1 / 300) + 0.02


def test_a_mean_is_drawn_as_any_other_score() -> None:
    assert bootstrap_interval(accuracy, GOOD, TRUTH) == mean_interval(right(GOOD))
    one, other = (
        bootstrap_difference(accuracy, GOOD, BAD, TRUTH),
        mean_difference(right(GOOD), right(BAD)),
    )
    assert one.score == pytest.approx(other.score) and one.p == pytest.approx(other.p)
    assert (one.low, one.high) == pytest.approx((other.low, other.high))


def test_any_score_may_be_drawn() -> None:
    found = bootstrap_interval(f1, GOOD, TRUTH, draws=200)
    assert found.low < found.score == f1(GOOD, TRUTH) < found.high
    wide = bootstrap_interval(f1, GOOD, TRUTH, draws=200, level=0.99)
    assert wide.low < found.low and found.high < wide.high
    assert bootstrap_interval(f1, GOOD, TRUTH, draws=200) == found
    assert bootstrap_interval(f1, GOOD, TRUTH, draws=200, seed=1) != found


def test_the_better_of_two_is_told() -> None:
    found = bootstrap_difference(f1, GOOD, BAD, TRUTH, draws=200)
    assert found.score == f1(GOOD, TRUTH) - f1(BAD, TRUTH)
    assert 0 < found.low < found.score < found.high
    assert found.p == pytest.approx(1 / 201)  # no draw is as far
    turned = bootstrap_difference(f1, BAD, GOOD, TRUTH, draws=200)
    assert (turned.low, turned.high) == pytest.approx((-found.high, -found.low))
    assert turned.p == found.p


def test_equal_systems_are_not_told_apart() -> None:
    found = mean_difference(right(GOOD), right(GOOD))
    assert (found.score, found.low, found.high, found.p) == (0, 0, 0, 1)


def test_p_is_small_as_seldom_as_it_says() -> None:
    """Two systems as good as each other: p below one tenth in one case of ten."""
    rng = np.random.default_rng(3)
    small = [
        mean_difference(*(rng.random((2, 80)) < 0.7).tolist(), draws=200, seed=n).p < 0.1
        for n in range(300)
    ]
    assert np.mean(small) == pytest.approx(0.1, abs=3 * math.sqrt(0.1 * 0.9 / 300) + 0.02)


def test_one_example_has_no_width() -> None:
    found = mean_interval([0.25])
    assert found.score == found.low == found.high == 0.25


def test_what_cannot_be_drawn_is_a_sentence() -> None:
    with pytest.raises(UserError, match="no examples to draw from"):
        mean_interval([])
    with pytest.raises(UserError, match="lists of 2 and 1 examples"):
        bootstrap_interval(accuracy, ["a", "b"], ["a"])
    with pytest.raises(UserError, match="lists of 1 and 2 examples"):
        mean_difference([1.0], [1.0, 0.0])
    with pytest.raises(UserError, match=r"share of 95: choose one between 0 and 1"):
        mean_interval([1.0], level=95)
    with pytest.raises(UserError, match="0 draws give no interval"):
        mean_interval([1.0], draws=0)
