"""What all scores share: shares of what was said and of what is true, and the check at the door."""

from collections.abc import Sequence, Sized
from dataclasses import dataclass
from typing import Any

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
