"""Cross-entropy over a vocabulary that never holds all its logits.

Logits take more memory than anything else in a small language model: 32 rows of 1,024 tokens by
50,257 words are 6.6 GB in float32, and their gradient as much again. Here the hidden states go
through in chunks, and each chunk's gradient is taken while its logits are still at hand.
"""

from typing import Any

import torch
from torch import Tensor

from kinfolk.types import IGNORED

CHUNK = 2**24  # logits held at a time on the CPU: 64 MB in float32, about what its caches bear
CHUNK_CUDA = 2**28


def cross_entropy(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, vocab: int
) -> Tensor:
    """Sum -log p(label) over hidden states (n, width), leaving out labels that are IGNORED.

    Rows of `weight` from `vocab` on are padding and take no part.
    """
    if hidden.is_cuda and torch.is_autocast_enabled("cuda"):
        dtype = torch.get_autocast_dtype("cuda")
        hidden, weight = hidden.to(dtype), weight.to(dtype)
    if bias is not None and len(bias) < len(weight):
        bias = torch.cat([bias, bias.new_zeros(len(weight) - len(bias))])
    total: Tensor = _CrossEntropy.apply(hidden, weight, bias, labels, vocab)  # type: ignore[no-untyped-call]
    return total


def chunks(rows: int, vocab: int, cuda: bool) -> int:
    """Say how many rows to score at a time."""
    return max(1, min(rows, (CHUNK_CUDA if cuda else CHUNK) // vocab))


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, vocab: int
    ) -> Tensor:
        wanted = any(ctx.needs_input_grad)
        rows, padded = hidden.shape[0], weight.shape[0]
        size = chunks(rows, padded, hidden.is_cuda)
        total = hidden.new_zeros((), dtype=torch.float32)
        d_hidden = torch.empty_like(hidden) if wanted else None
        d_weight = torch.zeros_like(weight, dtype=torch.float32) if wanted else None
        d_bias = (
            torch.zeros_like(bias, dtype=torch.float32) if wanted and bias is not None else None
        )
        for start in range(0, rows, size):
            part = hidden[start : start + size]
            wants = labels[start : start + size]
            scores = (part @ weight.T).float()
            if bias is not None:
                scores += bias
            scores[:, vocab:] = float("-inf")
            counted = wants != IGNORED
            label = wants.clamp(min=0)[:, None]
            scores -= scores.logsumexp(-1, keepdim=True)
            total -= (scores.gather(1, label)[:, 0] * counted).sum()
            if d_hidden is None or d_weight is None:
                continue
            # d nll / d scores = softmax - one at the label
            error = scores.exp_()
            error.scatter_add_(1, label, error.new_full((), -1.0).expand_as(label))
            error *= counted[:, None]
            if d_bias is not None:
                d_bias += error.sum(0)
            error = error.to(part.dtype)
            d_hidden[start : start + size] = error @ weight
            d_weight += error.T @ part
        ctx.save_for_backward(d_hidden, d_weight, d_bias)
        ctx.dtype = weight.dtype
        return total

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        d_hidden, d_weight, d_bias = ctx.saved_tensors
        return (
            (d_hidden * gradient).to(d_hidden.dtype),
            (d_weight * gradient).to(ctx.dtype),
            None if d_bias is None else d_bias * gradient,
            None,
            None,
        )
