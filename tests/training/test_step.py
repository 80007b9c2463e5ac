"""The step: one update, whole or in parts, at the rate and with the chance of its number."""

import math
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from kinfolk.attention_mask import AttentionMask
from kinfolk.batch import Batch, Inputs, Loss, TokenTargets
from kinfolk.rng import derive_seed
from kinfolk.training.step import Learner, TrainStep


class Line(nn.Module):
    """y = w x, with dropout where asked."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([1.0, 2.0], dtype=torch.float64))
        self.frozen = nn.Parameter(torch.tensor(5.0), requires_grad=False)
        self.dropout = nn.Dropout(dropout)

    def forward(self, inputs: Inputs) -> Tensor:
        return self.dropout(inputs.input_ids.double()) @ self.weight


class Apart:
    """Two parts that are summed over different counts, the second weighing three times."""

    def loss(self, model: Any, batch: Batch[Any], /) -> Loss:
        said = model(batch.inputs)
        parts = {"tokens": ((said - batch.targets.labels) ** 2).sum(), "pairs": said.sum()}
        return Loss(parts, {"pairs": 3.0})


def batch(*rows: tuple[int, int, int], pairs: int = 1) -> Batch[TokenTargets]:
    """Make a batch of (x0, x1, y) rows."""
    ids = torch.tensor([row[:2] for row in rows])
    inputs = Inputs(
        input_ids=ids,
        attention_mask=AttentionMask.bidirectional(torch.zeros_like(ids)),
        position_ids=ids,
    )
    labels = TokenTargets(torch.tensor([row[2] for row in rows]).double())
    return Batch(inputs, labels, {"tokens": len(rows), "pairs": pairs})


def stepper(model: nn.Module, *, clip: float = 0.0, seed: int = 0, rate: Any = None) -> TrainStep:
    return TrainStep(
        Learner(model, Apart()),
        torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=99.0),
        rate or (lambda number: 0.01),
        clip=clip,
        seed=seed,
        device=torch.device("cpu"),
        bfloat16=False,
    )


ROWS = [(1, 2, 3), (2, 0, 1), (3, 1, 0), (0, 4, 2), (5, 5, 5)]


def by_hand() -> tuple[float, Tensor]:
    """The loss of all rows in one batch of three pairs, and its gradient."""
    x = torch.tensor([row[:2] for row in ROWS]).double()
    y = torch.tensor([row[2] for row in ROWS]).double()
    said = x @ torch.tensor([1.0, 2.0]).double()
    loss = ((said - y) ** 2).mean() + 3 * said.sum() / 3
    gradient = (2 * (said - y)[:, None] * x).mean(0) + 3 * x.sum(0) / 3
    return loss.item(), gradient


def test_a_step_goes_down_the_gradient_of_the_mean() -> None:
    model = Line()
    outcome = stepper(model)(0, [batch(*ROWS, pairs=3)])
    loss, gradient = by_hand()
    assert outcome.loss.item() == pytest.approx(loss, rel=1e-6)
    assert outcome.grad_norm.item() == pytest.approx(gradient.norm().item(), rel=1e-12)
    moved = torch.tensor([1.0, 2.0]).double() - 0.01 * gradient
    torch.testing.assert_close(model.weight.detach(), moved)
    assert outcome.counts == {"tokens": 5, "pairs": 3}
    assert model.weight.grad is None, "gradients are not carried to the next step"


@pytest.mark.parametrize("cuts", [(1,), (2,), (1, 2, 3, 4), (3, 3)])
def test_parts_of_any_size_are_the_same_step(cuts: tuple[int, ...]) -> None:
    """Micro-batches of unequal sizes and pairs: means of means would not do."""
    bounds = [0, *cuts, len(ROWS)]
    parts = [ROWS[a:b] for a, b in pairwise(bounds)]
    pairs = [3] + [0] * (len(parts) - 1)  # all pairs in one of them
    whole, parted = Line(), Line()
    expected = stepper(whole)(0, [batch(*ROWS, pairs=3)])
    found = stepper(parted)(
        0, [batch(*p, pairs=n) if p else empty(n) for p, n in zip(parts, pairs, strict=True)]
    )
    torch.testing.assert_close(parted.weight, whole.weight, rtol=1e-12, atol=0)
    assert found.counts == expected.counts
    assert found.loss.item() == pytest.approx(expected.loss.item(), rel=1e-6)
    for name, part in expected.losses.items():
        assert found.losses[name].item() == pytest.approx(part.item(), rel=1e-12)


def empty(pairs: int) -> Batch[TokenTargets]:
    ids = torch.zeros(0, 2, dtype=torch.long)
    inputs = Inputs(
        input_ids=ids, attention_mask=AttentionMask.bidirectional(ids), position_ids=ids
    )
    return Batch(inputs, TokenTargets(torch.zeros(0).double()), {"tokens": 0, "pairs": pairs})


def test_the_rate_is_that_of_the_steps_number() -> None:
    asked: list[int] = []
    model = Line()
    step = stepper(model, rate=lambda number: asked.append(number) or 0.0)
    outcome = step(17, [batch(*ROWS)])
    assert asked == [17] and outcome.lr == 0.0
    assert model.weight.tolist() == [1.0, 2.0]


def test_the_gradient_is_clipped_and_its_norm_told_as_it_was() -> None:
    _, gradient = by_hand()
    model = Line()
    outcome = stepper(model, clip=1.0)(0, [batch(*ROWS, pairs=3)])
    assert outcome.grad_norm.item() == pytest.approx(gradient.norm().item(), rel=1e-6)
    moved = model.weight.detach() - torch.tensor([1.0, 2.0]).double()
    assert moved.norm().item() == pytest.approx(0.01, rel=1e-4)
    torch.testing.assert_close(moved / moved.norm(), -gradient / gradient.norm())


def test_dropout_is_a_function_of_seed_number_and_part() -> None:
    def after(seed: int, number: int, disturbed: bool = False) -> list[float]:
        model = Line(dropout=0.5)
        if disturbed:
            torch.rand(3)
        stepper(model, seed=seed)(number, [batch(*ROWS), batch(*ROWS)])
        return list(model.weight.tolist())

    assert after(0, 0) == after(0, 0, disturbed=True)
    assert after(0, 0) != after(1, 0)
    assert after(0, 0) != after(0, 1)
    seen: list[list[float]] = []
    model = Line(dropout=0.5)
    model.dropout.register_forward_hook(lambda _, __, out: seen.append(out.tolist()))
    stepper(model)(0, [batch(*ROWS), batch(*ROWS)])
    assert seen[0] != seen[1], "micro-batches drop the same units"


def test_what_is_frozen_stays() -> None:
    model = Line()
    step = stepper(model)
    assert [p is model.weight for p in step.parameters] == [True]
    step(0, [batch(*ROWS)])
    assert model.frozen.item() == 5.0


def test_values_name_the_parts_where_there_are_several() -> None:
    values = stepper(Line())(3, [batch(*ROWS, pairs=3)]).to_numbers()
    assert values["loss"] == pytest.approx(
        values["losses"]["tokens"] + 3 * values["losses"]["pairs"], rel=1e-6
    )
    assert values["lr"] == 0.01 and math.isfinite(values["grad_norm"])
    assert values["counts"] == {"tokens": 5, "pairs": 3}


def test_mixed_seeds_are_known_and_never_the_same() -> None:
    assert derive_seed(0) == 0xE220A8397B1DCDAF  # the first number of SplitMix64 from 0
    seeds = {derive_seed(a, b, c) for a in range(8) for b in range(30) for c in range(4)}
    assert len(seeds) == 8 * 30 * 4 and all(0 <= s < 2**64 for s in seeds)
    assert derive_seed(1, 2) != derive_seed(2, 1)
