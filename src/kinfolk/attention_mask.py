"""Attention masks of every family: a document id and two orders for each token.

Token i attends to token j when their documents are equal and `key_order[j] <= query_order[i]`.

    bidirectional   key_order 0 0 0 0   query_order 0 0 0 0   every token attends to every token
    causal          key_order 0 1 2 3   query_order 0 1 2 3   to itself and the tokens before it
    prefix          key_order 0 0 1 2   query_order 0 0 1 2   a prefix of two tokens, then causal

Texts packed into one row differ in their document ids and in nothing else. Padding is document -1:
it attends to padding, so that no softmax is empty, and no text attends to it.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from kinfolk.packed_texts import PackedTexts, WholeRows, texts_of

PADDING_ID = -1  # the document id of padding
BLOCK_SIZE = 128  # tokens on a side of a block of FlexAttention's mask
BLOCK_QUERIES, BLOCK_KEYS = 64, 64  # tokens of a block of our own kernel
EMPTY_SLOT_ID = -2  # the document id of a cache slot that holds nothing yet


@dataclass(frozen=True, eq=False)
class SequenceOffsets:
    """The documents of all rows as sequences in one stream of tokens, for varlen attention.

    Padding of a row is a sequence too. Their number is rounded up to a power of two by empty ones,
    so that batches have few shapes.
    """

    cu_seqlens: Tensor  # (sequences + 1,), int32: the start of each, and the end of the last
    max_seqlen: int  # the length of a row
    causal: bool  # otherwise bidirectional

    @classmethod
    def of(cls, mask: "AttentionMask") -> "SequenceOffsets | None":
        """Find the documents of a mask; None if it is neither causal nor bidirectional in them.

        Where the mask is on an accelerator, wait for it.
        """
        ids, order = mask.document_ids, mask.key_order
        if not torch.equal(order, mask.query_order):
            return None
        begins = torch.ones_like(ids, dtype=torch.bool)
        begins[:, 1:] = ids[:, 1:] != ids[:, :-1]
        steps = (order[:, 1:] - order[:, :-1])[~begins[:, 1:] & (ids[:, 1:] >= 0)]
        causal = bool((steps == 1).all())
        if not causal and bool((steps != 0).any()):
            return None
        starts = begins.flatten().nonzero()[:, 0]
        count = 1 << (len(starts) - 1).bit_length()
        offsets = starts.new_full((count + 1,), ids.numel(), dtype=torch.int32)
        offsets[: len(starts)] = starts
        return cls(offsets, ids.shape[1], causal)


@dataclass(frozen=True, eq=False)
class AttentionMask:
    """The tokens that each token attends to: three integers per token, each (batch, length)."""

    document_ids: Tensor
    key_order: Tensor
    query_order: Tensor
    # Set where each row is one text without padding: the kernels need no mask then.
    unpacked: Literal["bidirectional", "causal"] | None = None
    # Set by `with_block_masks`: the same mask, for a block-sparse kernel.
    block_mask: "SparseMask | None" = None
    window_block_masks: Mapping[int, "SparseMask"] = field(default_factory=dict)  # by window
    # Set by `with_texts`: the order in which recurrent layers read these documents.
    texts: WholeRows | PackedTexts | None = None
    # Set by `with_sequence_offsets` where each token attends to its document, causally or not.
    sequences: SequenceOffsets | None = None

    @classmethod
    def bidirectional(cls, document_ids: Tensor, *, unpacked: bool = False) -> "AttentionMask":
        """Let every token attend to its whole document."""
        order = torch.zeros_like(document_ids)
        return cls(document_ids, order, order, "bidirectional" if unpacked else None)

    @classmethod
    def causal(
        cls, document_ids: Tensor, *, start: int = 0, unpacked: bool = False
    ) -> "AttentionMask":
        """Let every token attend to itself and to the tokens before it in its document."""
        length = document_ids.shape[1]
        order = torch.arange(
            start, start + length, device=document_ids.device, dtype=document_ids.dtype
        )
        order = order.expand_as(document_ids)
        return cls(document_ids, order, order, "causal" if unpacked else None)

    def select(self, tokens: slice) -> "AttentionMask":
        """Return the mask of some of the tokens, without block masks."""
        return AttentionMask(
            self.document_ids[:, tokens],
            self.key_order[:, tokens],
            self.query_order[:, tokens],
            self.unpacked,
        )

    def with_block_masks(
        self, windows: Collection[int] = (), kernel: "SparseKernel" = "flex"
    ) -> "AttentionMask":
        """Compute the block mask of a kernel, and that of each window.

        It must happen outside of compiled code: inside, torch 2.11 computes them wrongly.
        """
        whole = None if self.unpacked or self.sequences else sparse_mask(kernel, self, self)
        banded = {window: sparse_mask(kernel, self, self, window) for window in windows}
        return replace(self, block_mask=whole, window_block_masks=banded)

    def with_sequence_offsets(self) -> "AttentionMask":
        """Find the documents for the kernel of varlen attention, if it can compute this mask."""
        return self if self.unpacked else replace(self, sequences=SequenceOffsets.of(self))

    def with_texts(self) -> "AttentionMask":
        """Find the texts for recurrent layers; where the mask is on an accelerator, wait for it."""
        return self if self.texts else replace(self, texts=self.find_texts())

    def find_texts(self) -> WholeRows | PackedTexts:
        """Return the order in which recurrent layers read the documents."""
        if self.texts is not None:
            return self.texts
        return WholeRows() if self.unpacked else texts_of(self.document_ids)

    def for_targets(self, positions: Tensor) -> "AttentionMask":
        """Return the mask of XLNet's query stream at target positions, (batch, query).

        A target attends to the tokens before it in the order, not to the token it predicts.
        """
        document_ids, key_order = (
            x.gather(1, positions) for x in (self.document_ids, self.key_order)
        )
        return AttentionMask(document_ids, key_order, key_order - 1)

    def dense(self, keys: "AttentionMask | None" = None, window: int | None = None) -> Tensor:
        """Return the mask as (batch, query, key), true where the query attends to the key."""
        keys = keys or self
        mask = self.document_ids[:, :, None] == keys.document_ids[:, None, :]
        mask = mask & (keys.key_order[:, None, :] <= self.query_order[:, :, None])
        if window is not None:
            mask = mask & (self.query_order[:, :, None] - keys.key_order[:, None, :] < window)
        return mask


@dataclass(frozen=True, eq=False)
class BlockRanges:
    """A mask for the kernels of `nn/block_sparse.py`: what each block of a row attends to.

    Blocks of keys between the first and the last that a block of queries sees are read; the tokens
    of a block are compared one by one.
    """

    query_ids: Tensor  # (batch, queries), int32, like the next three
    query_order: Tensor
    key_ids: Tensor  # (batch, keys)
    key_order: Tensor
    key_ranges: Tensor  # (batch, blocks of queries, 2), int32: the first block of keys, and the end
    query_ranges: Tensor  # (batch, blocks of keys, 2), int32
    window: int | None = None
    block_queries: int = BLOCK_QUERIES
    block_keys: int = BLOCK_KEYS

    @classmethod
    def of(
        cls,
        query: AttentionMask,
        key: AttentionMask,
        window: int | None = None,
        *,
        block_queries: int = BLOCK_QUERIES,
        block_keys: int = BLOCK_KEYS,
    ) -> "BlockRanges":
        """Find the ranges of a mask from the bounds of each block."""
        found, _ = compare_bounds(query, key, window, block_queries, block_keys)
        return cls(
            query_ids=query.document_ids.to(torch.int32).contiguous(),
            query_order=query.query_order.to(torch.int32).contiguous(),
            key_ids=key.document_ids.to(torch.int32).contiguous(),
            key_order=key.key_order.to(torch.int32).contiguous(),
            key_ranges=_block_range(found),
            query_ranges=_block_range(found.transpose(1, 2)),
            window=window,
            block_queries=block_queries,
            block_keys=block_keys,
        )


SparseMask = BlockMask | BlockRanges
SparseKernel = Literal["flex", "triton"]


def sparse_mask(
    kernel: SparseKernel, query: AttentionMask, key: AttentionMask, window: int | None = None
) -> SparseMask:
    """Return a mask as a block-sparse kernel reads it."""
    find = BlockRanges.of if kernel == "triton" else block_mask_from_bounds
    return find(query, key, window)


class AttentionBackend(Protocol):
    """Attention under one mask: chosen once per forward pass and called by every layer."""

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
        """Attend: (batch, heads, query, head_dim) in and out.

        `bias` is added to the scaled scores of one layer: (batch, heads, query, key).
        """
        ...


def block_mask_from_bounds(
    query: AttentionMask, key: AttentionMask, window: int | None = None
) -> BlockMask:
    """Find the partly and the fully visible blocks of a mask from the bounds of each block.

    `create_block_mask` of torch evaluates every pair of tokens. Here bounds are compared for every
    pair of blocks, a thousandth of the work; at worst a listed block has no visible pair.
    """
    partial, full = compare_bounds(query, key, window, BLOCK_SIZE, BLOCK_SIZE)
    queries, keys = query.document_ids.shape[1], key.document_ids.shape[1]
    return BlockMask.from_kv_blocks(
        *_block_lists(partial & ~full),
        *_block_lists(full),
        BLOCK_SIZE=BLOCK_SIZE,
        mask_mod=_mask_mod(query, key, window),
        seq_lengths=(queries, keys),
    )


def compare_bounds(
    query: AttentionMask,
    key: AttentionMask,
    window: int | None,
    block_queries: int,
    block_keys: int,
) -> tuple[Tensor, Tensor]:
    """Return which blocks may have a visible pair, and which have no other: (batch, q, k)."""
    # Least and greatest value of each block: (batch, query blocks, 1) and (batch, 1, key blocks).
    query_ids, query_order = (
        [x[:, :, None] for x in _block_min_max(values, block_queries)]
        for values in (_increasing(query.document_ids), query.query_order)
    )
    key_ids, key_order = (
        [x[:, None] for x in _block_min_max(values, block_keys)]
        for values in (_increasing(key.document_ids), key.key_order)
    )
    partial = (query_ids[0] <= key_ids[1]) & (key_ids[0] <= query_ids[1])
    partial &= key_order[0] <= query_order[1]
    full = (query_ids[0] == query_ids[1]) & (key_ids[0] == key_ids[1])
    full &= (query_ids[0] == key_ids[0]) & (key_order[1] <= query_order[0])
    if window is not None:
        partial &= query_order[0] - key_order[1] < window
        full &= query_order[1] - key_order[0] < window
    # A block that extends past the end of its row is never full.
    full[:, query.document_ids.shape[1] // block_queries :] = False
    full[:, :, key.document_ids.shape[1] // block_keys :] = False
    return partial, full


def _block_range(found: Tensor) -> Tensor:
    """Return the first block that is found in each line, and the one after the last: (..., 2)."""
    numbers = torch.arange(found.shape[-1], device=found.device)
    last = torch.where(found, numbers + 1, 0).amax(-1)
    first = torch.where(found, numbers, found.shape[-1]).amin(-1).minimum(last)
    return torch.stack([first, last], -1).to(torch.int32)


def _increasing(document_ids: Tensor) -> Tensor:
    """Number padding and empty slots after the documents, so that the ids increase along a row."""
    return torch.where(document_ids < 0, 2**30 - document_ids, document_ids)


def _block_min_max(x: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Return the least and the greatest value of each block, both (batch, blocks)."""
    over = -x.shape[1] % size
    if over:
        x = torch.cat([x, x[:, -1:].expand(-1, over)], dim=1)
    blocks = x.reshape(x.shape[0], -1, size)
    return blocks.amin(2), blocks.amax(2)


def _block_lists(chosen: Tensor) -> tuple[Tensor, Tensor]:
    """Return the number of chosen key blocks per query block, and all key blocks, these first."""
    counts = chosen.sum(-1, dtype=torch.int32)
    order = torch.argsort((~chosen).to(torch.int32), dim=-1, stable=True).to(torch.int32)
    return counts[:, None], order[:, None].contiguous()  # (batch, 1, query blocks, key blocks)


def _mask_mod(query: AttentionMask, key: AttentionMask, window: int | None):  # type: ignore[no-untyped-def]  # flex's
    def mask_mod(batch: Tensor, head: Tensor, i: Tensor, j: Tensor) -> Tensor:
        same = query.document_ids[batch, i] == key.document_ids[batch, j]
        key_order, query_order = key.key_order[batch, j], query.query_order[batch, i]
        mask = same & (key_order <= query_order)
        return mask if window is None else mask & (query_order - key_order < window)

    return mask_mod
