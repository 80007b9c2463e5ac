"""The interface of a metric: statistics of each row, which add up, and the score of their sum."""

from abc import ABC, abstractmethod
from collections.abc import Sequence, Sized
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from kinfolk.errors import UserError

Statistics = NDArray[Any]  # (rows, ...): integers where they are counts
Counts = NDArray[np.int64]  # (resamples, rows): how often a row is drawn


@dataclass(frozen=True)
class Metric(ABC):
    """A score of predictions against references.

    `statistics` returns an array with a first dimension of rows. The score of any selection of rows
    is a function of the sum of their statistics, so that a bootstrap reads no text twice.
    """

    name: str  # the key in JSON and in logs
    title: str = ""  # in tables and reports; empty: the name
    maximum: float = 1.0  # 100 for BLEU and chrF
    decimals: int = 4  # in tables
    lower_is_better: bool = False
    max_resamples: int = 1000  # of a bootstrap interval

    things: ClassVar[str] = "predictions"  # noun for the rows in error messages
    minimum: ClassVar[float] = 0.0  # -1 for correlations

    @abstractmethod
    def statistics(self, predictions: Sequence[Any], references: Sequence[Any], /) -> Statistics:
        """Return the statistics of each row."""

    @abstractmethod
    def score(self, total: Statistics, /) -> float:
        """Return the score of rows whose statistics have this sum."""

    def aggregate(self, statistics: Statistics) -> float:
        """Return the score of rows with these statistics."""
        return self.score(statistics.sum(0))

    def resampled_scores(self, statistics: Statistics, counts: Counts) -> NDArray[np.float64]:
        """Return the score of each resample, in which each row occurs `counts` times."""
        totals = resampled_totals(statistics, counts)
        return np.array([self.score(total) for total in totals])

    def __call__(self, predictions: Sequence[Any], references: Sequence[Any]) -> float:
        """Score predictions against references."""
        check_lengths(predictions, references, self.things)
        return self.aggregate(self.statistics(predictions, references))

    def normalized(self, score: float) -> float:
        """Return a score of which higher is better, with a maximum of 1."""
        return 1 / max(score, 1e-9) if self.lower_is_better else score / self.maximum


@dataclass(frozen=True)
class MeanMetric(Metric):
    """The mean of one value per row."""

    @abstractmethod
    def values(self, predictions: Sequence[Any], references: Sequence[Any], /) -> Sequence[float]:
        """Return the value of each row."""

    def statistics(self, predictions: Sequence[Any], references: Sequence[Any], /) -> Statistics:
        """Return the value of each row and a count of 1: (rows, 2)."""
        return with_counts(self.values(predictions, references))

    def score(self, total: Statistics, /) -> float:
        """Divide the sum of the values by the number of rows."""
        return safe_divide(float(total[0]), float(total[1]))

    def resampled_scores(self, statistics: Statistics, counts: Counts) -> NDArray[np.float64]:
        """Divide all sums at once."""
        totals = resampled_totals(statistics, counts)
        return totals[:, 0] / np.maximum(totals[:, 1], 1)


def resampled_totals(statistics: Statistics, counts: Counts) -> Statistics:
    """Return the summed statistics of each resample: (resamples, ...), integers remain integers."""
    columns = statistics.reshape(len(statistics), -1).astype(np.float64)
    totals = (counts.astype(np.float64) @ columns).reshape(len(counts), *statistics.shape[1:])
    if np.issubdtype(statistics.dtype, np.integer):
        return np.rint(totals).astype(np.int64)
    return totals


def with_counts(values: Sequence[float]) -> NDArray[np.float64]:
    """Return values with a count of 1 each, the statistics of a mean: (rows, 2)."""
    array = np.asarray(values, np.float64)
    return np.stack([array, np.ones_like(array)], 1)


@dataclass(frozen=True)
class PRF:
    """Precision, recall and F1; a division by zero gives 0, as in scikit-learn and seqeval."""

    precision: float
    recall: float
    f1: float
    support: int  # the number of references


def precision_recall_f1(hits: float, predicted: int, gold: int) -> PRF:
    """Return precision, recall and F1 of counts."""
    precision, recall = safe_divide(hits, predicted), safe_divide(hits, gold)
    return PRF(precision, recall, f_score(precision, recall), gold)


def f_score(precision: float, recall: float) -> float:
    """Return the harmonic mean of precision and recall."""
    return safe_divide(2 * precision * recall, precision + recall)


def safe_divide(numerator: float, denominator: float) -> float:
    """Divide; return 0 where the denominator is 0."""
    return numerator / denominator if denominator else 0.0


def check_lengths(predictions: Sized, references: Sized, things: str) -> None:
    """Check that both sequences have the same length and are not empty."""
    if len(predictions) != len(references):
        raise UserError(
            f"got {len(predictions)} {things} for {len(references)} references: "
            "pass one for each reference"
        )
    if not len(references):
        raise UserError(f"no {things} to score: pass at least one")
