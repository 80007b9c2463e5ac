"""What each token does by itself."""

import math

import pytest
import torch
import torch.nn.functional as F

from kinfolk.errors import UserError
from kinfolk.nn import layers
from kinfolk.nn.layers import (
    ACTIVATIONS,
    FeedForward,
    GatedFeedForward,
    Linear,
    get_activation,
    trains_by_onednn,
)
from kinfolk.training.flops import FlopCounter

needs_onednn = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="oneDNN")


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


@needs_onednn
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(5, 7), (2, 3, 7), (2, 1, 3, 7)])
def test_a_product_of_onednn_has_the_values_gradients_and_flops_of_torchs(
    bias: bool, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layers, "ONEDNN_PRODUCTS", 0)
    layer, x = Linear(7, 4, bias=bias), torch.randn(shape, requires_grad=True)
    assert trains_by_onednn(x, layer.weight)
    wanted = torch.randn(*shape[:-1], 4).transpose(0, 1)  # a gradient that is not contiguous
    found, flops = [], []
    for product in (layer, lambda x: F.linear(x, layer.weight, layer.bias)):
        with FlopCounter() as counter:
            out = product(x)
            own = torch.autograd.grad(
                (out.transpose(0, 1) * wanted).sum(), [x, *layer.parameters()]
            )
        found.append((out, *own))
        flops.append(counter.total)
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)
    assert flops[0] == flops[1] > 0


@needs_onednn
def test_onednn_multiplies_large_matrices_of_training_in_float32() -> None:
    rows = layers.ONEDNN_PRODUCTS // 256**2
    x, weight = torch.randn(rows, 256), torch.randn(256, 256)
    assert trains_by_onednn(x, weight)
    assert not trains_by_onednn(x[: rows - 1], weight)
    assert not trains_by_onednn(x.double(), weight.double())
    assert not trains_by_onednn(x.to("meta"), weight.to("meta"))
    with torch.no_grad():
        assert not trains_by_onednn(x, weight)
    with torch.autocast("cpu", torch.bfloat16):
        assert not trains_by_onednn(x, weight)


def test_a_torch_without_the_product_of_onednn_multiplies_by_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def missing(*arguments: object) -> None:
        raise AttributeError("_linear_pointwise")

    layers.onednn_multiplies.cache_clear()
    monkeypatch.setattr(layers, "_onednn", missing)
    try:
        assert not layers.onednn_multiplies()
        assert Linear(512, 512)(torch.randn(256, 512)).requires_grad
    finally:
        layers.onednn_multiplies.cache_clear()


@needs_onednn
def test_frozen_weights_and_inputs_of_onednn_get_no_gradient(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(layers, "ONEDNN_PRODUCTS", 0)
    layer, x = Linear(7, 4), torch.randn(3, 7)
    layer.weight.requires_grad_(False)
    layer(x).sum().backward()
    assert layer.weight.grad is None and x.grad is None
    assert layer.bias.grad is not None and layer.bias.grad.tolist() == [3.0] * 4
