"""NoisyTune: how wide the noise is, what it spares, and that its seed decides it."""

import math

import pytest
import torch
from torch import nn

from kinfolk.nn.embeddings import TokenEmbedding
from kinfolk.nn.init import init_weights_
from kinfolk.training.regularize import noisy_tune


def network() -> nn.ModuleDict:
    torch.manual_seed(0)
    model = nn.ModuleDict(
        {"tokens": TokenEmbedding(70, 64), "wide": nn.Linear(64, 200), "head": nn.Linear(200, 2)}
    )
    init_weights_(model, std=0.02)
    model["wide"].weight.data.mul_(10)  # type: ignore[operator, union-attr]
    return model


def differences(intensity: float, seed: int = 0) -> dict[str, torch.Tensor]:
    model = network()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    noisy_tune(model, intensity, seed=seed, fresh={*model["head"].parameters()})
    return {name: p.detach() - before[name] for name, p in model.named_parameters()}


def test_noise_is_uniform_and_as_wide_as_each_matrix_is_spread() -> None:
    weights = dict(network().named_parameters())
    noise = differences(0.15)
    for name, used in (("tokens.weight", slice(70)), ("wide.weight", slice(None))):
        width = 0.15 * weights[name][used].std().item()
        found = noise[name][used]
        assert found.abs().max().item() == pytest.approx(width / 2, rel=1e-2)
        assert found.abs().max().item() <= width / 2 * (1 + 1e-5)
        assert found.std().item() == pytest.approx(width / math.sqrt(12), rel=0.05)
        assert abs(found.mean().item()) < 0.02 * width


def test_vectors_the_new_head_and_rows_past_the_vocabulary_are_left_alone() -> None:
    noise = differences(0.15)
    moved = {name for name, change in noise.items() if change.any()}
    assert moved == {"tokens.weight", "wide.weight"}
    assert not noise["tokens.weight"][70:].any()


def test_noise_is_a_function_of_its_seed_and_takes_no_chance_from_others() -> None:
    state = torch.random.get_rng_state()
    network()
    expected = torch.rand(3)
    torch.random.set_rng_state(state)
    one, same, other = differences(0.15), differences(0.15), differences(0.15, seed=1)
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert not torch.equal(one["wide.weight"], other["wide.weight"])
    assert torch.equal(torch.rand(3), expected), "the global generator was drawn from"


def test_no_intensity_is_no_noise() -> None:
    assert not any(change.any() for change in differences(0.0).values())
