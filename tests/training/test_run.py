"""A run of any workload: what its folder holds, what callbacks receive, how it ends and resumes."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import Dataset

from kinfolk.batch import Batch, Inputs, Loss
from kinfolk.errors import UserError
from kinfolk.families.bilstm import BiLSTMConfig
from kinfolk.families.ulmfit import FAMILY as ULMFIT
from kinfolk.training import checkpoint
from kinfolk.training.config import TrainConfig
from kinfolk.training.log import read
from kinfolk.training.loop import Callback, Evaluation, Progress
from kinfolk.training.run import Run
from kinfolk.training.workload import (
    LossFn,
    Workload,
    optimizer_step,
    select_device,
    static_row_length,
)


class Numbers(Dataset[Batch[Any]]):
    """Batch n holds the token n."""

    def __getitem__(self, number: int) -> Batch[Any]:
        inputs = Inputs.from_ids(torch.full((1, 1), number % 8), causal=True)
        return Batch(inputs, inputs.input_ids, {"tokens": 1})


class Square:
    """The objective: every embedding becomes 1."""

    def loss(self, model: Any, batch: Batch[Any]) -> Loss:
        return Loss({"tokens": (model(batch.inputs.input_ids) - 1).square().sum()})


class Toy(Workload):
    """An embedding table without a family, an objective of the package, or a task."""

    command = "toy"
    results = ("report.html", "scores.json")
    objective = Square()
    batches = Numbers()
    has_eval_data = True
    fingerprints: Sequence[tuple[str, str]] = (("data.txt", "hash"),)

    def __init__(self, train: TrainConfig, losses: Mapping[int, float] | None = None) -> None:
        self.train, self.losses = train, losses
        torch.manual_seed(train.seed)
        self.model: Any = nn.Embedding(8, 2)
        self.precisions: list[bool] = []
        self.evaluations = 0

    @classmethod
    def reopen(
        cls, recipe: Any, folder: Path, newest: Path | None, callbacks: Sequence[Callback]
    ) -> "Toy":
        assert (folder / "recipe.json").is_file()
        return cls(recipe)

    def write_recipe(self, folder: Path) -> None:
        (folder / "recipe.json").write_text("{}")

    def evaluate(self, loss: LossFn) -> Mapping[str, Any]:
        assert not self.model.training and not torch.is_grad_enabled()
        self.precisions.append(torch.is_autocast_enabled("cpu"))
        self.evaluations += 1
        value = float(loss(self.batches[0]).sums["tokens"])
        return {"eval_loss": value if self.losses is None else self.losses[self.evaluations]}

    def save_model(self, folder: Path) -> None:
        torch.save(self.model.state_dict(), folder / "model.pt")

    def load_weights(self, folder: Path) -> None:
        self.model.load_state_dict(torch.load(folder / "model.pt"))

    def write_report(self, folder: Path, *, finished: bool) -> None:
        for name in self.results if finished else self.results[:1]:
            (folder / name).write_text(f"{len(read(folder))} lines")


class Events(Callback):
    """Keep what a run tells, and interrupt it at a step."""

    def __init__(self, stop: int = 0) -> None:
        self.stop = stop
        self.events: list[tuple[Any, ...]] = []

    def on_step(self, progress: Progress) -> None:
        self.events.append(("step", progress.step))
        if progress.step == self.stop:
            raise KeyboardInterrupt

    def on_evaluate(self, step: int, evaluation: Evaluation) -> None:
        self.events.append(("evaluate", step, evaluation.is_best))

    def on_save(self, checkpoint: Path) -> None:
        self.events.append(("save", checkpoint.name))

    def on_end(self, step: int, *, interrupted: bool) -> None:
        self.events.append(("end", step, interrupted))


def config(**settings: Any) -> TrainConfig:
    fast = {"steps": 6, "save_every": 4, "eval_every": 2, "warmup": 0, "lr": 0.1, "device": "cpu"}
    return TrainConfig(**fast | settings)  # type: ignore[arg-type]


def test_callbacks_hear_of_everything_in_order(tmp_path: Path) -> None:
    heard = Events()
    out = Run.start(Toy(config()), tmp_path / "run", [heard]).fit()
    assert heard.events == [
        ("step", 1),
        ("evaluate", 2, True),
        ("step", 2),
        ("step", 3),
        ("evaluate", 4, True),
        ("step", 4),
        ("save", "step-00000004"),
        ("step", 5),
        ("evaluate", 6, True),
        ("step", 6),
        ("save", "step-00000006"),
        ("end", 6, False),
    ]
    files = {"recipe.json", "command.json", "log.jsonl", "speed.jsonl", "tensorboard"}
    files |= {"checkpoints"}
    assert {path.name for path in out.iterdir()} == files | set(Toy.results)


def test_an_interrupted_run_has_a_report_and_ends_as_one_that_was_not(tmp_path: Path) -> None:
    whole = Run.start(Toy(config()), tmp_path / "whole").fit()
    heard, out = Events(stop=5), tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        Run.start(Toy(config()), out, [heard]).fit()
    assert heard.events[-2:] == [("save", "step-00000005"), ("end", 5, True)]
    assert (out / "report.html").read_text() == "5 lines"
    assert not (out / "scores.json").exists()
    Run.resume(Toy, config(), out).fit()
    assert (out / "report.html").read_text() == "6 lines"
    assert (out / "log.jsonl").read_bytes() == (whole / "log.jsonl").read_bytes()


def test_a_finished_run_without_its_report_only_gets_one(tmp_path: Path) -> None:
    out = Run.start(Toy(config()), tmp_path / "run").fit()
    with pytest.raises(UserError, match=r"is complete \(6 steps"):
        Run.resume(Toy, config(), out)
    log = (out / "log.jsonl").read_bytes()
    (out / "report.html").unlink()  # killed before it was written
    heard = Events()
    Run.resume(Toy, config(), out, [heard]).fit()
    assert (out / "report.html").is_file() and (out / "log.jsonl").read_bytes() == log
    assert heard.events == [("end", 6, False)]


def test_a_report_of_before_an_interruption_is_no_end(tmp_path: Path) -> None:
    out = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        Run.start(Toy(config()), out, [Events(stop=5)]).fit()

    class Killed(Toy):
        def write_report(self, folder: Path, *, finished: bool) -> None:
            raise SystemExit

    (out / "scores.json").write_text("old")
    with pytest.raises(SystemExit):
        Run.resume(Killed, config(), out).fit()
    Run.resume(Toy, config(), out).fit()
    assert (out / "report.html").read_text() == "6 lines"


@pytest.mark.parametrize("save_best", [False, True])
def test_the_best_is_the_best_of_what_is_saved(tmp_path: Path, save_best: bool) -> None:
    work = Toy(config(), {1: 3.0, 2: float("nan"), 3: 4.0})  # at steps 2, 4 and 6
    work.save_best = save_best
    out = Run.start(work, tmp_path / "run").fit()
    best = checkpoint.checkpoint_step(out / "checkpoints" / "best")
    assert best == (2 if save_best else 6)


def test_a_model_that_has_diverged_is_not_saved(tmp_path: Path) -> None:
    work = Toy(config(save_every=2), {1: 3.0, 2: 4.0, 3: float("nan")})  # at steps 2, 4 and 6
    with pytest.raises(
        UserError, match=r"^eval_loss is NaN at step 6\. Lower train\.lr .* step 4:"
    ):
        Run.start(work, tmp_path / "run").fit()
    assert (tmp_path / "run" / "checkpoints" / "last").readlink().name == "step-00000004"
    work = Toy(config(save_every=2, lr=1e38, schedule="constant", grad_clip=0.0, warmup=0))
    work.has_eval_data = False
    with pytest.raises(UserError, match=r"^loss is (NaN|infinite) at step 2"):
        Run.start(work, tmp_path / "other").fit()
    assert not (tmp_path / "other" / "checkpoints").exists()


def test_without_held_out_data_the_newest_is_the_best(tmp_path: Path) -> None:
    work = Toy(config())
    work.has_eval_data = False
    out = Run.start(work, tmp_path / "run").fit()
    assert checkpoint.checkpoint_step(out / "checkpoints" / "best") == 6


def test_patience_ends_a_run_and_a_resume_knows(tmp_path: Path) -> None:
    work = Toy(config(steps=12), {1: 3.0, 2: 4.0, 3: 5.0})
    work.save_best, work.early_stopping_patience = True, 2
    out = Run.start(work, tmp_path / "run").fit()
    assert [line["step"] for line in read(out)][-1] == 6
    with pytest.raises(UserError, match="is complete"):
        Run.resume(Toy, config(steps=12), out)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_an_evaluation_has_the_precision_of_training(tmp_path: Path, precision: str) -> None:
    work = Toy(config(precision=precision))
    Run.start(work, tmp_path / "run").fit()
    assert work.precisions == [precision == "bfloat16"] * 3


def test_data_that_changed_is_named(tmp_path: Path) -> None:
    out = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        Run.start(Toy(config()), out, [Events(stop=5)]).fit()

    class Changed(Toy):
        fingerprints = (("data.txt", "another hash"),)

    with pytest.raises(UserError, match=r"^data\.txt changed since the run started"):
        Run.resume(Changed, config(), out)


@pytest.mark.parametrize("device", ["meta", "mps", "abacus", ""])
def test_a_device_that_is_none_is_refused(device: str) -> None:
    with pytest.raises(UserError, match="use auto, cpu or cuda"):
        select_device(device)


def test_a_network_whose_shapes_depend_on_the_texts_has_no_static_rows() -> None:
    work = Toy(TrainConfig())
    work.row_length = 8
    assert static_row_length(work) == 8
    work.model = BiLSTMConfig(vocab_size=8, hidden_size=4).build()
    assert static_row_length(work) is None
    work.train = TrainConfig(cuda_graph="yes")
    with pytest.raises(UserError, match="bilstm depend on the texts of a batch"):
        static_row_length(work)


def test_whole_rows_of_an_lstm_language_model_are_replayed_where_they_have_one_length() -> None:
    work, cuda = Toy(TrainConfig()), torch.device("cuda")
    work.row_length, work.model = 8, replace(ULMFIT.config("nano"), vocab_size=8).build()
    assert static_row_length(work) is None  # not compiled
    for setting, length, replayed in (
        ("auto", 8, True),
        ("auto", None, False),  # lengths vary from batch to batch
        ("yes", None, True),
        ("no", 8, False),
    ):
        work.train, work.row_length = TrainConfig(cuda_graph=setting), length
        step = optimizer_step(work, cuda, bfloat16=False)
        assert (step.graphed is not None) == replayed
        assert optimizer_step(work, torch.device("cpu"), bfloat16=False).graphed is None
    # Which lengths are replayed is known before the first step: a resumed run replays the same.
    work.train, work.row_length, work.usual_lengths = TrainConfig(), None, range(5, 9)
    step = optimizer_step(work, cuda, bfloat16=False)
    assert step.graphed is not None and step.graphed.lengths == range(5, 9)


def test_batches_of_a_recurrent_network_come_with_their_texts() -> None:
    work = Toy(TrainConfig(steps=1))
    (plain,) = next(work.micro_batches(0, pinned=False))
    assert plain.inputs.attention_mask.texts is None
    work.model = replace(ULMFIT.config("nano"), vocab_size=8).build()
    (batch,) = next(work.micro_batches(0, pinned=False))
    assert batch.inputs.attention_mask.texts is not None
