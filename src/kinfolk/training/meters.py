"""What a block of code costs: seconds, peak memory, and energy where the machine tells.

The energy of an NVIDIA GPU comes from its NVML library or, without the package pynvml, from
`nvidia-smi`, whose power readings are summed up. That of a CPU comes from the RAPL counters of
Linux, which most systems let only root read. It is the energy of the whole device, also of what
other programs do on it.
"""

import contextlib
import importlib
import os
import shutil
import subprocess
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from kinfolk.training.memory import PROC, resident_bytes
from kinfolk.training.workload import select_device

POWERCAP = Path("/sys/class/powercap")
SAMPLE_SECONDS = 0.5  # between two readings of nvidia-smi or of a RAPL counter
NVIDIA_SMI = ("nvidia-smi", "--query-gpu=power.draw", "--format=csv,noheader,nounits")


@dataclass
class Usage:
    """What a block of code cost; complete when the block has ended."""

    seconds: float = 0.0
    peak_bytes: int = 0  # of the process, or of the CUDA device if there is one
    joules: float | None = None  # None where the machine does not tell


@contextlib.contextmanager
def measure(device: torch.device | str = "auto", *, energy: bool = True) -> Iterator[Usage]:
    """Measure the block; the usage is filled in at its end, also where it fails.

    On a CPU, peak memory is that of the process. It falls to the present size at the start of the
    block only where Linux allows it: see `reset_peak_memory`.
    """
    device, usage = select_device(device), Usage()
    meter = EnergyMeter.for_device(device) if energy else None
    reset_peak_memory(device)
    start = time.perf_counter()
    if meter is not None:
        meter.start()
    try:
        yield usage
    finally:
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        usage.joules = None if meter is None else meter.stop()
        usage.seconds = time.perf_counter() - start
        usage.peak_bytes = peak_memory(device)


def peak_memory(device: torch.device | str = "auto", proc: Path = PROC) -> int:
    """Return the most memory in bytes: allocated on a CUDA device, else resident of the process."""
    device = select_device(device)
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    highest = resident_bytes("VmHWM", proc)
    if highest is not None:
        return highest
    import resource

    unit = 1 if sys.platform == "darwin" else 1024  # macOS counts bytes, others KiB
    return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def reset_peak_memory(device: torch.device | str = "auto", proc: Path = PROC) -> bool:
    """Start the peak anew; return whether it could be: a container may forbid it on a CPU."""
    device = select_device(device)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return True
    try:
        (proc / "clear_refs").write_text("5")  # proc(5): resets the high-water mark
    except OSError:
        return False
    return True


class EnergyMeter(ABC):
    """Measures joules from `start` to `stop`."""

    @abstractmethod
    def start(self) -> None:
        """Begin to measure."""

    @abstractmethod
    def stop(self) -> float | None:
        """Return the joules since `start`, None where a reading failed."""

    @staticmethod
    def for_device(device: torch.device | str, powercap: Path = POWERCAP) -> "EnergyMeter | None":
        """Return the meter of a device, None where the machine has none."""
        device = select_device(device)
        if device.type == "cuda":
            index = physical_index(device)
            return NvmlMeter.of(index) or NvidiaSmiMeter.of(index)
        return RaplMeter.of(powercap)


def physical_index(device: torch.device) -> str:
    """Return the GPU as NVIDIA's tools name it, by its number or its UUID."""
    number = torch.cuda.current_device() if device.index is None else device.index
    visible = [part.strip() for part in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")]
    return visible[number] if visible[0] and number < len(visible) else str(number)


class SampledMeter(EnergyMeter):
    """A meter that takes a sample now and then, in a thread of its own."""

    def __init__(self) -> None:
        self.joules: float | None = 0.0
        self.stopping = threading.Event()
        self.thread: threading.Thread | None = None

    @abstractmethod
    def sample(self) -> None:
        """Take a sample; raise OSError or ValueError where it fails."""

    def start(self) -> None:
        """Take the first sample, and go on in a thread."""
        self.joules = 0.0
        self.stopping.clear()
        self._try_sample()
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def stop(self) -> float | None:
        """Take the last sample and return the joules."""
        assert self.thread is not None, "start() comes first"
        self.stopping.set()
        self.thread.join()
        self._try_sample()
        return self.joules

    def _run(self) -> None:
        while not self.stopping.wait(SAMPLE_SECONDS):
            self._try_sample()

    def _try_sample(self) -> None:
        if self.joules is not None:
            try:
                self.sample()
            except (OSError, ValueError, subprocess.SubprocessError):
                self.joules = None  # a part would be missing


@dataclass
class RaplZone:
    """The energy counter of a processor package, which starts again from 0 at `limit`."""

    file: Path
    limit: int  # microjoules
    last: int

    @classmethod
    def of(cls, folder: Path) -> "RaplZone | None":
        """Read a zone, None where it cannot be read."""
        try:
            limit = int((folder / "max_energy_range_uj").read_text())
            return cls(folder / "energy_uj", limit, int((folder / "energy_uj").read_text()))
        except (OSError, ValueError):
            return None

    def advance(self) -> int:
        """Return the microjoules since the last call."""
        now = int(self.file.read_text())
        used = now - self.last
        self.last = now
        return used if used >= 0 else used + self.limit + 1


class RaplMeter(SampledMeter):
    """The counters of all processor packages; read often enough that none passes its limit twice.

    A counter of 2**32 microjoules takes half a minute to its limit at 150 W.
    """

    def __init__(self, zones: Sequence[RaplZone]) -> None:
        super().__init__()
        self.zones = zones

    @classmethod
    def of(cls, powercap: Path) -> "RaplMeter | None":
        """Return the meter, None without counters, or where one cannot be read."""
        # intel-rapl:0 is a package (AMD's too); intel-rapl:0:0 is a part of it, and
        # intel-rapl-mmio:0 counts the same package a second time.
        folders = sorted(
            folder for folder in powercap.glob("intel-rapl:*") if folder.name.count(":") == 1
        )
        packages = [f for f in folders if read_name(f).startswith("package")] or folders
        zones = [RaplZone.of(folder) for folder in packages]
        readable = [zone for zone in zones if zone is not None]
        return cls(readable) if readable and len(readable) == len(zones) else None

    def start(self) -> None:
        """Forget what was used before."""
        for zone in self.zones:
            with contextlib.suppress(OSError, ValueError):
                zone.advance()
        super().start()

    def sample(self) -> None:
        """Add what all packages used."""
        assert self.joules is not None
        self.joules += sum(zone.advance() for zone in self.zones) / 1e6


def read_name(folder: Path) -> str:
    """Return the name of a RAPL zone: `package-0`, `psys`."""
    try:
        return (folder / "name").read_text(encoding="utf-8").strip()
    except OSError:
        return ""


class NvmlMeter(EnergyMeter):
    """The energy counter of an NVIDIA GPU, by the package pynvml."""

    def __init__(self, nvml: Any, handle: Any) -> None:
        self.nvml, self.handle, self.before = nvml, handle, 0

    @classmethod
    def of(cls, index: str) -> "NvmlMeter | None":
        """Return the meter of a GPU, None without the package or the counter."""
        try:
            nvml: Any = importlib.import_module("pynvml")
        except ImportError:
            return None
        try:
            nvml.nvmlInit()
            handle = (
                nvml.nvmlDeviceGetHandleByIndex(int(index))
                if index.isdigit()
                else nvml.nvmlDeviceGetHandleByUUID(index)
            )
            nvml.nvmlDeviceGetTotalEnergyConsumption(handle)
        except nvml.NVMLError:
            return None
        return cls(nvml, handle)

    def start(self) -> None:
        """Read the counter."""
        self.before = self.nvml.nvmlDeviceGetTotalEnergyConsumption(self.handle)

    def stop(self) -> float | None:
        """Return the joules since then; the counter has millijoules."""
        try:
            now = self.nvml.nvmlDeviceGetTotalEnergyConsumption(self.handle)
        except self.nvml.NVMLError:
            return None
        return float(now - self.before) / 1000


class NvidiaSmiMeter(SampledMeter):
    """The power of an NVIDIA GPU, by `nvidia-smi`, times the seconds between two readings."""

    def __init__(self, command: Sequence[str]) -> None:
        super().__init__()
        self.command = command
        self.last: tuple[float, float] | None = None  # time and watts

    @classmethod
    def of(cls, index: str) -> "NvidiaSmiMeter | None":
        """Return the meter of a GPU, None without the program or where it tells no power."""
        program = shutil.which(NVIDIA_SMI[0])
        if program is None:
            return None
        meter = cls((program, *NVIDIA_SMI[1:], f"--id={index}"))
        try:
            meter.watts()
        except (OSError, ValueError, subprocess.SubprocessError):
            return None
        return meter

    def watts(self) -> float:
        """Read the power."""
        output = subprocess.run(
            self.command, capture_output=True, check=True, timeout=10, text=True
        )
        return float(output.stdout.strip())

    def start(self) -> None:
        """Forget the last reading."""
        self.last = None
        super().start()

    def sample(self) -> None:
        """Add the mean power of two readings times the seconds between them."""
        watts, now = self.watts(), time.perf_counter()
        if self.last is not None:
            assert self.joules is not None
            before, watts_before = self.last
            self.joules += (watts + watts_before) / 2 * (now - before)
        self.last = now, watts
