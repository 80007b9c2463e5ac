"""Around a replayed forward and backward pass, a step launches few operations."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from kinfolk.batch import Batch, Inputs, Loss
from kinfolk.families import families
from kinfolk.training.config import TrainConfig
from kinfolk.training.optimizer import build_optimizer
from kinfolk.training.step import Learner, TrainStep


class Launches(TorchDispatchMode):
    """Count the operations that the host dispatches."""

    def __init__(self) -> None:
        super().__init__()
        self.names: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names[func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))


class Replayed:
    """Stands for a recorded graph: gradients are there without an operation."""

    def __init__(self, parameters: list[torch.Tensor]) -> None:
        self.parameters, self.loss = parameters, torch.tensor(1.0)
        self.gradients = [torch.ones_like(p) for p in parameters]

    def accepts(self, batch: Batch[Any]) -> bool:
        return True

    def __call__(self, batch: Batch[Any], counts: Mapping[str, int], *, alone: bool) -> Loss:
        for parameter, gradient in zip(self.parameters, self.gradients, strict=True):
            parameter.grad = gradient
        return Loss({"label": self.loss})


def launches(num_layers: int, layer_lr_decay: float) -> Counter[str]:
    c = replace(families()["bert"].config("nano"), vocab_size=40, num_layers=num_layers)
    model = c.build()
    step: Any = TrainStep(
        Learner(model, None),  # type: ignore[arg-type]
        build_optimizer(model, TrainConfig(), layer_lr_decay=layer_lr_decay),
        lambda number: 1e-3,
        clip=1.0,
        seed=0,
        device=torch.device("cpu"),
        bfloat16=False,
        checks=lambda number: False,  # as on CUDA, except in steps that are saved
    )
    step.graphed = Replayed(step.parameters)
    ids = torch.from_numpy(np.ones((2, 4), np.int64))
    batch = Batch(Inputs.from_ids(ids, causal=False), None, {"label": 2})
    step(0, [batch])  # makes the moments
    with Launches() as counter:
        step(1, [batch])
    return counter.names


@pytest.mark.parametrize("layer_lr_decay", [1.0, 0.8])
def test_clipping_and_updates_take_few_launches_whatever_the_number_of_parameters(
    layer_lr_decay: float,
) -> None:
    few, many = (launches(layers, layer_lr_decay) for layers in (2, 12))
    groups = 2 if layer_lr_decay == 1 else 2 * 14  # with and without weight decay, of each layer
    assert many["_fused_adamw_"] + many["_fused_adamw"] <= groups
    # The step counters of fused AdamW are tensors, which one operation raises for a group.
    assert many.total() - few.total() <= 2 * (many["_fused_adamw_"] - few["_fused_adamw_"])
    assert few.total() < 40 + 2 * few["_fused_adamw_"]
