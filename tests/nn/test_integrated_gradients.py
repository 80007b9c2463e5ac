"""Integrated gradients agree with captum and add up to the difference of the outputs."""

import pytest
import torch
from torch import Tensor

from kinfolk.nn.integrated_gradients import integrated_gradients
from support.attributions import open_captum

X = torch.tensor([0.5, -1.0, 2.0, 0.25], dtype=torch.float64)
# captum 0.9.0: IntegratedGradients(network).attribute(X[None], n_steps=20), its default method.
CAPTUM = [0.03427055940697244, -0.05834835145245219, -0.010979242294431542, -0.016070115345204656]


def network(x: Tensor) -> Tensor:
    """Return the probability that two layers give to the first of two classes."""
    first = torch.sin(1 + torch.arange(12, dtype=x.dtype).reshape(3, 4))
    second = torch.cos(2 + torch.arange(6, dtype=x.dtype).reshape(2, 3))
    return (torch.tanh(x @ first.T) @ second.T).softmax(-1)[..., 0]


def test_attributions_are_those_that_captum_computed() -> None:
    found = integrated_gradients(network, X, steps=20)
    assert found.steps == 20
    assert found.attributions.tolist() == pytest.approx(CAPTUM, rel=1e-7)  # its points are float32


@pytest.mark.parity
@pytest.mark.parametrize("steps", [5, 20])
def test_attributions_are_those_of_captum(steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    attr = open_captum(monkeypatch)
    expected = attr.IntegratedGradients(network).attribute(
        X[None], n_steps=steps, method="gausslegendre"
    )
    found = integrated_gradients(network, X, steps=steps, max_steps=steps)
    torch.testing.assert_close(found.attributions, expected[0], rtol=1e-7, atol=1e-12)


def test_attributions_add_up_to_the_difference_of_the_outputs() -> None:
    found = integrated_gradients(network, X)
    difference = float(network(X) - network(torch.zeros_like(X)))
    assert found.difference == pytest.approx(difference)
    assert found.total == pytest.approx(difference, rel=1e-6)
    assert found.error < 1e-6


def test_points_double_until_a_steep_function_is_complete() -> None:
    def steep(x: Tensor) -> Tensor:
        return torch.sigmoid(400 * (x.sum(-1) - 1.0))

    coarse = integrated_gradients(steep, X, steps=5, max_steps=5)
    fine = integrated_gradients(steep, X, steps=5)
    assert coarse.error > 0.01 and coarse.steps == 5
    assert fine.error <= 0.01 and fine.steps > 5


def test_the_error_of_small_values_is_relative_to_their_difference() -> None:
    """A probability of 1e-8 is as complete, after as many points, as one near 1."""

    def steep(x: Tensor) -> Tensor:
        return torch.sigmoid(400 * (x.sum(-1) - 1.0))

    def small(x: Tensor) -> Tensor:
        return 1e-8 * steep(x)

    coarse = integrated_gradients(small, X, steps=5, max_steps=5)
    assert coarse.error == pytest.approx(integrated_gradients(steep, X, steps=5, max_steps=5).error)
    fine = integrated_gradients(small, X, steps=5)
    assert fine.steps == integrated_gradients(steep, X, steps=5).steps > 5
    assert abs(fine.total - fine.difference) <= 0.01 * abs(fine.difference)


def test_a_function_that_stays_the_same_is_complete() -> None:
    def constant(x: Tensor) -> Tensor:
        return 0.25 + 0 * x.sum(-1)

    assert integrated_gradients(constant, X).error == 0


def test_rows_at_a_time_change_nothing() -> None:
    alone = integrated_gradients(network, X, max_rows=1)
    together = integrated_gradients(network, X, max_rows=64)
    torch.testing.assert_close(alone.attributions, together.attributions)
