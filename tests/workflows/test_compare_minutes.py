"""Comparisons by minutes: equal seconds on a machine that drifts, and how to repeat one."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from kinfolk.errors import UserError
from kinfolk.training import checkpoint
from kinfolk.training.log import read, speed_lines
from kinfolk.training.step import TrainStep
from kinfolk.training.time_budget import DECISIONS, read_decisions, to_the_end
from kinfolk.workflows.comparison.compare import RaceResult, compare, repeat_race, resume_race
from kinfolk.workflows.comparison.plan import Plan
from support.clocks import StepClock
from support.runs import text

ENTRANTS = ("gpt2/nano", "bert/nano objective=mlm", "ngram")
SECONDS_OF = {"gpt2": 0.1, "bert": 0.13}  # of a step
DRIFT = 1.7
TIMED = 2 * (3 + 7 * 2)  # steps that are timed before the runs
MINUTES = 0.2
SMALL: dict[str, Any] = {
    "minutes": MINUTES,
    "search": 2,
    "seeds": 1,
    "labels": ["all"],
    "length": 16,
    "batch_size": 4,
    "task_steps": 3,
    "max_tokens": 64,
    "samples": 2,
    "device": "cpu",
    "jobs": 0,
}
RUNS = ("runs/gpt2-nano/seed-0", "runs/bert-nano-objective-mlm/seed-0")


def drifting(step: TrainStep, done: int) -> float:
    """Return the seconds of a step of a machine that is slower after some of the pretraining."""
    family: Any = step.learner.model
    return SECONDS_OF.get(family.family_name, 0.1) * (DRIFT if done > TIMED + 110 else 1.0)


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return a text and a labelled file."""
    folder = tmp_path_factory.mktemp("inputs")
    corpus, task = folder / "text.txt", folder / "films.tsv"
    corpus.write_text(text(documents=150), encoding="utf-8")
    rows = [f"film {n} was {'fine' if n % 2 else 'dull'}\t{'ab'[n % 2]}" for n in range(60)]
    task.write_text("text\tlabel\n" + "\n".join(rows) + "\n", encoding="utf-8")
    return corpus, task


@pytest.fixture(scope="module")
def race(inputs: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> RaceResult:
    """Return a comparison by minutes on a machine that became slower."""
    out = tmp_path_factory.mktemp("race") / "race"
    with pytest.MonkeyPatch.context() as patch:
        StepClock(drifting).install(patch)
        return compare(ENTRANTS, inputs[0], out, tasks=inputs[1], **SMALL)


def steady(step: TrainStep, done: int) -> float:
    """Return the seconds of a step of a machine that does not change."""
    family: Any = step.learner.model
    return 2 * SECONDS_OF[family.family_name]


def seconds(run: Path) -> float:
    """Return the seconds that the steps of a run took."""
    return sum(line["seconds"] for line in speed_lines(run))


def kill_after(monkeypatch: pytest.MonkeyPatch, checkpoints: int) -> None:
    """End the process after some checkpoints; nothing after the last of them is kept."""
    save, saved = checkpoint.save_checkpoint, list[Path]()

    def killed(*arguments: Any, **settings: Any) -> Path:
        saved.append(save(*arguments, **settings))
        if len(saved) == checkpoints:
            raise MemoryError
        return saved[-1]

    monkeypatch.setattr(checkpoint, "save_checkpoint", killed)


def test_entrants_spend_the_same_seconds_on_a_machine_that_drifts(race: RaceResult) -> None:
    given = 60 * MINUTES
    measured = race.race["budget"]["measured"]
    assert measured["spread"] < 0.02
    plan = Plan.read(race.path / "plan.json")
    for folder, name in zip(RUNS, ENTRANTS, strict=False):
        entrant = next(e for e in plan.entrants if e.name.startswith(name[:9]))
        searched = [seconds(run) for run in (race.path / "search" / entrant.slug).iterdir()]
        assert searched == pytest.approx([given / 6, given / 6], abs=0.01 * given)
        left = given - sum(searched)
        assert seconds(race.path / folder) == pytest.approx(left, abs=0.01 * given)
        # The plan has the first estimate, and the page what was done.
        done = read(race.path / folder)[-1]["step"]
        assert done < 0.9 * entrant.steps
        (row,) = (row for row in race.race["entrants"] if row["name"] == entrant.name)
        assert row["steps"] == done


@pytest.mark.slow
def test_a_run_has_the_seconds_that_the_search_left(
    inputs: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Ten steps of 0.26 s for each rate: rounding to whole steps moves each by up to half of one.
    StepClock(steady).install(monkeypatch)
    options = {**SMALL, "search": 5, "minutes": 150 * 0.26 / 60}
    found = compare(ENTRANTS[:2], inputs[0], tmp_path / "race", **options)
    measured = found.race["budget"]["measured"]
    assert measured["spread"] < 0.02
    for row in found.race["entrants"]:
        if not row["baseline"]:
            spent = row["cost"]["search_seconds"] + row["cost"]["seconds"]
            assert measured["low"] <= spent <= measured["high"]
            assert row["cost"]["search_seconds"] == pytest.approx(
                60 * options["minutes"] / 3, rel=0.1
            )
    with pytest.raises(UserError, match="--search 5 needs 150, 10 for each learning rate"):
        compare(ENTRANTS[:2], inputs[0], tmp_path / "less", **options | {"minutes": 0.5})


@pytest.mark.slow
@pytest.mark.parametrize("checkpoints", [(3, 6), (9, 2)])
def test_a_repetition_that_is_killed_twice_ends_with_the_same_table(
    race: RaceResult, tmp_path: Path, checkpoints: Sequence[int]
) -> None:
    out = tmp_path / "again"
    for number, count in enumerate(checkpoints):
        with pytest.MonkeyPatch.context() as patch:
            StepClock(lambda step, done: 0.01).install(patch)  # ten times as fast
            kill_after(patch, count)
            with pytest.raises(MemoryError):
                resume_race(out, jobs=0) if number else repeat_race(race.path, out, jobs=0)
    with pytest.MonkeyPatch.context() as patch:
        StepClock(lambda step, done: 0.4).install(patch)
        found = resume_race(out, jobs=0)
    assert (out / "race.csv").read_bytes() == (race.path / "race.csv").read_bytes()
    for folder in RUNS:
        assert read(out / folder) == read(race.path / folder)
        decisions = read_decisions(out / folder / DECISIONS)
        assert decisions == read_decisions(race.path / folder / DECISIONS)
    assert found.race["budget"]["how"].startswith(
        "Every run has as many steps as in the comparison"
    )
    assert found.race["command"] == f"kinfolk compare --repeat {race.path} -o RACE"
    assert found.race["notes"][0].startswith(f"This comparison repeats {race.path}: its runs have")
    assert str(race.path) not in json.dumps(Plan.read(out / "plan.json").entrants[0].recipe)
    assert (out / "options.json").read_bytes() == (race.path / "options.json").read_bytes()


@pytest.mark.slow
def test_an_interrupted_comparison_keeps_its_decisions(
    inputs: tuple[Path, Path], tmp_path: Path
) -> None:
    out, options = tmp_path / "race", {**SMALL, "search": 0}
    with pytest.MonkeyPatch.context() as patch:
        StepClock(drifting).install(patch)
        kill_after(patch, 6)  # the second of the second run
        with pytest.raises(MemoryError):
            compare(ENTRANTS[:2], inputs[0], out, **options)
    first, second = (out / folder / DECISIONS for folder in RUNS)
    whole, begun = read_decisions(first), read_decisions(second)
    logged = {line["step"]: line["lr"] for line in read(out / RUNS[1])}
    assert to_the_end(whole) == whole and to_the_end(begun) != begun
    with pytest.MonkeyPatch.context() as patch:
        StepClock(lambda step, done: 0.4).install(patch)  # steps done again take twice as long
        found = resume_race(out, jobs=0)
    assert read_decisions(first) == whole
    assert read_decisions(second)[: len(begun)] == begun
    after = {line["step"]: line["lr"] for line in read(out / RUNS[1])}
    assert {step: after[step] for step in logged} == logged
    assert found.race["budget"]["measured"]["spread"] < 0.02


def test_a_comparison_that_is_not_complete_is_not_repeated(
    inputs: tuple[Path, Path], tmp_path: Path
) -> None:
    out = tmp_path / "race"
    with pytest.MonkeyPatch.context() as patch:
        StepClock(drifting).install(patch)
        kill_after(patch, 1)
        with pytest.raises(MemoryError):
            compare(ENTRANTS[:1], inputs[0], out, **{**SMALL, "search": 0})
    with pytest.raises(UserError, match=r"not complete \(\d of \d jobs .* compare --resume"):
        repeat_race(out, tmp_path / "again", jobs=0)
    with pytest.raises(UserError, match="is not the folder of a comparison"):
        repeat_race(tmp_path / "nowhere", tmp_path / "again", jobs=0)
    assert not (tmp_path / "again").exists()


def test_a_comparison_that_was_moved_or_copied_is_not_repeated(
    race: RaceResult, tmp_path: Path
) -> None:
    copied = shutil.copytree(race.path, tmp_path / "copied")
    with pytest.raises(UserError, match=r"copied was moved or copied: its plan reads .*/corpus;"):
        repeat_race(copied, tmp_path / "again", jobs=0)
    assert not (tmp_path / "again").exists()


def test_a_repetition_needs_a_new_folder_and_all_decisions(
    race: RaceResult, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match="choose another folder"):
        repeat_race(race.path, race.path, jobs=0)
    path = race.path / RUNS[0] / DECISIONS
    kept = path.read_text(encoding="utf-8")
    path.unlink()
    try:
        with pytest.raises(UserError, match=r"steps.jsonl is damaged \(there is no such file\)"):
            repeat_race(race.path, tmp_path / "again", jobs=0)
    finally:
        path.write_text(kept, encoding="utf-8")
    assert not (tmp_path / "again").exists()


def test_a_budget_of_a_few_steps_is_refused(inputs: tuple[Path, Path], tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        StepClock(drifting).install(patch)
        with pytest.raises(UserError, match=r"--minutes 0\.05 is enough for 23 steps of bert"):
            compare(ENTRANTS, inputs[0], tmp_path / "race", **{**SMALL, "minutes": 0.05})
    assert not (tmp_path / "race").exists()
