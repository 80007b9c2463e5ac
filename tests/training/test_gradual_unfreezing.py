"""Gradual unfreezing: who learns when, and that what is frozen does not move."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from kinfolk.attention_mask import AttentionMask
from kinfolk.batch import Batch, Inputs, Loss, TokenTargets
from kinfolk.errors import UserError
from kinfolk.nn.language_model import LayerStack
from kinfolk.training.config import TrainConfig
from kinfolk.training.optimizer import build_optimizer
from kinfolk.training.regularize import GradualUnfreezing
from kinfolk.training.step import Learner, TrainStep


class Stack(nn.Module):
    """A table, two blocks and a head; a part of the lower block never learns."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.token_embeddings = nn.Embedding(9, 4)
        self.layers = LayerStack(nn.Linear(4, 4) for _ in range(2))
        self.layers[0].bias.requires_grad_(False)
        self.head = nn.Linear(4, 1)

    def forward(self, inputs: Inputs) -> Tensor:
        x = self.token_embeddings(inputs.input_ids)
        for block in self.layers:
            x = torch.tanh(block(x))
        return self.head(x)[..., 0]  # type: ignore[no-any-return]


class Square:
    def loss(self, model: Any, batch: Batch[Any], /) -> Loss:
        return Loss({"tokens": (model(batch.inputs) - batch.targets.labels).square().sum()})


ORDER = ["head", "layers.1", "layers.0", "token_embeddings"]  # from the top down


def batch(seed: int) -> Batch[TokenTargets]:
    ids = torch.randint(9, (2, 5), generator=torch.Generator().manual_seed(seed))
    inputs = Inputs(
        input_ids=ids,
        attention_mask=AttentionMask.bidirectional(torch.zeros_like(ids)),
        position_ids=ids,
    )
    return Batch(inputs, TokenTargets(ids.float()), {"tokens": ids.numel()})


def stepper(model: nn.Module, every: int) -> TrainStep:
    train = TrainConfig(lr=0.01, weight_decay=0.1, betas=(0.9, 0.99))
    built = build_optimizer(model, train)
    return TrainStep(
        Learner(model, Square()),
        built,
        lambda number: 0.01,
        clip=1.0,
        seed=0,
        device=torch.device("cpu"),
        bfloat16=False,
        unfreezing=GradualUnfreezing(model, every),
    )


def part(name: str) -> str:
    return name.rpartition(".")[0]


@pytest.mark.parametrize("every", [1, 3])
def test_one_more_layer_learns_every_so_many_updates(every: int) -> None:
    model = Stack()
    thaw = GradualUnfreezing(model, every)
    for number in range(5 * every):
        thaw(number)
        learning = {part(name) for name, p in model.named_parameters() if p.requires_grad}
        assert learning == set(ORDER[: 1 + number // every])
        assert not model.layers[0].bias.requires_grad, "what never learned is not thawed"


def test_what_is_frozen_neither_learns_nor_decays() -> None:
    model = Stack()
    step = stepper(model, every=2)
    for number in range(8):
        before = {name: p.detach().clone() for name, p in model.named_parameters()}
        step(number, [batch(number)])
        moved = {part(n) for n, p in model.named_parameters() if not torch.equal(p, before[n])}
        assert moved == set(ORDER[: 1 + number // 2])


def test_it_is_a_function_of_the_number_alone() -> None:
    """A run that is taken up again goes on to the bit."""
    whole, first, second = Stack(), Stack(), Stack()
    through, begun, resumed = (stepper(model, every=2) for model in (whole, first, second))
    for number in range(8):
        through(number, [batch(number)])
    for number in range(3):
        begun(number, [batch(number)])
    second.load_state_dict(first.state_dict())
    resumed.optimizer.load_state_dict(begun.optimizer.state_dict())
    for number in range(3, 8):
        resumed(number, [batch(number)])
    for a, b in zip(whole.parameters(), second.parameters(), strict=True):
        assert torch.equal(a, b)


def test_layers_with_nothing_to_learn_take_no_turn() -> None:
    model = Stack()
    model.head.requires_grad_(False)
    thaw = GradualUnfreezing(model, 1)
    thaw(0)
    assert {part(n) for n, p in model.named_parameters() if p.requires_grad} == {"layers.1"}


def test_thawing_every_no_steps_is_a_sentence() -> None:
    with pytest.raises(UserError, match="the steps between unfrozen layers must be at least 1"):
        GradualUnfreezing(Stack(), 0)
