"""Questions are read from SQuAD files; answers that are not at their offset are searched for."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from kinfolk.errors import UserError
from kinfolk.tasks.formats.base import FileSpec, ReadReport, read_rows
from kinfolk.tasks.rows import QuestionRow

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
