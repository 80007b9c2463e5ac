"""Attention by content and by distance (Dai et al., 2019), of a stream or of guesses about it.

The score of query i and key j is (q_i + u) k_j + (q_i + v) W r_(i-j): u, v and W are learned, and r
are waves of the distance. The second half goes to the kernel as a bias.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from kinfolk.nn.attention import merge, split
from kinfolk.nn.language_model import WithBiases
from kinfolk.nn.linear import Linear
from kinfolk.sight import Visible
from kinfolk.types import State


def waves(far: int, near: int, width: int, *, like: Tensor, clamp: int | None = None) -> Tensor:
    """Return sines, then cosines of each distance from `far` down to `near`: (distances, width).

    A distance is the query's place minus the key's: below zero for keys to the right.
    """
    distance = torch.arange(far, near - 1, -1, device=like.device, dtype=torch.float32)
    if clamp is not None:
        distance = distance.clamp(-clamp, clamp)
    steps = torch.arange(0, width, 2, device=like.device, dtype=torch.float32)
    turns = distance[:, None] * 10_000 ** (-steps / width)
    return torch.cat([turns.sin(), turns.cos()], dim=1).to(like.dtype)


def shift(scores: Tensor, keys: int) -> Tensor:
    """Turn scores by distance into scores by key: (batch, heads, query, key).

    Column c is for the distance `keys - c`, and the queries are the last of the keys. Where the
    columns end at distance 0, keys to the right of a query get numbers of no meaning: nobody who
    reads from left to right sees them.
    """
    batch, heads, queries, distances = scores.shape
    # Row i starts at its column `queries - i`. Cut into rows one shorter, each starts one earlier.
    flat = scores.flatten(2)[:, :, queries:]
    return flat.view(batch, heads, queries, distances - 1)[..., :keys]


def pick(scores: Tensor, slots: Tensor, length: int, keys: int) -> Tensor:
    """Do the same for queries that stand at any of the last `length` keys: slots (batch, query)."""
    columns = length - slots[:, :, None] + torch.arange(keys, device=slots.device)
    return scores.gather(3, columns[:, None].expand(-1, scores.shape[1], -1, -1))


@dataclass(frozen=True, eq=False)
class View:
    """How a stream looks at the content: whom it sees, and from how far."""

    visible: Visible
    waves: Tensor  # (distances, width), from the distance `keys` down
    keys: int
    slots: Tensor | None = None  # (batch, query): where guesses stand; a stream stands at the end
    length: int = 0  # of the stream they are about
    apart: Tensor | None = None  # (batch, query, key): true where segments differ (XLNet)

    def lay(self, scores: Tensor) -> Tensor:
        """Turn scores by distance into scores by key."""
        if self.slots is None:
            return shift(scores, self.keys)
        return pick(scores, self.slots, self.length, self.keys)


class RelativeAttention(WithBiases):
    """Multi-head attention to content, which may begin with a memory, by what and where it is."""

    def __init__(
        self, width: int, heads: int, *, inner: int | None = None, dropout: float = 0.0
    ) -> None:
        super().__init__()
        inner = inner or width
        self.heads, self.dropout = heads, dropout
        self.scale = (inner // heads) ** -0.5
        self.query = Linear(width, inner, bias=False)
        self.kv = Linear(width, 2 * inner, bias=False)
        self.distance = Linear(width, inner, bias=False)
        self.content_bias = nn.Parameter(torch.zeros(heads, inner // heads))  # the paper's u
        self.distance_bias = nn.Parameter(torch.zeros(heads, inner // heads))  # and its v
        self.out = Linear(inner, width, bias=False)

    def bias_parameters(self) -> tuple[nn.Parameter, ...]:
        """Return the biases of a query, each (heads, head width)."""
        return self.content_bias, self.distance_bias

    def read(
        self, content: Tensor, state: State | None = None, layer: int = 0
    ) -> tuple[Tensor, Tensor]:
        """Return the keys and values of the content, after those that the state remembers."""
        key, value = (split(part, self.heads) for part in self.kv(content).chunk(2, dim=-1))
        return (key, value) if state is None else state.cache(layer).extend(key, value)

    def forward(self, x: Tensor, content: tuple[Tensor, Tensor], view: View) -> Tensor:
        query = split(self.query(x), self.heads)
        bias = self.bias(query, view) * self.scale
        dropout = self.dropout if self.training else 0.0
        asking = query + self.content_bias[:, None]
        seen = view.visible(asking, *content, scale=self.scale, dropout=dropout, bias=bias)
        return self.out(merge(seen))

    def bias(self, query: Tensor, view: View) -> Tensor:
        """Score each key by its distance: (batch, heads, query, key)."""
        distance = split(self.distance(view.waves)[None], self.heads)
        return view.lay((query + self.distance_bias[:, None]) @ distance.transpose(2, 3))


class SegmentedAttention(RelativeAttention):
    """The same, and by whether a key is of the query's own segment (Yang et al. 2019, 2.5)."""

    def __init__(
        self, width: int, heads: int, *, inner: int | None = None, dropout: float = 0.0
    ) -> None:
        super().__init__(width, heads, inner=inner, dropout=dropout)
        self.segment_bias = nn.Parameter(torch.zeros_like(self.content_bias))
        self.segments = nn.Parameter(torch.zeros(2, *self.content_bias.shape))  # its own, another

    def bias_parameters(self) -> tuple[nn.Parameter, ...]:
        """Return the biases of a query, each (heads, head width)."""
        return *super().bias_parameters(), self.segment_bias

    def bias(self, query: Tensor, view: View) -> Tensor:
        """Score each key by its distance and, where there are any, by the segments."""
        bias = super().bias(query, view)
        if view.apart is None:
            return bias
        own, other = ((query + self.segment_bias[:, None]) * e[:, None] for e in self.segments)
        sums = own.sum(-1, keepdim=True), other.sum(-1, keepdim=True)  # (batch, heads, query, 1)
        return bias + torch.where(view.apart[:, None], sums[1], sums[0])
