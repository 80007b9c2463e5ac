"""The entropy of single tokens, which is drawn under every loss curve, and their model."""

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from kinfolk.types import FloatArray

Ids: TypeAlias = npt.NDArray[np.integer[Any]]


def entropy(counts: Ids) -> float:
    """Return the entropy of token frequencies, in nats per token."""
    frequencies = np.asarray(counts, dtype=np.float64)
    p = frequencies[frequencies > 0] / frequencies.sum()
    return float((p * np.log(1 / p)).sum())


@dataclass(frozen=True)
class Unigram:
    """Token frequencies with add-one smoothing."""

    costs: FloatArray  # nats, by token

    @classmethod
    def fit(cls, counts: Ids) -> "Unigram":
        """Estimate from the count of each token of the vocabulary."""
        smoothed = np.asarray(counts, dtype=np.float64) + 1
        return cls(np.log(smoothed.sum()) - np.log(smoothed))

    def nll(self, ids: Ids) -> FloatArray:
        """Return the negative log-likelihood of each token, in nats."""
        return self.costs[ids]
