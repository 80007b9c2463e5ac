"""Fine-tuning with the defaults of CUDA: dev rows are scored in bfloat16, also by generation."""

from pathlib import Path

import pytest
import torch

from kinfolk.training.log import read
from support.learnable import classify, objects, table, task_dataset, tune, write

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
