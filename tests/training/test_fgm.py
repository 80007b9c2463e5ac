"""FGM: the table moves along the gradient of its own micro-batch, and comes back to the bit."""

import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from kinfolk.attention_mask import AttentionMask
from kinfolk.batch import Batch, Inputs, Loss, SegmentMemory, TokenTargets
from kinfolk.nn.embeddings import AdaptiveEmbedding
from kinfolk.nn.language_model import LanguageModel
from kinfolk.training.regularize import FGM, embedding_weights
from kinfolk.training.step import Learner, TrainStep


class Reader(LanguageModel):
    """A table, dropout and a bent sum; it writes down the table of each pass."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.token_embeddings: nn.Embedding = nn.Embedding(9, 4, dtype=torch.float64)
        self.dropout = nn.Dropout(dropout)
        self.out = nn.Linear(4, 1, dtype=torch.float64)
        self.passes: list[Tensor] = []
        self.read: list[SegmentMemory | None] = []

    def forward(self, inputs: Inputs) -> Tensor:
        self.passes.append(self.token_embeddings.weight.detach().clone())
        self.read.append(inputs.memory)
        return torch.tanh(self.out(self.dropout(self.token_embeddings(inputs.input_ids))))[..., 0]


class Square:
    def loss(self, model: Any, batch: Batch[Any], /) -> Loss:
        wrong = (model(batch.inputs) - batch.targets.labels).square().sum()
        memory = batch.inputs.memory
        if memory is not None:
            memory = SegmentMemory(memory.hidden + 1, memory.document_ids, memory.key_order)
        return Loss({"tokens": wrong}, memory=memory)


def batch(seed: int, rows: int = 2) -> Batch[TokenTargets]:
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(8, (rows, 5), generator=generator)  # 8, the last, is never read
    wants = torch.randn(ids.shape, generator=generator, dtype=torch.float64)
    inputs = Inputs(
        input_ids=ids,
        attention_mask=AttentionMask.bidirectional(torch.zeros_like(ids)),
        position_ids=ids,
    )
    return Batch(inputs, TokenTargets(wants), {"tokens": ids.numel()})


class Still(torch.optim.SGD):
    """An optimiser that keeps the gradients it was given and moves nothing."""

    def step(self, closure: Any = None) -> Any:
        self.given = [p.grad.clone() for g in self.param_groups for p in g["params"]]


def stepper(model: nn.Module, attack: FGM | None, **settings: Any) -> TrainStep:
    return TrainStep(
        Learner(model, Square()),
        Still(model.parameters(), lr=0.1),
        lambda number: 0.1,
        clip=0.0,
        seed=0,
        device=torch.device("cpu"),
        bfloat16=False,
        attack=attack,
        **settings,
    )


def gradient(model: Reader, some: Batch[Any], counts: int) -> list[Tensor]:
    """Return the gradient of one micro-batch by itself."""
    loss = Square().loss(model, some).mean({"tokens": counts})
    return list(torch.autograd.grad(loss, list(model.parameters())))


def test_gradients_are_those_of_the_text_and_of_the_text_attacked() -> None:
    """Two micro-batches of different sizes: each is attacked along its own gradient alone."""
    model, epsilon, parts = Reader(), 0.3, [batch(1), batch(2, rows=3)]
    step = stepper(model, FGM(model, epsilon))
    step(0, parts)

    expected = [torch.zeros_like(p) for p in model.parameters()]
    for some in parts:
        clean = gradient(model, some, 25)
        twin = copy.deepcopy(model)
        twin.token_embeddings.weight.data += epsilon * clean[0] / clean[0].norm()
        for total, one, two in zip(expected, clean, gradient(twin, some, 25), strict=True):
            total += one + two
    for found, total in zip(step.optimizer.given, expected, strict=True):  # type: ignore[attr-defined]
        torch.testing.assert_close(found, total, rtol=1e-12, atol=1e-14)


def test_the_table_moves_by_epsilon_and_comes_back_to_the_bit() -> None:
    model = Reader()
    before = model.token_embeddings.weight.detach().clone()
    stepper(model, FGM(model, 0.3))(0, [batch(1), batch(2)])
    assert torch.equal(model.token_embeddings.weight, before)
    clean, moved, again, other = model.passes
    assert torch.equal(clean, before) and torch.equal(again, before)
    for table in (moved, other):
        assert (table - before).norm().item() == pytest.approx(0.3, rel=1e-12)
        assert torch.equal(table[8], before[8]), "a word that is not read is not moved"


def test_an_attack_raises_the_loss_and_the_loss_told_is_the_clean_one() -> None:
    model, losses = Reader(), []
    model.register_forward_hook(lambda _, __, out: losses.append(out.detach().clone()))
    plain = stepper(model, None)(0, [batch(1)])
    attacked = stepper(model, FGM(model, 0.3))(0, [batch(1)])
    wants = batch(1).targets.labels
    _, clean, worse = ((said - wants).square().mean().item() for said in losses)
    assert worse > clean
    assert attacked.loss.item() == plain.loss.item() == pytest.approx(clean)
    assert attacked.losses["tokens"].item() == plain.losses["tokens"].item()


def test_both_passes_drop_the_same_units() -> None:
    model, seen = Reader(dropout=0.5), []
    model.dropout.register_forward_hook(lambda _, __, out: seen.append(out == 0))
    stepper(model, FGM(model, 0.1))(0, [batch(1), batch(1)])
    assert torch.equal(seen[0], seen[1]) and torch.equal(seen[2], seen[3])
    assert not torch.equal(seen[0], seen[2])


def test_an_attack_reads_the_same_memory_and_is_not_remembered() -> None:
    model = Reader()
    empty = SegmentMemory(torch.zeros(1, 2, 3, 4), torch.zeros(2, 3), torch.zeros(2, 3))
    step = stepper(model, FGM(model, 0.1), memory=[empty])
    step(0, [batch(1)])
    step(1, [batch(2)])
    assert [m.hidden.mean().item() for m in model.read if m is not None] == [0, 0, 1, 1]


def test_a_frozen_table_is_not_attacked() -> None:
    model = Reader()
    model.token_embeddings.requires_grad_(False)
    attack = FGM(model, 0.3)
    some = batch(1)

    def learn() -> str:
        Square().loss(model, some).mean(some.counts).backward()  # type: ignore[no-untyped-call]
        return "said"

    assert attack(learn) == "said"
    assert len(model.passes) == 1


def test_a_gradient_of_zero_moves_nothing() -> None:
    model = Reader()
    nn.init.zeros_(model.out.weight)
    stepper(model, FGM(model, 0.3))(0, [batch(1)])
    assert torch.equal(model.passes[0], model.passes[1])


def test_a_pass_that_fails_leaves_the_table_as_it_was() -> None:
    model = Reader()
    before = model.token_embeddings.weight.detach().clone()
    some = batch(1)

    def learn() -> None:
        if model.passes:
            raise MemoryError
        Square().loss(model, some).mean(some.counts).backward()  # type: ignore[no-untyped-call]

    with pytest.raises(MemoryError):
        FGM(model, 0.3)(learn)
    assert torch.equal(model.token_embeddings.weight, before)


def test_a_network_of_several_tables_is_moved_by_epsilon_in_all() -> None:
    model = LanguageModel()
    model.token_embeddings = AdaptiveEmbedding(30, 8, cutoffs=(10, 20), div_val=2)
    found = embedding_weights(model)
    assert [tuple(table.shape)[1] for table in found] == [8, 4, 2]
    before = [table.detach().clone() for table in found]
    moves: list[float] = []

    def learn() -> None:
        parts = [(a - b).square().sum() for a, b in zip(found, before, strict=True)]
        moves.append(math.sqrt(sum(part.item() for part in parts)))
        sum(table.sin().sum() for table in found).backward()  # type: ignore[union-attr]

    FGM(model, 0.5)(learn)
    assert moves == pytest.approx([0.0, 0.5])
