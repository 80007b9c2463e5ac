"""Meters: seconds, peak memory and energy, by files and programs that tests can replace."""

import itertools
import stat
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from kinfolk.training import meters
from kinfolk.training.meters import (
    EnergyMeter,
    NvidiaSmiMeter,
    NvmlMeter,
    RaplMeter,
    measure,
    peak_memory,
    physical_index,
    reset_peak_memory,
)

MIB = 2**20


def zone(folder: Path, name: str, energy: int, limit: int = 10**9) -> Path:
    """Write a RAPL zone."""
    folder.mkdir(parents=True)
    (folder / "name").write_text(f"{name}\n")
    (folder / "max_energy_range_uj").write_text(f"{limit}\n")
    (folder / "energy_uj").write_text(f"{energy}\n")
    return folder


@pytest.fixture
def packages(tmp_path: Path) -> list[Path]:
    """Return two packages, beside zones that count parts of them or the same again."""
    zone(tmp_path / "intel-rapl:0:0", "core", 7)
    zone(tmp_path / "intel-rapl:2", "psys", 7)
    zone(tmp_path / "intel-rapl-mmio:0", "package-0", 7)
    (tmp_path / "intel-rapl").mkdir()
    return [zone(tmp_path / f"intel-rapl:{n}", f"package-{n}", 5_000_000) for n in range(2)]


def test_the_energy_of_all_packages_is_added(tmp_path: Path, packages: list[Path]) -> None:
    meter = EnergyMeter.for_device("cpu", tmp_path)
    assert isinstance(meter, RaplMeter)
    (packages[0] / "energy_uj").write_text("6000000")  # before the start
    meter.start()
    (packages[0] / "energy_uj").write_text("8500000")
    (packages[1] / "energy_uj").write_text("6000000")
    assert meter.stop() == pytest.approx(2.5 + 1.0)


def test_a_counter_that_starts_again_is_unwrapped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = zone(tmp_path / "intel-rapl:0", "package-0", 9_000_000, limit=9_999_999)
    monkeypatch.setattr(meters, "SAMPLE_SECONDS", 0.001)
    meter = RaplMeter.of(tmp_path)
    assert meter is not None
    meter.start()
    for energy in ("1000000", "9000000", "500000"):  # past its limit twice
        pause_until_read(meter, folder, energy)
    assert meter.stop() == pytest.approx(2.0 + 8.0 + 1.5)


def pause_until_read(meter: RaplMeter, folder: Path, energy: str) -> None:
    """Write a counter, as a file is replaced, and wait until the meter has read it."""
    new = folder / "new"
    new.write_text(energy)
    new.replace(folder / "energy_uj")
    deadline = time.monotonic() + 10
    while meter.zones[0].last != int(energy):
        assert time.monotonic() < deadline, "the counter is not sampled"
        time.sleep(0.001)


def test_counters_that_cannot_be_read_give_no_meter(tmp_path: Path) -> None:
    assert RaplMeter.of(tmp_path) is None
    assert RaplMeter.of(tmp_path / "none") is None
    zone(tmp_path / "intel-rapl:0", "package-0", 1)
    (zone(tmp_path / "intel-rapl:1", "package-1", 1) / "energy_uj").unlink()
    assert RaplMeter.of(tmp_path) is None  # half of the energy would be missing


def test_a_counter_that_fails_meanwhile_gives_no_number(
    tmp_path: Path, packages: list[Path]
) -> None:
    meter = RaplMeter.of(tmp_path)
    assert meter is not None
    meter.start()
    (packages[1] / "energy_uj").write_text("")
    assert meter.stop() is None


def test_a_machine_without_counters_measures_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(meters.RaplMeter, "of", classmethod(lambda cls, powercap: None))
    with measure("cpu") as usage:
        time.sleep(0.02)
    assert usage.joules is None
    assert 0.02 <= usage.seconds < 5
    assert usage.peak_bytes > MIB


def test_a_block_that_fails_is_measured() -> None:
    with pytest.raises(ZeroDivisionError), measure("cpu") as usage:
        1 / 0  # noqa: B018
    assert usage.seconds > 0 and usage.peak_bytes > 0


def test_peak_memory_keeps_what_was_freed() -> None:
    if not reset_peak_memory("cpu"):
        pytest.skip("this system does not let a process reset its peak memory")
    before = peak_memory("cpu")
    block = torch.ones(64 * MIB // 4)
    del block
    assert before + 60 * MIB <= peak_memory("cpu") <= before + 100 * MIB
    assert reset_peak_memory("cpu")
    assert peak_memory("cpu") < before + 60 * MIB


def test_peak_memory_is_the_high_water_mark_of_linux(tmp_path: Path) -> None:
    (tmp_path / "status").write_text("Name:\tpython\nVmPeak:\t 900 kB\nVmHWM:\t     123 kB\n")
    assert peak_memory("cpu", tmp_path) == 123 * 1024


def test_peak_memory_without_proc_is_that_of_the_kernel(tmp_path: Path) -> None:
    assert peak_memory("cpu", tmp_path) == pytest.approx(peak_memory("cpu"), rel=0.2)


def test_peak_memory_is_in_bytes_on_macos_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = peak_memory("cpu", tmp_path)
    monkeypatch.setattr("sys.platform", "darwin")  # whose kernel counts bytes, not KiB
    assert 1024 * peak_memory("cpu", tmp_path) == pytest.approx(before, rel=0.2)


def test_a_peak_that_cannot_be_reset_says_so(tmp_path: Path) -> None:
    assert not reset_peak_memory("cpu", tmp_path / "none")
    (tmp_path / "clear_refs").write_text("")
    assert reset_peak_memory("cpu", tmp_path)
    assert (tmp_path / "clear_refs").read_text() == "5"


@pytest.fixture
def nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the file whose content a fake nvidia-smi prints."""
    answer, program = tmp_path / "answer", tmp_path / "nvidia-smi"
    program.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/arguments\ncat {answer}\n')
    program.chmod(program.stat().st_mode | stat.S_IEXEC)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    answer.write_text("100.00\n")
    return answer


def test_readings_of_nvidia_smi_are_summed_up(
    nvidia_smi: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter([10.0, 12.0])
    monkeypatch.setattr(meters.time, "perf_counter", lambda: next(clock))
    monkeypatch.setattr(meters, "SAMPLE_SECONDS", 1e6)
    meter = NvidiaSmiMeter.of("1")
    assert meter is not None
    meter.start()
    nvidia_smi.write_text("300.00\n")
    assert meter.stop() == pytest.approx(200.0 * 2)
    assert (nvidia_smi.parent / "arguments").read_text() == (
        "--query-gpu=power.draw --format=csv,noheader,nounits --id=1\n"
    )


def test_a_gpu_that_tells_no_power_has_no_meter(nvidia_smi: Path, tmp_path: Path) -> None:
    nvidia_smi.write_text("[N/A]\n")
    assert NvidiaSmiMeter.of("0") is None
    (tmp_path / "nvidia-smi").unlink()
    assert NvidiaSmiMeter.of("0") is None


class NVMLError(Exception):
    """The error of a fake NVML."""


def fake_nvml(*, supported: bool = True) -> Any:
    """Return NVML with a counter that grows at each reading."""
    counter = itertools.count(1_000_000, 2500)  # millijoules

    def energy(handle: Any) -> int:
        if not supported:
            raise NVMLError
        return next(counter)

    return SimpleNamespace(
        NVMLError=NVMLError,
        nvmlInit=lambda: None,
        nvmlDeviceGetHandleByIndex=lambda index: ("index", index),
        nvmlDeviceGetHandleByUUID=lambda uuid: ("uuid", uuid),
        nvmlDeviceGetTotalEnergyConsumption=energy,
    )


def test_nvml_counts_millijoules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml())
    for name, handle in (("3", ("index", 3)), ("GPU-1a2b", ("uuid", "GPU-1a2b"))):
        meter = NvmlMeter.of(name)
        assert meter is not None and meter.handle == handle
        meter.start()
        assert meter.stop() == pytest.approx(2.5)


def test_nvml_without_a_counter_has_no_meter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml(supported=False))
    assert NvmlMeter.of("0") is None
    monkeypatch.setitem(sys.modules, "pynvml", None)  # as where it is not installed
    assert NvmlMeter.of("0") is None


@pytest.mark.parametrize(
    ("visible", "name"), [("", "1"), ("4,6", "6"), ("GPU-a, GPU-b", "GPU-b"), ("5", "1")]
)
def test_a_gpu_is_named_as_it_is_visible(
    visible: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert physical_index(torch.device("cuda:1")) == name


def test_the_default_device_is_that_of_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 42)
    assert peak_memory() == 42
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert peak_memory() > MIB


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_gpu_is_measured() -> None:
    x = torch.randn(4096, 4096, device="cuda")
    with measure("cuda") as usage:
        for _ in range(200):
            x = torch.nn.functional.normalize(x @ x)
        torch.cuda.synchronize()
        time.sleep(1.2)
    assert usage.peak_bytes >= 3 * 4 * 4096 * 4096
    assert usage.joules is None or 10 < usage.joules < 5000
