"""FLOPs of forward and backward passes: torch's counter, with formulas that it lacks.

A product of matrices of m x k and k x n is 2 m k n operations. Products, convolutions, attention
and LSTM layers are counted; element-wise operations, softmax and normalisation are not.
"""

import contextlib
from collections.abc import Sequence
from math import prod
from typing import Any, Self

import torch
from torch.utils.flop_counter import FlopCounterMode
from torch.utils.module_tracker import ModuleTracker

aten = torch.ops.aten
Shape = Sequence[int]


def attention(query: Shape, key: Shape, value: Shape, *_: Any, **__: Any) -> int:
    """Count the two products of attention; pairs of tokens that a mask forbids count too."""
    batch, heads, queries, size = query
    return 2 * batch * heads * queries * key[2] * (size + value[3])


def attention_backward(
    _gradient: Shape, query: Shape, key: Shape, value: Shape, *_: Any, **__: Any
) -> int:
    """Count four products, as without a fused kernel.

    A kernel computes the scores a second time, and torch counts five: the count of a step would
    depend on the kernel that a device has.
    """
    return 2 * attention(query, key, value)


def added_product(_total: Shape, a: Shape, b: Shape, *_: Any, **__: Any) -> int:
    """Count a product that is added to a matrix in place."""
    return 2 * a[0] * a[1] * b[1]


def onednn_linear(x: Shape, weight: Shape, *_: Any, **__: Any) -> int:
    """Count a linear layer, (..., size) by (rows, size)."""
    return 2 * prod(x) * weight[0]


def onednn_lstm(x: Shape, w_ih: Shape, w_hh: Shape, *_: Any, **__: Any) -> int:
    """Count one layer in one direction: (length, rows, size)."""
    return 2 * x[0] * x[1] * (prod(w_ih) + prod(w_hh))


def onednn_lstm_backward(*shapes: Any, **named: Any) -> int:
    """Count the gradients of inputs and of weights."""
    return 2 * onednn_lstm(*shapes, **named)


def cudnn_lstm(x: Shape, weights: Sequence[Shape], *_: Any, **__: Any) -> int:
    """Count all layers and directions: each token meets every matrix once."""
    return 2 * prod(x[:-1]) * sum(prod(weight) for weight in weights if len(weight) > 1)


def cudnn_lstm_backward(*shapes: Any, **named: Any) -> int:
    """Count the gradients of inputs and of weights."""
    return 2 * cudnn_lstm(*shapes, **named)


FORMULAS = {
    aten._scaled_dot_product_flash_attention_for_cpu: attention,
    aten._scaled_dot_product_flash_attention_for_cpu_backward: attention_backward,
    aten._scaled_dot_product_efficient_attention_backward: attention_backward,
    aten._scaled_dot_product_flash_attention_backward: attention_backward,
    aten._scaled_dot_product_cudnn_attention_backward: attention_backward,
    aten.addmm_: added_product,
    aten.mkldnn_rnn_layer: onednn_lstm,
    aten.mkldnn_rnn_layer_backward: onednn_lstm_backward,
    aten._cudnn_rnn: cudnn_lstm,
    aten._cudnn_rnn_backward: cudnn_lstm_backward,
}
with contextlib.suppress(AttributeError):  # a torch without oneDNN
    FORMULAS[torch.ops.mkldnn._linear_pointwise] = onednn_linear


class NoModules(ModuleTracker):
    """A tracker without its hooks, which fail in the no_grad block of an objective."""

    def __enter__(self) -> Self:
        """Register no hooks."""
        return self

    def __exit__(self, *_: object) -> None:
        """Remove none."""


class FlopCounter:
    """Count the FLOPs of what runs in the block, of forward and of backward passes.

    Compiled code is not counted.
    """

    def __init__(self) -> None:
        self.mode: Any = FlopCounterMode(display=False, custom_mapping=FORMULAS)
        self.mode.mod_tracker = NoModules()

    def __enter__(self) -> Self:
        self.mode.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self.mode.__exit__(*error)

    @property
    def total(self) -> int:
        """The FLOPs so far."""
        return int(self.mode.get_total_flops())
