"""Fine-tuning in stages: the run of each, what it starts from, and exact resume in any of them."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from kinfolk.config import read_json
from kinfolk.errors import UserError
from kinfolk.training.loop import Callback, Progress
from kinfolk.workflows.finetuning.stages import finetune_in_stages, resume_stages
from kinfolk.workflows.load import load
from kinfolk.workflows.predict import predict
from kinfolk.workflows.pretrain import resume
from support.runs import Home

ROWS = [
    {"text": f"{who} {does} the garden", "label": "good" if does == "found" else "bad"}
    for who in ("the cat", "a dog", "my sister", "the king", "a red bird", "the old man")
    for does in ("found", "forgot", "found", "carried")
]
SETTINGS = [
    *("general.train.steps=3", "general.train.batch_size=2", "general.objective.max_length=16"),
    *("target.train.steps=4", "target.train.batch_size=2", "target.train.save_every=2"),
    *("train.steps=6", "train.save_every=2", "train.eval_every=2", "train.batch_size=4"),
]
FILES = ("checkpoints/last/model.safetensors", "log.jsonl")


class Interrupt(Callback):
    """Ctrl-C after a step of one stage."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step(self, progress: Progress) -> None:
        if progress.step == self.step:
            raise KeyboardInterrupt


def run(home: Home, out: Path, **given: Any) -> Path:
    settings = [*SETTINGS, *given.pop("settings", ())]
    fields: dict[str, Any] = {"stages": ("general", "target", "task"), "corpus": home.corpus}
    model = given.pop("model", "ulmfit/nano")
    return finetune_in_stages(model, ROWS, out, settings=settings, **(fields | given))


@pytest.fixture(scope="module")
def whole(home: Home, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run(home, tmp_path_factory.mktemp("stages") / "run")


def test_every_stage_is_a_run_that_starts_from_the_one_before(whole: Path) -> None:
    general, target, task = (
        read_json(whole / stage / "recipe.json") for stage in ("general", "target", "task")
    )
    assert general.init_from == ""
    assert Path(target.init_from).is_relative_to(whole / "general")
    assert Path(task.init_from).is_relative_to(whole / "target")
    assert [made.train.steps for made in (general, target, task)] == [3, 4, 6]
    texts = [json.loads(line)["text"] for line in (whole / "texts.jsonl").read_text().splitlines()]
    assert {*texts} <= {row["text"] for row in ROWS} and len(texts) == len(
        task.datasets[0].splits[0]
    )


def test_the_tricks_are_the_defaults_and_can_be_switched_off(
    home: Home, whole: Path, tmp_path: Path
) -> None:
    target, task = (read_json(whole / stage / "recipe.json") for stage in ("target", "task"))
    assert target.layer_lr_decay == task.finetune.layer_lr_decay == pytest.approx(1 / 2.6)
    assert target.train.schedule == task.train.schedule == "slanted"
    assert task.finetune.gradual_unfreezing
    plain = (
        *("target.layer_lr_decay=1", "target.train.schedule=constant", "train.schedule=linear"),
        *("finetune.layer_lr_decay=1", "finetune.gradual_unfreezing=false"),
    )
    other = run(
        home,
        tmp_path / "run",
        model=whole / "general",
        stages=("target", "task"),
        corpus=None,
        settings=plain,
    )
    target, task = (read_json(other / stage / "recipe.json") for stage in ("target", "task"))
    assert target.layer_lr_decay == task.finetune.layer_lr_decay == 1
    assert (target.train.schedule, task.train.schedule) == ("constant", "linear")
    assert not task.finetune.gradual_unfreezing


def test_the_folder_is_a_model_that_predicts(whole: Path) -> None:
    assert predict(whole, ["the cat found the garden"])[0].value in ("good", "bad")
    model, _ = load(whole)
    assert model.family_name == "ulmfit"
    assert json.loads((whole / "scores.json").read_text())["metric"] == "accuracy"
    with pytest.raises(UserError, match="is complete"):
        resume_stages(whole)
    with pytest.raises(UserError, match="is a run in stages: use kinfolk finetune --resume"):
        resume(whole)


@pytest.mark.parametrize(("stage", "step"), [("general", 2), ("target", 3), ("task", 3)])
def test_a_run_that_is_interrupted_in_any_stage_ends_with_the_same_bits(
    stage: str, step: int, home: Home, whole: Path, tmp_path: Path
) -> None:
    @contextmanager
    def progress(folder: Path) -> Iterator[Callback]:
        yield Interrupt(step) if folder.name == stage else Callback()

    out = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        run(home, out, progress=progress)
    assert not (out / "scores.json").exists()
    resume_stages(out)
    for name in ("general", "target", "task"):
        for file in FILES:
            assert (out / name / file).read_bytes() == (whole / name / file).read_bytes(), name
    assert (out / "scores.json").read_bytes() == (whole / "scores.json").read_bytes()


def test_other_text_of_the_task_is_read_too(home: Home, whole: Path, tmp_path: Path) -> None:
    more = tmp_path / "more.txt"
    more.write_text("a quite different garden\nno garden at all\n")
    out = run(
        home,
        tmp_path / "run",
        model=whole / "general",
        stages=("target", "task"),
        corpus=None,
        unlabelled=[more],
    )
    texts = [json.loads(line)["text"] for line in (out / "texts.jsonl").read_text().splitlines()]
    assert texts[-2:] == ["a quite different garden", "no garden at all"]


def test_a_run_that_did_not_start_leaves_nothing(home: Home, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no field 'nothing'"):
        run(home, tmp_path / "run", settings=["general.model.nothing=1"])
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"settings": ["finetune.nothing=1"]}, "no field 'nothing'"),
        ({"settings": ["train.lr=-1"]}, "train.lr"),
        ({"formulation": "cross_view"}, "cross_view"),
        ({"metric": "nothing"}, "nothing"),
    ],
)
def test_a_wrong_setting_of_the_task_is_found_before_the_first_stage(
    given: dict[str, Any], message: str, home: Home, tmp_path: Path
) -> None:
    started: list[Path] = []

    @contextmanager
    def progress(folder: Path) -> Iterator[Callback]:
        started.append(folder)
        yield Callback()

    with pytest.raises(UserError, match=message):
        run(home, tmp_path / "run", progress=progress, **given)
    assert not started and not (tmp_path / "run").exists()
