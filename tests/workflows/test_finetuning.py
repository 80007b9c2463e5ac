"""Fine-tuning: every task is learned to the last row, and every way solves classification."""

from pathlib import Path
from typing import Any

import pytest
import torch

from kinfolk.families import family_of
from kinfolk.tasks.dataset import TaskDataset, task_dataset
from kinfolk.tasks.formats.base import FileSpec
from kinfolk.tasks.formulations.choose import build_formulation
from kinfolk.tasks.formulations.scoring import Prompt
from kinfolk.tasks.instances import mixing_weights, predict_rows
from kinfolk.tasks.rows import LabelledText
from kinfolk.tasks.task import Task
from kinfolk.workflows.load import load
from kinfolk.workflows.predict import evaluate_rows, load_predictor
from support.learnable import (
    choose,
    chosen,
    classify,
    complete,
    count,
    dev,
    kept,
    lines,
    objects,
    opinions,
    pair,
    regress,
    squad,
    table,
    tag,
    tune,
    write,
)  # fmt: skip

LAST = "train.eval_every=9999"  # scored once, at the end


def files(folder: Path, write: Any, row: Any, rows: int = 160, **said: Any) -> TaskDataset:
    """Write rows to learn from and others to choose by."""
    return task_dataset(
        write(folder / "train", row, rows), write(folder / "dev", row, 48, 1), **said
    )


def test_a_pair_is_classified(tmp_path: Path) -> None:
    run = tune("bert/nano", files(tmp_path, table, pair), tmp_path / "run", LAST, "train.lr=2e-3")
    assert dev(run)["accuracy"] > 0.95 and dev(run)["f1"] > 0.95
    assert load_predictor(run).task.is_pair


def test_a_number_is_told(tmp_path: Path) -> None:
    found = files(tmp_path, table, regress, task="regress")
    run = tune("bert/nano", found, tmp_path / "run", LAST, "train.lr=2e-3", epochs=12)
    assert dev(run)["pearson"] > 0.95


def test_an_option_is_chosen(tmp_path: Path) -> None:
    found = files(tmp_path, objects, choose, 96)
    run = tune("bert/nano", found, tmp_path / "run", LAST, "train.lr=2e-3")
    assert dev(run)["accuracy"] > 0.95


def test_entities_are_tagged(tmp_path: Path) -> None:
    found = files(tmp_path, objects, tag, 96)
    run = tune("bert/nano", found, tmp_path / "run", LAST, "train.lr=2e-3", epochs=6)
    assert dev(run)["f1"] > 0.95
    assert load_predictor(run).task.labels == ("O", "B-LOC", "B-PER", "I-PER")


@pytest.mark.slow
def test_answers_are_found_in_contexts_longer_than_a_reading(tmp_path: Path) -> None:
    found = task_dataset(squad(tmp_path / "train.json", 200), squad(tmp_path / "dev.json", 48, 1))
    settings = (LAST, "train.lr=2e-3")
    run = tune("bert/nano", found, tmp_path / "run", *settings, epochs=12, length=32)
    assert dev(run)["f1"] > 0.95 and dev(run)["exact"] > 0.95
    opened = load_predictor(run)
    assert opened.formulation.allow_no_answer  # type: ignore[attr-defined]
    rows = kept(found)
    windows = [
        len(opened.formulation.instances(row, opened.tokenizer, labelled=False)) for row in rows
    ]
    assert max(windows) > 1
    refused = [a.value == "" for a in opened.predict(rows)]
    assert refused == [not row.answerable for row in rows]


@pytest.mark.slow
def test_a_text_is_written(tmp_path: Path) -> None:
    found = files(tmp_path, table, write)
    run = tune("t5/nano", found, tmp_path / "run", LAST, epochs=16)
    assert dev(run)["bleu"] > 95 and dev(run)["rougeL"] > 0.95


def test_a_text_is_completed(tmp_path: Path) -> None:
    found = files(tmp_path, lines, complete, task="complete")
    run = tune("gpt2/nano", found, tmp_path / "run", LAST, "train.lr=5e-3", epochs=12)
    assert dev(run)["accuracy"] > 0.95 and dev(run)["perplexity"] < 1.5


def test_a_blank_is_filled_with_one_of_its_options(tmp_path: Path) -> None:
    known = {"train": objects(tmp_path / "train", chosen, 160),
             "dev": objects(tmp_path / "dev", chosen, 48, 1)}  # fmt: skip
    found = TaskDataset(
        file_spec=FileSpec("complete", "objects", ""), **{k: str(v) for k, v in known.items()}
    )
    run = tune("glm/nano", found, tmp_path / "run", LAST, "train.lr=2e-3", epochs=14)
    assert dev(run)["accuracy"] > 0.95
    assert load_predictor(run).formulation.name == "cloze"


def test_a_language_is_modelled_through_texts_longer_than_a_reading(tmp_path: Path) -> None:
    found = files(tmp_path, lines, count, 32, task="lm")
    settings = (LAST, "train.lr=1e-2")
    run = tune("gpt2/nano", found, tmp_path / "run", *settings, epochs=15, length=32)
    assert dev(run)["perplexity"] < 1.5
    opened = load_predictor(run)
    rows = kept(found)
    found_answers = opened.predict(rows)
    tokens = [len(opened.tokenizer.offsets(row.target)[0]) for row in rows]
    assert min(tokens) > 32  # and the end of each text is scored
    assert [answer.tokens for answer in found_answers] == [count + 1 for count in tokens]


@pytest.mark.parametrize(
    ("name", "way", "peak", "epochs"),
    [
        ("bert", "head", 2e-3, 5),
        pytest.param("xlnet", "head", 2e-3, 8, marks=pytest.mark.slow),
        pytest.param("bilstm", "head", 5e-3, 10, marks=pytest.mark.slow),
        ("gpt2", "transformed", 4e-3, 10),
        # GPT's fresh weights are small.
        pytest.param("gpt", "transformed", 3e-3, 30, marks=pytest.mark.slow),
        ("t5", "text", 1e-2, 6),
        pytest.param("gpt2", "text", 5e-3, 16, marks=pytest.mark.slow),
        pytest.param("glm", "text", 3e-3, 14, marks=pytest.mark.slow),
        ("glm", "cloze", 2e-3, 6),
    ],
)
def test_every_way_solves_classification(
    tmp_path: Path, name: str, way: str, peak: float, epochs: int
) -> None:
    settings = (LAST, f"train.lr={peak}")
    run = tune(
        f"{name}/nano",
        opinions(tmp_path),
        tmp_path / "run",
        *settings,
        epochs=epochs,
        formulation=way,
    )
    assert dev(run)["accuracy"] > 0.95
    opened = load_predictor(run)
    assert opened.formulation.name == way
    rows = kept(opinions(tmp_path))
    verdict = evaluate_rows(opened, rows, n_resamples=50)  # what was saved scores what was logged
    assert verdict.scores["accuracy"] == dev(run)["accuracy"]
    assert (
        verdict.confidence_interval.low
        <= verdict.scores["accuracy"]
        <= verdict.confidence_interval.high
    )


@pytest.mark.slow
def test_a_prompt_is_answered_by_who_knows_its_pattern(tmp_path: Path) -> None:
    def line(chance: Any) -> dict[str, Any]:
        row = classify(chance)
        return {"text": row["sentence"], "arrow": "->", "label": row["label"]}

    found = files(tmp_path, lines, line, task="lm")
    run = tune("gpt2/nano", found, tmp_path / "run", LAST, "train.lr=5e-3", epochs=20)
    model, tokenizer = load(run)
    task = Task(kind="classify", labels=("bad", "good"))
    way = build_formulation(
        Prompt, task, family_of(model.config), model.config, tokenizer, pattern="{text} -> {answer}"
    )
    rows = kept(opinions(tmp_path / "opinions"))
    said = predict_rows(way, model, rows, tokenizer)
    assert sum(a.value == row.label for a, row in zip(said, rows, strict=True)) > 0.95 * len(rows)


@pytest.mark.slow
def test_two_files_are_learned_as_text(tmp_path: Path) -> None:
    (tmp_path / "pairs").mkdir()
    both = [opinions(tmp_path / "one"), files(tmp_path / "pairs", table, pair, 80)]
    run = tune("t5/nano", both, tmp_path / "run", LAST, "train.lr=1e-2", epochs=14,
               source_prefix=["like: ", "both: "],
               mixing_temperature=2.0)  # fmt: skip
    assert dev(run)["1_accuracy"] > 0.95 and dev(run)["2_accuracy"] > 0.95
    for number, labels in enumerate([("bad", "good"), ("no", "yes")], 1):
        assert load_predictor(run, task_index=number).task.labels == labels
    row = LabelledText(("a fine film",), None, 1)
    assert load_predictor(run).predict([row])[0].value == "good"


def test_small_sets_are_shown_more_often_at_a_high_temperature() -> None:
    assert mixing_weights([100, 900], 1.0) == [0.1, 0.9]
    assert mixing_weights([100, 900], 2.0) == [0.25, 0.75]
    assert mixing_weights([100, 2**30], 1.0) == pytest.approx(
        [100 / 2**20, 1.0], abs=1e-4
    )  # at most


@pytest.mark.slow
def test_a_teacher_is_followed_by_a_student_of_another_family(tmp_path: Path) -> None:
    found = opinions(tmp_path)
    teacher = tune("bert/nano", found, tmp_path / "teacher", LAST, "train.lr=1e-3", epochs=4)
    rows = kept(found)
    wanted = torch.tensor([a.probabilities for a in load_predictor(teacher).predict(rows)])

    def distance(name: str, **more: Any) -> float:
        run = tune("bilstm/nano", found, tmp_path / name, LAST, "train.lr=5e-3", epochs=8, **more)
        said = torch.tensor([a.probabilities for a in load_predictor(run).predict(rows)])
        return float((wanted * (wanted / said).log()).sum(1).mean())

    alone = distance("alone")
    assert distance("half", teacher=str(teacher)) < alone
    assert distance("all", teacher=str(teacher), options={"distillation_weight": 1.0}) < alone / 2
