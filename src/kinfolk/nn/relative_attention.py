"""Attention by content and by distance (Dai et al., 2019), of a stream or of guesses about it.

The score of query i and key j is (q_i + u) k_j + (q_i + v) W r_(i-j): u, v and W are learned, and r
are waves of the distance. The second half goes to the kernel as a bias.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from kinfolk.attention_mask import AttentionBackend
from kinfolk.batch import KVCache
from kinfolk.nn.attention import merge_heads, split_heads
from kinfolk.nn.language_model import WithBiases
from kinfolk.nn.layers import Linear


def sinusoidal_distances(
    far: int, near: int, hidden_size: int, *, like: Tensor, clamp: int | None = None
) -> Tensor:
    """Return sines, then cosines of each distance from `far` down to `near`: (distances, width).

    A distance is the query's place minus the key's: below zero for keys to the right.
    """
    distance = torch.arange(far, near - 1, -1, device=like.device, dtype=torch.float32)
    if clamp is not None:
        distance = distance.clamp(-clamp, clamp)
    steps = torch.arange(0, hidden_size, 2, device=like.device, dtype=torch.float32)
    turns = distance[:, None] * 10_000 ** (-steps / hidden_size)
    return torch.cat([turns.sin(), turns.cos()], dim=1).to(like.dtype)


def rel_shift(scores: Tensor, keys: int) -> Tensor:
    """Turn scores by distance into scores by key: (batch, heads, query, key).

    Column c is for the distance `keys - c`, and the queries are the last of the keys. Where the
    columns end at distance 0, keys to the right of a query get numbers of no meaning: nobody who
    reads from left to right sees them.
    """
    batch, heads, queries, distances = scores.shape
    # Row i starts at its column `queries - i`. Cut into rows one shorter, each starts one earlier.
    flat = scores.flatten(2)[:, :, queries:]
    return flat.view(batch, heads, queries, distances - 1)[..., :keys]


def gather_relative(scores: Tensor, slots: Tensor, length: int, keys: int) -> Tensor:
    """Do the same for queries that stand at any of the last `length` keys: slots (batch, query)."""
    columns = length - slots[:, :, None] + torch.arange(keys, device=slots.device)
    return scores.gather(3, columns[:, None].expand(-1, scores.shape[1], -1, -1))


@dataclass(frozen=True, eq=False)
class RelativeContext:
    """How a stream looks at the content: whom it sees, and from how far."""

    attend: AttentionBackend
    distances: Tensor  # (distances, width), from the distance `keys` down
    keys: int
    query_positions: Tensor | None = (
        None  # (batch, query): where guesses stand; a stream stands at the end
    )
    length: int = 0  # of the stream they are about
    other_segment: Tensor | None = None  # (batch, query, key): true where segments differ (XLNet)

    def by_key(self, scores: Tensor) -> Tensor:
        """Turn scores by distance into scores by key."""
        if self.query_positions is None:
            return rel_shift(scores, self.keys)
        return gather_relative(scores, self.query_positions, self.length, self.keys)


class RelativeAttention(WithBiases):
    """Multi-head attention to content, which may begin with a memory, by what and where it is."""

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
        self.num_heads, self.dropout = num_heads, dropout
        self.scale = (attention_size // num_heads) ** -0.5
        self.q_proj = Linear(hidden_size, attention_size, bias=False)
        self.kv_proj = Linear(hidden_size, 2 * attention_size, bias=False)
        self.r_proj = Linear(hidden_size, attention_size, bias=False)
        self.content_bias = nn.Parameter(
            torch.zeros(num_heads, attention_size // num_heads)
        )  # the paper's u
        self.position_bias = nn.Parameter(
            torch.zeros(num_heads, attention_size // num_heads)
        )  # and its v
        self.out_proj = Linear(attention_size, hidden_size, bias=False)

    def bias_parameters(self) -> tuple[nn.Parameter, ...]:
        """Return the biases of a query, each (heads, head width)."""
        return self.content_bias, self.position_bias

    def project_kv(
        self, content: Tensor, cache: KVCache | None = None, layer_idx: int = 0
    ) -> tuple[Tensor, Tensor]:
        """Return the keys and values of the content, after those that the state remembers."""
        key, value = (
            split_heads(part, self.num_heads) for part in self.kv_proj(content).chunk(2, dim=-1)
        )
        return (key, value) if cache is None else cache.layer(layer_idx).update(key, value)

    def forward(self, x: Tensor, content: tuple[Tensor, Tensor], view: RelativeContext) -> Tensor:
        query = split_heads(self.q_proj(x), self.num_heads)
        bias = self.position_scores(query, view) * self.scale
        dropout = self.dropout if self.training else 0.0
        asking = query + self.content_bias[:, None]
        seen = view.attend(asking, *content, scale=self.scale, dropout=dropout, bias=bias)
        return self.out_proj(merge_heads(seen))

    def position_scores(self, query: Tensor, view: RelativeContext) -> Tensor:
        """Score each key by its distance: (batch, heads, query, key)."""
        distance = split_heads(self.r_proj(view.distances)[None], self.num_heads)
        return view.by_key((query + self.position_bias[:, None]) @ distance.transpose(2, 3))


class SegmentRelativeAttention(RelativeAttention):
    """The same, and by whether a key is of the query's own segment (Yang et al. 2019, 2.5)."""

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        *,
        attention_size: int | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__(hidden_size, num_heads, attention_size=attention_size, dropout=dropout)
        self.segment_bias = nn.Parameter(torch.zeros_like(self.content_bias))
        self.segment_embeddings = nn.Parameter(
            torch.zeros(2, *self.content_bias.shape)
        )  # its own, another

    def bias_parameters(self) -> tuple[nn.Parameter, ...]:
        """Return the biases of a query, each (heads, head width)."""
        return *super().bias_parameters(), self.segment_bias

    def position_scores(self, query: Tensor, view: RelativeContext) -> Tensor:
        """Score each key by its distance and, where there are any, by the segments."""
        bias = super().position_scores(query, view)
        if view.other_segment is None:
            return bias
        own, other = (
            (query + self.segment_bias[:, None]) * e[:, None] for e in self.segment_embeddings
        )
        sums = own.sum(-1, keepdim=True), other.sum(-1, keepdim=True)  # (batch, heads, query, 1)
        return bias + torch.where(view.other_segment[:, None], sums[1], sums[0])
