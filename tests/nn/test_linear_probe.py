"""Linear probes: the optimum, the choice of the penalty, mixes of layers."""

import pytest
import torch
from torch import Tensor

from kinfolk.batch import IGNORE_INDEX
from kinfolk.nn.linear_probe import Standardizer, fit_probe, minimize


def blobs(items: int, *, seed: int, signal: float = 2.0) -> tuple[Tensor, Tensor]:
    """Draw two classes that differ in the first of ten features."""
    draw = torch.Generator().manual_seed(seed)
    targets = torch.randint(2, (items,), generator=draw)
    features = torch.randn(items, 10, generator=draw)
    features[:, 0] += signal * targets
    return features, targets


def accuracy(scores: Tensor, targets: Tensor) -> float:
    return float((scores.argmax(1) == targets).double().mean())


def test_a_probe_ends_at_the_optimum_of_the_penalized_loss() -> None:
    features, targets = blobs(300, seed=1)
    probe = fit_probe([features], targets, [features], targets, outputs=2, penalties=(0.01,))
    standardized = probe.standardizer([features])
    weight = probe.weight.clone().requires_grad_()
    bias = probe.bias.clone().requires_grad_()
    scores = standardized[0] @ weight + bias
    loss = torch.nn.functional.cross_entropy(scores, targets) + 0.005 * weight.square().sum()
    for gradient in torch.autograd.grad(loss, [weight, bias]):
        assert gradient.abs().max() < 1e-3


def test_dev_items_choose_the_penalty() -> None:
    noise, targets = blobs(60, seed=3, signal=0.3)
    dev, dev_targets = blobs(400, seed=4, signal=0.3)
    chosen = fit_probe([noise], targets, [dev], dev_targets, outputs=2)
    weak = fit_probe([noise], targets, [dev], dev_targets, outputs=2, penalties=(1e-4,))
    assert chosen.penalty > 1e-3
    features = chosen.standardizer([dev])
    assert chosen.loss(features, dev_targets) < weak.loss(features, dev_targets)


def test_features_are_standardized_and_constant_ones_are_ignored() -> None:
    features, targets = blobs(200, seed=5)
    scaled = torch.cat([1000 * features + 7, torch.full((200, 1), 3.0)], dim=1)
    standardized = Standardizer.fit([scaled])([scaled])[0]
    assert standardized[:, :10].std(0, correction=0) == pytest.approx(torch.ones(10), abs=1e-3)
    assert (standardized[:, 10] == 0).all()
    plain = fit_probe([features], targets, [features], targets, outputs=2)
    probe = fit_probe([scaled], targets, [scaled], targets, outputs=2)
    assert probe([scaled]).numpy() == pytest.approx(plain([features]).numpy(), abs=1e-2)


def test_a_mix_gives_its_weight_to_the_layer_that_knows() -> None:
    useful, targets = blobs(400, seed=6)
    useless = torch.randn(400, 4, generator=torch.Generator().manual_seed(7))  # a smaller layer
    layers = [useless, useful]
    mixed = fit_probe(layers, targets, layers, targets, outputs=2)
    alone = fit_probe([useful], targets, [useful], targets, outputs=2)
    assert sum(mixed.mix_weights) == pytest.approx(1)
    assert mixed.mix_weights[1] > 0.7
    assert accuracy(mixed(layers), targets) >= accuracy(alone([useful]), targets) - 0.02


def test_unknown_labels_of_dev_items_do_not_count() -> None:
    features, targets = blobs(100, seed=8)
    probe = fit_probe([features], targets, [features], targets, outputs=2)
    standardized = probe.standardizer([features])
    known, unknown = targets.clone(), targets.clone()
    unknown[:50] = IGNORE_INDEX
    rest = probe.loss(standardized[:, 50:], known[50:])
    assert probe.loss(standardized, unknown).item() == pytest.approx(rest.item(), abs=1e-6)


def test_numbers_are_fitted_by_least_squares() -> None:
    draw = torch.Generator().manual_seed(9)
    features = torch.randn(300, 5, generator=draw)
    numbers = features @ torch.tensor([1.0, -1.0, 0.5, 0.0, 0.0])
    probe = fit_probe([features], numbers, [features], numbers, outputs=1)
    assert probe([features])[:, 0].numpy() == pytest.approx(numbers.numpy(), abs=0.05)


def test_a_fit_does_not_depend_on_where_it_starts() -> None:
    features, targets = blobs(300, seed=10)
    cold = fit_probe([features], targets, [features], targets, outputs=2, penalties=(0.01,))
    standardized = cold.standardizer([features])
    warm = fit_probe([features], targets, [features], targets, outputs=2, penalties=(1.0,))
    warm = minimize(warm, standardized, targets, 0.01)
    assert warm.weight.numpy() == pytest.approx(cold.weight.numpy(), abs=5e-3)
