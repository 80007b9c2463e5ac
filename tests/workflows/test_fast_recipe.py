"""The fast recipe: Muon, a trapezoid schedule and rates of the family, below what a user sets."""

import dataclasses
import json
import shutil
from pathlib import Path

import pytest
import torch

from kinfolk import hub
from kinfolk.errors import UserError
from kinfolk.families import families, family, index
from kinfolk.families.base import FAST_FIELDS, STANDARD_SIZES, FastRates
from kinfolk.training.config import TrainConfig
from kinfolk.workflows.pretrain import pretrain, resume
from kinfolk.workflows.recipe import Recipe, recipe
from support.loops import every_case
from support.runs import Home

FAST = [name for name, who in families().items() if who.fast_rates is not None]


def changes(train: TrainConfig, own: TrainConfig) -> set[str]:
    """Return the fields in which two settings differ."""
    return {name for name, value in vars(train).items() if value != vars(own)[name]}


def test_it_changes_optimizer_rates_decay_and_schedule_of_every_standard_size(home: Home) -> None:
    assert {"gpt2", "glm", "albert"} <= {*FAST}
    with every_case() as case:
        for name in FAST:
            who = family(name)
            for size in STANDARD_SIZES:
                with case((name, size)):
                    own, rates = who.train(size), who.fast_rates
                    train = who.fast_train(own)
                    assert rates is not None and changes(train, own) <= {*FAST_FIELDS}
                    assert (train.schedule, train.min_lr_ratio) == ("trapezoid", 0.0)
                    assert (train.weight_decay, train.lr) == (0.0, rates.lr)
                    if rates.matrix_lr is not None:
                        assert (train.optimizer, train.matrix_lr) == ("muon", rates.matrix_lr)
            with case(name):
                found = recipe(f"{name}/nano", home.corpus, length=32, fast=True)
                assert found.train == who.fast_train(who.train("nano"))


def test_without_a_rate_of_matrices_it_is_the_schedule_alone() -> None:
    who = dataclasses.replace(family("t5"), fast_rates=FastRates(lr=1e-2))
    train = who.fast_train(who.train("t5-small"))
    assert (train.optimizer, train.schedule, train.lr) == ("adamw_rms", "trapezoid", 1e-2)


def test_what_a_user_sets_wins(home: Home) -> None:
    found = recipe(
        "gpt2/nano",
        home.corpus,
        fast=True,
        steps=400,
        lr=5e-3,
        settings=["train.matrix_lr=0.03", "train.schedule=linear", "train.weight_decay=0.2"],
    )
    train = found.train
    assert (train.steps, train.lr, train.matrix_lr) == (400, 5e-3, 0.03)
    assert (train.schedule, train.weight_decay, train.optimizer) == ("linear", 0.2, "muon")


@pytest.mark.parametrize(
    ("settings", "warmup"),
    [
        ([], 200),
        (["train.steps=1000"], 50),
        (["train.steps=3"], 1),
        (["train.steps=1000", "train.warmup=300"], 300),
    ],
)
def test_its_warm_up_is_a_twentieth_of_the_steps_at_most(
    settings: list[str], warmup: int, home: Home
) -> None:
    assert recipe("gpt2/nano", home.corpus, fast=True, settings=settings).train.warmup == warmup


def test_a_published_size_keeps_steps_batches_and_betas_of_its_paper(home: Home) -> None:
    small = ["model.num_layers=1", "model.hidden_size=16", "model.num_heads=2"]
    for name, size in (("gpt2", "gpt2-xl"), ("albert", "albert-large-v2")):
        found = recipe(f"{name}/{size}", home.corpus, length=32, fast=True, settings=small)
        paper, train = family(name).paper_training[size], found.train
        kept = ("steps", "batch_size", "betas", "eps", "grad_clip")
        assert [vars(train)[key] for key in kept] == [vars(paper)[key] for key in kept]
        assert train.warmup == min(paper.warmup, paper.steps // 20)
        assert (train.lr, train.matrix_lr) == dataclasses.astuple(family(name).fast_rates)
        assert (train.optimizer, train.schedule, train.weight_decay) == ("muon", "trapezoid", 0.0)


def test_a_family_without_one_names_those_that_have_one(home: Home) -> None:
    assert [name for name, entry in index().items() if "fast" in entry.capabilities] == FAST
    for name in ("ulmfit", "transformer", "ngram"):
        with pytest.raises(UserError) as raised:
            recipe(f"{name}/nano", home.corpus, fast=True)
        listed = ", ".join(FAST)
        assert str(raised.value) == (
            f"{name} has no fast recipe (supported: {listed}): remove --fast"
        )


def test_its_values_are_in_the_recipe_file_and_a_resume_is_exact(
    home: Home, tmp_path: Path
) -> None:
    short = {"steps": 4, "batch_size": 4, "save_every": 2, "eval_every": 4, "device": "cpu"}
    found = recipe("gpt2/nano", home.corpus, length=32, fast=True, **short)
    whole = pretrain(found, tmp_path / "whole")
    text = (whole / "recipe.json").read_text()
    assert '"fast' not in text and json.loads(text)["train"]["optimizer"] == "muon"
    assert Recipe.read(whole / "recipe.json") == found
    stopped = tmp_path / "stopped"
    shutil.copytree(whole, stopped, symlinks=True)
    shutil.rmtree(stopped / "checkpoints" / "step-00000004")
    resume(stopped)
    weights = [
        hub.load_model(run / "checkpoints" / "step-00000004").state_dict()
        for run in (whole, stopped)
    ]
    for name, weight in weights[0].items():
        torch.testing.assert_close(weights[1][name], weight, rtol=0, atol=0)


def test_a_run_continues_with_the_rates_of_its_size_and_another_model_with_lower_ones(
    home: Home, runs: dict[str, Path], tmp_path: Path
) -> None:
    rates = family("gpt2").fast_rates
    assert rates is not None and rates.matrix_lr is not None
    own = recipe(runs["gpt2"], home.corpus, fast=True)
    assert own.init_from and (own.train.lr, own.train.matrix_lr) == (rates.lr, rates.matrix_lr)
    hub.save(tmp_path / "theirs", *hub.load(runs["gpt2"] / "checkpoints" / "last"))
    plain = recipe(tmp_path / "theirs", home.corpus, length=32).train
    theirs = recipe(tmp_path / "theirs", home.corpus, length=32, fast=True).train
    lower = plain.lr / family("gpt2").training.lr
    assert lower == 0.6
    assert theirs.lr == pytest.approx(lower * rates.lr, rel=0.03)
    assert theirs.matrix_lr == pytest.approx(lower * rates.matrix_lr, rel=0.03)
    given = recipe(tmp_path / "theirs", home.corpus, length=32, fast=True, matrix_lr=0.5).train
    assert given.matrix_lr == 0.5
