"""Transforms of text vectors against anisotropy: most hidden states point in similar directions.

    standardization     (x - mean) / std of each dimension
    component removal   x - mean, without its leading principal components (Mu & Viswanath 2018)
    whitening           (x - mean) U S^(-1/2): the covariance becomes the identity (Su et al. 2021)
    flow                an invertible network to a standard Gaussian (Li et al. 2020); see nn.flow

Each is fitted on the vectors of some texts and is a frozen value of tensors.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor

from kinfolk.errors import UserError

# Directions with a smaller share of the largest variance hold rounding errors alone: the output of
# a layer norm lies in a hyperplane, so that its covariance is singular.
MIN_VARIANCE_RATIO = 1e-9


class TooFewTextsError(UserError):
    """Too few texts for a fit; `reason` leaves out the option and what to do."""

    def __init__(self, option: str, reason: str) -> None:
        super().__init__(f"{option} {reason}: fit it on more text with --fit FILE")
        self.reason = reason


@dataclass(frozen=True, eq=False)
class VectorTransform(ABC):
    """A function of vectors: (texts, input_size) to (texts, output_size), in float64."""

    mean: Tensor  # (input_size,): of the vectors that it was fitted on

    kind: ClassVar[str]  # in JSON

    @property
    def input_size(self) -> int:
        """The size of the vectors that it reads."""
        return len(self.mean)

    @property
    def output_size(self) -> int:
        """The size of the vectors that it returns."""
        return self.input_size

    @property
    def summary(self) -> str:
        """What the fit found, in words; empty where there is nothing to say."""
        return ""

    @abstractmethod
    def __call__(self, vectors: Tensor) -> Tensor:
        """Return the transformed vectors."""

    @property
    @abstractmethod
    def tensors(self) -> dict[str, Tensor]:
        """What is saved, by name."""

    @classmethod
    @abstractmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> Self:
        """Return the transform of saved tensors; raise KeyError where one is missing."""


@dataclass(frozen=True, eq=False)
class Standardization(VectorTransform):
    """Every dimension has mean 0 and variance 1; a constant one stays 0."""

    std: Tensor  # (size,)

    kind = "standardize"

    @classmethod
    def fit(cls, vectors: Tensor) -> Self:
        """Measure every dimension."""
        x = check_vectors(vectors, 2, "--standardize")
        return cls(x.mean(0), x.std(0))

    def __call__(self, vectors: Tensor) -> Tensor:
        """Return the standardized vectors."""
        floor = self.std.max() * MIN_VARIANCE_RATIO**0.5
        scale = torch.where(self.std > floor, 1 / self.std.clamp(min=floor), 0.0)
        return (vectors.double() - self.mean) * scale

    @property
    def tensors(self) -> dict[str, Tensor]:
        """Mean and standard deviation."""
        return {"mean": self.mean, "std": self.std}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> Self:
        """Return the transform of saved tensors."""
        return cls(tensors["mean"], tensors["std"])


@dataclass(frozen=True, eq=False)
class ComponentRemoval(VectorTransform):
    """Vectors without their mean and without their leading principal components."""

    components: Tensor  # (size, removed): orthonormal columns

    kind = "remove-components"

    @classmethod
    def fit(cls, vectors: Tensor, count: int) -> Self:
        """Find the directions of the largest variance."""
        size = vectors.shape[1]
        if not 1 <= count < size:
            raise UserError(
                f"--remove-components {count} must be from 1 to {size - 1}: the vectors have "
                f"{size} dimensions, and one must be left"
            )
        x = check_vectors(vectors, count + 1, f"--remove-components {count}")
        mean, _, directions = principal_components(x)
        return cls(mean, directions[:, :count].clone())

    def __call__(self, vectors: Tensor) -> Tensor:
        """Return what is left of the vectors."""
        centered = vectors.double() - self.mean
        return centered - centered @ self.components @ self.components.T

    @property
    def tensors(self) -> dict[str, Tensor]:
        """Mean and components."""
        return {"mean": self.mean, "components": self.components}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> Self:
        """Return the transform of saved tensors."""
        return cls(tensors["mean"], tensors["components"])


@dataclass(frozen=True, eq=False)
class Whitening(VectorTransform):
    """Vectors in their principal components, each of variance 1; constant directions are left out.

    Columns are in the order of falling variance.
    """

    matrix: Tensor  # (size, output_size)

    kind = "whiten"

    @classmethod
    def fit(cls, vectors: Tensor, option: str = "--whiten") -> Self:
        """Find the principal components, and the variance along each."""
        texts, size = vectors.shape
        if texts <= size:
            reason = "needs more texts than the vectors have dimensions"
            raise TooFewTextsError(option, f"{reason} ({texts:,} texts, {size} dimensions)")
        mean, variances, directions = principal_components(check_vectors(vectors, 2, option))
        kept = variances > MIN_VARIANCE_RATIO * variances[0]
        if not bool(kept.any()):
            raise UserError(f"{option}: all vectors are equal; fit it on other text")
        return cls(mean, directions[:, kept] / variances[kept].sqrt())

    @property
    def output_size(self) -> int:
        """The number of directions that are not constant."""
        return self.matrix.shape[1]

    @property
    def summary(self) -> str:
        """How many directions are constant."""
        lost = self.input_size - self.output_size
        if not lost:
            return ""
        return (
            f"whitened vectors have {self.output_size} of {self.input_size} dimensions: the texts "
            f"do not differ along the other {lost}"
        )

    def __call__(self, vectors: Tensor) -> Tensor:
        """Return the whitened vectors."""
        return (vectors.double() - self.mean) @ self.matrix

    def inverse(self, whitened: Tensor) -> Tensor:
        """Return the vectors of whitened ones; they are the mean along constant directions."""
        return whitened.double() @ torch.linalg.pinv(self.matrix) + self.mean

    @property
    def log_determinant(self) -> float:
        """The log of the volume that a unit of volume becomes, within the kept directions."""
        return float(torch.linalg.svdvals(self.matrix).log().sum())

    @property
    def tensors(self) -> dict[str, Tensor]:
        """Mean and matrix."""
        return {"mean": self.mean, "matrix": self.matrix}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> Self:
        """Return the transform of saved tensors."""
        return cls(tensors["mean"], tensors["matrix"])


def principal_components(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the mean, the variances in falling order, and their directions as columns."""
    mean = x.mean(0)
    centered = x - mean
    variances, directions = torch.linalg.eigh(centered.T @ centered / max(1, len(x) - 1))
    return mean, variances.flip(0).clamp(min=0), directions.flip(1)


def check_vectors(vectors: Tensor, fewest: int, option: str) -> Tensor:
    """Return the vectors in float64; refuse too few."""
    if len(vectors) < fewest:
        raise TooFewTextsError(option, f"needs at least {fewest:,} texts (got {len(vectors):,})")
    return vectors.double()
