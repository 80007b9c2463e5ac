"""The blocks of the block-sparse mask, against the table written out."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kinfolk.attention_mask import BLOCK_SIZE, AttentionMask, block_mask_from_bounds


def rows(lengths: list[list[int]], length: int) -> Tensor:
    """Number documents of these lengths along each row, and end it with padding."""
    document = torch.full((len(lengths), length), -1, dtype=torch.int32)
    for row, sizes in zip(document, lengths, strict=True):
        numbers = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))[:length]
        row[: len(numbers)] = numbers
    return document


def written_out(query: AttentionMask, key: AttentionMask) -> tuple[Tensor, Tensor]:
    """Return which blocks hold something seen, and which are seen in full."""
    table = query.dense(key)
    over = [-n % BLOCK_SIZE for n in table.shape[1:]]
    table = torch.nn.functional.pad(table, (0, over[1], 0, over[0]))
    parts = table.unflatten(2, (-1, BLOCK_SIZE)).unflatten(
        1, (-1, BLOCK_SIZE)
    )  # batch, q, 128, k, 128
    return parts.any(4).any(2), parts.all(4).all(2)


def listed(counts: Tensor, indices: Tensor) -> Tensor:
    """Turn lists of blocks into a table."""
    found = torch.zeros(indices.shape, dtype=torch.bool)
    for place in torch.cartesian_prod(*(torch.arange(n) for n in counts.shape)):
        b, h, i = place.tolist()
        found[b, h, i, indices[b, h, i, : counts[b, h, i]].long()] = True
    return found[:, 0]


lengths = st.lists(st.integers(1, 300), min_size=1, max_size=8)


@settings(max_examples=40)
@given(st.lists(lengths, min_size=1, max_size=3), st.sampled_from([120, 256, 300]), st.booleans())
def test_no_seen_block_is_missing_and_no_full_block_hides_anything(
    texts: list[list[int]], length: int, causal: bool
) -> None:
    document = rows(texts, length)
    attention_mask = (
        AttentionMask.causal(document) if causal else AttentionMask.bidirectional(document)
    )
    mask = block_mask_from_bounds(attention_mask, attention_mask)
    some, whole = written_out(attention_mask, attention_mask)
    part = listed(mask.kv_num_blocks, mask.kv_indices)
    full = listed(mask.full_kv_num_blocks, mask.full_kv_indices)
    assert not (some & ~(part | full)).any()
    assert not (full & ~whole).any()
    assert not (part & full).any()


@settings(max_examples=20)
@given(st.lists(lengths, min_size=2, max_size=2), st.sampled_from([(120, 512), (256, 300)]))
def test_the_same_across_two_streams(texts: list[list[int]], shape: tuple[int, int]) -> None:
    query, key = (
        AttentionMask.bidirectional(rows([t], n)) for t, n in zip(texts, shape, strict=True)
    )
    mask = block_mask_from_bounds(query, key)
    some, whole = written_out(query, key)
    part = listed(mask.kv_num_blocks, mask.kv_indices)
    full = listed(mask.full_kv_num_blocks, mask.full_kv_indices)
    assert not (some & ~(part | full)).any()
    assert not (full & ~whole).any()


def test_one_text_a_row_needs_no_mask_in_its_inner_blocks() -> None:
    attention_mask = AttentionMask.causal(torch.zeros(1, 4 * BLOCK_SIZE, dtype=torch.int32))
    mask = block_mask_from_bounds(attention_mask, attention_mask)
    assert mask.full_kv_num_blocks[0, 0].tolist() == [0, 1, 2, 3]
    assert mask.kv_num_blocks[0, 0].tolist() == [1, 1, 1, 1]


def test_documents_far_apart_cost_nothing() -> None:
    attention_mask = AttentionMask.bidirectional(rows([[BLOCK_SIZE] * 4], 4 * BLOCK_SIZE))
    mask = block_mask_from_bounds(attention_mask, attention_mask)
    assert mask.full_kv_num_blocks[0, 0].tolist() == [1, 1, 1, 1]
    assert mask.kv_num_blocks[0, 0].tolist() == [0, 0, 0, 0]


def test_the_predicate_inside_a_block_is_the_rule() -> None:
    attention_mask = AttentionMask.causal(rows([[5, 9, 3]], 20))
    mask = block_mask_from_bounds(attention_mask, attention_mask)
    i, j = torch.arange(20)[:, None], torch.arange(20)[None]
    zero = torch.zeros((), dtype=torch.long)
    assert torch.equal(mask.mask_mod(zero, zero, i, j), attention_mask.dense()[0])


@pytest.mark.parametrize("plain", [True, False])
def test_plain_rows_are_not_resolved(plain: bool) -> None:
    attention_mask = AttentionMask.bidirectional(
        torch.zeros(1, 8, dtype=torch.int32), unpacked=plain
    )
    assert (attention_mask.with_block_masks().block_mask is None) == plain
