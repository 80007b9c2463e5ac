"""What a job costs over all of its starts: RACE/jobs/NAME.usage keeps what earlier ones used."""

import contextlib
import json
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from kinfolk.files import new_file
from kinfolk.training.meters import Usage, measure, peak_memory


@dataclass(frozen=True)
class EarlierUsage:
    """What the interrupted starts of a job used, as far as it was saved."""

    seconds: float = 0.0
    peak_bytes: int = 0
    starts: int = 0

    @classmethod
    def read(cls, path: Path) -> "EarlierUsage":
        """Read the usage of earlier starts; nothing where this is the first."""
        try:
            return cls(**json.loads(path.read_text(encoding="utf-8")))
        except (FileNotFoundError, ValueError):
            return cls()


class JobUsage:
    """The seconds, the largest memory and the energy of a job, also where it was interrupted.

    The energy of a start that was killed is not known, and so neither is the sum.
    """

    def __init__(self, path: Path, device: str) -> None:
        self.path, self.device = path, device
        self.earlier = EarlierUsage.read(path)
        self._began = time.perf_counter()
        self._measured = Usage()

    @contextlib.contextmanager
    def measuring(self, *, energy: bool) -> Iterator[None]:
        """Measure a block: what follows in the job is not counted."""
        try:
            with measure(self.device, energy=energy) as self._measured:
                self._began = time.perf_counter()
                self.save(0.0)
                yield
        finally:
            self.save(self._measured.seconds)

    def update(self) -> None:
        """Save what the block used so far; called about once a second."""
        self.save(time.perf_counter() - self._began)

    def save(self, seconds: float) -> None:
        """Write the sum of all starts."""
        earlier = self.earlier
        peak = max(earlier.peak_bytes, peak_memory(self.device) if seconds else 0)
        found = EarlierUsage(earlier.seconds + seconds, peak, earlier.starts + 1)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with new_file(self.path) as file:
            file.write(json.dumps(asdict(found)))

    @property
    def seconds(self) -> float:
        """The seconds of all starts, steps that were done again included."""
        return self.earlier.seconds + self._measured.seconds

    @property
    def peak_bytes(self) -> int:
        """The most memory of any start."""
        return max(self.earlier.peak_bytes, self._measured.peak_bytes)

    @property
    def joules(self) -> float | None:
        """The energy; None where the machine does not tell, or an earlier start was killed."""
        return None if self.earlier.starts else self._measured.joules
