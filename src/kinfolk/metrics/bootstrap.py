"""How far a score is to be trusted: what it would be on other examples of the same kind.

Examples are drawn anew, with replacement, and scored again (Efron & Tibshirani, 1993). `interval`
and `difference` take any score of whole lists; where a score is a mean over examples,
`mean_interval` and `mean_difference` are the same and faster.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kinfolk.errors import UserError
from kinfolk.rng import sequential

CONFIDENCE_LEVEL, N_RESAMPLES = 0.95, 1000
Metric = Callable[..., float]  # of lists with an item an example


@dataclass(frozen=True)
class ConfidenceInterval:
    """A score, and between what it lies in most of the draws."""

    score: float
    low: float
    high: float


@dataclass(frozen=True)
class PairedDifference:
    """How much better the first of two systems is on the same examples.

    `p` is how often chance alone would make a difference as large, in either direction, if the
    two were equally good.
    """

    score: float
    low: float
    high: float
    p: float


def bootstrap_interval(
    metric: Metric,
    *columns: Sequence[Any],
    level: float = CONFIDENCE_LEVEL,
    draws: int = N_RESAMPLES,
    seed: int = 0,
) -> ConfidenceInterval:
    """Return a score with its interval: `interval(f1, said, truth)`."""
    again = [metric(*taken(columns, drawn)) for drawn in resample(columns, draws, seed)]
    return ConfidenceInterval(float(metric(*columns)), *percentiles(again, level))


def bootstrap_difference(
    metric: Metric,
    first: Sequence[Any],
    second: Sequence[Any],
    *columns: Sequence[Any],
    level: float = CONFIDENCE_LEVEL,
    draws: int = N_RESAMPLES,
    seed: int = 0,
) -> PairedDifference:
    """Compare two systems on the same draws: `difference(f1, said, said_by_another, truth)`."""

    def gap(one: Sequence[Any], other: Sequence[Any], *rest: Sequence[Any]) -> float:
        return metric(one, *rest) - metric(other, *rest)

    every = (first, second, *columns)
    again = [gap(*taken(every, drawn)) for drawn in resample(every, draws, seed)]
    return p_value(gap(*every), again, level)


def mean_interval(
    values: Sequence[float],
    *,
    level: float = CONFIDENCE_LEVEL,
    draws: int = N_RESAMPLES,
    seed: int = 0,
) -> ConfidenceInterval:
    """Return the mean of what each example scored, with its interval."""
    known = np.asarray(values, np.float64)
    again = [known[drawn].mean() for drawn in resample([values], draws, seed)]
    return ConfidenceInterval(float(known.mean()), *percentiles(again, level))


def mean_difference(
    first: Sequence[float],
    second: Sequence[float],
    *,
    level: float = CONFIDENCE_LEVEL,
    draws: int = N_RESAMPLES,
    seed: int = 0,
) -> PairedDifference:
    """Compare what each example scored by two systems."""
    drawn = resample([first, second], draws, seed)
    gaps = np.asarray(first, np.float64) - np.asarray(second, np.float64)
    return p_value(float(gaps.mean()), [gaps[indices].mean() for indices in drawn], level)


def resample(
    columns: Sequence[Sequence[Any]], draws: int, seed: int
) -> Iterator[NDArray[np.int64]]:
    """Draw as many examples as there are, with replacement, so many times."""
    sizes = [len(column) for column in columns]
    if len(set(sizes)) > 1:
        raise UserError(
            f"lists of {' and '.join(map(str, sizes))} examples cannot be drawn from together: "
            "give one item for each example"
        )
    if not sizes or not sizes[0]:
        raise UserError("there are no examples to draw from: give at least one")
    if draws < 1:
        raise UserError(f"{draws} draws give no interval: make at least 1")
    rng = sequential(seed)
    return (rng.integers(sizes[0], size=sizes[0]) for _ in range(draws))


def taken(columns: Sequence[Sequence[Any]], indices: NDArray[np.int64]) -> list[list[Any]]:
    """Take the same examples from every list."""
    wanted = indices.tolist()
    return [[column[place] for place in wanted] for column in columns]


def percentiles(scores: Iterable[float], level: float) -> tuple[float, float]:
    """Return what a share of all scores, the middle one, lies between."""
    if not 0 < level < 1:
        raise UserError(f"an interval cannot hold a share of {level}: choose one between 0 and 1")
    low, high = np.quantile(list(scores), [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def p_value(gap: float, again: Sequence[float], level: float) -> PairedDifference:
    """Say how often draws differ from what was measured by as much as that does from nothing.

    The measured draw is one of them (Davison & Hinkley 1997), so that `p` is never 0.
    """
    far = np.abs(np.asarray(again) - gap) >= abs(gap)
    return PairedDifference(
        gap, *percentiles(again, level), (1 + int(far.sum())) / (1 + len(again))
    )
