"""Integrated gradients (Sundararajan et al., 2017) from a baseline of zeros.

    attribution_i = x_i * integral over a from 0 to 1 of the derivative of f(a x) by x_i

They add up to f(x) - f(0): the completeness axiom. The integral is a Gauss-Legendre sum, whose
points double until the sum is complete.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

STEPS, MAX_STEPS = 20, 640  # points of the sum, at first and at most
COMPLETENESS_TOLERANCE = 0.01  # of completeness
RESOLUTION = 1e-5  # a hundred times the rounding of a value in float32, relative to it


@dataclass(frozen=True, eq=False)
class IntegratedGradients:
    """The attribution of each input, and the values whose difference they should add up to."""

    attributions: Tensor  # of the shape of the inputs
    total: float  # of the attributions
    at_zero: float  # f(0)
    at_x: float  # f(x)
    steps: int

    @property
    def difference(self) -> float:
        """What the attributions should add up to."""
        return self.at_x - self.at_zero

    @property
    def error(self) -> float:
        """The distance of the total from the difference, relative to the difference.

        Where both values are nearly the same, their difference is rounding: it is relative to what
        can be resolved of the values, however small these are.
        """
        distance = abs(self.total - self.difference)
        resolved = RESOLUTION * max(abs(self.at_x), abs(self.at_zero))
        return distance / max(abs(self.difference), resolved) if distance else 0.0


def integrated_gradients(
    function: Callable[[Tensor], Tensor],
    x: Tensor,
    *,
    steps: int = STEPS,
    max_steps: int = MAX_STEPS,
    max_rows: int = 64,
) -> IntegratedGradients:
    """Attribute a function of a batch of inputs, (rows, ...) -> (rows,), to one input x.

    `max_rows` of the path are evaluated at a time.
    """
    with torch.no_grad():
        at_zero, at_x = function(torch.stack([torch.zeros_like(x), x])).tolist()
    while True:
        attributions = x * _mean_gradient(function, x, steps, max_rows)
        total = float(attributions.double().sum())
        found = IntegratedGradients(attributions, total, at_zero, at_x, steps)
        if found.error <= COMPLETENESS_TOLERANCE or 2 * steps > max_steps:
            return found
        steps *= 2


def _mean_gradient(
    function: Callable[[Tensor], Tensor], x: Tensor, steps: int, max_rows: int
) -> Tensor:
    """Return the mean of the gradient on the straight path from zeros to x."""
    nodes, weights = (torch.from_numpy(part) for part in np.polynomial.legendre.leggauss(steps))
    shape = (-1, *[1] * x.dim())
    total = torch.zeros_like(x)
    with torch.enable_grad():
        parts = (torch.split(part, max_rows) for part in (nodes, weights))
        for some, weight in zip(*parts, strict=True):
            # The nodes are in [-1, 1], and their weights add up to 2.
            rows = (x * ((some + 1) / 2).to(x).view(shape)).requires_grad_()
            (gradient,) = torch.autograd.grad(function(rows).sum(), rows)
            total += (gradient * (weight / 2).to(x).view(shape)).sum(0)
    return total
