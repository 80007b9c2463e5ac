"""The micro-batches of each step, made by other processes where the settings say so."""

import pickle
import re
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, get_worker_info

from kinfolk.batch import Batch, with_sequence_offsets, with_texts
from kinfolk.errors import UserError
from kinfolk.tensor_tree import lay_out, write_buffer
from kinfolk.training.config import MAX_STEPS, TrainConfig
from kinfolk.training.distributed import Processes
from kinfolk.training.recovery import batch_numbers

PREFETCHED = 2  # batches that a data worker makes ahead
SLOTS = PREFETCHED + 1  # of a data worker: one is read while it makes the others
TAIL = 8  # bytes after the buffer in a slot: the number of its batch


class LostWorkerError(UserError):
    """A process of the data loader ended before it was told to."""


def is_lost_worker(error: BaseException) -> bool:
    """Return whether an error is that of torch about a process of the data loader that ended."""
    return re.match(r"DataLoader worker \(pid", str(error)) is not None


class WithTexts(Dataset[Batch[Any]]):
    """The batches of a data set, with the order in which recurrent layers read their texts."""

    def __init__(self, batches: Dataset[Batch[Any]]) -> None:
        self.batches = batches

    def __getitem__(self, number: int) -> Batch[Any]:
        return with_texts(self.batches[number])


class WithSequenceOffsets(Dataset[Batch[Any]]):
    """The batches of a data set, with the documents that varlen attention reads."""

    def __init__(self, batches: Dataset[Batch[Any]]) -> None:
        self.batches = batches

    def __getitem__(self, number: int) -> Batch[Any]:
        return with_sequence_offsets(self.batches[number])


@dataclass(frozen=True)
class WrittenBatch:
    """What a data worker sends for a batch that it has written to shared memory."""

    slot: tuple[int, int]  # the worker, and which of its slots
    memory: Tensor | None  # the memory of the slot; None if it is that of the batch before
    number: int  # of the batches of this worker
    size: int  # bytes of its buffer
    layout: bytes  # of the buffer, without the counts: often that of the batch before
    counts: Mapping[str, int]


class SharedSlots(Dataset[WrittenBatch]):
    """The batches of a data set, written to slots of shared memory that a worker fills in turn.

    A slot is filled again `SLOTS` batches later, when its batch has been copied (`read_slots`): the
    data loader asks a worker for no more than `PREFETCHED` batches before the first is taken. New
    shared memory for each tensor of a batch, or for each batch, takes both processes longer than
    the rest of the way.
    """

    def __init__(self, batches: Dataset[Batch[Any]]) -> None:
        self.batches = batches
        self.slots: list[Tensor | None] = [None] * SLOTS
        self.written = 0

    def __getitem__(self, number: int) -> WrittenBatch:
        batch = self.batches[number]
        layout, tensors, size = lay_out(batch)
        count, index = self.written, self.written % SLOTS
        memory, slot = None, self.slots[index]
        if slot is None or len(slot) < size + TAIL:
            slot = memory = torch.empty(size + TAIL, dtype=torch.uint8).share_memory_()
            self.slots[index] = memory
        slot[-TAIL:].view(torch.int64).fill_(count)
        write_buffer(tensors, slot[:size])
        self.written += 1
        worker = get_worker_info()
        assert worker is not None, "slots are those of a data worker"
        described = pickle.dumps(replace(layout, counts={}))
        return WrittenBatch((worker.id, index), memory, count, size, described, batch.counts)


@lru_cache(maxsize=256)
def read_layout(layout: bytes) -> Any:
    """Return the layout of a buffer."""
    return pickle.loads(layout)


def received(written: Iterable[WrittenBatch]) -> Iterator[WrittenBatch]:
    """Yield what workers send; a worker that ends while it sends is lost as one that ends before.

    Errors of the data set itself have the type that they had in the worker.
    """
    parts = iter(written)
    while True:
        try:
            part = next(parts)
        except StopIteration:
            return
        except (ConnectionError, EOFError, FileNotFoundError) as error:
            if str(error).startswith("Caught "):
                raise
            raise RuntimeError(f"DataLoader worker (pid unknown) ended: {error!r}") from error
        yield part


def read_slots(written: Iterable[WrittenBatch], pinned: bool) -> Iterator[Batch[Any]]:
    """Copy each batch out of its slot, to pinned memory if its tensors go to a device."""
    slots: dict[tuple[int, int], Tensor] = {}
    for part in received(written):
        if part.memory is not None:
            slots[part.slot] = part.memory
        slot = slots[part.slot]
        buffer = torch.empty(part.size, dtype=torch.uint8, pin_memory=pinned)
        buffer.copy_(slot[: part.size])
        assert slot[-TAIL:].view(torch.int64).item() == part.number, "a batch was overwritten"
        yield Batch.in_buffer(read_layout(part.layout), buffer, part.counts)


def data_loader(
    batches: Dataset[Batch[Any]],
    train: TrainConfig,
    start: int,
    pinned: bool,
    processes: Processes = Processes(),
    dropped: Collection[int] = (),  # numbers of batches that are left out
) -> Iterator[Sequence[Batch[Any]]]:
    """Yield the micro-batches of each step from `start` on.

    With several processes a batch of the data set is the share of one copy of the model, and the
    shares of a micro-batch follow each other. A run with a budget of seconds ends by itself.
    """
    parts, count = train.gradient_accumulation, processes.data_count
    steps = train.steps if train.minutes is None else MAX_STEPS
    # Python's warning about threads that a forked process lacks: a data loader needs none of them.
    warnings.filterwarnings("ignore", message="This process .* is multi-threaded, use of fork")
    workers = train.loader_processes(cuda=pinned)
    loader: DataLoader[Any] = DataLoader(
        SharedSlots(batches) if workers else batches,
        batch_size=None,
        sampler=(
            (number * parts + part) * count + processes.data_rank
            for number in batch_numbers(range(start, steps), dropped)
            for part in range(parts)
        ),
        num_workers=workers,
        prefetch_factor=PREFETCHED if workers else None,
    )
    made: Iterable[Batch[Any]] = loader
    if workers:
        made = read_slots(loader, pinned)
    elif pinned:
        made = (batch.pin_memory() for batch in loader)
    group: list[Batch[Any]] = []
    for batch in made:
        group.append(batch)
        if len(group) == parts:
            yield group
            group = []
