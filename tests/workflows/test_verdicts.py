"""Runs that judge more than tokens: what is scored, and two networks that resume as one."""

from pathlib import Path
from typing import Any

import pytest
import torch

from kinfolk.batch import Inputs
from kinfolk.data.corpus import Corpus
from kinfolk.hub import load, load_model
from kinfolk.objectives.evaluation import pair_accuracy, rtd_scores
from kinfolk.workflows.evaluate import evaluate, open_evaluation
from kinfolk.workflows.pretrain import resume
from kinfolk.workflows.recipe import Recipe
from support.killed_runs import at, death
from support.runs import Home, tree


@pytest.fixture
def electra(home: Home) -> Path:
    return home.run("electra")


def test_a_killed_run_of_two_networks_ends_like_one_left_alone(
    home: Home, electra: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    death(home.recipe("electra"), run, at, 5)
    resume(run)
    last, expected = (tree(folder / "checkpoints" / "last") for folder in (run, electra))
    assert "generator/model.safetensors" in expected
    assert last == expected
    assert (run / "log.jsonl").read_bytes() == (electra / "log.jsonl").read_bytes()


def test_a_detector_is_scored_on_what_its_generator_replaced(home: Home, electra: Path) -> None:
    held_out = home.corpus / "holdout"
    said = open_evaluation(electra, held_out, None).auxiliary_metrics()
    model, way = load_model(electra / "checkpoints" / "last"), Recipe.read(electra / "recipe.json")
    found = rtd_scores(model, way.objective, Corpus.open(held_out))
    assert said == {
        "detection_auc": found.auc,
        "detection_accuracy": found.accuracy,
        "replaced_share": found.base_rate,
    }
    assert 0 < found.base_rate < 0.2


def test_the_likelihood_of_a_text_is_the_generators(home: Home, electra: Path) -> None:
    path = home.folder / "one.txt"
    path.write_text("The cat saw a ball again.", encoding="utf-8")
    score = evaluate(electra, file=path)
    assert score.kind.startswith("pseudo-likelihood")
    model: Any
    model, tokenizer = load(electra / "checkpoints" / "last")
    ids = tokenizer.encode("The cat saw a ball again.")
    nats = 0.0
    for place in range(1, len(ids) - 1):
        row = torch.tensor([ids])
        row[0, place] = tokenizer.special_tokens.require("mask")
        with torch.no_grad():
            hidden = model.forward_lm(Inputs.from_ids(row, causal=False)).hidden
            logits = model.lm_logits(hidden[0, place]).logits()
        nats -= logits.log_softmax(-1)[ids[place]].item()
    assert score.tokens == len(ids) - 2
    assert score.nats == pytest.approx(nats, rel=1e-5)


@pytest.mark.parametrize("member", ["bert", "albert"])
def test_pairs_are_scored_by_the_share_judged_rightly(member: str, home: Home) -> None:
    run, held_out = home.run(member), home.corpus / "holdout"
    model, way = load_model(run / "checkpoints" / "last"), Recipe.read(run / "recipe.json")
    share = pair_accuracy(model, way.objective, Corpus.open(held_out))
    assert open_evaluation(run, held_out, None).auxiliary_metrics() == {"pair_accuracy": share}


def test_a_text_without_pairs_has_no_verdict(home: Home) -> None:
    path = home.folder / "single.txt"
    path.write_text("The cat saw a ball again.", encoding="utf-8")
    assert (
        open_evaluation(home.run("bert"), None, path).auxiliary_metrics() == {}
    )  # no other document to take strangers from
    assert (
        open_evaluation(home.run("albert"), None, path).auxiliary_metrics() == {}
    )  # no second sentence


def test_who_learned_tokens_alone_has_no_verdict(home: Home) -> None:
    assert (
        open_evaluation(home.run("gpt2"), home.corpus / "holdout", None).auxiliary_metrics() == {}
    )
