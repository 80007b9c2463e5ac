"""Compare families of language models on one text and on tasks, with equal budgets."""

import contextlib
import json
import os
import queue
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from kinfolk.errors import UserError
from kinfolk.files import folder_lock
from kinfolk.workflows.folders import check_new_folder
from kinfolk.workflows.race_jobs import read_result, run_group
from kinfolk.workflows.race_plan import (
    DEFAULT_LABELS,
    MAX_JOBS,
    MAX_SEEDS,
    Entrant,
    Job,
    Plan,
    RaceOptions,
    check_names,
    parse_labels,
    write_json,
)
from kinfolk.workflows.race_results import PartialRace, write_race
from kinfolk.workflows.race_setup import make_plan

SECONDS_OF_GRACE = 20  # for processes that save a checkpoint at Ctrl-C
LOG_LINES = 3  # of a process that failed, in its error
MAX_SEARCH = 9  # learning rates
OPTIONS_FILE, PLAN_FILE, RESULT_FILE = "options.json", "plan.json", "race.json"
BUDGETS = ("minutes", "flops", "tokens")


@dataclass(frozen=True)
class RaceResult:
    """A finished comparison: its folder and the contents of race.json."""

    path: Path
    race: Mapping[str, Any]

    @property
    def verdicts(self) -> list[str]:
        """What the differences show, in sentences."""
        return list(self.race["verdicts"])


class RaceCallback:
    """Hooks of a comparison: override those of interest."""

    def on_message(self, message: str) -> None:
        """Called with a message about the data."""

    def on_plan(self, plan: Plan, waiting: Sequence[Job]) -> None:
        """Called before jobs run, with those that have no result yet."""

    def on_start(self, job: Job) -> None:
        """Called when a job starts."""

    def on_progress(self, job: Job, share: float) -> None:
        """Called about once a second with the share of a job that is done."""

    def on_done(self, job: Job, seconds: float, failed: str | None) -> None:
        """Called when a job has its result."""


def compare(
    entrants: Sequence[Entrant | str],
    corpus: Path | str | Sequence[Path | str],
    out: Path | str,
    *,
    minutes: float | None = None,
    flops: float | None = None,
    tokens: float | None = None,
    tasks: Path | str | Sequence[Path | str] = (),
    seeds: int = 3,
    labels: Sequence[str | int] = DEFAULT_LABELS,
    jobs: int | None = None,
    callbacks: Sequence[RaceCallback] = (),
    **options: Any,
) -> RaceResult:
    """Pretrain and fine-tune entrants with equal budgets, compare them, and write race.html.

    `compare(["gpt2/tiny", "bert/tiny"], "notes/", "race", minutes=3, tasks="triage.tsv")`

    An entrant is `[NAME=]FAMILY[/SIZE][ KEY=VALUE ...]`. The corpus is a folder of `prepare` or
    text, which is prepared once for all. One of `minutes`, `flops` and `tokens` is the budget of
    each pretraining. Further options are the fields of `RaceOptions`. With `jobs=0` everything
    runs in this process; else each entrant and seed has a process, `jobs` of them at a time.
    """
    chosen = race_options(
        entrants,
        corpus,
        {"minutes": minutes, "flops": flops, "tokens": tokens},
        tasks=tasks,
        seeds=seeds,
        labels=labels,
        **options,
    )
    out = Path(out)
    check_new_folder(out, "choose another folder, or continue that comparison with resume_race")
    return start_race(chosen, out, jobs=jobs, callbacks=callbacks)


def resume_race(
    out: Path | str, *, jobs: int | None = None, callbacks: Sequence[RaceCallback] = ()
) -> RaceResult:
    """Continue a comparison that was interrupted; jobs with a result are not run again."""
    out = Path(out)
    if not (out / OPTIONS_FILE).is_file():
        raise UserError(f"{out} is not the folder of a comparison: it has no {OPTIONS_FILE}")
    options = RaceOptions.read(out / OPTIONS_FILE)
    return start_race(options, out, jobs=jobs, callbacks=callbacks)


def race_options(
    entrants: Sequence[Entrant | str],
    corpus: Path | str | Sequence[Path | str],
    budgets: Mapping[str, float | None],
    *,
    tasks: Path | str | Sequence[Path | str] = (),
    seeds: int = 3,
    labels: Sequence[str | int] = DEFAULT_LABELS,
    **options: Any,
) -> RaceOptions:
    """Return the options of a comparison, checked as far as no file is read."""
    if isinstance(entrants, str):
        raise UserError(f"entrants is the text {entrants!r}: give a list, such as [{entrants!r}]")
    parsed = tuple(e if isinstance(e, Entrant) else Entrant.parse(e) for e in entrants)
    check_names(parsed)
    given = {kind: amount for kind, amount in budgets.items() if amount is not None}
    if len(given) != 1:
        raise UserError(
            f"{len(given)} budgets are given: give one of {', '.join(f'--{k}' for k in BUDGETS)}"
        )
    if not 1 <= seeds <= MAX_SEEDS:
        raise UserError(f"--seeds must be from 1 to {MAX_SEEDS} (got {seeds})")
    if not (options.get("search", 0) == 0 or 2 <= options["search"] <= MAX_SEARCH):
        raise UserError(f"--search must be from 2 to {MAX_SEARCH} (got {options['search']})")
    ((kind, amount),) = given.items()
    try:
        return RaceOptions(
            entrants=parsed,
            corpus=tuple(str(path) for path in as_list(corpus)),
            budget_kind=kind,
            budget_amount=float(amount),
            tasks=tuple(str(path) for path in as_list(tasks)),
            seeds=seeds,
            labels=parse_labels([str(size) for size in labels]),
            **options,
        )
    except TypeError as error:
        raise UserError(f"unknown option of compare: {error}") from error


def as_list(value: Path | str | Sequence[Path | str]) -> list[Path | str]:
    """Return one path or several as a list."""
    return [value] if isinstance(value, Path | str) else list(value)


def start_race(
    options: RaceOptions, out: Path, *, jobs: int | None, callbacks: Sequence[RaceCallback]
) -> RaceResult:
    """Plan a comparison that has no plan, run the jobs without a result, and write the page."""
    jobs = default_jobs(options.device) if jobs is None else jobs
    if not 0 <= jobs <= MAX_JOBS:
        raise UserError(f"--jobs must be from 0 to {MAX_JOBS} (got {jobs})")
    with race_folder(out, options):
        threads = torch.get_num_threads()
        try:
            plan = planned(options, out, jobs, callbacks)
            torch.set_num_threads(plan.threads)
            waiting = unfinished(plan, out)
            for callback in callbacks:
                callback.on_plan(plan, waiting)
            partial = PartialRace(out, plan)
            if jobs:
                run_processes(out, plan, jobs, callbacks, partial)
            else:
                run_here(out, plan, callbacks, partial)
            return RaceResult(out, write_race(out, plan))
        finally:
            torch.set_num_threads(threads)


def plan_only(options: RaceOptions, *, jobs: int | None, on_message: Callable[[str], None]) -> Plan:
    """Return the plan of a comparison, and keep nothing of it."""
    jobs = default_jobs(options.device) if jobs is None else jobs
    threads = torch.get_num_threads()
    try:
        with tempfile.TemporaryDirectory(prefix="kinfolk-compare-") as folder:
            return make_plan(options, Path(folder), jobs=jobs, on_message=on_message)
    finally:
        torch.set_num_threads(threads)


def unfinished(plan: Plan, out: Path) -> list[Job]:
    """Return the jobs that have no result yet."""
    return [job for job in plan.jobs if read_result(out, job) is None]


def default_jobs(device: str) -> int:
    """Return the number of processes at a time: one, or one for each GPU."""
    return max(1, torch.cuda.device_count()) if device != "cpu" else 1


@contextlib.contextmanager
def race_folder(out: Path, options: RaceOptions) -> Iterator[None]:
    """Hold the folder of a comparison; remove one that was not planned because of a mistake."""
    out.mkdir(parents=True, exist_ok=True)
    try:
        with folder_lock(out, wait=False):
            if not (out / OPTIONS_FILE).is_file():
                write_json(as_json(options), out / OPTIONS_FILE)
            try:
                yield
            except UserError:
                if not (out / PLAN_FILE).is_file():
                    shutil.rmtree(out, ignore_errors=True)
                raise
    except BlockingIOError:
        raise UserError(
            f"{out} is in use: another process compares in it; wait for its end"
        ) from None


def as_json(options: RaceOptions) -> dict[str, Any]:
    """Return options as plain values."""
    return {**vars(options), "entrants": [vars(entrant) for entrant in options.entrants]}


def planned(options: RaceOptions, out: Path, jobs: int, callbacks: Sequence[RaceCallback]) -> Plan:
    """Read the plan, or make it."""
    path = out / PLAN_FILE
    if path.is_file():
        return Plan.read(path)

    def on_message(message: str) -> None:
        for callback in callbacks:
            callback.on_message(message)

    plan = make_plan(options, out, jobs=jobs, on_message=on_message)
    plan.write(path)
    return plan


# Running jobs


def run_here(
    out: Path, plan: Plan, callbacks: Sequence[RaceCallback], partial: PartialRace
) -> None:
    """Run all jobs in this process."""
    handle = EventHandler(plan, callbacks, partial)
    for group in stages(plan):
        for name in group:
            run_group(out, plan, name, lambda **event: handle(event))


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
            code = self.running.pop(name).wait()
            if code:
                raise UserError(self.failure(name, code))

    def start(self, group: str) -> None:
        """Start the process of a group."""
        environment = {**os.environ, "OMP_NUM_THREADS": str(self.threads)}
        if len(self.devices) > 1:
            used = {process.args[-1] for process in self.running.values()}  # type: ignore[index]
            free = [d for d in self.devices if str(d) not in used] or self.devices
            environment["CUDA_VISIBLE_DEVICES"] = str(free[0])
        else:
            free = self.devices or [0]
        log = (self.out / "logs" / f"{group}.txt").open("ab")
        command = [sys.executable, "-m", "kinfolk.workflows.race_jobs", str(self.out), group]
        with log:
            process = subprocess.Popen(
                [*command, str(free[0])],
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
