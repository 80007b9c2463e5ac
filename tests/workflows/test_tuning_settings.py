"""Fine-tuning does what the settings of its training say."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from kinfolk.errors import UserError
from kinfolk.training import checkpoint
from kinfolk.training.config import TrainConfig
from kinfolk.training.log import read
from kinfolk.workflows.finetuning.finetune import FineTuneWorkload
from kinfolk.workflows.finetuning.recipe import FineTuneRecipe
from kinfolk.workflows.load import load
from support.learnable import dev, opinions, tune
from workflows.test_tuning_runs import ends_alike, stopped

BATCH = "train.batch_size=8"


def saved(run: Path) -> list[int]:
    """Return the steps of a run's checkpoints."""
    return sorted(checkpoint.checkpoint_step(f) for f in (run / "checkpoints").glob("step-*"))


def test_checkpoints_are_saved_as_often_as_is_said(tmp_path: Path) -> None:
    found, settings = (
        opinions(tmp_path, 64, 24),
        (BATCH, "train.save_every=3", "train.keep_checkpoints=99"),
    )
    run = tune("bert/nano", found, tmp_path / "run", *settings, epochs=2)
    assert FineTuneRecipe.read(run / "recipe.json").train.save_every == 3
    assert {3, 6, 9, 12, 15, 16} <= set(saved(run))
    ends_alike(run, stopped(found, tmp_path / "parts", 10, *settings, epochs=2))


def test_the_best_is_saved_however_seldom_others_are(tmp_path: Path) -> None:
    found = opinions(tmp_path, 64, 24)
    settings = (BATCH, "train.save_every=9999", "train.eval_every=2", "train.lr=2e-3")
    run = tune("bert/nano", found, tmp_path / "run", *settings, epochs=2)
    scored = {line["step"]: line for line in read(run) if "eval_loss" in line}
    assert list(scored) == [*range(2, 17, 2)]
    best = max(scored, key=lambda step: (scored[step]["accuracy"], -scored[step]["eval_loss"]))
    assert checkpoint.checkpoint_step(run / "checkpoints" / "best") == best
    assert dev(run)["accuracy"] == scored[best]["accuracy"]


def test_the_dev_loss_is_taken_on_as_many_batches_as_is_said(tmp_path: Path) -> None:
    found = opinions(tmp_path, 64, 24)
    runs = [
        tune("bert/nano", found, tmp_path / f"run{count}", BATCH, *settings, epochs=1)
        for count, settings in ((64, ()), (1, ["train.eval_batches=1"]))
    ]
    default, one = (read(run)[-1] for run in runs)
    assert FineTuneRecipe.read(runs[0] / "recipe.json").train.eval_batches == 64
    assert default["loss"] == one["loss"] and default["eval_loss"] != one["eval_loss"]


@pytest.mark.slow
def test_a_layer_thaws_an_epoch_however_often_dev_rows_are_asked(tmp_path: Path) -> None:
    found = opinions(tmp_path, 64, 24)
    settings = [(), ("train.eval_every=2",)]
    logs = [
        read(
            tune(
                "bert/nano",
                found,
                tmp_path / f"run{n}",
                BATCH,
                *some,
                gradual_unfreezing=True,
            )
        )
        for n, some in enumerate(settings)
    ]
    losses = [[line["loss"] for line in log] for log in logs]
    assert losses[0] == losses[1]


def test_a_recorded_step_cannot_be_changed(tmp_path: Path) -> None:
    for name, value in (("gradual_unfreezing", True), ("adversarial_epsilon", 0.5)):
        with pytest.raises(UserError, match=r"train\.cuda_graph=yes: .* at auto"):
            tune(
                *("bert/nano", opinions(tmp_path, 32, 8), tmp_path / "run", "train.cuda_graph=yes"),
                **{name: value},
            )
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("compile", "cuda", "row_length", "compiles"),
    [
        ("auto", True, 128, True),  # pretraining
        ("auto", True, None, False),  # fine-tuning
        ("auto", False, 128, False),
        ("yes", True, None, True),
        ("yes", False, None, True),
        ("no", True, 128, False),
    ],
)
def test_auto_compiles_in_pretraining_on_cuda_alone(
    compile: Any, cuda: bool, row_length: int | None, compiles: bool
) -> None:
    train = TrainConfig(compile=compile)
    assert train.compiles(cuda=cuda, row_length=row_length) == compiles


def test_a_network_whose_shapes_depend_on_the_texts_is_not_replayed(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"train\.cuda_graph=yes: shapes .* depend on .* at auto"):
        tune("ulmfit/nano", opinions(tmp_path, 32, 8), tmp_path / "run", "train.cuda_graph=yes")


@pytest.mark.parametrize(
    ("setting", "steps", "positions", "replays"),
    [
        ("auto", 400, 2000, True),
        ("auto", 99, 2000, False),  # recording would take longer
        ("auto", 400, 30_000, False),  # limited by the device
        ("yes", 10, 30_000, True),
        ("no", 400, 2000, False),
    ],
)
def test_auto_replays_runs_of_some_length_with_small_batches(
    setting: Any, steps: int, positions: int, replays: bool
) -> None:
    train = TrainConfig(cuda_graph=setting, steps=steps)
    assert train.replays_static(110_000_000, positions) == replays  # BERT base


def test_on_a_cpu_batches_are_packed_as_closely_as_possible(tmp_path: Path) -> None:
    recipe = opinions(tmp_path, 64, 8)
    run = tune("bert/nano", recipe, tmp_path / "run", BATCH, "train.steps=120", epochs=None)
    work = FineTuneWorkload.reopen(FineTuneRecipe.read(run / "recipe.json"), run, None, ())
    assert work.train.steps == 120 and work.static_batches is None
    assert work.batches.formulation is work.objective


def test_the_dropout_rate_reaches_backbone_and_head(tmp_path: Path) -> None:
    data = opinions(tmp_path, 32, 8)
    run = tune("bert/nano", data, tmp_path / "run", BATCH, epochs=1, dropout=0.25)
    model: Any = load(run)[0]
    assert (model.config.backbone.dropout, model.config.backbone.attention_dropout) == (0.25, 0.25)
    assert model.head.dropout.p == 0.25


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's own, while it compiles
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("member", ["bert", "gpt2", "t5"])
@pytest.mark.parametrize("compile", ["auto", "yes"])
def test_a_step_is_compiled_on_cuda_only_where_asked_for(
    member: str, compile: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled: list[object] = []
    original = torch.nn.Module.compile

    def watched(module: torch.nn.Module, **settings: object) -> None:
        compiled.append(settings)
        original(module, **settings)

    monkeypatch.setattr(torch.nn.Module, "compile", watched)
    settings = ("train.device=cuda", BATCH, "train.lr=2e-3", f"train.compile={compile}")
    graph = f"train.cuda_graph={'yes' if compile == 'yes' else 'auto'}"
    run = tune(f"{member}/nano", opinions(tmp_path), tmp_path / "run", *settings, graph, epochs=4)
    assert compiled == ([{"dynamic": True}] if compile == "yes" else [])
    assert json.loads((run / "scores.json").read_text("utf-8"))["dev"]["accuracy"] > 0.8


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's own, while it compiles
@pytest.mark.filterwarnings("ignore:TensorFloat32")  # float32 is meant to be exact here
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("member", ["bert", "gpt2", "t5"])
def test_compiled_and_replayed_steps_have_the_losses_of_eager_ones(
    member: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Compiled kernels draw other numbers, and a head has dropout whatever the network has.
    monkeypatch.setattr(torch.nn.Dropout, "forward", lambda module, values: values)
    torch._dynamo.reset()  # past eight graphs of one function, torch runs it untraced
    found, losses = opinions(tmp_path, 64, 16), {}
    for name in ("compile=no", "compile=yes", "cuda_graph=yes"):
        settings = ["train.device=cuda", BATCH, "train.precision=float32", "train.compile=yes"]
        run = tune(f"{member}/nano", found, tmp_path / name, *settings, f"train.{name}", epochs=1)
        losses[name] = [line["loss"] for line in read(run)]
    eager = losses["compile=no"]
    assert len(eager) == 8
    assert losses["compile=yes"] == pytest.approx(eager, rel=1e-3)
    assert losses["cuda_graph=yes"] == pytest.approx(eager, rel=1e-3)
