"""A loss or gradient that is not finite: the batch is saved, and left out where that is asked."""

import errno
import json
import math
import os
import shutil
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from kinfolk.batch import Batch
from kinfolk.errors import Terminated, UserError
from kinfolk.text import Tokenizer
from kinfolk.training import run as run_module
from kinfolk.training import workload
from kinfolk.training.log import alarms, read
from kinfolk.training.loop import Callback, Progress
from kinfolk.training.recovery import batch_number, batch_numbers
from kinfolk.training.run import Run
from kinfolk.training.run_differences import differences
from kinfolk.training.step import TrainStep
from kinfolk.workflows.finetuning.finetune import finetune
from kinfolk.workflows.pretrain import PretrainWorkload, pretrain, resume
from kinfolk.workflows.recipe import Recipe
from kinfolk.workflows.recipe import recipe as make_recipe
from support.poison import has_row, has_token, poison
from support.runs import LENGTH, Home, OnStep

BAD = 5  # the batch of step 6, between the checkpoints of steps 4 and 8


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    return Home.make(tmp_path_factory.mktemp("home"))


class Listener(Callback):
    """Keep the messages of a run."""

    def __init__(self) -> None:
        self.messages: list[str] = []

    def on_message(self, message: str) -> None:
        self.messages.append(message)


def rows_of(recipe: Recipe, *numbers: int) -> list[torch.Tensor]:
    """Return the first row of each of these batches of a run."""
    work = PretrainWorkload(recipe)
    return [ids_of(work.batch_parts(number)[-1])[0] for number in numbers]


def ids_of(batch: Batch[Any]) -> torch.Tensor:
    return batch.inputs.input_ids


def poisoned(
    patch: pytest.MonkeyPatch, recipe: Recipe, *numbers: int, value: float = math.nan
) -> list[int]:
    return poison(patch, has_row(rows_of(recipe, *numbers)), value)


def test_the_batch_of_a_step_is_the_next_that_is_not_left_out() -> None:
    assert [*batch_numbers(range(6), {1, 2, 5})] == [0, 3, 4, 6, 7, 8]
    assert [*batch_numbers(range(2, 4), {1, 2, 5})] == [4, 6]
    assert [batch_number(step, {1, 2, 5}) for step in range(6)] == [0, 3, 4, 6, 7, 8]
    assert [*batch_numbers(range(3, 5), ())] == [3, 4]
    assert [*batch_numbers(range(3, 3), {3})] == []


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_run_that_stops_saves_the_batch_with_its_text(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: float
) -> None:
    recipe, run = home.recipe("gpt2", "train.gradient_accumulation=2"), tmp_path / "run"
    poisoned(monkeypatch, recipe, BAD, value=value)
    kind = "NaN" if math.isnan(value) else "infinite"
    with pytest.raises(UserError, match=rf"^loss is {kind} at step 6\. Lower train\.lr") as error:
        pretrain(recipe, run)
    text = run / "bad_batches" / "batch-00000005.txt"
    assert f"The batch is in {text}; with train.on_nan=skip" in str(error.value)
    saved = load_file(text.with_suffix(".safetensors"))
    for part, batch in enumerate(PretrainWorkload(recipe).batch_parts(BAD)):
        assert torch.equal(saved[f"{part}.inputs.input_ids"], batch.inputs.input_ids)
        assert torch.equal(saved[f"{part}.targets.labels"], batch.targets.labels)
    with safe_open(text.with_suffix(".safetensors"), "pt") as file:
        assert file.metadata() == {"batch": "5", "step": "6", "fault": f"loss is {kind}"}
    texts = text.read_text(encoding="utf-8").splitlines()
    assert len(texts) >= 4 and all(line in clean_text(home) for line in texts[0].split(". ")[1:-1])
    assert [line["step"] for line in read(run)] == [1, 2, 3, 4, 5]
    assert alarms(run) == [{"step": 6, "alarm": "non_finite", "message": str(error.value)}]


def test_a_run_that_stops_has_a_report_that_says_why(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe, run = home.recipe("gpt2", "train.save_every=4"), tmp_path / "run"
    with monkeypatch.context() as patch:
        poisoned(patch, recipe, BAD)
        with pytest.raises(UserError, match="loss is NaN at step 6"):
            pretrain(recipe, run)
    page = (run / "report.html").read_text(encoding="utf-8")
    assert "loss is NaN at step 6. Lower train.lr" in page and "unigram entropy" in page
    assert f"kinfolk pretrain --resume {run}" in page
    resume(run)  # the batch is right by now
    assert not alarms(run)
    assert "loss is NaN" not in (run / "report.html").read_text(encoding="utf-8")


def test_a_run_that_stops_at_its_first_step_has_a_report(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe, run = home.recipe("bert"), tmp_path / "run"
    poisoned(monkeypatch, recipe, 0)
    with pytest.raises(UserError, match="loss is NaN at step 1"):
        pretrain(recipe, run)
    page = (run / "report.html").read_text(encoding="utf-8")
    assert "loss is NaN at step 1. Lower train.lr" in page


def test_a_batch_that_cannot_be_saved_hides_nothing(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe, full = home.recipe("gpt2"), OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def fail(*arguments: Any) -> None:
        raise full

    poisoned(monkeypatch, recipe, 1)
    monkeypatch.setattr("kinfolk.training.recovery.save_file", fail)
    sentence = r"loss is NaN at step 2\. .*The batch could not be saved \(.*No space left"
    with pytest.raises(UserError, match=sentence):
        pretrain(recipe, tmp_path / "run")


def clean_text(home: Home) -> str:
    return " ".join(home.text.read_text(encoding="utf-8").split())


slow = pytest.mark.slow


@pytest.mark.parametrize(
    ("member", "settings"),
    [
        ("gpt2", ()),
        pytest.param("transformer_xl", (), marks=slow),
        pytest.param("ulmfit", (), marks=slow),
        pytest.param("bert", ("train.gradient_accumulation=2",), marks=slow),
        pytest.param("t5", ("train.workers=1",), marks=slow),
    ],
)
def test_skip_and_rollback_go_on_as_if_the_data_had_no_such_batch(
    home: Home, tmp_path: Path, member: str, settings: Sequence[str]
) -> None:
    recipes = {mode: short_run(home, member, mode, *settings) for mode in ("skip", "rollback")}
    runs: dict[str, Path] = {}
    for mode, recipe in recipes.items():
        with pytest.MonkeyPatch.context() as patch:
            hit, listener = poisoned(patch, recipe, BAD, BAD + 1), Listener()
            runs[mode] = pretrain(recipe, tmp_path / mode, callbacks=[listener])
        assert len(hit) == 2
        check_told(runs[mode], listener, {BAD: 5, BAD + 1: 5} if mode == "skip" else None)
    # The reference never meets the batches.
    work = PretrainWorkload(short_run(home, member, "skip", *settings))
    plain = Run.start(work, tmp_path / "plain")
    plain.dropped = {BAD: 5, BAD + 1: 5}
    plain.fit()
    for mode, run in runs.items():
        lines = [line["step"] for line in read(run)]
        assert lines == [*range(1, 13)]
        found = differences(run, tmp_path / "plain")
        expected = {} if mode == "skip" else {"weights", "training state"}  # train.on_nan; from 4
        assert found.keys() <= set(expected), found
        assert all("kinfolk.json" in v or "training.json" in v for v in found.values()), found


def short_run(home: Home, member: str, mode: str, *settings: str) -> Recipe:
    """Return a run of twelve steps, with dropout where the family has it in attention."""
    chosen = (f"train.on_nan={mode}", *settings)
    if member != "ulmfit":
        return home.recipe(member, *chosen)
    train = ("steps=12", "save_every=4", "batch_size=4", "warmup=3", "device=cpu", "eval_every=3")
    own = [*(f"train.{setting}" for setting in train), "model.weight_dropout=0.1", *chosen]
    return make_recipe("ulmfit/nano", home.corpus, length=LENGTH, settings=own)


def check_told(run: Path, listener: Listener, from_steps: dict[int, int] | None) -> None:
    """Check that each batch has one alarm in the file, on the terminal and in the report."""
    entries = alarms(run)
    assert [entry["alarm"] for entry in entries] == ["non_finite"] * 2
    assert [entry["batch"] for entry in entries] == [BAD, BAD + 1]
    assert [entry["step"] for entry in entries] == [6, 6]
    if from_steps is not None:
        assert {entry["batch"]: entry["from_step"] for entry in entries} == from_steps
    else:
        assert {entry["from_step"] for entry in entries} == {4}
    messages = [text.removeprefix("alarm: ") for text in listener.messages if "alarm: " in text]
    assert [entry["message"] for entry in entries] == messages
    page = (run / "report.html").read_text(encoding="utf-8")
    for number in (BAD, BAD + 1):
        assert page.count(f"and batch {number} of the data is left out") == 1
        assert (run / "bad_batches" / f"batch-{number:08d}.safetensors").is_file()
    checkpoint = run / "checkpoints" / "last" / "model.safetensors"
    assert all(bool(t.isfinite().all()) for t in load_file(checkpoint).values())


@pytest.mark.parametrize("mode", ["skip", "rollback"])
def test_a_run_that_is_interrupted_after_it_left_out_a_batch_resumes_to_the_bit(
    home: Home, tmp_path: Path, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = home.recipe("transformer_xl", f"train.on_nan={mode}")
    with pytest.MonkeyPatch.context() as patch:
        poisoned(patch, recipe, BAD)
        whole = pretrain(recipe, tmp_path / "whole")

        class Killed(BaseException):
            """Ends a run as a kill does: nothing is saved."""

        def die(progress: Progress) -> None:
            if progress.step == 7:
                raise Killed

        out = tmp_path / "run"
        with pytest.raises(Killed):
            pretrain(recipe, out, callbacks=[OnStep(die)])
    assert (out / "checkpoints" / "last").readlink() == Path("step-00000004")
    resume(out)  # now no loss is NaN: the file alone says which batch is left out
    assert differences(out, whole) == {}
    assert alarms(out) == [
        entry | {"message": entry["message"].replace(str(whole), str(out))}
        for entry in alarms(whole)
    ]
    # The checkpoint alone says it, too.
    copy = shutil.copytree(out, tmp_path / "copy", symlinks=True)
    shutil.rmtree(copy / "checkpoints" / "step-00000012")
    (copy / "checkpoints" / "last").unlink()
    (copy / "alarms.jsonl").unlink()
    resume(copy)
    assert differences(copy, whole) == {}


@pytest.mark.parametrize("mode", ["skip", "rollback"])
def test_a_batch_of_the_first_steps_needs_no_checkpoint(
    home: Home, tmp_path: Path, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = home.recipe("transformer_xl", f"train.on_nan={mode}")
    poisoned(monkeypatch, recipe, 1)
    run = pretrain(recipe, tmp_path / "run")
    assert [entry["from_step"] for entry in alarms(run)] == [1 if mode == "skip" else 0]
    work = PretrainWorkload(recipe)
    other = Run.start(work, tmp_path / "other")
    other.dropped = {1: 1 if mode == "skip" else 0}
    other.fit()
    assert differences(run, tmp_path / "other") == {}


@pytest.mark.parametrize("mode", ["skip", "rollback"])
def test_a_run_in_which_no_batch_is_finite_stops_with_a_sentence(
    home: Home, tmp_path: Path, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe, run = home.recipe("gpt2", f"train.on_nan={mode}"), tmp_path / "run"
    start = 5 if mode == "skip" else 4
    with pytest.MonkeyPatch.context() as patch:
        work = PretrainWorkload(recipe)
        good = [row for n in range(BAD) for part in work.batch_parts(n) for row in ids_of(part)]
        poison(patch, lambda ids: not has_row(good)(ids))
        for _ in range(2):  # and again when it is resumed
            sentence = (
                rf"^loss is NaN at step 6, after 5 batches that were left out since step {start}: "
                r"the cause is not in one batch\. Lower train\.lr .* resume from step 4: kinfolk"
            )
            with pytest.raises(UserError, match=sentence):
                resume(run) if run.exists() else pretrain(recipe, run)
    *left_out, end = alarms(run)
    assert len(left_out) == 5 and "the cause is not in one batch" in end["message"]
    assert (run / "checkpoints" / "last").readlink() == Path("step-00000004")
    settings = json.loads((run / "recipe.json").read_text(encoding="utf-8"))
    settings["train"]["on_nan"] = "stop"
    (run / "recipe.json").write_text(json.dumps(settings), encoding="utf-8")
    resume(run)
    assert [line["step"] for line in read(run)] == [*range(1, 13)]


@pytest.mark.parametrize("mode", ["skip", "rollback"])
def test_values_that_are_read_late_as_on_cuda_lose_nothing(
    home: Home, tmp_path: Path, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = home.recipe("transformer_xl", f"train.on_nan={mode}", "train.save_every=7")
    with pytest.MonkeyPatch.context() as patch:
        poisoned(patch, recipe, BAD, 8)
        soon = pretrain(recipe, tmp_path / "soon")
    make = workload.optimizer_step

    def as_on_cuda(work: Any, device: torch.device, *, bfloat16: bool) -> TrainStep:
        step = make(work, device, bfloat16=bfloat16)
        train = work.train
        step.checks = lambda number: train.on_nan == "skip" or train.saves(number + 1)
        return step

    monkeypatch.setattr(workload, "optimizer_step", as_on_cuda)
    monkeypatch.setattr(run_module, "log_interval", lambda device: 10)
    poisoned(monkeypatch, recipe, BAD, 8)
    late = pretrain(recipe, tmp_path / "late")
    assert differences(late, soon) == {}
    keys = ("step", "batch", "from_step")
    found = [[tuple(entry[key] for key in keys) for entry in alarms(run)] for run in (late, soon)]
    assert found[0] == found[1]


def test_a_signal_during_a_step_that_is_not_finite_still_ends_the_run(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe, out = home.recipe("gpt2", "train.on_nan=skip"), tmp_path / "run"
    poisoned(monkeypatch, recipe, BAD)
    forward = TrainStep.forward

    def signalled(self: TrainStep, batch: Any) -> Any:
        loss = forward(self, batch)
        if not all(bool(total.isfinite()) for total in loss.sums.values()):
            signal.raise_signal(signal.SIGTERM)
        return loss

    monkeypatch.setattr(TrainStep, "forward", signalled)
    with pytest.raises(Terminated):
        pretrain(recipe, out)
    assert (out / "checkpoints" / "last").readlink() == Path("step-00000005")
    assert len(alarms(out)) == 1
    resume(out)
    assert [line["step"] for line in read(out)] == [*range(1, 13)]


@pytest.mark.parametrize("mode", ["skip", "rollback"])
def test_fine_tuning_leaves_out_a_batch(
    home: Home, tmp_path: Path, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [{"text": f"a {word} thing", "label": word} for word in ("good", "bad") * 15]
    rows += [{"text": "a good river", "label": "good"}, {"text": "a bad song", "label": "bad"}]
    backbone = home.run("bert")

    def tune(out: Path, **fields: Any) -> Path:
        return finetune(
            backbone, rows, out, dev=rows[:4], device="cpu", steps=8, batch_size=8, eval_every=3,
            on_nan=mode, **fields,
        )  # fmt: skip

    clean = tune(tmp_path / "clean")
    river = Tokenizer.load(home.tokenizer).encode(" river")
    hit = poison(monkeypatch, has_token(river[2]))  # no other word has a v
    run = tune(tmp_path / "run")
    entries = alarms(run)
    assert len(hit) == len(entries) > 0
    assert "river" in (run / "bad_batches" / f"batch-{entries[0]['batch']:08d}.txt").read_text()
    assert [line["step"] for line in read(run)] == [*range(1, 9)]
    first = entries[0]["step"]
    assert read(run)[: first - 1] == read(clean)[: first - 1]
    assert read(run)[first - 1] != read(clean)[first - 1]
    assert (run / "scores.json").is_file()
