"""Position information: sinusoids, and biases on the attention scores by distance."""

import math
from collections.abc import Mapping
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from kinfolk.nn.layers import Split, TensorParallel

SinusoidLayout = Literal["interleaved", "halves", "fairseq"]


def sinusoidal_embedding(
    position_ids: Tensor, hidden_size: int, layout: SinusoidLayout = "interleaved"
) -> Tensor:
    """Return sines and cosines of positions, (..., hidden_size) (Vaswani et al. 2017, 3.5).

    They take turns, or all sines come first: with the paper's wavelengths (`halves`), or with those
    of tensor2tensor and fairseq, the longest of which is 10,000 times the shortest.
    """
    steps = torch.arange(0, hidden_size, 2, device=position_ids.device)
    longest = hidden_size - 2 if layout == "fairseq" else hidden_size
    angles = position_ids[..., None] * torch.exp(steps * (-math.log(10_000) / longest))
    if layout == "interleaved":
        return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(-2)
    return torch.cat([angles.sin(), angles.cos()], dim=-1)


class RelativePositionBias(TensorParallel):
    """A learned bias per head and bucket of distances (Raffel et al. 2020, section 2.1).

    Each short distance has a bucket; longer ones share buckets of logarithmically growing size.
    """

    tensor_plan: ClassVar[Mapping[str, Split]] = {"embedding": "columns"}

    def __init__(
        self, num_heads: int, *, num_buckets: int, max_distance: int, bidirectional: bool
    ) -> None:
        super().__init__()
        self.num_buckets, self.max_distance = num_buckets, max_distance
        self.bidirectional = bidirectional
        self.embedding = nn.Embedding(num_buckets, num_heads)

    def forward(self, queries: int, keys: int, last: int | Tensor | None = None) -> Tensor:
        """Return the bias by distance, (heads, queries + keys - 1).

        `last` is the key position of the last query; None is that of the last key.
        """
        positions = torch.arange(queries + keys - 1, device=self.embedding.weight.device)
        distance = positions - (keys - 1 if last is None else last)
        return self.embedding(self.bucket(distance)).T

    def divided_size(self) -> tuple[str, int]:
        """Return the heads."""
        return "attention heads", self.embedding.embedding_dim

    def bucket(self, distance: Tensor) -> Tensor:
        """Return the bucket of each distance: key position minus query position."""
        buckets = self.num_buckets
        first = torch.zeros_like(distance)
        if self.bidirectional:
            buckets //= 2
            first = (distance > 0).long() * buckets
            distance = distance.abs()
        else:
            distance = -distance.clamp(max=0)
        near = buckets // 2  # the number of buckets with one distance each
        logs = torch.log(distance.clamp(min=1).float() / near) / math.log(self.max_distance / near)
        far = near + (logs * (buckets - near)).long()
        return first + torch.where(distance < near, distance, far.clamp(max=buckets - 1))
