"""Isotropy: known values of even and uneven vectors, against plain formulas."""

import numpy as np
import pytest

from kinfolk.errors import UserError
from kinfolk.metrics.isotropy import (
    alignment,
    iso_score,
    mean_cosine,
    measure_isotropy,
    pair_cosines,
    uniformity,
)


def draw(rows: int, size: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(rows, size))


def test_isoscore_is_one_for_equal_variances_and_zero_for_one_direction() -> None:
    cross = np.concatenate([np.eye(6), -np.eye(6)])
    assert iso_score(cross) == pytest.approx(1)
    line = np.outer(np.linspace(-1, 1, 9), np.arange(1, 7))
    assert iso_score(line) == pytest.approx(0, abs=1e-6)
    assert iso_score(np.ones((5, 3))) == 0


@pytest.mark.parametrize("used", [2, 5, 10])
def test_isoscore_is_the_share_of_dimensions_that_are_used(used: int) -> None:
    """Rudman et al. 2022, section 4: k of n equal variances score (k - 1) / (n - 1)."""
    cross = np.concatenate([np.eye(10)[:used], -np.eye(10)[:used]])
    assert iso_score(cross) == pytest.approx((used - 1) / 9, abs=1e-6)


def test_isoscore_does_not_depend_on_mean_scale_or_rotation() -> None:
    x = draw(200, 5) * np.array([3, 2, 1, 1, 0.1])
    rotation = np.linalg.qr(draw(5, 5))[0]
    assert iso_score(7 * x @ rotation + 100) == pytest.approx(iso_score(x), abs=1e-8)


def test_mean_cosine_and_uniformity_are_those_of_all_pairs() -> None:
    x = draw(30, 4) + 1
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    pairs = [(unit[i], unit[j]) for i in range(30) for j in range(i)]
    assert mean_cosine(x) == pytest.approx(np.mean([u @ v for u, v in pairs]))
    gauss = [np.exp(-2 * ((u - v) ** 2).sum()) for u, v in pairs]
    assert uniformity(x) == pytest.approx(np.log(np.mean(gauss)))
    assert alignment(x[:15], x[15:]) == pytest.approx(((unit[:15] - unit[15:]) ** 2).sum(1).mean())
    assert pair_cosines(x[:15], x[15:]) == pytest.approx((unit[:15] * unit[15:]).sum(1))


def test_a_common_direction_is_seen_in_the_cosine_and_not_in_isoscore() -> None:
    even = draw(500, 8)
    shifted = measure_isotropy(even + 10)
    assert abs(measure_isotropy(even).mean_cosine) < 0.02 and shifted.mean_cosine > 0.95
    assert shifted.iso_score > 0.9 and shifted.effective_dimensions > 7.5
    assert sum(shifted.spectrum) == pytest.approx(1) and len(shifted.spectrum) == 8
    assert shifted.uniformity > measure_isotropy(even).uniformity


def test_one_vector_is_refused() -> None:
    with pytest.raises(UserError, match="at least 2 vectors"):
        measure_isotropy(np.ones((1, 3)))
