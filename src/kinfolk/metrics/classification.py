"""Accuracy, F1, Matthews correlation, confusion matrix, Pearson and Spearman correlation."""

import math
from collections import Counter
from collections.abc import Sequence, Sized
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from kinfolk.errors import UserError


@dataclass(frozen=True)
class PRF:
    """How much of what was said is true, how much of what is true was said, and the mean of both.

    A share of nothing is 0, as in scikit-learn and seqeval.
    """

    precision: float
    recall: float
    f1: float
    support: int  # how many there were to find


def precision_recall_f1(hits: float, said: int, true: int) -> PRF:
    """Score so many hits among what was said and what is true."""
    precision, recall = safe_divide(hits, said), safe_divide(hits, true)
    return PRF(precision, recall, f_score(precision, recall), true)


def average(scores: Sequence[PRF], weights: Sequence[float] | None = None) -> PRF:
    """Average precision, recall and F1, each by itself."""
    parts = [1.0] * len(scores) if weights is None else weights
    pairs, total = list(zip(scores, parts, strict=True)), sum(parts)
    return PRF(
        safe_divide(sum(one.precision * part for one, part in pairs), total),
        safe_divide(sum(one.recall * part for one, part in pairs), total),
        safe_divide(sum(one.f1 * part for one, part in pairs), total),
        sum(one.support for one in scores),
    )


def safe_divide(part: float, whole: float) -> float:
    """Divide; of nothing the share is 0."""
    return part / whole if whole else 0.0


def f_score(precision: float, recall: float) -> float:
    """Return the harmonic mean, F1."""
    return safe_divide(2 * precision * recall, precision + recall)


def check_lengths(said: Sized, truth: Sequence[Any], things: str) -> None:
    """Refuse lists of different lengths, and empty ones."""
    if len(said) != len(truth):
        raise UserError(
            f"{len(said)} {things} cannot be scored against {len(truth)}: give one for each"
        )
    if not truth:
        raise UserError(f"there are no {things} to score: give at least one")


Label = str | int
Average = Literal["micro", "macro", "weighted"]


@dataclass(frozen=True, eq=False)
class ConfusionMatrix:
    """How often each label (a row) was called by each label (a column)."""

    labels: tuple[Label, ...]
    counts: NDArray[np.int64]  # (truth, said)

    @cached_property
    def scores(self) -> dict[Label, PRF]:
        """Precision, recall and F1 of each label."""
        hits, said, true = self.counts.diagonal(), self.counts.sum(0), self.counts.sum(1)
        rows = zip(self.labels, hits, said, true, strict=True)
        return {label: precision_recall_f1(*map(int, row)) for label, *row in rows}

    @property
    def accuracy(self) -> float:
        """The share of examples whose label was said."""
        return safe_divide(int(self.counts.trace()), int(self.counts.sum()))

    def average(self, how: Average) -> PRF:
        """Average over the labels: alike (macro), by support (weighted), or count all (micro)."""
        if how == "micro":
            total = int(self.counts.sum())
            return precision_recall_f1(int(self.counts.trace()), total, total)
        each = list(self.scores.values())
        return average(each, [one.support for one in each] if how == "weighted" else None)

    @property
    def matthews(self) -> float:
        """The correlation of said and true labels, for any number of them (Gorodkin 2004).

        0 where only one label is said or only one is true: nothing can be told apart then.
        """
        said, true, total = self.counts.sum(0), self.counts.sum(1), int(self.counts.sum())
        both = int(self.counts.trace()) * total - int(said @ true)
        spread = (total**2 - int(said @ said)) * (total**2 - int(true @ true))
        return safe_divide(both, math.sqrt(spread))


def confusion_matrix(
    said: Sequence[Label], truth: Sequence[Label], labels: Sequence[Label] | None = None
) -> ConfusionMatrix:
    """Count who was called what; the labels are in the order given, or sorted."""
    check_lengths(said, truth, "labels")
    seen = set(said) | set(truth)
    names = sort_labels(seen) if labels is None else tuple(labels)
    indices = {name: place for place, name in enumerate(names)}
    if unknown := sort_labels(seen - indices.keys()):
        raise UserError(
            f"label {unknown[0]!r} is not among {', '.join(map(repr, names))}: "
            "name every label, or leave them to be found"
        )
    counts = np.zeros((len(names), len(names)), np.int64)
    for (true, called), count in Counter(zip(truth, said, strict=True)).items():
        counts[indices[true], indices[called]] = count
    return ConfusionMatrix(names, counts)


def accuracy(said: Sequence[Label], truth: Sequence[Label]) -> float:
    """Return the share of examples whose label was said."""
    check_lengths(said, truth, "labels")
    return sum(one == other for one, other in zip(said, truth, strict=True)) / len(truth)


def f1(said: Sequence[Label], truth: Sequence[Label], average: Average = "macro") -> float:
    """Return F1 over all labels that are said or true."""
    return confusion_matrix(said, truth).average(average).f1


def binary_prf(said: Sequence[Label], truth: Sequence[Label], positive: Label) -> PRF:
    """Score one label against all others; one that is nowhere has 0."""
    check_lengths(said, truth, "labels")
    hits = sum(one == other == positive for one, other in zip(said, truth, strict=True))
    return precision_recall_f1(hits, list(said).count(positive), list(truth).count(positive))


def matthews_corrcoef(said: Sequence[Label], truth: Sequence[Label]) -> float:
    """Return the correlation of said and true labels, CoLA's score."""
    return confusion_matrix(said, truth).matthews


def pearsonr(said: Sequence[float], truth: Sequence[float]) -> float:
    """Return the correlation of numbers; of numbers that are all the same it is called 0.

    It is not defined there, and GLUE's script gives nan, which no run can be chosen by.
    """
    one, other = check_finite(said, truth)
    if not (np.ptp(one) and np.ptp(other)):
        return 0.0
    one, other = unit(one), unit(other)
    return float(np.clip(one @ other, -1, 1))


def spearmanr(said: Sequence[float], truth: Sequence[float]) -> float:
    """Return the correlation of the ranks of numbers; equal numbers share theirs."""
    one, other = check_finite(said, truth)
    return pearsonr(ranks(one).tolist(), ranks(other).tolist())


def check_finite(
    said: Sequence[float], truth: Sequence[float]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Check that there are as many numbers on both sides, and that all are numbers."""
    check_lengths(said, truth, "numbers")
    for values in (said, truth):
        for place, value in enumerate(values):
            if not math.isfinite(value):
                raise UserError(f"number {place + 1} is {value}: leave such examples out")
    return np.array(said, np.float64), np.array(truth, np.float64)


def unit(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Move numbers to a mean of 0 and a length of 1."""
    values = values / np.abs(values).max()  # so that no square is too large
    values = values - values.mean()
    return values / np.linalg.norm(values)


def ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the rank of each number; equal numbers share the mean of theirs."""
    _, place, sizes = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(sizes) - (sizes - 1) / 2)[place]


def sort_labels(labels: set[Label]) -> tuple[Label, ...]:
    """Sort labels, numbers before words."""
    return tuple(sorted(labels, key=lambda label: (isinstance(label, str), label)))
