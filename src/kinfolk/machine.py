"""What the machine offers to this process."""

import contextlib
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

SYSTEM = Path("/")
MIN_BUSY = 0.5  # of a CPU

# How often a waiting thread of libgomp looks before it sleeps, about 0.1 ms. Its default, some
# milliseconds, is faster where nothing else runs and several times slower where CPUs are shared.
SPIN_COUNT = "2000"

# Files of a control group: its limit, what it uses, and how much of that are cached files, which
# the system frees when it needs to. Version 2, and version 1.
CGROUP_FILES = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)


def available_cpus() -> int:
    """Return the number of CPUs that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def cpus_are_busy() -> bool:
    """Return whether other programs used CPUs in the last minute that this process would use."""
    try:
        load = os.getloadavg()[0]
    except OSError:  # the system does not tell
        return False
    return (os.cpu_count() or 1) - load < available_cpus() - MIN_BUSY


def limit_spinning() -> None:
    """Let waiting threads sleep soon on a busy machine, unless the user has chosen how they wait.

    The library of threads of torch reads this once, when torch is imported.
    """
    chosen = {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"} & os.environ.keys()
    if not chosen and "torch" not in sys.modules and cpus_are_busy():
        os.environ["GOMP_SPINCOUNT"] = SPIN_COUNT


def cpu_family(system: Path = SYSTEM) -> tuple[str, int]:
    """Return the vendor of the CPU and its number of the family; ("", 0) where nothing says so."""
    try:
        text = (system / "proc/cpuinfo").read_text(encoding="utf-8").split("\n\n")[0]
        pairs = [line.partition(":") for line in text.splitlines()]
        values = {name.strip(): value.strip() for name, _, value in pairs}
        return values["vendor_id"], int(values["cpu family"])
    except (OSError, KeyError, ValueError):  # not Linux, or not an x86 CPU
        return "", 0


def available_memory(system: Path = SYSTEM) -> int:
    """Return the bytes that programs can still be given: free, cached files, free swap space.

    A container or a job may have less than its machine: the limits of control groups count too.
    """
    try:
        text = (system / "proc/meminfo").read_text(encoding="utf-8")
        lines = (line.split() for line in text.splitlines())
        sizes = {words[0].rstrip(":"): 1024 * int(words[1]) for words in lines if len(words) > 1}
        found = sizes["MemAvailable"] + sizes.get("SwapFree", 0)
    except (OSError, KeyError, ValueError):  # not Linux: all that the machine has
        found = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limits = [left for folder in cgroup_folders(system) for left in cgroup_memory(folder)]
    return max(0, min([found, *limits]))


def cgroup_folders(system: Path) -> Iterator[Path]:
    """Yield the control groups of this process that may limit memory, and those above them."""
    with contextlib.suppress(OSError):
        for line in (system / "proc/self/cgroup").read_text(encoding="utf-8").splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers and "memory" not in controllers.split(","):
                continue
            home = system / "sys/fs/cgroup" / ("memory" if controllers else "")
            own = home / path.lstrip("/")
            yield from (own, *(parent for parent in own.parents if parent.is_relative_to(home)))


def cgroup_memory(folder: Path) -> list[int]:
    """Return the bytes that the limit of a control group leaves, if it has one."""
    left = []
    for limit, used, cached in CGROUP_FILES:
        with contextlib.suppress(OSError, ValueError):  # another version, or "max": no limit
            lines = (folder / "memory.stat").read_text(encoding="utf-8").splitlines()
            files = int(dict(line.split() for line in lines).get(cached, 0))
            left.append(
                int((folder / limit).read_text()) - int((folder / used).read_text()) + files
            )
    return left


def free_disk(folder: Path) -> int:
    """Return the free bytes of the file system that a folder is on, or will be on."""
    known = folder.resolve()
    while not known.exists():
        known = known.parent
    return shutil.disk_usage(known).free
