"""Large products go to oneDNN on a CPU, and are those of torch."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from kinfolk.batch import IGNORE_INDEX
from kinfolk.machine import cpu_family
from kinfolk.nn import cpu_products, losses
from kinfolk.nn.cpu_products import suits_onednn
from kinfolk.nn.layers import Linear
from kinfolk.training.flops import FlopCounter

needs_onednn = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="oneDNN")


@pytest.fixture(params=[False, True], ids=["narrow", "wide"])
def vectors(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Take the CPU for one of either kind, and every product for a large one."""
    for module in (cpu_products, losses):
        monkeypatch.setattr(module, "has_wide_vectors", lambda: request.param)
    monkeypatch.setattr(cpu_products, "ONEDNN_PRODUCTS", 0)


@needs_onednn
@pytest.mark.usefixtures("vectors")
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("sizes", [(7, 4), (4, 7)])
@pytest.mark.parametrize("rows", [(5,), (2, 3), (2, 1, 3)])
def test_a_product_of_onednn_has_the_values_gradients_and_flops_of_torchs(
    bias: bool, sizes: tuple[int, int], rows: tuple[int, ...]
) -> None:
    layer = Linear(*sizes, bias=bias)
    x = torch.randn(*rows, sizes[0], requires_grad=True)
    assert suits_onednn(x, layer.weight)
    # A gradient that is not contiguous.
    wanted = torch.randn(*rows, sizes[1]).transpose(0, 1)
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
        assert one.is_contiguous()
        torch.testing.assert_close(one, other)
    assert flops[0] == flops[1] > 0


@needs_onednn
@pytest.mark.usefixtures("vectors")
def test_no_second_matrix_of_onednn_has_gaps(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Tensor] = []

    def product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        given.append(weight)
        return F.linear(x, weight, bias)

    monkeypatch.setattr(cpu_products, "_onednn", product)
    for sizes in ((7, 4), (4, 7)):
        layer, x = Linear(*sizes), torch.randn(5, 2 * sizes[0])[:, ::2].requires_grad_()
        out = layer(x)
        out.backward(torch.randn(5, 2 * sizes[1])[:, ::2])
    assert len(given) >= 4
    assert all(w.is_contiguous() or w.t().is_contiguous() for w in given)
    assert not suits_onednn(x, torch.randn(4, 14)[:, ::2])


@needs_onednn
@pytest.mark.usefixtures("vectors")
def test_a_product_without_a_gradient_is_the_same() -> None:
    layer, x = Linear(7, 4), torch.randn(5, 7)
    with torch.no_grad():
        torch.testing.assert_close(layer(x), F.linear(x, layer.weight, layer.bias))


@needs_onednn
def test_onednn_multiplies_large_matrices_in_float32() -> None:
    rows = cpu_products.ONEDNN_PRODUCTS // 256**2
    x, weight = torch.randn(rows, 256), torch.randn(256, 256)
    assert suits_onednn(x, weight)
    assert not suits_onednn(x[: rows - 1], weight)
    assert not suits_onednn(x.double(), weight.double())
    assert not suits_onednn(x.to("meta"), weight.to("meta"))
    with torch.autocast("cpu", torch.bfloat16):
        assert not suits_onednn(x, weight)


def test_a_torch_without_the_product_of_onednn_multiplies_by_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def missing(*arguments: object) -> None:
        raise AttributeError("_linear_pointwise")

    cpu_products.onednn_multiplies.cache_clear()
    monkeypatch.setattr(cpu_products, "_onednn", missing)
    try:
        assert not cpu_products.onednn_multiplies()
        assert Linear(512, 512)(torch.randn(256, 512)).requires_grad
    finally:
        cpu_products.onednn_multiplies.cache_clear()


@needs_onednn
@pytest.mark.usefixtures("vectors")
def test_frozen_weights_and_inputs_of_onednn_get_no_gradient() -> None:
    layer, x = Linear(7, 4), torch.randn(3, 7)
    layer.weight.requires_grad_(False)
    layer(x).sum().backward()
    assert layer.weight.grad is None and x.grad is None
    assert layer.bias.grad is not None and layer.bias.grad.tolist() == [3.0] * 4


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Compute a loss in chunks of 5 rows, and products of 2 rows each."""
    monkeypatch.setattr(losses, "CHUNK_LOGITS", 5 * 24)
    monkeypatch.setattr(losses, "NEW_LOGITS", 2 * 24)
    return


@needs_onednn
@pytest.mark.usefixtures("vectors", "small_chunks")
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("rows", [1, 5, 13])
def test_the_loss_by_onednn_is_the_cross_entropy(rows: int, bias: bool, smoothing: float) -> None:
    hidden, weight = torch.randn(rows, 8), torch.randn(24, 8)  # 20 words and 4 rows of padding
    scale, labels = torch.randn(20), torch.randint(20, (rows,))
    labels[1::4] = IGNORE_INDEX
    leaves = [hidden, weight, *([scale] if bias else [])]

    def ours(h: Tensor, w: Tensor, b: Tensor | None = None) -> Tensor:
        return losses.smoothed_linear_cross_entropy(h, w, b, labels, 20, smoothing)[0]

    def plain(h: Tensor, w: Tensor, b: Tensor | None = None) -> Tensor:
        settings = {"ignore_index": IGNORE_INDEX, "label_smoothing": smoothing}
        return F.cross_entropy(F.linear(h, w[:20], b), labels, reduction="sum", **settings)

    def gradients(loss: Callable[..., Tensor]) -> list[Tensor]:
        given = [leaf.clone().requires_grad_() for leaf in leaves]
        total = loss(*given)
        return [total, *torch.autograd.grad(3 * total, given)]

    for one, other in zip(gradients(ours), gradients(plain), strict=True):
        torch.testing.assert_close(one, other)


def test_the_family_of_the_cpu_is_read_from_the_system(tmp_path: Path) -> None:
    assert cpu_family(tmp_path) == ("", 0)
    (tmp_path / "proc").mkdir()
    for vendor, family in (("AuthenticAMD", 26), ("GenuineIntel", 6)):
        lines = ["processor\t: 0", f"vendor_id\t: {vendor}", f"cpu family\t: {family}", "", ""]
        text = "\n".join(lines) + "processor\t: 1\ncpu family\t: 1\n"
        (tmp_path / "proc" / "cpuinfo").write_text(text)
        assert cpu_family(tmp_path) == (vendor, family)
    (tmp_path / "proc" / "cpuinfo").write_text("processor\t: 0\nCPU architecture: 8\n")
    assert cpu_family(tmp_path) == ("", 0)
