"""A suite takes every set in turn, scores it as GLUE does, and names those it cannot."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from kinfolk.errors import UserError
from kinfolk.files import new_folder
from kinfolk.tasks.dataset import TaskDataset, sample_rows, task_dataset
from kinfolk.workflows.finetuning.finetune import finetune
from kinfolk.workflows.finetuning.recipe import parse_initial_weights
from kinfolk.workflows.finetuning.seeds import run_seeds
from kinfolk.workflows.finetuning.suites import (
    SuiteResult,
    evaluate_run,
    run_suite,
    select_tasks,
    skipped_folders,
    suite_mean,
)
from support import tables


def tune(files: Sequence[TaskDataset], out: Path, metric: str | None, seed: int = 0) -> Path:
    settings = ("train.batch_size=8", "train.device=cpu", f"train.seed={seed}")
    return finetune(
        parse_initial_weights("bert/nano"),
        files,
        out,
        epochs=0.5,
        settings=settings,
        metric=metric,
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("cola", "mrpc", "mood", "story"):
        (tmp_path / "sets" / name).mkdir(parents=True)
    return tmp_path / "sets"


def test_sets_are_scored_by_their_own_metrics(folder: Path, tmp_path: Path) -> None:
    for name in ("cola", "mrpc"):
        for split in ("train", "dev"):
            tables.table(folder / name / f"{split}.tsv", 16)
    # A test that keeps its labels to itself is none.
    tables.table(folder / "mrpc" / "test.tsv", 10, labelled=False)
    tables.table(folder / "mood" / "test.tsv", 10)
    tables.write(folder / "story" / "story.txt", ["once", "upon"])
    sets = select_tasks(folder, None)
    left = skipped_folders(folder, sets)
    results = {one.name: one for one in run_suite(sets, tune, tmp_path / "run", skipped=left)}
    assert results["cola"].scores.keys() == {"matthews"}
    assert results["mrpc"].scores.keys() == {"accuracy", "f1"}
    assert (
        results["cola"].split,
        results["cola"].num_eval_rows,
        results["cola"].num_train_rows,
    ) == (
        "dev",
        16,
        16,
    )
    assert results["mrpc"].split == "dev"
    assert "no training data" in results["mood"].skip_reason
    assert "without labels" in results["story"].skip_reason
    both = results["mrpc"].scores
    assert results["mrpc"].score == pytest.approx(50 * (both["accuracy"] + both["f1"]))
    written = json.loads((tmp_path / "run" / "suite.json").read_text())
    assert written["mean"] == pytest.approx(suite_mean([*results.values()]))


def test_of_two_suites_in_one_folder_one_is_refused(folder: Path, tmp_path: Path) -> None:
    tables.table(folder / "cola" / "train.tsv", 16)
    out, refused = tmp_path / "run", []

    def again(files: Sequence[TaskDataset], run: Path, metric: str | None) -> Path:
        with pytest.raises(UserError, match="run already exists"):
            run_suite(sets, again, out)
        refused.append(run.name)
        raise UserError("no")

    sets = select_tasks(folder, None)
    (result,) = run_suite(sets, again, out)
    assert (result.skip_reason, refused) == ("no", ["cola"])
    assert not out.exists()  # nothing was trained
    with new_folder(out), pytest.raises(UserError, match="another run was started in it"):
        run_suite(sets, again, out)


def test_a_set_with_several_metrics_counts_the_first_unless_glue_averages_them() -> None:
    tags = SuiteResult(name="ner", task="tag", scores={"f1": 0.5, "accuracy": 0.9})
    both = SuiteResult(name="sts", task="regress", scores={"pearson": 0.5, "spearman": 0.7})
    text = SuiteResult(name="mt", task="write", scores={"bleu": 12.0, "chrf": 40.0})
    assert (tags.score, text.score) == (50, 12) and both.score == pytest.approx(60)
    assert suite_mean(
        [tags, both, text, SuiteResult(name="no", task="lm", skip_reason="x")]
    ) == pytest.approx((50 + 60 + 12) / 3)


def test_some_rows_are_from_all_over_a_file_and_always_the_same(tmp_path: Path) -> None:
    rows = list(range(1000))
    kept = sample_rows(rows, 50)
    assert kept == sample_rows(rows, 50) == sorted(kept) and len(set(kept)) == 50
    assert min(kept) < 100 and max(kept) > 900
    assert sample_rows(rows, 2000) == rows
    file = task_dataset(tables.table(tmp_path / "a.tsv", 40))
    part = TaskDataset(train=file.train, file_spec=file.file_spec, max_rows=10)
    learned, dev = part.splits
    assert (len(learned), len(dev)) == (9, 1)


def test_names_that_are_no_sets_are_told(folder: Path) -> None:
    tables.table(folder / "cola" / "train.tsv", 8)
    with pytest.raises(UserError, match="--tasks colla: unknown dataset; did you mean cola"):
        select_tasks(folder, "colla")
    assert [one.name for one in select_tasks(folder, "cola")] == ["cola"]


@pytest.mark.real
def test_real_sets_are_solved(real: Path, tmp_path: Path) -> None:
    sets = select_tasks(real / "fewclue", "bustm,chid")
    results = run_suite(sets, tune, tmp_path / "run", limit=12)
    assert [(one.task, one.split) for one in results] == [("classify", "test"), ("choose", "test")]
    assert all(one.scores for one in results)


def test_several_seeds_give_every_set_a_spread(folder: Path, tmp_path: Path) -> None:
    for split in ("train", "test"):
        tables.table(folder / "mood" / f"{split}.tsv", 16)

    def twice(files: Sequence[TaskDataset], out: Path, metric: str | None) -> Path:
        return run_seeds(2, out, lambda seed, inner: tune(files, inner, metric, seed))

    (found,) = run_suite(select_tasks(folder, "mood"), twice, tmp_path / "run")
    made, test = tmp_path / "run" / "mood", task_dataset(folder / "mood" / "test.tsv")
    rows = test.rows
    each = [evaluate_run(made / f"seed-{n}", rows, "cpu")["accuracy"] for n in range(2)]
    assert found.scores["accuracy"] == pytest.approx(sum(each) / 2)
    assert found.stds["accuracy"] == pytest.approx(abs(each[0] - each[1]) / 2**0.5)


def test_a_test_file_that_cannot_be_read_is_named(folder: Path, tmp_path: Path) -> None:
    for split in ("train", "dev", "test"):
        tables.table(folder / "mood" / f"{split}.tsv", 16)
    with (folder / "mood" / "test.tsv").open("a", encoding="utf-8") as stream:
        stream.write("a\tragged\tline\tof\tcells\n")
    said: list[str] = []
    (sets,) = (one for one in select_tasks(folder, None) if one.name == "mood")
    (result,) = run_suite([sets], tune, tmp_path / "run", on_message=said.append)
    assert result.split == "dev"
    assert any("test.tsv cannot be read; scoring dev rows" in line for line in said)


def test_a_set_that_cannot_be_read_is_left_out_with_the_reason(
    folder: Path, tmp_path: Path
) -> None:
    tables.table(folder / "mood" / "train.tsv", 16)
    (folder / "cola" / "train.tsv").write_bytes(b"sentence\tlabel\n\xff\t1\n")
    said: list[str] = []
    sets = select_tasks(folder, None)
    cola, mood = run_suite(sets, tune, tmp_path / "run", on_message=said.append)
    assert mood.scores and not cola.scores
    assert "train.tsv is not UTF-8" in cola.skip_reason
    assert any(line.startswith("cola skipped: ") for line in said)
