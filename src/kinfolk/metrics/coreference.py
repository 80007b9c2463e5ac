"""MUC, B-cubed and CEAF of clusters of mentions, and their mean, the score of CoNLL-2012.

The counts are those of the reference scorer (Pradhan et al., 2014): summed over documents, with
mentions that are only in the predictions or only in the references.
"""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kinfolk.errors import UserError
from kinfolk.metrics.metric import PRF, Metric, Statistics, f_score, safe_divide

Cluster = Iterable[Hashable]  # mentions, such as (start, end)
Clusters = list[frozenset[Hashable]]


@dataclass(frozen=True)
class CorefScores:
    """Three scores of the same clusters; `conll` is the mean of their F1."""

    muc: PRF  # links (Vilain et al., 1995)
    b_cubed: PRF  # mentions (Bagga & Baldwin, 1998)
    ceaf: PRF  # clusters, matched one to one (Luo, 2005, with the similarity phi 4)

    @property
    def conll(self) -> float:
        """The official score of CoNLL-2012."""
        return (self.muc.f1 + self.b_cubed.f1 + self.ceaf.f1) / 3


@dataclass(frozen=True)
class ConllF1(Metric):
    """The mean F1 of MUC, B-cubed and CEAF over documents."""

    name: str = "conll_f1"
    title: str = "CoNLL F1"
    max_resamples: int = 200

    things = "documents"

    def statistics(
        self, predictions: Sequence[Sequence[Cluster]], references: Sequence[Sequence[Cluster]], /
    ) -> Statistics:
        """Return the counts of the three scores of each document: (documents, 3, 4).

        They are the hits and the number of predictions, then those of references.
        """
        rows = []
        for number, pair in enumerate(zip(predictions, references, strict=True), 1):
            predicted, gold = (check_clusters(clusters, number) for clusters in pair)
            both = [(*count(predicted, gold), *count(gold, predicted)) for count in (muc, b_cubed)]
            rows.append([*both, ceaf(predicted, gold)])
        return np.array(rows, np.float64)

    def scores(self, total: Statistics) -> CorefScores:
        """Return precision, recall and F1 of the three scores."""
        scores = []
        for hits, predicted, matched, gold in total.tolist():
            precision, recall = safe_divide(hits, predicted), safe_divide(matched, gold)
            scores.append(PRF(precision, recall, f_score(precision, recall), int(gold)))
        return CorefScores(*scores)

    def score(self, total: Statistics, /) -> float:
        """Return the mean F1."""
        return self.scores(total).conll


def check_clusters(document: Iterable[Cluster], number: int) -> Clusters:
    """Check that no mention is in two clusters; drop empty clusters."""
    clusters = [frozenset(cluster) for cluster in document]
    seen: set[Hashable] = set()
    for cluster in clusters:
        if twice := seen & cluster:
            raise UserError(
                f"mention {next(iter(twice))} of document {number} is in two clusters: "
                "merge them, or remove it from one"
            )
        seen |= cluster
    return [cluster for cluster in clusters if cluster]


def muc(clusters: Clusters, others: Clusters) -> tuple[float, int]:
    """Count the links of clusters that are also on the other side, and all links.

    A cluster that is split into three on the other side loses two links.
    """
    index = {mention: number for number, cluster in enumerate(others) for mention in cluster}
    hits = 0
    for cluster in clusters:
        # A mention that is missing on the other side adds no link.
        known = [index[mention] for mention in cluster if mention in index]
        hits += len(known) - len(set(known))
    return hits, sum(map(len, clusters)) - len(clusters)


def b_cubed(clusters: Clusters, others: Clusters) -> tuple[float, int]:
    """Sum over mentions the fraction of their cluster that both sides have; count mentions."""
    hits = sum(len(own & other) ** 2 / len(own) for own in clusters for other in others)
    return hits, sum(map(len, clusters))


def ceaf(predicted: Clusters, gold: Clusters) -> tuple[float, int, float, int]:
    """Sum the similarity of clusters in the best one-to-one matching (Kuhn-Munkres)."""
    hits = 0.0
    if predicted and gold:
        similarity = np.array([[phi4(own, other) for other in gold] for own in predicted])
        hits = float(similarity[best_matching(similarity)].sum())
    return hits, len(predicted), hits, len(gold)


def phi4(first: frozenset[Hashable], second: frozenset[Hashable]) -> float:
    """Return Luo's phi 4, the Dice coefficient of two clusters."""
    return 2 * len(first & second) / (len(first) + len(second))


def best_matching(similarity: NDArray[np.float64]) -> Any:
    """Match rows and columns one to one with the highest sum."""
    try:
        from scipy.optimize import linear_sum_assignment
    except ImportError as error:
        raise UserError("CEAF needs the scipy package: pip install scipy") from error
    return linear_sum_assignment(similarity, maximize=True)
