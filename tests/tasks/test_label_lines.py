"""Lines of a label and a text are read as labelled rows, and lines of text alone as inputs."""

from pathlib import Path

import pytest

from kinfolk.errors import UserError
from kinfolk.tasks.formats.base import FileSpec, Predictions, read_rows, write_predictions
from kinfolk.tasks.formats.detect import detect_format
from kinfolk.tasks.formats.label_lines import text_lines_spec
from kinfolk.tasks.formats.labelled_file import LabelledFile
from kinfolk.tasks.rows import LabelledText, SourceTarget, TaggedSentence
from kinfolk.tasks.task import Prediction, Task

MOODS = [f"{('bad', 'good')[n % 2]} film number {n}" for n in range(30)]


def lines(folder: Path, *texts: str, name: str = "a.txt") -> Path:
    path = folder / name
    path.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("texts", "labels"),
    [
        (["DESC:manner How did it ?", "ENTY:cremat What films ?"], ["DESC:manner", "ENTY:cremat"]),
        (["__label__a How did it ?", "", "__label__b\tWhat films ?"], ["a", "b"]),
        (MOODS, ["bad", "good"] * 15),
    ],
)
def test_the_first_word_of_each_line_is_its_label(
    tmp_path: Path, texts: list[str], labels: list[str]
) -> None:
    path = lines(tmp_path, *texts)
    spec = detect_format(path)
    assert (spec.task, spec.format) == ("classify", "label_lines")
    rows = list(read_rows(path, spec))
    assert [row.label for row in rows] == labels
    assert not any(label in row.texts[0] for row, label in zip(rows, labels, strict=True))


@pytest.mark.parametrize(
    "texts",
    [
        MOODS[:6],  # too few to be sure
        [f"{('A:', 'B:')[n % 2]} what number {n} said" for n in range(30)],  # a dialogue
        [f"{n} is a number" for n in range(30)],
        ["so", *MOODS],
    ],
)
def test_other_lines_are_plain_text(tmp_path: Path, texts: list[str]) -> None:
    assert detect_format(lines(tmp_path, *texts)).task == "lm"


def test_the_task_makes_first_words_labels_where_they_repeat(tmp_path: Path) -> None:
    path = lines(tmp_path, *MOODS[:6])
    assert detect_format(path, task="classify").format == "label_lines"
    with pytest.raises(UserError, match=r"was detected as lm .*--columns text,label"):
        detect_format(lines(tmp_path, *(f"{n} is a number" for n in range(6))), task="classify")


def test_a_line_with_several_labels_or_no_text_is_refused(tmp_path: Path) -> None:
    several = lines(tmp_path, "__label__a so it is", "__label__a __label__b so it is")
    with pytest.raises(UserError, match=r"line 2 of .* has several labels .*keep one"):
        list(read_rows(several, detect_format(several)))
    bare = lines(tmp_path, "good film", "bad", name="b.txt")
    with pytest.raises(UserError, match=r"line 2 of .* is 'bad': write a label, a space and a"):
        list(read_rows(bare, FileSpec("classify", "label_lines", "")))


@pytest.mark.parametrize(
    ("task", "row"),
    [
        ("classify", LabelledText(("a fine film",), None, 2)),
        ("regress", LabelledText(("a fine film",), None, 2)),
        ("write", SourceTarget("a fine film", None, 2)),
        ("tag", TaggedSentence(("a", "fine", "film"), None, 2)),
    ],
)
def test_a_line_of_text_is_a_row_without_a_label(tmp_path: Path, task: str, row: object) -> None:
    path = lines(tmp_path, "", "a fine film")
    assert list(read_rows(path, text_lines_spec(task))) == [row]


def test_a_chinese_line_is_tagged_by_character(tmp_path: Path) -> None:
    (row,) = read_rows(lines(tmp_path, "我爱你"), text_lines_spec("tag"))
    assert row.words == ("我", "爱", "你")


def written(path: Path, task: Task, value: Prediction, *, every: bool = False) -> str:
    spec = text_lines_spec(task.kind)
    rows = list(read_rows(path, spec))
    found = Predictions(LabelledFile(path), spec, task, rows, [value], every)
    return "".join(write_predictions(found))


def test_predictions_follow_their_line(tmp_path: Path) -> None:
    path = lines(tmp_path, "", "a fine film")
    moods = Task(kind="classify", labels=("bad", "good"))
    value = Prediction("good", (0.25, 0.75), 0.75)
    assert written(path, moods, value) == "\na fine film\tgood\t0.7500\n"
    assert written(path, moods, value, every=True).endswith("\tgood\t0.7500\t0.2500\t0.7500\n")
    tags = Task(kind="tag", labels=("O", "B-X"))
    assert written(path, tags, Prediction(("O", "B-X", "O"))) == "\na/O fine/B-X film/O\n"
    text = Prediction("ein\nFilm")
    assert written(path, Task(kind="write"), text) == "\na fine film\tein Film\n"
