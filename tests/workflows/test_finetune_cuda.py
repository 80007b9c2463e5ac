"""Fine-tuning with the defaults of CUDA: dev rows are scored in bfloat16, also by generation."""

from pathlib import Path
from typing import Any

import pytest
import torch

from kinfolk.batch import Batch
from kinfolk.tasks.static_shapes import MAX_SHAPES
from kinfolk.training.capture import CapturedGraph, GraphedForwardBackward
from kinfolk.training.log import read
from support.learnable import classify, objects, squad, table, tag, task_dataset, tune, write

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of torch's own, while it compiles
    pytest.mark.filterwarnings("ignore:TensorFloat32"),
]


@pytest.mark.parametrize("name", ["t5", "gpt2", "bert"])
def test_dev_scores_are_near_those_of_the_cpu(name: str, tmp_path: Path) -> None:
    file = table(tmp_path / "train", classify, 64) if name == "bert" else None
    data = task_dataset(file or objects(tmp_path / "train", write, 64))
    settings = ("train.batch_size=8", "train.lr=1e-3")
    runs = [
        tune(  # without dropout, whose random numbers differ between devices
            f"{name}/nano",
            data,
            tmp_path / device,
            *settings,
            f"train.device={device}",
            epochs=3,
            dropout=0.0,
        )
        for device in ("cuda", "cpu")
    ]
    cuda, cpu = ([line for line in read(run) if "eval_loss" in line] for run in runs)
    assert len(cuda) == len(cpu) == 3 and cuda[0].keys() == cpu[0].keys()
    for one, other in zip(cuda, cpu, strict=True):
        assert one["eval_loss"] == pytest.approx(other["eval_loss"], rel=0.03)
    assert any(a["eval_loss"] != b["eval_loss"] for a, b in zip(cuda, cpu, strict=True))


REPLAYED = {
    "bert-classify": ("bert/nano", {}),
    "bert-tag": ("bert/nano", {}),
    "bert-squad": ("bert/nano", {"length": 32}),
    "gpt2-transformed": ("gpt2/nano", {"formulation": "transformed"}),
    "t5-text": ("t5/nano", {}),
}


def rows(name: str, folder: Path) -> Path:
    """Write 160 rows of the task of a case."""
    if name == "bert-squad":
        return squad(folder / "train.json", 160)
    if name == "bert-tag":
        return objects(folder / "train", tag, 160)
    return (
        objects(folder / "train", write, 160)
        if name == "t5-text"
        else table(folder / "train", classify, 160)
    )


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> list[torch.Size]:
    """Collect the shape of every batch for which a graph is recorded."""
    found: list[torch.Size] = []
    record = GraphedForwardBackward.record

    def watched(self: GraphedForwardBackward, batch: Batch[Any]) -> CapturedGraph:
        found.append(batch.inputs.input_ids.shape)
        return record(self, batch)

    monkeypatch.setattr(GraphedForwardBackward, "record", watched)
    return found


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", REPLAYED)
def test_replayed_losses_are_those_of_eager_steps(
    name: str, precision: str, tmp_path: Path, recorded: list[torch.Size]
) -> None:
    network, more = REPLAYED[name]
    data, losses = task_dataset(rows(name, tmp_path)), []
    settings = ("train.device=cuda", f"train.precision={precision}", "train.batch_size=8")
    for graph in ("no", "yes"):
        run = tune(
            network,
            data,
            tmp_path / graph,
            *settings,
            f"train.cuda_graph={graph}",
            epochs=2,
            dropout=0.0,
            **more,
        )
        losses.append([line["loss"] for line in read(run)])
        assert bool(recorded) == (graph == "yes")
    assert len(recorded) <= MAX_SHAPES and len(losses[0]) == len(losses[1]) > 20
    # Rounding differs between shapes, and grows from step to step.
    tolerance = 2e-3 if precision == "float32" else 0.03
    assert losses[1][:12] == pytest.approx(losses[0][:12], rel=tolerance)


def test_runs_of_a_hundred_steps_are_replayed_and_shorter_ones_are_not(
    tmp_path: Path, recorded: list[torch.Size]
) -> None:
    data = task_dataset(table(tmp_path / "train", classify, 160))
    settings = ("train.device=cuda", "train.batch_size=8")
    for steps in (20, 120):
        tune(
            "bert/nano",
            data,
            tmp_path / str(steps),
            *settings,
            f"train.steps={steps}",
            epochs=None,
        )
        assert bool(recorded) == (steps == 120)
    assert len(recorded) <= MAX_SHAPES


def test_graphs_of_all_shapes_write_the_same_gradients(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory does not grow with the number of shapes, also with several micro-batches in a step."""
    kept: list[GraphedForwardBackward] = []
    original = GraphedForwardBackward.__init__

    def watched(self: GraphedForwardBackward, *given: Any, **more: Any) -> None:
        original(self, *given, **more)
        kept.append(self)

    monkeypatch.setattr(GraphedForwardBackward, "__init__", watched)
    data = task_dataset(table(tmp_path / "train", classify, 160))
    settings = ("train.batch_size=16", "train.gradient_accumulation=2", "train.cuda_graph=yes")
    tune("bert/nano", data, tmp_path / "run", "train.device=cuda", *settings, epochs=2)
    (graphed,) = kept
    assert len(graphed.graphs) > 1
    addresses = {
        tuple(g.data_ptr() for g in one.gradients if g is not None)
        for one in graphed.graphs.values()
    }
    assert len(addresses) == 1
