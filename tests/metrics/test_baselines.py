"""The entropy under the loss curves, and the model of single tokens."""

import math

import numpy as np
import pytest

from kinfolk.metrics.baselines import Unigram, entropy


def test_unigram_costs_approach_the_entropy() -> None:
    counts = np.array([500_000, 300_000, 200_000])
    ids = np.repeat([0, 1, 2], [5, 3, 2])
    assert Unigram.fit(counts).nll(ids).mean() == pytest.approx(entropy(counts), abs=1e-5)
    assert entropy(np.array([4, 4, 0, 4, 4])) == pytest.approx(math.log(4))
    assert np.isfinite(Unigram.fit(np.array([3, 0])).nll(np.array([1]))).all()
