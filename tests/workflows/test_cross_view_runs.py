"""Runs of cross-view training: labelled and unlabelled steps alternate in one run."""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kinfolk.errors import UserError
from kinfolk.nn.views import ModelWithViews
from kinfolk.tasks.dataset import TaskDataset, task_dataset
from kinfolk.tasks.unlabelled import UnlabelledText, unlabelled_text
from kinfolk.training.log import read
from kinfolk.training.loop import Callback, Progress
from kinfolk.workflows.finetuning.finetune import finetune
from kinfolk.workflows.finetuning.recipe import FineTuneRecipe
from kinfolk.workflows.load import load
from kinfolk.workflows.predict import evaluate_rows, load_predictor, predict
from kinfolk.workflows.pretrain import resume
from support.learnable import classify, dev, kept, objects, opinions, table, tag, tune
from support.runs import tree

SMALL = ("train.batch_size=8", "train.lr=5e-3")
VIEWS = {"full", "forward", "backward", "future", "past"}


def entities(folder: Path, count: int = 40) -> TaskDataset:
    folder.mkdir(parents=True, exist_ok=True)
    return task_dataset(
        objects(folder / "tags", tag, count), objects(folder / "dev-tags", tag, 16, 1)
    )


def sentences(path: Path, row: Callable[[random.Random], dict[str, Any]], count: int = 60) -> Path:
    """Write the texts of rows, one a line."""
    chance = random.Random(5)
    rows = [next(iter(row(chance).values())) for _ in range(count)]
    lines = [row if isinstance(row, str) else " ".join(row) for row in rows]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


class Stop(Callback):
    """Interrupt a run as Ctrl-C does, after a step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step(self, progress: Progress) -> None:
        if progress.step >= self.step:
            raise KeyboardInterrupt


def test_a_run_alternates_and_names_the_loss_of_each_view(tmp_path: Path) -> None:
    found, text = entities(tmp_path), sentences(tmp_path / "text.txt", tag)
    run = tune("cvt/nano", found, tmp_path / "run", *SMALL, epochs=2, unlabelled=[text])
    log = read(run)
    assert len(log) == 2 * 2 * 40 // 8  # every labelled step has an unlabelled one
    for line in log:
        labelled = line["step"] % 2 == 1
        assert ("label" in line["counts"]) == labelled
        assert labelled or line["losses"].keys() == VIEWS
        assert labelled or line["loss"] == pytest.approx(sum(line["losses"].values()), rel=1e-5)
    assert "cvt, views" in (run / "report.html").read_text("utf-8")


# Before an unlabelled step and before a labelled one.
@pytest.mark.parametrize("step", [5, pytest.param(6, marks=pytest.mark.slow)])
def test_a_run_that_was_stopped_ends_as_one_that_was_not(tmp_path: Path, step: int) -> None:
    found = [entities(tmp_path), opinions(tmp_path, 24, 12)]
    text = sentences(tmp_path / "text.txt", tag)
    runs = [tmp_path / name for name in ("whole", "parts")]
    settings = (*SMALL, "train.gradient_accumulation=2", "train.save_every=3", "train.steps=12")
    tune("cvt/nano", found, runs[0], *settings, epochs=None, unlabelled=[text])
    with pytest.raises(KeyboardInterrupt):
        tune(
            *("cvt/nano", found, runs[1], *settings),
            epochs=None,
            unlabelled=[text],
            callbacks=[Stop(step)],
        )
    resume(runs[1])
    names = ("log.jsonl", "scores.json", "recipe.json")
    assert tree(runs[0], names) == tree(runs[1], names)
    weights = [(run / "checkpoints" / "last" / "model.safetensors").read_bytes() for run in runs]
    assert weights[0] == weights[1]


def test_unlabelled_text_that_changed_stops_a_resume(tmp_path: Path) -> None:
    found, text = entities(tmp_path), sentences(tmp_path / "text.txt", tag)
    with pytest.raises(KeyboardInterrupt):
        tune(
            *("cvt/nano", found, tmp_path / "run", *SMALL, "train.save_every=2"),
            epochs=2,
            unlabelled=[text],
            callbacks=[Stop(3)],
        )
    text.write_text(text.read_text("utf-8") + "one more\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"text.txt changed since the run started"):
        resume(tmp_path / "run")


@pytest.mark.slow
def test_entities_are_learned_scored_and_predicted_from_the_saved_model(tmp_path: Path) -> None:
    found, text = entities(tmp_path, 96), sentences(tmp_path / "text.txt", tag)
    last = "train.eval_every=9999"
    settings = ("train.lr=1e-2", "train.batch_size=16", "model.backbone.dropout=0.1", last)
    run = tune("cvt/nano", found, tmp_path / "run", *settings, epochs=10, unlabelled=[text])
    assert dev(run)["f1"] > 0.95
    predictor = load_predictor(run)
    assert isinstance(predictor.model, ModelWithViews)
    scores = evaluate_rows(predictor, kept(found)).scores
    assert scores["f1"] == pytest.approx(dev(run)["f1"])
    (one,) = predict(predictor, "mary jones film rome")
    assert one.value == ("B-PER", "I-PER", "O", "B-LOC")
    # The network below can be fine-tuned on another task.
    again = tune(str(run), opinions(tmp_path, 16, 8), tmp_path / "next", epochs=1, unlabelled=[])
    assert again.is_dir()


def test_two_tasks_share_one_encoder(tmp_path: Path) -> None:
    found = [entities(tmp_path, 24), opinions(tmp_path, 24, 24)]
    text = sentences(tmp_path / "text.txt", tag)
    settings = ("train.batch_size=8", "train.steps=8")
    run = tune("cvt/nano", found, tmp_path / "run", *settings, epochs=None, unlabelled=[text])
    assert {"1_f1", "1_accuracy", "2_accuracy"} <= dev(run).keys()
    names = {name for line in read(run) for name in line.get("losses", ())}
    assert names == VIEWS | {f"2_{view}" for view in ("full", "forward", "backward")} | {
        "2_first_half",
        "2_second_half",
    }
    model, _ = load(run)
    assert isinstance(model, ModelWithViews)
    assert [task.unit for task in model.config.tasks] == ["tokens", "text"]
    first = predict(run, "mary jones film rome")[0].value
    assert len(first) == 4
    assert predict(run, "a lovely film", task_index=2)[0].value in ("good", "bad")


def test_without_text_the_same_network_learns_from_labels_alone(tmp_path: Path) -> None:
    found = entities(tmp_path)
    run = tune("cvt/nano", found, tmp_path / "run", *SMALL, epochs=2, unlabelled=[])
    log = read(run)
    assert len(log) == 10 and all("label" in line["counts"] for line in log)
    text = sentences(tmp_path / "text.txt", tag)
    both = tune("cvt/nano", found, tmp_path / "both", *SMALL, epochs=2, unlabelled=[text])
    shapes = [
        {
            name: tuple(p.shape)
            for name, p in load(path)[0].named_parameters()
            if "token" not in name
        }
        for path in (run, both)
    ]
    assert shapes[0] == shapes[1]
    with pytest.raises(UserError, match="cvt also learns from text without labels"):
        tune("cvt/nano", found, tmp_path / "none", *SMALL, epochs=2)


def test_a_run_with_a_linear_head_takes_no_text(tmp_path: Path) -> None:
    found = opinions(tmp_path, 32, 16)
    run = tune("cvt/nano", found, tmp_path / "run", *SMALL, epochs=1, formulation="head")
    assert FineTuneRecipe.read(run / "recipe.json").formulations[0].name == "head"
    with pytest.raises(UserError, match="--unlabelled does not apply to the formulation 'head'"):
        tune(
            *("cvt/nano", found, tmp_path / "text", *SMALL),
            formulation="head",
            unlabelled=[tmp_path / "train.tsv"],
        )


def chinese(tmp_path: Path) -> tuple[TaskDataset, Path]:
    """Return Chinese entities by character, and sentences without labels."""
    rng = random.Random(0)
    people, places = ("王明", "李红", "张伟"), ("北京", "上海")
    lines = []
    for _ in range(48):
        words = [(rng.choice(people), "PER"), ("去了", None), (rng.choice(places), "LOC")]
        for word, kind in words:
            for place, letter in enumerate(word):
                label = "O" if kind is None else f"{'BI'[place > 0]}-{kind}"
                lines.append(f"{letter}\t{label}")
        lines.append("")
    file = tmp_path / "zh.txt"
    file.write_text("\n".join(lines), encoding="utf-8")
    text = tmp_path / "text.txt"
    text.write_text("李红去了北京。张伟去了上海！\n王明去了上海。\n", encoding="utf-8")
    return task_dataset(file), text


def test_chinese_characters_are_words(tmp_path: Path) -> None:
    dataset, text = chinese(tmp_path)
    found = unlabelled_text([text], [dataset])
    assert found.rows[1].words == tuple("张伟去了上海！")
    assert len(found.rows) == 3


@pytest.mark.slow
def test_chinese_entities_are_learned_by_character(tmp_path: Path) -> None:
    dataset, text = chinese(tmp_path)
    settings = ("train.lr=1e-2", "train.eval_every=9999", "model.backbone.dropout=0.1")
    settings += ("train.batch_size=8",)
    run = tune("cvt/nano", dataset, tmp_path / "run", *settings, epochs=10, unlabelled=[text])
    assert predict(run, "李红去了北京")[0].value == (
        *("B-PER", "I-PER", "O", "O", "B-LOC", "I-LOC"),
    )


def test_text_is_read_as_sentences_of_words_and_labelled_rows_without_their_labels(
    tmp_path: Path,
) -> None:
    found = entities(tmp_path)
    text = tmp_path / "text.txt"
    text.write_text("Dr. Smith went home. It's 3 o'clock!\n\nRome\n", encoding="utf-8")
    rows = unlabelled_text([text, tmp_path / "tags.jsonl"], [found]).rows
    assert rows[0].words == ("Dr", ".", "Smith", "went", "home", ".")
    assert rows[2].words == ("Rome",)
    assert len(rows) == 3 + 40 and all(row.tags is None for row in rows)
    texts = task_dataset(table(tmp_path / "texts", classify, 8))
    rows = unlabelled_text([text, tmp_path / "texts.tsv"], [texts]).rows
    assert rows[0].texts == ("Dr. Smith went home. It's 3 o'clock!",)
    assert len(rows) == 2 + 8 and all(row.label is None for row in rows)


def test_pairs_need_unlabelled_pairs(tmp_path: Path) -> None:
    rows = [{"sentence1": "a b", "sentence2": "c", "label": label} for label in "yn" * 6]
    file = tmp_path / "pairs.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    text = tmp_path / "text.txt"
    text.write_text("one text\n", encoding="utf-8")
    dataset = task_dataset(file)
    with pytest.raises(UserError, match=r"row 1 of .*text.txt has 1 texts, but the labelled rows"):
        _ = unlabelled_text([text], [dataset]).rows
    assert len(unlabelled_text([file], [dataset]).rows) == 12


def test_words_start_from_the_vectors_of_a_file(tmp_path: Path) -> None:
    found, text = entities(tmp_path), sentences(tmp_path / "text.txt", tag)
    vectors = tmp_path / "vectors.txt"
    vectors.write_text("film 1 2 3\nrome 4 5 6\nunseen 7 8 9\n", encoding="utf-8")
    chosen: dict[str, Any] = {"unlabelled": [text], "options": {"vectors": str(vectors)}}
    settings = ("train.steps=1", "train.lr=1e-9", "train.batch_size=4")
    wide = "model.backbone.embedding_size=3"
    run = tune("cvt/nano", found, tmp_path / "run", *settings, wide, epochs=None, **chosen)
    model, tokenizer = load(run)
    (rome,) = tokenizer.encode("rome")
    table: Any = model.pretrained.token_embeddings
    assert table.weight[rome].tolist() == pytest.approx([4, 5, 6], abs=1e-5)
    with pytest.raises(
        UserError, match=r"has vectors of 3 numbers, but .* have 64: set model.back"
    ):
        tune("cvt/nano", found, tmp_path / "none", *settings, epochs=None, **chosen)
    assert not (tmp_path / "none").exists()


def test_words_are_tokens_and_unknown_ones_are_read_by_their_characters(tmp_path: Path) -> None:
    found, text = entities(tmp_path), sentences(tmp_path / "text.txt", tag)
    settings = ("train.steps=2", "train.batch_size=4")
    run = tune("cvt/nano", found, tmp_path / "run", *settings, epochs=None, unlabelled=[text])
    predictor = load_predictor(run)
    unknown = predictor.tokenizer.special_tokens.unk
    assert predictor.tokenizer.encode("rome") != [unknown] == predictor.tokenizer.encode("romeo")
    one, other = predictor.predict(predictor.rows_of_texts(["romeo film", "juliet film"]))
    assert one.probabilities[0] != other.probabilities[0]


def test_the_recipe_holds_the_text(tmp_path: Path) -> None:
    found, text = entities(tmp_path), sentences(tmp_path / "text.txt", tag)
    run = finetune(
        "cvt/nano",
        found,
        tmp_path / "run",
        unlabelled=[text],
        steps=2,
        device="cpu",
        batch_size=4,
    )
    recipe = FineTuneRecipe.read(run / "recipe.json")
    assert isinstance(recipe.unlabelled, UnlabelledText)
    assert recipe.unlabelled.files == (str(text),)
