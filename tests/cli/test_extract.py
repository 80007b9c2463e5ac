"""Extractive summaries on the command line: fine-tuning, scores, predictions, label weights."""

import json
import random
from pathlib import Path
from typing import Any

import pytest

from kinfolk.tasks.rows import Article
from kinfolk.text.segment import split_sentences
from kinfolk.workflows.finetuning.finetune import finetune
from support.runs import Kinfolk, Said

ANIMALS, COLORS = ("cat", "dog", "bird", "king"), ("red", "old", "blue", "grey")
QUICK: Any = {"epochs": 12, "lr": 3e-3, "batch_size": 16, "device": "cpu"}


def articles(path: Path, count: int, seed: int) -> Path:
    """Write texts whose summary is the sentence with a colour, at any place."""
    chance, lines = random.Random(seed), ["article\tsummary"]
    for _ in range(count):
        text = [f"The {chance.choice(ANIMALS)} ran home." for _ in range(4)]
        text[chance.randrange(4)] = key = f"A {chance.choice(COLORS)} river rose."
        lines.append(f"{' '.join(text)}\t{key}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def ok(said: Said) -> str:
    assert said.code == 0, said
    return said.out


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Fine-tune a small network that knows which sentences summarize."""
    folder = tmp_path_factory.mktemp("extract")
    train = articles(folder / "train.tsv", 120, seed=0)
    return finetune("bert/nano", train, folder / "run", task="extract", **QUICK)


def test_fine_tuning_prints_the_baselines_and_the_number_of_sentences(
    kinfolk: Kinfolk, tmp_path: Path
) -> None:
    train = articles(tmp_path / "train.tsv", 20, seed=3)
    command = ("finetune", "bert/nano", "--task", "extractive_summarization", "--train", train)
    said = kinfolk(*command, "--steps", 1, "--device", "cpu", "-o", tmp_path / "run")
    assert "a summary has 1 sentence (--num-sentences)" in said.err
    assert "choose sentences of column article by column summary" in said.err
    header = ok(said).splitlines()[0].split()
    assert header == ["dev", "random", "LEAD-3", "LEAD-k", "oracle"]


def test_scores_stand_beside_the_first_sentences_and_the_oracle(
    kinfolk: Kinfolk, run: Path, tmp_path: Path
) -> None:
    test = articles(tmp_path / "test.tsv", 40, seed=1)
    found: dict[str, Any] = json.loads(ok(kinfolk("evaluate", run, "--test", test, "--json")))
    assert found["metric"] == "rouge1" and found["rouge1"] > 0.95
    baselines = found["baselines"]
    assert [*baselines] == ["random", "lead3", "lead", "oracle"]
    assert baselines["oracle"]["scores"]["rouge1"]["score"] == 1
    lead = baselines["lead"]
    assert lead["scores"]["rouge1"]["low"] < lead["scores"]["rouge1"]["score"] < 0.6
    expected = found["rouge1"] - lead["scores"]["rouge1"]["score"]
    assert lead["difference"]["score"] == pytest.approx(expected)
    said = kinfolk("evaluate", run, "--test", test, "-o", tmp_path / "page.html")
    assert "beside baselines, with 95% confidence intervals" in ok(said)
    assert "ROUGE-1 minus that of LEAD-3" in said.err
    assert "ROUGE-1 minus that of LEAD-3" in (tmp_path / "page.html").read_text("utf-8")
    longer = kinfolk("evaluate", run, "--test", test, "--json", "--num-sentences", 2)
    assert json.loads(ok(longer))["rouge1"] < found["rouge1"]


def test_predictions_are_sentences_of_their_texts_and_the_file_is_read_again(
    kinfolk: Kinfolk, run: Path, tmp_path: Path
) -> None:
    test, out = articles(tmp_path / "test.tsv", 12, seed=2), tmp_path / "out.tsv"
    ok(kinfolk("predict", run, test, "-o", out))
    before = [line.split("\t") for line in test.read_text("utf-8").splitlines()]
    after = [line.split("\t") for line in out.read_text("utf-8").splitlines()]
    assert [row[:2] for row in after] == before and after[0][2] == "prediction"
    assert [row[2] for row in after[1:]] == [row[1] for row in before[1:]]
    again = json.loads(ok(kinfolk("evaluate", run, "--test", out, "--json")))
    assert again["rouge1"] == 1
    lines = ok(kinfolk("predict", run, out, "--json")).splitlines()
    for line, (text, summary, _) in zip(lines, after[1:], strict=True):
        (index,) = json.loads(line)["sentences"]
        assert Article(text, None, 1).sentences[index] == summary
        assert len(json.loads(line)["probabilities"]) == 4


def test_lines_are_summarized_by_their_sentences(
    kinfolk: Kinfolk, run: Path, tmp_path: Path
) -> None:
    rows = articles(tmp_path / "test.tsv", 3, seed=4).read_text("utf-8").splitlines()[1:]
    texts, summaries = zip(*(row.split("\t") for row in rows), strict=True)
    file = tmp_path / "news.txt"
    file.write_text("\n".join([texts[0], "", *texts[1:], "One sentence alone."]), encoding="utf-8")
    expected = [summaries[0], "", *summaries[1:], "One sentence alone."]
    assert ok(kinfolk("summarize", run, file)).splitlines() == expected
    longer = ok(kinfolk("summarize", run, file, "--num-sentences", 2)).splitlines()
    assert [len(split_sentences(line)) for line in longer] == [2, 0, 2, 2, 1]
    refused = kinfolk("summarize", run, file, "--method", "beam")
    assert refused.code == 2
    assert "chooses sentences and generates no text: remove --method" in refused.err


def test_parallel_files_and_lines_are_read(kinfolk: Kinfolk, tmp_path: Path) -> None:
    rows = articles(tmp_path / "all.tsv", 40, seed=5).read_text("utf-8").splitlines()[1:]
    for name, column in (("a.src", 0), ("a.tgt", 1)):
        lines = (row.split("\t")[column] for row in rows)
        (tmp_path / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    source, target, out = tmp_path / "a.src", tmp_path / "a.tgt", tmp_path / "run"
    command = ("finetune", "bilstm/nano", "--task", "extract", "--train", source)
    ok(kinfolk(*command, "--target", target, "--steps", 2, "--device", "cpu", "-o", out))
    scored = kinfolk("evaluate", out, "--test", source, "--target", target, "--json")
    assert 0 < json.loads(ok(scored))["rouge1"] <= 1
    lines = ok(kinfolk("predict", out, source)).splitlines()
    assert len(lines) == 40 and all(line in row for line, row in zip(lines, rows, strict=True))


def test_searched_weights_are_those_with_the_best_dev_score(
    kinfolk: Kinfolk, tmp_path: Path
) -> None:
    train = articles(tmp_path / "train.tsv", 30, seed=6)
    words = tmp_path / "en-xx.txt"
    words.write_text("river fluss\ncat fluss\n", encoding="utf-8")
    command = ("finetune", "bert/nano", "--task", "extract", "--train", train, "--replace-words")
    search = ("--dictionary", words, "--label-weights", "search", "--steps", 1, "--device", "cpu")
    out = ok(kinfolk(*command, *search, "-o", tmp_path / "run", "--json"))
    found: dict[str, Any] = json.loads(out)
    tried = [candidate["label_weights"] for candidate in found["candidates"]]
    assert tried == [[1, 0], [0.75, 0.25], [0.5, 0.5], [0.25, 0.75], [0, 1]]
    scores = [candidate["dev"]["rouge1"] for candidate in found["candidates"]]
    assert found["label_weights"] == tried[scores.index(max(scores))]
    assert (tmp_path / "run" / "best").resolve().name == found["best"]
    recipe = json.loads((tmp_path / "run" / "best" / "recipe.json").read_text("utf-8"))
    assert recipe["formulations"][0]["label_weights"] == found["label_weights"]
    ok(kinfolk("evaluate", tmp_path / "run", "--test", train, "--json"))
    both = kinfolk(*command, *search, "--seeds", 2, "-o", tmp_path / "other")
    assert both.code == 2 and "cannot be combined with --seeds" in both.err


def test_learned_weights_are_beside_the_scores_and_the_model_predicts(
    kinfolk: Kinfolk, tmp_path: Path
) -> None:
    train = articles(tmp_path / "train.tsv", 40, seed=7)
    words = tmp_path / "en-xx.txt"
    words.write_text("river fluss\ncat fluss\n", encoding="utf-8")
    command = ("finetune", "bert/nano", "--task", "extract", "--train", train, "--steps", 2)
    learned = ("--dictionary", words, "--label-weights", "learned", "--device", "cpu")
    said = kinfolk(*command, *learned, "--seeds", 2, "-o", tmp_path / "run")
    ok(said)
    assert "learned weights of label sets: original 0." in said.err
    for seed in ("seed-0", "seed-1"):
        run = tmp_path / "run" / seed
        found = json.loads((run / "scores.json").read_text("utf-8"))["label_weights"]
        assert found["sets"] == ["original", str(words)]
        for name in ("set_weights", "sentence_mean"):
            assert sum(found[name]) == pytest.approx(1)
        recipe = json.loads((run / "recipe.json").read_text("utf-8"))
        assert recipe["formulations"][0]["label_weights"] == "learned"
        assert len(recipe["formulations"][0]["label_rates"]) == 2
    ok(kinfolk("evaluate", tmp_path / "run", "--test", train, "--json"))
    again = finetune(
        *("bert/nano", train, tmp_path / "python"),
        task="extract",
        options={"label_weights": "learned", "dictionary": (str(words),)},
        steps=2,
        device="cpu",
    )
    assert (again / "log.jsonl").read_text() == (
        tmp_path / "run" / "seed-0" / "log.jsonl"
    ).read_text()
