"""Attention with relative positions (Dai et al., 2019), of Transformer-XL and XLNet.

The score of query i and key j is (q_i + u) k_j + (q_i + v) W r_(i-j): u, v and W are learned, and r
are sinusoids of the distance. The second term is a bias of the attention backend.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from kinfolk.attention_mask import AttentionBackend
from kinfolk.batch import KVCache
from kinfolk.nn.attention import merge_heads, split_heads
from kinfolk.nn.language_model import StagedLayer, WithBiases
from kinfolk.nn.layers import FusedLinear, Linear, PostNorm


def sinusoidal_distances(
    far: int, near: int, hidden_size: int, *, like: Tensor, clamp: int | None = None
) -> Tensor:
    """Return sines, then cosines of each distance from `far` down to `near`.

    (distances, hidden_size); a distance is query position minus key position, negative for keys to
    the right.
    """
    distance = torch.arange(far, near - 1, -1, device=like.device, dtype=torch.float32)
    if clamp is not None:
        distance = distance.clamp(-clamp, clamp)
    steps = torch.arange(0, hidden_size, 2, device=like.device, dtype=torch.float32)
    angles = distance[:, None] * 10_000 ** (-steps / hidden_size)
    return torch.cat([angles.sin(), angles.cos()], dim=1).to(like.dtype)


def rel_shift(scores: Tensor, keys: int) -> Tensor:
    """Convert scores by distance into scores by key: (batch, heads, query, key).

    Column c has the distance `keys - c`, and the queries are the last of the keys. If the columns
    end at distance 0, scores of keys to the right of a query are undefined: a causal mask must
    remove them.
    """
    batch, heads, queries, distances = scores.shape
    # Row i starts at its column `queries - i`. Cut into rows one shorter, each starts one earlier.
    flat = scores.flatten(2)[:, :, queries:]
    return flat.view(batch, heads, queries, distances - 1)[..., :keys]


def gather_relative(scores: Tensor, positions: Tensor, length: int, keys: int) -> Tensor:
    """Convert the same for queries at any positions, (batch, query), of the last `length` keys."""
    columns = length - positions[:, :, None] + torch.arange(keys, device=positions.device)
    return scores.gather(3, columns[:, None].expand(-1, scores.shape[1], -1, -1))


@dataclass(frozen=True, eq=False)
class RelativeContext:
    """How a stream attends: the attention backend and the distances to its keys."""

    attend: AttentionBackend
    distances: Tensor  # (distances, hidden_size), from the distance `keys` down
    keys: int
    # (batch, query): positions of the query stream; None if the queries are the last keys
    query_positions: Tensor | None = None
    length: int = 0  # of the content stream that these positions are in
    other_segment: Tensor | None = None  # (batch, query, key): true where segments differ (XLNet)
    right: Tensor | None = None  # (batch, query, key): keys that a causal XLNet does not attend to

    def by_key(self, scores: Tensor) -> Tensor:
        """Convert scores by distance into scores by key."""
        if self.query_positions is None:
            scores = rel_shift(scores, self.keys)
        else:
            scores = gather_relative(scores, self.query_positions, self.length, self.keys)
        if self.right is None:
            return scores
        # Finite, because a query may have no key to its left.
        return scores.masked_fill(self.right[:, None], torch.finfo(scores.dtype).min / 2)


class RelativeAttention(WithBiases):
    """Multi-head attention to content, which may begin with a memory, with relative positions."""

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        *,
        attention_size: int | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        attention_size = attention_size or hidden_size
        self.dropout, self.head_dim = dropout, attention_size // num_heads
        self.scale = self.head_dim**-0.5
        self.q_proj = Linear(hidden_size, attention_size, bias=False)
        self.kv_proj = FusedLinear(hidden_size, 2 * [attention_size], bias=False)
        self.r_proj = Linear(hidden_size, attention_size, bias=False)
        self.content_bias = nn.Parameter(torch.zeros(num_heads, self.head_dim))  # the paper's u
        self.position_bias = nn.Parameter(torch.zeros(num_heads, self.head_dim))  # the paper's v
        self.out_proj = Linear(attention_size, hidden_size, bias=False)

    def bias_parameters(self) -> tuple[nn.Parameter, ...]:
        """Return the biases of a query, each (heads, head_dim)."""
        return self.content_bias, self.position_bias

    def project_kv(
        self, content: Tensor, cache: KVCache | None = None, layer_idx: int = 0
    ) -> tuple[Tensor, Tensor]:
        """Return the keys and values of the content, after the cached ones."""
        key, value = (
            split_heads(part, self.head_dim) for part in self.kv_proj(content).chunk(2, dim=-1)
        )
        return (key, value) if cache is None else cache.layer(layer_idx).update(key, value)

    def forward(self, x: Tensor, kv: tuple[Tensor, Tensor], context: RelativeContext) -> Tensor:
        query = split_heads(self.q_proj(x), self.head_dim)
        bias = self.position_scores(query, context) * self.scale
        dropout = self.dropout if self.training else 0.0
        query = query + self.content_bias[:, None]
        out = context.attend(query, *kv, scale=self.scale, dropout=dropout, bias=bias)
        return self.out_proj(merge_heads(out))

    def position_scores(self, query: Tensor, context: RelativeContext) -> Tensor:
        """Return the scores of keys by distance: (batch, heads, query, key)."""
        distance = split_heads(self.r_proj(context.distances)[None], self.head_dim)
        return context.by_key((query + self.position_bias[:, None]) @ distance.transpose(2, 3))


class SegmentRelativeAttention(RelativeAttention):
    """Relative attention with scores for the segments of query and key (Yang et al. 2019, 2.5)."""

    def __init__(self, hidden_size: int, num_heads: int, *, dropout: float = 0.0) -> None:
        super().__init__(hidden_size, num_heads, dropout=dropout)
        self.segment_bias = nn.Parameter(torch.zeros(self.content_bias.shape))
        # Of the query's own segment, and of another one.
        self.segment_embeddings = nn.Parameter(torch.zeros(2, *self.content_bias.shape))

    def bias_parameters(self) -> tuple[nn.Parameter, ...]:
        """Return the biases of a query, each (heads, head_dim)."""
        return *super().bias_parameters(), self.segment_bias

    def position_scores(self, query: Tensor, context: RelativeContext) -> Tensor:
        """Return the scores by distance and, if there are segments, by segment."""
        bias = super().position_scores(query, context)
        if context.other_segment is None:
            return bias
        own, other = (
            (query + self.segment_bias[:, None]) * e[:, None] for e in self.segment_embeddings
        )
        sums = own.sum(-1, keepdim=True), other.sum(-1, keepdim=True)  # (batch, heads, query, 1)
        return bias + torch.where(context.other_segment[:, None], sums[1], sums[0])


class RelativeLayer(StagedLayer):
    """Relative attention and feed-forward, each with a residual connection."""

    stages = ("project_kv",)

    def __init__(
        self,
        attention: RelativeAttention,
        feed_forward: nn.Module,
        *,
        residual: Callable[[nn.Module], PostNorm],
    ) -> None:
        super().__init__()
        self.self_attention = residual(attention)
        self.feed_forward = residual(feed_forward)

    def project_kv(
        self, content: Tensor, cache: KVCache | None, layer_idx: int
    ) -> tuple[Tensor, Tensor]:
        """Return the keys and values of the content, after the cached ones."""
        attention = self.self_attention.sublayer
        assert isinstance(attention, RelativeAttention)
        return attention.project_kv(content, cache, layer_idx)

    def forward(self, x: Tensor, kv: tuple[Tensor, Tensor], context: RelativeContext) -> Tensor:
        return self.feed_forward(self.self_attention(x, kv, context))
