"""A run that remembers: killed and resumed it ends with the same bits."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from kinfolk.errors import UserError
from kinfolk.objectives.clm import CLM
from kinfolk.training import checkpoint
from kinfolk.training.run import Run
from kinfolk.workflows.evaluate import evaluate
from kinfolk.workflows.pretrain import PretrainWorkload, pretrain, resume
from kinfolk.workflows.recipe import CorpusShare, Recipe
from support.killed_runs import at, death
from support.runs import Home
from workflows.test_resume import WEIGHTS, same

SHORT = ("model.mem_len=24", "objective.max_length=16")  # documents of more than one row


def recipe(home: Home, *settings: str) -> Recipe:
    return home.recipe("transformer_xl", *SHORT, *settings)


@pytest.fixture(scope="module")
def whole(home: Home) -> Path:
    return home.run("transformer_xl", "remembering", *SHORT)


@pytest.mark.parametrize("deaths", [(5,), (2, 9)])
def test_a_killed_run_ends_like_one_left_alone(
    deaths: tuple[int, ...], home: Home, whole: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    for step in deaths:
        death(recipe(home), run, at, step)
    resume(run)
    same(run, whole)


def test_workers_change_nothing(home: Home, whole: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    death(recipe(home, "train.workers=2"), run, at, 6)
    resume(run)
    same(run, whole, WEIGHTS)


def test_steps_in_parts_resume_exactly(home: Home, tmp_path: Path) -> None:
    whole = home.run("transformer_xl", "in parts", *SHORT, "train.gradient_accumulation=2")
    run = tmp_path / "run"
    death(recipe(home, "train.gradient_accumulation=2"), run, at, 7)
    resume(run)
    same(run, whole)
    saved = checkpoint.load_training_state(run / "checkpoints" / "last")["memory"]
    assert [m["hidden"].shape for m in saved] == [(2, 2, 24, 64)] * 2


def test_the_memory_is_in_the_checkpoint_and_matters(
    home: Home, whole: Path, tmp_path: Path
) -> None:
    """A run that forgot at its resume would not end like the one left alone."""
    (saved,) = checkpoint.load_training_state(whole / "checkpoints" / "step-00000004")["memory"]
    assert saved["document_ids"].shape == (4, 24) and (saved["document_ids"] >= 0).any()
    out = tmp_path / "run"
    death(recipe(home), out, at, 5)
    work: Any = PretrainWorkload(recipe(home))
    run = Run(work, out)
    run.restore(out / "checkpoints" / "step-00000004")
    assert all(torch.equal(getattr(work.memory[0], name), t) for name, t in saved.items())
    work.memory[:] = [work.model.init_memory(4)]
    run.fit()
    with pytest.raises(AssertionError):
        same(out, whole, WEIGHTS)


def test_a_run_by_clm_remembers_nothing(home: Home, tmp_path: Path) -> None:
    base = recipe(home, "train.steps=2", "train.warmup=1")
    way = CLM(**vars(base.objective))
    run = pretrain(replace(base, objective=way), tmp_path / "run")
    assert "memory" not in checkpoint.load_training_state(run / "checkpoints" / "last")


def test_held_out_text_is_scored_as_evaluate_does(home: Home, tmp_path: Path) -> None:
    # A memory that holds every document: then it does not matter where rows end.
    settings = ("train.eval_batches=1000", "model.mem_len=100")
    run = pretrain(recipe(home, *settings), tmp_path / "run")
    last = json.loads((run / "log.jsonl").read_text().splitlines()[-1])
    found = evaluate(run, corpus=home.corpus / "holdout")
    assert found.kind == "likelihood, left to right"
    assert found.loss == pytest.approx(last["eval_loss"], rel=1e-5)


def test_two_corpora_are_refused(home: Home, second: Path, tmp_path: Path) -> None:
    corpora = (CorpusShare(str(home.corpus)), CorpusShare(str(second)))
    with pytest.raises(UserError, match="one corpus, not 2"):
        pretrain(replace(recipe(home), corpus=corpora), tmp_path / "run")
