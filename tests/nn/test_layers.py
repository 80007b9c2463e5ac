"""What each token does by itself."""

import math

import pytest
import torch

from kinfolk.errors import UserError
from kinfolk.nn.layers import (
    ACTIVATIONS,
    FeedForward,
    GatedFeedForward,
    get_activation,
)


def test_the_two_gelus_are_the_exact_one_and_its_approximation() -> None:
    x = torch.linspace(-4, 4, 101, dtype=torch.float64)
    exact = x / 2 * (1 + torch.erf(x / math.sqrt(2)))
    approximate = x / 2 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    torch.testing.assert_close(get_activation("gelu")(x), exact)
    torch.testing.assert_close(get_activation("gelu_new")(x), approximate)
    torch.testing.assert_close(get_activation("gelu_pytorch_tanh")(x), approximate)
    assert (exact - approximate).abs().max() > 1e-4


def test_an_unknown_bend_names_those_there_are() -> None:
    with pytest.raises(UserError, match=r"activation 'mish' is not supported.*relu.*tanh"):
        get_activation("mish")


@pytest.mark.parametrize("bend", ACTIVATIONS)
def test_it_widens_bends_and_narrows(bend: str) -> None:
    part, x = FeedForward(4, 6, bend), torch.randn(2, 3, 4)
    middle = ACTIVATIONS[bend](x @ part.up_proj.weight.T + part.up_proj.bias)
    torch.testing.assert_close(part(x), middle @ part.down_proj.weight.T + part.down_proj.bias)


def test_the_gate_is_bent_and_the_other_half_is_not() -> None:
    part, x = GatedFeedForward(4, 6, "relu", bias=False), torch.randn(2, 3, 4)
    middle = (x @ part.gate_proj.weight.T).relu() * (x @ part.up_proj.weight.T)
    torch.testing.assert_close(part(x), middle @ part.down_proj.weight.T)
    assert len(list(part.parameters())) == 3
