"""A comparison finds an entrant that is better by construction, and none among equals."""

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from kinfolk.workflows.comparison import jobs
from kinfolk.workflows.comparison.compare import compare
from kinfolk.workflows.comparison.plan import PlannedEntrant
from kinfolk.workflows.recipe import Recipe
from support.runs import text

# One network under three names; two of them learn little, with random draws of their own.
SLOW = "train.lr=1e-4 task.lr=1e-5"
ENTRANTS = [f"plain=gpt2/nano {SLOW}", f"equal=gpt2/nano {SLOW}", "better=gpt2/nano"]
OTHER_SEEDS = 1000  # added to those of the equal entrant
WORDS = {"animal": ("cat", "dog", "bird", "horse"), "tool": ("saw", "nail", "rope", "drill")}


def labelled(rows: int) -> str:
    """Return sentences whose label is the kind of a word in them."""
    chance = random.Random(0)
    lines = ["label\ttext"]
    for _ in range(rows):
        label = chance.choice(list(WORDS))
        lines.append(f"{label}\twe saw the {chance.choice(WORDS[label])} {chance.random():.2f}")
    return "\n".join(lines) + "\n"


@pytest.fixture(autouse=True)
def _own_seeds_of_the_equal_entrant(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the equal entrant other weights, batches and dropout than the plain one."""
    pretraining, fine_tuning = jobs.planned_recipe, jobs.finetune_arguments

    def planned_recipe(entrant: PlannedEntrant, *, seed: int, **settings: Any) -> Recipe:
        return pretraining(entrant, seed=shifted(entrant, seed), **settings)

    def finetune_arguments(
        entrant: PlannedEntrant, *others: Any, seed: int, **settings: Any
    ) -> Any:
        return fine_tuning(entrant, *others, seed=shifted(entrant, seed), **settings)

    def shifted(entrant: PlannedEntrant, seed: int) -> int:
        return seed + (OTHER_SEEDS if entrant.name == "equal" else 0)

    monkeypatch.setattr(jobs, "planned_recipe", planned_recipe)
    monkeypatch.setattr(jobs, "finetune_arguments", finetune_arguments)


def race(folder: Path, *, seeds: int, tasks: Sequence[Path] = ()) -> dict[str, Any]:
    corpus = folder / "text.txt"
    corpus.write_text(text(300), encoding="utf-8")
    result = compare(
        *(ENTRANTS, corpus, folder / "race"),
        tokens=13_000,
        tasks=tasks,
        seeds=seeds,
        labels=["all"],
        jobs=0,
        length=32,
        batch_size=8,
        task_steps=60,
        vocab_size=400,
        holdout=0.2,
        probes=False,
        samples=0,
        baselines=False,
        device="cpu",
    )
    race: dict[str, Any] = json.loads((result.path / "race.json").read_text(encoding="utf-8"))
    assert race["complete"]
    return race


def check(table: dict[str, Any], metric_sign: int) -> None:
    """Check that the better entrant is ahead of both others, which differ by chance alone."""
    found = {frozenset((d["first"], d["second"])): d for d in table["differences"]}
    for name in ("plain", "equal"):
        d = found[frozenset((name, "better"))]
        assert d["shown"] and d["first"] == "better"
        assert metric_sign * d["value"] > 0
    equals = found[frozenset(("plain", "equal"))]
    assert equals["value"] != 0
    assert not equals["shown"] and equals["low"] < 0 < equals["high"]
    ahead, tie = table["verdicts"]
    assert "better is ahead of " in ahead
    assert all(f" {name} by " in ahead for name in ("plain", "equal"))
    assert tie.startswith("no difference shown between ")
    assert {*tie.split(" on ")[0].split()} >= {"plain", "equal"} and "better" not in tie


def scores_by_seed(table: dict[str, Any], name: str) -> list[float]:
    (row,) = (row for row in table["rows"] if row["entrant"] == name)
    return list(row["seeds"])


@pytest.mark.slow
def test_a_better_entrant_is_ahead_and_an_equal_one_of_other_seeds_is_not(tmp_path: Path) -> None:
    found = race(tmp_path, seeds=3)
    check(found["likelihood"], -1)
    plain, equal = (scores_by_seed(found["likelihood"], name) for name in ("plain", "equal"))
    assert len({*plain, *equal}) == 6  # no two runs have the same draws
    assert all("3 seeds" in sentence for sentence in found["verdicts"])


@pytest.mark.slow
def test_so_it_is_with_five_seeds_and_on_a_task(tmp_path: Path) -> None:
    """A network that does not train is right on half to two thirds of the rows, by its seed."""
    task = tmp_path / "words.tsv"
    task.write_text(labelled(600), encoding="utf-8")
    found = race(tmp_path, seeds=5, tasks=[task])
    check(found["likelihood"], -1)
    check(found["tasks"][0], 1)
    assert "5 seeds" in found["verdicts"][0]
