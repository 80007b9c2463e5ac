"""What started a run, in RUN/command.json: the command line, the folder, the versions."""

import json
import platform
import shlex
import sys
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from kinfolk.training.distributed import Processes
from kinfolk.version import __version__

FILE = "command.json"


@dataclass(frozen=True)
class Provenance:
    """How a run was started."""

    command: str | None  # None in an interactive session
    folder: str  # that the command was started in
    kinfolk: str
    torch: str
    python: str

    @classmethod
    def of_this_process(cls, processes: Processes) -> "Provenance":
        """Return how this process was started."""
        return cls(
            command_line(processes),
            str(Path.cwd()),
            __version__,
            str(torch.__version__),
            platform.python_version(),
        )

    def write(self, run: Path) -> None:
        """Write it into the folder of a run."""
        text = json.dumps(asdict(self), indent=2, ensure_ascii=False) + "\n"
        (run / FILE).write_text(text, encoding="utf-8", errors="replace")

    @classmethod
    def read(cls, run: Path) -> "Provenance | None":
        """Read it; None in a run of an earlier version, or where it is damaged."""
        with suppress(OSError, ValueError, TypeError):
            return cls(**json.loads((run / FILE).read_text(encoding="utf-8")))
        return None


def command_line(processes: Processes) -> str | None:
    """Return the command that started this process, to be pasted into a shell."""
    program = Path(sys.argv[0])
    if program.name == "kinfolk" or program.parts[-2:] == ("kinfolk", "__main__.py"):
        return processes.command(shlex.join(sys.argv[1:]))
    if program.name in ("", "-c") or "ipykernel" in str(program):
        return None
    return shlex.join(["python", *sys.orig_argv[1:]])
