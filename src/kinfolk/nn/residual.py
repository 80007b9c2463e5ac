"""Residual branches: where the norm stands, and how loud they start."""

from typing import Any

import torch
from torch import Tensor, nn

from kinfolk.nn.attention import Attention, CrossAttention
from kinfolk.nn.feedforward import FeedForward, GatedFeedForward


class PreNorm(nn.Module):
    """Norm, branch, add: the stream itself is never normed (GPT-2, T5)."""

    def __init__(self, sublayer: nn.Module, norm: nn.Module, dropout: float) -> None:
        super().__init__()
        self.norm = norm
        self.sublayer = sublayer
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, *args: Any) -> Tensor:
        y = self.sublayer(self.norm(x), *args)
        return x + (self.dropout(y) if self.training else y)


class PostNorm(nn.Module):
    """Branch, add, norm (the 2017 Transformer, BERT)."""

    def __init__(self, sublayer: nn.Module, norm: nn.Module, dropout: float) -> None:
        super().__init__()
        self.sublayer = sublayer
        self.dropout = nn.Dropout(dropout)
        self.norm = norm

    def forward(self, x: Tensor, *args: Any) -> Tensor:
        y = self.sublayer(x, *args)
        return self.norm(x + (self.dropout(y) if self.training else y))


@torch.no_grad()
def scale_residual_init_(blocks: nn.Module, branches: int) -> None:
    """Divide what each branch adds to the stream by sqrt(N), N branches (GPT-2, section 2.3)."""
    last: list[nn.Linear] = []  # the matrices that write into the stream
    for module in blocks.modules():
        if isinstance(module, Attention | CrossAttention):
            last.append(module.out_proj)
        if isinstance(module, FeedForward | GatedFeedForward):
            last.append(module.down_proj)
    assert len(last) == branches, f"{len(last)} branches were found, not {branches}"
    for matrix in last:
        matrix.weight.mul_(branches**-0.5)
