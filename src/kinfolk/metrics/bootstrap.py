"""Percentile bootstrap (Efron & Tibshirani, 1993) over the statistics of rows.

Rows are resampled with replacement and their statistics are summed and scored again.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kinfolk.errors import UserError
from kinfolk.metrics.metric import Metric, Statistics
from kinfolk.rng import sequential

CONFIDENCE_LEVEL, N_RESAMPLES = 0.95, 1000


@dataclass(frozen=True)
class ConfidenceInterval:
    """A score and the interval that holds most scores of resampled rows."""

    score: float
    low: float
    high: float


@dataclass(frozen=True)
class PairedDifference:
    """The score of one system minus that of another on the same rows.

    `p` is the two-sided p-value of the hypothesis that both are equally good.
    """

    score: float
    low: float
    high: float
    p: float


def confidence_interval(
    metric: Metric,
    statistics: Statistics,
    *,
    level: float = CONFIDENCE_LEVEL,
    n_resamples: int = N_RESAMPLES,
    seed: int = 0,
) -> ConfidenceInterval:
    """Return the score of rows with its interval."""
    indices = resample(len(statistics), n_resamples, seed)
    scores = [metric.aggregate(statistics[drawn]) for drawn in indices]
    return ConfidenceInterval(metric.aggregate(statistics), *percentiles(scores, level))


def paired_difference(
    metric: Metric,
    first: Statistics,
    second: Statistics,
    *,
    level: float = CONFIDENCE_LEVEL,
    n_resamples: int = N_RESAMPLES,
    seed: int = 0,
) -> PairedDifference:
    """Compare two systems on the same resampled rows.

    `p` counts the resamples that are as far from the observed difference as that is from 0. The
    observed one is among them (Davison & Hinkley 1997), so that `p` is never 0.
    """
    if len(first) != len(second):
        raise UserError(
            f"statistics of {len(first)} and {len(second)} rows cannot be compared: "
            "score both systems on the same rows"
        )
    observed = metric.aggregate(first) - metric.aggregate(second)
    differences = np.array(
        [
            metric.aggregate(first[drawn]) - metric.aggregate(second[drawn])
            for drawn in resample(len(first), n_resamples, seed)
        ]
    )
    extreme = int((np.abs(differences - observed) >= abs(observed)).sum())
    low, high = percentiles(differences, level)
    return PairedDifference(observed, low, high, (1 + extreme) / (1 + n_resamples))


def resample(rows: int, n_resamples: int, seed: int) -> Iterator[NDArray[np.int64]]:
    """Yield the indices of as many rows as there are, drawn with replacement."""
    if not rows:
        raise UserError("no rows to resample: pass at least one")
    if n_resamples < 1:
        raise UserError(f"n_resamples={n_resamples}: it must be at least 1")
    rng = sequential(seed)
    return (rng.integers(rows, size=rows) for _ in range(n_resamples))


def percentiles(scores: Sequence[float] | NDArray[np.float64], level: float) -> tuple[float, float]:
    """Return the bounds of the central interval with a fraction `level` of the scores."""
    if not 0 < level < 1:
        raise UserError(f"level={level}: it must be between 0 and 1")
    low, high = np.quantile(scores, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)
