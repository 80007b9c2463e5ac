"""The benchmark of the time to quality compares the fast recipe with the ordinary one."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from kinfolk.families import families, family
from kinfolk.families.base import FAST_FIELDS
from kinfolk.workflows.recipe import recipe
from support.runs import Home

FILE = Path(__file__).parents[1] / "benchmarks" / "time_to_quality.py"


@pytest.fixture(scope="module")
def benchmark() -> ModuleType:
    """Open the benchmark as a module."""
    spec = importlib.util.spec_from_file_location("time_to_quality", FILE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    return Home.make(tmp_path_factory.mktemp("home"))


def test_every_fast_recipe_is_measured_with_the_settings_of_the_feature(
    benchmark: ModuleType, home: Home
) -> None:
    known = {name for name, who in families().items() if who.fast_rates is not None}
    assert known <= {*benchmark.OBJECTIVES}
    assert {*benchmark.OBJECTIVES} - known == {*benchmark.CANDIDATES}
    for name in known:
        (arm,) = benchmark.fast_arms(family(name), "nano", [(1, 1)])
        asked = ["--corpus", home.corpus, "--size", "nano", "--length", 32, "--fraction", 0.5]
        steps = ["--steps", "1000", "--late-steps", "1000"]
        options = benchmark.parse([*map(str, asked), *steps, "-o", "out"])
        measured = vars(benchmark.recipe_of(options, arm, 0, 10).train)
        feature = vars(recipe(f"{name}/nano", home.corpus, length=32, fast=True, steps=500).train)
        for field in (*FAST_FIELDS, "steps", "warmup", "betas", "grad_clip"):
            assert measured[field] == feature[field], (name, field)


def test_a_share_ends_at_the_first_evaluation_with_the_last_loss_of_the_same_seed(
    benchmark: ModuleType,
) -> None:
    ordinary = {1: [(50, 4.0), (100, 3.0)], 2: [(50, 4.0), (100, 3.2)]}
    fast = {1: [(20, 3.5), (40, 3.0), (50, 2.9)], 2: [(20, 3.1), (40, 3.3), (50, 3.0)]}
    found = benchmark.compare(ordinary, fast, 1.5)
    assert found.steps == [0.4, 0.2]
    assert found.time == pytest.approx([0.6, 0.3])
    assert found.gaps == pytest.approx([-0.1, -0.2])
    assert benchmark.shares(found.time) == "45% (30% to 60%)"
    late = benchmark.compare(ordinary, {1: [(50, 3.1)], 2: [(50, 3.1)]}, None)
    assert late.steps == [None, 0.5]
    assert benchmark.shares(late.steps) == "1 of 2 runs reach it"


@pytest.mark.slow
def test_it_searches_runs_times_and_ends_with_a_table_and_curves(
    home: Home, tmp_path: Path
) -> None:
    asked = "--families gpt2 --size nano --steps 16 --rows 2 --length 32 --plain 1 --fast 1:1"
    asked += " --fraction 0.5 --seeds 2 --setting train.eval_batches=1 train.workers=1"
    argv = [*asked.split(), "--corpus", str(home.corpus), "-o", str(tmp_path)]

    def printed(plot: str, *more: str) -> str:
        command = [sys.executable, str(FILE), *argv, "--plot", str(tmp_path / plot), *more]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    untimed = printed("curves.json", "--phases", "search", "final")
    assert "failed" not in untimed
    rows = [line for line in untimed.splitlines() if line.startswith("| gpt2")]
    assert rows[0].startswith("| gpt2 | 0.001 | 0.008 0.02 | ") and rows[0].endswith("| - | - |")
    assert rows[1].startswith("| gpt2 | nanoGPT | 0.008 0.02 | ")
    curves = json.loads((tmp_path / "curves.json").read_text())["gpt2"]
    names = [curve["name"].split()[0] for curve in curves]
    assert sorted(names) == ["fast", "nanoGPT", "ordinary"]
    assert [len(curve["xs"]) for curve in curves] == [8 if n == "fast" else 16 for n in names]
    found = printed("curves.html", "--phases", "time")
    assert all(not row.endswith("| - |") for row in found.splitlines() if row.startswith("| gpt2"))
    lines = (tmp_path / "results.jsonl").read_text()
    assert printed("curves.html") == found
    assert printed("curves.html", "--phases") == found
    assert (tmp_path / "results.jsonl").read_text() == lines, "nothing is run twice"
    assert "<figure class=" in (tmp_path / "curves.html").read_text()


def test_families_that_learn_late_have_more_steps(benchmark: ModuleType) -> None:
    asked = ["--corpus", "corpus", "-o", "out", "--steps", "800"]
    options = benchmark.parse(asked)
    assert benchmark.ordinary_steps(options, "gpt2") == 800
    assert benchmark.ordinary_steps(options, "bert") == 1600
    options = benchmark.parse([*asked, "--late-steps", "1000"])
    assert [benchmark.ordinary_steps(options, name) for name in ("t5", "albert")] == [800, 1000]
