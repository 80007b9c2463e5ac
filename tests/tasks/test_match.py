"""A model reads a file as its training file; columns known by number alone are checked."""

import json
from pathlib import Path

import pytest

from kinfolk.errors import UserError
from kinfolk.tasks.formats.base import Columns, FileSpec, read_rows
from kinfolk.tasks.formats.detect import detect_format
from kinfolk.tasks.formats.labelled_file import LabelledFile
from kinfolk.tasks.formats.match import detect_inputs, match_format
from kinfolk.tasks.rows import TaggedSentence

TEXT_LABEL = FileSpec("classify", "table", "", Columns((1,), 2))
PAIR_LABEL = FileSpec("classify", "table", "", Columns((1, 2), 3))
NAMED = FileSpec("classify", "table", "", Columns(("sentence",), "label"), header=True)
WORD_TAG = FileSpec("tag", "columns", "", Columns((1,), 4))
LABEL_LINES = FileSpec("classify", "label_lines", "")
LABELS = ("bad", "good")


def opened(folder: Path, *lines: str, name: str = "new.tsv") -> LabelledFile:
    path = folder / name
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return LabelledFile(path)


def matched(
    file: LabelledFile,
    trained: FileSpec,
    *,
    labelled: bool = False,
    labels: tuple[str, ...] = LABELS,
) -> FileSpec:
    return match_format(file, trained, labelled=labelled, labels=labels)


TEXTS = [f"a film with number {n}" for n in range(9)]


@pytest.mark.parametrize("labelled", [False, True])
def test_a_header_is_no_row_where_training_had_none(tmp_path: Path, labelled: bool) -> None:
    rows = [f"{n}\tgood\t{text}" for n, text in enumerate(TEXTS)]
    file = opened(tmp_path, "id\tlabel\tsentence", *rows)
    spec = matched(file, TEXT_LABEL, labelled=labelled)
    found = list(read_rows(file, spec))
    assert [row.texts[0] for row in found] == TEXTS
    assert found[0].label == ("good" if labelled else None)


def test_an_unknown_header_keeps_the_numbers_of_the_columns(tmp_path: Path) -> None:
    file = opened(tmp_path, "satz\tnote", *(f"{text}\t{n % 2}" for n, text in enumerate(TEXTS)))
    spec = matched(file, TEXT_LABEL, labels=("0", "1"))
    assert [row.texts[0] for row in read_rows(file, spec)] == TEXTS


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("good\t{}", r"column 1 of .* holds labels \(line 1: \"good\"\).*--columns 2,"),
        ("id-{n}\t{}", r"column 1 of .* holds no texts \(line 1: \"id-0\"\).*--columns 2,"),
        ("{n}\t{}\tgood", r"column 1 of .* holds no texts .*--columns 2,"),
    ],
)
def test_columns_in_another_order_are_refused(tmp_path: Path, row: str, message: str) -> None:
    rows = [row.format(text, n=n) for n, text in enumerate(TEXTS)]
    with pytest.raises(UserError, match=message):
        matched(opened(tmp_path, *rows), TEXT_LABEL)


def test_one_row_in_another_order_is_known_by_its_label(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds labels"):
        matched(opened(tmp_path, "good\ta fine film"), TEXT_LABEL)
    assert matched(opened(tmp_path, "a fine film\tgood"), TEXT_LABEL).columns == Columns((1,), None)


def test_a_label_is_no_second_text(tmp_path: Path) -> None:
    file = opened(tmp_path, *(f"{text}\tgood" for text in TEXTS))
    with pytest.raises(UserError, match=r"column 2 of .* holds labels"):
        matched(file, PAIR_LABEL)


@pytest.mark.parametrize(
    ("trained", "line"),
    [
        (NAMED, "a fine film"),
        (TEXT_LABEL, "a fine film"),
        (FileSpec("classify", "table", "", Columns((4,), 2)), "a fine film"),
        (LABEL_LINES, "a fine film"),
        (FileSpec("classify", "trees", ""), "a fine film"),
        (WORD_TAG, "Ann met Eve in Rome"),
        (FileSpec("tag", "slashes", ""), "Ann met Eve"),
        (FileSpec("tag", "objects", ""), "Ann met Eve"),
    ],
)
def test_plain_lines_are_inputs(tmp_path: Path, trained: FileSpec, line: str) -> None:
    file = opened(tmp_path, line, "", f"{line} twice", name="new.txt")
    spec = matched(file, trained)
    assert spec.format == "text_lines"
    assert [row.text for row in read_rows(file, spec)] == [line, f"{line} twice"]


@pytest.mark.parametrize(
    ("trained", "lines", "format"),
    [
        (LABEL_LINES, ["good film", "bad film"], "label_lines"),
        (LABEL_LINES, ["__label__odd film", "__label__good film"], "label_lines"),
        (WORD_TAG, ["Ann", "ran", "", "He"], "columns"),
        (WORD_TAG, ["我们", "去", "阿尔及利亚", "。"], "columns"),
        (WORD_TAG, ["我去。", "你好！"], "text_lines"),
        (WORD_TAG, ["我们今天去公园"], "text_lines"),
        (WORD_TAG, ["Ann NNP B-NP B-PER", "ran VBD B-VP O"], "columns"),
        (WORD_TAG, ["Ann x y good", "ran x y bad"], "columns"),
        (NAMED, ["sentence", "a fine film"], "table"),
    ],
)
def test_words_in_columns_are_told_from_plain_lines(
    tmp_path: Path, trained: FileSpec, lines: list[str], format: str
) -> None:
    assert matched(opened(tmp_path, *lines, name="new.txt"), trained).format == format


def test_a_tagger_reads_no_json_as_columns(tmp_path: Path) -> None:
    questions = {"data": [{"paragraphs": [{"context": "a b", "qas": []}]}]}
    for record in (questions, {"text": "Ann ran", "id": 1}):
        for name in ("new.json", "new.txt"):
            file = opened(tmp_path, json.dumps(record), name=name)
            with pytest.raises(UserError, match=r"is JSON, not words in columns"):
                matched(file, WORD_TAG)
    file = opened(tmp_path, json.dumps({"words": ["Ann", "ran"]}), name="new.jsonl")
    (row,) = read_rows(file, detect_format(opened(tmp_path, '{"words": ["a"], "tags": ["O"]}',
                                                  name="tags.jsonl")))  # fmt: skip
    assert row == TaggedSentence(("Ann", "ran"), None, 1)


def test_a_model_without_a_training_file_reads_plain_lines(tmp_path: Path) -> None:
    file = opened(tmp_path, "a fine film", name="new.txt")
    assert detect_inputs(file, "classify").format == "text_lines"
    table = opened(tmp_path, "sentence\tlabel", "a fine film\tgood", "so dull\tbad")
    assert str(detect_inputs(table, "classify").columns) == "sentence,"
    with pytest.raises(UserError, match="was detected as classify"):
        detect_inputs(table, "tag")


def test_a_minus_stays_the_class_that_it_was_in_training(tmp_path: Path) -> None:
    train = opened(tmp_path, "text\tlabel", *(f"{t}\t{'+-'[n % 2]}" for n, t in enumerate(TEXTS)))
    trained = detect_format(train)
    test = opened(tmp_path, "sentence\tlabel", "a fine film\t-", name="test.tsv")
    spec = matched(test, trained, labelled=True, labels=("+", "-"))
    assert [row.label for row in read_rows(test, spec)] == ["-"]
