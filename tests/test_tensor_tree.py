"""A batch in one buffer: the same tensors, moved by one copy."""

from collections import Counter
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from kinfolk.attention_mask import AttentionMask
from kinfolk.batch import Batch, Inputs, SegmentMemory, TokenTargets, tree_map
from kinfolk.data.datasets import ContiguousDataset, PackedDataset
from kinfolk.tensor_tree import (
    ALIGNMENT,
    BufferTensors,
    Place,
    lay_out,
    start_in,
    tensor_leaves,
    write_buffer,
)
from support.contracts import documents, equal, modules, objective, short


@pytest.fixture(autouse=True)
def without_pinning(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a machine without an accelerator pin memory: the tensors are ordinary ones."""
    empty = torch.empty

    def allocate(*shape: Any, pin_memory: bool = False, **options: Any) -> Tensor:
        return empty(*shape, **options)

    monkeypatch.setattr(torch, "empty", allocate)


def batches(module: ModuleType) -> list[Batch[Any]]:
    way = objective(module)
    kind: Any = ContiguousDataset if way.recurrent else PackedDataset
    feed = kind(way, documents(), batch_size=3, seed=7)
    return [feed[number] for number in range(2)]


def small() -> Batch[TokenTargets]:
    ids = torch.arange(6).view(2, 3)
    inputs = Inputs(
        input_ids=ids,
        attention_mask=AttentionMask.causal(torch.zeros(2, 3, dtype=torch.int32)),
        position_ids=torch.arange(3).expand(2, 3),
    )
    return Batch(inputs, TokenTargets(torch.tensor([4]), torch.zeros(0, dtype=torch.long)), {})


@pytest.mark.parametrize("module", modules(), ids=short)
def test_a_batch_in_one_buffer_has_the_same_tensors(module: ModuleType) -> None:
    for batch in batches(module):
        pinned = batch.pin_memory()
        assert pinned.buffer is not None and pinned.counts == batch.counts
        assert equal(pinned.inputs, batch.inputs) and equal(pinned.targets, batch.targets)
        for tensor in tensor_leaves(pinned.inputs) + tensor_leaves(pinned.targets):
            assert start_in(tensor, pinned.buffer) is not None


def test_tensors_of_a_buffer_are_contiguous_aligned_and_no_views() -> None:
    """As tensors of their own are: kernels ask for alignment, a compiler for offsets of 0."""
    batch = small().pin_memory()
    assert batch.buffer is not None
    for tensor in (*tensor_leaves(batch.inputs), batch.targets.labels):
        start = start_in(tensor, batch.buffer)
        assert start is not None and start % ALIGNMENT == 0
        assert tensor.is_contiguous() and not tensor._is_view() and not tensor.storage_offset()
    assert ALIGNMENT % 16 == 0


def test_a_tensor_that_occurs_twice_has_one_place() -> None:
    layout, tensors, size = lay_out(small())
    mask = layout.inputs.attention_mask
    assert mask.key_order is mask.query_order
    places = [place for place in tensor_leaves(layout, Place) if 0 not in place.shape]
    assert len(places) == 6 and len(set(places)) == 5 and size == 5 * ALIGNMENT
    assert len(tensors) == 6  # with the empty one


def test_one_copy_moves_a_batch_and_the_memory_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    ids = torch.zeros(2, 4, dtype=torch.int32)
    memory = SegmentMemory(torch.ones(1, 2, 4, 8), ids, ids)
    copies: Counter[int] = Counter()
    original = Tensor.to

    def to(self: Tensor, *args: Any, **options: Any) -> Tensor:
        copies[self.nbytes] += 1
        return original(self, *args, **options)

    monkeypatch.setattr(Tensor, "to", to)
    one = small().pin_memory()
    moved = one.to("cpu", copy=True)
    assert copies == {5 * ALIGNMENT: 1, 0: 1}  # an empty tensor lies nowhere
    assert moved.buffer is not None and one.buffer is not None
    assert start_in(moved.inputs.input_ids, one.buffer) is None
    assert equal(moved, one)
    copies.clear()
    moved = one.with_memory(memory).to("cpu", copy=True)
    assert copies == {5 * ALIGNMENT: 1, 0: 1, memory.hidden.nbytes: 1, ids.nbytes: 2}
    assert moved.inputs.memory is not None
    assert torch.equal(moved.inputs.memory.hidden, memory.hidden)
    assert moved.inputs.memory.hidden is not memory.hidden


def test_a_batch_that_is_there_is_not_copied() -> None:
    plain, pinned = small(), small().pin_memory()
    assert plain.to("cpu").inputs is plain.inputs
    assert pinned.to("cpu").inputs.input_ids is pinned.inputs.input_ids


def test_a_part_of_a_tensor_moves_by_itself() -> None:
    """The middle of each row does not lie in the buffer as a contiguous tensor would."""
    batch = small().pin_memory()
    part = Batch(batch.inputs.select(slice(1, 3)), batch.targets, {}, batch.buffer)
    assert part.buffer is not None and start_in(part.inputs.input_ids, part.buffer) is None
    moved = part.to("cpu", copy=True)
    assert moved.inputs.input_ids.tolist() == [[1, 2], [4, 5]]
    assert moved.inputs.position_ids.tolist() == [[1, 2], [1, 2]]


def test_a_batch_that_was_changed_moves_as_it_is() -> None:
    batch = small().pin_memory()
    moved = Batch(
        tree_map(batch.inputs, lambda t: t + 1), batch.targets, batch.counts, batch.buffer
    ).to("cpu", copy=True)
    assert moved.inputs.input_ids.tolist() == [[1, 2, 3], [4, 5, 6]]
    assert moved.targets.labels.tolist() == [4]


@dataclass(frozen=True)
class Checked:
    """A tensor whose shape is checked when the dataclass is made."""

    labels: Tensor

    def __post_init__(self) -> None:
        assert self.labels.ndim == 2


def test_a_dataclass_that_checks_its_tensors_lies_in_a_buffer() -> None:
    tree = Checked(torch.arange(6).view(2, 3))
    layout, tensors, size = lay_out(tree)
    buffer = torch.empty(size, dtype=torch.uint8)
    write_buffer(tensors, buffer)
    read = tree_map(layout, BufferTensors(buffer), Place)
    assert torch.equal(read.labels, tree.labels)
