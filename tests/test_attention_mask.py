"""Who sees whom: tables by hand, and three ways of attending that must agree."""

import math
import warnings
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

import kinfolk.attention_mask as sight_module
from kinfolk.attention_mask import PADDING_ID, AttentionMask, block_mask_from_bounds
from kinfolk.batch import Inputs
from kinfolk.nn.attention import (
    FlexBlockSparse,
    MaskedSdpa,
    UnmaskedSdpa,
    expand_relative_bias,
    select_backend,
)


def table(text: str) -> Tensor:
    """Read a table of 0 and 1, a line a query."""
    return torch.tensor([[int(c) for c in line.split()] for line in text.strip().splitlines()]) > 0


def row(*numbers: int) -> Tensor:
    return torch.tensor([numbers])


def test_full_sight_is_the_whole_document() -> None:
    expected = """
        1 1 0 0 0 0
        1 1 0 0 0 0
        0 0 1 1 1 0
        0 0 1 1 1 0
        0 0 1 1 1 0
        0 0 0 0 0 1
    """
    attention_mask = AttentionMask.bidirectional(row(0, 0, 1, 1, 1, PADDING_ID))
    assert torch.equal(attention_mask.dense()[0], table(expected))


def test_causal_sight_is_the_past_of_the_document_and_oneself() -> None:
    expected = """
        1 0 0 0 0 0
        1 1 0 0 0 0
        0 0 1 0 0 0
        0 0 1 1 0 0
        0 0 1 1 1 0
        0 0 0 0 0 1
    """
    attention_mask = AttentionMask.causal(row(0, 0, 1, 1, 1, PADDING_ID))
    assert torch.equal(attention_mask.dense()[0], table(expected))


def test_prefix_sight_reads_both_ways_and_then_writes() -> None:
    query_order = row(0, 0, 1, 2)
    expected = """
        1 1 0 0
        1 1 0 0
        1 1 1 0
        1 1 1 1
    """
    attention_mask = AttentionMask(row(0, 0, 0, 0), query_order, query_order)
    assert torch.equal(attention_mask.dense()[0], table(expected))


def test_a_clock_before_the_birth_hides_a_token_from_itself() -> None:
    """XLNet's query stream: permutation 2, 0, 1."""
    rank = row(1, 2, 0)
    expected = """
        0 0 1
        1 0 1
        0 0 0
    """
    attention_mask = AttentionMask(row(0, 0, 0), rank, rank - 1)
    assert torch.equal(attention_mask.dense()[0], table(expected))


def test_a_window_ends_sight_so_many_tokens_back() -> None:
    expected = """
        1 0 0 0
        1 1 0 0
        0 1 1 0
        0 0 1 1
    """
    assert torch.equal(AttentionMask.causal(row(0, 0, 0, 0)).dense(window=2)[0], table(expected))


def test_sight_across_two_streams_is_by_document() -> None:
    expected = """
        1 1 0 0
        0 0 1 0
        0 0 1 0
    """
    target, source = (
        AttentionMask.bidirectional(row(0, 1, 1)),
        AttentionMask.bidirectional(row(0, 0, 1, PADDING_ID)),
    )
    assert torch.equal(target.dense(source)[0], table(expected))


def test_padding_attends_to_some_encoder_token_also_where_these_have_no_padding() -> None:
    decoder, encoder = row(0, 1, PADDING_ID), row(0, 0, 1, 1)
    queries, keys = Inputs(
        input_ids=decoder,
        attention_mask=AttentionMask.causal(decoder),
        position_ids=decoder,
        encoder_inputs=Inputs(
            input_ids=encoder,
            attention_mask=AttentionMask.bidirectional(encoder),
            position_ids=encoder,
        ),
    ).cross_masks()
    expected = """
        1 1 0 0
        0 0 1 1
        1 1 0 0
    """
    assert torch.equal(queries.dense(keys)[0], table(expected))


def test_a_causal_sight_may_start_late() -> None:
    later = AttentionMask.causal(row(0, 0), start=3)
    assert later.key_order.tolist() == later.query_order.tolist() == [[3, 4]]
    assert later.dense(AttentionMask.causal(row(0, 0, 0, 0, 0))).int().tolist() == [
        [[1, 1, 1, 1, 0], [1, 1, 1, 1, 1]]
    ]


def streams(batch: int, heads: int, queries: int, keys: int, width: int) -> tuple[Tensor, ...]:
    draws = torch.Generator().manual_seed(0)
    shapes = ((queries, width), (keys, width), (keys, width))
    return tuple(
        torch.randn(batch, heads, *shape, generator=draws, dtype=torch.float64) for shape in shapes
    )


def naive(
    query: Tensor, key: Tensor, value: Tensor, seen: Tensor, bias: Tensor | None, scale: float
) -> Tensor:
    """Attend one query at a time, over what it sees and nothing else."""
    out = torch.zeros(*query.shape[:3], value.shape[-1], dtype=query.dtype)
    batch, heads, queries, _ = query.shape
    for b in range(batch):
        for h in range(heads):
            for i in range(queries):
                js = seen[b, i].nonzero()[:, 0]
                scores = key[b, h, js] @ query[b, h, i] * scale
                if bias is not None:
                    scores = scores + bias[h, js - i + queries - 1]
                out[b, h, i] = scores.softmax(0) @ value[b, h, js]
    return out


DOCUMENTS = torch.tensor([[0, 0, 0, 1, 1, PADDING_ID], [0, 1, 1, 1, 1, 2]])


@pytest.mark.parametrize("causal", [True, False], ids=["causal", "bidirectional"])
@pytest.mark.parametrize("biased", [True, False], ids=["biased", "unbiased"])
@pytest.mark.parametrize("scale", [None, 1.0])
def test_the_dense_mask_equals_attending_one_by_one(
    causal: bool, biased: bool, scale: float | None
) -> None:
    query, key, value = streams(2, 3, 6, 6, 4)
    attention_mask = (AttentionMask.causal if causal else AttentionMask.bidirectional)(DOCUMENTS)
    bias = torch.randn(3, 11, dtype=torch.float64) if biased else None
    visible = select_backend(attention_mask, bias=bias)
    assert isinstance(visible, MaskedSdpa)
    out = visible(query, key, value, scale=scale, dropout=0.0)
    expected = naive(query, key, value, attention_mask.dense(), bias, scale or 1 / math.sqrt(4))
    torch.testing.assert_close(out, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("causal", [True, False], ids=["causal", "bidirectional"])
def test_the_plain_kernel_says_what_the_dense_mask_says(causal: bool) -> None:
    query, key, value = streams(2, 3, 5, 5, 4)
    document = torch.zeros(2, 5, dtype=torch.long)
    kind = AttentionMask.causal if causal else AttentionMask.bidirectional
    plain, dense = select_backend(kind(document, unpacked=True)), select_backend(kind(document))
    assert isinstance(plain, UnmaskedSdpa) and isinstance(dense, MaskedSdpa)
    torch.testing.assert_close(
        plain(query, key, value, scale=None, dropout=0.0),
        dense(query, key, value, scale=None, dropout=0.0),
    )


def test_the_plain_kernel_is_not_taken_where_it_would_say_something_else() -> None:
    document = torch.zeros(1, 4, dtype=torch.long)
    plain = AttentionMask.causal(document, unpacked=True)
    assert isinstance(select_backend(plain, window=2), MaskedSdpa)
    assert isinstance(select_backend(plain, bias=torch.zeros(1, 7)), MaskedSdpa)
    assert isinstance(select_backend(plain, AttentionMask.causal(document)), MaskedSdpa)
    assert isinstance(
        select_backend(plain, AttentionMask.bidirectional(document, unpacked=True)), MaskedSdpa
    )
    assert isinstance(select_backend(AttentionMask.causal(document)), MaskedSdpa)


def test_a_window_narrows_the_dense_mask() -> None:
    query, key, value = streams(1, 1, 4, 4, 2)
    attention_mask = AttentionMask.causal(row(0, 0, 0, 0))
    out = select_backend(attention_mask, window=2)(query, key, value, scale=1.0, dropout=0.0)
    expected = naive(query, key, value, attention_mask.dense(window=2), None, 1.0)
    torch.testing.assert_close(out, expected)


def test_a_bias_is_laid_out_by_distance() -> None:
    bias = torch.tensor([[10.0, 11.0, 12.0, 13.0]])  # two queries, three keys: -1, 0, 1, 2 apart
    assert expand_relative_bias(bias, 2, 3).tolist() == [[[11.0, 12.0, 13.0], [10.0, 11.0, 12.0]]]


def test_a_query_that_sees_nothing_says_nothing_and_spoils_nothing() -> None:
    """An encoder-decoder's target may be padded where its source is full."""
    query, key, value = (t.requires_grad_() for t in streams(1, 2, 3, 4, 4))
    target, source = (
        AttentionMask.bidirectional(row(0, 0, PADDING_ID)),
        AttentionMask.bidirectional(row(0, 0, 0, 0)),
    )
    for dropout in (0.0, 0.5):
        visible = select_backend(target, source, dropout=dropout > 0)
        out = visible(query, key, value, scale=None, dropout=dropout)
        assert torch.equal(out[:, :, 2], torch.zeros(1, 2, 4, dtype=torch.float64))
        gradients = torch.autograd.grad(out.sum(), (query, key, value))
        assert all(g.isfinite().all() for g in gradients)


@st.composite
def packed(draw: st.DrawFn) -> Tensor:
    """Draw rows of texts packed side by side, with padding behind them or not."""
    length = draw(st.integers(1, 40))
    rows = []
    for _ in range(draw(st.integers(1, 3))):
        sizes = draw(st.lists(st.integers(1, 20), min_size=1, max_size=8))
        numbers = [number for number, size in enumerate(sizes) for _ in range(size)][:length]
        rows.append(numbers + [PADDING_ID] * (length - len(numbers)))
    return torch.tensor(rows, dtype=torch.int32)


def covered(mask: BlockMask, queries: int, keys: int) -> tuple[Tensor, Tensor]:
    """Spell out which pairs the kernel looks into, and which it takes as seen unasked."""

    def spell(counts: Tensor, order: Tensor) -> Tensor:
        chosen = torch.zeros(order[:, 0].shape, dtype=torch.bool)
        for place in (torch.arange(order.shape[-1]) < counts[:, 0, :, None]).nonzero():
            batch, block, nth = place.tolist()
            chosen[batch, block, order[batch, 0, block, nth]] = True
        wide = chosen.repeat_interleave(sight_module.BLOCK_SIZE, 1)
        return wide.repeat_interleave(sight_module.BLOCK_SIZE, 2)

    assert mask.full_kv_num_blocks is not None and mask.full_kv_indices is not None
    asked = spell(mask.kv_num_blocks, mask.kv_indices)
    full = spell(mask.full_kv_num_blocks, mask.full_kv_indices)
    assert not full[:, queries:].any() and not full[:, :, keys:].any(), "beyond the row"
    return asked[:, :queries, :keys], full[:, :queries, :keys]


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sight_module, "BLOCK_SIZE", 4)


def same_as_table(query: AttentionMask, key: AttentionMask, window: int | None = None) -> None:
    """Every pair that sees lies in a block, and a block taken as full is full."""
    seen = query.dense(key, window)
    asked, full = covered(block_mask_from_bounds(query, key, window), seen.shape[1], seen.shape[2])
    assert not (asked & full).any()
    assert not (seen & ~asked & ~full).any(), "a pair that sees is skipped"
    assert not (full & ~seen).any(), "a pair that does not see is taken as seen"


BLOCKY = settings(
    max_examples=60,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize(
    "kind", [AttentionMask.bidirectional, AttentionMask.causal], ids=["bidirectional", "causal"]
)
@given(document=packed())
@BLOCKY
def test_blocks_skip_nothing_that_is_seen(kind: Any, document: Tensor) -> None:
    attention_mask = kind(document)
    same_as_table(attention_mask, attention_mask)


@pytest.mark.usefixtures("small_blocks")
@given(document=packed(), window=st.integers(1, 40))
@BLOCKY
def test_blocks_of_a_band_skip_nothing_that_is_seen(document: Tensor, window: int) -> None:
    attention_mask = AttentionMask.causal(document)
    same_as_table(attention_mask, attention_mask, window)


@pytest.mark.usefixtures("small_blocks")
@given(target=packed(), source=packed())
@BLOCKY
def test_blocks_across_streams_skip_nothing_either(target: Tensor, source: Tensor) -> None:
    rows = min(len(target), len(source))
    same_as_table(
        AttentionMask.bidirectional(target[:rows]), AttentionMask.bidirectional(source[:rows])
    )


@pytest.mark.usefixtures("small_blocks")
def test_blocks_that_nobody_sees_are_skipped_and_full_ones_not_asked() -> None:
    document = torch.tensor([[0] * 8 + [1] * 8])
    asked, full = covered(block_mask_from_bounds(*[AttentionMask.causal(document)] * 2), 16, 16)
    tiles = (asked.int() + 2 * full.int())[0, ::4, ::4]
    assert tiles.tolist() == [[1, 0, 0, 0], [2, 1, 0, 0], [0, 0, 1, 0], [0, 0, 2, 1]]


@pytest.mark.usefixtures("small_blocks")
def test_blocks_beyond_a_band_are_skipped() -> None:
    attention_mask = AttentionMask.causal(torch.zeros(1, 16, dtype=torch.int32))
    asked, full = covered(block_mask_from_bounds(attention_mask, attention_mask, 8), 16, 16)
    tiles = (asked.int() + 2 * full.int())[0, ::4, ::4]
    assert tiles.tolist() == [[1, 0, 0, 0], [2, 1, 0, 0], [1, 2, 1, 0], [0, 1, 2, 1]]


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("biased", [True, False], ids=["biased", "unbiased"])
def test_the_block_sparse_kernel_says_what_the_dense_mask_says(biased: bool) -> None:
    query, key, value = (t.float() for t in streams(2, 2, 6, 6, 16))
    attention_mask = AttentionMask.causal(DOCUMENTS)
    bias = torch.randn(2, 11) if biased else None
    sparse, dense = (
        select_backend(attention_mask.with_block_masks(), bias=bias),
        select_backend(attention_mask, bias=bias),
    )
    assert isinstance(sparse, FlexBlockSparse) and isinstance(dense, MaskedSdpa)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it is not compiled here
        out = sparse(query, key, value, scale=None, dropout=0.0)
    torch.testing.assert_close(out, dense(query, key, value, scale=None, dropout=0.0))


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("plain", [True, False], ids=["plain", "packed"])
def test_a_block_sparse_band_says_what_the_dense_one_says(plain: bool) -> None:
    query, key, value = (t.float() for t in streams(2, 2, 6, 6, 16))
    document = torch.zeros_like(DOCUMENTS) if plain else DOCUMENTS
    attention_mask = AttentionMask.causal(document, unpacked=plain)
    sparse, dense = (
        select_backend(attention_mask.with_block_masks([2, 4]), window=4),
        select_backend(attention_mask, window=4),
    )
    assert isinstance(sparse, FlexBlockSparse) and isinstance(dense, MaskedSdpa)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it is not compiled here
        out = sparse(query, key, value, scale=None, dropout=0.0)
    torch.testing.assert_close(out, dense(query, key, value, scale=None, dropout=0.0))


def test_blocks_are_not_taken_where_weights_are_dropped_or_a_window_was_not_resolved() -> None:
    attention_mask = AttentionMask.causal(DOCUMENTS).with_block_masks([3])
    assert isinstance(select_backend(attention_mask, dropout=True), MaskedSdpa)
    assert isinstance(select_backend(attention_mask, window=3), FlexBlockSparse)
    assert isinstance(select_backend(attention_mask, window=3, dropout=True), MaskedSdpa)
    assert isinstance(select_backend(attention_mask, window=2), MaskedSdpa)
    assert isinstance(select_backend(attention_mask, AttentionMask.causal(DOCUMENTS)), MaskedSdpa)
    assert isinstance(
        select_backend(attention_mask, AttentionMask.causal(DOCUMENTS), window=3), MaskedSdpa
    )


@pytest.mark.parametrize("plain", [None, "bidirectional", "causal"])
def test_a_layers_own_bias_is_added_to_the_scaled_scores(plain: Any) -> None:
    draws = torch.Generator().manual_seed(0)
    query, key, value = torch.randn(3, 2, 2, 5, 4, generator=draws)
    bias = torch.randn(2, 2, 5, 5, generator=draws)
    document = torch.zeros(2, 5, dtype=torch.long)
    attention_mask = (
        AttentionMask.bidirectional(document)
        if plain == "bidirectional"
        else AttentionMask.causal(document)
    )
    visible = select_backend(replace(attention_mask, unpacked=plain))
    found = visible(query, key, value, scale=0.3, dropout=0.0, bias=bias)
    scores = 0.3 * query @ key.transpose(-1, -2) + bias
    seen = attention_mask.dense()[:, None]
    expected = scores.masked_fill(~seen, float("-inf")).softmax(-1) @ value
    assert torch.allclose(found, expected, atol=1e-6)
