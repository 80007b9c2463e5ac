"""Published figures of accelerators: peak speed without sparsity, memory, memory bandwidth.

From the data sheets of NVIDIA and AMD. Peaks of bfloat16 are those of the matrix units with sums in
float32; peaks of float32 are those without TensorFloat-32, which torch does not use by default.
"""

from dataclasses import dataclass

from kinfolk.config import did_you_mean
from kinfolk.errors import UserError

TERA, GIGA = 10**12, 10**9


@dataclass(frozen=True)
class DeviceSpec:
    """What a device can do at most."""

    name: str
    title: str
    bfloat16: float | None  # FLOP/s; None where it has no such matrix units
    float32: float  # FLOP/s
    memory: int  # bytes
    bandwidth: float | None  # bytes/s of its memory; None where it is not known

    def peak(self, precision: str) -> float:
        """Return the FLOP/s in a number format."""
        peak = self.bfloat16 if precision == "bfloat16" else self.float32
        if peak is None:
            raise UserError(
                f"{self.title} has no matrix units for bfloat16: use --precision float32, or "
                "another --gpu"
            )
        return peak


def spec(
    name: str, title: str, bfloat16: float | None, float32: float, memory: int, bandwidth: float
) -> DeviceSpec:
    """Return a spec from the units of data sheets: TFLOP/s, GB and GB/s."""
    peak = None if bfloat16 is None else bfloat16 * TERA
    return DeviceSpec(name, title, peak, float32 * TERA, memory * GIGA, bandwidth * GIGA)


DEVICES = {
    device.name: device
    for device in (
        spec("b200", "NVIDIA B200 (SXM)", 2250, 75, 180, 7700),
        spec("h200", "NVIDIA H200 (SXM)", 989, 67, 141, 4800),
        spec("h100", "NVIDIA H100 (SXM)", 989, 67, 80, 3350),
        spec("h100-pcie", "NVIDIA H100 (PCIe)", 756, 51, 80, 2000),
        spec("a100-80", "NVIDIA A100 80GB (SXM)", 312, 19.5, 80, 2039),
        spec("a100-40", "NVIDIA A100 40GB (SXM)", 312, 19.5, 40, 1555),
        spec("v100-32", "NVIDIA V100 32GB (SXM2)", None, 15.7, 32, 900),
        spec("l40s", "NVIDIA L40S", 362, 91.6, 48, 864),
        spec("l4", "NVIDIA L4", 121, 30.3, 24, 300),
        spec("a10", "NVIDIA A10", 125, 31.2, 24, 600),
        spec("t4", "NVIDIA T4", None, 8.1, 16, 320),
        spec("rtx-a6000", "NVIDIA RTX A6000", 154.8, 38.7, 48, 768),
        spec("rtx-4090", "NVIDIA GeForce RTX 4090", 165.2, 82.6, 24, 1008),
        spec("rtx-3090", "NVIDIA GeForce RTX 3090", 71, 35.6, 24, 936),
        spec("mi300x", "AMD Instinct MI300X", 1307, 163.4, 192, 5300),
        spec("mi250x", "AMD Instinct MI250X", 383, 47.9, 128, 3277),
    )
}
CPU = "cpu"  # whose figures are those of this machine, in place of a data sheet


def check_device_name(name: str) -> None:
    """Refuse a device that has no figures."""
    if name != CPU and name not in DEVICES:
        own = [other for other in DEVICES if f"{other}-".startswith(f"{name.lower()}-")]
        close = did_you_mean(name.lower(), own or [*DEVICES, CPU])
        raise UserError(f"unknown --gpu {name!r}: {close}")
