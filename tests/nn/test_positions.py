"""Looking near, and T5's bias by distance against its formula written out a number at a time."""

import math

import pytest
import torch
from torch import nn

from kinfolk.attention_mask import AttentionMask
from kinfolk.nn.attention import Attention, MaskedSdpa, select_backend
from kinfolk.nn.init import mimetic_init_
from kinfolk.nn.positions import RelativePositionBias


def bucket(distance: int, *, num_buckets: int, max_distance: int, bidirectional: bool) -> int:
    """Mesh TensorFlow's `_relative_position_bucket`, for one distance (key minus query)."""
    first, away = 0, -distance
    if bidirectional:
        num_buckets //= 2
        if away < 0:
            first, away = num_buckets, -away
    else:
        away = max(away, 0)
    near = num_buckets // 2
    if away < near:
        return first + away
    far = near + int(math.log(away / near) / math.log(max_distance / near) * (num_buckets - near))
    return first + min(far, num_buckets - 1)


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize(("num_buckets", "max_distance"), [(32, 128), (8, 20)])
def test_buckets_are_those_of_the_paper(
    bidirectional: bool, num_buckets: int, max_distance: int
) -> None:
    given = {
        "num_buckets": num_buckets,
        "max_distance": max_distance,
        "bidirectional": bidirectional,
    }
    distances = range(-300, 301)
    found = RelativePositionBias(1, **given).bucket(torch.tensor(distances)).tolist()  # type: ignore[arg-type]
    assert found == [bucket(d, **given) for d in distances]  # type: ignore[arg-type]
    assert set(found) <= set(range(num_buckets))


@pytest.mark.parametrize("bidirectional", [True, False])
def test_each_score_gets_the_bias_of_its_distance(bidirectional: bool) -> None:
    heads, queries, keys = 2, 3, 7  # the last three of seven
    part = RelativePositionBias(heads, num_buckets=8, max_distance=20, bidirectional=bidirectional)
    document = torch.zeros(1, keys, dtype=torch.long)
    visible = select_backend(
        AttentionMask.bidirectional(document[:, :queries]),
        AttentionMask.bidirectional(document),
        bias=part(queries, keys),
    )
    assert isinstance(visible, MaskedSdpa)
    for head in range(heads):
        for i in range(queries):
            for j in range(keys):
                distance = j - (keys - queries + i)
                b = bucket(distance, num_buckets=8, max_distance=20, bidirectional=bidirectional)
                assert visible.mask[0, head, i, j] == part.embedding.weight[b, head]


def test_attention_that_looks_near_falls_off_with_the_distance() -> None:
    torch.manual_seed(0)
    places, attention = nn.Embedding(32, 64), Attention(64, 2, bias=False)
    nn.init.normal_(attention.qkv_proj.weight, std=64**-0.5)
    mimetic_init_(nn.ModuleList([attention]), places, std=0.02)
    assert places.weight.square().mean().sqrt().item() == pytest.approx(0.02, rel=1e-3)
    query, key, _ = attention.qkv_proj(50 * places.weight).detach().chunk(3, dim=1)
    scores = (query @ key.T)[16, 16:24]
    assert torch.equal(query, key)
    assert (scores.diff()[:4] < 0).all()
