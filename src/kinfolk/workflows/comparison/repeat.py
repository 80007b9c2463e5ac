"""A comparison once more: the same data, plan and numbers of steps, in a new folder.

Runs with a budget of minutes end by the clock, which no machine repeats. A repetition is given the
decisions of the first comparison (training/time_budget.py), so that on a CPU its scores are the
same to the last digit.
"""

import datetime
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from kinfolk.errors import UserError
from kinfolk.files import new_folder
from kinfolk.training.time_budget import DECISIONS, read_decisions, to_the_end
from kinfolk.version import __version__
from kinfolk.workflows.comparison.jobs import JobContext, read_result
from kinfolk.workflows.comparison.plan import Job, Plan, write_finite_json
from kinfolk.workflows.comparison.setup import machine

REPETITION = (
    "This comparison repeats {}: its runs have the numbers of steps and the learning rates of that "
    "one, whatever seconds they take."
)
REPEATED_COUNTING = (
    "Every run has as many steps as in the comparison that this one repeats, which the clock ended "
    "there. The seconds are those of this time."
)
DATA_FOLDERS = ("corpus", "corpora", "tasks")


def write_repetition(race: Path, out: Path) -> None:
    """Write the folder of a comparison that repeats a complete one, for a resume to run."""
    plan = complete_plan(race)
    race, out = race.resolve(), out.resolve()
    repeated = replace(
        plan,
        repeats=str(race),
        decisions=dict(decided(race, plan)),
        notes=(REPETITION.format(race), *plan.notes[bool(plan.repeats) :]),
        budget={**plan.budget, "how": REPEATED_COUNTING}
        if plan.budget["kind"] == "minutes"
        else plan.budget,
        machine=machine(plan.options.device, plan.threads),
        kinfolk=__version__,
        created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    )
    values = moved(asdict(repeated), str(race), str(out))
    # What was asked for stays as it was.
    values |= {"repeats": str(race), "options": asdict(plan.options), "notes": repeated.notes}
    with new_folder(out) as folder:
        for name in DATA_FOLDERS:
            if (race / name).is_dir():
                shutil.copytree(race / name, folder / name)
        write_finite_json(values["options"], folder / "options.json")
        write_finite_json(values, folder / "plan.json")


def complete_plan(race: Path) -> Plan:
    """Return the plan of a comparison; refuse one that is not complete."""
    if not (race / "plan.json").is_file():
        raise UserError(f"{race} is not the folder of a comparison: it has no plan.json")
    plan = Plan.read(race / "plan.json")
    waiting = sum(read_result(race, job) is None for job in plan.jobs)
    if waiting:
        raise UserError(
            f"{race} is not complete ({waiting} of {len(plan.jobs)} jobs have no result): continue "
            f"it with kinfolk compare --resume {race}, then repeat it"
        )
    if (folder := strayed_corpus(race.resolve(), plan)) is not None:
        raise UserError(
            f"{race} was moved or copied: its plan reads {folder}; move it back, then repeat it"
        )
    return plan


def strayed_corpus(race: Path, plan: Plan) -> Path | None:
    """Return a corpus of the plan that is not where it should be."""
    own = any((race / name).is_dir() for name in ("corpus", "corpora"))
    for entrant in plan.entrants:
        folder = Path(entrant.corpus)
        if entrant.corpus and (not folder.is_dir() or (own and not folder.is_relative_to(race))):
            return folder
    return None


def decided(race: Path, plan: Plan) -> Iterator[tuple[str, list[tuple[int, int, float]]]]:
    """Yield the decisions of each run that ended by the clock, by its job."""
    for job in plan.jobs:
        if job.kind in ("pretrain", "search") and ends_by_the_clock(plan, job):
            path = JobContext(race, plan, job).run / DECISIONS
            if not path.is_file() and (read_result(race, job) or {}).get("failed"):
                continue  # before it began, as it will again
            found = to_the_end(read_decisions(path))
            yield job.name, [(one.step, one.steps, one.seconds) for one in found]


def ends_by_the_clock(plan: Plan, job: Job) -> bool:
    """Return whether the run of a job has a budget of seconds."""
    train = (plan.entrant_of[job.entrant].recipe or {}).get("train", {})
    return train.get("minutes") is not None


def moved(value: Any, old: str, new: str) -> Any:
    """Return JSON with the paths inside of one folder as those inside of another."""
    if isinstance(value, Mapping):
        return {key: moved(inner, old, new) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [moved(inner, old, new) for inner in value]
    inside = isinstance(value, str) and (value == old or value.startswith(f"{old}/"))
    return new + value.removeprefix(old) if inside else value
