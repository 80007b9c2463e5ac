"""A network that ends where its states are read solves a task as one that computes all of them."""

from typing import Any

import pytest
import torch
from torch import Tensor

from kinfolk.tasks.formulations.base import Formulation
from kinfolk.tasks.formulations.scoring import Cloze
from support.task_rows import cases, config, rows, solving, tokenizer

SKIPPING = [
    case
    for case in cases("head", "transformed", "bare", "text", "cloze")
    if config(case[0]).network.skips_unread
]


@pytest.mark.parametrize(
    ("name", "kind", "formulation"), SKIPPING, ids=[f"{n}-{k}-{f.__name__}" for n, k, f in SKIPPING]
)
def test_what_is_not_read_changes_neither_loss_nor_gradients(
    name: str, kind: str, formulation: type[Formulation]
) -> None:
    made, model = solving(name, kind, formulation)
    model.double()
    some = rows(kind)
    if isinstance(made, Cloze):  # it needs options
        some = [row for row in some if getattr(row, "options", ()) is not None]
    batch = made.make_batch([i for row in some for i in made.instances(row, tokenizer())])

    def gradients(skips: bool) -> tuple[float, dict[str, Tensor | None]]:
        model.skips_unread = skips
        mean = made.loss(model, batch).mean(batch.counts)
        parameters: dict[str, Any] = dict(model.named_parameters())
        found = torch.autograd.grad(mean, [*parameters.values()], allow_unused=True)
        return mean.item(), dict(zip(parameters, found, strict=True))

    assert model.skips_unread, "the head hides what its network can do"
    (loss, some_of_them), (expected, all_of_them) = gradients(True), gradients(False)
    assert loss == pytest.approx(expected, rel=1e-5)  # scores are in float32
    for parameter, gradient in all_of_them.items():
        found = some_of_them[parameter]
        assert (found is None) == (gradient is None), parameter
        if found is not None and gradient is not None:
            torch.testing.assert_close(found, gradient, rtol=1e-4, atol=1e-6, msg=parameter)
