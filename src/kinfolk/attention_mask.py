"""Who may see whom: every attention pattern of the family as a document number and two clocks.

Token i sees token j when both are in the same document and `birth[j] <= clock[i]`.

    full      birth 0 0 0 0    clock 0 0 0 0    everyone sees everyone
    causal    birth 0 1 2 3    clock 0 1 2 3    only the past, and oneself
    prefix    birth 0 0 1 2    clock 0 0 1 2    two tokens read both ways, the rest written

Texts packed into one row differ in their document number and in nothing else. Padding is document
-1: it sees only other padding, so that no row of the softmax is empty, and no text sees it.
"""

import importlib.util
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention

HAS_TRITON = importlib.util.find_spec("triton") is not None
if HAS_TRITON:
    from kinfolk import triton_kernels

PADDING_ID = -1  # the document number of empty slots
BLOCK_SIZE = 128  # tokens on a side of a block of the block-sparse mask
EMPTY_SLOT_ID = -2  # the document number of a cache slot that holds nothing yet


@dataclass(frozen=True, eq=False)
class AttentionMask:
    """What each token may look at: three integers a token, each (batch, length)."""

    document_ids: Tensor
    key_order: Tensor
    query_order: Tensor
    # Set where each row is one text without padding: then the plain fast kernels say the same.
    unpacked: Literal["bidirectional", "causal"] | None = None
    # Set by `resolved`: the same, as the block-sparse kernel wants it.
    block_mask: BlockMask | None = None
    window_block_masks: Mapping[int, BlockMask] = field(
        default_factory=dict
    )  # the blocks of each window

    @classmethod
    def bidirectional(cls, document_ids: Tensor, *, unpacked: bool = False) -> "AttentionMask":
        """Let every token see its whole document."""
        still = torch.zeros_like(document_ids)
        return cls(document_ids, still, still, "bidirectional" if unpacked else None)

    @classmethod
    def causal(
        cls, document_ids: Tensor, *, start: int = 0, unpacked: bool = False
    ) -> "AttentionMask":
        """Let every token see itself and what stands before it in its document."""
        length = document_ids.shape[1]
        time = torch.arange(
            start, start + length, device=document_ids.device, dtype=document_ids.dtype
        )
        time = time.expand_as(document_ids)
        return cls(document_ids, time, time, "causal" if unpacked else None)

    def with_block_masks(self, windows: Collection[int] = ()) -> "AttentionMask":
        """Find the blocks of the mask, and of its bands. It must happen outside of what is
        compiled: inside, torch 2.11 computes them wrongly."""
        bands = {window: block_mask_from_bounds(self, self, window) for window in windows}
        return replace(
            self,
            block_mask=None if self.unpacked else block_mask_from_bounds(self, self),
            window_block_masks=bands,
        )

    def for_targets(self, positions: Tensor) -> "AttentionMask":
        """Return the sight of guesses at some slots, (batch, query): what was born before each."""
        document, key_order = (x.gather(1, positions) for x in (self.document_ids, self.key_order))
        return AttentionMask(document, key_order, key_order - 1)

    def dense(self, keys: "AttentionMask | None" = None, window: int | None = None) -> Tensor:
        """Spell out who sees whom: (batch, query, key), true where the query sees the key."""
        keys = keys or self
        same = self.document_ids[:, :, None] == keys.document_ids[:, None, :]
        born = keys.key_order[:, None, :] <= self.query_order[:, :, None]
        seen = same & born
        if window is not None:
            seen = seen & (self.query_order[:, :, None] - keys.key_order[:, None, :] < window)
        return seen


class AttentionBackend(Protocol):
    """A sight made ready for attention: resolved once a forward pass, used by every layer."""

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
        """Attend: (batch, heads, query, head width) in and out.

        `bias` is a layer's own, (batch, heads, query, key), added to the scaled scores.
        """
        ...


@dataclass(frozen=True, eq=False)
class UnmaskedSdpa:
    """Rows that are one text each: the kernel needs no mask."""

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
            seen = torch.ones(bias.shape[-2:], dtype=torch.bool, device=bias.device)
            if self.causal:
                seen = seen.tril(bias.shape[-1] - bias.shape[-2])
            return MaskedSdpa(seen)(query, key, value, scale=scale, dropout=dropout, bias=bias)
        return F.scaled_dot_product_attention(
            query, key, value, dropout_p=dropout, is_causal=self.causal, scale=scale
        )


@dataclass(frozen=True, eq=False)
class MaskedSdpa:
    """A mask written out: boolean, or with a bias on the scores already in it."""

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
            found: Tensor = triton_kernels.decode_attention(query, key, value, mask, scale)
            return found
        if bias is not None:
            written = mask.dtype != torch.bool
            mask = mask + bias if written else bias.masked_fill(~mask, float("-inf"))
        if mask.dtype != torch.bool:
            mask = mask.to(query.dtype)
        return F.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, dropout_p=dropout, scale=scale
        )


@dataclass(frozen=True, eq=False)
class FlexBlockSparse:
    """A block-sparse mask for the compiled kernel: blocks that nobody sees cost nothing."""

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
        assert bias is None or self.bias is None, "a layer's bias stands alone"
        assert dropout == 0, "see() takes the dense mask where weights are dropped"
        score = (
            _distance_score_mod(self.bias, query.shape[2])
            if bias is None
            else _bias_score_mod(bias)
        )
        out = flex_attention(query, key, value, score, self.mask, scale=scale)
        assert isinstance(out, Tensor)
        return out


def select_backend(
    query: AttentionMask,
    key: AttentionMask | None = None,
    *,
    bias: Tensor | None = None,
    window: int | None = None,
    dropout: bool = False,
    layer_bias: bool = False,
    block_mask: BlockMask | None = None,
) -> AttentionBackend:
    """Make a sight ready for attention, by the fastest way that says the same.

    `bias` is added to the scores by distance, (heads, query + key - 1): entry `j - i + query - 1`
    for query i and key j. `dropout` says that weights will be dropped, which the block-sparse
    kernel cannot do; `biased`, that each layer brings a bias of its own, which that kernel is slow
    with where it has room for it at all. `across` holds the blocks where the keys are not the
    queries' own, under the same window.
    """
    keys = key or query
    if query.unpacked and keys.unpacked == query.unpacked and bias is None and window is None:
        queries, length = query.document_ids.shape[1], keys.document_ids.shape[1]
        if queries == 1:  # the newest token: there is nothing that it may not see
            return UnmaskedSdpa(causal=False)
        if queries == length or query.unpacked == "bidirectional":
            return UnmaskedSdpa(causal=query.unpacked == "causal")
    own = query.block_mask if window is None else query.window_block_masks.get(window)
    found = own if keys is query else block_mask
    if found is None or dropout or layer_bias:
        return _masked_sdpa(query, keys, bias, window)
    return FlexBlockSparse(found, bias)


def expand_relative_bias(bias: Tensor, queries: int, keys: int) -> Tensor:
    """Lay a bias by distance out over (heads, query, key)."""
    device = bias.device
    rows = torch.arange(queries, device=device)[:, None]
    columns = torch.arange(keys, device=device)[None, :]
    return bias[:, columns - rows + queries - 1]


def _masked_sdpa(
    query: AttentionMask, key: AttentionMask, bias: Tensor | None, window: int | None
) -> MaskedSdpa:
    seen = query.dense(key, window)[:, None]
    if bias is None and seen.device.type == "cpu":  # where the kernel would add zeros, each time
        return MaskedSdpa(torch.zeros(seen.shape).masked_fill_(~seen, float("-inf")))
    if bias is None:
        return MaskedSdpa(seen)
    scores = expand_relative_bias(bias, seen.shape[2], seen.shape[3])
    return MaskedSdpa(torch.where(seen, scores, float("-inf")))


def block_mask_from_bounds(
    query: AttentionMask, key: AttentionMask, window: int | None = None
) -> BlockMask:
    """Find the blocks of the mask that are seen in part or in full, from the bounds of each block.

    torch's own `create_block_mask` asks about every pair of tokens. Bounds ask about every pair of
    blocks: a thousandth of the work, and at worst a block is looked into in which nothing is seen.
    """
    document, query_order = (
        _block_min_max(query.document_ids, numbers=True),
        _block_min_max(query.query_order),
    )
    texts, key_order = _block_min_max(key.document_ids, numbers=True), _block_min_max(key.key_order)
    (low, high), (first, last) = document, texts
    seen = (low[:, :, None] <= last[:, None]) & (first[:, None] <= high[:, :, None])
    seen &= key_order[0][:, None] <= query_order[1][:, :, None]
    full = (low == high)[:, :, None] & (first == last)[:, None]
    full = full & (low[:, :, None] == first[:, None])
    full &= key_order[1][:, None] <= query_order[0][:, :, None]
    if window is not None:
        seen &= query_order[0][:, :, None] - key_order[1][:, None] < window
        full &= query_order[1][:, :, None] - key_order[0][:, None] < window
    queries, keys = query.document_ids.shape[1], key.document_ids.shape[1]
    # A block that hangs over the end of its row is never full.
    full[:, queries // BLOCK_SIZE :] = False
    full[:, :, keys // BLOCK_SIZE :] = False
    return BlockMask.from_kv_blocks(
        *_block_lists(seen & ~full),
        *_block_lists(full),
        BLOCK_SIZE=BLOCK_SIZE,
        mask_mod=_mask_mod(query, key, window),
        seq_lengths=(queries, keys),
    )


def _block_min_max(x: Tensor, *, numbers: bool = False) -> tuple[Tensor, Tensor]:
    """Return the least and the greatest of each block: two (batch, blocks)."""
    if numbers:  # documents are numbered upwards along a row, and padding ends it
        x = torch.where(x < 0, 2**30 - x, x)
    over = -x.shape[1] % BLOCK_SIZE
    if over:
        x = torch.cat([x, x[:, -1:].expand(-1, over)], dim=1)
    blocks = x.reshape(x.shape[0], -1, BLOCK_SIZE)
    return blocks.amin(2), blocks.amax(2)


def _block_lists(chosen: Tensor) -> tuple[Tensor, Tensor]:
    """List the chosen key blocks of each query block first: how many, and all in their order."""
    counts = chosen.sum(-1, dtype=torch.int32)
    order = torch.argsort((~chosen).to(torch.int32), dim=-1, stable=True).to(torch.int32)
    return counts[:, None], order[:, None].contiguous()  # (batch, 1, query blocks, key blocks)


def _mask_mod(query: AttentionMask, key: AttentionMask, window: int | None):  # type: ignore[no-untyped-def]  # flex's
    def rule(batch: Tensor, head: Tensor, i: Tensor, j: Tensor) -> Tensor:
        same = query.document_ids[batch, i] == key.document_ids[batch, j]
        born, now = key.key_order[batch, j], query.query_order[batch, i]
        seen = same & (born <= now)
        return seen if window is None else seen & (now - born < window)

    return rule


def _distance_score_mod(bias: Tensor | None, queries: int):  # type: ignore[no-untyped-def]  # flex's own type
    if bias is None:
        return None

    def score(value: Tensor, batch: Tensor, head: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return value + bias[head, j - i + queries - 1]

    return score


def _bias_score_mod(bias: Tensor):  # type: ignore[no-untyped-def]  # flex's own type
    def score(value: Tensor, batch: Tensor, head: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return value + bias[batch, head, i, j]

    return score
