"""LSTM language models: states that continue to the bit, evaluation, generation."""

import json
from dataclasses import fields
from pathlib import Path

import pytest

from kinfolk.data.prepare import prepare, train_tokenizer
from kinfolk.families.ulmfit import ULMFiTConfig
from kinfolk.workflows.evaluate import evaluate
from kinfolk.workflows.generate import generate
from kinfolk.workflows.pretrain import pretrain, resume
from kinfolk.workflows.recipe import Recipe
from kinfolk.workflows.recipe import recipe as make_recipe
from support.killed_runs import at, death
from support.runs import Home
from workflows.test_resume import same

RATES = [f.name for f in fields(ULMFiTConfig) if f.name.endswith("dropout")]
SHORT = ("train.steps=12", "train.save_every=4", "train.eval_every=4", "train.batch_size=4")


def recipe(home: Home, *settings: str, objective: str | None = None) -> Recipe:
    given = [*SHORT, *(f"model.{name}=0.2" for name in RATES), *settings]
    return make_recipe("ulmfit/nano", home.corpus, objective=objective, length=24, settings=given)


@pytest.mark.parametrize("parts", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_a_killed_run_ends_with_the_same_bits(home: Home, tmp_path: Path, parts: int) -> None:
    settings = f"train.gradient_accumulation={parts}"
    whole, run = tmp_path / "whole", tmp_path / "run"
    pretrain(recipe(home, settings), whole)
    death(recipe(home, settings), run, at, 6)
    resume(run)
    same(run, whole)
    lines = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    assert [*lines[0]["losses"]] == ["bptt", "ar", "tar"]
    assert lines[0]["loss"] == pytest.approx(
        lines[0]["losses"]["bptt"] + 2 * lines[0]["losses"]["ar"] + lines[0]["losses"]["tar"]
    )


@pytest.mark.parametrize(
    "objective", ["bptt", *(pytest.param(n, marks=pytest.mark.slow) for n in ("stream", "clm"))]
)
def test_it_is_evaluated_and_generates(home: Home, tmp_path: Path, objective: str) -> None:
    run = pretrain(recipe(home, "train.eval_batches=1000", objective=objective), tmp_path / "run")
    last = json.loads((run / "log.jsonl").read_text().splitlines()[-1])
    found = evaluate(run, corpus=home.corpus / "holdout")
    assert found.kind == "likelihood, left to right"
    if objective != "clm":  # whose rows cut the context
        assert found.loss == pytest.approx(last["eval_loss"], rel=1e-5)
    assert generate(run, "the", max_new_tokens=5)


def test_a_corpus_without_sentences_is_enough(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("\n\n".join(["word " * 40, "x", "other words " * 30] * 4))
    tokenizer = train_tokenizer(text, kind="byte")
    prepare(text, tokenizer, tmp_path / "corpus")
    settings = [*SHORT, "train.steps=2"]
    made = make_recipe("ulmfit/nano", tmp_path / "corpus", length=24, settings=settings)
    assert pretrain(made, tmp_path / "run").is_dir()
