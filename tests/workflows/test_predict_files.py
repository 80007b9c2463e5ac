"""Answers join every form of file, and what was there stays as it was."""

import json
from pathlib import Path
from typing import Any

from kinfolk.tasks.formats.base import Predictions, read_rows, write_jsonl, write_predictions
from kinfolk.tasks.formats.detect import detect_format
from kinfolk.tasks.formats.labelled_file import LabelledFile
from kinfolk.tasks.task import Prediction, Task


def told(path: Path, task: Task, values: list[Any], **more: Any) -> list[str]:
    """Write a file with answers in it, as lines."""
    file = LabelledFile(path)
    spec = detect_format(file, task=task.kind)
    answers = [value if isinstance(value, Prediction) else Prediction(value) for value in values]
    found = Predictions(file, spec, task, list(read_rows(file, spec)), answers, **more)
    return "".join(write_predictions(found)).splitlines()


def test_roles_get_a_column_for_each_predicate(tmp_path: Path) -> None:
    cells = [
        ["1", "She", "_", "_", "_", "_", "_", "_", "_", "_", "_", "ARG0", "_"],
        ["2", "said", "_", "_", "_", "_", "_", "_", "_", "_", "say.01", "V", "_"],
        ["3", "go", "_", "_", "_", "_", "_", "_", "_", "_", "go.01", "_", "V"],
    ]
    lines = ["# sent_id = 1", *("\t".join(row) for row in cells), ""]
    path = tmp_path / "a.conllu"
    path.write_text("\n".join(lines) + "\n")
    task = Task(kind="tag", labels=("O", "V", "ARG0"))
    found = told(path, task, [("ARG0", "V", "O"), ("O", "O", "V")])
    assert [line.split("\t")[-2:] for line in found[1:4]] == [["ARG0", "O"], ["V", "O"], ["O", "V"]]
    assert [line.rsplit("\t", 2)[0] for line in found[1:4]] == lines[1:4]
    assert (found[0], found[4]) == (lines[0], "")


def test_a_tag_joins_its_word_behind_a_slash(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("我/r  爱/v\n\n你/r\n")
    task = Task(kind="tag", labels=("r", "v"))
    assert told(path, task, [("r", "r"), ("v",)]) == ["我/r/r  爱/v/r", "", "你/r/v"]


def test_clusters_are_brackets_in_a_last_column(tmp_path: Path) -> None:
    words = ["She", "saw", "her", "own", "dog"]
    lines = [f"doc 0 {n} {word} - - - - - - -" for n, word in enumerate(words)]
    path = tmp_path / "a.txt"
    path.write_text("\n".join(["#begin document (doc); part 000", *lines, "", "#end document"]))
    groups = (((0, 1), (2, 3)), ((2, 5), (4, 5)))
    found = told(path, Task(kind="coref"), [groups])
    marks = [line.split("\t")[-1] for line in found[1:6]]
    assert marks == ["(0)", "-", "(0)|(1", "-", "1)|(1)"]
    assert [line.rpartition("\t")[0] for line in found[1:6]] == lines
    (row,) = read_rows(path, detect_format(path))
    file, task = LabelledFile(path), Task(kind="coref")
    known = Predictions(file, detect_format(file), task, [row], [Prediction(groups)])
    (line,) = write_jsonl(known)
    assert json.loads(line)["prediction"] == [[[0, 0], [2, 2]], [[2, 4], [4, 4]]]


def test_a_pronoun_is_said_to_mean_a_name(tmp_path: Path) -> None:
    text = "Ann met Eve when she sang"
    titles = ["ID", "Text", "Pronoun", "Pronoun-offset", "A", "A-offset", "B", "B-offset"]
    cells = ["x", text, "she", "17", "Ann", "0", "Eve", "8"]
    path = tmp_path / "a.tsv"
    path.write_text("\n".join(["\t".join(titles), *["\t".join(cells)] * 3]) + "\n")
    she, ann, eve = (4, 5), (0, 1), (2, 3)
    found = told(path, Task(kind="coref"), [((ann, she),), ((eve, she),), ()])
    assert [line.split("\t")[-1] for line in found] == ["prediction", "A", "B", "neither"]


def test_several_questions_of_a_record_have_a_list_of_answers(tmp_path: Path) -> None:
    asked = [{"question": q, "choice": ["a", "b"], "answer": "a"} for q in ("x", "y")]
    path = tmp_path / "a.json"
    path.write_text(json.dumps([[["line"], asked, "id1"], [["other"], asked[:1], "id2"]]))
    answers = [
        Prediction(1, (0.25, 0.75), 0.75),
        Prediction(0, (0.6, 0.4), 0.6),
        Prediction(0, (1.0, 0.0), 1.0),
    ]
    first, second = json.loads("".join(told(path, Task(kind="choose"), answers)))
    assert first[:3] == [["line"], asked, "id1"]
    assert first[3]["prediction"] == [1, 0] and first[3]["option"] == ["b", "a"]
    assert second[3]["prediction"] == 0 and second[3]["probability"] == 1.0


def test_a_completion_stands_behind_its_line(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("he did not care\nsingle\nshe went home\n")
    found = told(path, Task(kind="complete"), ["know", "away"])
    assert found == ["he did not care\tknow", "single", "she went home\taway"]


def test_tags_come_with_their_probabilities_where_they_are_wished(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("EU\tNNP\tB-ORG\nsays\tVBZ\tO\n\nYes\tUH\tO\n")
    task = Task(kind="tag", labels=("O", "B-ORG"))
    answers = [Prediction(("B-ORG", "O"), (0.9, 0.8), 0.8), Prediction(("O",), (0.7,), 0.7)]
    found = told(path, task, answers, all_probabilities=True)
    assert found == [
        "EU\tNNP\tB-ORG\tB-ORG\t0.9000", "says\tVBZ\tO\tO\t0.8000", "", "Yes\tUH\tO\tO\t0.7000",
    ]  # fmt: skip


def test_what_is_written_stays_in_its_line(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    path.write_text("source\ttarget\none two three four\tdrei vier\n")
    (_, line) = told(path, Task(kind="write"), ["two\nlines\tand a tab"])
    assert line == "one two three four\tdrei vier\ttwo lines and a tab"
