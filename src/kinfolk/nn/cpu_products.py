"""Large matrix products in float32 on a CPU: by oneDNN, or by MKL, which torch calls.

On AMD's CPUs MKL uses half of the width of the vector units. Where these are 512 bits wide (Zen 5),
oneDNN is twice as fast in all products; where they are not, it is a tenth faster, and slower in the
gradients of weights.
"""

from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from kinfolk.machine import cpu_family

# Multiplications of a product from which oneDNN pays: calling it from Python takes 30 microseconds.
ONEDNN_PRODUCTS = 2**24
ZEN_5 = 26  # AMD's number of the first family with vector units of 512 bits


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return x @ weight.T + bias."""
    if not suits_onednn(x, weight):
        return F.linear(x, weight, bias)
    if torch.is_grad_enabled():
        return _OneDNNLinear.apply(x, weight, bias)  # type: ignore[no-untyped-call]
    # Without a gradient there may be few rows, which were measured on wide vectors only.
    return _onednn(x, weight, bias) if has_wide_vectors() else F.linear(x, weight, bias)


def suits_onednn(x: Tensor, weight: Tensor) -> bool:
    """Return whether this is a large product of plain tensors on a CPU."""
    return (
        x.device.type == "cpu"
        and x.dtype == weight.dtype == torch.float32
        and x.ndim > 1
        and x.numel() * weight.shape[0] >= ONEDNN_PRODUCTS
        and type(x) is Tensor
        and type(weight) in (Tensor, nn.Parameter)
        and not torch.is_autocast_enabled("cpu")
        and not torch.compiler.is_compiling()
        and _is_dense(weight)
        and onednn_multiplies()
    )


def _is_dense(weight: Tensor) -> bool:
    """Return whether a matrix lies in memory row by row or column by column, without gaps.

    With gaps in its second matrix oneDNN takes a thousand times as long.
    """
    return weight.is_contiguous() or weight.t().is_contiguous()


def _dense(weight: Tensor) -> Tensor:
    return weight if _is_dense(weight) else weight.contiguous()


class _OneDNNLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return _onednn(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        of_x, of_weight, of_bias = ctx.needs_input_grad
        rows = gradient.flatten(0, -2)
        return (
            _onednn(gradient, weight.t(), None) if of_x else None,
            _of_weight(rows, x.flatten(0, -2)) if of_weight else None,
            rows.sum(0) if of_bias else None,
        )


def _of_weight(gradient: Tensor, x: Tensor) -> Tensor:
    """Return the gradient of a weight, gradient.T @ x."""
    if not has_wide_vectors():
        return gradient.t() @ x
    # oneDNN copies the first of two transposed matrices: that is to be the smaller one.
    if gradient.shape[1] > x.shape[1]:
        return _onednn(x.t(), _dense(gradient).t(), None).t().contiguous()
    return _onednn(gradient.t(), _dense(x).t(), None)


def _onednn(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    product: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return product


@cache
def onednn_multiplies() -> bool:
    """Return whether torch has oneDNN's product, an operation of its compiler."""
    if not torch.backends.mkldnn.is_available():
        return False
    x, weight = torch.eye(2), torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    try:
        return torch.equal(_onednn(x, weight, torch.ones(2)), weight.T + 1)
    except (AttributeError, RuntimeError):  # a version of torch that has none, or another one
        return False


@cache
def has_wide_vectors() -> bool:
    """Return whether this is an AMD CPU with vector units of 512 bits.

    It is read from the system and not measured: a run that resumes must choose the same products.
    """
    vendor, family = cpu_family()
    return vendor == "AuthenticAMD" and family >= ZEN_5
