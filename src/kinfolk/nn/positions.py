"""Positions: as waves, and as biases on the scores of attention."""

import math

import torch
from torch import Tensor, nn

from kinfolk.nn.attention import Attention


def sinusoidal_embedding(length: int, hidden_size: int) -> Tensor:
    """Return sines and cosines of the place, ever slower (Vaswani et al. 2017, section 3.5)."""
    positions = torch.arange(length)[:, None]
    speeds = torch.exp(torch.arange(0, hidden_size, 2) * (-math.log(10_000) / hidden_size))
    return torch.stack(
        [torch.sin(positions * speeds), torch.cos(positions * speeds)], dim=2
    ).flatten(1)


@torch.no_grad()
def mimetic_init_(layers: nn.Module, position_embeddings: nn.Embedding, *, std: float) -> None:
    """Start with attention that falls off with the distance (after Trockman and Kolter, 2023).

    Places start as waves, whose product is the larger the nearer they are, and queries as keys,
    so that this product is what decides who looks at whom. All of it is learned from there.
    """
    position_embeddings.weight.copy_(
        sinusoidal_embedding(position_embeddings.num_embeddings, position_embeddings.embedding_dim)
        * std
        * 2**0.5
    )
    for attention in layers.modules():
        if isinstance(attention, Attention):
            query, key, _ = attention.qkv_proj.weight.chunk(3)
            query.copy_(key)


class RelativePositionBias(nn.Module):
    """A learned bias a head for each bucket of distances (Raffel et al. 2020, section 2.1).

    Near distances have a bucket each, farther ones share buckets that grow logarithmically.
    """

    def __init__(
        self, num_heads: int, *, num_buckets: int, max_distance: int, bidirectional: bool
    ) -> None:
        super().__init__()
        self.num_buckets, self.max_distance, self.bidirectional = (
            num_buckets,
            max_distance,
            bidirectional,
        )
        self.embedding = nn.Embedding(num_buckets, num_heads)

    def forward(self, queries: int, keys: int, last: int | Tensor | None = None) -> Tensor:
        """Return the bias by distance, (heads, queries + keys - 1).

        The last query stands at the key `last`: the last one, unless told otherwise.
        """
        positions = torch.arange(queries + keys - 1, device=self.embedding.weight.device)
        distance = positions - (keys - 1 if last is None else last)
        return self.embedding(self.bucket(distance)).T

    def bucket(self, distance: Tensor) -> Tensor:
        """Number the buckets; `distance` is key place minus query place."""
        buckets = self.num_buckets
        first = torch.zeros_like(distance)
        if self.bidirectional:
            buckets //= 2
            first = (distance > 0).long() * buckets
            distance = distance.abs()
        else:
            distance = -distance.clamp(max=0)
        near = buckets // 2
        far = (
            near
            + (
                torch.log(distance.clamp(min=1).float() / near)
                / math.log(self.max_distance / near)
                * (buckets - near)
            ).long()
        )
        return first + torch.where(distance < near, distance, far.clamp(max=buckets - 1))
