"""Multiple-choice rows are read from the fields of published files; the label is an index."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from kinfolk.errors import UserError
from kinfolk.tasks.formats.base import FileSpec, read_rows
from kinfolk.tasks.rows import MultipleChoiceRow


def read(path: Path) -> list[MultipleChoiceRow]:
    return list(read_rows(path, FileSpec("choose", "objects", "")))


def file(folder: Path, *records: Any, name: str = "a.jsonl.gz") -> Path:
    path = folder / name
    lines = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
    path.write_bytes(gzip.compress(lines.encode()) if name.endswith(".gz") else lines.encode())
    return path


CASES: dict[str, tuple[dict[str, Any], MultipleChoiceRow]] = {
    "plain": (
        {"context": "She lit", "options": ["a candle.", "the sea."], "label": 0},
        MultipleChoiceRow("She lit", ("a candle.", "the sea."), 0, 1),
    ),
    "swag": (
        {"sent1": "On stage, a woman", "sent2": "She", "label": 1}
        | {f"ending{n}": f"does {n}." for n in range(4)},
        MultipleChoiceRow(
            "On stage, a woman", ("does 0.", "does 1.", "does 2.", "does 3."), 1, 1, "She"
        ),
    ),
    "hellaswag": (
        {"ctx_a": "A pan.", "ctx_b": "the pan", "ctx": "A pan. the pan", "endings": ["is", "was"]}
        | {"label": "1"},
        MultipleChoiceRow("A pan.", ("is", "was"), 1, 1, "the pan"),
    ),
    "race": (
        {"article": "Kites.", "question": "What?", "options": ["a", "b", "c", "d"], "answer": "C"},
        MultipleChoiceRow("Kites.", ("a", "b", "c", "d"), 2, 1, "What?"),
    ),
    "story cloze": (
        {f"InputSentence{n}": f"{n}." for n in range(1, 5)}
        | {"RandomFifthSentenceQuiz1": "a", "RandomFifthSentenceQuiz2": "b"}
        | {"AnswerRightEnding": 2},
        MultipleChoiceRow("1. 2. 3. 4.", ("a", "b"), 1, 1),
    ),
    "copa": (
        {"premise": "It rained.", "choice1": "Wet.", "choice2": "Dry.", "question": "effect"}
        | {"label": 0},
        MultipleChoiceRow("It rained.", ("Wet.", "Dry."), 0, 1, "What happened as a result?"),
    ),
    "commonsense": (
        {
            "question": {
                "stem": "Where?",
                "choices": [{"label": "A", "text": "bank"}, {"label": "B", "text": "mall"}],
            },
            "answerKey": "B",
        },
        MultipleChoiceRow("", ("bank", "mall"), 1, 1, "Where?"),
    ),
    "idioms": (
        {"content": "可以说“#idiom#”。", "candidates": ["造谣生事", "真枪实弹"], "answer": 1},
        MultipleChoiceRow("可以说“", ("造谣生事”。", "真枪实弹”。"), 1, 1),
    ),
    "winogrande": (
        {"sentence": "Ann saw Bea, so _ ran.", "option1": "Ann", "option2": "Bea", "answer": "2"},
        MultipleChoiceRow("Ann saw Bea, so ", ("Ann ran.", "Bea ran."), 1, 1),
    ),
    "unknown": (
        {"context": "She lit", "options": ["a", "b"]},
        MultipleChoiceRow("She lit", ("a", "b"), None, 1),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_each_published_form_is_a_choice(tmp_path: Path, case: str) -> None:
    record, choice = CASES[case]
    assert read(file(tmp_path, record)) == [choice]


def test_a_passage_with_several_questions_is_several_choices(tmp_path: Path) -> None:
    record = {"article": "Kites.", "questions": ["One?", "Two?"], "answers": ["A", "B"],
              "options": [["a", "b"], ["c", "d"]]}  # fmt: skip
    assert read(file(tmp_path, record)) == [
        MultipleChoiceRow("Kites.", ("a", "b"), 0, 1, "One?"),
        MultipleChoiceRow("Kites.", ("c", "d"), 1, 2, "Two?"),
    ]


def test_c3_is_lists_of_lines_and_questions(tmp_path: Path) -> None:
    questions = [{"question": "什么？", "choice": ["旅行", "工作"], "answer": "工作"}]
    path = tmp_path / "d-dev.json"
    path.write_text(json.dumps([[["男：好", "女：是"], questions, "1-2"]], indent=1))
    assert read(path) == [MultipleChoiceRow("男：好\n女：是", ("旅行", "工作"), 1, 1, "什么？")]


@pytest.mark.parametrize("label", [2, "C", -1, "c", 1.5])
def test_a_label_that_is_no_option_is_refused(tmp_path: Path, label: Any) -> None:
    path = file(tmp_path, {"options": ["a", "b"], "label": label})
    with pytest.raises(UserError, match=r"'label' in record 1 of .* none of 2 options: use the"):
        read(path)


@pytest.mark.parametrize(
    ("record", "said"),
    [
        ({"context": "so"}, "record 1 of .* has no options: name a list options, endings"),
        ({"context": "so", "options": ["a"]}, "multiple choice needs at least two"),
        (
            {"context": "so", "options": ["a", 2]},
            "'options' in record 1 .*must be a list of strings",
        ),
        ({"context": 3, "options": ["a", "b"]}, "'context' in record 1 .*must be a string"),
        ("so", "not JSON|must be a JSON object"),
    ],
)
def test_what_is_no_choice_is_refused(tmp_path: Path, record: Any, said: str) -> None:
    with pytest.raises(UserError, match=said):
        read(file(tmp_path, record))


@pytest.mark.parametrize(("said", "place"), [("L", 11), (10, 10), ("Option 12", 11)])
def test_more_than_nine_numbered_options_are_all_read(
    said: object, place: int, tmp_path: Path
) -> None:
    options = {f"option{n}": f"Option {n}" for n in range(12, 0, -1)}
    (row,) = read(file(tmp_path, {"context": "Which?", **options, "label": said}))
    assert row.options == tuple(f"Option {n}" for n in range(1, 13))
    assert row.label == place


def test_a_passage_with_fewer_options_than_questions_is_refused(tmp_path: Path) -> None:
    record = {"article": "a", "questions": ["b", "c"], "options": [["d", "e"]], "answers": ["A"]}
    with pytest.raises(UserError, match="has 2 questions, 1 lists of options and 1 answers"):
        read(file(tmp_path, record))


@pytest.mark.parametrize("said", ["AB", ""])
def test_a_label_of_no_letter_or_two_is_refused(said: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="none of 2 options"):
        read(file(tmp_path, {"context": "a", "options": ["b", "c"], "label": said}))
