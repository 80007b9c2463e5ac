"""The share of a device's peak speed that training reaches: measured, and where it was."""

import math
import time
from dataclasses import dataclass, replace

import torch

from kinfolk.errors import UserError
from kinfolk.machine import available_memory
from kinfolk.nn.cpu_products import linear
from kinfolk.training.device_specs import CPU, DEVICES, DeviceSpec, check_device_name

MATRIX = 1024  # rows and columns of the product that the speed of a CPU is measured by
PRODUCTS = 5  # the fastest counts
CPU_SHARE = 0.4


@dataclass(frozen=True)
class MeasuredShare:
    """FLOPs a second of whole training steps of a network, relative to the peak of the device."""

    architecture: str
    title: str
    parameters: int
    share: float


# One NVIDIA H200, bfloat16, compiled: docs/benchmarks.md. FLOPs of a step by the counter, times the
# steps or tokens a second, over 989 TFLOP/s. Small networks are limited by the host. Those of BERT
# were measured when the last feed-forward sublayer still ran at every token: it is not counted.
MEASURED = (
    MeasuredShare("decoder", "GPT-2 nano", 632_576, 0.010),
    MeasuredShare("decoder", "GPT-2 tiny", 1_461_760, 0.021),
    MeasuredShare("decoder", "GPT-2 mini", 5_289_472, 0.061),
    MeasuredShare("decoder", "GPT-2 small", 17_067_008, 0.317),
    MeasuredShare("decoder", "GPT-2 medium", 29_676_544, 0.317),
    MeasuredShare("decoder", "GPT-2 124M", 124_439_808, 0.429),
    MeasuredShare("encoder", "BERT nano", 649_474, 0.003),
    MeasuredShare("encoder", "BERT tiny", 1_503_746, 0.007),
    MeasuredShare("encoder", "BERT mini", 5_430_786, 0.034),
    MeasuredShare("encoder", "BERT small", 17_603_586, 0.233),
    MeasuredShare("encoder", "BERT medium", 30_213_122, 0.264),
    MeasuredShare("encoder", "BERT base", 110_106_428, 0.350),
)


def usual_share(device: str, architecture: str, parameters: int) -> tuple[float, str]:
    """Return the share of the measured network closest in size, and a sentence about it.

    Families that were not measured get the share of a decoder.
    """
    if device == CPU:
        return CPU_SHARE, "assumed, not measured: use --check, or set --mfu"
    known = [m for m in MEASURED if m.architecture == architecture]
    known = known or [m for m in MEASURED if m.architecture == "decoder"]
    closest = min(known, key=lambda m: abs(math.log(m.parameters / max(parameters, 1))))
    return closest.share, (
        f"measured with {closest.title} on one H200 (docs/benchmarks.md); set --mfu for other "
        "networks, devices and communication"
    )


def device_spec(name: str) -> DeviceSpec:
    """Return the figures of a device: of a data sheet, or of the CPU of this machine."""
    check_device_name(name)
    return DEVICES[name] if name != CPU else cpu_spec()


def cpu_spec() -> DeviceSpec:
    """Measure the speed of matrix products of this machine, and its memory."""
    a = torch.ones(MATRIX, MATRIX)
    speeds = {}
    for dtype in (torch.float32, torch.bfloat16):
        b = a.to(dtype)
        seconds = []
        for _ in range(PRODUCTS):
            start = time.perf_counter()
            linear(b, b)
            seconds.append(time.perf_counter() - start)
        speeds[dtype] = 2 * MATRIX**3 / min(seconds)
    threads = torch.get_num_threads()
    title = f"CPU of this machine, {threads} thread{'s' * (threads > 1)}"
    return DeviceSpec(
        CPU, title, speeds[torch.bfloat16], speeds[torch.float32], available_memory(), None
    )


def with_memory(device: DeviceSpec, gigabytes: float) -> DeviceSpec:
    """Return a device with another memory, in GB."""
    if not 0 < gigabytes <= 10**6:
        raise UserError(f"--memory must be more than 0 GB (got {gigabytes:g})")
    return replace(device, memory=round(gigabytes * 10**9))
