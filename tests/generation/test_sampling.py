"""How a token is chosen from its scores."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare
from torch import Tensor
from transformers.generation.logits_process import (
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    TypicalLogitsWarper,
)

from kinfolk.errors import UserError
from kinfolk.generation.config import GREEDY, GenerationConfig
from kinfolk.generation.logits_process import NEG_INF, suppress
from kinfolk.generation.sampling import (
    apply_filters,
    apply_temperature,
    min_p,
    sample_next_ids,
    top_k,
    top_p,
    typical,
)
from kinfolk.rng import uniforms

DRAWS = 40_000
WAYS = [
    GenerationConfig(),
    GenerationConfig(temperature=0.6),
    GenerationConfig(temperature=2.5),
    GenerationConfig(top_k=7),
    GenerationConfig(top_p=0.8),
    GenerationConfig(min_p=0.1),
    GenerationConfig(typical_p=0.7),
    GenerationConfig(temperature=1.6, top_k=20, top_p=0.95, min_p=0.02, typical_p=0.9),
]


@pytest.fixture
def logits() -> Tensor:
    return 3 * torch.randn(6, 40, generator=torch.Generator().manual_seed(0))


def rows(seed: int, *, holes: bool) -> Tensor:
    """Draw scores of all sorts, some of them of what may not be said."""
    draws = torch.Generator().manual_seed(seed)
    scores = torch.randn(8, 30, generator=draws) * torch.tensor([0.1, 1, 3, 9])[:, None].repeat(
        2, 1
    )
    hole = torch.rand(scores.shape, generator=draws) < 0.4
    hole[:, 3] = False
    return scores.masked_fill(hole, NEG_INF) if holes else scores


@pytest.mark.parametrize(
    "wrong",
    [
        {"temperature": -0.1},
        {"temperature": float("nan")},
        {"temperature": float("inf")},
        {"top_k": 0},
        {"top_p": 0.0},
        {"top_p": 1.5},
        {"top_p": float("nan")},
        {"min_p": 0.0},
        {"min_p": -0.2},
        {"min_p": 1.1},
        {"typical_p": 0.0},
        {"typical_p": float("nan")},
    ],
)
def test_a_setting_that_means_nothing_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(UserError, match=next(iter(wrong))):
        GenerationConfig(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", [-1, 2**64])
def test_a_seed_that_is_none_is_refused(seed: int) -> None:
    with pytest.raises(UserError, match=f"seed={seed}: it must be"):
        torch.from_numpy(uniforms(seed, [0], 1))


@pytest.mark.parity
@pytest.mark.parametrize("holes", [False, True])
@pytest.mark.parametrize("seed", range(10))
def test_filters_leave_what_transformers_leaves(seed: int, holes: bool) -> None:
    scores, ids = rows(seed, holes=holes), torch.zeros(8, 1, dtype=torch.long)
    for k in (1, 5, 29, 99):
        assert torch.equal(top_k(scores, k), TopKLogitsWarper(k)(ids, scores))
    for p in (0.01, 0.3, 0.8, 0.999):
        assert torch.equal(top_p(scores, p), TopPLogitsWarper(p)(ids, scores))
        assert torch.equal(min_p(scores, p), MinPLogitsWarper(p)(ids, scores))
        assert torch.equal(typical(scores, p), TypicalLogitsWarper(p)(ids, scores))
    for temperature in (0.05, 0.7, 3.0):
        theirs = TemperatureLogitsWarper(temperature)(ids, scores)
        torch.testing.assert_close(
            apply_temperature(scores, temperature).softmax(-1), theirs.softmax(-1)
        )


@pytest.mark.parity
@pytest.mark.parametrize("holes", [False, True])
def test_filters_come_in_the_order_of_transformers(holes: bool) -> None:
    scores, ids = rows(77, holes=holes), torch.zeros(8, 1, dtype=torch.long)
    theirs = scores
    for warper in (
        TemperatureLogitsWarper(1.6),
        TopKLogitsWarper(20),
        TopPLogitsWarper(0.9),
        MinPLogitsWarper(0.03),
        TypicalLogitsWarper(0.8),
    ):
        theirs = warper(ids, theirs)
    every = GenerationConfig(temperature=1.6, top_k=20, top_p=0.9, min_p=0.03, typical_p=0.8)
    torch.testing.assert_close(apply_filters(scores, every).softmax(-1), theirs.softmax(-1))


@pytest.mark.parametrize("p", [1e-9, 0.3, 0.9, 1.0])
def test_top_p_is_the_smallest_set_that_reaches_p(logits: Tensor, p: float) -> None:
    shares = logits.double().softmax(-1)
    kept = top_p(logits.double(), p).isfinite()
    assert kept.any(-1).all()
    assert ((shares * kept).sum(-1) >= p - 1e-12).all()
    least = shares.where(kept, torch.inf).amin(-1)
    assert ((shares * kept).sum(-1) - least < p).all()


@pytest.mark.parametrize(("size", "p", "kept"), [(2, 0.5, 1), (4, 0.5, 2), (8, 0.875, 7)])
def test_a_share_that_is_reached_exactly_is_reached(size: int, p: float, kept: int) -> None:
    """Equal tokens, as many as a power of two: nothing is rounded, and reaching p is enough."""
    logits = torch.full((1, size + 1), 0.25)
    logits[0, 1] = -torch.inf  # forbidden, and never among them
    assert set(logits.softmax(-1).flatten().tolist()) == {1 / size, 0.0}
    assert top_p(logits, p).isfinite().sum() == kept


def test_all_of_the_probability_is_all_there_is() -> None:
    """A vocabulary of many unlikely tokens: their sums do not come out at 1 sharp."""
    scores = 4 * torch.randn(4, 50_000, generator=torch.Generator().manual_seed(2))
    for sampling in (
        GenerationConfig(top_p=1.0),
        GenerationConfig(typical_p=1.0),
        GenerationConfig(top_k=50_000),
    ):
        assert apply_filters(scores, sampling).isfinite().all()


def test_top_k_beyond_the_vocabulary_keeps_all(logits: Tensor) -> None:
    assert torch.equal(top_k(logits, 10**6), logits)


def test_a_filter_keeps_one_token_at_least_and_never_what_is_forbidden() -> None:
    for seed in range(20):
        scores = rows(seed, holes=True)
        for sampling in (
            *WAYS,
            GenerationConfig(typical_p=1e-6),
            GenerationConfig(min_p=1.0),
            GenerationConfig(top_p=1e-6),
        ):
            kept = apply_filters(scores, sampling).isfinite()
            assert kept.any(1).all() and not (kept & ~scores.isfinite()).any()


def test_temperature_zero_top_one_and_a_tiny_temperature_are_greedy(logits: Tensor) -> None:
    best = logits.argmax(-1)
    chance = torch.linspace(0, 0.999, 6)
    for sampling in (
        GREEDY,
        GenerationConfig(top_k=1),
        GenerationConfig(temperature=1e-40),
        GenerationConfig(top_p=1e-6),
        GenerationConfig(min_p=1.0),
    ):
        assert torch.equal(sample_next_ids(logits, sampling, chance), best)


@pytest.mark.parametrize("chance", [0.0, 1 - 2**-53])
def test_what_is_banned_is_never_drawn(logits: Tensor, chance: float) -> None:
    banned = torch.tensor([0, 1, 38, 39])
    extreme = torch.full((6,), chance, dtype=torch.float64)
    for sampling in (GenerationConfig(), GenerationConfig(temperature=100.0), GREEDY):
        assert not torch.isin(
            sample_next_ids(suppress(logits, banned), sampling, extreme), banned
        ).any()


@settings(max_examples=50)
@given(seed=st.integers(0, 10**6), chance=st.floats(0, 1, exclude_max=True))
def test_a_draw_is_the_token_whose_share_the_chance_falls_in(seed: int, chance: float) -> None:
    scores = rows(seed, holes=True)
    drawn = sample_next_ids(
        scores, GenerationConfig(), torch.full((8,), chance, dtype=torch.float64)
    )
    for row, id in zip(scores.double().softmax(-1).tolist(), drawn.tolist(), strict=True):
        assert sum(row[:id]) - 1e-12 <= chance <= sum(row[: id + 1]) + 1e-12
        assert row[id] > 0


def exact(row: Tensor, sampling: GenerationConfig) -> Tensor:
    """Say how likely each token is to be drawn, filter by filter, written out plainly."""
    shares = (row.double() / sampling.temperature).softmax(-1).tolist()

    def among(kept: set[int]) -> None:
        total = sum(shares[id] for id in kept)
        shares[:] = [share / total if id in kept else 0.0 for id, share in enumerate(shares)]

    def reaching(order: list[int], p: float) -> set[int]:
        found: set[int] = set()
        for id in order:
            if sum(shares[i] for i in found) < p and shares[id] > 0:
                found.add(id)
        return found

    best = sorted(range(len(shares)), key=lambda id: -shares[id])
    if sampling.top_k is not None:
        among(set(best[: sampling.top_k]))
    if sampling.top_p is not None:
        among(reaching(best, sampling.top_p))
    if sampling.min_p is not None:
        among({id for id in best if shares[id] >= sampling.min_p * shares[best[0]]})
    if sampling.typical_p is not None:
        surprise = -sum(share * math.log(share) for share in shares if share > 0)
        likely = [id for id in best if shares[id] > 0]
        likely.sort(key=lambda id: abs(-math.log(shares[id]) - surprise))
        among(reaching(likely, sampling.typical_p))
    return torch.tensor(shares, dtype=torch.float64)


def fit(counts: Tensor, shares: Tensor) -> float:
    """Return how likely counts as odd as these are (chi-square), rare tokens taken together."""
    assert not counts[shares == 0].any(), "what is left out was drawn"
    expected = shares * counts.sum()
    rare = (expected < 20) & (shares > 0)
    bins = [(counts[~rare & (shares > 0)], expected[~rare & (shares > 0)])]
    if float(expected[rare].sum()) >= 5:
        bins.append((counts[rare].sum()[None], expected[rare].sum()[None]))
    seen, wanted = (torch.cat(parts).double() for parts in zip(*bins, strict=True))
    found = chisquare(seen.numpy(), (wanted * seen.sum() / wanted.sum()).numpy())
    return float(found.pvalue)


@pytest.mark.parametrize("sampling", WAYS)
@pytest.mark.parametrize("seed", [3, 4])
def test_draws_come_as_often_as_they_are_likely(sampling: GenerationConfig, seed: int) -> None:
    row = rows(seed, holes=True)[1:2]
    chance = torch.from_numpy(uniforms(seed, [0], DRAWS))[0]
    counts = sample_next_ids(row.expand(DRAWS, -1), sampling, chance).bincount(
        minlength=row.shape[1]
    )
    assert fit(counts, exact(row[0], sampling)) > 1e-3
    # A distribution only a little different is told from it.
    other = GenerationConfig(temperature=1.15 * sampling.temperature)
    wrong = exact(row[0].masked_fill(exact(row[0], sampling) == 0, NEG_INF), other)
    assert fit(counts, wrong) < 1e-3


def test_chance_depends_on_seed_text_and_token_alone() -> None:
    together = torch.from_numpy(uniforms(7, range(4), 9))
    for text in range(4):
        assert torch.equal(torch.from_numpy(uniforms(7, [text], 5))[0], together[text, :5])
    assert len(together.unique()) == together.numel()
    assert not torch.isin(torch.from_numpy(uniforms(8, range(4), 9)), together).any()
    assert ((together >= 0) & (together < 1)).all()
    # Copies of a text have numbers of their own, high above those of prompts.
    assert not torch.isin(
        torch.from_numpy(uniforms(7, [1 << 32, 2 << 32, (1 << 32) + 3], 9)), together
    ).any()
    assert torch.from_numpy(uniforms(2**64 - 1, [5], 2)).shape == (1, 2)
