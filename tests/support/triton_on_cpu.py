"""What the kernels of `nn/block_sparse.py` use of Triton, in torch on a CPU, one program at a time.

A load or a store beside its tensor is an error. Products and sums are in float32.
"""

import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import kinfolk

LAUNCH = ("num_warps", "num_stages")  # settings of a launch, which a kernel does not see


@dataclass
class Pointer:
    """Places in the memory of a tensor."""

    memory: Tensor  # flat
    offset: Any = 0

    @classmethod
    def to(cls, x: Tensor) -> "Pointer":
        """Point to the first number of a tensor."""
        size = x.untyped_storage().nbytes() // x.element_size() - x.storage_offset()
        return cls(x.as_strided((size,), (1,), x.storage_offset()))

    def __add__(self, offset: Any) -> "Pointer":
        return Pointer(self.memory, self.offset + offset)

    @property
    def dtype(self) -> Any:
        """The type of what is stored here."""
        return SimpleNamespace(element_ty=self.memory.dtype)

    def at(self, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the places, and which of them are read or written."""
        places = torch.as_tensor(self.offset)
        used = torch.tensor(True) if mask is None else mask
        used = used.expand(places.shape)
        assert bool(((places >= 0) & (places < len(self.memory)) | ~used).all()), "out of bounds"
        return places, used


def load(pointer: Pointer, mask: Tensor | None = None, other: float = 0) -> Tensor:
    """Read numbers, and another one where they are masked."""
    places, used = pointer.at(mask)
    return torch.where(used, pointer.memory[torch.where(used, places, 0)], other)


def store(pointer: Pointer, values: Tensor, mask: Tensor | None = None) -> None:
    """Write numbers where they are not masked."""
    places, used = pointer.at(mask)
    pointer.memory[places[used]] = values.expand(places.shape)[used]


class Kernel:
    """A kernel, whose programs run one after the other."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def __call__(self, *arguments: Any) -> Any:
        return self.function(*arguments)

    def __getitem__(self, grid: tuple[int]) -> Callable[..., None]:
        def launch(*arguments: Any, **settings: Any) -> None:
            given = [Pointer.to(x) if isinstance(x, Tensor) else x for x in arguments]
            constants = {name: x for name, x in settings.items() if name not in LAUNCH}
            for number in range(grid[0]):
                language.program_id = lambda axis, n=number: torch.tensor(n)
                self.function(*given, **constants)

        return launch


language: Any = ModuleType("triton.language")
vars(language).update(
    constexpr=int,
    int64=torch.int64,
    float32=torch.float32,
    arange=torch.arange,
    load=load,
    store=store,
    dot=lambda a, b: a.float() @ b.float(),
    trans=lambda x: x.T,
    where=torch.where,
    maximum=torch.maximum,
    max=lambda x, axis: x.amax(axis),
    sum=lambda x, axis: x.sum(axis),
    exp2=torch.exp2,
    log2=torch.log2,
    full=lambda shape, value, dtype: torch.full(shape, value, dtype=dtype),
    zeros=lambda shape, dtype: torch.zeros(shape, dtype=dtype),
)


@cache
def block_sparse_on_cpu() -> Any:
    """Return `kinfolk.nn.block_sparse` with kernels that run on a CPU."""
    triton: Any = ModuleType("triton")
    triton.jit, triton.language = Kernel, language
    path = f"{kinfolk.__path__[0]}/nn/block_sparse.py"
    spec = importlib.util.spec_from_file_location("block_sparse_on_cpu", path)
    assert spec is not None and spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (("triton", triton), ("triton.language", language)):
            patch.setitem(sys.modules, name, value)
        # Beside those of the module itself, where it can be imported.
        patch.setattr(
            torch.library,
            "triton_op",
            lambda name, mutates_args: torch.library.custom_op(
                f"{name}_on_cpu", mutates_args=mutates_args
            ),
        )
        spec.loader.exec_module(module)
    module.torch = SimpleNamespace(**vars(torch))
    module.torch.library = SimpleNamespace(wrap_triton=lambda kernel: kernel)
    return module
