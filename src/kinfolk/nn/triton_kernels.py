"""Triton kernels for decoding on CUDA, where each row is one token.

The libraries' kernels are made for many rows. For a single one, these read a matrix in half the
time, and attention reads only blocks of cache slots with a visible key. Both add in a fixed order,
so that a seed always gives the same text.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

HALF_DTYPES = (torch.bfloat16, torch.float16)
ROWS_PER_PROGRAM = 4  # rows of the matrix for each program
MAX_ROWS = 16_384  # of a matrix: the libraries' kernels are faster for larger ones
KEYS_PER_BLOCK = 32  # that attention reads together


# Triton reads its kernels' annotations itself: all but the constants must stay without.
@triton.jit  # type: ignore[untyped-decorator]
def matvec_kernel(  # type: ignore[no-untyped-def]
    x, weight, bias, out, rows, width, each: tl.constexpr, step: tl.constexpr, biased: tl.constexpr
):
    """Multiply `each` rows of the matrix, `step` columns at a time, in float32."""
    row = tl.program_id(0) * each + tl.arange(0, each)
    inside = row < rows
    total = tl.zeros((each, step), dtype=tl.float32)
    for start in range(0, width, step):
        column = start + tl.arange(0, step)
        there = column < width
        vector = tl.load(x + column, mask=there, other=0.0).to(tl.float32)
        block = tl.load(
            weight + row.to(tl.int64)[:, None] * width + column[None, :],
            mask=inside[:, None] & there[None, :],
            other=0.0,
        )
        total += block.to(tl.float32) * vector[None, :]
    found = tl.sum(total, axis=1)
    if biased:
        found += tl.load(bias + row, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row, found.to(out.dtype.element_ty), mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def decode_attention_kernel(  # type: ignore[no-untyped-def]
    query,
    key,
    value,
    mask,
    parts,
    tops,
    totals,
    scale,
    heads,
    keys,
    width,
    query_row,
    query_head,
    key_row,
    key_head,
    key_slot,
    value_row,
    value_head,
    value_slot,
    mask_row,
    mask_head,
    written: tl.constexpr,
    slots: tl.constexpr,
    step: tl.constexpr,
):
    """Attend with one query of one head to one block; a block without a visible key is skipped."""
    row = (tl.program_id(0) // heads).to(tl.int64)
    head = (tl.program_id(0) % heads).to(tl.int64)
    part = tl.program_id(0) * tl.num_programs(1) + tl.program_id(1)
    slot = tl.program_id(1) * slots + tl.arange(0, slots)
    inside = slot < keys
    at = mask + row * mask_row + head * mask_head + slot
    if written:  # a bias is in it
        bias = tl.load(at, mask=inside, other=float("-inf")).to(tl.float32)
    else:
        bias = tl.where(tl.load(at, mask=inside, other=0) != 0, 0.0, float("-inf"))
    top = tl.max(bias, axis=0)
    if top > float("-inf"):
        column = tl.arange(0, step)
        there = column < width
        block = inside[:, None] & there[None, :]
        keyed = key + row * key_row + head * key_head + slot[:, None] * key_slot
        valued = value + row * value_row + head * value_head + slot[:, None] * value_slot
        near = tl.load(keyed + column[None, :], mask=block, other=0.0).to(tl.float32)
        said = tl.load(valued + column[None, :], mask=block, other=0.0).to(tl.float32)
        asked = tl.load(query + row * query_row + head * query_head + column, mask=there, other=0.0)
        asked = (asked.to(tl.float32) * scale).to(tl.float32)
        score = tl.sum(near * asked[None, :], axis=1) + bias
        top = tl.max(score, axis=0)
        share = tl.exp(score - top)
        found = tl.sum(share[:, None] * said, axis=0)
        tl.store(parts + part.to(tl.int64) * step + column, found)
        tl.store(totals + part, tl.sum(share, axis=0))
    tl.store(tops + part, top)


@triton.jit  # type: ignore[untyped-decorator]
def combine_kernel(  # type: ignore[no-untyped-def]
    parts, tops, totals, out, width, blocks, most: tl.constexpr, step: tl.constexpr
):
    """Combine the partial results of one query over all blocks."""
    block = tl.arange(0, most)
    first = tl.program_id(0).to(tl.int64) * blocks
    top = tl.load(tops + first + block, mask=block < blocks, other=float("-inf"))
    seen = top > float("-inf")
    weight = tl.where(seen, tl.exp(top - tl.max(top, axis=0)), 0.0)
    total = tl.sum(weight * tl.load(totals + first + block, mask=seen, other=0.0), axis=0)
    column = tl.arange(0, step)
    at = parts + (first + block)[:, None] * step + column[None, :]
    said = tl.load(at, mask=seen[:, None], other=0.0)
    found = tl.sum(weight[:, None] * said, axis=0) / total
    place = out + tl.program_id(0).to(tl.int64) * width + column
    tl.store(place, found.to(out.dtype.element_ty), mask=column < width)


def can_matvec(x: Tensor, weight: Tensor) -> bool:
    """Whether the product is of one row in half precision, without gradients."""
    one = x.is_cuda and x.numel() == x.shape[-1] and len(weight) <= MAX_ROWS
    return (
        one and x.dtype in HALF_DTYPES and weight.dtype == x.dtype and not torch.is_grad_enabled()
    )


@torch.library.triton_op("kinfolk::product", mutates_args={})
def matvec(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Multiply one row with a matrix, (rows, width): (..., rows)."""
    rows, width = weight.shape
    out = x.new_empty(*x.shape[:-1], rows)
    torch.library.wrap_triton(matvec_kernel)[(triton.cdiv(rows, ROWS_PER_PROGRAM),)](
        x,
        weight,
        weight if bias is None else bias,
        out,
        rows,
        width,
        each=ROWS_PER_PROGRAM,
        step=min(triton.next_power_of_2(width), 1024),
        biased=bias is not None,
        num_warps=4,
    )
    return out


def can_decode_attention(query: Tensor, key: Tensor) -> bool:
    """Whether there is one query a row, without gradients."""
    one = query.is_cuda and query.shape[2] == 1 and query.shape[3] <= 256
    near = key.stride(3) == 1 and query.stride(3) == 1
    return one and near and not torch.is_grad_enabled()


@torch.library.triton_op("kinfolk::attend", mutates_args={})
def decode_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scale: float
) -> Tensor:
    """Attend with one query a row: (batch, heads, 1, head_dim) in and out."""
    batch, heads, _, width = query.shape
    keys, step = key.shape[2], triton.next_power_of_2(width)
    mask = mask.expand(batch, heads, 1, keys)
    blocks = triton.cdiv(keys, KEYS_PER_BLOCK)
    tops = query.new_empty(batch * heads, blocks, dtype=torch.float32)
    totals = torch.empty_like(tops)
    parts = query.new_empty(batch * heads, blocks, step, dtype=torch.float32)
    out = query.new_empty(batch, heads, 1, width)
    torch.library.wrap_triton(decode_attention_kernel)[(batch * heads, blocks)](
        query,
        key,
        value,
        mask,
        parts,
        tops,
        totals,
        scale,
        heads,
        keys,
        width,
        query.stride(0),
        query.stride(1),
        key.stride(0),
        key.stride(1),
        key.stride(2),
        value.stride(0),
        value.stride(1),
        value.stride(2),
        mask.stride(0),
        mask.stride(1),
        written=mask.dtype != torch.bool,
        slots=KEYS_PER_BLOCK,
        step=step,
        num_warps=1,
    )
    torch.library.wrap_triton(combine_kernel)[(batch * heads,)](
        parts,
        tops,
        totals,
        out,
        width,
        blocks,
        most=triton.next_power_of_2(blocks),
        step=step,
        num_warps=1,
    )
    return out
