"""A step of a recurrent network reads nothing back from the device: the host can run ahead of it.

There is no device here. Operations that wait for one are refused while a learner runs: the value
of a tensor, shapes that depend on values, and copies.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from kinfolk.attention_mask import AttentionMask
from kinfolk.batch import Batch, Loss, tree_map, with_texts
from kinfolk.data.chunks import InMemoryDocuments
from kinfolk.data.datasets import ContiguousDataset, PackedDataset
from kinfolk.families import families
from kinfolk.packed_texts import PackedTexts, WholeRows
from kinfolk.tensor_tree import tensor_leaves
from kinfolk.text.tokenizer import SpecialTokens
from kinfolk.training.capture import GraphedForwardBackward, batch_key
from kinfolk.training.config import TrainConfig
from kinfolk.training.optimizer import build_optimizer
from kinfolk.training.step import Learner, TrainStep
from support.host_guard import HostGuard

VOCAB, LENGTH, ROWS = 60, 12, 4
SPECIALS = SpecialTokens(pad=0, unk=1, bos=2, eos=3, cls=2, sep=3, mask=1)
RATES = ("embedding_dropout", "input_dropout", "dropout", "weight_dropout", "output_dropout")


def documents(size: int) -> InMemoryDocuments:
    numbers = torch.Generator().manual_seed(0)
    texts = torch.randint(4, VOCAB, (ROWS * max(100, size) // size, size), generator=numbers)
    return InMemoryDocuments.from_lists([[text] for text in texts.tolist()])


def setting(family: str, way: str, size: int, rate: float = 0.3) -> tuple[Learner, Any]:
    """Return the learner of a nano network, and its data: documents of so many tokens."""
    found = families()[family]
    objective = found.objective(way)(special_tokens=SPECIALS, vocab_size=VOCAB, max_length=LENGTH)
    config = replace(found.config("nano"), vocab_size=VOCAB)
    rates = {name: rate for name in RATES if hasattr(config, name)}
    torch.manual_seed(0)
    learner = Learner(replace(config, **rates).build().train(), objective)
    kind = ContiguousDataset if objective.recurrent else PackedDataset
    return learner, kind(objective, documents(size), batch_size=ROWS)


def results(learner: Learner, batches: Iterator[Batch[Any]]) -> list[Tensor]:
    """Return the loss and all gradients of each batch; states continue."""
    found, memory = [], None
    for number, batch in enumerate(batches):
        torch.manual_seed(number)
        loss = learner(batch.with_memory(memory).inputs, batch.targets)
        memory = loss.memory
        mean = loss.mean(batch.counts)
        mean.backward()
        found += [mean.detach(), *(p.grad for p in learner.parameters() if p.grad is not None)]
        learner.zero_grad(set_to_none=True)
    return found


CASES = [("stream", 100), ("stream", 9), ("bptt", 100), ("bptt", 9), ("clm", 9)]


@pytest.mark.parametrize(("way", "size"), CASES)
def test_a_step_reads_nothing_back(way: str, size: int) -> None:
    learner, data = setting("ulmfit", way, size)
    batches = [with_texts(data[number]) for number in range(3)]
    memory = [learner.model.init_memory(ROWS)] if learner.objective.recurrent else None
    step = TrainStep(
        learner,
        build_optimizer(learner.model, TrainConfig()),
        lambda number: 1e-3,
        clip=1.0,
        seed=0,
        device=torch.device("cpu"),
        bfloat16=False,
        memory=memory,
        checks=lambda number: False,  # as on CUDA, except in steps that are saved
    )
    with HostGuard():
        for number, batch in enumerate(batches):
            step(number, [batch])


def test_the_guard_sees_what_waits() -> None:
    learner, data = setting("ulmfit", "stream", 9)
    batch = data[0]
    unprepared = replace(batch.inputs, attention_mask=batch.inputs.attention_mask)
    with pytest.raises(AssertionError, match="waits"), HostGuard():
        learner(unprepared, batch.targets)
    with pytest.raises(AssertionError, match="by a mask"), HostGuard():
        torch.arange(3.0)[torch.tensor([True, False, True])]
    with pytest.raises(AssertionError, match="copies"), HostGuard():
        torch.ones(2).to("meta")


@pytest.mark.parametrize(
    ("family", "way", "size"),
    [*(("ulmfit", *case) for case in CASES), ("elmo", "bilm", 100), ("elmo", "bilm", 9)],
)
def test_texts_found_by_the_loader_change_no_bit(family: str, way: str, size: int) -> None:
    learner, data = setting(family, way, size)
    expected = results(learner, (data[number] for number in range(3)))
    found = results(learner, (with_texts(data[number]) for number in range(3)))
    assert len(found) == len(expected) > 3
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


@pytest.mark.parametrize("way", ["stream", "bptt"])
def test_a_recorded_step_of_whole_rows_serves_the_batches_after_it(way: str) -> None:
    """All that differs between them is in tensors, the states too: a graph copies those."""
    learner, data = setting("ulmfit", way, 600)
    batches = [with_texts(data[number]) for number in range(30)]
    batches = [batch for batch in batches if batch_key(batch) == batch_key(batches[0])][:4]
    memory = learner.model.init_memory(ROWS)
    captured = GraphedForwardBackward(lambda batch: Loss({}), [])
    assert len(batches) > 1 and all(captured.accepts(batch) for batch in batches)
    recorded = tree_map(batches[0].with_memory(memory), Tensor.clone)
    for number, batch in enumerate(batches):
        batch = batch.with_memory(memory)
        for target, source in zip(tensor_leaves(recorded), tensor_leaves(batch), strict=True):
            target.copy_(source)
        losses = []
        for given in (batch, recorded):
            torch.manual_seed(number)
            losses.append(learner(given.inputs, given.targets))
        assert torch.equal(losses[0].mean(batch.counts), losses[1].mean(batch.counts))
        memory = losses[0].memory


def test_a_batch_of_packed_rows_is_not_recorded() -> None:
    for family, way in (("ulmfit", "stream"), ("elmo", "bilm")):
        data = setting(family, way, 9)[1]
        captured = GraphedForwardBackward(lambda batch: Loss({}), [])
        assert not captured.accepts(with_texts(data[0]))


def test_texts_move_with_the_batch_and_their_sizes_stay_on_the_host() -> None:
    batch = with_texts(setting("elmo", "bilm", 9)[1][0])
    moved = tree_map(batch, lambda t: t.to("meta"))
    for inputs in (moved.inputs, moved.targets.backward_inputs):
        texts = inputs.attention_mask.texts
        assert isinstance(texts, PackedTexts)
        assert texts.positions.device.type == texts.last_rows.device.type == "meta"
        assert texts.batch_sizes.device.type == "cpu" and texts.num_texts == texts.step_sizes[0]
    assert all(leaf.device.type == "meta" for leaf in tensor_leaves(moved))


def test_another_mask_has_other_texts() -> None:
    mask = AttentionMask.causal(torch.tensor([[0, 0, 1], [2, 2, 2]])).with_texts()
    assert isinstance(mask.texts, PackedTexts) and mask.with_texts() is mask
    assert mask.select(slice(2, 3)).texts is None
    assert isinstance(mask.select(slice(0, 2)).with_texts().texts, WholeRows)
