"""Losses that are made NaN or infinite: of the batches that hold chosen rows or tokens."""

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from kinfolk.batch import Batch, Loss
from kinfolk.training.step import TrainStep


def poison(
    patch: pytest.MonkeyPatch, is_bad: Callable[[Tensor], bool], value: float = math.nan
) -> list[int]:
    """Make the loss, its gradients and the memory of bad batches NaN; return the sizes of these."""
    forward, hit = TrainStep.forward, list[int]()

    def poisoned(self: TrainStep, batch: Batch[Any]) -> Loss:
        loss = forward(self, batch)
        if not torch.is_grad_enabled() or not is_bad(batch.inputs.input_ids):  # evaluation
            return loss
        hit.append(len(batch.inputs.input_ids))
        memory = loss.memory
        if memory is not None:
            memory = replace(memory, hidden=memory.hidden * value)
        return Loss(
            {name: total * value for name, total in loss.sums.items()}, loss.weights, memory
        )

    patch.setattr(TrainStep, "forward", poisoned)
    return hit


def has_row(rows: Iterable[Tensor]) -> Callable[[Tensor], bool]:
    """Return a function that finds any of these rows in a batch."""
    known = {tuple(row.tolist()) for row in rows}
    return lambda input_ids: any(tuple(row.tolist()) in known for row in input_ids)


def has_token(token: int) -> Callable[[Tensor], bool]:
    """Return a function that finds a token in a batch."""
    return lambda input_ids: bool((input_ids == token).any())
