"""Bootstrap intervals: width, level, seed, and the difference of two systems."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from kinfolk.errors import UserError
from kinfolk.metrics.bootstrap import (
    ConfidenceInterval,
    PairedDifference,
    confidence_interval,
    paired_difference,
    resample,
)
from kinfolk.metrics.classification import Accuracy, MacroF1, MatthewsCorrelation, Spearman
from kinfolk.metrics.metric import Metric, with_counts

RNG = np.random.default_rng(7)
REFERENCES = RNG.choice(["a", "b", "c"], 200).tolist()
GOOD = [r if keep else "a" for r, keep in zip(REFERENCES, RNG.random(200) < 0.9, strict=True)]
BAD = [r if keep else "a" for r, keep in zip(REFERENCES, RNG.random(200) < 0.6, strict=True)]
MEAN, MACRO_F1 = Accuracy(), MacroF1()


def mean_interval(values: Sequence[float], **options: Any) -> ConfidenceInterval:
    return confidence_interval(MEAN, with_counts(values), **options)


def macro_f1(predictions: Sequence[str]) -> Any:
    return MACRO_F1.statistics(predictions, REFERENCES)


def mean_difference(
    first: Sequence[float], second: Sequence[float], **options: Any
) -> PairedDifference:
    return paired_difference(MEAN, with_counts(first), with_counts(second), **options)


def test_a_mean_has_the_interval_of_the_normal_distribution() -> None:
    values = RNG.normal(3, 2, 2000).tolist()
    found = mean_interval(values, n_resamples=4000)
    half = 1.96 * np.std(values) / math.sqrt(2000)
    assert found.score == pytest.approx(np.mean(values))
    assert found.low == pytest.approx(found.score - half, abs=half / 10)
    assert found.high == pytest.approx(found.score + half, abs=half / 10)


def test_an_interval_holds_the_mean_as_often_as_its_level() -> None:
    """Of 300 samples with a mean of one half, 0.9 give an interval around it, give or take."""
    flips = np.random.default_rng(0).random((300, 100)) < 0.5
    found = [
        mean_interval(row.tolist(), level=0.9, n_resamples=300, seed=n)
        for n, row in enumerate(flips)
    ]
    held = np.mean([interval.low <= 0.5 <= interval.high for interval in found])
    assert abs(held - 0.9) < 3 * math.sqrt(0.9 * 0.1 / 300) + 0.02


@pytest.mark.parametrize("metric", [Accuracy(), MACRO_F1, MatthewsCorrelation(), Spearman()])
def test_an_interval_is_that_of_scoring_every_resample_anew(metric: Metric) -> None:
    references: list[Any] = [ord(r) for r in REFERENCES]
    predictions: list[Any] = [ord(p) for p in GOOD]
    scores = [
        metric([predictions[i] for i in drawn], [references[i] for i in drawn])
        for drawn in resample(200, 50, 3)
    ]
    found = confidence_interval(
        metric, metric.statistics(predictions, references), n_resamples=50, seed=3
    )
    assert found.score == metric(predictions, references)
    assert [found.low, found.high] == np.quantile(scores, [0.025, 0.975]).tolist()


def test_an_interval_grows_with_its_level_and_repeats_with_its_seed() -> None:
    found = confidence_interval(MACRO_F1, macro_f1(GOOD), n_resamples=200)
    assert found.low < found.score == MACRO_F1(GOOD, REFERENCES) < found.high
    wide = confidence_interval(MACRO_F1, macro_f1(GOOD), n_resamples=200, level=0.99)
    assert wide.low < found.low and found.high < wide.high
    assert confidence_interval(MACRO_F1, macro_f1(GOOD), n_resamples=200) == found
    assert confidence_interval(MACRO_F1, macro_f1(GOOD), n_resamples=200, seed=1) != found


def test_the_better_of_two_systems_is_found() -> None:
    found = paired_difference(MACRO_F1, macro_f1(GOOD), macro_f1(BAD), n_resamples=200)
    assert found.score == MACRO_F1(GOOD, REFERENCES) - MACRO_F1(BAD, REFERENCES)
    assert 0 < found.low < found.score < found.high
    assert found.p == pytest.approx(1 / 201)  # no resample is as far
    reverse = paired_difference(MACRO_F1, macro_f1(BAD), macro_f1(GOOD), n_resamples=200)
    assert (reverse.low, reverse.high) == pytest.approx((-found.high, -found.low))
    assert reverse.p == found.p


def test_equal_systems_have_no_difference() -> None:
    values = [float(p == r) for p, r in zip(GOOD, REFERENCES, strict=True)]
    found = mean_difference(values, values)
    assert (found.score, found.low, found.high, found.p) == (0, 0, 0, 1)


def test_p_is_small_as_seldom_as_it_says() -> None:
    """Two systems as good as each other: p below one tenth in one case of ten."""
    rng = np.random.default_rng(3)
    small = [
        mean_difference(*(rng.random((2, 80)) < 0.7).tolist(), n_resamples=200, seed=n).p < 0.1
        for n in range(300)
    ]
    assert np.mean(small) == pytest.approx(0.1, abs=3 * math.sqrt(0.1 * 0.9 / 300) + 0.02)


def test_one_row_has_no_width() -> None:
    found = mean_interval([0.25])
    assert found.score == found.low == found.high == 0.25


def test_what_cannot_be_resampled_is_refused() -> None:
    with pytest.raises(UserError, match="no rows to resample"):
        mean_interval([])
    with pytest.raises(UserError, match="statistics of 1 and 2 rows"):
        mean_difference([1.0], [1.0, 0.0])
    with pytest.raises(UserError, match=r"level=95: it must be between 0 and 1"):
        mean_interval([1.0], level=95)
    with pytest.raises(UserError, match="n_resamples=0: it must be at least 1"):
        mean_interval([1.0], n_resamples=0)
