"""Every setting reaches the run: changing it changes what the run logs or keeps.

Runs are started as a user starts them. A setting that cannot be seen in the losses of a short run
on the CPU stands in `UNSEEN`, with the reason and the test that covers it.
"""

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from kinfolk.training.config import FineTuneConfig, TrainConfig
from support.runs import Home, Kinfolk
from support.task_files import FILES

LEAST = 1e-3  # how far, relative to its value, a loss or a gradient norm must move
STEPS = 6
BASE = {
    "pretrain": {"lr": "3e-3", "warmup": "3", "eval_every": "3", "save_every": "2"},
    "finetune": {"lr": "3e-3", "warmup": "3", "eval_every": "3", "batch_size": "8"},
}
# A value for each setting that moves the losses; where it acts only beside another, both.
MOVES = {
    "batch_size": ["batch_size=16"],
    "gradient_accumulation": [
        "gradient_accumulation=2"
    ],  # each part of a batch draws its own dropout
    "optimizer": ["optimizer=adamw_rms"],
    "matrix_lr": ["optimizer=muon", "matrix_lr=0.1"],
    "schedule": ["schedule=constant"],
    "lr": ["lr=5e-3"],
    "min_lr_ratio": ["min_lr_ratio=0.7"],
    "warmup": ["warmup=1"],
    "decay_ratio": ["schedule=trapezoid", "decay_ratio=0.9"],
    "weight_decay": ["weight_decay=5"],
    "betas": ["betas=0.5,0.7"],
    "eps": ["eps=1e-2"],
    "grad_clip": ["grad_clip=1e-7"],
    "seed": ["seed=1"],
    "precision": ["precision=bfloat16"],
}
# What such a run is compared with, where it is not the base.
BESIDE = {
    "decay_ratio": ["schedule=trapezoid", "decay_ratio=0.1"],
    "matrix_lr": ["optimizer=muon", "matrix_lr=0.02"],
}
KEPT = {"steps", "save_every", "keep_checkpoints", "eval_every", "eval_batches"}  # tested below
UNSEEN = {
    "minutes": "ends a run by the clock: test_time_budget",
    "device": "a machine without CUDA has one: test_pretraining tests the choice",
    "compile": "changes rounding only: test_compiled, test_compilation",
    "attention": "changes rounding only, on CUDA: test_varlen_attention",
    "master_weights": "changes rounding only: test_master_weights",
    "cuda_graph": "acts on CUDA only: test_capture_cuda",
    "parallel": "must change nothing: test_sharding",
    "checkpoint_activations": "must change nothing: test_activation_checkpoint",
    "workers": "must change nothing: test_resume",
    "on_nan": "acts where a loss is not finite: test_recovery",
    "tensor": "changes rounding only: test_grid",
    "pipeline": "changes rounding only: test_grid",
    "loggers": "must change nothing: test_loggers",
}
# The settings of fine-tuning alone, by the option that sets them.
TUNING = {
    "epochs": ("--epochs", "3"),
    "layer_lr_decay": ("--layer-decay", "0.5"),
    "gradual_unfreezing": ("--thaw",),
    "noisy_tune": ("--noise", "0.5"),
    "adversarial_epsilon": ("--attack", "1"),
    "dropout": ("--dropout", "0.3"),
    "class_weights": ("--class-weights", "balanced"),
    "pooling": ("--pooling", "mean"),
}
UNSEEN_TUNING = {
    "early_stopping_patience": "ends a run early: test_tuning_runs",
    "mixing_temperature": "acts on several files: test_finetuning",
    "evals_per_epoch": "dev rows are scored more often: tested below",
}


class Commands:
    """Run `kinfolk pretrain` or `kinfolk finetune` for a few steps, each set of settings once."""

    def __init__(self, folder: Path, home: Home) -> None:
        self.folder, self.home = folder, home
        self.files = [
            FILES["classify"](folder / name, count, seed)
            for name, count, seed in (("train", 43, 0), ("dev", 12, 1))
        ]
        # Uneven classes, so that class weights differ from 1.
        rows = self.files[0].read_text("utf-8").splitlines()
        uneven = [row for n, row in enumerate(rows) if n % 3 or not row.endswith("bad")]
        self.files[0].write_text("\n".join(uneven) + "\n", encoding="utf-8")

    def run(self, kinfolk: Kinfolk, command: str, *settings: str, options: Any = ()) -> Path:
        """Return the folder of the run with these settings."""
        name = "-".join([command, *options, *settings]).replace("/", "_")
        out = self.folder / name
        if out.exists():
            return out
        chosen = BASE[command] | {"steps": str(STEPS)} | dict(s.split("=") for s in settings)
        if command == "pretrain":
            said = ("gpt2/nano", "--corpus", self.home.corpus, "--length", 32)
            said = (*said, "train.batch_size=4", "model.dropout=0.1")
        else:
            if "--epochs" in options:  # which gives the number of steps and of evaluations
                del chosen["steps"], chosen["eval_every"]
            said = ("bert/nano", "--train", self.files[0], "--dev", self.files[1])
            options = options if "--dropout" in options else ("--dropout", "0.1", *options)
        written = [f"train.{name}={value}" for name, value in chosen.items()]
        done = kinfolk(command, *said, "-o", out, "--device", "cpu", *options, *written)
        assert done.code == 0, done.err
        return out


@pytest.fixture(scope="module")
def commands(home: Home, tmp_path_factory: pytest.TempPathFactory) -> Commands:
    return Commands(tmp_path_factory.mktemp("runs"), home)


def logged(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "log.jsonl").read_text("utf-8").splitlines()]


def apart(one: Path, other: Path) -> float:
    """Return the largest relative difference of a loss, a gradient norm or a held-out loss."""
    pairs = [
        (a[key], b[key])
        for a, b in zip(logged(one), logged(other), strict=False)
        for key in ("loss", "grad_norm", "eval_loss")
        if key in a and key in b
    ]
    assert len(pairs) >= 2 * STEPS
    return max(abs(a - b) / max(abs(a), abs(b)) for a, b in pairs)


def test_every_setting_is_in_one_of_the_lists() -> None:
    names = [*MOVES, *KEPT, *UNSEEN]
    assert sorted(names) == sorted(field.name for field in fields(TrainConfig))
    names = [*TUNING, *UNSEEN_TUNING]
    assert sorted(names) == sorted(field.name for field in fields(FineTuneConfig))


@pytest.mark.parametrize("command", ["pretrain", "finetune"])
@pytest.mark.parametrize("name", MOVES)
def test_a_setting_changes_the_losses(
    command: str, name: str, commands: Commands, kinfolk: Kinfolk
) -> None:
    base = commands.run(kinfolk, command, *BESIDE.get(name, []))
    assert apart(commands.run(kinfolk, command, *MOVES[name]), base) > LEAST


@pytest.mark.parametrize("name", TUNING)
def test_a_setting_of_finetuning_changes_the_losses(
    name: str, commands: Commands, kinfolk: Kinfolk
) -> None:
    base = commands.run(kinfolk, "finetune")
    changed = commands.run(kinfolk, "finetune", options=TUNING[name])
    if name == "epochs":
        assert [len(logged(changed)), len(logged(base))] == [3 * 5, STEPS]  # 36 rows in fives of 8
    else:
        assert apart(changed, base) > LEAST


@pytest.mark.parametrize("command", ["pretrain", "finetune"])
def test_the_same_settings_give_the_same_run(
    command: str, commands: Commands, kinfolk: Kinfolk
) -> None:
    """So a difference in the other tests is the setting's; float32 is the CPU's own precision."""
    base = commands.run(kinfolk, command)
    assert apart(commands.run(kinfolk, command, "precision=float32"), base) == 0


@pytest.mark.parametrize("command", ["pretrain", "finetune"])
def test_steps_and_evaluations_come_as_often_as_they_are_set(
    command: str, commands: Commands, kinfolk: Kinfolk
) -> None:
    run = commands.run(kinfolk, command, "steps=7", "eval_every=2", "save_every=7")
    assert [line["step"] for line in logged(run)] == [1, 2, 3, 4, 5, 6, 7]
    assert [line["step"] for line in logged(run) if "eval_loss" in line] == [2, 4, 6, 7]


def test_dev_rows_are_scored_as_often_an_epoch_as_is_set(
    commands: Commands, kinfolk: Kinfolk
) -> None:
    for scores, steps in ((1, [5, 10, 15]), (2, [3, 6, 9, 12, 15])):
        options = ("--epochs", "3", f"finetune.evals_per_epoch={scores}")
        run = commands.run(kinfolk, "finetune", options=options)
        assert [line["step"] for line in logged(run) if "eval_loss" in line] == steps


def test_checkpoints_come_as_often_and_stay_as_long_as_they_are_set(
    commands: Commands, kinfolk: Kinfolk
) -> None:
    for keep, kept in ((3, {2, 4, 6}), (1, {6})):
        run = commands.run(kinfolk, "pretrain", f"keep_checkpoints={keep}", "save_every=2")
        folders = run / "checkpoints"
        best = int((folders / "best").resolve().name.removeprefix("step-"))
        found = {int(folder.name.removeprefix("step-")) for folder in folders.glob("step-*")}
        assert found == kept | {best}


def test_more_held_out_batches_give_another_held_out_loss(
    commands: Commands, kinfolk: Kinfolk
) -> None:
    one, more = (commands.run(kinfolk, "pretrain", f"eval_batches={count}") for count in (1, 3))
    assert [line["loss"] for line in logged(one)] == [line["loss"] for line in logged(more)]
    assert logged(one)[-1]["eval_loss"] != logged(more)[-1]["eval_loss"]


@pytest.mark.parametrize("command", ["pretrain", "finetune"])
def test_the_first_weights_are_drawn_from_the_seed(
    command: str, commands: Commands, kinfolk: Kinfolk
) -> None:
    still = ("lr=1e-12", "steps=1", "warmup=0")  # saved as they were drawn
    seeds = [commands.run(kinfolk, command, *still, options=("--seed", s)) for s in ("0", "1", "2")]
    files = [run / "checkpoints" / "last" / "model.safetensors" for run in seeds]
    first, *others = map(load_file, files)
    # BERT's position embeddings begin as sinusoids, whatever the seed.
    matrices = [name for name, w in first.items() if w.dim() == 2 and "position" not in name]
    assert len(matrices) >= 8
    for other in others:
        for name in matrices:
            # Independent draws: no more alike than chance allows.
            pair = torch.stack([first[name].flatten(), other[name].flatten()])
            assert abs(torch.corrcoef(pair)[0, 1]) < 0.5, name
