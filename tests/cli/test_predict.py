"""`kinfolk predict`: labels and probabilities in the form of the file that was asked about."""

import csv
import io
import json
import random
import sys
from pathlib import Path

import pytest

from kinfolk.tasks.dataset import task_dataset
from kinfolk.workflows.finetuning.finetune import finetune
from kinfolk.workflows.finetuning.recipe import parse_initial_weights
from support import tables
from support.runs import Kinfolk, Said

FEW = ("train.batch_size=8", "train.device=cpu", "train.lr=5e-3")


@pytest.fixture(scope="module")
def solvers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Fine-tune a small network on each form of file."""
    folder = tmp_path_factory.mktemp("solvers")
    files = {
        "mood": tables.table(folder / "mood.tsv", 60),
        "ner": tables.entities(folder / "ner.txt", 30),
        "squad": tables.questions(folder / "squad.json"),
        "choice": tables.choices(folder / "choice.jsonl"),
        "scale": tables.scale(folder / "scale.tsv"),
    }
    for name, file in files.items():
        epochs = 8 if name == "mood" else 1
        asked = {"epochs": epochs, "settings": FEW}
        finetune(parse_initial_weights("bert/nano"), [task_dataset(file)], folder / name, **asked)  # type: ignore[arg-type]
    return folder


def ok(said: Said) -> str:
    assert said.code == 0, said
    return said.out


def test_a_table_keeps_its_columns_and_gets_two(
    kinfolk: Kinfolk, solvers: Path, tmp_path: Path
) -> None:
    file = tables.table(tmp_path / "new.tsv", 14, seed=3)
    before = [line.split("\t") for line in file.read_text().splitlines()]
    out = ok(kinfolk("predict", solvers / "mood", file))
    after = [line.split("\t") for line in out.splitlines()]
    assert [row[:2] for row in after] == before
    assert after[0][2:] == ["prediction", "probability"]
    assert [row[2] for row in after[1:]] == [row[1] for row in before[1:]]
    assert all(0.5 <= float(row[3]) <= 1 for row in after[1:])


def test_texts_come_from_standard_input(
    kinfolk: Kinfolk, solvers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = "a lovely film\nan awful story, all of it\n"
    (tmp_path / "new.txt").write_text(texts)
    expected = ok(kinfolk("predict", solvers / "mood", tmp_path / "new.txt"))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(texts.encode())))
    assert ok(kinfolk("predict", solvers / "mood", "-")) == expected
    said = kinfolk("predict", solvers / "mood", "a lovely film")
    assert said.code == 2 and "no such file: a lovely film; put texts into a file" in said.err


def test_what_a_spreadsheet_takes_for_a_formula_stays_as_it_is(
    kinfolk: Kinfolk, solvers: Path, tmp_path: Path
) -> None:
    cells = ["=1+1", "@SUM(A1)", "-2", "+3", "'=1", '=HYPERLINK("x")']
    file = tmp_path / "new.tsv"
    file.write_text("text\n" + "".join(f"{cell}\n" for cell in cells))
    rows = ok(kinfolk("predict", solvers / "mood", file)).splitlines()
    assert [row.split("\t")[0] for row in rows] == ["text", *cells]


def test_labels_may_be_missing_or_broken(kinfolk: Kinfolk, solvers: Path, tmp_path: Path) -> None:
    bare = tables.table(tmp_path / "bare.tsv", 8, seed=3, labelled=False)
    full = tables.table(tmp_path / "full.tsv", 8, seed=3)
    broken = tmp_path / "broken.tsv"
    broken.write_text(full.read_text().replace("\tgood", "\t").replace("\tbad", "\tNaN"))
    said = []
    for file in (bare, full, broken):
        lines = ok(kinfolk("predict", solvers / "mood", file)).splitlines()
        said.append([line.split("\t")[-2:] for line in lines])
    assert said[0] == said[1] == said[2]


def test_every_class_has_a_column_where_it_is_wished(
    kinfolk: Kinfolk, solvers: Path, tmp_path: Path
) -> None:
    file = tables.table(tmp_path / "new.tsv", 4)
    out = ok(kinfolk("predict", solvers / "mood", file, "--probabilities"))
    first, *rows = [line.split("\t") for line in out.splitlines()]
    assert first[4:] == ["probability_bad", "probability_good"]
    for row in rows:
        assert float(row[4]) + float(row[5]) == pytest.approx(1, abs=2e-4)
        assert row[3] == max(row[4:])


def test_added_columns_are_named_where_there_is_no_header(
    kinfolk: Kinfolk, solvers: Path, tmp_path: Path
) -> None:
    texts = [text for text, _ in tables.reviews(6, seed=3)]
    table = tables.write(tmp_path / "new.tsv", [f"{n}\t{text}" for n, text in enumerate(texts)])
    said = kinfolk("predict", solvers / "mood", table, "--probabilities")
    names = "3 prediction, 4 probability, 5 probability_bad, 6 probability_good"
    assert f"added columns: {names}" in said.err
    assert "new.tsv: classify column 2, without a label" in said.err
    lines = kinfolk("predict", solvers / "mood", tables.write(tmp_path / "new.txt", texts))
    assert "added columns: 2 prediction, 3 probability" in lines.err
    predicted = [line.split("\t") for line in ok(lines).splitlines()]
    assert [row[0] for row in predicted] == texts
    assert [row[1] for row in predicted] == [label for _, label in tables.reviews(6, seed=3)]


def test_plain_sentences_are_tagged(kinfolk: Kinfolk, solvers: Path, tmp_path: Path) -> None:
    file = tables.write(tmp_path / "new.txt", ["the old man painted a ball", "", "a cat ran"])
    first, blank, last = ok(kinfolk("predict", solvers / "ner", file)).splitlines()
    assert [part.rpartition("/")[0] for part in first.split()] == [
        "the",
        "old",
        "man",
        "painted",
        "a",
        "ball",
    ]
    assert (blank, len(last.split())) == ("", 3)


def test_order_and_company_change_no_answer(
    kinfolk: Kinfolk, solvers: Path, tmp_path: Path
) -> None:
    file = tables.table(tmp_path / "new.tsv", 20, seed=4)
    top, *rows = file.read_text().splitlines()
    random.Random(0).shuffle(rows)
    mixed = tables.write(tmp_path / "mixed.tsv", [top, *rows[:9]])
    before = ok(kinfolk("predict", solvers / "mood", file)).splitlines()
    after = ok(kinfolk("predict", solvers / "mood", mixed)).splitlines()
    assert [line.split("\t")[0] for line in after[1:]] == [row.split("\t")[0] for row in rows[:9]]
    assert set(after) <= set(before)


def test_commas_and_quotes_stay(kinfolk: Kinfolk, solvers: Path, tmp_path: Path) -> None:
    rows = [["id", "sentence"], ["1", 'a "fine", bright\nday'], ["2", "a dull day"]]
    with (tmp_path / "new.csv").open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    out = ok(kinfolk("predict", solvers / "mood", tmp_path / "new.csv"))
    read = list(csv.reader(out.splitlines(keepends=True)))
    assert [row[:2] for row in read] == rows
    assert [row[2] for row in read] == ["prediction", "good", "bad"]


def test_json_lines_get_fields(kinfolk: Kinfolk, solvers: Path, tmp_path: Path) -> None:
    file = tables.write(
        tmp_path / "new.jsonl",
        [json.dumps({"id": n, "sentence": text}) for n, (text, _) in enumerate(tables.reviews(6))],
    )
    rows = [
        json.loads(line) for line in ok(kinfolk("predict", solvers / "mood", file)).splitlines()
    ]
    assert [row["id"] for row in rows] == list(range(6))
    assert [row["prediction"] for row in rows] == ["good", "bad"] * 3
    for row in rows:
        assert row["probability"] == row["probabilities"][row["prediction"]]
        assert sum(row["probabilities"].values()) == pytest.approx(1, abs=1e-5)


def test_a_json_list_stays_a_list(kinfolk: Kinfolk, solvers: Path, tmp_path: Path) -> None:
    rows = [{"sentence": text} for text, _ in tables.reviews(3)]
    (tmp_path / "new.json").write_text(json.dumps(rows, indent=1))
    found = json.loads(ok(kinfolk("predict", solvers / "mood", tmp_path / "new.json")))
    assert [row["prediction"] for row in found] == ["good", "bad", "good"]


def test_words_in_columns_get_one_more(kinfolk: Kinfolk, solvers: Path, tmp_path: Path) -> None:
    text = "# a comment here\n-DOCSTART- O\n\na O\ndog O\n\n\nthe O\nking O\nsaw O\n"
    (tmp_path / "new.txt").write_text(text)
    lines = ok(kinfolk("predict", solvers / "ner", tmp_path / "new.txt")).split("\n")
    before = text.split("\n")
    assert len(lines) == len(before)
    for new, old in zip(lines, before, strict=True):
        if old[:1].islower():
            assert new.rpartition(" ")[0] == old
            assert new.rpartition(" ")[2] in ("O", "B-PER", "I-PER")
        else:
            assert new == old
    (tmp_path / "bare.txt").write_text(text.replace(" O", ""))
    bare = ok(kinfolk("predict", solvers / "ner", tmp_path / "bare.txt")).split("\n")
    tags = [line.rpartition(" ")[2] for line in lines if line[:1].islower()]
    assert [line.rpartition(" ")[2] for line in bare if line[:1].islower()] == tags


def test_answers_to_squad_are_in_the_official_form(
    kinfolk: Kinfolk, solvers: Path, tmp_path: Path
) -> None:
    file = tables.questions(tmp_path / "new.json", 5, seed=2)
    found = json.loads(ok(kinfolk("predict", solvers / "squad", file)))
    contexts = [p["context"] for p in json.loads(file.read_text())["data"][0]["paragraphs"]]
    assert list(found) == [f"q{n}" for n in range(5)]
    assert all(said in text for said, text in zip(found.values(), contexts, strict=True))


def test_an_option_is_named_by_place_and_text(
    kinfolk: Kinfolk, solvers: Path, tmp_path: Path
) -> None:
    file = tables.choices(tmp_path / "new.jsonl", 5, seed=2)
    for line in ok(kinfolk("predict", solvers / "choice", file)).splitlines():
        row = json.loads(line)
        assert row["option"] == row["options"][row["prediction"]]
        assert row["probability"] == max(row["probabilities"])


def test_a_number_is_a_number(kinfolk: Kinfolk, solvers: Path, tmp_path: Path) -> None:
    file = tables.scale(tmp_path / "new.tsv", 5)
    first, *rows = ok(kinfolk("predict", solvers / "scale", file)).splitlines()
    assert first.split("\t")[-1] == "prediction"
    assert all(len(row.split("\t")) == 4 and float(row.split("\t")[-1]) for row in rows)


def test_json_is_the_answers_alone(kinfolk: Kinfolk, solvers: Path, tmp_path: Path) -> None:
    file = tables.table(tmp_path / "new.tsv", 3)
    rows = [
        json.loads(line)
        for line in ok(kinfolk("predict", solvers / "mood", file, "--json")).splitlines()
    ]
    assert [row["number"] for row in rows] == [2, 3, 4]
    assert rows[0].keys() == {"number", "prediction", "probability", "probabilities"}


def test_a_file_is_whole_or_not_there(kinfolk: Kinfolk, solvers: Path, tmp_path: Path) -> None:
    file, out = tables.table(tmp_path / "new.tsv", 3), tmp_path / "out.tsv"
    printed = ok(kinfolk("predict", solvers / "mood", file, "-o", "-"))
    assert ok(kinfolk("predict", solvers / "mood", file, "-o", out)) == ""
    assert out.read_text() == printed
    assert {path.name for path in tmp_path.iterdir()} == {"new.tsv", "out.tsv"}
    again = kinfolk("predict", solvers / "mood", file, "-o", out)
    assert again.code == 2 and f"{out} already exists" in again.err


def test_long_texts_are_counted(kinfolk: Kinfolk, solvers: Path, tmp_path: Path) -> None:
    file = tables.write(tmp_path / "new.tsv", ["sentence", "a fine day " * 400, "a dull day"])
    said = kinfolk("predict", solvers / "mood", file)
    assert "1 of 2 rows truncated to" in said.err
    assert ok(said).count("\n") == 3


def test_what_was_fine_tuned_elsewhere_predicts_here(
    kinfolk: Kinfolk, solvers: Path, tmp_path: Path
) -> None:
    """A folder that transformers saved has no recipe: its head and its labels say enough."""
    import transformers

    from kinfolk.workflows.folders import find_model_folder

    own = find_model_folder(solvers / "mood")
    model = transformers.AutoModelForSequenceClassification.from_pretrained(own)
    model.save_pretrained(tmp_path / "foreign")
    transformers.AutoTokenizer.from_pretrained(own).save_pretrained(tmp_path / "foreign")
    assert not (tmp_path / "foreign" / "kinfolk.json").exists()
    file = tables.table(tmp_path / "new.tsv", 6, seed=5)
    here = ok(kinfolk("predict", own, file, "--json"))
    there = ok(kinfolk("predict", tmp_path / "foreign", file, "--json", "--columns", "sentence,"))
    for one, other in zip(here.splitlines(), there.splitlines(), strict=True):
        first, second = json.loads(one), json.loads(other)
        assert first["prediction"] == second["prediction"]
        assert first["probability"] == pytest.approx(second["probability"], abs=1e-5)


MISTAKES = [
    ("{mood} {tmp}/none", "no such file: {tmp}/none"),
    ("{tmp}/none {file}", "no such folder: {tmp}/none"),
    ("{bert} {file}", "was not fine-tuned: fine-tune it on labelled rows"),
    ("{mood} {file} --columns text,", "has no 'text'"),
    ("{mood} {file} -o {tmp}/none/out.tsv", "folder {tmp}/none does not exist"),
    ("{mood} {file} --task-number 2", "task_index=2: "),
    ("{mood} {ragged}", "line 3 of {ragged} has 1 columns"),
    ("{mood} {pairs}", "2 texts, but the model was trained on single texts"),
    ("{scale} {file} --columns sentence,", "1 text, but the model was trained on pairs of texts"),
    ("{scale} {lines}", "row 1 has 1 text, but the model was trained on pairs of texts"),
    ("{ner} {squad}", "is JSON, not words in columns"),
    ("{mood} {semi}", "the columns of {semi} are separated by semicolons, and those of a .csv"),
    ("{ner} {file}", "line 2 of {file} has texts, not words in columns: give one word per line"),
    ("{mood} {file} --device gpu", "unknown device 'gpu'"),
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
        "tmp": tmp_path,
        "mood": solvers / "mood",
        "ner": solvers / "ner",
        "scale": solvers / "scale",
        "lines": tables.write(tmp_path / "lines.txt", ["a day", "a night"]),
        "squad": tables.questions(tmp_path / "squad.json"),
        "pairs": tables.write(tmp_path / "pairs.tsv", ["text1\ttext2", "a day\ta night"]),
        "semi": tables.write(tmp_path / "semi.csv", ["sentence;label", "a day;good"]),
        "bert": runs["bert"],
        "file": tables.table(tmp_path / "new.tsv", 4),
        "ragged": tables.write(tmp_path / "ragged.tsv", ["sentence\tlabel", "a day\tgood", "a"]),
    }
    said = kinfolk("predict", *(word.format(**names) for word in words.split()))
    assert (said.code, said.out) == (2, "")
    assert said.sentence.startswith("error: ")
    assert expected.format(**names) in said.sentence
