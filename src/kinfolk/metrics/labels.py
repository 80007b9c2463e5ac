"""Scores of labels and of numbers: accuracy, F1, Matthews, Pearson, Spearman.

All scores of labels come from one table of counts, and equal those of scikit-learn.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from kinfolk.errors import UserError
from kinfolk.metrics.scores import Score, mean, paired, score, share

Label = str | int
Average = Literal["micro", "macro", "weighted"]


@dataclass(frozen=True, eq=False)
class Confusion:
    """How often each label (a row) was called by each label (a column)."""

    labels: tuple[Label, ...]
    counts: NDArray[np.int64]  # (truth, said)

    @cached_property
    def scores(self) -> dict[Label, Score]:
        """Precision, recall and F1 of each label."""
        hits, said, true = self.counts.diagonal(), self.counts.sum(0), self.counts.sum(1)
        rows = zip(self.labels, hits, said, true, strict=True)
        return {label: score(*map(int, row)) for label, *row in rows}

    @property
    def accuracy(self) -> float:
        """The share of examples whose label was said."""
        return share(int(self.counts.trace()), int(self.counts.sum()))

    def average(self, how: Average) -> Score:
        """Average over the labels: alike (macro), by support (weighted), or count all (micro)."""
        if how == "micro":
            total = int(self.counts.sum())
            return score(int(self.counts.trace()), total, total)
        each = list(self.scores.values())
        return mean(each, [one.support for one in each] if how == "weighted" else None)

    @property
    def matthews(self) -> float:
        """The correlation of said and true labels, for any number of them (Gorodkin 2004).

        0 where only one label is said or only one is true: nothing can be told apart then.
        """
        said, true, total = self.counts.sum(0), self.counts.sum(1), int(self.counts.sum())
        both = int(self.counts.trace()) * total - int(said @ true)
        spread = (total**2 - int(said @ said)) * (total**2 - int(true @ true))
        return share(both, math.sqrt(spread))


def confusion(
    said: Sequence[Label], truth: Sequence[Label], labels: Sequence[Label] | None = None
) -> Confusion:
    """Count who was called what; the labels are in the order given, or sorted."""
    paired(said, truth, "labels")
    seen = set(said) | set(truth)
    names = in_order(seen) if labels is None else tuple(labels)
    places = {name: place for place, name in enumerate(names)}
    if unknown := in_order(seen - places.keys()):
        raise UserError(
            f"label {unknown[0]!r} is not among {', '.join(map(repr, names))}: "
            "name every label, or leave them to be found"
        )
    counts = np.zeros((len(names), len(names)), np.int64)
    for (true, called), count in Counter(zip(truth, said, strict=True)).items():
        counts[places[true], places[called]] = count
    return Confusion(names, counts)


def accuracy(said: Sequence[Label], truth: Sequence[Label]) -> float:
    """Return the share of examples whose label was said."""
    paired(said, truth, "labels")
    return sum(one == other for one, other in zip(said, truth, strict=True)) / len(truth)


def f1(said: Sequence[Label], truth: Sequence[Label], average: Average = "macro") -> float:
    """Return F1 over all labels that are said or true."""
    return confusion(said, truth).average(average).f1


def binary(said: Sequence[Label], truth: Sequence[Label], positive: Label) -> Score:
    """Score one label against all others; one that is nowhere has 0."""
    paired(said, truth, "labels")
    hits = sum(one == other == positive for one, other in zip(said, truth, strict=True))
    return score(hits, list(said).count(positive), list(truth).count(positive))


def matthews(said: Sequence[Label], truth: Sequence[Label]) -> float:
    """Return the correlation of said and true labels, CoLA's score."""
    return confusion(said, truth).matthews


def pearson(said: Sequence[float], truth: Sequence[float]) -> float:
    """Return the correlation of numbers; of numbers that are all the same it is called 0.

    It is not defined there, and GLUE's script gives nan, which no run can be chosen by.
    """
    one, other = numbers(said, truth)
    if not (np.ptp(one) and np.ptp(other)):
        return 0.0
    one, other = unit(one), unit(other)
    return float(np.clip(one @ other, -1, 1))


def spearman(said: Sequence[float], truth: Sequence[float]) -> float:
    """Return the correlation of the ranks of numbers; equal numbers share theirs."""
    one, other = numbers(said, truth)
    return pearson(ranks(one).tolist(), ranks(other).tolist())


def numbers(
    said: Sequence[float], truth: Sequence[float]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Check that there are as many numbers on both sides, and that all are numbers."""
    paired(said, truth, "numbers")
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


def in_order(labels: set[Label]) -> tuple[Label, ...]:
    """Sort labels, numbers before words."""
    return tuple(sorted(labels, key=lambda label: (isinstance(label, str), label)))
