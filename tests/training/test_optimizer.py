"""Who is decayed, and that the RMS-scaled AdamW is what its formula says."""

import copy
import math
from typing import Any, get_args

import pytest
import torch
from torch import Tensor, nn

from kinfolk.errors import UserError
from kinfolk.nn.language_model import WithBiases
from kinfolk.training.config import Optimizer, TrainConfig
from kinfolk.training.optimizer import AdamWRMS, build_optimizer, param_groups

# Muon splits the groups of a model with layers: test_muon.
OPTIMIZERS = [name for name in get_args(Optimizer) if name != "muon"]
SETTINGS: dict[str, Any] = {"lr": 1e-2, "weight_decay": 0.1, "betas": (0.9, 0.99), "eps": 1e-8}


class Net(WithBiases):
    def __init__(self) -> None:
        super().__init__()
        self.token_embeddings = nn.Embedding(5, 4)
        self.hidden = nn.Linear(4, 4)
        self.content_bias = nn.Parameter(torch.randn(2, 4))  # declared a bias, a matrix by shape
        self.norm_bias = nn.Linear(4, 4, bias=False)  # a matrix, whatever it is called
        self.last = nn.LayerNorm((1, 4))  # a norm, although its weight has two axes
        self.head = nn.Linear(4, 5, bias=False)
        self.head.weight = self.token_embeddings.weight
        self.frozen = nn.Linear(4, 4)
        self.frozen.requires_grad_(False)

    def bias_parameters(self) -> tuple[nn.Parameter, ...]:
        return (self.content_bias,)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.hidden(self.token_embeddings(ids)) + self.content_bias.sum(0)
        return self.head(self.last(self.norm_bias(x)[:, None])).logsumexp(-1).square().sum()


def names(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[tuple[float, set[str]]]:
    known = {id(parameter): name for name, parameter in model.named_parameters()}
    return [
        (group["weight_decay"], {known[id(p)] for p in group["params"]})
        for group in optimizer.param_groups
    ]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_only_matrices_are_decayed_and_each_parameter_comes_once(name: Optimizer) -> None:
    model = Net()
    built = build_optimizer(model, TrainConfig(optimizer=name, **SETTINGS))
    assert names(model, built) == [
        (0.1, {"token_embeddings.weight", "hidden.weight", "norm_bias.weight"}),
        (0.0, {"hidden.bias", "content_bias", "last.weight", "last.bias"}),
    ]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_step_lowers_the_loss_and_leaves_frozen_parameters_alone(name: Optimizer) -> None:
    torch.manual_seed(0)
    model, ids = Net(), torch.tensor([0, 1, 2, 3])
    frozen = model.frozen.weight.clone()
    built = build_optimizer(model, TrainConfig(optimizer=name, **SETTINGS))
    losses = []
    for _ in range(5):
        built.zero_grad()
        loss = model(ids)
        loss.backward()
        built.step()
        losses.append(loss.item())
    assert losses == sorted(losses, reverse=True)
    assert torch.equal(model.frozen.weight, frozen)


def test_adamw_is_fused() -> None:
    built = build_optimizer(Net(), TrainConfig(**SETTINGS))
    assert all(group["fused"] for group in built.param_groups)


def test_a_model_with_nothing_to_learn_is_a_sentence() -> None:
    with pytest.raises(UserError, match="frozen"):
        build_optimizer(Net().requires_grad_(False), TrainConfig(**SETTINGS))


def scalar_step(
    x: list[float], g: list[float], m: list[float], v: list[float], n: int, decay: float
) -> None:
    """Do the formula on Python's numbers, one at a time."""
    rate, (beta1, beta2), eps = SETTINGS["lr"], SETTINGS["betas"], SETTINGS["eps"]
    size = max(1e-3, math.sqrt(sum(value * value for value in x) / len(x)))
    for i in range(len(x)):
        m[i] = beta1 * m[i] + (1 - beta1) * g[i]
        v[i] = beta2 * v[i] + (1 - beta2) * g[i] * g[i]
        mean, square = m[i] / (1 - beta1**n), v[i] / (1 - beta2**n)
        x[i] -= rate * decay * x[i] + rate * size * mean / (math.sqrt(square) + eps)


def test_adamw_rms_equals_a_scalar_loop() -> None:
    torch.manual_seed(0)
    matrix = nn.Parameter(torch.randn(3, 4, dtype=torch.float64))
    zeros = nn.Parameter(torch.zeros(5, dtype=torch.float64))  # its RMS is below the smallest
    late = nn.Parameter(torch.randn(2, dtype=torch.float64))  # has no gradient at first
    groups = [
        {"params": [matrix], "weight_decay": 0.1},
        {"params": [zeros, late], "weight_decay": 0.0},
    ]
    built = AdamWRMS(groups, lr=SETTINGS["lr"], betas=SETTINGS["betas"], eps=SETTINGS["eps"])
    tracks = [
        (p, 0.1 if p is matrix else 0.0, p.flatten().tolist(), [0.0] * p.numel(), [0.0] * p.numel())
        for p in (matrix, zeros, late)
    ]
    for step in range(1, 8):
        for parameter, decay, x, m, v in tracks:
            absent = parameter is late and step <= 2
            parameter.grad = None if absent else torch.randn_like(parameter)
            if parameter.grad is not None:
                n = step - 2 if parameter is late else step
                scalar_step(x, parameter.grad.flatten().tolist(), m, v, n, decay)
        built.step()
        for parameter, _, x, _, _ in tracks:
            expected = torch.tensor(x, dtype=torch.float64).view_as(parameter)
            torch.testing.assert_close(parameter.data, expected, rtol=1e-12, atol=1e-15)


def test_adamw_rms_is_adamw_for_a_tensor_of_rms_one() -> None:
    ours = nn.Parameter(torch.tensor([1.0, -1.0, 1.0, -1.0]))
    theirs = nn.Parameter(ours.detach().clone())
    ours.grad = theirs.grad = torch.tensor([0.5, 1.0, -2.0, 0.0])
    AdamWRMS([{"params": [ours]}], lr=0.1, weight_decay=0.1).step()
    torch.optim.AdamW([theirs], lr=0.1, weight_decay=0.1).step()
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("name", ["adamw", "adafactor"])
def test_an_optimiser_of_torch_updates_as_torch_does_to_the_bit(name: Optimizer) -> None:
    torch.manual_seed(0)
    ours, theirs = Net(), Net()
    theirs.load_state_dict(ours.state_dict())
    train = TrainConfig(optimizer=name, **SETTINGS)
    built = build_optimizer(ours, train)
    groups = param_groups(theirs, train.weight_decay)
    expected = (
        torch.optim.Adafactor(groups, lr=train.lr)
        if name == "adafactor"
        else torch.optim.AdamW(groups, train.lr, train.betas, train.eps, fused=True)
    )
    for _ in range(4):
        for own, other in zip(ours.parameters(), theirs.parameters(), strict=True):
            own.grad = torch.randn_like(own)
            other.grad = own.grad.clone()
        built.step()
        expected.step()
        built.zero_grad()
        assert all(own.grad is None for own in ours.parameters() if own.requires_grad)
    for own, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.equal(own, other)
    assert repr(built.state_dict()) == repr(expected.state_dict())


def test_adamw_rms_stands_still_at_a_rate_of_zero() -> None:
    parameter = nn.Parameter(torch.randn(3, 3))
    before = parameter.detach().clone()
    parameter.grad = torch.randn(3, 3)
    parameter.grad[0] = 0
    AdamWRMS([{"params": [parameter]}], lr=0.0, weight_decay=0.1).step()
    assert torch.equal(parameter, before)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_state_loaded_into_a_fresh_optimiser_goes_on_to_the_bit(name: Optimizer) -> None:
    torch.manual_seed(0)
    model, ids = Net(), torch.tensor([0, 1, 2, 3])
    built = build_optimizer(model, TrainConfig(optimizer=name, **SETTINGS))

    def go(model: nn.Module, built: torch.optim.Optimizer) -> None:
        for _ in range(3):
            built.zero_grad()
            model(ids).backward()
            built.step()

    go(model, built)
    twin = copy.deepcopy(model)
    second = build_optimizer(twin, TrainConfig(optimizer=name, **SETTINGS))
    second.load_state_dict(copy.deepcopy(built.state_dict()))
    go(model, built)
    go(twin, second)
    assert all(
        torch.equal(a, b) for a, b in zip(model.parameters(), twin.parameters(), strict=True)
    )


def test_a_closure_is_called_with_gradients() -> None:
    parameter = nn.Parameter(torch.ones(2, 2))
    built = AdamWRMS([{"params": [parameter]}], lr=0.1)

    def closure() -> Tensor:
        loss = parameter.square().sum()
        loss.backward()
        return loss

    assert built.step(closure).item() == 4.0
    assert (parameter < 1).all()
