"""Attention over one stream, and from one stream to another."""

from torch import Tensor, nn

from kinfolk.attention_mask import AttentionBackend
from kinfolk.batch import KVCache
from kinfolk.nn.linear import Linear


def split_heads(x: Tensor, num_heads: int) -> Tensor:
    """Give each head its share of the width: (batch, heads, length, head width)."""
    batch, length, width = x.shape
    return x.view(batch, length, num_heads, width // num_heads).transpose(1, 2)


def merge_heads(x: Tensor) -> Tensor:
    """Put the heads side by side again: (batch, length, width)."""
    return x.transpose(1, 2).flatten(2)


class Attention(nn.Module):
    """Multi-head attention of a stream to itself (Vaswani et al. 2017, section 3.2.2)."""

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        *,
        attention_size: int | None = None,  # heads x head width, where that is not the width
        bias: bool = True,
        scale: float | None = None,  # None is 1 / sqrt(head width)
        dropout: float = 0.0,  # on the weights
    ) -> None:
        super().__init__()
        attention_size = attention_size or hidden_size
        self.num_heads, self.scale, self.dropout = num_heads, scale, dropout
        self.qkv_proj = Linear(hidden_size, 3 * attention_size, bias=bias)
        self.out_proj = Linear(attention_size, hidden_size, bias=bias)

    def forward(
        self, x: Tensor, attend: AttentionBackend, cache: KVCache | None = None, layer_idx: int = 0
    ) -> Tensor:
        # All three at once, (3, batch, heads, length, head width): a short text is mostly overhead.
        parts = self.qkv_proj(x).view(*x.shape[:2], 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        query, key, value = parts.unbind()
        if cache is not None:
            key, value = cache.layer(layer_idx).update(key, value)
        dropout = self.dropout if self.training else 0.0
        return self.out_proj(
            merge_heads(attend(query, key, value, scale=self.scale, dropout=dropout))
        )


class CrossAttention(nn.Module):
    """Multi-head attention of a stream to a source, whose keys and values are computed once."""

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        *,
        attention_size: int | None = None,
        bias: bool = True,
        scale: float | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        attention_size = attention_size or hidden_size
        self.num_heads, self.scale, self.dropout = num_heads, scale, dropout
        self.q_proj = Linear(hidden_size, attention_size, bias=bias)
        self.kv_proj = Linear(hidden_size, 2 * attention_size, bias=bias)
        self.out_proj = Linear(attention_size, hidden_size, bias=bias)

    def forward(
        self,
        x: Tensor,
        source: Tensor,
        attend: AttentionBackend,
        cache: KVCache | None = None,
        layer_idx: int = 0,
    ) -> Tensor:
        query = split_heads(self.q_proj(x), self.num_heads)
        if cache is not None and layer_idx in cache.cross_kv:
            key, value = cache.cross_kv[layer_idx]
        else:
            key, value = (
                split_heads(part, self.num_heads) for part in self.kv_proj(source).chunk(2, dim=-1)
            )
            if cache is not None:
                cache.cross_kv[layer_idx] = key, value
        dropout = self.dropout if self.training else 0.0
        return self.out_proj(
            merge_heads(attend(query, key, value, scale=self.scale, dropout=dropout))
        )
