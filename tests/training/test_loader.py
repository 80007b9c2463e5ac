"""The data loader: the batches of the data set, through slots of shared memory, in their order."""

import gc
import os
import sys
import weakref
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset

from kinfolk.attention_mask import AttentionMask
from kinfolk.batch import Batch, Inputs, TokenTargets, with_texts
from kinfolk.data.datasets import ContiguousDataset, PackedDataset
from kinfolk.tensor_tree import start_in, tensor_leaves
from kinfolk.training import loader
from kinfolk.training.config import TrainConfig
from kinfolk.training.distributed import Processes
from kinfolk.training.loader import SLOTS, WithTexts, data_loader, is_lost_worker, read_slots
from support.contracts import documents, equal, modules, objective, short

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="workers are forked")

OBJECTIVES = {short(module): module for module in modules()}
# The objectives with other tensors than those of one stream and its labels.
CASES = ("clm", "nsp", "pairs", "permutation", "bilm")


class Numbered(Dataset[Batch[Any]]):
    """Batch n has n + 1 rows, or `rows`, of the number n."""

    def __init__(self, rows: int | None = None) -> None:
        self.rows = rows

    def __getitem__(self, number: int) -> Batch[Any]:
        ids = torch.full((self.rows or number + 1, 64), number)
        mask = AttentionMask(ids, ids, ids)
        inputs = Inputs(input_ids=ids, attention_mask=mask, position_ids=ids)
        return Batch(inputs, TokenTargets(ids.flatten()), {"tokens": number})


def settings(workers: int, **more: Any) -> TrainConfig:
    return TrainConfig(steps=1000, workers=workers, **more)


def loaded(
    batches: Dataset[Batch[Any]], workers: int, steps: int, **more: Any
) -> list[Sequence[Batch[Any]]]:
    return [*islice(data_loader(batches, settings(workers, **more), 0, False), steps)]


def numbers(steps: Sequence[Sequence[Batch[Any]]]) -> list[list[int]]:
    """Return the number of each batch, all of whose tensors must hold it."""
    found = []
    for step in steps:
        for batch in step:
            leaves = tensor_leaves(batch.inputs) + tensor_leaves(batch.targets)
            assert {value for t in leaves for value in t.unique().tolist()} == {
                batch.counts["tokens"]
            }
        found.append([batch.counts["tokens"] for batch in step])
    return found


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("name", CASES)
def test_workers_load_the_batches_of_the_data_set(name: str, workers: int) -> None:
    way = objective(OBJECTIVES[name])
    kind: Any = ContiguousDataset if way.recurrent else PackedDataset
    feed = kind(way, documents(), batch_size=3, seed=7)
    steps = loaded(feed, workers, 7)
    for number, (batch,) in enumerate(steps):
        expected = feed[number]
        assert equal(batch.inputs, expected.inputs) and equal(batch.targets, expected.targets)
        assert batch.counts == expected.counts
        assert batch.buffer is not None
        leaves = tensor_leaves(batch.inputs) + tensor_leaves(batch.targets)
        assert all(start_in(leaf, batch.buffer) is not None for leaf in leaves)


def test_what_recurrent_layers_read_comes_with_the_batch() -> None:
    feed = PackedDataset(objective(OBJECTIVES["clm"]), documents(), batch_size=3, seed=7)
    ((batch,),) = loaded(WithTexts(feed), 1, 1)
    assert equal(batch.inputs, with_texts(feed[0]).inputs)


def test_a_batch_stays_as_it_was_when_its_slot_is_written_again() -> None:
    steps = loaded(Numbered(rows=40), 2, 12 * SLOTS)
    assert numbers(steps) == [[n] for n in range(12 * SLOTS)]


def test_slots_grow_with_the_batches() -> None:
    assert numbers(loaded(Numbered(), 2, 20)) == [[n] for n in range(20)]


def test_micro_batches_and_the_shares_of_processes_are_divided_as_without_workers() -> None:
    for rank in range(2):
        processes = Processes(rank=rank, count=2)
        found = []
        for workers in (0, 2):
            train = settings(workers, gradient_accumulation=4)
            steps = data_loader(Numbered(), train, 2, False, processes)
            found.append(numbers([*islice(steps, 4)]))
        assert found[0] == found[1]
        assert found[0][0] == [2 * 4 * 2 + 2 * part + rank for part in range(4)]


def test_a_worker_that_overtakes_its_reader_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """One slot for batches that are made ahead: the second is written over the first."""
    monkeypatch.setattr(loader, "SLOTS", 1)
    with pytest.raises(AssertionError, match="a batch was overwritten"):
        loaded(Numbered(rows=4), 1, 50)


def test_shared_memory_is_sent_once_for_each_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = []
    original = loader.read_slots

    def read_slots(written: Any, pinned: bool) -> Iterator[Batch[Any]]:
        def watched() -> Iterator[Any]:
            for part in written:
                sent.append((part.slot, part.memory is not None))
                yield part

        return original(watched(), pinned)

    monkeypatch.setattr(loader, "read_slots", read_slots)
    loaded(Numbered(rows=4), 2, 6 * SLOTS)
    assert sorted(slot for slot, new in sent if new) == [
        (worker, slot) for worker in range(2) for slot in range(SLOTS)
    ]


def test_a_batch_is_freed_when_it_is_forgotten_and_no_file_stays_open() -> None:
    steps = data_loader(Numbered(rows=4), settings(1), 0, False)
    kept = []
    for _ in range(2 * SLOTS):
        (batch,) = next(steps)
        assert batch.buffer is not None
        kept.append(weakref.ref(batch.buffer))
    gc.collect()  # what earlier tests left, which may have files open
    files = len([*Path(f"/proc/{os.getpid()}/fd").iterdir()])
    for _ in range(20):
        (batch,) = next(steps)
    gc.collect()
    assert all(ref() is None for ref in kept)
    assert len([*Path(f"/proc/{os.getpid()}/fd").iterdir()]) <= files
    steps.close()  # type: ignore[attr-defined]


@pytest.mark.parametrize("workers", [0, 1])
def test_for_a_device_each_batch_is_one_pinned_buffer(
    workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    empty, pinned = torch.empty, []

    def allocate(*shape: Any, pin_memory: bool = False, **options: Any) -> torch.Tensor:
        made = empty(*shape, **options)
        if pin_memory:
            pinned.append(made)
        return made

    monkeypatch.setattr(torch, "empty", allocate)
    steps = data_loader(Numbered(rows=4), settings(workers), 0, True)
    for number, (batch,) in enumerate(islice(steps, 5)):
        assert numbers([[batch]]) == [[number]]
        assert batch.buffer is pinned[-1] and len(pinned) == number + 1


@pytest.mark.parametrize("error", [ConnectionResetError("reset"), EOFError(), FileNotFoundError()])
def test_a_worker_that_ends_while_it_sends_is_a_lost_worker(error: Exception) -> None:
    def sent(error: Exception) -> Iterator[Any]:
        raise error
        yield

    with pytest.raises(RuntimeError) as found:
        next(read_slots(sent(error), False))
    assert is_lost_worker(found.value)
    of_the_data = FileNotFoundError("Caught FileNotFoundError in DataLoader worker process 0.")
    with pytest.raises(FileNotFoundError):
        next(read_slots(sent(of_the_data), False))
