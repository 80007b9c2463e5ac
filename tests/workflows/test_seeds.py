"""Several seeds: each has its run, their mean and spread are right, and nothing is half begun."""

import json
from pathlib import Path

import pytest

from kinfolk.errors import UserError
from kinfolk.files import folder_lock, new_folder
from kinfolk.tasks.dataset import task_dataset
from kinfolk.workflows.finetuning.finetune import finetune
from kinfolk.workflows.finetuning.recipe import parse_initial_weights
from kinfolk.workflows.finetuning.seeds import read_scores, run_seeds, summarize_seeds
from kinfolk.workflows.folders import find_model_folder
from support import tables


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("seeds")
    file = task_dataset(tables.table(folder / "train.tsv"))

    def tune(seed: int, out: Path) -> Path:
        settings = ("train.batch_size=8", "train.device=cpu", f"train.seed={seed}")
        return finetune(
            parse_initial_weights("bert/nano"), [file], out, epochs=1.0, settings=settings
        )

    return run_seeds(2, folder / "run", tune)


def score(run: Path, **values: float) -> None:
    """Pretend that a run scored so."""
    text = json.dumps({"metric": "accuracy", "dev": values})
    (run / "scores.json").write_text(text)


def test_the_best_by_the_metric_is_pointed_at(run: Path) -> None:
    kept = {path: (path / "scores.json").read_text() for path in run.glob("seed-*")}
    for best in (1, 0):
        score(run / f"seed-{best}", accuracy=0.75, eval_loss=9.0)
        score(run / f"seed-{1 - best}", accuracy=0.25, eval_loss=1.0)
        summarize_seeds(run)
        assert (run / "best").readlink() == Path(f"seed-{best}")
        assert find_model_folder(run).is_relative_to((run / f"seed-{best}").resolve())
    summary = json.loads((run / "scores.json").read_text())
    assert (summary["dev"], summary["spread"]) == (0.5, pytest.approx(0.125**0.5))
    assert summary["metrics"]["eval_loss"]["mean"] == 5
    for path, text in kept.items():
        (path / "scores.json").write_text(text)
    summarize_seeds(run)


def test_seeds_differ_and_one_run_is_its_own_mean(run: Path) -> None:
    weights = [find_model_folder(path) / "model.safetensors" for path in sorted(run.glob("seed-*"))]
    assert weights[0].read_bytes() != weights[1].read_bytes()
    alone = read_scores(run / "seed-0")
    assert alone.best == run / "seed-0"
    assert alone.mean("accuracy") == (alone.runs[run / "seed-0"]["accuracy"], 0.0)
    assert alone.names[-1] == "eval_loss" and "step" not in alone.names


def test_a_mistake_before_the_first_leaves_nothing(tmp_path: Path) -> None:
    def fail(seed: int, out: Path) -> Path:
        raise UserError("no")

    with pytest.raises(UserError, match="no"):
        run_seeds(2, tmp_path / "run", fail)
    assert list(tmp_path.iterdir()) == []


def test_of_two_processes_one_makes_the_folder_and_keeps_it(tmp_path: Path) -> None:
    out, refused = tmp_path / "run", []

    def again(seed: int, folder: Path) -> Path:
        with pytest.raises(UserError, match="run already exists"):
            run_seeds(2, out, again)
        with pytest.raises(BlockingIOError), folder_lock(out, wait=False):
            raise AssertionError("two processes hold one folder")
        refused.append(seed)
        raise UserError("no")

    with pytest.raises(UserError, match="no"):
        run_seeds(2, out, again)
    assert refused == [0] and not out.exists()
    with new_folder(out), pytest.raises(UserError, match="another run was started in it"):
        run_seeds(2, out, again)


def test_what_is_there_stays(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "mine").write_text("kept")
    with pytest.raises(UserError, match="already exists"):
        run_seeds(2, tmp_path / "run", lambda seed, out: out)
    assert (tmp_path / "run" / "mine").read_text() == "kept"
