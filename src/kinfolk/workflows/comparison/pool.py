"""The processes of a comparison: one for each group of jobs, several at a time."""

import json
import queue
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from kinfolk.errors import UserError
from kinfolk.training.meters import physical_index
from kinfolk.workflows.comparison.jobs import read_result
from kinfolk.workflows.comparison.plan import Job, Plan
from kinfolk.workflows.comparison.results import PartialRace
from kinfolk.workflows.processes import child_environment

SECONDS_OF_GRACE = 20  # for processes that save a checkpoint at Ctrl-C
LOG_LINES = 3  # of a process that failed, in its error


class RaceCallback:
    """Hooks of a comparison: override those of interest."""

    def on_message(self, message: str) -> None:
        """Called with a message about the data."""

    def on_earlier(self, job: Job, seconds: float) -> None:
        """Called before `on_plan` for each job that an earlier start has done."""

    def on_plan(self, plan: Plan, waiting: Sequence[Job]) -> None:
        """Called before jobs run, with those that have no result yet."""

    def on_start(self, job: Job) -> None:
        """Called when a job starts."""

    def on_progress(self, job: Job, share: float) -> None:
        """Called about once a second with the share of a job that is done."""

    def on_done(self, job: Job, seconds: float, failed: str | None) -> None:
        """Called when a job has its result."""


def stages(plan: Plan) -> list[list[str]]:
    """Return the names of groups, those of each stage together."""
    by_stage: dict[int, dict[str, None]] = {}
    for job in plan.jobs:
        by_stage.setdefault(job.stage, {})[job.group] = None
    return [[*by_stage[stage]] for stage in sorted(by_stage)]


class EventHandler:
    """Passes what processes report to callbacks, and keeps race.json up to date."""

    def __init__(self, plan: Plan, callbacks: Sequence[RaceCallback], partial: PartialRace) -> None:
        self._jobs = {job.name: job for job in plan.jobs}
        self._callbacks, self._partial = callbacks, partial
        self._started: dict[str, float] = {}

    def __call__(self, event: Mapping[str, Any]) -> None:
        job, now = self._jobs[event["job"]], time.monotonic()
        for callback in self._callbacks:
            if event["event"] == "start":
                callback.on_start(job)
            elif event["event"] == "progress":
                callback.on_progress(job, event["share"])
            else:
                seconds = now - self._started.get(job.name, now)
                callback.on_done(job, seconds, event["failed"])
        if event["event"] == "start":
            self._started[job.name] = now
        elif event["event"] == "done":
            self._partial.update()


def run_processes(
    out: Path, plan: Plan, jobs: int, callbacks: Sequence[RaceCallback], partial: PartialRace
) -> None:
    """Run each group in a process of its own, several at a time, a stage after the other."""
    handle = EventHandler(plan, callbacks, partial)
    (out / "logs").mkdir(exist_ok=True)
    groups = plan.groups()
    for stage in stages(plan):
        waiting = [
            name for name in stage if any(read_result(out, job) is None for job in groups[name])
        ]
        with Workers(out, plan.threads) as workers:
            workers.run(waiting, jobs, handle)


class Workers:
    """The processes that run groups; they end with this one."""

    def __init__(self, out: Path, threads: int) -> None:
        self.out, self.threads = out, threads
        self.events: queue.Queue[tuple[str, str | None]] = queue.Queue()
        self.running: dict[str, subprocess.Popen[str]] = {}
        self.devices = list(range(torch.cuda.device_count()))
        self.device_of: dict[str, int] = {}  # of the groups that run, where there are several

    def __enter__(self) -> "Workers":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """End processes that still run; after Ctrl-C they save a checkpoint."""
        for process in self.running.values():
            process.terminate()
        ends = time.monotonic() + SECONDS_OF_GRACE
        for process in self.running.values():
            try:
                process.wait(max(0.0, ends - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def run(
        self, groups: Sequence[str], jobs: int, handle: Callable[[Mapping[str, Any]], None]
    ) -> None:
        """Run groups until all are done; the first that fails ends the others."""
        waiting = list(reversed(groups))
        while waiting or self.running:
            while waiting and len(self.running) < jobs:
                self.start(waiting.pop())
            name, line = self.events.get()
            if line is not None:
                handle(json.loads(line))
                continue
            with self.running.pop(name) as process:  # which closes its pipes
                code = process.wait()
            if code:
                raise UserError(self.failure(name, code))

    def start(self, group: str) -> None:
        """Start the process of a group."""
        environment = child_environment(OMP_NUM_THREADS=str(self.threads))
        if len(self.devices) > 1:
            used = Counter(self.device_of[name] for name in self.running)
            device = min(self.devices, key=lambda device: used[device])
            self.device_of[group] = device
            environment["CUDA_VISIBLE_DEVICES"] = physical_index(torch.device("cuda", device))
        log = (self.out / "logs" / f"{group}.txt").open("ab")
        command = [
            sys.executable,
            "-m",
            "kinfolk.workflows.comparison.worker",
            str(self.out),
            group,
        ]
        with log:
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=environment,
                start_new_session=True,  # Ctrl-C comes to this process, which ends them
            )
        self.running[group] = process
        threading.Thread(target=self._read, args=(group, process), daemon=True).start()

    def _read(self, group: str, process: "subprocess.Popen[str]") -> None:
        assert process.stdout is not None
        for line in process.stdout:
            self.events.put((group, line))
        self.events.put((group, None))

    def failure(self, group: str, code: int) -> str:
        """Return the error about a process that failed."""
        log = self.out / "logs" / f"{group}.txt"
        lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        end = " ".join(lines[-LOG_LINES:]) or "without a message"
        return (
            f"the process of {group} ended with code {code} ({end}): see {log}, then continue with "
            f"kinfolk compare --resume {self.out}"
        )
