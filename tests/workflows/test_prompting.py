"""A model that learned no task is asked by a prompt: what it reads, and what it can choose from."""

from pathlib import Path

import pytest

from kinfolk.errors import UserError
from kinfolk.tasks.formulations.scoring import Prompt
from kinfolk.workflows.predict import evaluate_rows, few_shot_predictor, sample_fewshot
from support import tables


def test_solved_rows_stand_before_the_question(runs: dict[str, Path], tmp_path: Path) -> None:
    test = tables.table(tmp_path / "test.tsv", 4, seed=1)
    train = tables.table(tmp_path / "train.tsv", 10)
    found, rows = few_shot_predictor(
        runs["gpt2"],
        test,
        fewshot_from=train,
        num_fewshot=2,
        pattern="{text} is {answer}",
        verbalizer="no,yes",
    )
    assert isinstance(found.formulation, Prompt)
    said = {"good": "yes", "bad": "no"}
    known = {f"{text} is {said[label]}" for text, label in tables.reviews(10)}
    assert len(found.formulation.examples) == 2 and set(found.formulation.examples) <= known
    before, after = found.formulation.prompt(rows[0])
    assert (
        before.splitlines() == [*found.formulation.examples, f"{rows[0].texts[0]} is"]
        and after == ""
    )
    assert found.task.labels == ("bad", "good")


def test_without_training_rows_the_labels_are_those_of_the_test(
    runs: dict[str, Path], tmp_path: Path
) -> None:
    found, rows = few_shot_predictor(runs["gpt2"], tables.table(tmp_path / "test.tsv", 6))
    assert found.task.labels == ("bad", "good") and len(rows) == 6
    verdict = evaluate_rows(found, rows, n_resamples=10)
    assert verdict.unseen_labels == {}
    assert {answer.value for answer in verdict.predictions} <= {"bad", "good"}


def test_labels_that_no_solved_row_has_count_as_unseen(
    runs: dict[str, Path], tmp_path: Path
) -> None:
    lines = ["sentence\tlabel", "a day\tneutral", "a fine day\tgood"]
    test = tables.write(tmp_path / "test.tsv", lines)
    found, rows = few_shot_predictor(
        runs["gpt2"], test, fewshot_from=tables.table(tmp_path / "train.tsv", 6)
    )
    assert evaluate_rows(found, rows, n_resamples=10).unseen_labels == {"neutral": 1}


def test_an_encoder_decoder_is_asked_too(runs: dict[str, Path], tmp_path: Path) -> None:
    found, rows = few_shot_predictor(runs["t5"], tables.choices(tmp_path / "test.jsonl", 4))
    assert [answer.value in (0, 1) for answer in found.predict(rows)] == [True] * 4


def test_the_seed_draws_the_rows() -> None:
    rows = list(range(30))
    assert sample_fewshot(rows, 4, 0) == sample_fewshot(rows, 4, 0) != sample_fewshot(rows, 4, 1)
    assert len(set(sample_fewshot(rows, 30, 0))) == 30
    with pytest.raises(UserError, match="exceeds the 30 rows"):
        sample_fewshot(rows, 31, 0)


def test_an_encoder_has_nothing_to_say(runs: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match="bert does not support the formulation 'prompt' for classify tasks"
    ):
        few_shot_predictor(runs["bert"], tables.table(tmp_path / "test.tsv", 4))
