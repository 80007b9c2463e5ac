"""Compare families of language models on one text and on tasks, with equal budgets."""

import contextlib
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from kinfolk.errors import UserError
from kinfolk.files import folder_lock
from kinfolk.training.workload import select_device
from kinfolk.workflows.comparison.jobs import read_result
from kinfolk.workflows.comparison.options import OPTIONS_FILE, race_options, read_options
from kinfolk.workflows.comparison.plan import (
    DEFAULT_LABELS,
    MAX_JOBS,
    Entrant,
    Job,
    Plan,
    RaceOptions,
    write_finite_json,
)
from kinfolk.workflows.comparison.pool import EventHandler, RaceCallback, run_processes, stages
from kinfolk.workflows.comparison.repeat import write_repetition
from kinfolk.workflows.comparison.results import PartialRace, write_race
from kinfolk.workflows.comparison.setup import make_plan
from kinfolk.workflows.comparison.worker import run_group
from kinfolk.workflows.folders import check_new_folder

PLAN_FILE, RESULT_FILE = "plan.json", "race.json"


@dataclass(frozen=True)
class RaceResult:
    """A finished comparison: its folder and the contents of race.json."""

    path: Path
    race: Mapping[str, Any]

    @property
    def verdicts(self) -> list[str]:
        """What the differences show, in sentences."""
        return list(self.race["verdicts"])


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
    return start_race(read_options(out), out, jobs=jobs, callbacks=callbacks)


def repeat_race(
    race: Path | str,
    out: Path | str,
    *,
    jobs: int | None = None,
    callbacks: Sequence[RaceCallback] = (),
) -> RaceResult:
    """Do a complete comparison again in a new folder, with as many steps at the same rates.

    On a CPU its scores are the same to the last digit, whatever its runs had as a budget.
    """
    out = Path(out)
    check_new_folder(out, "choose another folder, or continue that comparison with resume_race")
    write_repetition(Path(race), out)
    return resume_race(out, jobs=jobs, callbacks=callbacks)


def start_race(
    options: RaceOptions, out: Path, *, jobs: int | None, callbacks: Sequence[RaceCallback]
) -> RaceResult:
    """Plan a comparison that has no plan, run the jobs without a result, and write the page."""
    jobs = default_jobs(options.device) if jobs is None else jobs
    if not 0 <= jobs <= MAX_JOBS:
        raise UserError(f"--jobs must be from 0 to {MAX_JOBS} (got {jobs})")
    select_device(options.device)
    with race_folder(out, options):
        threads = torch.get_num_threads()
        try:
            plan = planned(options, out, jobs, callbacks)
            torch.set_num_threads(plan.threads)
            waiting = unfinished(plan, out)
            for callback in callbacks:
                for job in plan.jobs:
                    if (found := read_result(out, job)) is not None:
                        callback.on_earlier(job, found["total_seconds"])
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
    new_parents = [folder for folder in out.parents if not folder.exists()]
    out.mkdir(parents=True, exist_ok=True)
    try:
        with folder_lock(out, wait=False):
            if not (out / OPTIONS_FILE).is_file():
                write_finite_json(as_json(options), out / OPTIONS_FILE)
            try:
                yield
            except UserError:
                if not (out / PLAN_FILE).is_file():
                    shutil.rmtree(out, ignore_errors=True)
                    for folder in new_parents:  # the innermost first
                        with contextlib.suppress(OSError):
                            folder.rmdir()
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


def run_here(
    out: Path, plan: Plan, callbacks: Sequence[RaceCallback], partial: PartialRace
) -> None:
    """Run all jobs in this process."""
    handle = EventHandler(plan, callbacks, partial)
    for group in stages(plan):
        for name in group:
            run_group(out, plan, name, lambda **event: handle(event))
