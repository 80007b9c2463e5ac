"""A comparison finds an entrant that is better by construction, and none among equals."""

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from kinfolk.workflows.compare import compare
from support.runs import text

# The same network under three names; one of them does not train.
ENTRANTS = ["plain=gpt2/nano", "twin=gpt2/nano", "crippled=gpt2/nano train.lr=1e-9 task.lr=1e-9"]
WORDS = {"animal": ("cat", "dog", "bird", "horse"), "tool": ("saw", "nail", "rope", "drill")}


def labelled(rows: int) -> str:
    """Return sentences whose label is the kind of a word in them."""
    chance = random.Random(0)
    lines = ["label\ttext"]
    for _ in range(rows):
        label = chance.choice(list(WORDS))
        lines.append(f"{label}\twe saw the {chance.choice(WORDS[label])} {chance.random():.2f}")
    return "\n".join(lines) + "\n"


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
    """Check that the crippled entrant is behind both others, which are equal."""
    shown = {frozenset((d["first"], d["second"])): d for d in table["differences"]}
    for name in ("plain", "twin"):
        d = shown[frozenset((name, "crippled"))]
        assert d["shown"] and d["first"] == name
        assert metric_sign * d["value"] > 0
    twins = shown[frozenset(("plain", "twin"))]
    assert not twins["shown"] and twins["value"] == pytest.approx(0)
    said = table["verdicts"]
    assert any("plain" in s and "ahead of crippled" in s for s in said)
    assert any(s.startswith("no difference shown between plain and twin ") for s in said)
    assert not any(s.startswith("crippled is ahead") for s in said)


def test_a_crippled_entrant_is_behind_and_a_twin_is_equal(tmp_path: Path) -> None:
    found = race(tmp_path, seeds=1)
    check(found["likelihood"], -1)
    said = " ".join(found["verdicts"])
    assert "one seed: the interval covers held-out documents only, not training" in said


@pytest.mark.slow
def test_so_it_is_with_five_seeds_and_on_a_task(tmp_path: Path) -> None:
    """A network that does not train is right on half to two thirds of the rows, by its seed."""
    task = tmp_path / "words.tsv"
    task.write_text(labelled(600), encoding="utf-8")
    found = race(tmp_path, seeds=5, tasks=[task])
    check(found["likelihood"], -1)
    check(found["tasks"][0], 1)
    assert "5 seeds" in found["verdicts"][0]
