"""How evenly vectors fill their space: cosines, IsoScore, alignment, uniformity, spectrum."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kinfolk.errors import UserError
from kinfolk.rng import sequential
from kinfolk.types import FloatArray

MAX_UNIFORMITY_VECTORS = 2000  # drawn; all their pairs are compared
SPECTRUM_SHARES = 64  # of the largest variances that are kept


@dataclass(frozen=True)
class Isotropy:
    """The measures of a set of vectors."""

    vectors: int
    size: int
    mean_cosine: float  # of two different vectors: 0 where directions are even
    iso_score: float  # 1: the variance is equal in all directions; 0: in one direction alone
    uniformity: float  # log mean exp(-2 squared distance) of unit vectors: lower is more uniform
    effective_dimensions: float  # (sum of variances)^2 / sum of their squares
    spectrum: tuple[float, ...]  # shares of the variance, the largest first


def measure_isotropy(vectors: NDArray[Any], *, seed: int = 0) -> Isotropy:
    """Measure vectors: (vectors, size)."""
    x = np.asarray(vectors, np.float64)
    if len(x) < 2:
        raise UserError(f"isotropy needs at least 2 vectors (got {len(x)}): pass more text")
    shares = variance_shares(x)
    return Isotropy(
        vectors=len(x),
        size=x.shape[1],
        mean_cosine=mean_cosine(x),
        iso_score=iso_score(x),
        uniformity=uniformity(x, seed=seed),
        effective_dimensions=float(1 / (shares**2).sum()) if shares.any() else 0.0,
        spectrum=tuple(shares[:SPECTRUM_SHARES].tolist()),
    )


def unit_vectors(x: FloatArray) -> FloatArray:
    """Return vectors of length 1; a zero vector stays zero."""
    norms = np.linalg.norm(x, axis=1, keepdims=True)
    return np.divide(x, norms, out=np.zeros_like(x), where=norms > 0)


def mean_cosine(x: FloatArray) -> float:
    """Return the mean cosine of all pairs of different vectors (Ethayarajh 2019)."""
    unit = unit_vectors(x)
    total = unit.sum(0)
    return float((total @ total - (unit**2).sum()) / (len(x) * (len(x) - 1)))


def covariance_variances(x: FloatArray) -> FloatArray:
    """Return the variances along the principal components, the largest first."""
    return np.maximum(np.linalg.eigvalsh(np.cov(x.T).reshape(x.shape[1], -1))[::-1], 0)


def variance_shares(x: FloatArray) -> FloatArray:
    """Return the share of each principal component in the variance; zeros for equal vectors."""
    variances = covariance_variances(x)
    total = variances.sum()
    return variances / total if total > 0 else variances


def iso_score(x: FloatArray) -> float:
    """Return IsoScore (Rudman et al. 2022, algorithm 1) of vectors in two or more dimensions."""
    n = x.shape[1]
    variances = covariance_variances(x)
    norm = np.linalg.norm(variances)
    if n < 2 or norm == 0:
        return 0.0
    normalized = np.sqrt(n) * variances / norm
    # The defect is 0 for equal variances and 1 where one dimension has them all.
    defect = np.linalg.norm(normalized - 1) / np.sqrt(2 * (n - np.sqrt(n)))
    # The share of dimensions that is used, from 1/n to 1, scaled to 0 to 1.
    used = (n - defect**2 * (n - np.sqrt(n))) ** 2 / n**2
    return float((n * used - 1) / (n - 1))


def uniformity(x: FloatArray, *, seed: int = 0, t: float = 2.0) -> float:
    """Return log E exp(-t |u - v|^2) over pairs of unit vectors (Wang & Isola 2020)."""
    if len(x) > MAX_UNIFORMITY_VECTORS:
        x = x[np.sort(sequential(seed).permutation(len(x))[:MAX_UNIFORMITY_VECTORS])]
    unit = unit_vectors(x)
    squares = (unit**2).sum(1)
    distances = np.maximum(squares[:, None] + squares[None] - 2 * unit @ unit.T, 0)
    pairs = np.exp(-t * distances)[np.triu_indices(len(x), 1)]
    return float(np.log(pairs.mean()))


def alignment(first: NDArray[Any], second: NDArray[Any]) -> float:
    """Return the mean squared distance of unit vectors of similar texts (Wang & Isola 2020)."""
    pairs = (unit_vectors(np.asarray(part, np.float64)) for part in (first, second))
    return float(((np.subtract(*pairs)) ** 2).sum(1).mean())


def pair_cosines(first: NDArray[Any], second: NDArray[Any]) -> FloatArray:
    """Return the cosine of each pair of vectors."""
    pairs = (unit_vectors(np.asarray(part, np.float64)) for part in (first, second))
    return np.asarray(np.multiply(*pairs).sum(1))
