"""Compare families of language models on one text and on tasks, with equal budgets."""

import contextlib
import math
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import torch

from kinfolk.data.documents import DocumentUnit
from kinfolk.errors import UserError
from kinfolk.files import folder_lock
from kinfolk.training.workload import select_device
from kinfolk.workflows.comparison.budget import check_amount
from kinfolk.workflows.comparison.jobs import read_result
from kinfolk.workflows.comparison.plan import (
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
from kinfolk.workflows.comparison.pool import EventHandler, RaceCallback, run_processes, stages
from kinfolk.workflows.comparison.repeat import write_repetition
from kinfolk.workflows.comparison.results import PartialRace, write_race
from kinfolk.workflows.comparison.setup import make_plan
from kinfolk.workflows.comparison.worker import run_group
from kinfolk.workflows.folders import check_new_folder

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
    if (epochs := options.get("task_epochs")) is not None and not 0 < epochs < math.inf:
        raise UserError(f"--task-epochs must be greater than 0 (got {epochs:g})")
    check_document_unit(options.get("document", "block"))
    select_device(options.get("device", "auto"))
    ((kind, amount),) = given.items()
    check_amount(kind, amount)
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


def check_document_unit(unit: str) -> None:
    """Refuse a unit of documents that there is not."""
    if unit not in get_args(DocumentUnit):
        raise UserError(f"--document must be {' or '.join(get_args(DocumentUnit))} (got {unit})")


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
                write_json(as_json(options), out / OPTIONS_FILE)
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
