"""The micro-batches of each step, made by other processes where the settings say so."""

import re
import warnings
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from torch.utils.data import DataLoader, Dataset

from kinfolk.batch import Batch, with_sequence_offsets, with_texts
from kinfolk.errors import UserError
from kinfolk.training.config import MAX_STEPS, TrainConfig
from kinfolk.training.distributed import Processes
from kinfolk.training.recovery import batch_numbers


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
    loader = DataLoader(
        batches,
        batch_size=None,
        sampler=(
            (number * parts + part) * count + processes.data_rank
            for number in batch_numbers(range(start, steps), dropped)
            for part in range(parts)
        ),
        num_workers=train.loader_processes(cuda=pinned),
        pin_memory=pinned,
    )
    group: list[Batch[Any]] = []
    for batch in loader:
        group.append(batch)
        if len(group) == parts:
            yield group
            group = []
