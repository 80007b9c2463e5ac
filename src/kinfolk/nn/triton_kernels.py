"""Triton kernels for decoding on CUDA, where each row is one token.

The kernels of the libraries are optimized for many rows. For a single row, these read a matrix in
half the time, and attention reads only blocks of cache slots with a visible key. Both sum in a
fixed order, so that generation is deterministic for a seed.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

HALF_DTYPES = (torch.bfloat16, torch.float16)
ROWS_PER_PROGRAM = 4  # rows of the matrix for each program
MAX_MATRIX_ROWS = 16_384  # of a matrix: the libraries' kernels are faster for larger ones
KEYS_PER_BLOCK = 32  # that attention reads together


# Triton interprets annotations: only the constants of a kernel may have one.
@triton.jit
def matvec_kernel(
    x,
    weight,
    bias,
    out,
    rows,
    width,
    block_rows: tl.constexpr,
    step: tl.constexpr,
    has_bias: tl.constexpr,
):
    """Multiply `block_rows` rows of the matrix, `step` columns at a time, in float32."""
    row = tl.program_id(0) * block_rows + tl.arange(0, block_rows)
    valid_row = row < rows
    total = tl.zeros((block_rows, step), dtype=tl.float32)
    for start in range(0, width, step):
        column = start + tl.arange(0, step)
        valid_column = column < width
        vector = tl.load(x + column, mask=valid_column, other=0.0).to(tl.float32)
        block = tl.load(
            weight + row.to(tl.int64)[:, None] * width + column[None, :],
            mask=valid_row[:, None] & valid_column[None, :],
            other=0.0,
        )
        total += block.to(tl.float32) * vector[None, :]
    result = tl.sum(total, axis=1)
    if has_bias:
        result += tl.load(bias + row, mask=valid_row, other=0.0).to(tl.float32)
    tl.store(out + row, result.to(out.dtype.element_ty), mask=valid_row)


@triton.jit
def decode_attention_kernel(
    query,
    key,
    value,
    mask,
    partial_outputs,
    maxima,
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
    additive: tl.constexpr,
    slots: tl.constexpr,
    step: tl.constexpr,
):
    """Attend with one query of one head to one block; a block without a visible key is skipped."""
    row = (tl.program_id(0) // heads).to(tl.int64)
    head = (tl.program_id(0) % heads).to(tl.int64)
    part = tl.program_id(0) * tl.num_programs(1) + tl.program_id(1)
    slot = tl.program_id(1) * slots + tl.arange(0, slots)
    valid_slot = slot < keys
    mask_pointer = mask + row * mask_row + head * mask_head + slot
    if additive:
        bias = tl.load(mask_pointer, mask=valid_slot, other=float("-inf")).to(tl.float32)
    else:
        visible = tl.load(mask_pointer, mask=valid_slot, other=0) != 0
        bias = tl.where(visible, 0.0, float("-inf"))
    maximum = tl.max(bias, axis=0)
    if maximum > float("-inf"):
        column = tl.arange(0, step)
        valid_column = column < width
        valid = valid_slot[:, None] & valid_column[None, :]
        key_pointer = key + row * key_row + head * key_head + slot[:, None] * key_slot
        value_pointer = value + row * value_row + head * value_head + slot[:, None] * value_slot
        query_pointer = query + row * query_row + head * query_head + column
        k = tl.load(key_pointer + column[None, :], mask=valid, other=0.0).to(tl.float32)
        v = tl.load(value_pointer + column[None, :], mask=valid, other=0.0).to(tl.float32)
        q = tl.load(query_pointer, mask=valid_column, other=0.0)
        q = (q.to(tl.float32) * scale).to(tl.float32)
        score = tl.sum(k * q[None, :], axis=1) + bias
        maximum = tl.max(score, axis=0)
        weight = tl.exp(score - maximum)
        output = tl.sum(weight[:, None] * v, axis=0)
        tl.store(partial_outputs + part.to(tl.int64) * step + column, output)
        tl.store(totals + part, tl.sum(weight, axis=0))
    tl.store(maxima + part, maximum)


@triton.jit
def combine_kernel(
    partial_outputs,
    maxima,
    totals,
    out,
    width,
    blocks,
    max_blocks: tl.constexpr,
    step: tl.constexpr,
):
    """Combine the partial outputs of one query over all blocks."""
    block = tl.arange(0, max_blocks)
    first = tl.program_id(0).to(tl.int64) * blocks
    maximum = tl.load(maxima + first + block, mask=block < blocks, other=float("-inf"))
    visible = maximum > float("-inf")
    weight = tl.where(visible, tl.exp(maximum - tl.max(maximum, axis=0)), 0.0)
    total = tl.sum(weight * tl.load(totals + first + block, mask=visible, other=0.0), axis=0)
    column = tl.arange(0, step)
    partial_pointer = partial_outputs + (first + block)[:, None] * step + column[None, :]
    partial = tl.load(partial_pointer, mask=visible[:, None], other=0.0)
    output = tl.sum(weight[:, None] * partial, axis=0) / total
    out_pointer = out + tl.program_id(0).to(tl.int64) * width + column
    tl.store(out_pointer, output.to(out.dtype.element_ty), mask=column < width)


def can_matvec(x: Tensor, weight: Tensor) -> bool:
    """Return whether `matvec` supports a product: one row in half precision, no gradients."""
    single_row = x.is_cuda and x.numel() == x.shape[-1] and len(weight) <= MAX_MATRIX_ROWS
    same_dtype = x.dtype in HALF_DTYPES and weight.dtype == x.dtype
    return single_row and same_dtype and not torch.is_grad_enabled()


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
        block_rows=ROWS_PER_PROGRAM,
        step=min(triton.next_power_of_2(width), 1024),
        has_bias=bias is not None,
        num_warps=4,
    )
    return out


def can_decode_attention(query: Tensor, key: Tensor) -> bool:
    """Return whether `decode_attention` supports this: one query per row, no gradients."""
    single_query = query.is_cuda and query.shape[2] == 1 and query.shape[3] <= 256
    contiguous = key.stride(3) == 1 and query.stride(3) == 1
    return single_query and contiguous and not torch.is_grad_enabled()


@torch.library.triton_op("kinfolk::attend", mutates_args={})
def decode_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scale: float
) -> Tensor:
    """Attend with one query per row: (batch, heads, 1, head_dim) in and out."""
    batch, heads, _, width = query.shape
    keys, step = key.shape[2], triton.next_power_of_2(width)
    mask = mask.expand(batch, heads, 1, keys)
    blocks = triton.cdiv(keys, KEYS_PER_BLOCK)
    maxima = query.new_empty(batch * heads, blocks, dtype=torch.float32)
    totals = torch.empty_like(maxima)
    partial_outputs = query.new_empty(batch * heads, blocks, step, dtype=torch.float32)
    out = query.new_empty(batch, heads, 1, width)
    torch.library.wrap_triton(decode_attention_kernel)[(batch * heads, blocks)](
        query,
        key,
        value,
        mask,
        partial_outputs,
        maxima,
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
        additive=mask.dtype != torch.bool,
        slots=KEYS_PER_BLOCK,
        step=step,
        num_warps=1,
    )
    torch.library.wrap_triton(combine_kernel)[(batch * heads,)](
        partial_outputs,
        maxima,
        totals,
        out,
        width,
        blocks,
        max_blocks=triton.next_power_of_2(blocks),
        step=step,
        num_warps=1,
    )
    return out
