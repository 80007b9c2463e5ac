"""Attention: what torch's own says, what a source says, and what a state remembers."""

import pytest
import torch
from torch import nn

from kinfolk.attention_mask import AttentionMask
from kinfolk.batch import KVCache
from kinfolk.nn.attention import Attention, CrossAttention, merge_heads, select_backend, split_heads

WIDTH, HEADS, LENGTH = 8, 2, 5


def causal(length: int = LENGTH, start: int = 0) -> AttentionMask:
    return AttentionMask.causal(torch.zeros(2, length, dtype=torch.long), start=start)


def test_splitting_and_merging_undo_each_other() -> None:
    x = torch.randn(2, LENGTH, WIDTH)
    heads = split_heads(x, WIDTH // HEADS)
    assert heads.shape == (2, HEADS, LENGTH, WIDTH // HEADS)
    assert torch.equal(heads[:, 1], x[..., WIDTH // 2 :])
    assert torch.equal(merge_heads(heads), x)


def test_it_is_the_attention_of_the_paper() -> None:
    ours = Attention(WIDTH, HEADS)
    theirs = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
    with torch.no_grad():
        theirs.in_proj_weight.copy_(ours.qkv_proj.weight)
        theirs.in_proj_bias.copy_(ours.qkv_proj.bias)
        theirs.out_proj.weight.copy_(ours.out_proj.weight)
        theirs.out_proj.bias.copy_(ours.out_proj.bias)
    x = torch.randn(2, LENGTH, WIDTH)
    hidden = torch.ones(LENGTH, LENGTH).triu(1) > 0
    expected, _ = theirs(x, x, x, attn_mask=hidden, need_weights=False)
    torch.testing.assert_close(ours(x, select_backend(causal())), expected)


def test_cross_attention_is_too() -> None:
    ours = CrossAttention(WIDTH, HEADS)
    theirs = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
    with torch.no_grad():
        theirs.in_proj_weight.copy_(torch.cat([ours.q_proj.weight, ours.kv_proj.weight]))
        theirs.in_proj_bias.copy_(torch.cat([ours.q_proj.bias, ours.kv_proj.bias]))
        theirs.out_proj.weight.copy_(ours.out_proj.weight)
        theirs.out_proj.bias.copy_(ours.out_proj.bias)
    x, source = torch.randn(2, 3, WIDTH), torch.randn(2, LENGTH, WIDTH)
    across = select_backend(
        *(AttentionMask.bidirectional(torch.zeros(2, n, dtype=torch.long)) for n in (3, LENGTH))
    )
    expected, _ = theirs(x, source, source, need_weights=False)
    torch.testing.assert_close(ours(x, source, across), expected)


def test_a_state_makes_steps_equal_the_whole() -> None:
    attention = Attention(WIDTH, HEADS).double()
    x = torch.randn(2, LENGTH, WIDTH, dtype=torch.float64)
    state, parts = KVCache(LENGTH), []
    with torch.no_grad():
        for start, stop in ((0, 2), (2, 3), (3, LENGTH)):
            attention_mask = causal(stop - start, start)
            parts.append(
                attention(
                    x[:, start:stop],
                    select_backend(attention_mask, state.append_mask(attention_mask)),
                    state,
                )
            )
        whole = attention(x, select_backend(causal()))
    torch.testing.assert_close(torch.cat(parts, 1), whole, rtol=1e-12, atol=1e-12)


def test_a_source_is_asked_once() -> None:
    cross, state = CrossAttention(WIDTH, HEADS), KVCache(4)
    x, source = torch.randn(2, 1, WIDTH), torch.randn(2, LENGTH, WIDTH)
    across = select_backend(
        *(AttentionMask.bidirectional(torch.zeros(2, n, dtype=torch.long)) for n in (1, LENGTH))
    )
    with torch.no_grad():
        first = cross(x, source, across, state, 3)
        again = cross(x, torch.full_like(source, float("nan")), across, state, 3)
    assert torch.equal(first, again) and list(state.cross_kv) == [3]


def test_heads_may_be_wider_or_narrower_together_than_the_stream() -> None:
    attention = Attention(WIDTH, HEADS, attention_size=6, bias=False)
    assert attention.qkv_proj.weight.shape == (18, WIDTH) and attention.qkv_proj.bias is None
    assert attention(torch.randn(2, LENGTH, WIDTH), select_backend(causal())).shape == (
        2,
        LENGTH,
        WIDTH,
    )


@pytest.mark.parametrize("kind", [Attention, CrossAttention])
def test_weights_are_dropped_in_training_only(kind: type[nn.Module]) -> None:
    part = kind(WIDTH, HEADS, dropout=0.5)
    x = torch.randn(2, LENGTH, WIDTH)
    given = (x, select_backend(causal())) if kind is Attention else (x, x, select_backend(causal()))
    assert not torch.equal(part(*given), part(*given))
    part.eval()
    assert torch.equal(part(*given), part(*given))


def test_the_scale_of_the_scores_can_be_left_out() -> None:
    scaled, bare = Attention(WIDTH, HEADS), Attention(WIDTH, HEADS, scale=1.0)
    bare.load_state_dict(scaled.state_dict())
    with torch.no_grad():  # put 1 / sqrt(head width) into the query, where T5 has it
        bare.qkv_proj.weight[:WIDTH] *= (WIDTH // HEADS) ** -0.5
        bare.qkv_proj.bias[:WIDTH] *= (WIDTH // HEADS) ** -0.5
    x = torch.randn(2, LENGTH, WIDTH)
    torch.testing.assert_close(
        bare(x, select_backend(causal())), scaled(x, select_backend(causal()))
    )
