"""Answers are scored against everything that a file says is right."""

import json
from pathlib import Path

import pytest

from kinfolk.tasks.formats.base import parse_columns, read_rows
from kinfolk.tasks.formats.detect import detect_format
from kinfolk.tasks.rows import QuestionRow, SourceTarget
from kinfolk.tasks.task import Prediction, Task

ONE, OTHER = "the old man painted a ball again .", "a red bird followed the river home today ."


@pytest.mark.parametrize("said", [ONE, OTHER])
def test_each_reference_of_a_written_text_counts(said: str, tmp_path: Path) -> None:
    file = tmp_path / "train.jsonl"
    rows = [{"source": "one", "target": [ONE, OTHER]}, {"source": "two", "target": "so be it now"}]
    file.write_text("\n".join(json.dumps(row) for row in rows) + "\n", encoding="utf-8")
    spec = detect_format(file, task="write", columns=parse_columns("source,target"))
    found = list(read_rows(file, spec))
    scores = Task(kind="write").evaluate(found, [Prediction(said), Prediction("so be it now")])
    assert scores["bleu"] == pytest.approx(100) and scores["chrf"] == pytest.approx(100)
    assert (scores["rouge1"], scores["rouge2"], scores["rougeL"]) == (1, 1, 1)


def test_a_reference_that_fits_worse_changes_nothing() -> None:
    said, task = [Prediction("the cat sat on a mat"), Prediction("it was late")], Task(kind="write")
    alone = [SourceTarget("", "the cat sat on the mat", 1), SourceTarget("", "it was very late", 2)]
    beside = [alone[0], SourceTarget("", "it was very late", 2, ("none of these words is there",))]
    assert task.evaluate(alone, said) == task.evaluate(beside, said)


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
