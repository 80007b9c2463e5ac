"""`kinfolk pretrain` with the defaults of CUDA: bfloat16, a compiled and replayed step."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from kinfolk.batch import Batch
from kinfolk.training.capture import CapturedGraph, GraphedForwardBackward
from kinfolk.training.loop import Progress
from kinfolk.workflows.pretrain import pretrain
from kinfolk.workflows.recipe import recipe
from support.runs import Home, Kinfolk, OnStep

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of torch's own, while it compiles
    pytest.mark.filterwarnings("ignore:TensorFloat32"),
]

STEPS, STOP = 40, 20
LENGTH = 128  # a whole block of the block-sparse mask
SETTINGS = ("train.warmup=4", "train.save_every=10", "train.eval_every=10")
NEAR = 0.02  # how far losses in bfloat16 may lie from those in float32, relative


def stop(progress: Progress) -> None:
    """Interrupt a run as Ctrl-C does."""
    if progress.step >= STOP:
        raise KeyboardInterrupt


def logged(run: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (run / "log.jsonl").read_text("utf-8").splitlines()]
    assert [line["step"] for line in lines] == list(range(1, STEPS + 1))
    return lines


def losses(run: Path) -> list[float]:
    """Return the loss of every step, and the held-out losses."""
    lines = logged(run)
    held_out = [line["eval_loss"] for line in lines if "eval_loss" in line]
    assert len(held_out) == STEPS // 10
    return [line["loss"] for line in lines] + held_out


def test_a_run_by_the_defaults_is_interrupted_resumed_and_near_the_cpu(
    home: Home, kinfolk: Kinfolk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded: list[object] = []
    record = GraphedForwardBackward.record

    def watched(self: GraphedForwardBackward, batch: Batch[Any]) -> CapturedGraph:
        recorded.append(batch)
        return record(self, batch)

    monkeypatch.setattr(GraphedForwardBackward, "record", watched)
    asked = ("pretrain", "gpt2/nano", "--corpus", home.corpus, "--length", LENGTH)
    asked = (*asked, "--batch", 4, "--steps", STEPS, *SETTINGS)
    for name, device in (("whole", ()), ("cpu", ("--device", "cpu"))):
        said = kinfolk(*asked, "-o", tmp_path / name, *device)
        assert said.code == 0, said.err
        assert len(recorded) == 1, "on CUDA, and there once"
    numbers = (f"train.steps={STEPS}", "train.batch_size=4")
    same = recipe("gpt2/nano", home.corpus, length=LENGTH, settings=[*SETTINGS, *numbers])
    with pytest.raises(KeyboardInterrupt):
        pretrain(same, tmp_path / "parts", callbacks=[OnStep(stop)])
    assert 0 < len((tmp_path / "parts" / "log.jsonl").read_text("utf-8").splitlines()) < STEPS
    said = kinfolk("pretrain", "--resume", tmp_path / "parts")
    assert said.code == 0, said.err

    whole, parts, cpu = (losses(tmp_path / name) for name in ("whole", "parts", "cpu"))
    assert whole == pytest.approx(cpu, rel=NEAR)
    assert parts == pytest.approx(whole, rel=NEAR)
    assert whole[STEPS - 1] < 0.95 * whole[0]  # and it learns
    # bfloat16 has three digits: equal losses would mean that the run was in float32.
    apart = [abs(a - b) / b for a, b in zip(whole, cpu, strict=True)]
    assert max(apart) > 1e-5
