"""Int8 matrices and their products with rows of floats, by a kernel in C or by torch.

A matrix has one byte per weight and one scale per output. An input row is quantized between its
minimum and maximum, and products are summed in integers, so that a result does not depend on the
other rows of the batch. The kernel, int8.c, is compiled on first use and cached; without a
compiler, torch's int8 product gives the same result more slowly.
"""

import ctypes
import functools
import hashlib
import os
import platform
import shlex
import shutil
import stat
import subprocess
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

import torch
import torch.nn.functional as F
from torch import Tensor

from kinfolk.errors import UserError

LANES = 32  # outputs of a panel: see int8.c
STEP = 8  # inputs per iteration of its loop
SOURCE = Path(__file__).with_name("int8.c")
# No fused multiply-add: products and sums are rounded separately, as in torch.
FLAGS = ("-O3", "-march=native", "-std=gnu11", "-ffp-contract=off", "-fPIC", "-fopenmp")

Kernel = Callable[[int, int, int | None, int, int, int], int]


class Int8Matrix(ABC):
    """Weights of (outputs, inputs) as int8 from -127 to 127, and one scale per output."""

    def __init__(self, weight: Tensor) -> None:
        self.outputs, self.inputs = weight.shape
        absmax = weight.detach().abs().amax(1)
        inverse = torch.where(absmax < 1e-30, 0.0, 127 / absmax)
        bytes = (weight.detach() * inverse[:, None]).round_().nan_to_num_(0.0, 0.0, 0.0)
        # A weight that is not finite makes its output NaN.
        scales = torch.where(absmax.isfinite(), absmax / 127, torch.nan)
        self.pack(bytes.to(torch.int8), scales)

    @abstractmethod
    def pack(self, bytes: Tensor, scales: Tensor) -> None:
        """Store the weights in the layout of the product."""

    @abstractmethod
    def matmul(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """Return x @ weights.T + bias for contiguous rows in float32."""

    def __call__(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        if x.requires_grad:
            raise UserError("int8 products have no gradient: call them under torch.no_grad()")
        assert x.dtype is torch.float32 and x.shape[-1] == self.inputs, (x.dtype, x.shape)
        assert bias is None or len(bias) == self.outputs
        return self.matmul(x.contiguous(), bias)

    def __reduce__(self) -> NoReturn:
        raise UserError("int8 matrices cannot be copied or saved: copy the float32 network")


class TorchInt8Matrix(Int8Matrix):
    """The product of torch's int8 matmul."""

    def pack(self, bytes: Tensor, scales: Tensor) -> None:
        """Store them unchanged."""
        self.bytes, self.scales = bytes, scales
        self.totals = bytes.sum(1, dtype=torch.int32)

    def matmul(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """Compute the product in the order of int8.c."""
        rows = x.view(-1, self.inputs)
        if not len(rows):
            return x.new_empty(*x.shape[:-1], self.outputs)
        low, high = rows.amin(1, keepdim=True).clamp(max=0), rows.amax(1, keepdim=True).clamp(min=0)
        span = high - low
        # A tensor: `253 / span` would multiply with the reciprocal, which rounds twice.
        inverse = torch.where(span < 1e-30, 0.0, torch.tensor(253.0) / span)
        zeros = -127 - (low * inverse).round()
        quantized = ((rows * inverse).round_() + zeros).nan_to_num_(0.0, 0.0, 0.0).to(torch.int8)
        sums = torch._int_mm(quantized, self.bytes.T)
        sums -= zeros.nan_to_num(0.0, 0.0, 0.0).to(torch.int32) * self.totals
        scales = torch.where(span.isfinite(), span / 253, torch.nan)
        out = sums.float() * scales * self.scales
        out = out if bias is None else out + bias
        return out.view(*x.shape[:-1], self.outputs)


class PackedMatrix(ctypes.Structure):
    """`Matrix` of int8.c."""

    _fields_ = (
        ("weights", ctypes.c_void_p),
        ("scales", ctypes.c_void_p),
        ("totals", ctypes.c_void_p),
        ("width", ctypes.c_int64),
        ("inputs", ctypes.c_int64),
        ("outputs", ctypes.c_int64),
    )


class NativeInt8Matrix(Int8Matrix):
    """The product of the kernel in int8.c."""

    def pack(self, bytes: Tensor, scales: Tensor) -> None:
        """Store them in panels."""
        outputs, inputs = -(-self.outputs // LANES) * LANES, -(-self.inputs // STEP) * STEP
        over = outputs - self.outputs
        padded = F.pad(bytes, (0, inputs - self.inputs, 0, over)).view(-1, LANES, inputs // 4, 4)
        panels = padded.transpose(1, 2).contiguous().view(torch.uint8).bitwise_xor_(128)
        totals = F.pad(bytes.sum(1, dtype=torch.int32), (0, over))
        self.tensors = panels, F.pad(scales, (0, over)), totals  # the kernel reads their memory
        pointers = (tensor.data_ptr() for tensor in self.tensors)
        self.packed = PackedMatrix(*pointers, self.inputs, inputs, self.outputs)
        self.address = ctypes.addressof(self.packed)
        kernel = load_kernel()
        assert kernel is not None
        self.kernel = kernel

    def matmul(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """Call the kernel; compiled code calls it as a registered operator."""
        if torch.compiler.is_compiling():
            return torch.ops.kinfolk.bytes(x, bias, self.address, self.outputs)
        return call_kernel(self.kernel, self.address, x, bias, self.outputs)


def call_kernel(
    kernel: Kernel, address: int, x: Tensor, bias: Tensor | None, outputs: int
) -> Tensor:
    """Call the kernel for contiguous rows and the matrix at an address."""
    out = x.new_empty((*x.shape[:-1], outputs))
    rows, threads = x.numel() // x.shape[-1], torch.get_num_threads()
    bias_pointer = None if bias is None else bias.data_ptr()
    if kernel(address, x.data_ptr(), bias_pointer, out.data_ptr(), rows, threads):
        raise MemoryError(f"no memory for {rows} rows of {x.shape[-1]} in int8")
    return out


@torch.library.custom_op("kinfolk::bytes", mutates_args=())
def int8_matmul_op(x: Tensor, bias: Tensor | None, address: int, outputs: int) -> Tensor:
    """Call the kernel from a compiled graph."""
    kernel = load_kernel()
    assert kernel is not None
    return call_kernel(kernel, address, x.contiguous(), bias, outputs)


@int8_matmul_op.register_fake
def int8_matmul_fake(x: Tensor, bias: Tensor | None, address: int, outputs: int) -> Tensor:
    """Return an empty result of the kernel's shape."""
    return x.new_empty((*x.shape[:-1], outputs))


def int8_matrix(weight: Tensor) -> Int8Matrix:
    """Quantize weights to int8 for the fastest product available."""
    return TorchInt8Matrix(weight) if load_kernel() is None else NativeInt8Matrix(weight)


@functools.cache
def load_kernel() -> Kernel | None:
    """Return `multiply` of int8.c, compiled or from the cache; None without a compiler."""
    configured = os.environ.get("CC")
    for compiler in [configured] if configured else ["cc", "gcc", "clang"]:
        try:
            return _build(shlex.split(compiler))
        except (OSError, subprocess.SubprocessError):
            continue  # another compiler may succeed: clang may lack OpenMP
    return None


def _build(compiler: Sequence[str]) -> Kernel:
    """Compile the kernel for this CPU, or load it from the cache."""
    if shutil.which(compiler[0]) is None:
        raise FileNotFoundError(compiler[0])
    key = [SOURCE.read_text(encoding="utf-8"), *FLAGS, *compiler, *_openmp(), _cpu()]
    name = f"int8-{hashlib.sha256(chr(0).join(key).encode()).hexdigest()[:24]}.so"
    cache = _private_folder(
        Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kinfolk"
    )
    if cache is not None and _is_private(cache / name):
        return _load(cache / name)
    with tempfile.TemporaryDirectory(prefix=".", dir=cache) as folder:
        library = _compile(compiler, Path(folder))
        library.chmod(0o700)
        kernel = _load(library)  # only a kernel that loads is cached
        if cache is not None:
            library.replace(cache / name)  # atomic: other processes may compile it too
    return kernel


def _private_folder(folder: Path) -> Path | None:
    """Return a folder that only this user may write to, created if missing; None if it is not.

    A library that others can replace would run their code.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if folder.stat().st_uid != os.getuid():
            return None
        folder.chmod(0o700)  # earlier versions did not
    except OSError:
        return None
    return folder if os.access(folder, os.W_OK) else None


def _is_private(file: Path) -> bool:
    """Return whether a file exists, is this user's, and no other user may write to it."""
    try:
        status = file.lstat()
    except OSError:
        return False
    ours = stat.S_ISREG(status.st_mode) and status.st_uid == os.getuid()
    return ours and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _compile(compiler: Sequence[str], folder: Path) -> Path:
    library, object_file = folder / "int8.so", folder / "int8.o"
    for step in (
        [*FLAGS, "-c", str(SOURCE), "-o", str(object_file)],
        # Without -fopenmp, which would start a second thread pool.
        ["-shared", str(object_file), *_openmp(), "-o", str(library)],
    ):
        subprocess.run([*compiler, *step], check=True, capture_output=True, timeout=120)
    return library


def _openmp() -> list[str]:
    """Return the OpenMP library that torch uses."""
    package = Path(torch.__file__).parent
    folders = (package / "lib", package.parent / "torch.libs")
    libraries = [
        str(p) for f in folders for kind in ("gomp", "iomp", "omp") for p in f.glob(f"lib{kind}*")
    ]
    return libraries[:1] or ["-lgomp"]


def _cpu() -> str:
    """Return the features of the CPU: different machines may share a home folder."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    return next((x for x in lines if x.startswith(("flags", "Features"))), platform.machine())


def _load(path: Path) -> Kernel:
    multiply = ctypes.CDLL(str(path)).multiply
    multiply.argtypes = [*[ctypes.c_void_p] * 4, ctypes.c_int64, ctypes.c_int]
    multiply.restype = ctypes.c_int
    return multiply
