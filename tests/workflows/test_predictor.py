"""Asking a solver from Python, one question at a time."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import kinfolk
from kinfolk.errors import UserError
from kinfolk.families import family_of
from kinfolk.tasks.formats.base import Columns, FileSpec
from kinfolk.tasks.formulations.choose import (
    build_formulation,
    choose_formulation,
    model_config,
)
from kinfolk.tasks.rows import LabelledText, MultipleChoiceRow, QuestionRow, TaggedSentence
from kinfolk.tasks.task import Task
from kinfolk.workflows.predict import Predictor
from support.learnable import opinions, tune
from support.task_rows import config, tokenizer


def made(kind: str, **facts: Any) -> Predictor:
    """Put a head on a small BERT that learned nothing."""
    torch.manual_seed(0)
    body, task = config("bert"), Task(kind=kind, **facts)
    family = family_of(body)
    formulation = choose_formulation(family, type(task))
    built = build_formulation(formulation, task, family, body, tokenizer())
    return Predictor(model_config(built, body).build().eval(), tokenizer(), built)


def test_a_run_is_asked_by_its_texts(tmp_path: Path) -> None:
    run = tune("bert/nano", opinions(tmp_path / "data"), tmp_path / "run", epochs=16)
    triage = kinfolk.load_predictor(run)
    assert triage.predict_one("the film story was lovely").value == "good"
    assert triage.predict_one("the film story was awful").value == "bad"


@pytest.mark.parametrize(
    ("kind", "facts", "texts", "row"),
    [
        ("classify", {"labels": ("no", "yes")}, ("a b", "c"), LabelledText(("a b", "c"), None, 1)),
        ("regress", {}, ("a b",), LabelledText(("a b",), None, 1)),
        ("choose", {}, ("a b", "c", "d"), MultipleChoiceRow("a b", ("c", "d"), None, 1)),
        ("tag", {"labels": ("O", "B-X")}, ("a b c",), TaggedSentence(("a", "b", "c"), None, 1)),
        ("span", {}, ("a", "b c d"), QuestionRow("1", "b c d", "a", (), True, 1)),
    ],
)
def test_texts_become_the_row_of_the_task(
    kind: str, facts: dict[str, Any], texts: tuple[str, ...], row: Any
) -> None:
    found = made(kind, **facts)
    assert found.predict_one(*texts) == found.predict([row])[0]


def test_too_few_texts_are_refused() -> None:
    with pytest.raises(UserError, match="give 2"):
        made("span").predict_one("when")
    with pytest.raises(UserError, match="give 2"):
        made("classify", labels=("no", "yes"), is_pair=True).predict_one("alone")


SINGLE = FileSpec("classify", "table", "", Columns(("text",), "label"), header=True)


def test_pairs_are_no_single_texts() -> None:
    single = replace(made("classify", labels=("no", "yes")), file_spec=SINGLE)
    with pytest.raises(UserError, match=r"2 texts, but the model was trained on single texts"):
        single.predict_one("one", "two")
    with pytest.raises(UserError, match=r"2 texts, .*--columns a,"):
        single.read([{"sentence1": "one", "sentence2": "two"}])
    pair = replace(made("classify", labels=("no", "yes"), is_pair=True), file_spec=SINGLE)
    with pytest.raises(UserError, match=r"1 text, but the model was trained on pairs"):
        pair.read([{"text": "one"}])
    with pytest.raises(UserError, match=r"1 text, .*--columns a,b,"):
        pair.read([{"body": "one"}], columns="body,")


def test_half_a_character_is_refused_in_a_text() -> None:
    with pytest.raises(UserError, match=r"item 1 contains a lone surrogate"):
        made("regress").predict_one("so \ud800")


def test_columns_of_texts_are_predicted() -> None:
    predictor = made("classify", labels=("no", "yes"))
    found = kinfolk.predict(predictor, ["a b", "c"])
    series = pytest.importorskip("pandas").Series(["a b", "c"])
    for inputs in (series, np.array(["a b", "c"]), iter(["a b", "c"])):
        assert kinfolk.predict(predictor, inputs) == found


@pytest.mark.parametrize("name", ["trian.tsv", "data/new.csv.gz", "NEW.JSONL", "new.txt"])
def test_the_name_of_a_missing_file_is_no_text(name: str) -> None:
    predictor = made("classify", labels=("no", "yes"))
    with pytest.raises(UserError, match=f"no such file: {name}"):
        kinfolk.predict(predictor, name)
    assert len(kinfolk.predict(predictor, [name])) == 1
    assert len(kinfolk.predict(predictor, f"it is in {name}")) == 1
