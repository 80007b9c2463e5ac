"""Attention backends and their choice, self-attention and cross-attention."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from kinfolk.attention_mask import (
    AttentionBackend,
    AttentionMask,
    BlockRanges,
    SequenceOffsets,
    SparseMask,
)
from kinfolk.batch import Inputs
from kinfolk.kv_cache import KVCache
from kinfolk.nn.layers import HAS_TRITON, FusedLinear, Linear, Split, TensorParallel

if HAS_TRITON:
    from kinfolk.nn import block_sparse, triton_kernels


SPARSE_HEAD_DIMS = (16, 32, 64, 128)  # features of a head that our kernel can compute


@dataclass(frozen=True, eq=False)
class UnmaskedSdpa:
    """Torch's kernel without a mask, for rows of one text each."""

    causal: bool

    def __call__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        /,
        *,
        scale: float | None,
        dropout: float,
        bias: Tensor | None = None,
    ) -> Tensor:
        """Attend without a mask."""
        if bias is not None:
            mask = torch.ones(bias.shape[-2:], dtype=torch.bool, device=bias.device)
            if self.causal:
                mask = mask.tril(bias.shape[-1] - bias.shape[-2])
            return MaskedSdpa(mask)(query, key, value, scale=scale, dropout=dropout, bias=bias)
        return F.scaled_dot_product_attention(
            query, key, value, dropout_p=dropout, is_causal=self.causal, scale=scale
        )


@dataclass(frozen=True, eq=False)
class MaskedSdpa:
    """Torch's kernel with a dense mask: boolean, or added to the scores."""

    mask: Tensor  # (batch, 1 or heads, query, key)

    def __call__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        /,
        *,
        scale: float | None,
        dropout: float,
        bias: Tensor | None = None,
    ) -> Tensor:
        """Attend under the mask."""
        mask = self.mask
        if HAS_TRITON and bias is None and triton_kernels.can_decode_attention(query, key):
            scale = query.shape[3] ** -0.5 if scale is None else scale
            return triton_kernels.decode_attention(query, key, value, mask, scale)
        if bias is not None:
            additive = mask.dtype != torch.bool
            mask = mask + bias if additive else bias.masked_fill(~mask, float("-inf"))
        if mask.dtype != torch.bool:
            mask = mask.to(query.dtype)
        return F.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, dropout_p=dropout, scale=scale
        )


@dataclass(frozen=True, eq=False)
class FlexBlockSparse:
    """A block-sparse mask for the compiled kernel: masked blocks are skipped."""

    mask: BlockMask
    bias: Tensor | None  # (heads, distances)

    def __call__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        /,
        *,
        scale: float | None,
        dropout: float,
        bias: Tensor | None = None,
    ) -> Tensor:
        """Attend through the block mask."""
        assert bias is None or self.bias is None, "biases of a layer and by distance do not combine"
        assert dropout == 0, "select_backend() selects the dense mask for dropout"
        score_mod = (
            _distance_score_mod(self.bias, query.shape[2])
            if bias is None
            else _bias_score_mod(bias)
        )
        out = flex_attention(query, key, value, score_mod, self.mask, scale=scale)
        assert isinstance(out, Tensor)
        return out


@dataclass(frozen=True, eq=False)
class BlockSparse:
    """Our kernel for packed rows, compiled or not: CUDA, half precision."""

    mask: BlockRanges

    def __call__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        /,
        *,
        scale: float | None,
        dropout: float,
        bias: Tensor | None = None,
    ) -> Tensor:
        """Attend to the blocks that the mask leaves."""
        assert bias is None, "select_backend() selects another backend where layers add a bias"
        assert dropout == 0, "select_backend() selects the dense mask for dropout"
        scale = query.shape[3] ** -0.5 if scale is None else scale
        q, k, v = (x.transpose(1, 2) for x in (query, key, value))
        return block_sparse.attend(q, k, v, self.mask, scale).transpose(1, 2)

    def attend_to_itself(self, qkv: Tensor, *, scale: float | None, dropout: float) -> Tensor:
        """Attend with queries, keys and values in one tensor, (batch, length, 3, heads, head_dim).

        Their gradient is one tensor too, which is written once.
        """
        assert dropout == 0, "select_backend() selects the dense mask for dropout"
        scale = qkv.shape[4] ** -0.5 if scale is None else scale
        return block_sparse.attend(qkv, None, None, self.mask, scale)


@dataclass(frozen=True, eq=False)
class VarlenAttention:
    """FlashAttention over the documents of all rows as one stream: CUDA, half precision."""

    sequences: SequenceOffsets

    def __call__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        /,
        *,
        scale: float | None,
        dropout: float,
        bias: Tensor | None = None,
    ) -> Tensor:
        """Attend inside of each document."""
        assert bias is None, "select_backend() selects another backend where layers add a bias"
        assert dropout == 0, "select_backend() selects the dense mask for dropout"
        from torch.nn.attention.varlen import varlen_attn  # takes seconds

        q, k, v = (x.transpose(1, 2).flatten(0, 1) for x in (query, key, value))
        offsets, longest = self.sequences.cu_seqlens, self.sequences.max_seqlen
        window = (-1, 0) if self.sequences.causal else (-1, -1)
        out = varlen_attn(
            q, k, v, offsets, offsets, longest, longest, scale=scale, window_size=window
        )
        assert isinstance(out, Tensor)
        return out.view(query.transpose(1, 2).shape).transpose(1, 2)


def select_backend(
    query: AttentionMask,
    key: AttentionMask | None = None,
    *,
    bias: Tensor | None = None,
    window: int | None = None,
    dropout: bool = False,
    layer_bias: bool = False,
    block_mask: SparseMask | None = None,
) -> AttentionBackend:
    """Return the fastest backend for a mask.

    `bias` is added to the scores by distance, (heads, query + key - 1): entry `j - i + query - 1`
    for query i and key j. A block-sparse kernel does not support `dropout` of attention
    probabilities, and it is slow or out of memory where each layer adds a bias (`layer_bias`).
    `block_mask` is the block mask for keys other than the queries' own, under the same window.
    Varlen attention is chosen where the data loader has found the documents: `train.attention`.
    """
    keys = key or query
    if query.unpacked and keys.unpacked == query.unpacked and bias is None and window is None:
        queries, length = query.document_ids.shape[1], keys.document_ids.shape[1]
        if queries == 1:  # the newest token attends to every token
            return UnmaskedSdpa(causal=False)
        if queries == length or query.unpacked == "bidirectional":
            return UnmaskedSdpa(causal=query.unpacked == "causal")
    biased = bias is not None or layer_bias
    if query.sequences and keys is query and window is None and not (biased or dropout):
        return VarlenAttention(query.sequences)
    own = query.block_mask if window is None else query.window_block_masks.get(window)
    sparse = own if keys is query else block_mask
    # FlexAttention adds up the gradient of a bias in no fixed order.
    unordered = bias is not None and torch.are_deterministic_algorithms_enabled()
    if sparse is None or dropout or layer_bias or unordered:
        return _masked_sdpa(query, keys, bias, window)
    if isinstance(sparse, BlockRanges):
        return _masked_sdpa(query, keys, bias, window) if biased else BlockSparse(sparse)
    return FlexBlockSparse(sparse, bias)


def attention_backend(
    inputs: Inputs, *, dropout: bool = False, window: int | None = None
) -> AttentionBackend:
    """Return the backend of self-attention to these tokens and to the cached ones."""
    return select_backend(
        inputs.attention_mask,
        inputs.full_key_mask(),
        dropout=dropout,
        window=window,
        block_mask=inputs.memory_block_masks.get(window),
    )


def cross_attention_backend(inputs: Inputs, *, dropout: bool = False) -> AttentionBackend:
    """Return the backend of cross-attention to the encoder input of the same document."""
    return select_backend(
        *inputs.cross_masks(), dropout=dropout, block_mask=inputs.cross_block_mask
    )


def expand_relative_bias(bias: Tensor, queries: int, keys: int) -> Tensor:
    """Expand a bias by distance, (heads, queries + keys - 1), to (heads, query, key).

    Each query has a window of it, the first query the last window. Windows and not indices: the
    gradient of bias[:, index] adds up in an order that several CPU threads do not fix.
    """
    return bias[:, : queries + keys - 1].unfold(1, keys, 1).flip(1)


def _masked_sdpa(
    query: AttentionMask, key: AttentionMask, bias: Tensor | None, window: int | None
) -> MaskedSdpa:
    mask = query.dense(key, window)[:, None]
    if bias is None and mask.device.type != "cuda":  # converted once instead of in every layer
        zeros = torch.zeros(mask.shape, device=mask.device)
        return MaskedSdpa(zeros.masked_fill_(~mask, float("-inf")))
    if bias is None:
        return MaskedSdpa(mask)
    scores = expand_relative_bias(bias, mask.shape[2], mask.shape[3])
    return MaskedSdpa(torch.where(mask, scores, float("-inf")))


def _distance_score_mod(bias: Tensor | None, queries: int):  # type: ignore[no-untyped-def]  # flex's own type
    if bias is None:
        return None

    def score_mod(value: Tensor, batch: Tensor, head: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return value + bias[head, j - i + queries - 1]

    return score_mod


def _bias_score_mod(bias: Tensor):  # type: ignore[no-untyped-def]  # flex's own type
    def score_mod(value: Tensor, batch: Tensor, head: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return value + bias[batch, head, i, j]

    return score_mod


def split_heads(x: Tensor, head_dim: int) -> Tensor:
    """Give each head its part of the hidden size: (batch, heads, length, head_dim)."""
    return x.view(*x.shape[:2], x.shape[2] // head_dim, head_dim).transpose(1, 2)


def merge_heads(x: Tensor) -> Tensor:
    """Concatenate the heads: (batch, length, width)."""
    return x.transpose(1, 2).flatten(2)


class Attention(TensorParallel):
    """Multi-head self-attention (Vaswani et al. 2017, section 3.2.2)."""

    tensor_plan: ClassVar[Mapping[str, Split]] = {"qkv_proj": "qkv", "out_proj": "rows"}

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        *,
        attention_size: int | None = None,  # heads x head_dim; None is the hidden size
        bias: bool = True,
        scale: float | None = None,  # None is 1 / sqrt(head_dim)
        dropout: float = 0.0,  # of the attention probabilities
    ) -> None:
        super().__init__()
        attention_size = attention_size or hidden_size
        self.num_heads, self.scale, self.dropout = num_heads, scale, dropout
        self.head_dim = attention_size // num_heads
        self.qkv_proj = FusedLinear(hidden_size, 3 * [attention_size], bias=bias)
        self.out_proj = Linear(attention_size, hidden_size, bias=bias)

    def forward(
        self, x: Tensor, attend: AttentionBackend, cache: KVCache | None = None, layer_idx: int = 0
    ) -> Tensor:
        # Parts of (batch, length, 3, heads, head_dim), whose gradients are written side by side and
        # not transposed twice. The heads are those of this process.
        qkv = self.qkv_proj(x).view(*x.shape[:2], 3, -1, self.head_dim)
        dropout = self.dropout if self.training else 0.0
        if isinstance(attend, BlockSparse) and cache is None:
            return self.out_proj(
                attend.attend_to_itself(qkv, scale=self.scale, dropout=dropout).flatten(2)
            )
        query, key, value = (part.transpose(1, 2) for part in qkv.unbind(2))
        if cache is not None:
            key, value = cache.layer(layer_idx).update(key, value)
        return self.out_proj(
            merge_heads(attend(query, key, value, scale=self.scale, dropout=dropout))
        )

    def divided_size(self) -> tuple[str, int]:
        """Return the heads."""
        return "attention heads", self.num_heads


class CrossAttention(TensorParallel):
    """Multi-head attention to encoder states; a cache keeps their keys and values."""

    tensor_plan: ClassVar[Mapping[str, Split]] = {
        "q_proj": "columns",
        "kv_proj": "kv",
        "out_proj": "rows",
    }

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
        self.head_dim = attention_size // num_heads
        self.q_proj = Linear(hidden_size, attention_size, bias=bias)
        self.kv_proj = FusedLinear(hidden_size, 2 * [attention_size], bias=bias)
        self.out_proj = Linear(attention_size, hidden_size, bias=bias)

    def forward(
        self,
        x: Tensor,
        source: Tensor,
        attend: AttentionBackend,
        cache: KVCache | None = None,
        layer_idx: int = 0,
    ) -> Tensor:
        query = split_heads(self.q_proj(x), self.head_dim)
        if cache is not None and layer_idx in cache.cross_kv:
            key, value = cache.cross_kv[layer_idx]
        else:
            key, value = (
                split_heads(part, self.head_dim) for part in self.kv_proj(source).chunk(2, dim=-1)
            )
            if cache is not None:
                cache.cross_kv[layer_idx] = key, value
        dropout = self.dropout if self.training else 0.0
        return self.out_proj(
            merge_heads(attend(query, key, value, scale=self.scale, dropout=dropout))
        )

    def divided_size(self) -> tuple[str, int]:
        """Return the heads."""
        return "attention heads", self.num_heads


def head_dims(module: nn.Module) -> set[int]:
    """Return how many features the heads in a module have."""
    return {m.head_dim for m in module.modules() if isinstance(m, Attention | CrossAttention)}
