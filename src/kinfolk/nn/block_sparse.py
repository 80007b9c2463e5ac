"""Triton kernels of attention in packed rows on CUDA, forward and backward.

Token i attends to token j when their documents are equal and `key_order[j] <= query_order[i]`: the
masks of all families (`attention_mask.py`). A block of queries reads the blocks of keys from the
first to the last that it attends to, which are few, because documents lie side by side. The tokens
of a block are compared one by one, by two integers each, so that short documents cost little.

Flash attention (Dao et al. 2022; Dao 2023): the softmax is summed block by block, and the backward
pass computes the scores again from the log of its sum. Sums have a fixed order.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from kinfolk.attention_mask import BlockRanges

LOG2_E = 1.4426950408889634
WARPS, STAGES, KEY_GRADIENT_STAGES = 4, 1, 2  # the fastest of those tried on an H200


@triton.jit
def place_of(blocks, heads):
    """Return the block, the row of the batch and the head of this program: blocks first."""
    pair = tl.program_id(0) // blocks
    return tl.program_id(0) % blocks, (pair // heads).to(tl.int64), (pair % heads).to(tl.int64)


@triton.jit
def visible_pairs(query_id, query_place, key_id, key_place, window, has_window: tl.constexpr):
    """Return which queries attend to which keys: (queries, keys) if queries come as a column."""
    found = (query_id == key_id) & (key_place <= query_place)
    if has_window:
        found = found & (query_place - key_place < window)
    return found


@triton.jit
def forward_kernel(
    query,
    key,
    value,
    out,
    log_sums,
    query_ids,
    query_order,
    key_ids,
    key_order,
    key_ranges,
    query_batch,
    query_row,
    query_head,
    key_batch,
    key_row,
    key_head,
    value_batch,
    value_row,
    value_head,
    queries,
    keys,
    heads,
    blocks,
    window,
    log2_scale: tl.constexpr,
    has_window: tl.constexpr,
    size: tl.constexpr,
    block_q: tl.constexpr,
    block_k: tl.constexpr,
):
    """Attend with one block of queries of one head; write the logs of the sums, to base 2."""
    number, batch, head = place_of(blocks, heads)
    row = number * block_q + tl.arange(0, block_q)
    feature = tl.arange(0, size)
    valid_row = row < queries
    q_pointer = query + batch * query_batch + head * query_head
    q = tl.load(
        q_pointer + row[:, None] * query_row + feature[None, :], mask=valid_row[:, None], other=0.0
    )
    row_id = tl.load(query_ids + batch * queries + row, mask=valid_row, other=-3)
    row_place = tl.load(query_order + batch * queries + row, mask=valid_row, other=0)
    k_pointer = key + batch * key_batch + head * key_head
    v_pointer = value + batch * value_batch + head * value_head
    highest = tl.full((block_q,), float("-inf"), tl.float32)
    mass = tl.zeros((block_q,), tl.float32)
    total = tl.zeros((block_q, size), tl.float32)
    bounds = key_ranges + 2 * (batch * blocks + number)
    first, last = tl.load(bounds), tl.load(bounds + 1)
    for block in range(first, last):
        column = block * block_k + tl.arange(0, block_k)
        valid_column = column < keys
        at = column[:, None] * key_row + feature[None, :]
        k = tl.load(k_pointer + at, mask=valid_column[:, None], other=0.0)
        at = column[:, None] * value_row + feature[None, :]
        v = tl.load(v_pointer + at, mask=valid_column[:, None], other=0.0)
        column_id = tl.load(key_ids + batch * keys + column, mask=valid_column, other=-4)
        column_place = tl.load(key_order + batch * keys + column, mask=valid_column, other=0)
        seen = visible_pairs(
            row_id[:, None],
            row_place[:, None],
            column_id[None, :],
            column_place[None, :],
            window,
            has_window,
        )
        scores = tl.where(seen, tl.dot(q, tl.trans(k)) * log2_scale, float("-inf"))
        higher = tl.maximum(highest, tl.max(scores, axis=1))
        level = tl.where(higher == float("-inf"), 0.0, higher)  # a row that sees nothing so far
        weights = tl.exp2(scores - level[:, None])
        decay = tl.exp2(highest - level)
        mass = mass * decay + tl.sum(weights, axis=1)
        total = total * decay[:, None] + tl.dot(weights.to(v.dtype), v)
        highest = higher
    level = tl.where(highest == float("-inf"), 0.0, highest)
    mass = tl.where(mass == 0.0, 1.0, mass)  # a row that sees nothing is 0
    result = total / mass[:, None]
    place = ((batch * queries + row) * heads + head)[:, None] * size + feature[None, :]
    tl.store(out + place, result.to(out.dtype.element_ty), mask=valid_row[:, None])
    place = (batch * heads + head) * queries + row
    tl.store(log_sums + place, level + tl.log2(mass), mask=valid_row)


@triton.jit
def query_gradient_kernel(
    query,
    key,
    value,
    out,
    d_out,
    log_sums,
    products,
    d_query,
    query_ids,
    query_order,
    key_ids,
    key_order,
    key_ranges,
    query_batch,
    query_row,
    query_head,
    key_batch,
    key_row,
    key_head,
    value_batch,
    value_row,
    value_head,
    d_query_batch,
    d_query_row,
    queries,
    keys,
    heads,
    blocks,
    window,
    scale: tl.constexpr,
    log2_scale: tl.constexpr,
    has_window: tl.constexpr,
    size: tl.constexpr,
    block_q: tl.constexpr,
    block_k: tl.constexpr,
):
    """Write the gradient of a block of queries, and the product of each output and gradient."""
    number, batch, head = place_of(blocks, heads)
    row = number * block_q + tl.arange(0, block_q)
    feature = tl.arange(0, size)
    valid_row = row < queries
    q_pointer = query + batch * query_batch + head * query_head
    q = tl.load(
        q_pointer + row[:, None] * query_row + feature[None, :], mask=valid_row[:, None], other=0.0
    )
    place = ((batch * queries + row) * heads + head)[:, None] * size + feature[None, :]
    result = tl.load(out + place, mask=valid_row[:, None], other=0.0)
    d_result = tl.load(d_out + place, mask=valid_row[:, None], other=0.0)
    product = tl.sum(result.to(tl.float32) * d_result.to(tl.float32), axis=1)
    place = (batch * heads + head) * queries + row
    tl.store(products + place, product, mask=valid_row)
    log_sum = tl.load(log_sums + place, mask=valid_row, other=0.0)
    row_id = tl.load(query_ids + batch * queries + row, mask=valid_row, other=-3)
    row_place = tl.load(query_order + batch * queries + row, mask=valid_row, other=0)
    k_pointer = key + batch * key_batch + head * key_head
    v_pointer = value + batch * value_batch + head * value_head
    total = tl.zeros((block_q, size), tl.float32)
    bounds = key_ranges + 2 * (batch * blocks + number)
    first, last = tl.load(bounds), tl.load(bounds + 1)
    for block in range(first, last):
        column = block * block_k + tl.arange(0, block_k)
        valid_column = column < keys
        at = column[:, None] * key_row + feature[None, :]
        k = tl.load(k_pointer + at, mask=valid_column[:, None], other=0.0)
        at = column[:, None] * value_row + feature[None, :]
        v = tl.load(v_pointer + at, mask=valid_column[:, None], other=0.0)
        column_id = tl.load(key_ids + batch * keys + column, mask=valid_column, other=-4)
        column_place = tl.load(key_order + batch * keys + column, mask=valid_column, other=0)
        seen = visible_pairs(
            row_id[:, None],
            row_place[:, None],
            column_id[None, :],
            column_place[None, :],
            window,
            has_window,
        )
        scores = tl.dot(q, tl.trans(k)) * log2_scale - log_sum[:, None]
        weights = tl.exp2(tl.where(seen, scores, float("-inf")))
        d_weights = tl.dot(d_result, tl.trans(v))
        d_scores = weights * (d_weights - product[:, None])
        total += tl.dot(d_scores.to(k.dtype), k)
    place = batch * d_query_batch + row[:, None] * d_query_row + head * size + feature[None, :]
    total = (total * scale).to(d_query.dtype.element_ty)
    tl.store(d_query + place, total, mask=valid_row[:, None])


@triton.jit
def key_gradient_kernel(
    query,
    key,
    value,
    d_out,
    log_sums,
    products,
    d_key,
    d_value,
    query_ids,
    query_order,
    key_ids,
    key_order,
    query_ranges,
    query_batch,
    query_row,
    query_head,
    key_batch,
    key_row,
    key_head,
    value_batch,
    value_row,
    value_head,
    d_key_batch,
    d_key_row,
    queries,
    keys,
    heads,
    blocks,
    window,
    scale: tl.constexpr,
    log2_scale: tl.constexpr,
    has_window: tl.constexpr,
    together: tl.constexpr,
    size: tl.constexpr,
    block_q: tl.constexpr,
    block_k: tl.constexpr,
):
    """Write the gradients of a block of keys and values; scores are (keys, queries) here.

    `together`: `d_key` has room for the gradients of queries, keys and values, in this order.
    """
    number, batch, head = place_of(blocks, heads)
    column = number * block_k + tl.arange(0, block_k)
    feature = tl.arange(0, size)
    valid_column = column < keys
    k_pointer = key + batch * key_batch + head * key_head
    v_pointer = value + batch * value_batch + head * value_head
    place = column[:, None] * key_row + feature[None, :]
    k = tl.load(k_pointer + place, mask=valid_column[:, None], other=0.0)
    place = column[:, None] * value_row + feature[None, :]
    v = tl.load(v_pointer + place, mask=valid_column[:, None], other=0.0)
    column_id = tl.load(key_ids + batch * keys + column, mask=valid_column, other=-4)
    column_place = tl.load(key_order + batch * keys + column, mask=valid_column, other=0)
    q_pointer = query + batch * query_batch + head * query_head
    d_k = tl.zeros((block_k, size), tl.float32)
    d_v = tl.zeros((block_k, size), tl.float32)
    bounds = query_ranges + 2 * (batch * blocks + number)
    first, last = tl.load(bounds), tl.load(bounds + 1)
    for block in range(first, last):
        row = block * block_q + tl.arange(0, block_q)
        valid_row = row < queries
        at = row[:, None] * query_row + feature[None, :]
        q = tl.load(q_pointer + at, mask=valid_row[:, None], other=0.0)
        at = ((batch * queries + row) * heads + head)[:, None] * size + feature[None, :]
        d_result = tl.load(d_out + at, mask=valid_row[:, None], other=0.0)
        at = (batch * heads + head) * queries + row
        log_sum = tl.load(log_sums + at, mask=valid_row, other=0.0)
        product = tl.load(products + at, mask=valid_row, other=0.0)
        row_id = tl.load(query_ids + batch * queries + row, mask=valid_row, other=-3)
        row_place = tl.load(query_order + batch * queries + row, mask=valid_row, other=0)
        seen = visible_pairs(
            row_id[None, :],
            row_place[None, :],
            column_id[:, None],
            column_place[:, None],
            window,
            has_window,
        )
        scores = tl.dot(k, tl.trans(q)) * log2_scale - log_sum[None, :]
        weights = tl.exp2(tl.where(seen, scores, float("-inf")))
        d_v += tl.dot(weights.to(d_result.dtype), d_result)
        d_weights = tl.dot(v, tl.trans(d_result))
        d_scores = weights * (d_weights - product[None, :])
        d_k += tl.dot(d_scores.to(q.dtype), q)
    place = batch * d_key_batch + column[:, None] * d_key_row + head * size + feature[None, :]
    d_k = (d_k * scale).to(d_key.dtype.element_ty)
    d_v = d_v.to(d_key.dtype.element_ty)
    if together:
        tl.store(d_key + place + heads * size, d_k, mask=valid_column[:, None])
        tl.store(d_key + place + 2 * heads * size, d_v, mask=valid_column[:, None])
    else:
        tl.store(d_key + place, d_k, mask=valid_column[:, None])
        tl.store(d_value + place, d_v, mask=valid_column[:, None])


def separate(query: Tensor, key: Tensor | None, value: Tensor | None) -> tuple[Tensor, ...]:
    """Return queries, keys and values: as given, or the parts of the first."""
    if key is None or value is None:
        return query.unbind(2)
    return query, key, value


def strides(*tensors: Tensor) -> list[int]:
    """Return the strides of batch, row and head of each (batch, length, heads, head_dim)."""
    return [x.stride(axis) for x in tensors for axis in range(3)]


@torch.library.triton_op("kinfolk::block_sparse", mutates_args={})
def block_sparse(
    query: Tensor,
    key: Tensor | None,
    value: Tensor | None,
    query_ids: Tensor,
    query_order: Tensor,
    key_ids: Tensor,
    key_order: Tensor,
    key_ranges: Tensor,
    query_ranges: Tensor,
    scale: float,
    window: int,
    block_q: int,
    block_k: int,
) -> tuple[Tensor, Tensor]:
    """Return the output, (batch, length, heads, head_dim), and the logs of the sums, to base 2."""
    q, k, v = separate(query, key, value)
    batch, queries, heads, size = q.shape
    out = q.new_empty(batch, queries, heads, size)
    log_sums = q.new_empty(batch, heads, queries, dtype=torch.float32)
    blocks = key_ranges.shape[1]
    torch.library.wrap_triton(forward_kernel)[(blocks * batch * heads,)](
        q,
        k,
        v,
        out,
        log_sums,
        query_ids,
        query_order,
        key_ids,
        key_order,
        key_ranges,
        *strides(q, k, v),
        queries,
        k.shape[1],
        heads,
        blocks,
        window,
        log2_scale=scale * LOG2_E,
        has_window=window > 0,
        size=size,
        block_q=block_q,
        block_k=block_k,
        num_warps=WARPS,
        num_stages=STAGES,
    )
    return out, log_sums


@torch.library.triton_op("kinfolk::block_sparse_backward", mutates_args={})
def block_sparse_backward(
    d_out: Tensor,
    query: Tensor,
    key: Tensor | None,
    value: Tensor | None,
    out: Tensor,
    log_sums: Tensor,
    query_ids: Tensor,
    query_order: Tensor,
    key_ids: Tensor,
    key_order: Tensor,
    key_ranges: Tensor,
    query_ranges: Tensor,
    scale: float,
    window: int,
    block_q: int,
    block_k: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of queries, keys and values; the first has all if the query had."""
    q, k, v = separate(query, key, value)
    batch, queries, heads, size = q.shape
    keys, together = k.shape[1], key is None
    d_out = d_out.contiguous()
    d_query = query.new_empty(query.shape)
    d_key = d_value = products = torch.empty_like(log_sums)
    if not together:
        d_key, d_value = (k.new_empty(batch, keys, heads, size) for _ in range(2))
    masks = (query_ids, query_order, key_ids, key_order)
    blocks = key_ranges.shape[1]
    torch.library.wrap_triton(query_gradient_kernel)[(blocks * batch * heads,)](
        q,
        k,
        v,
        out,
        d_out,
        log_sums,
        products,
        d_query,
        *masks,
        key_ranges,
        *strides(q, k, v),
        d_query.stride(0),
        d_query.stride(1),
        queries,
        keys,
        heads,
        blocks,
        window,
        scale=scale,
        log2_scale=scale * LOG2_E,
        has_window=window > 0,
        size=size,
        block_q=block_q,
        block_k=block_k,
        num_warps=WARPS,
        num_stages=STAGES,
    )
    blocks = query_ranges.shape[1]
    written = d_query if together else d_key
    torch.library.wrap_triton(key_gradient_kernel)[(blocks * batch * heads,)](
        q,
        k,
        v,
        d_out,
        log_sums,
        products,
        written,
        d_value,
        *masks,
        query_ranges,
        *strides(q, k, v),
        written.stride(0),
        written.stride(1),
        queries,
        keys,
        heads,
        blocks,
        window,
        scale=scale,
        log2_scale=scale * LOG2_E,
        has_window=window > 0,
        together=together,
        size=size,
        block_q=block_q,
        block_k=block_k,
        num_warps=WARPS,
        num_stages=KEY_GRADIENT_STAGES,
    )
    if together:
        return d_query, d_query.new_empty(0), d_query.new_empty(0)
    return d_query, d_key, d_value


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    query, key, value, *masks = inputs[:9]
    ctx.save_for_backward(query, key, value, *output, *masks)
    ctx.settings = inputs[9:]


def _differentiate(ctx: Any, d_out: Tensor, d_log_sums: Tensor) -> tuple[Tensor | None, ...]:
    saved = ctx.saved_tensors  # read once: activation checkpointing computes them again
    found = block_sparse_backward(d_out, *saved, *ctx.settings)
    if saved[1] is None:
        return found[0], *[None] * 12
    return *found, *[None] * 10


block_sparse.register_autograd(_differentiate, setup_context=_save)


def attend(
    query: Tensor, key: Tensor | None, value: Tensor | None, ranges: BlockRanges, scale: float
) -> Tensor:
    """Attend: (batch, length, heads, head_dim) in and out, the features of a head side by side.

    Without key and value `query` has all three, (batch, length, 3, heads, head_dim), and so has its
    gradient, which is then written in one piece.
    """
    out, _ = block_sparse(
        query,
        key,
        value,
        ranges.query_ids,
        ranges.query_order,
        ranges.key_ids,
        ranges.key_order,
        ranges.key_ranges,
        ranges.query_ranges,
        scale,
        ranges.window or 0,
        ranges.block_queries,
        ranges.block_keys,
    )
    return out
