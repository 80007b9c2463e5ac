"""The memory of a process and of its CUDA device."""

import contextlib
from pathlib import Path

import torch

PROC = Path("/proc/self")


def resident_bytes(field: str, proc: Path = PROC) -> int | None:
    """Return a size of the process that Linux tells: VmRSS, or VmHWM, the highest so far."""
    with contextlib.suppress(OSError, ValueError):
        for line in (proc / "status").read_text(encoding="utf-8").splitlines():
            if line.startswith(f"{field}:"):
                return 1024 * int(line.split()[1])
    return None


def memory_values(device: torch.device) -> dict[str, float]:
    """Return the bytes in use and the most so far: allocated on CUDA, else resident.

    Neither waits for the device. Empty where the system does not tell.
    """
    if device.type == "cuda":
        return {
            "memory_bytes": torch.cuda.memory_allocated(device),
            "peak_memory_bytes": torch.cuda.max_memory_allocated(device),
        }
    sizes = {
        "memory_bytes": resident_bytes("VmRSS"),
        "peak_memory_bytes": resident_bytes("VmHWM"),
    }
    return {name: size for name, size in sizes.items() if size is not None}
