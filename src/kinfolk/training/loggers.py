"""Loggers beside TensorBoard: Weights & Biases and MLflow, off unless `train.loggers` names them.

Each has a thread of its own, so that no step waits for a network. One that fails is reported once
and is off from then on; the run continues, and log.jsonl has every number.

    RUN/loggers/wandb.json   the id of the run there, which a resume continues
"""

import importlib
import importlib.util
import json
import math
import os
import queue
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from kinfolk.errors import Terminated, UserError
from kinfolk.files import new_file

PROJECT = "kinfolk"  # unless WANDB_PROJECT or MLFLOW_EXPERIMENT_NAME is set
MAX_WAITING = 100_000  # lines that a logger has not taken yet
END_SECONDS = 60.0  # that the end of a run waits for a logger
WANDB_INIT_SECONDS = 60.0
METRICS_PER_CALL, PARAMS_PER_CALL, PARAM_CHARS = 1000, 100, 6000  # the limits of MLflow's server

Status = Literal["finished", "interrupted", "failed"]
Lines = Sequence[tuple[int, Mapping[str, float]]]  # steps and their values


class RunLogger(ABC):
    """A service that shows the numbers of runs."""

    package: ClassVar[str]

    @abstractmethod
    def start(self, run: Path, run_id: str | None, recipe: Mapping[str, Any]) -> str:
        """Begin a run, or continue that of an id; return the id."""

    @abstractmethod
    def log(self, lines: Lines) -> None:
        """Log the values of steps."""

    @abstractmethod
    def alarm(self, step: int, cause: str, message: str) -> None:
        """Log what is wrong with the run."""

    @abstractmethod
    def finish(self, status: Status, report: Path | None) -> None:
        """End the run, with the path of its report."""


class WandbLogger(RunLogger):
    """Weights & Biases; WANDB_MODE, WANDB_PROJECT and the other variables apply."""

    package = "wandb"

    def start(self, run: Path, run_id: str | None, recipe: Mapping[str, Any]) -> str:
        """Begin a run whose files are in RUN/wandb; never ask for a key."""
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # to the maker of the package
        wandb: Any = importlib.import_module(self.package)
        offline = os.environ.get("WANDB_MODE", "online") != "online"
        if not offline and not wandb.login(prompt=False):
            raise UserError("no API key: run wandb login, or set WANDB_MODE=offline")
        self.run: Any = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            name=run_name(run),
            dir=os.environ.get("WANDB_DIR", str(run)),
            id=run_id,
            # Without a network no run can be looked up; the same id joins them when they are sent.
            resume=None if offline else "allow",
            config=dict(recipe),
            settings=wandb.Settings(silent=True, console="off", init_timeout=WANDB_INIT_SECONDS),
        )
        return str(self.run.id)

    def log(self, lines: Lines) -> None:
        """Log the values of steps; those that were logged before a kill are kept as they are."""
        for step, values in lines:
            self.run.log(dict(values), step=step)

    def alarm(self, step: int, cause: str, message: str) -> None:
        """Send an alert, and keep it in the summary."""
        self.run.alert(title=f"{cause} at step {step}", text=message)
        self.run.summary[f"alarms/{cause}"] = message

    def finish(self, status: Status, report: Path | None) -> None:
        """End the run; one that is interrupted is not marked as finished."""
        if report is not None:
            self.run.summary["report"] = str(report)
        self.run.summary["status"] = status
        self.run.finish(exit_code=0 if status == "finished" else 1)


class MlflowLogger(RunLogger):
    """MLflow; MLFLOW_TRACKING_URI and the other variables apply."""

    package = "mlflow"

    def start(self, run: Path, run_id: str | None, recipe: Mapping[str, Any]) -> str:
        """Begin a run on the server, or in RUN/mlruns where none is set."""
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        # A folder is what works without a server and without a database.
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        mlflow: Any = importlib.import_module(self.package)
        self.entities: Any = importlib.import_module("mlflow.entities")
        uri = mlflow.get_tracking_uri() if mlflow.is_tracking_uri_set() else None
        uri = uri or (run / "mlruns").absolute().as_uri()
        self.client: Any = mlflow.MlflowClient(tracking_uri=uri)
        if run_id is not None:
            self.id = run_id
            self.client.update_run(run_id, status="RUNNING")
            return run_id
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
        found = self.client.get_experiment_by_name(name)
        experiment = self.client.create_experiment(name) if found is None else found.experiment_id
        self.id = self.client.create_run(experiment, run_name=run_name(run)).info.run_id
        fields = [
            (key, str(value)[:PARAM_CHARS]) for key, value in leaf_fields(recipe) if value != ""
        ]
        for start in range(0, len(fields), PARAMS_PER_CALL):
            params = [
                self.entities.Param(key, value)
                for key, value in fields[start : start + PARAMS_PER_CALL]
            ]
            self.client.log_batch(self.id, params=params)
        return self.id

    def log(self, lines: Lines) -> None:
        """Log the values of steps, many in one request."""
        now = round(1000 * time.time())
        metrics = [
            self.entities.Metric(name, value, now, step)
            for step, values in lines
            for name, value in values.items()
        ]
        for start in range(0, len(metrics), METRICS_PER_CALL):
            self.client.log_batch(self.id, metrics=metrics[start : start + METRICS_PER_CALL])

    def alarm(self, step: int, cause: str, message: str) -> None:
        """Set a tag."""
        self.client.set_tag(self.id, f"alarm.{cause}", f"step {step}: {message}")

    def finish(self, status: Status, report: Path | None) -> None:
        """Set the status, and the report as a tag."""
        if report is not None:
            self.client.set_tag(self.id, "report", str(report))
        states = {"finished": "FINISHED", "interrupted": "KILLED", "failed": "FAILED"}
        self.client.set_terminated(self.id, states[status])


LOGGERS: dict[str, Callable[[], RunLogger]] = {"wandb": WandbLogger, "mlflow": MlflowLogger}


def check_installed(names: Sequence[str]) -> None:
    """Refuse loggers whose package is missing, before a run begins."""
    for name in names:
        if importlib.util.find_spec(name) is None:
            raise UserError(
                f"train.loggers={name} needs the package {name}: pip install 'kinfolk[{name}]'"
            )


def run_name(run: Path) -> str:
    """Return the name of a run: its folder and the one around it, such as runs/gpt2."""
    return "/".join(run.absolute().parts[-2:])


def leaf_fields(tree: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the fields of a recipe by their paths: train.lr; a list of values is one field."""
    if isinstance(tree, Mapping):
        for name, child in tree.items():
            yield from leaf_fields(child, f"{path}.{name}" if path else str(name))
    elif isinstance(tree, list) and any(isinstance(child, Mapping | list) for child in tree):
        for number, child in enumerate(tree):
            yield from leaf_fields(child, f"{path}.{number}")
    else:
        yield path, tree


@dataclass(frozen=True)
class AlarmEvent:
    """An alarm for a logger."""

    step: int
    cause: str
    message: str


@dataclass(frozen=True)
class EndEvent:
    """The end of a run for a logger."""

    status: Status
    report: Path | None


Event = tuple[int, Mapping[str, float]] | AlarmEvent | EndEvent


class LoggerThread:
    """A logger in a thread of its own."""

    def __init__(self, name: str, run: Path) -> None:
        self.name, self.run = name, run
        self.events: queue.Queue[Event] = queue.Queue(MAX_WAITING)
        self.error: Exception | None = None
        self.thread = threading.Thread(target=self._work, name=f"{name} logger", daemon=True)
        self.thread.start()

    def put(self, event: Event) -> None:
        """Hand an event over; fail where too many wait."""
        try:
            self.events.put_nowait(event)
        except queue.Full:
            self.error = TimeoutError(f"it has not taken {MAX_WAITING:,} lines")

    def join(self) -> None:
        """Wait for the end, but not for ever."""
        self.thread.join(END_SECONDS)
        if self.thread.is_alive() and self.error is None:
            self.error = TimeoutError(f"it did not end in {END_SECONDS:g} s")

    def _work(self) -> None:
        try:
            logger = LOGGERS[self.name]()
            file = self.run / "loggers" / f"{self.name}.json"
            recipe = json.loads((self.run / "recipe.json").read_text(encoding="utf-8"))
            run_id = logger.start(self.run, saved_id(file), recipe)
            file.parent.mkdir(exist_ok=True)
            with new_file(file, durable=True) as stream:
                json.dump({"id": run_id}, stream)
            while self.error is None and not self._handle(logger, self._waiting()):
                pass
        except Exception as error:  # of any kind: that of a package which the run can do without
            self.error = error

    def _waiting(self) -> list[Event]:
        """Return all events that wait, at least one."""
        events = [self.events.get()]
        with suppress(queue.Empty):
            while True:
                events.append(self.events.get_nowait())
        return events

    def _handle(self, logger: RunLogger, events: Sequence[Event]) -> bool:
        """Log events; return whether the run has ended."""
        lines = [event for event in events if isinstance(event, tuple)]
        if lines:
            logger.log(lines)
        for event in events:
            if isinstance(event, AlarmEvent):
                logger.alarm(event.step, event.cause, event.message)
            elif isinstance(event, EndEvent):
                logger.finish(event.status, event.report)
                return True
        return False


def saved_id(file: Path) -> str | None:
    """Return the id of a run that was logged before; None where there is none."""
    with suppress(OSError, ValueError, LookupError, TypeError):
        return str(json.loads(file.read_text(encoding="utf-8"))["id"])
    return None


class Loggers:
    """The loggers of a run; they end with the block, in the way that it ends."""

    def __init__(self, names: Sequence[str], run: Path, on_message: Callable[[str], None]) -> None:
        self.names, self.run, self.on_message = names, run, on_message
        self.threads: list[LoggerThread] = []

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Log the values of a step that are finite."""
        if self.threads:
            finite = {name: value for name, value in values.items() if math.isfinite(value)}
            self._put((step, finite))

    def write_alarm(self, step: int, cause: str, message: str) -> None:
        """Log an alarm."""
        self._put(AlarmEvent(step, cause, message))

    def __enter__(self) -> Self:
        self.threads = [LoggerThread(name, self.run) for name in dict.fromkeys(self.names)]
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        interrupted = kind is not None and issubclass(kind, KeyboardInterrupt | Terminated)
        status: Status = "finished" if kind is None else "failed"
        report = (self.run / "report.html").absolute()
        event = EndEvent(
            "interrupted" if interrupted else status, report if report.is_file() else None
        )
        self._put(event)
        for thread in self.threads:
            thread.join()
        self._remove_failed()

    def _put(self, event: Event) -> None:
        self._remove_failed()
        for thread in self.threads:
            thread.put(event)

    def _remove_failed(self) -> None:
        """Report the loggers that have failed, and use them no more."""
        for thread in [thread for thread in self.threads if thread.error is not None]:
            self.threads.remove(thread)
            error = thread.error
            cause = (str(error).strip() or type(error).__name__).split("\n")[0]
            if isinstance(error, ImportError):
                cause = f"pip install 'kinfolk[{thread.name}]'"
            self.on_message(
                f"{thread.name} failed and is off from here on ({cause}); the run continues, and "
                "log.jsonl has every number"
            )
