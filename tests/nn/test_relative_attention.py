"""Attention by distance against the formula of the paper, written out a score at a time."""

import math

import pytest
import torch
from torch import Tensor

from kinfolk.attention_mask import AttentionMask
from kinfolk.batch import KVCache
from kinfolk.nn.attention import FlexBlockSparse, MaskedSdpa, select_backend
from kinfolk.nn.relative_attention import (
    RelativeAttention,
    RelativeContext,
    SegmentRelativeAttention,
    gather_relative,
    rel_shift,
    sinusoidal_distances,
)

WIDTH, HEADS, LENGTH, BATCH = 8, 2, 5, 2
LIKE = torch.zeros(1, dtype=torch.float64)


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


def wave(distance: float) -> list[float]:
    """Transformer-XL's encoding of one distance: all sines, then all cosines."""
    turns = [distance / 10_000 ** (2 * i / WIDTH) for i in range(WIDTH // 2)]
    return [*map(math.sin, turns), *map(math.cos, turns)]


@torch.no_grad()
def shaken(kind: type[RelativeAttention] = SegmentRelativeAttention) -> SegmentRelativeAttention:
    """Return an attention in which no weight is zero."""
    part = kind(WIDTH, HEADS).double().eval()
    for weight in part.parameters():
        weight.normal_(0.0, 0.7)
    assert isinstance(part, SegmentRelativeAttention)
    return part


def attended(
    part: SegmentRelativeAttention,
    x: Tensor,
    content: Tensor,
    seen: Tensor,
    at: Tensor,
    apart: Tensor,
) -> Tensor:
    """Attend as section 3.3 says, one query, key and head at a time; `at` is each query's place."""
    narrow = WIDTH // HEADS
    told = torch.zeros_like(x)
    key, value = part.kv_proj(content).chunk(2, dim=-1)
    for b in range(len(x)):
        for i in range(x.shape[1]):
            for h in range(HEADS):
                own = slice(h * narrow, (h + 1) * narrow)
                query = part.q_proj(x[b, i])[own]
                scores = []
                for j in range(content.shape[1]):
                    far = torch.tensor(wave(int(at[b, i]) - j), dtype=torch.float64)
                    score = (query + part.content_bias[h]) @ key[b, j, own]
                    score += (query + part.position_bias[h]) @ part.r_proj(far)[own]
                    side = part.segment_embeddings[int(apart[b, i, j]), h]
                    score += (query + part.segment_bias[h]) @ side
                    scores.append(score / narrow**0.5 if seen[b, i, j] else -math.inf)
                weights = torch.tensor(scores, dtype=torch.float64).softmax(0)
                told[b, i, own] = weights @ value[b, :, own]
    return part.out_proj(told)  # type: ignore[no-any-return]


def test_waves_are_those_of_the_paper() -> None:
    expected = [wave(d) for d in range(9, -8, -1)]
    found = sinusoidal_distances(9, -7, WIDTH, like=LIKE)
    torch.testing.assert_close(found, torch.tensor(expected).double(), rtol=0, atol=1e-6)
    near = sinusoidal_distances(9, -7, WIDTH, like=LIKE, clamp=3)
    held = [wave(max(-3, min(3, d))) for d in range(9, -8, -1)]
    torch.testing.assert_close(near, torch.tensor(held).double(), rtol=0, atol=1e-6)


@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (4, 4), (1, 6), (3, 7)])
def test_every_key_gets_the_score_of_its_distance(queries: int, keys: int) -> None:
    scores = torch.randn(BATCH, HEADS, queries, queries + keys)
    found = rel_shift(scores, keys)
    assert found.shape == (BATCH, HEADS, queries, keys)
    for i in range(queries):
        for j in range(keys):
            distance = (keys - queries + i) - j
            assert torch.equal(found[:, :, i, j], scores[:, :, i, keys - distance])
    # Without columns for what lies ahead, the past is the same.
    past = rel_shift(scores[..., : keys + 1], keys)
    behind = torch.ones(queries, keys).tril(keys - queries) > 0
    assert torch.equal(past[:, :, behind], found[:, :, behind])


def test_guesses_get_the_scores_of_the_slots_they_stand_at() -> None:
    length, keys = 4, 7
    scores = torch.randn(BATCH, HEADS, length, length + keys)
    every = rel_shift(scores, keys)
    slots = torch.tensor([[3, 0, 1], [2, 2, 3]])
    rows = scores.gather(2, slots[:, None, :, None].expand(-1, HEADS, -1, length + keys))
    found = gather_relative(rows, slots, length, keys)
    for b in range(BATCH):
        assert torch.equal(found[b], every[b][:, slots[b]])


@torch.no_grad()
def test_it_is_the_attention_of_the_paper() -> None:
    part = shaken()
    x = torch.randn(BATCH, LENGTH, WIDTH, dtype=torch.float64)
    document = torch.tensor([[0, 0, 0, 1, 1], [0, 0, 0, 0, -1]])
    segments = torch.tensor([[0, 1, 0, 0, 1], [0, 0, 1, 2, 0]])
    apart = segments[:, :, None] != segments[:, None, :]
    far = sinusoidal_distances(LENGTH, 1 - LENGTH, WIDTH, like=LIKE)
    at = torch.arange(LENGTH).expand(BATCH, -1)
    for attention_mask in (AttentionMask.bidirectional(document), AttentionMask.causal(document)):
        view = RelativeContext(select_backend(attention_mask), far, LENGTH, other_segment=apart)
        expected = attended(part, x, x, attention_mask.dense(), at, apart)
        torch.testing.assert_close(part(x, part.project_kv(x), view), expected, rtol=0, atol=1e-6)


@torch.no_grad()
def test_guesses_look_from_where_they_stand() -> None:
    part = shaken()
    x = torch.randn(BATCH, LENGTH, WIDTH, dtype=torch.float64)
    guesses = torch.randn(BATCH, 3, WIDTH, dtype=torch.float64)
    slots = torch.tensor([[4, 1, 2], [3, 3, 1]])
    attention_mask = AttentionMask.causal(torch.zeros(BATCH, LENGTH, dtype=torch.long))
    far = sinusoidal_distances(LENGTH, 1 - LENGTH, WIDTH, like=LIKE)
    apart = torch.rand(BATCH, 3, LENGTH) < 0.5
    ahead = attention_mask.for_targets(slots)
    view = RelativeContext(select_backend(ahead, attention_mask), far, LENGTH, slots, LENGTH, apart)
    expected = attended(part, guesses, x, ahead.dense(attention_mask), slots, apart)
    torch.testing.assert_close(part(guesses, part.project_kv(x), view), expected, rtol=0, atol=1e-6)


@torch.no_grad()
def test_one_segment_for_all_changes_nothing() -> None:
    part = shaken()
    x = torch.randn(BATCH, LENGTH, WIDTH, dtype=torch.float64)
    attention_mask = AttentionMask.bidirectional(torch.zeros(BATCH, LENGTH, dtype=torch.long))
    far = sinusoidal_distances(LENGTH, 1 - LENGTH, WIDTH, like=LIKE)
    none = torch.zeros(BATCH, LENGTH, LENGTH, dtype=torch.bool)
    without, within = (
        RelativeContext(select_backend(attention_mask), far, LENGTH, other_segment=a)
        for a in (None, none)
    )
    torch.testing.assert_close(
        part(x, part.project_kv(x), within), part(x, part.project_kv(x), without)
    )


@torch.no_grad()
@pytest.mark.parametrize("past_only", [False, True], ids=["both ways", "the past"])
def test_a_state_makes_steps_equal_the_whole(past_only: bool) -> None:
    part = shaken()
    x = torch.randn(BATCH, LENGTH, WIDTH, dtype=torch.float64)
    document = torch.zeros(BATCH, LENGTH, dtype=torch.long)
    state, parts = KVCache(LENGTH), []
    for start, stop in ((0, 2), (2, 3), (3, LENGTH)):
        attention_mask = AttentionMask.causal(document[:, start:stop], start=start)
        far = sinusoidal_distances(stop, 0 if past_only else start - stop + 1, WIDTH, like=LIKE)
        now = x[:, start:stop]
        view = RelativeContext(
            select_backend(attention_mask, state.append_mask(attention_mask)), far, stop
        )
        parts.append(part(now, part.project_kv(now, state), view))
    far = sinusoidal_distances(LENGTH, 1 - LENGTH, WIDTH, like=LIKE)
    view = RelativeContext(select_backend(AttentionMask.causal(document)), far, LENGTH)
    torch.testing.assert_close(torch.cat(parts, 1), part(x, part.project_kv(x), view))


def test_a_bias_of_its_own_takes_the_mask_written_out() -> None:
    """Also where the blocks of the mask were found."""
    attention_mask = AttentionMask.bidirectional(
        torch.tensor([[0, 0, 1], [0, -1, -1]])
    ).with_block_masks()
    assert isinstance(select_backend(attention_mask), FlexBlockSparse)
    assert isinstance(select_backend(attention_mask, layer_bias=True), MaskedSdpa)


def test_weights_are_dropped_in_training_only() -> None:
    part = RelativeAttention(WIDTH, HEADS, dropout=0.5)
    x = torch.randn(BATCH, LENGTH, WIDTH)
    attention_mask = AttentionMask.bidirectional(torch.zeros(BATCH, LENGTH, dtype=torch.long))
    view = RelativeContext(
        select_backend(attention_mask),
        sinusoidal_distances(LENGTH, 1 - LENGTH, WIDTH, like=x),
        LENGTH,
    )
    assert not torch.equal(part(x, part.project_kv(x), view), part(x, part.project_kv(x), view))
    part.eval()
    assert torch.equal(part(x, part.project_kv(x), view), part(x, part.project_kv(x), view))


def test_heads_may_be_wider_or_narrower_together_than_the_stream() -> None:
    part = RelativeAttention(WIDTH, HEADS, attention_size=12)
    x = torch.randn(BATCH, LENGTH, WIDTH)
    attention_mask = AttentionMask.bidirectional(torch.zeros(BATCH, LENGTH, dtype=torch.long))
    view = RelativeContext(
        select_backend(attention_mask),
        sinusoidal_distances(LENGTH, 1 - LENGTH, WIDTH, like=x),
        LENGTH,
    )
    assert part.content_bias.shape == (2, 6)
    assert part(x, part.project_kv(x), view).shape == (BATCH, LENGTH, WIDTH)
