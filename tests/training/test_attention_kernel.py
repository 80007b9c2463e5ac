"""`train.attention` chooses a kernel that can compute the attention of every network in a model."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from kinfolk.errors import UserError
from kinfolk.families import families
from kinfolk.training import attention_kernel
from kinfolk.training.attention_kernel import sparse_kernel


@pytest.fixture(autouse=True)
def modern_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the choice that an H200 with Triton would have."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    monkeypatch.setattr(attention_kernel, "HAS_TRITON", True)


def model(name: str, **fields: Any) -> Any:
    return replace(families()[name].config("nano"), **fields).build()


@pytest.mark.parametrize(
    ("name", "kernel"),
    [
        ("gpt2", "triton"),
        ("gpt3", "triton"),
        ("bert", "triton"),
        ("electra", "triton"),
        ("glm", "triton"),
        ("transformer", "triton"),
        ("t5", None),
        ("xlnet", None),
        ("transformer_xl", None),
    ],
)
def test_auto_is_flex_in_a_compiled_model_and_triton_in_others(
    name: str, kernel: str | None
) -> None:
    network = model(name)
    assert sparse_kernel(network, "auto", compiled=True, half=True) == "flex"
    assert sparse_kernel(network, "auto", compiled=False, half=True) == kernel
    assert sparse_kernel(network, "auto", compiled=False, half=False) is None
    assert sparse_kernel(network, "sdpa", compiled=True, half=True) is None
    assert sparse_kernel(network, "flex", compiled=True, half=True) == "flex"


def test_heads_of_the_generator_count_too() -> None:
    electra = model("electra", hidden_size=192, num_heads=3, generator_size=0.25)
    assert attention_kernel.head_dims(electra) == {48, 64}
    assert sparse_kernel(electra, "auto", compiled=False, half=True) is None
    with pytest.raises(UserError, match="needs heads of 16, 32, 64, 128 features, not 48"):
        sparse_kernel(electra, "triton", compiled=True, half=True)


def test_a_kernel_that_cannot_run_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"attention=triton has no bias.*which t5 needs"):
        sparse_kernel(model("t5"), "triton", compiled=True, half=True)
    with pytest.raises(UserError, match="attention=varlen computes in bfloat16 on CUDA"):
        sparse_kernel(model("bert"), "varlen", compiled=True, half=False)
    with pytest.raises(UserError, match="attention=flex is compiled for rows of one length"):
        sparse_kernel(model("bert"), "flex", compiled=False, half=True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (7, 5))
    with pytest.raises(UserError, match=r"needs a GPU of compute capability 8\.0 or newer"):
        sparse_kernel(model("bert"), "triton", compiled=True, half=True)
    assert sparse_kernel(model("bert"), "auto", compiled=False, half=True) is None
