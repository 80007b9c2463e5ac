"""Accuracy, F1, Matthews correlation, confusion matrix, Pearson and Spearman correlation."""

import math
from abc import abstractmethod
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kinfolk.errors import UserError
from kinfolk.metrics.metric import (
    PRF,
    Counts,
    MeanMetric,
    Metric,
    Statistics,
    check_lengths,
    precision_recall_f1,
    safe_divide,
)
from kinfolk.types import FloatArray

ClassLabel = str | int


@dataclass(frozen=True)
class Accuracy(MeanMetric):
    """The fraction of rows whose prediction equals the reference."""

    name: str = "accuracy"

    things = "labels"

    def values(self, predictions: Sequence[Any], references: Sequence[Any], /) -> list[float]:
        """Return 1 for each correct row, else 0."""
        return [float(p == r) for p, r in zip(predictions, references, strict=True)]


@dataclass(frozen=True)
class BinaryF1(Metric):
    """F1 of one class against all others; 0 for a class that does not occur."""

    name: str = "f1"
    title: str = "F1"
    positive_label: ClassLabel = 1

    things = "labels"

    def statistics(
        self, predictions: Sequence[ClassLabel], references: Sequence[ClassLabel], /
    ) -> Statistics:
        """Return true positives, predictions and references of the class: (rows, 3)."""
        predicted = np.array([p == self.positive_label for p in predictions])
        gold = np.array([r == self.positive_label for r in references])
        return np.stack([predicted & gold, predicted, gold], 1).astype(np.int64)

    def score(self, total: Statistics, /) -> float:
        """Return F1 of the counts."""
        return precision_recall_f1(*map(int, total)).f1


@dataclass(frozen=True)
class ByClassMetric(Metric):
    """A metric over the counts of every class that occurs."""

    things = "labels"

    def statistics(
        self, predictions: Sequence[ClassLabel], references: Sequence[ClassLabel], /
    ) -> Statistics:
        """Return true positives, predictions and references by class: (rows, 3, classes)."""
        classes = sort_by_type({*predictions, *references})
        index = {label: i for i, label in enumerate(classes)}
        rows = np.arange(len(references))
        predicted = np.array([index[label] for label in predictions])
        gold = np.array([index[label] for label in references])
        counts = np.zeros((len(rows), 3, len(classes)), np.int8)
        counts[rows, 0, gold] = predicted == gold
        counts[rows, 1, predicted] = counts[rows, 2, gold] = 1
        return counts


@dataclass(frozen=True)
class MacroF1(ByClassMetric):
    """The mean F1 of all classes that are predicted or in the references."""

    name: str = "macro_f1"
    title: str = "macro F1"

    def score(self, total: Statistics, /) -> float:
        """Average over the classes."""
        scores = [precision_recall_f1(*c).f1 for c in total.T.tolist() if c[1] or c[2]]
        return safe_divide(sum(scores), len(scores))


@dataclass(frozen=True)
class MatthewsCorrelation(ByClassMetric):
    """The correlation of predicted and reference labels for any number of classes (Gorodkin 2004).

    It is 0 where only one label is predicted or only one is in the references.
    """

    name: str = "matthews"
    title: str = "Matthews"

    minimum = -1.0

    def score(self, total: Statistics, /) -> float:
        """Return the correlation."""
        hits, predicted, gold = total.astype(np.int64)
        rows = int(gold.sum())
        covariance = int(hits.sum()) * rows - int(predicted @ gold)
        variance = (rows**2 - int(predicted @ predicted)) * (rows**2 - int(gold @ gold))
        return safe_divide(covariance, math.sqrt(variance))


@dataclass(frozen=True)
class Correlation(Metric):
    """A correlation of predicted and reference numbers; it needs the rows, not their sum."""

    things, minimum = "numbers", -1.0

    def statistics(
        self, predictions: Sequence[float], references: Sequence[float], /
    ) -> Statistics:
        """Return the numbers themselves: (rows, 2)."""
        for values in (predictions, references):
            for number, value in enumerate(values, 1):
                if not math.isfinite(value):
                    raise UserError(
                        f"number {number} is {value}: remove rows without a finite number"
                    )
        return np.array([predictions, references], np.float64).T

    def score(self, total: Statistics, /) -> float:
        """Not available: a correlation is not a function of a sum."""
        raise NotImplementedError(f"{self.name} is computed from the rows")

    def aggregate(self, statistics: Statistics) -> float:
        """Return the correlation of the two columns."""
        return self.correlation(*np.ascontiguousarray(statistics.T))

    def resampled_scores(self, statistics: Statistics, counts: Counts) -> FloatArray:
        """Correlate the rows of each resample."""
        return np.array([self.aggregate(np.repeat(statistics, n, axis=0)) for n in counts])

    @abstractmethod
    def correlation(self, predictions: FloatArray, references: FloatArray) -> float:
        """Return the correlation of two arrays of numbers."""


@dataclass(frozen=True)
class Pearson(Correlation):
    """The linear correlation; 0 for constant numbers, where GLUE's script returns NaN."""

    name: str = "pearson"
    title: str = "Pearson"

    def correlation(self, predictions: FloatArray, references: FloatArray) -> float:
        """Return the product of the normalized numbers."""
        if not (np.ptp(predictions) and np.ptp(references)):
            return 0.0
        return float(np.clip(normalize(predictions) @ normalize(references), -1, 1))


@dataclass(frozen=True)
class Spearman(Pearson):
    """The linear correlation of ranks; equal numbers have their mean rank."""

    name: str = "spearman"
    title: str = "Spearman"

    def correlation(self, predictions: FloatArray, references: FloatArray) -> float:
        """Return the correlation of the ranks."""
        return super().correlation(ranks(predictions), ranks(references))


def normalize(values: FloatArray) -> FloatArray:
    """Scale numbers to a mean of 0 and a norm of 1."""
    values = values / np.abs(values).max()  # so that squares do not overflow
    values = values - values.mean()
    return values / np.linalg.norm(values)


def ranks(values: FloatArray) -> FloatArray:
    """Return the rank of each number; equal numbers have their mean rank."""
    _, index, sizes = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(sizes) - (sizes - 1) / 2)[index]


@dataclass(frozen=True, eq=False)
class ConfusionMatrix:
    """How often each label (a row) was predicted as each label (a column)."""

    labels: tuple[ClassLabel, ...]
    counts: NDArray[np.int64]  # (reference, prediction)

    @cached_property
    def scores(self) -> dict[ClassLabel, PRF]:
        """Precision, recall and F1 of each label."""
        hits, predicted, gold = self.counts.diagonal(), self.counts.sum(0), self.counts.sum(1)
        rows = zip(self.labels, hits, predicted, gold, strict=True)
        return {label: precision_recall_f1(*map(int, row)) for label, *row in rows}


def confusion_matrix(
    predictions: Sequence[ClassLabel],
    references: Sequence[ClassLabel],
    labels: Sequence[ClassLabel] | None = None,
) -> ConfusionMatrix:
    """Count pairs of reference and prediction; labels are in the order given, or sorted."""
    check_lengths(predictions, references, "labels")
    seen = {*predictions, *references}
    names = sort_by_type(seen) if labels is None else tuple(labels)
    index = {name: i for i, name in enumerate(names)}
    if unknown := sort_by_type(seen - index.keys()):
        raise UserError(
            f"label {unknown[0]!r} is not in {', '.join(map(repr, names))}: list every label"
        )
    counts = np.zeros((len(names), len(names)), np.int64)
    for (gold, predicted), count in Counter(zip(references, predictions, strict=True)).items():
        counts[index[gold], index[predicted]] = count
    return ConfusionMatrix(names, counts)


def sort_by_type(labels: set[ClassLabel]) -> tuple[ClassLabel, ...]:
    """Sort labels, numbers before strings."""
    return tuple(sorted(labels, key=lambda label: (isinstance(label, str), label)))
