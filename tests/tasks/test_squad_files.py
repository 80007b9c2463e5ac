"""Questions are read from SQuAD files; answers that are not at their offset are searched for."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from kinfolk.errors import UserError
from kinfolk.tasks.formats.base import (
    FileSpec,
    Predictions,
    ReadReport,
    read_rows,
    write_predictions,
)
from kinfolk.tasks.formats.detect import detect_format
from kinfolk.tasks.formats.labelled_file import LabelledFile
from kinfolk.tasks.rows import QuestionRow
from kinfolk.tasks.task import Prediction, Task

CONTEXT = "战国无双3是游戏。战国无双4也是。"


def read(path: Path, report: ReadReport | None = None) -> list[QuestionRow]:
    return list(read_rows(path, FileSpec("span", "squad", ""), report=report))


def file(
    folder: Path, *qas: dict[str, Any], context: str = CONTEXT, indent: int | None = 1
) -> Path:
    path = folder / "dev.json.gz"
    data = {"version": "v2.0", "data": [{"paragraphs": [{"context": context, "qas": list(qas)}]}]}
    path.write_bytes(gzip.compress(json.dumps(data, ensure_ascii=False, indent=indent).encode()))
    return path


def question(id: str = "q", *answers: tuple[str, int], **more: Any) -> dict[str, Any]:
    some = [{"text": text, "answer_start": start} for text, start in answers]
    return {"id": id, "question": "什么？", "answers": some, **more}


@pytest.mark.parametrize("indent", [None, 1])
def test_an_answer_begins_where_the_file_says(tmp_path: Path, indent: int | None) -> None:
    notes = ReadReport()
    path = file(tmp_path, question("q", ("战国", 9), ("游戏", 6)), indent=indent)
    assert read(path, notes) == [
        QuestionRow("q", CONTEXT, "什么？", (("战国", 9), ("游戏", 6)), True, 1)
    ]
    assert not notes.counts


def test_an_answer_elsewhere_is_found_at_the_nearest_place(tmp_path: Path) -> None:
    notes = ReadReport()
    found = read(file(tmp_path, question("q", ("战国", 8), ("战国", 2), ("战国", -4))), notes)
    assert [start for _, start in found[0].answers] == [9, 0, 0]
    assert list(notes.counts.values()) == [3]


def test_an_answer_nowhere_is_kept_counted_and_listed(tmp_path: Path) -> None:
    notes = ReadReport()
    found = read(file(tmp_path, question("q7", ("三国", 0), ("游戏", 6))), notes)
    assert found[0].answers == (("三国", -1), ("游戏", 6))
    assert notes.messages() == ["1 answers not found in their context: q7: '三国'"]


def test_what_has_no_answer_is_not_what_has_none_given(tmp_path: Path) -> None:
    path = file(
        tmp_path,
        question("no", is_impossible=True),
        {"id": "hidden", "question": "什么？"},
    )
    assert [(row.id, row.answers, row.answerable) for row in read(path)] == [
        ("no", (), False),
        ("hidden", (), True),
    ]


def test_an_id_met_twice_is_made_new_and_noted(tmp_path: Path) -> None:
    notes = ReadReport()
    found = read(file(tmp_path, question("q", ("游戏", 6)), question("q", ("游戏", 6))), notes)
    assert [row.id for row in found] == ["q", "q#2"]
    assert "duplicate id" in notes.messages()[0]


def test_questions_about_nothing_are_left_out_and_noted(tmp_path: Path) -> None:
    notes = ReadReport()
    assert read(file(tmp_path, question(), context=" "), notes) == []
    assert notes.messages() == ["1 questions without a context skipped: 1"]


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"a": 1}, "the SQuAD format is an object whose 'data'"),
        ({"data": [{"paragraphs": [{"qas": []}]}]}, "'context' in paragraph 1 of article 1"),
        ({"data": [{"paragraphs": [{"context": "c"}]}]}, "'qas' in paragraph 1 of article 1"),
        (
            {"data": [{"paragraphs": [{"context": "c", "qas": [{"id": 1}]}]}]},
            "'question' in question 1 of paragraph 1",
        ),
    ],
)
def test_another_form_is_refused_by_its_place(tmp_path: Path, value: Any, said: str) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps(value))
    with pytest.raises(UserError, match=said):
        read(path)


def records(folder: Path, *values: dict[str, Any]) -> Path:
    path = folder / "a.jsonl"
    path.write_text("".join(json.dumps(v, ensure_ascii=False) + "\n" for v in values))
    return path


def test_a_line_may_be_a_question_with_its_context(tmp_path: Path) -> None:
    asked = {"context": "Ann ran", "question": "who"}
    path = records(
        tmp_path,
        {**asked, "id": "q", "answers": {"text": ["Ann"], "answer_start": [0]}},
        {**asked, "answers": [{"text": "Ann", "answer_start": 0}]},
        {**asked, "answers": {"text": [], "answer_start": []}},  # as datasets has SQuAD 2.0
        asked,
    )
    assert detect_format(path).format == "squad"
    answer = (("Ann", 0),)
    assert read(path) == [
        QuestionRow("q", "Ann ran", "who", answer, True, 1),
        QuestionRow("2", "Ann ran", "who", answer, True, 2),
        QuestionRow("3", "Ann ran", "who", (), False, 3),
        QuestionRow("4", "Ann ran", "who", (), True, 4),
    ]
    spec, task, file = detect_format(path), Task(kind="span"), LabelledFile(path)
    values = [Prediction(value) for value in ("Ann", "ran", "", "Ann ran")]
    lines = write_predictions(Predictions(file, spec, task, read(path), values))
    written = [json.loads(line) for line in lines]
    assert [record["prediction"] for record in written] == ["Ann", "ran", "", "Ann ran"]
    assert all(record["question"] == "who" for record in written)


def test_answers_of_tydi_qa_are_given_in_bytes(tmp_path: Path) -> None:
    def annotated(*ends: int) -> dict[str, Any]:
        answer = dict(zip(("plaintext_start_byte", "plaintext_end_byte"), ends, strict=True))
        return {
            "document_plaintext": "Die Änne lief",
            "question_text": "wer",
            "annotations": [{"minimal_answer": answer}],
        }

    path = records(tmp_path, annotated(4, 9), annotated(-1, -1))
    assert detect_format(path).task == "span"
    first, second = read(path)
    assert (first.context, first.question, first.answers) == (
        "Die Änne lief",
        "wer",
        (("Änne", 4),),
    )
    assert not second.answerable
    with pytest.raises(UserError, match=r"line 1 of .* has the 'minimal_answer' .*within the text"):
        read(records(tmp_path, annotated(4, 99)))


@pytest.mark.parametrize(("flag", "answerable"), [("false", True), ("True", False), (True, False)])
def test_a_flag_may_be_written_as_a_string(tmp_path: Path, flag: Any, answerable: bool) -> None:
    path = file(tmp_path, question("q", ("战国", 9), is_impossible=flag))
    assert read(path)[0].answerable is answerable
    with pytest.raises(UserError, match=r"'is_impossible' in question 1 .* must be true or false"):
        read(file(tmp_path, question("q", is_impossible="no")))


def test_a_question_that_is_a_string_is_refused(tmp_path: Path) -> None:
    bad: Any = "什么？"
    with pytest.raises(UserError, match=r"question 2 of paragraph 1 .* write an object"):
        read(file(tmp_path, question(), bad))


def test_texts_and_starts_must_be_as_many(tmp_path: Path) -> None:
    answers = {"text": ["Ann", "ran"], "answer_start": [0]}
    with pytest.raises(UserError, match=r"line 1 of .* has 2 texts .*one start for each text"):
        read(records(tmp_path, {"context": "Ann ran", "question": "who", "answers": answers}))
