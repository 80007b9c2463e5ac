"""Who is who: MUC, B-cubed and CEAF of clusters of mentions, and their mean, CoNLL-2012's score.

They are counted as the reference scorer does (Pradhan et al., 2014): over all documents, with
mentions that only one side has.
"""

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kinfolk.errors import UserError
from kinfolk.metrics.classification import PRF, check_lengths, f_score, safe_divide

Cluster = Iterable[Hashable]  # mentions, such as (start, stop)
Clusters = list[frozenset[Hashable]]
Counts = tuple[float, int, float, int]  # hits among what was said, and among what is true


@dataclass(frozen=True)
class CorefScores:
    """Three views of the same clusters; `conll` is the mean of their F1."""

    muc: PRF  # links (Vilain et al., 1995)
    b_cubed: PRF  # mentions (Bagga & Baldwin, 1998)
    ceaf: PRF  # clusters, matched one to one (Luo, 2005, with the similarity phi 4)

    @property
    def conll(self) -> float:
        """The mean that CoNLL-2012 ranks by."""
        return (self.muc.f1 + self.b_cubed.f1 + self.ceaf.f1) / 3


def coref_scores(
    said: Sequence[Sequence[Cluster]], truth: Sequence[Sequence[Cluster]]
) -> CorefScores:
    """Score the clusters of documents."""
    check_lengths(said, truth, "documents")
    pairs = [
        (check_clusters(one, number), check_clusters(other, number))
        for number, (one, other) in enumerate(zip(said, truth, strict=True), 1)
    ]
    return CorefScores(sum_counts(muc, pairs), sum_counts(b_cubed, pairs), sum_counts(ceaf, pairs))


def check_clusters(document: Iterable[Cluster], number: int) -> Clusters:
    """Check that no mention is in two clusters."""
    found = [frozenset(cluster) for cluster in document]
    seen: set[Hashable] = set()
    for cluster in found:
        if twice := seen & cluster:
            raise UserError(
                f"mention {next(iter(twice))} of document {number} is in two clusters: "
                "join them, or leave it out of one"
            )
        seen |= cluster
    return [cluster for cluster in found if cluster]


def sum_counts(
    counts: Callable[[Clusters, Clusters], Counts], pairs: Sequence[tuple[Clusters, Clusters]]
) -> PRF:
    """Sum what is counted over documents, then divide."""
    rows = [counts(said, truth) for said, truth in pairs]
    right, said, found, true = (sum(column) for column in zip(*rows, strict=True))
    precision, recall = safe_divide(right, said), safe_divide(found, true)
    return PRF(precision, recall, f_score(precision, recall), int(true))


def muc(said: Clusters, truth: Clusters) -> Counts:
    """Count links: a cluster that the other side has in three parts lacks two of its links."""
    return *muc_links(said, truth), *muc_links(truth, said)


def muc_links(own: Clusters, other: Clusters) -> tuple[int, int]:
    """Count the links of clusters that the other side has too, and all of them."""
    home = {mention: number for number, cluster in enumerate(other) for mention in cluster}
    hits = 0
    for cluster in own:
        # A mention that the other side lacks is a part of its own, and brings no link.
        known = [home[mention] for mention in cluster if mention in home]
        hits += len(known) - len(set(known))
    return hits, sum(map(len, own)) - len(own)


def b_cubed(said: Clusters, truth: Clusters) -> Counts:
    """Count mentions, each by the share of its cluster that is also in its other cluster."""
    return *b_cubed_counts(said, truth), *b_cubed_counts(truth, said)


def b_cubed_counts(own: Clusters, other: Clusters) -> tuple[float, int]:
    """Sum over mentions the share of its cluster that it meets again on the other side."""
    hits = sum(len(one & two) ** 2 / len(one) for one in own for two in other)
    return hits, sum(map(len, own))


def ceaf(said: Clusters, truth: Clusters) -> Counts:
    """Sum how alike clusters are, matched so that this is most (Kuhn-Munkres)."""
    hits = 0.0
    if said and truth:
        alike = np.array([[phi4(one, two) for two in truth] for one in said])
        hits = float(alike[assign(alike)].sum())
    return hits, len(said), hits, len(truth)


def phi4(one: frozenset[Hashable], two: frozenset[Hashable]) -> float:
    """Return the share of mentions in common, Luo's phi 4."""
    return 2 * len(one & two) / (len(one) + len(two))


def assign(alike: NDArray[np.float64]) -> Any:
    """Match rows and columns one to one, so that the sum is the highest."""
    try:
        from scipy.optimize import linear_sum_assignment
    except ImportError as error:
        raise UserError("CEAF needs the scipy package: pip install scipy") from error
    return linear_sum_assignment(alike, maximize=True)
