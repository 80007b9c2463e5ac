"""Mean scores of entrants that were trained with several seeds, their differences, and intervals.

A score differs from its expectation for two reasons: another seed would have trained another
model, and another test set would have other rows. The variance of a mean over seeds is the sum of
both parts: that between the scores of the seeds, divided by their number, and that of a bootstrap
of the rows, which are drawn for all seeds and entrants alike, so that entrants are compared on the
same rows. Each part has its own quantile of Student's distribution, weighted by the variances
(Cochran): three seeds give a variance with two degrees of freedom
(docs/decisions/16-intervals-of-a-race.md).
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, islice
from typing import Literal

import numpy as np

from kinfolk.errors import UserError
from kinfolk.metrics.bootstrap import CONFIDENCE_LEVEL, resample
from kinfolk.metrics.metric import Metric, Statistics
from kinfolk.metrics.text import BitsPerByte
from kinfolk.types import FloatArray

BITS_PER_BYTE = BitsPerByte()
SUM_ROUNDING = 1e-12  # relative error of sums in another order
SMALLEST_P, BISECTIONS = 1e-12, 30  # of the search for a p-value
OUTLYING_RATE = 0.01  # of tables of equal variance in which some variance is called outlying
RESAMPLES_AT_ONCE = 100  # their counts of rows are in memory together


@dataclass(frozen=True)
class Interval:
    """The mean score of an entrant over its seeds, and the interval of its expectation."""

    value: float
    low: float
    high: float
    scores: tuple[float, ...]  # by seed

    @property
    def spread(self) -> float:
        """The standard deviation over seeds; 0 of one seed."""
        return float(np.std(self.scores, ddof=1)) if len(self.scores) > 1 else 0.0


@dataclass(frozen=True)
class Difference:
    """The mean score of one entrant minus that of another; the first has the better mean.

    Interval and p-value are those of all pairs of a table together (Bonferroni): the probability
    that any of its intervals misses its expectation is at most 5 %. `shown` means that the interval
    excludes 0. The interval ends where the scale of the metric does.
    """

    first: str
    second: str
    value: float
    low: float
    high: float
    p: float
    shown: bool
    seeds: int  # of the entrant with fewer, among those that depend on a seed; 0: neither does
    rows_only: bool  # the interval covers rows, but not how another seed would train
    fixed: tuple[str, ...] = ()  # those of the two that no seed changes
    # Where the interval was wider than the scale of the metric: what there is too little of.
    too_few: Literal["", "seeds", "rows"] = ""


@dataclass(frozen=True)
class _Variance:
    """A part of the variance of a mean, and the degrees of freedom of its estimate."""

    value: float
    df: float


@dataclass(frozen=True, eq=False)
class _Sample:
    """The scores of one entrant."""

    statistics: Sequence[Statistics]  # of each seed
    scores: FloatArray  # (seeds,)
    resampled: FloatArray  # mean over seeds for each bootstrap sample of rows
    fixed: bool  # no seed changes the model
    baseline: bool

    @property
    def value(self) -> float:
        return float(self.scores.mean())

    @property
    def rows(self) -> int:
        return len(self.statistics[0])

    @property
    def df(self) -> int:
        """The degrees of freedom of the variance between seeds; 0 where it is unknown."""
        return 0 if self.fixed else len(self.scores) - 1

    @property
    def variance(self) -> float:
        """The variance between the scores of seeds."""
        return float(self.scores.var(ddof=1)) if self.df else 0.0

    def seed_variance(self, pooled: _Variance) -> _Variance:
        """Return the variance of the mean over seeds, whose scores vary as those of all or more.

        A baseline is not one of those that are pooled: if it varies more, its own seeds say so.
        """
        if self.fixed:
            return _Variance(0.0, math.inf)
        own = self.baseline and self.variance > pooled.value
        value = max(self.variance, pooled.value) / len(self.scores)
        return _Variance(value, float(self.df) if own else pooled.df)


def document_statistics(scores: Sequence[tuple[float, float]]) -> Statistics:
    """Return nats and bytes of each document as the statistics of BITS_PER_BYTE: (documents, 2)."""
    return np.array(scores, np.float64).reshape(-1, 2)


def summarize(metric: Metric, statistics: Sequence[Statistics], *, fixed: bool = False) -> Interval:
    """Return the mean over seeds with its 95 % interval; `statistics` has an array for each seed.

    The interval of one seed covers rows only. `fixed` is a model that no seed changes.
    """
    sample = _samples(metric, {"": statistics}, [""] if fixed else [])[""]
    # Where all rows have the same score, another row may have the one that is farthest from it.
    above = 0.0 if metric.lower_is_better else metric.maximum - sample.value
    farthest = max(above, sample.value - metric.minimum)
    variance = max(float(sample.resampled.var(ddof=1)), (farthest / sample.rows) ** 2)
    rows = _Variance(variance, max(sample.rows - 1.0, 1.0))
    seeds = _Variance(sample.variance / len(sample.scores), float(sample.df))
    parts = seeds, rows
    half = _half_width(parts, 1 - CONFIDENCE_LEVEL)
    high = sample.value + half
    return Interval(
        value=sample.value,
        low=max(sample.value - half, metric.minimum),
        high=high if metric.lower_is_better else min(high, metric.maximum),
        scores=tuple(sample.scores.tolist()),
    )


def compare_all(
    metric: Metric,
    statistics: Mapping[str, Sequence[Statistics]],
    *,
    fixed: Collection[str] = (),
    baselines: Collection[str] = (),
) -> list[Difference]:
    """Compare every pair of entrants of one table on the same rows, the best entrants first.

    `statistics` has an array for each seed of each entrant. Entrants in `fixed` are models that no
    seed changes: one array is enough. Two entrants in `baselines` are not compared with each other,
    and how their seeds vary says nothing about the others.
    """
    samples = _samples(metric, statistics, fixed, baselines)
    sign = 1 if metric.lower_is_better else -1
    ranked = sorted(samples, key=lambda name: sign * samples[name].value)
    pairs = [
        pair for pair in combinations(ranked, 2) if not all(name in baselines for name in pair)
    ]
    pooled = _pooled(samples.values())
    return [
        _difference(metric, first, second, samples, pooled, len(pairs)) for first, second in pairs
    ]


def outlying_seeds(intervals: Mapping[str, Interval]) -> tuple[str, float] | None:
    """Return the entrant whose seeds vary more than chance explains beside those of the others.

    With it, how many times as much, in standard deviations. By Cochran's test of one outlying
    variance, which needs three entrants with several seeds.
    """
    from scipy.special import fdtri  # quantiles of the F distribution

    variances = {name: i.spread**2 for name, i in intervals.items() if len(i.scores) > 1}
    if len(variances) < 3:
        return None
    most = max(variances, key=variances.__getitem__)
    rest = float(np.mean([value for name, value in variances.items() if name != most]))
    count, df = len(variances), min(len(intervals[name].scores) for name in variances) - 1
    critical = fdtri(df, (count - 1) * df, 1 - OUTLYING_RATE / count)
    if not rest or variances[most] / rest < critical:
        return None
    return most, math.sqrt(variances[most] / rest)


def _samples(
    metric: Metric,
    statistics: Mapping[str, Sequence[Statistics]],
    fixed: Collection[str],
    baselines: Collection[str] = (),
) -> dict[str, _Sample]:
    """Score every seed of every entrant, on all rows and on the same bootstrap samples of rows."""
    sizes = {len(rows) for seeds in statistics.values() for rows in seeds}
    if len(sizes) > 1:
        raise UserError(
            f"statistics of {' and '.join(map(str, sorted(sizes)))} rows cannot be compared: "
            "score all entrants on the same rows"
        )
    arrays = {name: list(seeds) for name, seeds in statistics.items()}
    resampled: dict[str, list[FloatArray]] = {name: [] for name in arrays}
    draws = resample(sizes.pop() if sizes else 0, metric.max_resamples, seed=0)
    while group := [*islice(draws, RESAMPLES_AT_ONCE)]:
        counts = np.stack([np.bincount(drawn, minlength=len(drawn)) for drawn in group])
        for name, seeds in arrays.items():
            scores = [metric.resampled_scores(rows, counts) for rows in seeds]
            resampled[name].append(np.mean(scores, axis=0))
    return {
        name: _Sample(
            statistics=seeds,
            scores=np.array([metric.aggregate(rows) for rows in seeds]),
            resampled=np.concatenate(resampled[name]),
            fixed=name in fixed,
            baseline=name in baselines,
        )
        for name, seeds in arrays.items()
    }


def _pooled(samples: Collection[_Sample]) -> _Variance:
    """Return the variance between seeds over all but baselines, with its degrees of freedom.

    They are those of Satterthwaite for entrants of unequal variance, corrected for the bias that
    squared variances of few seeds have, and at least those of one entrant.
    """
    known = [sample for sample in samples if sample.df and not sample.baseline]
    total = sum(sample.df * sample.variance for sample in known)
    if not total:
        return _Variance(0.0, math.inf)
    df, least = sum(sample.df for sample in known), min(sample.df for sample in known)
    effective = total**2 / sum(sample.df * sample.variance**2 for sample in known)
    effective = (1 + 2 / least) * effective - 2
    return _Variance(total / df, min(max(effective, least), df))


def _difference(
    metric: Metric,
    first: str,
    second: str,
    samples: Mapping[str, _Sample],
    pooled: _Variance,
    pairs: int,
) -> Difference:
    a, b = samples[first], samples[second]
    value = a.value - b.value
    seeds, rows = (a.seed_variance(pooled), b.seed_variance(pooled)), _row_variance(a, b)
    error_rate = (1 - CONFIDENCE_LEVEL) / pairs
    half = _half_width((*seeds, rows), error_rate)
    lowest, highest = _possible_differences(metric, a, b)
    too_few: Literal["", "seeds", "rows"] = ""
    if 2 * half > _scale_width(metric, a, b):
        by_seeds = _half_width(seeds, error_rate) > _half_width([rows], error_rate)
        too_few = "seeds" if by_seeds else "rows"
    return Difference(
        first=first,
        second=second,
        value=value,
        low=max(value - half, lowest),
        high=min(value + half, highest),
        p=min(1.0, pairs * _p_value(value, (*seeds, rows))),
        shown=abs(value) > half,
        seeds=min((len(s.scores) for s in (a, b) if not s.fixed), default=0),
        rows_only=any(not s.fixed and not s.df for s in (a, b))
        and not any(s.df and not s.baseline for s in samples.values()),
        fixed=tuple(name for name in (first, second) if samples[name].fixed),
        too_few=too_few,
    )


def _scale_width(metric: Metric, a: _Sample, b: _Sample) -> float:
    """Return how far two scores can be apart; without a maximum, how far the larger is from 0."""
    highest = max(a.value, b.value) if metric.lower_is_better else metric.maximum
    return highest - metric.minimum


def _possible_differences(metric: Metric, a: _Sample, b: _Sample) -> tuple[float, float]:
    """Return the least and the largest difference that the scale of a metric allows.

    Where lower is better there is no maximum, but none is better than the minimum: an entrant can
    be ahead of another by no more than the whole score of the other.
    """
    if metric.lower_is_better:
        return metric.minimum - b.value, a.value - metric.minimum
    return metric.minimum - metric.maximum, metric.maximum - metric.minimum


def _row_variance(a: _Sample, b: _Sample) -> _Variance:
    """Return the variance of a difference over samples of rows.

    Only rows that the entrants differ on tell about it, and they may be few. Where it is the same
    difference on all rows, the bootstrap cannot vary: then one row without a difference is assumed.
    """
    variance = float((a.resampled - b.resampled).var(ddof=1))
    rounding = SUM_ROUNDING * max(abs(a.value), abs(b.value))
    smallest = max(abs(a.value - b.value) / a.rows, rounding) ** 2
    return _Variance(max(variance, smallest), max(_differing_rows(a, b) - 1.0, 1.0))


def _differing_rows(a: _Sample, b: _Sample) -> int:
    """Count the rows whose statistics, averaged over seeds, differ between two entrants."""
    if len({rows.shape for rows in (*a.statistics, *b.statistics)}) > 1:
        return a.rows  # the seeds predict different sets of classes
    first, second = (np.mean(sample.statistics, axis=0) for sample in (a, b))
    differs = ~np.isclose(first, second, rtol=SUM_ROUNDING, atol=SUM_ROUNDING)
    return int(differs.reshape(a.rows, -1).any(1).sum())


def _half_width(parts: Sequence[_Variance], error_rate: float) -> float:
    """Return half the width of a two-sided interval, by the approximation of Cochran and Cox.

    The quantile is the mean of the quantiles of the parts, weighted by their variances. It is never
    too small; that of Satterthwaite is, where a few seeds happen to agree.
    """
    total = sum(part.value for part in parts)
    if not total:
        return 0.0
    from scipy.special import stdtrit  # quantiles of Student's distribution

    weighted = sum(-stdtrit(part.df, error_rate / 2) * part.value for part in parts if part.value)
    return float(weighted / math.sqrt(total))


def _p_value(value: float, parts: Sequence[_Variance]) -> float:
    """Return the error rate of the interval that ends at 0."""
    low, high = math.log(SMALLEST_P), 0.0
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        if _half_width(parts, math.exp(middle)) < abs(value):
            high = middle
        else:
            low = middle
    return math.exp(high)
