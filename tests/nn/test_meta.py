"""Networks on the meta device: the same parameters as with weights, and no import of a compiler."""

import subprocess
import sys

import pytest
import torch
from torch import Tensor, nn

from kinfolk.families import families, family, index
from kinfolk.nn.meta import count_parameters, meta_device, meta_network

EVERY_FAMILY = """
import sys
from kinfolk.families import family, index
from kinfolk.nn.meta import parameter_count
for name in index():
    for config in family(name).sizes.values():
        parameter_count(config)
print(*sys.modules)
"""


@pytest.mark.parametrize("name", families())
def test_a_network_has_the_parameters_and_buffers_of_the_one_with_weights(name: str) -> None:
    config = family(name).sizes[next(iter(family(name).sizes))]
    real, empty = config.build(), meta_network(config)
    assert count_parameters(real) == count_parameters(empty) > 0

    def described(model: nn.Module) -> dict[str, tuple[torch.Size, torch.dtype]]:
        tensors: dict[str, Tensor] = model.state_dict(keep_vars=True)
        return {key: (value.shape, value.dtype) for key, value in tensors.items()}

    assert described(real) == described(empty)
    assert all(tensor.is_meta for tensor in empty.state_dict().values())


def test_every_size_of_every_family_is_counted_without_the_compiler_of_torch() -> None:
    found = subprocess.run(
        [sys.executable, "-c", EVERY_FAMILY], capture_output=True, text=True, check=True
    )
    modules = {*found.stdout.split()}
    assert {f"kinfolk.families.{name}" for name in index()} <= modules
    assert modules.isdisjoint({"torch._dynamo", "sympy"})


def test_weights_of_a_device_are_drawn() -> None:
    with meta_device():
        weight = torch.zeros(50, 50, device="cpu")
        nn.init.normal_(weight)
        drawn = torch.randn_like(weight)
    assert weight.std() > 0.5
    assert not drawn.is_meta
    assert drawn.std() > 0.5
