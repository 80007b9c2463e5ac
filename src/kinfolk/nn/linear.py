"""A linear layer that is quick for a single row on an accelerator, as a text being written has."""

import importlib.util

import torch.nn.functional as F
from torch import Tensor, nn

HAS_TRITON = importlib.util.find_spec("triton") is not None
if HAS_TRITON:
    from kinfolk import triton_kernels


def linear_or_matvec(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Multiply vectors with a matrix, (rows, width): (..., rows)."""
    if HAS_TRITON and triton_kernels.can_matvec(x, weight):
        found: Tensor = triton_kernels.matvec(x, weight, bias)
        return found
    return F.linear(x, weight, bias)


class Linear(nn.Linear):
    """`nn.Linear`, by a kernel of our own where one row of half precision is only to be read."""

    def forward(self, x: Tensor) -> Tensor:
        return linear_or_matvec(x, self.weight, self.bias)
