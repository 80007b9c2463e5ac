"""A Triton kernel for training on CUDA: the softmax over a vocabulary, with its gradient.

Without a compiler, torch's operations pass over the logits a dozen times, in float32. The kernel
reads the logits of a row twice and writes their gradient once, in the type of the logits.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kinfolk.batch import IGNORE_INDEX

COLUMNS_PER_BLOCK = 4096
KERNEL_DTYPES = (torch.bfloat16, torch.float16, torch.float32)


@triton.jit
def cross_entropy_kernel(
    scores,
    bias,
    labels,
    error,
    loss,
    plain_loss,
    columns,
    vocab_size,
    ignore_index,
    smoothing,
    has_bias: tl.constexpr,
    smooths: tl.constexpr,
    needs_grad: tl.constexpr,
    block: tl.constexpr,
):
    """Write the loss of one row, and the gradient of its logits."""
    row = tl.program_id(0).to(tl.int64)
    first = row * columns
    label = tl.load(labels + row)
    counted = label != ignore_index
    maximum = tl.full((), float("-inf"), tl.float32)
    mass = tl.zeros((block,), dtype=tl.float32)
    total = tl.zeros((block,), dtype=tl.float32)
    for start in range(0, columns, block):
        column = start + tl.arange(0, block)
        valid = column < vocab_size
        x = tl.load(scores + first + column, mask=valid, other=float("-inf")).to(tl.float32)
        if has_bias:
            x += tl.load(bias + column, mask=valid, other=0.0).to(tl.float32)
        higher = tl.maximum(maximum, tl.max(x, axis=0))
        mass = mass * tl.exp(maximum - higher) + tl.exp(x - higher)
        maximum = higher
        if smooths:
            total += tl.where(valid, x, 0.0)
    mass_sum = tl.sum(mass, axis=0)
    chosen_column = tl.where(counted, label, 0)
    chosen = tl.load(scores + first + chosen_column).to(tl.float32)
    if has_bias:
        chosen += tl.load(bias + chosen_column).to(tl.float32)
    log_mass = maximum + tl.log(mass_sum)
    plain = log_mass - chosen
    smoothed = plain
    if smooths:
        mean = tl.sum(total, axis=0) / vocab_size
        smoothed = log_mass - (1 - smoothing) * chosen - smoothing * mean
    tl.store(loss + row, tl.where(counted, smoothed, 0.0))
    tl.store(plain_loss + row, tl.where(counted, plain, 0.0))
    if needs_grad:
        weight = tl.where(counted, 1.0, 0.0)
        scale = weight / mass_sum
        for start in range(0, columns, block):
            column = start + tl.arange(0, block)
            valid = column < vocab_size
            x = tl.load(scores + first + column, mask=valid, other=float("-inf")).to(tl.float32)
            if has_bias:
                x += tl.load(bias + column, mask=valid, other=0.0).to(tl.float32)
            gradient = tl.exp(x - maximum) * scale
            if smooths:
                gradient -= tl.where(valid, weight * smoothing / vocab_size, 0.0)
            gradient -= tl.where(column == label, weight * (1 - smoothing), 0.0)
            tl.store(
                error + first + column,
                gradient.to(error.dtype.element_ty),
                mask=column < columns,
            )


def can_cross_entropy(scores: Tensor) -> bool:
    """Return whether `triton_cross_entropy` supports logits."""
    return scores.is_cuda and scores.dtype in KERNEL_DTYPES


@torch.library.triton_op("kinfolk::cross_entropy", mutates_args={})
def triton_cross_entropy(
    scores: Tensor,
    bias: Tensor | None,
    labels: Tensor,
    vocab_size: int,
    smoothing: float,
    needs_grad: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradient of logits (n, columns), -log p(label) with label smoothing, and without.

    Columns from `vocab_size` on have no effect; rows with a label of IGNORE_INDEX are 0.
    """
    rows, columns = scores.shape
    error = torch.empty_like(scores) if needs_grad else scores.new_empty(0)
    loss = scores.new_empty(rows, dtype=torch.float32)
    plain_loss = torch.empty_like(loss)
    torch.library.wrap_triton(cross_entropy_kernel)[(rows,)](
        scores,
        scores if bias is None else bias,
        labels,
        error,
        loss,
        plain_loss,
        columns,
        vocab_size,
        IGNORE_INDEX,
        smoothing,
        has_bias=bias is not None,
        smooths=smoothing != 0,
        needs_grad=needs_grad,
        block=min(triton.next_power_of_2(columns), COLUMNS_PER_BLOCK),
        num_warps=8,
    )
    return error, loss, plain_loss
