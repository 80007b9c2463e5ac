"""The log of a run: reproducible values in log.jsonl, throughput in speed.jsonl.

log.jsonl      {"step": 7, "loss": 5.25, "lr": 0.0003, "losses": {"mlm": 4.5, "nsp": 0.75}}
speed.jsonl    {"step": 7, "seconds": 0.125, "tokens_per_second": 65536.0, "wait_seconds": 0.01,
                "memory_bytes": 812000000, "peak_memory_bytes": 900000000}; where a model was
               compiled also "compile_seconds", which "seconds" does not contain
alarms.jsonl   {"step": 7, "alarm": "spike", "message": "..."}, if there is any; of a batch that
               is left out also "batch" and "from_step"
samples.jsonl  {"step": 7, "title": "continues a text", "prompt": "The", "text": " cat"}
tensorboard/   the same numbers as events, which other loggers get, too
"""

import contextlib
import json
import math
import os
import statistics
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol, Self, TextIO

from kinfolk.errors import UserError
from kinfolk.files import new_file
from kinfolk.training.loggers import Loggers

ALARMS = "alarms.jsonl"  # a file that healthy runs do not have
SAMPLES = "samples.jsonl"

Values = Mapping[str, float | Mapping[str, float]]


@dataclass(frozen=True)
class RunSample:
    """What a model made of a prompt at a checkpoint."""

    title: str
    prompt: str
    text: str


SAMPLE_FIELDS = ("title", "prompt", "text")


class Log(Protocol):
    """Where the training loop writes the values of each step."""

    def write(self, step: int, values: Values, speed: Mapping[str, float], /) -> None:
        """Append one step."""
        ...

    def write_alarm(self, step: int, cause: str, message: str, /, **facts: int) -> None:
        """Append an alarm."""
        ...

    def write_samples(self, step: int, samples: Sequence[RunSample], /) -> None:
        """Append samples."""
        ...

    def sync(self) -> None:
        """Flush to the disk."""
        ...


class NoLog:
    """The log of a process that writes none, beside the one that does."""

    def write(self, step: int, values: Values, speed: Mapping[str, float], /) -> None:
        """Write nothing."""

    def write_alarm(self, step: int, cause: str, message: str, /, **facts: int) -> None:
        """Write nothing."""

    def write_samples(self, step: int, samples: Sequence[RunSample], /) -> None:
        """Write nothing."""

    def sync(self) -> None:
        """Flush nothing."""


class MetricsLog:
    """The open log of one run folder."""

    def __init__(
        self,
        run: Path,
        lines: TextIO,
        speed: TextIO,
        board: Any | None,
        loggers: Loggers | None = None,
    ) -> None:
        self.run, self.metrics_file, self.speed = run, lines, speed
        self.tensorboard = board  # a SummaryWriter, or None without TensorBoard
        self.loggers = loggers

    @classmethod
    def open(cls, run: Path, resume_at: int, loggers: Loggers | None = None) -> Self:
        """Open a run's log after step `resume_at`, removing every later line (-1: all)."""
        with _write_errors(run):
            run.mkdir(parents=True, exist_ok=True)
            lines, speed = (
                _truncate_after(run / name, resume_at) for name in ("log.jsonl", "speed.jsonl")
            )
            for name in (ALARMS, SAMPLES):
                if (run / name).exists():
                    _truncate_after(run / name, resume_at).close()
            board = _summary_writer(run / "tensorboard", resume_at)
            return cls(run, lines, speed, board, loggers)

    def write(self, step: int, values: Values, speed: Mapping[str, float]) -> None:
        """Append one step; a number that is not finite is written as null."""
        assert "step" not in values and "step" not in speed
        with _write_errors(self.run):
            self.metrics_file.write(_line(step, values))
            self.speed.write(_line(step, speed))
            scalars = dict(_flatten({**values, "speed": speed}))
            if self.tensorboard is not None:
                for name, value in scalars.items():
                    if math.isfinite(value):
                        self.tensorboard.add_scalar(name, value, step)
        if self.loggers is not None:
            self.loggers.write(step, scalars)

    def write_alarm(self, step: int, cause: str, message: str, /, **facts: int) -> None:
        """Append an alarm to a file of its own, and flush it to the disk."""
        line = json.dumps({"step": step, "alarm": cause, "message": message, **facts}) + "\n"
        with _write_errors(self.run), (self.run / ALARMS).open("a", encoding="utf-8") as file:
            file.write(line)
            file.flush()
            os.fsync(file.fileno())
        if self.loggers is not None:
            self.loggers.write_alarm(step, cause, message)

    def write_samples(self, step: int, samples: Sequence[RunSample]) -> None:
        """Append samples to a file of their own."""
        with _write_errors(self.run), (self.run / SAMPLES).open("a", encoding="utf-8") as file:
            for sample in samples:
                file.write(json.dumps({"step": step, **asdict(sample)}) + "\n")

    def sync(self) -> None:
        """Flush to the disk; before a checkpoint, so that none of its lines is lost."""
        with _write_errors(self.run):
            os.fsync(self.metrics_file.fileno())
            os.fsync(self.speed.fileno())
            if self.tensorboard is not None:
                self.tensorboard.flush()

    def close(self) -> None:
        """Close the files; lines are flushed as they are written."""
        for handle in (self.metrics_file, self.speed, self.tensorboard):
            if handle is not None:
                with contextlib.suppress(OSError):  # reported by `write`
                    handle.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read(run: Path) -> list[dict[str, Any]]:
    """Read the lines of a run's log; an incomplete last line is skipped."""
    path = run / "log.jsonl"
    if not path.is_file():
        raise UserError(f"{run} has no log.jsonl: pass the folder of a run")
    return [entry for _, entry in _read_lines(path)]


def speed_lines(run: Path) -> list[dict[str, Any]]:
    """Read the throughput of each step; none where no step was timed."""
    path = run / "speed.jsonl"
    return [entry for _, entry in _read_lines(path)] if path.is_file() else []


def alarms(run: Path) -> list[dict[str, Any]]:
    """Read the alarms of a run: `step`, `alarm` (the cause) and `message`."""
    path = run / ALARMS
    return [entry for _, entry in _read_lines(path)] if path.is_file() else []


def samples(run: Path) -> list[tuple[int, RunSample]]:
    """Read the samples of a run with their steps."""
    path = run / SAMPLES
    entries = [entry for _, entry in _read_lines(path)] if path.is_file() else []
    return [
        (entry["step"], RunSample(*(str(entry.get(name, "")) for name in SAMPLE_FIELDS)))
        for entry in entries
    ]


def speed(run: Path) -> float | None:
    """Return the median of the input tokens per second, None without a timed step."""
    speeds = [entry["tokens_per_second"] for entry in speed_lines(run)]
    return statistics.median(speeds) if speeds else None


def token_loss(entry: Mapping[str, Any], name: str = "loss") -> float:
    """Return the token loss, the part of "loss" or "eval_loss" that baselines compare with.

    A loss with other parts, such as next-sentence prediction, is their weighted sum; the token
    loss comes first.
    """
    parts: Mapping[str, float] = entry.get("losses" if name == "loss" else "eval_losses") or {}
    return next(iter(parts.values()), entry[name])


def _read_lines(path: Path) -> Iterator[tuple[bytes, dict[str, Any]]]:
    """Yield each complete line, as bytes and parsed."""
    with path.open("rb") as stream:
        for line in stream:
            with contextlib.suppress(ValueError):
                entry = json.loads(line)
                if line.endswith(b"\n") and isinstance(entry, dict) and "step" in entry:
                    yield line, entry


def _truncate_after(path: Path, resume_at: int) -> TextIO:
    """Truncate a log after a step, atomically, and open it for appending."""
    if path.exists():
        with new_file(path, "wb", durable=True) as stream:
            # A batch that is left out stays so, also before the step at which it was found.
            stream.writelines(
                line for line, e in _read_lines(path) if e["step"] <= resume_at or "batch" in e
            )
    return path.open("a", buffering=1, encoding="utf-8", newline="\n")


def _summary_writer(folder: Path, resume_at: int) -> Any | None:
    """Open TensorBoard's writer; events of later steps, from before a kill, are hidden."""
    try:
        from torch.utils.tensorboard import SummaryWriter  # slow to import
    except ImportError:
        warnings.warn(
            "tensorboard is not installed, so no events are written; log.jsonl has every number",
            stacklevel=3,
        )
        return None
    resumed = folder.exists()
    return SummaryWriter(str(folder), purge_step=resume_at + 1 if resumed else None)


def _line(step: int, values: Values) -> str:
    return json.dumps({"step": step, **_builtin_numbers(values)}, allow_nan=False) + "\n"


def _builtin_numbers(values: Values) -> dict[str, Any]:
    """Convert numbers of any library to Python's, whose JSON is bit-exact."""
    return {
        name: _builtin_numbers(value) if isinstance(value, Mapping) else _number(value)
        for name, value in values.items()
    }


def _number(value: float) -> float | None:
    if isinstance(value, int):
        return value
    value = float(value)
    return value if math.isfinite(value) else None


def _flatten(values: Values, prefix: str = "") -> Iterator[tuple[str, float]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{prefix}{name}/")
        else:
            yield prefix + name, float(value)


@contextlib.contextmanager
def _write_errors(run: Path) -> Iterator[None]:
    """Raise a user error where the log cannot be written."""
    try:
        yield
    except OSError as error:
        raise UserError(
            f"the log in {run} could not be written ({error.strerror}): the checkpoints are "
            "intact; fix the cause and resume the run"
        ) from error
