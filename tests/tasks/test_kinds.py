"""Kinds of tasks: names, JSON, scores, and which formulation each family has for them."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from kinfolk.config import from_json, to_json
from kinfolk.errors import UserError
from kinfolk.families import families, family
from kinfolk.metrics.metric import MeanMetric
from kinfolk.tasks.classification import Classification
from kinfolk.tasks.formats.base import parse_columns, read_rows
from kinfolk.tasks.formats.detect import detect_format
from kinfolk.tasks.formulations.choose import choose_formulation
from kinfolk.tasks.formulations.head import TokenHead
from kinfolk.tasks.rows import LabelledText, QuestionRow, SourceTarget, TaggedSentence
from kinfolk.tasks.tagging import Tagging
from kinfolk.tasks.task import Prediction, Task, kinds, task_class

FIRST, SECOND = "the old man painted a ball again .", "a red bird followed the river home today ."
DECODERS = [
    name for name, one in families().items() if one.model.pooling and one.model.decoding == "causal"
]


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
        "num_sentences",
    ]  # fmt: skip
    assert from_json(saved) == task and type(from_json(saved)) is kinds()[name]


def test_metrics_of_a_kind_are_those_it_names() -> None:
    for cls in kinds().values():
        labels = ("O", "b") if cls is Tagging else ("a", "b")
        metrics = [metric.name for metric in cls(labels=labels, positive_label="b").metrics()]
        assert tuple(metrics) == cls.metric_names()
        assert cls().normalized(1.0) > 0
    with pytest.raises(UserError, match="the metric 'bleu' does not apply to classify tasks"):
        Classification(metric="bleu")


@pytest.mark.parametrize("name", DECODERS)
def test_a_decoder_tags_with_its_token_head(name: str) -> None:
    assert choose_formulation(family(name), Tagging) is TokenHead
    assert choose_formulation(family(name), Tagging, "text").name == "text"


@pytest.mark.parametrize("text", [FIRST, SECOND])
def test_every_reference_of_a_generated_text_counts(text: str, tmp_path: Path) -> None:
    file = tmp_path / "train.jsonl"
    records = [
        {"source": "one", "target": [FIRST, SECOND]},
        {"source": "two", "target": "so be it now"},
    ]
    file.write_text("\n".join(json.dumps(record) for record in records) + "\n", encoding="utf-8")
    spec = detect_format(file, task="write", columns=parse_columns("source,target"))
    rows = list(read_rows(file, spec))
    scores = Task(kind="write").evaluate(rows, [Prediction(text), Prediction("so be it now")])
    assert scores["bleu"] == pytest.approx(100) and scores["chrf"] == pytest.approx(100)
    assert (scores["rouge1"], scores["rouge2"], scores["rougeL"]) == (1, 1, 1)


def test_a_worse_reference_changes_no_score() -> None:
    task = Task(kind="write")
    predictions = [Prediction("the cat sat on a mat"), Prediction("it was late")]
    single = [
        SourceTarget("", "the cat sat on the mat", 1),
        SourceTarget("", "it was very late", 2),
    ]
    several = [
        single[0],
        SourceTarget("", "it was very late", 2, ("none of these words is there",)),
    ]
    assert task.evaluate(single, predictions) == task.evaluate(several, predictions)


def test_chinese_questions_without_an_answer_are_scored() -> None:
    task = Task(kind="span", language=True)
    rows = [
        QuestionRow("1", "北京是首都", "哪里", (("北京", 0),), True, 1),
        QuestionRow("2", "北京是首都", "谁", (), False, 2),
        QuestionRow("3", "北京是首都", "几时", (), False, 3),
    ]
    scores = task.evaluate(rows, [Prediction("北京"), Prediction(""), Prediction("首都")])
    assert scores == {"f1": pytest.approx(2 / 3), "exact": pytest.approx(2 / 3)}
    assert task.evaluate(rows[1:2], [Prediction("")]) == {"f1": 1, "exact": 1}
    assert task.evaluate(rows[:1], [Prediction("")]) == {"f1": 0, "exact": 0}


def test_parts_of_speech_are_scored_by_accuracy_alone() -> None:
    task = Tagging(labels=("NOUN", "VERB"))
    rows = [TaggedSentence(("a", "b"), ("NOUN", "VERB"), 1)]
    scores = task.evaluate(rows, [Prediction(("NOUN", "NOUN"))])
    assert (task.main_metric, scores) == ("accuracy", {"accuracy": 0.5})
    asked = Tagging(labels=("NOUN", "VERB"), metric="f1")
    assert asked.main_metric == "f1" and asked.evaluate(rows, [Prediction(("NOUN", "NOUN"))]) == {
        "f1": 0.5,
        "accuracy": 0.5,
    }


def test_what_f1_counts_is_said() -> None:
    sentence = [TaggedSentence(("a", "b"), ("PER", "O"), 1)]
    assert "no tag begins with B- or I-" in Tagging(labels=("O", "PER")).score_notes(sentence)[0]
    assert not Tagging(labels=("O", "B-PER")).score_notes(sentence)
    assert not Tagging(labels=("NOUN", "VERB")).score_notes(sentence)
    rows = [LabelledText(("so",), "bad", 1), LabelledText(("no",), "good", 2)]
    binary = Classification.from_rows(rows, file="a.tsv")
    assert binary.score_notes(rows) == ["F1 is of the class good (--positive-label)"]
    assert not Classification(labels=("a", "b", "c")).score_notes(rows)


def test_bmes_tags_are_entities() -> None:
    words = TaggedSentence(("a", "b", "c", "d"), ("B-X", "M-X", "E-X", "S-Y"), 1)
    task = Tagging.from_rows([words], file="a.txt")
    assert task.evaluate([words], [Prediction(("B-X", "E-X", "O", "S-Y"))])["f1"] == 0.5
    bare = TaggedSentence(("a", "b", "c"), ("B", "E", "S"), 1)
    segments = Tagging.from_rows([bare], file="a.txt")
    assert segments.evaluate([bare], [Prediction(("S", "S", "S"))])["f1"] == pytest.approx(0.4)


def test_tags_with_and_without_a_prefix_are_refused_before_training() -> None:
    rows = [TaggedSentence(("a",), ("B-X",), 1), TaggedSentence(("b",), ("X",), 3)]
    with pytest.raises(
        UserError, match=r"line 3 of a\.txt has the tag 'X', .*write O, or a prefix"
    ):
        Tagging.from_rows(rows, file="a.txt")


def test_plain_text_for_an_encoder_names_the_file_as_the_problem() -> None:
    message = r"notes\.txt was read as text without labels, .*--task classify"
    with pytest.raises(UserError, match=message):
        choose_formulation(family("bert"), task_class("lm"), file="notes.txt")
    assert choose_formulation(family("gpt2"), task_class("lm"), file="notes.txt").trains


@dataclass(frozen=True)
class Rows(MeanMetric):
    """One for every row."""

    name: str = "rows"
    title: str = "rows"

    def values(self, predictions: Sequence[Any], references: Sequence[Any], /) -> list[float]:
        return [1.0 for _ in predictions]


@pytest.mark.parametrize("name", kinds())
def test_a_metric_that_a_subclass_adds_is_computed_and_can_come_first(name: str) -> None:
    cls = kinds()[name]
    for every in ((Rows(), *cls.all_metrics), (*cls.all_metrics, Rows())):
        own = type("Own", (cls,), {"all_metrics": every})
        for labels in ((), ("B-PER", "O"), ("NOUN", "VERB")):
            task = own(kind=name, labels=labels)
            found = [metric.name for metric in task.metrics()]
            assert found.count("rows") == 1, (name, labels)
            built_in = [metric.name for metric in cls(kind=name, labels=labels).metrics()]
            assert [metric for metric in found if metric != "rows"] == built_in
            if every[0] == Rows():
                assert task.main_metric == "rows"
