"""Kinds of tasks: names, JSON, and which formulation each family has for them."""

import json

import pytest

from kinfolk.config import from_json, to_json
from kinfolk.errors import UserError
from kinfolk.families import families, family
from kinfolk.tasks.classification import Classification
from kinfolk.tasks.formulations.choose import choose_formulation
from kinfolk.tasks.formulations.head import TokenHead
from kinfolk.tasks.tagging import Tagging
from kinfolk.tasks.task import Task, kinds, task_class

DECODERS = [name for name in families() if family(name).model.decoding == "causal"]


def test_a_kind_is_found_by_its_name_and_its_alias() -> None:
    for name, cls in kinds().items():
        assert task_class(name) is task_class(cls.alias) is cls
        assert type(Task(kind=name)) is type(Task(kind=cls.alias)) is cls
        assert Task(kind=cls.alias).kind == name == cls().kind
    with pytest.raises(UserError, match=r"unknown task 'clasify'.*did you mean.*classify"):
        Task(kind="clasify")


@pytest.mark.parametrize("name", kinds())
def test_a_task_is_saved_by_the_name_of_its_kind(name: str) -> None:
    task = Task(kind=name, labels=("a", "b"), prefix="x: ")
    saved = json.loads(json.dumps(to_json(task)))
    assert saved["type"] == "task" and saved["kind"] == name
    assert list(saved) == [
        "type", "kind", "labels", "metric", "positive_label", "is_pair", "prefix", "language",
    ]  # fmt: skip
    assert from_json(saved) == task and type(from_json(saved)) is kinds()[name]


def test_metrics_of_a_kind_are_those_it_names() -> None:
    for cls in kinds().values():
        metrics = [metric.name for metric in cls(labels=("a", "b"), positive_label="b").metrics()]
        assert tuple(metrics) == cls.metric_names()
        assert cls().normalized(1.0) > 0
    with pytest.raises(UserError, match="the metric 'bleu' does not apply to classify tasks"):
        Classification(metric="bleu")


@pytest.mark.parametrize("name", DECODERS)
def test_a_decoder_tags_with_its_token_head(name: str) -> None:
    assert choose_formulation(family(name), Tagging) is TokenHead
    assert choose_formulation(family(name), Tagging, "text").name == "text"
