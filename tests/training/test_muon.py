"""Muon: orthogonalized updates for the matrices of layers, AdamW for everything else."""

import math
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from kinfolk.errors import UserError
from kinfolk.families.gpt2 import GPT2Config
from kinfolk.families.ulmfit import ULMFiTConfig
from kinfolk.training.config import TrainConfig
from kinfolk.training.muon import COEFFICIENTS, MOMENTUM, Muon, by_shape, orthogonalize
from kinfolk.training.optimizer import build_optimizer, layer_matrices, load_optimizer_state

TRAIN = TrainConfig(optimizer="muon", lr=4e-3, matrix_lr=0.02, weight_decay=0.1)
SMALL = GPT2Config(vocab_size=11, hidden_size=8, num_layers=2, num_heads=2, max_length=6)


def built(**changes: Any) -> tuple[nn.Module, Muon]:
    torch.manual_seed(0)
    model = SMALL.build()
    optimizer = build_optimizer(model, TRAIN, **changes)
    assert isinstance(optimizer, Muon)
    return model, optimizer


def give_gradients(model: nn.Module, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator)


def set_rates(optimizer: Muon, lr: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = lr * group.get("scale", 1.0)


@pytest.mark.parametrize("shape", [(2, 5, 5), (1, 3, 12), (3, 12, 3)])
def test_singular_vectors_stay_and_singular_values_become_about_one(
    shape: tuple[int, int, int],
) -> None:
    matrices = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    u, s, v = torch.linalg.svd(matrices, full_matrices=False)
    rotated = u.mT @ orthogonalize(matrices) @ v.mT
    diagonal = rotated.diagonal(dim1=-2, dim2=-1)
    assert (rotated - torch.diag_embed(diagonal)).abs().max() < 1e-4
    large = s > 0.05 * torch.linalg.matrix_norm(matrices)[:, None]
    assert large.any() and ((diagonal > 0.6) & (diagonal < 1.3))[large].all()


def test_matrices_of_layers_have_their_own_rate_and_each_parameter_comes_once() -> None:
    model, optimizer = built()
    known = {id(p): name for name, p in model.named_parameters()}
    groups = {
        group["sizes"]: {known[id(p)].removeprefix("layers.") for p in group["params"]}
        for group in optimizer.param_groups
        if group["sizes"] is not None
    }
    parts = "self_attention.sublayer.qkv_proj", "self_attention.sublayer.out_proj"
    up, down = "feed_forward.sublayer.up_proj", "feed_forward.sublayer.down_proj"
    layers = range(SMALL.num_layers)
    assert groups == {
        (8, 8, 8): {f"{i}.{parts[0]}.weight" for i in layers},
        (8,): {f"{i}.{part}.weight" for i in layers for part in (parts[1], down)},
        (32,): {f"{i}.{up}.weight" for i in layers},
    }
    assert {g["scale"] for g in optimizer.param_groups if g["sizes"]} == {0.02 / 4e-3}
    assert all("scale" not in g for g in optimizer.param_groups if not g["sizes"])
    found = [p for group in optimizer.param_groups for p in group["params"]]
    assert sorted(map(id, found)) == sorted(map(id, model.parameters()))


def expected_update(gradients: list[Tensor]) -> Tensor:
    """Return the update of one matrix by its gradients, written out."""
    momentum = torch.zeros_like(gradients[0])
    for gradient in gradients:
        momentum = MOMENTUM * momentum + (1 - MOMENTUM) * gradient
    x = (1 - MOMENTUM) * gradients[-1] + MOMENTUM * momentum
    rows, columns = x.shape
    x = x / x.norm()
    a, b, c = COEFFICIENTS
    for _ in range(5):
        if rows <= columns:
            square = x @ x.T
            x = a * x + b * square @ x + c * square @ square @ x
        else:
            square = x.T @ x
            x = a * x + b * x @ square + c * x @ square @ square
    return x * math.sqrt(max(1.0, rows / columns))


def test_an_update_equals_the_definition_and_query_key_and_value_are_three_matrices() -> None:
    model, optimizer = built()
    layer: Any = model.get_submodule("layers.1")
    weights = {
        "qkv": layer.self_attention.sublayer.qkv_proj.weight,
        "up": layer.feed_forward.sublayer.up_proj.weight,
        "down": layer.feed_forward.sublayer.down_proj.weight,
    }
    set_rates(optimizer, 4e-3)
    gradients: dict[str, list[Tensor]] = {name: [] for name in weights}
    for step in range(2):
        before = {name: weight.detach().clone() for name, weight in weights.items()}
        give_gradients(model, step)
        for name, weight in weights.items():
            gradients[name].append(weight.grad.clone())
        optimizer.step()
    for name, weight in weights.items():
        parts = 3 if name == "qkv" else 1
        split = [gradient.chunk(parts) for gradient in gradients[name]]
        update = torch.cat([expected_update(list(one)) for one in zip(*split, strict=True)])
        expected = before[name] * (1 - 0.02 * 0.1) - 0.02 * update
        torch.testing.assert_close(weight.detach(), expected, rtol=1e-4, atol=1e-5)


def test_all_other_parameters_are_updated_by_adamw() -> None:
    model, optimizer = built()
    torch.manual_seed(0)
    twin = SMALL.build()
    adamw = build_optimizer(twin, TrainConfig(lr=4e-3, weight_decay=0.1))
    set_rates(optimizer, 4e-3)
    for step in range(3):
        for one, two in ((model, optimizer), (twin, adamw)):
            give_gradients(one, step)
            two.step()
    matrices = {id(p) for p in layer_matrices(model)}
    others = dict(twin.named_parameters())
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, others[name]) == (id(parameter) not in matrices), name


def test_layer_wise_rates_apply_to_matrices_too() -> None:
    _, optimizer = built(layer_lr_decay=0.5)
    scales = [group["scale"] for group in optimizer.param_groups if group["sizes"] == (32,)]
    assert scales == [0.25 * 5, 0.5 * 5]


def test_a_saved_state_continues_to_the_bit() -> None:
    model, optimizer = built()
    twin, other = built()
    give_gradients(model, 0)
    optimizer.step()
    twin.load_state_dict(model.state_dict())
    assert load_optimizer_state(other, deepcopy(optimizer.state_dict()))
    for one, two in ((model, optimizer), (twin, other)):
        give_gradients(one, 1)
        two.step()
    for a, b in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(a, b)


def test_the_number_of_steps_of_a_file_goes_to_the_device_of_its_parameter() -> None:
    model, optimizer = built()
    give_gradients(model, 0)
    optimizer.step()
    elsewhere = SMALL.build().to("meta")
    other = build_optimizer(elsewhere, TRAIN)
    assert load_optimizer_state(other, deepcopy(optimizer.state_dict()))
    assert {state["step"].device.type for state in other.state.values()} == {"meta"}


def test_a_model_without_matrices_in_layers_is_refused() -> None:
    model = ULMFiTConfig(vocab_size=11, hidden_size=8, num_layers=1).build()
    with pytest.raises(UserError, match=r"train\.optimizer=muon updates the matrices"):
        build_optimizer(model, TRAIN)


def test_matrices_of_one_shape_are_updated_together() -> None:
    shapes = [(2, 3), (3, 2), (2, 3)]
    assert by_shape([torch.zeros(shape) for shape in shapes]) == [[0, 2], [1]]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_replayed_graph_updates_as_its_kernels_do(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for largest in (0, 2**24):  # numbers of the matrices that are replayed
        monkeypatch.setattr("kinfolk.training.muon.MAX_GRAPH_SIZE", largest)
        model, _ = built()
        model = model.cuda()
        optimizer = build_optimizer(model, TRAIN)
        assert isinstance(optimizer, Muon)
        for seed in range(3):
            generator = torch.Generator().manual_seed(seed)
            for parameter in model.parameters():
                parameter.grad = torch.randn(parameter.shape, generator=generator).cuda()
            optimizer.step()
        assert bool(optimizer.graphs) == bool(largest)
        found.append([parameter.detach().clone() for parameter in model.parameters()])
    for plain, replayed in zip(*found, strict=True):
        assert torch.equal(plain, replayed)
