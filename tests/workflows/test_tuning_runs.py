"""Fine-tuning runs: exact resume, early stopping, and what every member can learn with."""

import itertools
import json
import math
import os
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from kinfolk.batch import Loss
from kinfolk.errors import UserError
from kinfolk.tasks.dataset import TaskDataset, task_dataset
from kinfolk.tasks.formulations.head import SequenceHead
from kinfolk.tasks.rows import LabelledText
from kinfolk.text import Tokenizer
from kinfolk.training import checkpoint
from kinfolk.training.config import FineTuneConfig
from kinfolk.training.log import read
from kinfolk.training.loop import Callback, Progress
from kinfolk.workflows.finetuning.finetune import finetune
from kinfolk.workflows.finetuning.recipe import (
    FineTuneRecipe,
    InitialWeights,
    parse_initial_weights,
)
from kinfolk.workflows.folders import find_model_folder
from kinfolk.workflows.predict import load_predictor
from kinfolk.workflows.pretrain import resume
from support.learnable import classify, complete, dev, kept, lines, opinions, table, tune
from support.runs import tree

SMALL = ("train.batch_size=8", "train.lr=2e-3", "model.backbone.dropout=0.1")  # 15 steps an epoch
EVERY = {
    "gradual_unfreezing": True,
    "adversarial_epsilon": 0.5,
    "noisy_tune": 0.1,
    "layer_lr_decay": 0.9,
    "dropout": 0.1,
    "early_stopping_patience": 2,
}


class Stop(Callback):
    """Interrupt a run as Ctrl-C does, at the first look at or past a step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step(self, progress: Progress) -> None:
        if progress.step >= self.step:
            raise KeyboardInterrupt


def stopped(found: TaskDataset, out: Path, step: int, *settings: str, **more: Any) -> Path:
    """Begin a run, interrupt it and go on with it."""
    with pytest.raises(KeyboardInterrupt):
        tune("bert/nano", found, out, *settings, callbacks=[Stop(step)], **more)
    return resume(out)


def ends_alike(one: Path, other: Path) -> None:
    """Check that two runs logged and saved the same, to the bit."""
    names = ("log.jsonl", "scores.json", "recipe.json")
    assert tree(one, names) == tree(other, names)
    for link in ("last", "best"):
        folders = [run / "checkpoints" / link for run in (one, other)]
        assert folders[0].resolve().name == folders[1].resolve().name
        files = [tree(folder.resolve()) for folder in folders]
        assert files[0].keys() == files[1].keys()
        assert all(files[0][name] == files[1][name] for name in files[0])


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> tuple[TaskDataset, Path]:
    """Return files and a run on them."""
    folder = tmp_path_factory.mktemp("uninterrupted")
    found = opinions(folder, 120, 24)
    return found, tune("bert/nano", found, folder / "whole", *SMALL, **EVERY, epochs=3)


# Before a score, at one and after it.
@pytest.mark.parametrize("step", [pytest.param(10, marks=pytest.mark.slow), 15, 20])
def test_a_run_that_was_stopped_ends_as_one_that_was_not(
    uninterrupted: tuple[TaskDataset, Path], tmp_path: Path, step: int
) -> None:
    found, whole = uninterrupted
    parts = stopped(found, tmp_path / "parts", step, *SMALL, **EVERY, epochs=3)
    ends_alike(whole, parts)


def test_features_of_a_run_that_was_stopped_end_as_if_it_was_not(tmp_path: Path) -> None:
    found = opinions(tmp_path, 64, 24)
    vectors = tmp_path / "vectors.txt"
    vectors.write_text("the 1 2\na 3 4\n", encoding="utf-8")
    more = {"formulation": "features", "options": {"vectors": str(vectors)}, "epochs": 2}
    settings = ("train.batch_size=8", "model.task_network.hidden_size=8")
    whole = tune("bert/nano", found, tmp_path / "whole", *settings, **more)
    ends_alike(whole, stopped(found, tmp_path / "parts", 6, *settings, **more))


def test_what_was_said_of_a_run_holds_when_it_goes_on(tmp_path: Path) -> None:
    found = opinions(tmp_path, 64, 24)
    settings = ("train.batch_size=8", "train.warmup=3", "train.steps=16", "train.eval_every=4")
    whole = tune("bert/nano", found, tmp_path / "whole", *settings)
    ends_alike(whole, stopped(found, tmp_path / "parts", 4, *settings))
    assert FineTuneRecipe.read(whole / "recipe.json").train.warmup == 3
    rates = [line["lr"] for line in read(whole)]
    assert len(rates) == 16 and rates[2] == max(rates)


@pytest.mark.parametrize("held", [20, 21])  # batches of 8: the last one is smaller
def test_the_loss_on_dev_rows_is_the_mean_over_all_of_them(tmp_path: Path, held: int) -> None:
    found = opinions(tmp_path, 40, held)
    settings = ("train.batch_size=8", "train.lr=2e-3", "train.eval_every=9999")
    run = tune("bert/nano", found, tmp_path / "run", *settings, epochs=1)
    opened, rows = load_predictor(run), kept(found)
    assert len(rows) == held
    slow = 0.0
    for row in rows:
        (answer,) = opened.predict([row])
        slow -= math.log(answer.probabilities[opened.task.labels.index(row.label)])
    (logged,) = [line["eval_loss"] for line in read(run) if "eval_loss" in line]
    assert logged == pytest.approx(slow / held, rel=1e-4)


def test_a_run_without_a_checkpoint_starts_again(tmp_path: Path) -> None:
    found = opinions(tmp_path, 64, 24)
    body = tune("bert/nano", found, tmp_path / "first", epochs=1)
    folder = str(find_model_folder(body))
    for scratch in (False, True):
        start = parse_initial_weights(folder, from_scratch=scratch)
        whole, parts = (tmp_path / f"{name}{scratch}" for name in ("whole", "parts"))
        chosen = ["train.device=cpu", "train.batch_size=8"]
        finetune(start, [found], whole, epochs=1, settings=chosen)
        parts.mkdir()
        for name in ("recipe.json", "tokenizer"):
            (parts / name).symlink_to(whole / name)
        ends_alike(whole, resume(parts))


def test_a_score_that_is_nan_is_never_the_best(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = iter([math.nan])
    monkeypatch.setattr(Loss, "mean", spoiled(Loss.mean, first))
    settings = ("train.batch_size=8", "train.lr=2e-3")
    run = tune("bert/nano", opinions(tmp_path, 64, 24), tmp_path / "run", *settings, epochs=2)
    scored = [line for line in read(run) if "eval_loss" in line]
    assert [line["eval_loss"] is None for line in scored] == [True, False]
    assert checkpoint.checkpoint_step(run / "checkpoints" / "best") == scored[1]["step"]


def spoiled(mean: Any, values: Iterator[float]) -> Any:
    """Return the mean of a loss, or one of the values where no gradient is asked for."""
    return lambda loss, counts: (
        mean(loss, counts) if torch.is_grad_enabled() else next(values, mean(loss, counts))
    )


def test_a_run_that_ends_with_nan_does_not_save_its_last_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Loss, "mean", spoiled(Loss.mean, itertools.repeat(math.nan)))
    found = opinions(tmp_path, 32, 8)
    with pytest.raises(UserError, match=r"eval_loss is NaN at step 8\. Lower train\.lr"):
        tune("bert/nano", found, tmp_path / "run", "train.batch_size=8", epochs=2)
    assert not (tmp_path / "run" / "checkpoints" / "step-00000008").exists()


def test_an_option_that_is_wrong_leaves_no_run_behind(tmp_path: Path) -> None:
    found, out = opinions(tmp_path, 32, 8), tmp_path / "run"
    with pytest.raises(UserError, match=r"adversarial_epsilon=-1\.0: it must be at least 0"):
        tune("bert/nano", found, out, epochs=1, adversarial_epsilon=-1.0)
    assert not out.exists()
    tune("bert/nano", found, out, epochs=1)  # the next try is not refused


@pytest.mark.parametrize("name", ["write", "save"])
def test_a_kill_while_a_run_is_begun_loses_nothing(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, out = opinions(tmp_path, 32, 8), tmp_path / "run"
    owner: Any = {"write": FineTuneRecipe, "save": Tokenizer}[name]
    original = getattr(owner, name)

    def kill(*arguments: Any) -> None:
        original(*arguments)
        os._exit(9)

    if (child := os.fork()) == 0:
        setattr(owner, name, kill)
        tune("bert/nano", found, out, epochs=1)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    tune("bert/nano", found, out, epochs=1)  # begun again, as if nothing had been
    assert (out / "scores.json").is_file()


def test_a_finished_run_is_not_gone_on_with(tmp_path: Path) -> None:
    run = tune("bert/nano", opinions(tmp_path, 32, 8), tmp_path / "run", epochs=1)
    with pytest.raises(UserError, match="is complete"):
        resume(run)
    with pytest.raises(UserError, match="already exists"):
        tune("bert/nano", opinions(tmp_path, 32, 8), run, epochs=1)


def test_it_ends_when_nothing_grows_better_and_keeps_the_best(tmp_path: Path) -> None:
    found = opinions(tmp_path, 64, 24)
    settings = (
        "train.batch_size=16",
        "train.lr=1e-12",
        "train.keep_checkpoints=1",
    )  # nothing changes
    run = tune(
        "bert/nano",
        found,
        tmp_path / "run",
        *settings,
        epochs=9,
        early_stopping_patience=2,
    )
    scored = [line for line in read(run) if "eval_loss" in line]
    assert [line["step"] for line in scored] == [4, 8, 12]
    assert checkpoint.checkpoint_step(run / "checkpoints" / "best") == 4
    assert checkpoint.checkpoint_step(run / "checkpoints" / "last") == 12
    assert find_model_folder(run).name == "step-00000004"
    assert dev(run) == {k: scored[0][k] for k in dev(run)} and "accuracy" in dev(run)
    # Killed between its last checkpoint and its scores, it is at its end, too.
    before = tree(run, ("log.jsonl", "scores.json"))
    (run / "scores.json").unlink()
    resume(run)
    assert tree(run, ("log.jsonl", "scores.json")) == before


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_dev_rows_are_scored_in_the_precision_of_training(
    precision: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, seen = SequenceHead.logits, set[bool]()

    def logits(*arguments: Any) -> Any:
        seen.add(torch.is_autocast_enabled("cpu"))
        return original(*arguments)

    monkeypatch.setattr(SequenceHead, "logits", logits)
    found, chosen = opinions(tmp_path, 32, 8), f"train.precision={precision}"
    tune("bert/nano", found, tmp_path / "run", chosen, epochs=1)
    assert seen == {precision == "bfloat16"}


def test_an_interrupted_checkpoint_is_not_the_best(tmp_path: Path) -> None:
    found = opinions(tmp_path, 120, 24)
    with pytest.raises(KeyboardInterrupt):
        tune("bert/nano", found, tmp_path / "run", *SMALL, epochs=3, callbacks=[Stop(20)])
    home = tmp_path / "run" / "checkpoints"
    assert checkpoint.checkpoint_step(home / "last") == 20
    assert checkpoint.checkpoint_step(home / "best") == 15


def weights(run: Path) -> dict[str, torch.Tensor]:
    return dict(load_file(run / "checkpoints" / "last" / "model.safetensors"))


def test_micro_batches_learn_what_the_whole_batch_does(tmp_path: Path) -> None:
    found = opinions(tmp_path, 64, 8)
    still = ("train.steps=6", "train.eval_every=6", "model.dropout=0", "train.lr=1e-4")
    one, two = (
        tune(
            "bert/nano",
            found,
            tmp_path / str(parts),
            *still,
            f"train.gradient_accumulation={parts}",
        )
        for parts in (1, 2)
    )
    for a, b in zip(read(one), read(two), strict=True):
        assert a["loss"] == pytest.approx(b["loss"], abs=1e-5)
        assert a["grad_norm"] == pytest.approx(b["grad_norm"], rel=1e-4)
        assert a["counts"] == b["counts"]
    for name, weight in weights(one).items():
        torch.testing.assert_close(weights(two)[name], weight, atol=1e-5, rtol=1e-4)


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., dict[str, torch.Tensor]]:
    """Return a function that fine-tunes with some settings and returns the weights."""
    folder = tmp_path_factory.mktemp("tuned")
    found = opinions(folder, 48, 8)
    settings = ("train.batch_size=16", "train.lr=1e-3", "train.eval_every=9999")

    @cache
    def weights_of(name: str, **habit: Any) -> dict[str, torch.Tensor]:
        out = folder / "-".join([name, *map(str, habit)])
        return weights(tune(f"{name}/nano", found, out, *settings, epochs=2, **habit))

    return weights_of


@pytest.mark.parametrize("name", ["bert", "gpt2", "bilstm"])
@pytest.mark.parametrize(
    "habit",
    [
        {"gradual_unfreezing": True},
        {"noisy_tune": 0.2},
        {"adversarial_epsilon": 1.0},
        {"layer_lr_decay": 0.5},
        {"dropout": 0.2},
    ],
    ids=str,
)
def test_every_habit_changes_what_is_learned(
    tuned: Callable[..., dict[str, torch.Tensor]], name: str, habit: dict[str, Any]
) -> None:
    plain, other = tuned(name), tuned(name, **habit)
    assert plain.keys() == other.keys()
    assert any(not torch.equal(plain[k], other[k]) for k in plain)
    assert all(torch.isfinite(value).all() for value in other.values())


def test_settings_of_the_network_are_heeded_with_and_without_a_head(tmp_path: Path) -> None:
    found = opinions(tmp_path, 32, 8)
    run = tune("bert/nano", found, tmp_path / "bert", "model.backbone.num_layers=1", epochs=1)
    assert (
        json.loads((find_model_folder(run) / "config.json").read_text())["num_hidden_layers"] == 1
    )
    run = tune(
        "gpt2/nano", found, tmp_path / "gpt2", "model.num_layers=1", epochs=1, formulation="text"
    )
    assert json.loads((find_model_folder(run) / "config.json").read_text())["n_layer"] == 1
    again = tune(
        str(run), found, tmp_path / "more", "model.dropout=0.3", epochs=1, formulation="text"
    )
    assert FineTuneRecipe.read(again / "recipe.json").model.dropout == 0.3
    refused("do not fit the model settings", str(run), found, out=tmp_path / "odd",
            settings=["model.hidden_size=32"], formulation="text")  # fmt: skip
    assert json.loads((find_model_folder(again) / "config.json").read_text())["resid_pdrop"] == 0.3


def test_a_dropout_is_a_share() -> None:
    with pytest.raises(UserError, match=r"finetune.dropout=1.0: it must be from 0 to less than 1"):
        FineTuneConfig(dropout=1.0)


def test_rare_classes_weigh_more_where_it_is_wished(tmp_path: Path) -> None:
    file = tmp_path / "train.tsv"
    rows = ["a fine film\tgood"] * 30 + ["a dull film\tbad"] * 10
    file.write_text("sentence\tlabel\n" + "\n".join(rows) + "\n")
    run = tune(
        "bert/nano",
        task_dataset(file),
        tmp_path / "run",
        epochs=1,
        class_weights="balanced",
    )
    (way,) = FineTuneRecipe.read(run / "recipe.json").formulations
    assert way.class_weights == pytest.approx((2.0, 2 / 3), abs=1e-5)  # type: ignore[attr-defined]
    with pytest.raises(UserError, match="--class-weights does not apply to the formulation 'text'"):
        tune(
            "t5/nano",
            task_dataset(file),
            tmp_path / "t5",
            epochs=1,
            class_weights="balanced",
        )


def test_without_dev_rows_some_are_held_out(tmp_path: Path) -> None:
    run = tune("bert/nano", task_dataset(table(tmp_path / "train", classify, 60)), tmp_path / "run",
               epochs=1)  # fmt: skip
    assert 0 <= dev(run)["accuracy"] <= 1
    found = FineTuneRecipe.read(run / "recipe.json").datasets[0]
    learned, held = found.splits
    assert len(held) == 6 and len(learned) == 54
    assert {row.number for row in learned}.isdisjoint(row.number for row in held)


def refused(match: str, name: str, *files: Any, **more: Any) -> None:
    with pytest.raises(UserError, match=match):
        tune(name, list(files), more.pop("out"), *more.pop("settings", ()), **more)


def test_mistakes_are_told(tmp_path: Path) -> None:
    out = tmp_path / "run"
    one = tmp_path / "one.tsv"
    one.write_text("sentence\tlabel\n" + "a fine film\tgood\n" * 9)
    refused(
        "have the label good: classification needs",
        "bert/nano",
        task_dataset(one),
        out=out,
    )
    found = opinions(tmp_path, 32, 8)
    refused(
        "bert does not support the formulation 'text' for classify tasks",
        "bert/nano",
        found,
        out=out,
        formulation="text",
    )
    refused("unknown formulation 'heads'", "bert/nano", found, out=out, formulation="heads")
    words = task_dataset(lines(tmp_path / "words", complete, 20), task="complete")
    refused(
        "bert does not support complete tasks .supported: classify", "bert/nano", words, out=out
    )
    refused("--length must be at least 8 .got 4", "bert/nano", found, out=out, length=4)
    refused("exceeds the model's maximum length", "bert/nano", found, out=out, length=4096)
    refused("trained on together as text", "bert/nano", found, found, out=out)
    refused(
        "--positive-label odd is not a label of", "bert/nano", found, out=out, positive_label="odd"
    )
    refused("the metric 'bleu' does not apply", "bert/nano", found, out=out, metric="bleu")
    refused(
        "the formulation 'prompt' is not trained", "gpt2/nano", found, out=out, formulation="prompt"
    )
    refused(
        "--pattern does not apply to the formulation 'head'",
        "bert/nano",
        found,
        out=out,
        options={"pattern": "x"},
    )
    bare = tmp_path / "bare.tsv"
    bare.write_text("sentence\tlabel\n")
    told = TaskDataset(train=str(bare), file_spec=found.file_spec)
    refused("has no labelled rows: training needs", "bert/nano", told, out=out)
    assert not out.exists()
    with pytest.raises(UserError, match="neither a folder nor a family"):
        parse_initial_weights("bart/nano")
    with pytest.raises(UserError, match="bilstm has no size 'tall'"):
        InitialWeights(name="bilstm/tall").open([[LabelledText(("a fine film",), "good", 1)]])


def test_labels_that_training_had_not_cost_their_rows_and_no_run(tmp_path: Path) -> None:
    train, held = table(tmp_path / "train", classify, 48), tmp_path / "dev.tsv"
    held.write_text("sentence\tlabel\nfine film\tgood\ndull film\tbad\nfilm\todd\n")
    run = tune("bert/nano", task_dataset(train, held), tmp_path / "run", epochs=24)
    assert dev(run)["accuracy"] == pytest.approx(2 / 3)  # nobody could have named the third
    assert math.isfinite(dev(run)["eval_loss"])  # of the rows whose labels are known


def test_texts_that_are_cut_are_counted_and_said(tmp_path: Path) -> None:
    file = tmp_path / "train.tsv"
    rows = ["film " * 40 + "fine\tgood", "film dull\tbad"] * 12
    file.write_text("sentence\tlabel\n" + "\n".join(rows) + "\n")
    heard: list[str] = []

    class Hearing(Callback):
        def on_message(self, message: str) -> None:
            heard.append(message)

    tune(
        "bert/nano",
        task_dataset(file, file),
        tmp_path / "run",
        epochs=1,
        length=16,
        callbacks=[Hearing()],
    )
    assert "train.tsv: 12 of 24 rows truncated to 16 tokens (--length)" in heard


def test_another_file_is_refused_when_a_run_goes_on(tmp_path: Path) -> None:
    found = opinions(tmp_path / "data")
    with pytest.raises(KeyboardInterrupt):
        tune("bert/nano", found, tmp_path / "run", *SMALL, callbacks=[Stop(20)])
    table(tmp_path / "data" / "train", classify, 160, seed=7)
    with pytest.raises(UserError, match=r"train\.tsv changed since the run started"):
        resume(tmp_path / "run")


@pytest.mark.slow
def test_of_two_that_score_alike_the_one_with_less_loss_is_kept(tmp_path: Path) -> None:
    out = tune("bert/nano", opinions(tmp_path / "data"), tmp_path / "run", *SMALL, epochs=8)
    scored = [line for line in read(out) if "eval_loss" in line]
    top = max(line["accuracy"] for line in scored)
    alike = [line for line in scored if line["accuracy"] == top]
    assert len(alike) > 1  # else it shows nothing
    best = min(alike, key=lambda line: float(line["eval_loss"]))
    assert checkpoint.checkpoint_step(out / "checkpoints" / "best") == best["step"]
