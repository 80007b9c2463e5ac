"""Looking near, and T5's bias by distance against its formula written out a number at a time."""

import math

import pytest
import torch
from torch import nn

from kinfolk.nn.attention import Attention
from kinfolk.nn.positions import RelativeBias, look_near
from kinfolk.sight import Dense, Sight, see


def bucket(distance: int, *, buckets: int, farthest: int, both_ways: bool) -> int:
    """Mesh TensorFlow's `_relative_position_bucket`, for one distance (key minus query)."""
    first, away = 0, -distance
    if both_ways:
        buckets //= 2
        if away < 0:
            first, away = buckets, -away
    else:
        away = max(away, 0)
    near = buckets // 2
    if away < near:
        return first + away
    far = near + int(math.log(away / near) / math.log(farthest / near) * (buckets - near))
    return first + min(far, buckets - 1)


@pytest.mark.parametrize("both_ways", [True, False])
@pytest.mark.parametrize(("buckets", "farthest"), [(32, 128), (8, 20)])
def test_buckets_are_those_of_the_paper(both_ways: bool, buckets: int, farthest: int) -> None:
    given = {"buckets": buckets, "farthest": farthest, "both_ways": both_ways}
    distances = range(-300, 301)
    found = RelativeBias(1, **given).bucket(torch.tensor(distances)).tolist()  # type: ignore[arg-type]
    assert found == [bucket(d, **given) for d in distances]  # type: ignore[arg-type]
    assert set(found) <= set(range(buckets))


@pytest.mark.parametrize("both_ways", [True, False])
def test_each_score_gets_the_bias_of_its_distance(both_ways: bool) -> None:
    heads, queries, keys = 2, 3, 7  # the last three of seven
    part = RelativeBias(heads, buckets=8, farthest=20, both_ways=both_ways)
    document = torch.zeros(1, keys, dtype=torch.long)
    visible = see(Sight.full(document[:, :queries]), Sight.full(document), bias=part(queries, keys))
    assert isinstance(visible, Dense)
    for head in range(heads):
        for i in range(queries):
            for j in range(keys):
                distance = j - (keys - queries + i)
                b = bucket(distance, buckets=8, farthest=20, both_ways=both_ways)
                assert visible.mask[0, head, i, j] == part.table.weight[b, head]


def test_attention_that_looks_near_falls_off_with_the_distance() -> None:
    torch.manual_seed(0)
    places, attention = nn.Embedding(32, 64), Attention(64, 2, bias=False)
    nn.init.normal_(attention.qkv.weight, std=64**-0.5)
    look_near(nn.ModuleList([attention]), places, std=0.02)
    assert places.weight.square().mean().sqrt().item() == pytest.approx(0.02, rel=1e-3)
    query, key, _ = attention.qkv(50 * places.weight).detach().chunk(3, dim=1)
    scores = (query @ key.T)[16, 16:24]
    assert torch.equal(query, key)
    assert (scores.diff()[:4] < 0).all()
