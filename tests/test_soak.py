"""`make soak`: what it kills, that it finds a difference, and a few of its kills."""

import importlib.util
import json
import random
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from kinfolk.families import index
from kinfolk.workflows.finetuning.recipe import FineTuneRecipe
from support.runs import Home

TOOL = Path(__file__).parent.parent / "tools" / "soak.py"


@pytest.fixture(scope="module")
def soak() -> ModuleType:
    spec = importlib.util.spec_from_file_location("soak", TOOL)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["soak"] = module
    spec.loader.exec_module(module)
    return module


def test_every_family_is_killed_with_each_objective(soak: ModuleType) -> None:
    jobs = {(job.kind, job.name, job.objective) for job in soak.jobs()}
    for name, entry in index().items():
        assert {("pretrain", name, objective) for objective in entry.objectives} <= jobs
    assert {kind for kind, *_ in jobs} == {*soak.ACTIONS}


def test_every_family_has_a_job_and_the_processes_several_threads(soak: ModuleType) -> None:
    jobs = [job for job in soak.jobs() if job.kind in ("pretrain", "finetune")]
    assert {job.name for job in jobs} == {*index()}
    # ELMo and CoVe are made for the features that fine-tuning reads.
    tuned = {job.name for job in jobs if job.kind == "finetune"}
    assert tuned >= {"elmo", "cove"} | {n for n, entry in index().items() if not entry.objectives}
    assert soak.THREADS > 1


def test_cross_view_training_is_killed_with_unlabelled_text(
    soak: ModuleType, tmp_path: Path
) -> None:
    soak.write_data(tmp_path)
    soak.finetune_job(soak.Job("finetune", "cvt"), tmp_path, tmp_path / "run")
    recipe = FineTuneRecipe.read(tmp_path / "run" / "recipe.json")
    assert recipe.unlabelled is not None and recipe.unlabelled.rows


def test_kills_are_a_function_of_the_seed(soak: ModuleType) -> None:
    def drawn(seed: int) -> list[object]:
        rng = random.Random(seed)
        return [soak.draw_kill(rng, 500, 2.0, fresh=True) for _ in range(40)]

    assert drawn(1) == drawn(1) != drawn(2)
    assert {kill.access is None for kill in drawn(1)} == {True, False}


def test_a_different_run_is_found(soak: ModuleType, tmp_path: Path) -> None:
    home = Home.make(tmp_path / "home")
    job = soak.Job("pretrain", "gpt2", "clm")
    whole = home.run("gpt2", "whole", "train.steps=4")
    for name in ("same", "linked", "logged"):
        (tmp_path / name).mkdir()
        shutil.copytree(whole, tmp_path / name / "out", symlinks=True)
    soak.check_equal(job, whole, tmp_path / "same" / "out")
    link = tmp_path / "linked" / "out" / "checkpoints" / "best"
    link.unlink()
    link.symlink_to("step-00000001")
    with pytest.raises(RuntimeError, match="links to"):
        soak.check_equal(job, whole, tmp_path / "linked" / "out")
    log = tmp_path / "logged" / "out" / "log.jsonl"
    log.write_text(log.read_text().replace('"loss": ', '"loss": 1'))
    with pytest.raises(RuntimeError, match=r"log\.jsonl, step 1: loss is"):
        soak.check_equal(job, whole, tmp_path / "logged" / "out")
    (tmp_path / "same" / ".out.partial").mkdir()
    with pytest.raises(RuntimeError, match=r"left beside the output: \.out\.partial"):
        soak.check_equal(job, whole, tmp_path / "same" / "out")


@pytest.mark.slow
def test_some_kills_of_a_family_and_of_a_tokenizer(tmp_path: Path) -> None:
    for only, kills in (("gpt2 clm", 3), ("tokenizer", 2)):
        results = tmp_path / "soak.json"
        command = [sys.executable, TOOL, "--kills", str(kills), "--only", only, "--seed", "3"]
        done = subprocess.run(
            [*map(str, command), "--json", str(results)],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert "all equal to the bit" in done.stdout
        assert json.loads(results.read_text())["kills"] == kills
