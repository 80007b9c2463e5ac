"""`kinfolk evaluate --test`: scores with an interval, what is taken for what, and a page."""

import json
from html.parser import HTMLParser
from pathlib import Path

import pytest

from kinfolk.tasks.dataset import task_dataset
from kinfolk.workflows.finetuning.finetune import finetune
from kinfolk.workflows.finetuning.recipe import parse_initial_weights
from support import tables
from support.runs import Kinfolk, Said, tree

FEW = ("train.batch_size=8", "train.device=cpu", "train.lr=5e-3")


@pytest.fixture(scope="module")
def solvers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Fine-tune a small network on some forms of file."""
    folder = tmp_path_factory.mktemp("solvers")
    files = {
        "mood": tables.table(folder / "mood.tsv", 60),
        "ner": tables.entities(folder / "ner.txt", 30),
        "squad": tables.questions(folder / "squad.json"),
        "scale": tables.scale(folder / "scale.tsv"),
    }
    for name, file in files.items():
        finetune(
            parse_initial_weights("bert/nano"),
            [task_dataset(file)],
            folder / name,
            epochs=3 if name == "mood" else 2,
            settings=FEW,
        )
    return folder


def ok(said: Said) -> Said:
    assert said.code == 0, said
    return said


class Page(HTMLParser):
    """The words and headings of a page; every tag is closed."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.words: list[str] = []
        self.tags: list[str] = []
        self._open: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag != "meta":
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data.strip())


def test_scores_are_those_of_the_predictions(
    kinfolk: Kinfolk, solvers: Path, tmp_path: Path
) -> None:
    file = tables.table(tmp_path / "test.tsv", 44, seed=7)
    page = tmp_path / "page.html"
    asked = ("evaluate", solvers / "mood", "--test", file, "-o", page, "--json")
    found = json.loads(ok(kinfolk(*asked)).out)
    lines = ok(kinfolk("predict", solvers / "mood", file)).out.splitlines()[1:]
    rows = [line.split("\t") for line in lines]
    right = sum(row[1] == row[2] for row in rows)
    assert found["scores"]["accuracy"] == found["score"] == pytest.approx(right / 44)
    assert found["scores"].items() <= found.items()  # at the top level, too
    assert found["low"] <= found["score"] <= found["high"]
    assert found["confusion"]["labels"] == ["bad", "good"]
    for row, true in zip(found["confusion"]["counts"], ("bad", "good"), strict=True):
        said = [line[2] for line in rows if line[1] == true]
        assert row == [said.count("bad"), said.count("good")]
    wrong = sorted((line for line in rows if line[1] != line[2]), key=lambda line: -float(line[3]))
    assert [one["text"] for one in found["mistakes"]] == [line[0] for line in wrong[:10]]
    assert found["classes"]["good"]["support"] == 22
    assert found["unseen"] == {} and found["page"] == str(page)


def test_a_page_has_pictures_and_is_shown_as_it_is(
    kinfolk: Kinfolk, solvers: Path, tmp_path: Path
) -> None:
    file = tables.table(tmp_path / "test.tsv", 60, seed=7)
    with file.open("a", encoding="utf-8") as rows:
        rows.write("<b>a lovely</b> & bright day\t<i>odd</i>\n")
    said = ok(kinfolk("evaluate", solvers / "mood", "--test", file, "-o", tmp_path / "page.html"))
    assert f"report: {tmp_path / 'page.html'}" in said.out
    page = Page(tmp_path / "page.html")
    assert page.tags.count("figure") == 3
    headings = {"Confusion matrix", "Scores by class", "Calibration", "Score by text length",
                "Worst errors"}  # fmt: skip
    assert headings <= set(page.words)
    assert "<b>a lovely</b> & bright day" in page.words and "<i>odd</i>" in page.words
    assert "link" not in page.tags


def test_the_page_of_a_run_lies_in_it(kinfolk: Kinfolk, solvers: Path, tmp_path: Path) -> None:
    file = tables.entities(tmp_path / "new.txt", 8, seed=3)
    said = ok(kinfolk("evaluate", solvers / "ner", "--test", file))
    assert (solvers / "ner" / "test-new.html").is_file()
    types = said.out.partition("per-class metrics")[2].splitlines()
    assert types[1].split() == ["precision", "recall", "F1", "support"]
    assert types[2].split()[0] == "PER" and types[2].split()[-1] == "8"


@pytest.mark.parametrize("name", ["ner", "squad", "scale"])
def test_every_task_has_a_page(name: str, kinfolk: Kinfolk, solvers: Path, tmp_path: Path) -> None:
    file = next(path for path in solvers.glob(f"{name}.*") if path.is_file())
    asked = ("evaluate", solvers / name, "--test", file, "-o", tmp_path / "page.html", "--json")
    found = json.loads(ok(kinfolk(*asked)).out)
    assert found["metric"] in found["scores"]
    assert "Worst errors" in Page(tmp_path / "page.html").words or not found["mistakes"]


def test_the_null_score_threshold_decides_between_a_span_and_no_answer(
    kinfolk: Kinfolk, solvers: Path
) -> None:
    command = ("evaluate", solvers / "squad", "--test", solvers / "squad.json", "--json")
    scores = {
        value: json.loads(ok(kinfolk(*command, f"--null-score-diff-threshold={value}")).out)
        for value in ("1e9", "-1e9")
    }
    predictions = {
        value: {error["prediction"] for error in found["mistakes"]}
        for value, found in scores.items()
    }
    assert scores["-1e9"]["exact"] == 0.0 and predictions["-1e9"] == {"(no answer)"}
    assert "(no answer)" not in predictions["1e9"]


def test_labels_that_training_had_not_are_counted_and_named(
    kinfolk: Kinfolk, solvers: Path, tmp_path: Path
) -> None:
    file = tables.table(tmp_path / "test.tsv", 10, seed=7)
    with file.open("a", encoding="utf-8") as rows:
        rows.write("a day\tneutral\nthe day\tneutral\na night\tmixed\n")
    said = kinfolk("evaluate", solvers / "mood", "--test", file, "--json")
    found = json.loads(ok(said).out)
    assert found["unseen"] == {"neutral": 2, "mixed": 1}
    assert "3 test rows have labels not seen in training (counted as errors): neutral (2)" in (
        said.err
    )
    assert found["confusion"]["labels"] == ["bad", "good", "neutral", "mixed"]


def test_many_classes_are_cut_to_the_frequent_ones(
    kinfolk: Kinfolk, solvers: Path, tmp_path: Path
) -> None:
    rows = [f"a day\tclass{n}" for n in range(20) for _ in range(n + 1)] + ["a day\tgood"]
    file = tables.write(tmp_path / "test.tsv", ["sentence\tlabel", *rows])
    found = json.loads(ok(kinfolk("evaluate", solvers / "mood", "--test", file, "--json")).out)
    labels = found["confusion"]["labels"]
    assert len(labels) == 13 and labels[0] == "class19" and labels[-1] == "(others)"
    assert sum(map(sum, found["confusion"]["counts"])) == len(rows)


def test_a_plain_decoder_is_asked_by_a_prompt(
    kinfolk: Kinfolk, runs: dict[str, Path], tmp_path: Path
) -> None:
    file, train = tables.table(tmp_path / "test.tsv", 12), tables.table(tmp_path / "train.tsv", 8)
    asked = ("evaluate", runs["gpt2"], "--test", file, "--json", "--device", "cpu")
    none = json.loads(ok(kinfolk(*asked, "--way", "prompt")).out)
    shown = ("--shots", "2", "--train", train, "--pattern", "{text}: {answer}", "--words", "a,the")
    some = ok(kinfolk(*asked, *shown))
    assert none["rows"] == json.loads(some.out)["rows"] == 12
    assert none["page"] is None  # nothing is written into a run that was not fine-tuned
    assert "12 of 12 rows truncated to 32 tokens" in some.err
    again = ok(kinfolk(*asked, *shown))
    assert again.out == some.out


def test_choices_are_weighed_by_a_prompt(
    kinfolk: Kinfolk, runs: dict[str, Path], tmp_path: Path
) -> None:
    file = tables.choices(tmp_path / "test.jsonl")
    said = kinfolk("evaluate", runs["gpt2"], "--test", file, "--shots", "0", "--json")
    found = json.loads(ok(said).out)
    assert found["task"] == "choose" and 0 <= found["score"] <= 1


MISTAKES = [
    ("{mood} --test {tmp}/none", "no such file: {tmp}/none"),
    ("{tmp}/none --test {file}", "no such folder: {tmp}/none"),
    ("--test {file}", "--test needs MODEL"),
    ("{mood} --test {file} --text {file}", "excludes --corpus, --text"),
    ("{mood} --test {bare}", "row 2 has no label, which scoring needs: use kinfolk predict"),
    ("{mood} --test {ragged}", "line 3 of {ragged} has 1 columns"),
    ("{mood} --test {nan}", "the label in line 2 of {nan} (label) is"),
    ("{mood} --test {file} --length 9", "--length cannot be changed for a fine-tuned model"),
    ("{mood} --test {file} --way cloze", "--formulation cloze: evaluate supports prompt"),
    ("{mood} --test {file} -o {tmp}", "{tmp} is a folder"),
    ("{mood} --shots 2", "--num-fewshot requires --test FILE"),
    ("{bert} --test {file}", "was not fine-tuned"),
    ("{bert} --test {file} --way prompt", "bert does not support the formulation 'prompt'"),
    ("{gpt2} --test {file} --shots 2", "--num-fewshot 2 requires --fewshot-from"),
    ("{gpt2} --test {file} --shots 99 --train {file}", "exceeds the 4 rows to draw from"),
    ("{gpt2} --test {file} --shots -1", "--num-fewshot must be at least 0 (got -1)"),
    ("{gpt2} --test {file} --words a", "1 words for 2 classes: give one for each of bad, good"),
    ("{gpt2} --test {file} --pattern {{text}}", "has no {{answer}}"),
    (
        "{gpt2} --test {file} --pattern {{body}}{{answer}}",
        "names a field that the rows do not have",
    ),
    ("{gpt2} --test {file} --task chose", "chose"),
    ("{squad} --test {file}", "SQuAD|JSON"),
    (
        "{mood} --test {file} --null-score-diff-threshold 1",
        "--null-score-diff-threshold applies to span extraction, not to classify",
    ),
    ("{mood} --null-score-diff-threshold 1", "--null-score-diff-threshold requires --test FILE"),
]


@pytest.mark.parametrize(("words", "expected"), MISTAKES, ids=[words for words, _ in MISTAKES])
def test_a_mistake_is_one_sentence(
    words: str,
    expected: str,
    kinfolk: Kinfolk,
    runs: dict[str, Path],
    solvers: Path,
    tmp_path: Path,
) -> None:
    names = {
        **runs,
        "tmp": tmp_path,
        "mood": solvers / "mood",
        "squad": solvers / "squad",
        "file": tables.table(tmp_path / "test.tsv", 4),
        "bare": tables.table(tmp_path / "bare.tsv", 4, labelled=False),
        "ragged": tables.write(tmp_path / "ragged.tsv", ["sentence\tlabel", "a day\tgood", "a"]),
        "nan": tables.write(tmp_path / "nan.tsv", ["sentence\tlabel", "a day\tnan"]),
    }
    before = tree(tmp_path), tree(solvers)
    said = kinfolk("evaluate", *(word.format(**names) for word in words.split()))
    assert (said.code, said.out) == (2, ""), said
    assert said.sentence.startswith("error: ")
    choices = [choice.format(**names) for choice in expected.split("|")]
    assert any(choice in said.sentence for choice in choices), said.err
    assert (tree(tmp_path), tree(solvers)) == before
