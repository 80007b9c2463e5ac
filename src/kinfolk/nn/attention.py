"""Attention over one stream, and from one stream to another."""

from torch import Tensor, nn

from kinfolk.nn.linear import Linear
from kinfolk.sight import Visible
from kinfolk.types import State


def split(x: Tensor, heads: int) -> Tensor:
    """Give each head its share of the width: (batch, heads, length, head width)."""
    batch, length, width = x.shape
    return x.view(batch, length, heads, width // heads).transpose(1, 2)


def merge(x: Tensor) -> Tensor:
    """Put the heads side by side again: (batch, length, width)."""
    return x.transpose(1, 2).flatten(2)


class Attention(nn.Module):
    """Multi-head attention of a stream to itself (Vaswani et al. 2017, section 3.2.2)."""

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        inner: int | None = None,  # heads x head width, where that is not the width
        bias: bool = True,
        scale: float | None = None,  # None is 1 / sqrt(head width)
        dropout: float = 0.0,  # on the weights
    ) -> None:
        super().__init__()
        inner = inner or width
        self.heads, self.scale, self.dropout = heads, scale, dropout
        self.qkv = Linear(width, 3 * inner, bias=bias)
        self.out = Linear(inner, width, bias=bias)

    def forward(
        self, x: Tensor, visible: Visible, state: State | None = None, layer: int = 0
    ) -> Tensor:
        # All three at once, (3, batch, heads, length, head width): a short text is mostly overhead.
        parts = self.qkv(x).view(*x.shape[:2], 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        query, key, value = parts.unbind()
        if state is not None:
            key, value = state.cache(layer).extend(key, value)
        dropout = self.dropout if self.training else 0.0
        return self.out(merge(visible(query, key, value, scale=self.scale, dropout=dropout)))


class CrossAttention(nn.Module):
    """Multi-head attention of a stream to a source, whose keys and values are computed once."""

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        inner: int | None = None,
        bias: bool = True,
        scale: float | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        inner = inner or width
        self.heads, self.scale, self.dropout = heads, scale, dropout
        self.query = Linear(width, inner, bias=bias)
        self.kv = Linear(width, 2 * inner, bias=bias)
        self.out = Linear(inner, width, bias=bias)

    def forward(
        self,
        x: Tensor,
        source: Tensor,
        visible: Visible,
        state: State | None = None,
        layer: int = 0,
    ) -> Tensor:
        query = split(self.query(x), self.heads)
        if state is not None and layer in state.crossed:
            key, value = state.crossed[layer]
        else:
            key, value = (split(part, self.heads) for part in self.kv(source).chunk(2, dim=-1))
            if state is not None:
                state.crossed[layer] = key, value
        dropout = self.dropout if self.training else 0.0
        return self.out(merge(visible(query, key, value, scale=self.scale, dropout=dropout)))
