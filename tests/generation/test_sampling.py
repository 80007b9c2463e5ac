"""How a token is chosen from its scores."""

import pytest
import torch
from torch import Tensor
from transformers.generation.logits_process import (
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from kinfolk.errors import UserError
from kinfolk.generation.sampling import (
    GREEDY,
    Sampling,
    ban,
    choose,
    temper,
    top_k,
    top_p,
    uniforms,
)


@pytest.fixture
def logits() -> Tensor:
    return 3 * torch.randn(6, 40, generator=torch.Generator().manual_seed(0))


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
    ],
)
def test_a_setting_that_means_nothing_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(UserError, match=next(iter(wrong))):
        Sampling(**wrong)  # type: ignore[arg-type]


def test_a_seed_below_zero_is_refused() -> None:
    with pytest.raises(UserError, match="seed -1"):
        uniforms(-1, [0], 1)


@pytest.mark.parity
def test_filters_leave_what_transformers_leaves(logits: Tensor) -> None:
    ids = torch.zeros(6, 1, dtype=torch.long)
    assert torch.equal(top_k(logits, 5), TopKLogitsWarper(5)(ids, logits))
    assert torch.equal(top_p(logits, 0.8), TopPLogitsWarper(0.8)(ids, logits))
    theirs = TemperatureLogitsWarper(0.7)(ids, logits)
    torch.testing.assert_close(temper(logits, 0.7).softmax(-1), theirs.softmax(-1))


@pytest.mark.parametrize("p", [1e-9, 0.3, 0.9, 1.0])
def test_top_p_is_the_smallest_set_that_reaches_p(logits: Tensor, p: float) -> None:
    shares = logits.double().softmax(-1)
    kept = top_p(logits.double(), p).isfinite()
    assert kept.any(-1).all()
    assert ((shares * kept).sum(-1) >= p - 1e-12).all()
    least = shares.where(kept, torch.inf).amin(-1)
    assert ((shares * kept).sum(-1) - least < p).all()


def test_top_k_beyond_the_vocabulary_keeps_all(logits: Tensor) -> None:
    assert torch.equal(top_k(logits, 10**6), logits)


def test_temperature_zero_top_one_and_a_tiny_temperature_are_greedy(logits: Tensor) -> None:
    best = logits.argmax(-1)
    chance = torch.linspace(0, 0.999, 6)
    for sampling in (GREEDY, Sampling(top_k=1), Sampling(temperature=1e-40), Sampling(top_p=1e-6)):
        assert torch.equal(choose(logits, sampling, chance), best)


@pytest.mark.parametrize("chance", [0.0, 1 - 2**-53])
def test_what_is_banned_is_never_drawn(logits: Tensor, chance: float) -> None:
    banned = torch.tensor([0, 1, 38, 39])
    extreme = torch.full((6,), chance, dtype=torch.float64)
    for sampling in (Sampling(), Sampling(temperature=100.0), GREEDY):
        assert not torch.isin(choose(ban(logits, banned), sampling, extreme), banned).any()


def test_draws_follow_the_probabilities(logits: Tensor) -> None:
    chance = uniforms(3, range(1), 20_000)[0]
    row = logits[:1]
    counts = choose(row.expand(20_000, -1), Sampling(), chance).bincount(minlength=40)
    torch.testing.assert_close(counts / 20_000, row[0].softmax(-1), atol=0.012, rtol=0)


def test_chance_depends_on_seed_text_and_token_alone() -> None:
    together = uniforms(7, range(4), 9)
    for text in range(4):
        assert torch.equal(uniforms(7, [text], 5)[0], together[text, :5])
    assert len(together.unique()) == together.numel()
    assert not torch.isin(uniforms(8, range(4), 9), together).any()
    assert ((together >= 0) & (together < 1)).all()
