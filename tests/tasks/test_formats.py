"""Every format is read, written with predictions, and read again; a new one is one module."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from kinfolk.errors import UserError
from kinfolk.tasks import formats
from kinfolk.tasks.formats import base
from kinfolk.tasks.formats.base import (
    FileSpec,
    Predictions,
    all_formats,
    read_rows,
    write_predictions,
)
from kinfolk.tasks.formats.detect import detect_format
from kinfolk.tasks.formats.labelled_file import LabelledFile
from kinfolk.tasks.task import Prediction, Task

ROLES = [
    "# sent_id = 1",
    "\t".join(["1", "She", *"_" * 8, "_", "ARG0", "_"]),
    "\t".join(["2", "said", *"_" * 8, "say.01", "V", "_"]),
    "\t".join(["3", "go", *"_" * 8, "go.01", "_", "V"]),
    "",
]
CONLL2012 = [
    "#begin document (a); part 000",
    *(f"a 0 {n} {w} - - - - - Ann - {m}" for n, w, m in ((0, "She", "(0)"), (1, "saw", "-"))),
    "a 0 2 her - - - - - Ann - (0)",
    "",
    "#end document",
]
GAP = [
    "ID\tText\tPronoun\tPronoun-offset\tA\tA-offset\tA-coref\tB\tB-offset\tB-coref",
    "x\tAnn met Eve when she sang\tshe\t17\tAnn\t0\tTRUE\tEve\t8\tFALSE",
]
QUESTION = {"id": "q", "question": "who", "answers": [{"text": "Ann", "answer_start": 0}]}
SQUAD = {"data": [{"paragraphs": [{"context": "Ann ran", "qas": [QUESTION]}]}]}
RACE = {"article": "a", "questions": ["b", "c"], "options": [["d", "e"]] * 2, "answers": ["A", "B"]}
COREF = {"sentences": [["a", "b"]], "clusters": [[[0, 0], [1, 1]]]}
CBT = ["1 He ran .", "2 So did XXXXX .\tshe\t\tshe|it"]
# A name and the lines of a small file for every task and format.
SAMPLES: dict[tuple[str, str], tuple[str, list[str]]] = {
    ("classify", "table"): ("a.csv", ["sentence,label", '"so, ""yes""",good', "no,bad"]),
    ("regress", "table"): ("a.tsv", ["text1\ttext2\tscore", "a\tb\t0.5", "c\td\t2"]),
    ("write", "table"): ("a.jsonl", ['{"source": "a", "target": ["b c", "d e"]}']),
    ("classify", "label_lines"): ("a.txt", ["__label__good a film", "", "__label__bad so dull"]),
    ("classify", "trees"): ("a.txt", ["(3 (2 It) (4 works))", "", "(2 so)"]),
    ("write", "parallel"): ("a.en", ["a cat", "a dog"]),
    ("extract", "table"): ("a.tsv", ["article\tsummary", "A cat sat. It ran.\tA cat sat."]),
    ("extract", "parallel"): ("a.en", ["A cat sat. It ran.", "A dog."]),
    ("tag", "columns"): ("a.txt", ["-DOCSTART- O", "", "EU B-ORG", "ran O", "", "Yes O"]),
    ("tag", "digits"): ("a.txt", ["科0\tO", "技1\tB-X", "", "全0\tO"]),
    ("tag", "roles"): ("a.conllu", ROLES),
    ("tag", "slashes"): ("a.txt", ["我/r  爱/v", "", "你/r"]),
    ("tag", "objects"): ("a.jsonl", ['{"tokens": ["a", "b"], "ner_tags": ["B-X", "O"]}']),
    ("span", "squad"): ("a.json", [json.dumps(SQUAD)]),
    ("choose", "objects"): ("a.jsonl", [json.dumps(RACE), '{"options": ["a", "b"], "label": 1}']),
    ("complete", "objects"): ("a.jsonl", ['{"prompt": "a b", "label": "c"}']),
    ("complete", "lines"): ("a.txt", CBT),
    ("lm", "text"): ("a.txt", ["Plain text, of several words."]),
    ("coref", "conll2012"): ("a.conll", CONLL2012),
    ("coref", "objects"): ("a.jsonl", [json.dumps(COREF)]),
    ("coref", "gap"): ("a.tsv", GAP),
}  # fmt: skip
# What follows a label where predictions are written behind it.
LABEL_FIRST = {
    "trees": r"\t.*$",
    "label_lines": r"\t.*$",
    "lines": r"\t[^\t\n]*$",
    "slashes": r"/[a-z]+(?=\s)",
}


def test_every_format_has_a_sample() -> None:
    # See test_label_lines and test_compare_data: neither is detected.
    labelled = [one for one in all_formats() if one.name not in ("text_lines", "rows")]
    assert SAMPLES.keys() == {(task, one.name) for one in labelled for task in one.tasks}


def sample(folder: Path, task: str, name: str) -> tuple[LabelledFile, FileSpec]:
    path = folder / SAMPLES[task, name][0]
    path.write_text("".join(f"{line}\n" for line in SAMPLES[task, name][1]), encoding="utf-8")
    target = None
    if name == "parallel":
        target = folder / "a.de"
        target.write_text("eine Katze\nein Hund\n")
    file = LabelledFile(path, target=target)
    # The files of text-to-text summaries are read so where the task is given.
    return file, detect_format(file, task="extract" if task == "extract" else None)


@pytest.mark.parametrize(("task", "name"), SAMPLES)
def test_every_sample_is_detected(tmp_path: Path, task: str, name: str) -> None:
    _, spec = sample(tmp_path, task, name)
    assert (spec.task, spec.format) == (task, name)


def right_predictions(task: Task, rows: list[Any]) -> list[Prediction]:
    """Return the references as predictions, each certain."""
    found = []
    for row in rows:
        value = task.reference(row)
        value = value[0] if task.kind == "span" else value
        size = {"classify": len(task.labels), "choose": 2, "tag": len(getattr(row, "words", ()))}
        found.append(Prediction(value, (1.0,) * size.get(task.kind, 0), 1.0))
    return found


@pytest.mark.parametrize(("task", "name"), [key for key in SAMPLES if key != ("lm", "text")])
def test_what_is_written_is_read_as_the_same_rows(tmp_path: Path, task: str, name: str) -> None:
    file, spec = sample(tmp_path, task, name)
    rows = list(read_rows(file, spec))
    labels = tuple(sorted({str(row.label) for row in rows})) if task == "classify" else ()
    known = Task(kind=task, labels=labels)
    predictions = right_predictions(known, rows)
    text = "".join(write_predictions(Predictions(file, spec, known, rows, predictions)))
    if name == "squad":
        assert json.loads(text) == {"q": "Ann"}
        return
    if name == "parallel":
        assert file.target is not None and text == file.target.path.read_text()
        return
    if name in LABEL_FIRST:
        assert text != "".join(f"{line}\n" for line in SAMPLES[task, name][1])
        text = re.sub(LABEL_FIRST[name], "", text, flags=re.MULTILINE)
    (tmp_path / "again").mkdir()
    again = tmp_path / "again" / file.path.name
    again.write_text(text, encoding="utf-8")
    assert list(read_rows(again, spec)) == rows


def test_predicted_lines_have_the_probabilities(tmp_path: Path) -> None:
    file, spec = sample(tmp_path, "classify", "trees")
    rows = list(read_rows(file, spec))
    task = Task(kind="classify", labels=("2", "3"))
    predictions = [Prediction("3", (0.25, 0.75), 0.75), Prediction("2", (0.6, 0.4), 0.6)]
    for every, first in ((False, "3\t0.7500"), (True, "3\t0.7500\t0.2500\t0.7500")):
        written = write_predictions(Predictions(file, spec, task, rows, predictions, every))
        assert next(written).rstrip("\n") == f"(3 (2 It) (4 works))\t{first}"
        assert next(written) == "\n"


def test_predictions_of_a_text_are_refused(tmp_path: Path) -> None:
    file, spec = sample(tmp_path, "lm", "text")
    rows = list(read_rows(file, spec))
    with pytest.raises(UserError, match="plain text has no labels to predict"):
        list(write_predictions(Predictions(file, spec, Task(kind="lm"), rows, [Prediction("")])))


def test_an_unknown_format_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"unknown format tag table .*tag columns"):
        read_rows(tmp_path / "a.tsv", FileSpec("tag", "table", ""))


MODULE = """
from kinfolk.tasks.formats.base import FileSpec, Format, register
from kinfolk.tasks.rows import LabelledText

def detect(file):
    return FileSpec("classify", "arrows", "an arrow") if "->" in file.sample_lines[0] else None

def read(file, spec, report):
    for number, line in file.lines():
        text, _, label = line.partition(" -> ")
        yield LabelledText((text,), label, number)

def write(predictions):
    for row, prediction in predictions.pairs():
        yield f"{row.texts[0]} -> {prediction.value}\\n"

register(Format("arrows", ("classify",), read, write, detect))
"""


def test_a_new_format_is_one_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "arrows.py").write_text(MODULE)
    monkeypatch.setattr(formats, "__path__", [*formats.__path__, str(tmp_path)])
    monkeypatch.setattr(base, "_FORMATS", all_formats())
    base._import_formats.cache_clear()
    path = tmp_path / "a.txt"
    path.write_text("a fine film -> good\nso dull -> bad\n")
    file = LabelledFile(path)
    spec = detect_format(file)
    rows = list(read_rows(file, spec))
    assert [(row.texts, row.label) for row in rows] == [
        (("a fine film",), "good"),
        (("so dull",), "bad"),
    ]
    task = Task(kind="classify", labels=("bad", "good"))
    found = Predictions(file, spec, task, rows, [Prediction("good"), Prediction("bad")])
    assert "".join(write_predictions(found)) == path.read_text()
    del sys.modules["kinfolk.tasks.formats.arrows"]
    base._import_formats.cache_clear()
