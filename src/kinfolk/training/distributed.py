"""Data-parallel training in several processes, which `torchrun` starts.

Each process computes the loss and the gradients of its share of the rows of every micro-batch. The
gradients are summed over all processes, so that each makes the same update as one process would.
Process 0 alone evaluates, writes and prints.
"""

import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from kinfolk.batch import SegmentMemory
from kinfolk.errors import Terminated, UserError

BUCKET_SIZE = 2**23  # elements of gradients that are summed in one call

# The dimension of each part of a memory that counts rows.
ROW_DIMENSIONS = {"hidden": 1, "document_ids": 0, "key_order": 0}

T = TypeVar("T")


class LostProcessError(UserError):
    """Another process of the run ended, so that no sum over all of them can be computed."""


@dataclass(frozen=True)
class Processes:
    """This process among those that train one model; without arguments, the only one."""

    rank: int = 0
    count: int = 1
    local_rank: int = 0  # among those of this machine
    local_count: int = 1

    @classmethod
    def from_environment(cls) -> Self:
        """Return this process as `torchrun` has numbered it."""
        names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
        if "RANK" not in os.environ or os.environ.get("WORLD_SIZE", "1") == "1":
            return cls()
        given = {name: os.environ[name] for name in names if name in os.environ}
        for name, text in given.items():
            if not text.isdecimal():
                raise UserError(f"{name}={text!r} in the environment: torchrun sets it to a number")
        rank, count = int(given["RANK"]), int(given["WORLD_SIZE"])
        if rank >= count:
            raise UserError(f"RANK={rank} in the environment must be below WORLD_SIZE={count}")
        local_rank, local_count = given.get("LOCAL_RANK", "0"), given.get("LOCAL_WORLD_SIZE", "1")
        return cls(rank, count, int(local_rank), int(local_count))

    @property
    def several(self) -> bool:
        """Whether there are other processes."""
        return self.count > 1

    @property
    def is_first(self) -> bool:
        """Whether this process evaluates, writes and prints."""
        return self.rank == 0

    def command(self, arguments: str) -> str:
        """Return the command line that starts as many processes on this machine."""
        if not self.several:
            return f"kinfolk {arguments}"
        return f"torchrun --nproc-per-node {self.local_count} -m kinfolk {arguments}"

    def rows(self, batch_size: int, gradient_accumulation: int) -> int:
        """Return this process's rows of a micro-batch: the same number in every process."""
        rows = batch_size // gradient_accumulation
        if rows % self.count:
            raise UserError(
                f"train.batch_size={batch_size} and train.gradient_accumulation="
                f"{gradient_accumulation} make micro-batches of {rows} rows, which {self.count} "
                "processes cannot share equally: choose a multiple of "
                f"{self.count * gradient_accumulation} as batch size, or start fewer processes"
            )
        return rows // self.count

    def connect(self, device: torch.device) -> torch.device:
        """Wait for the other processes; return the device of this one."""
        if not self.several:
            return device
        cuda = device.type == "cuda"
        if cuda:
            if self.local_rank >= torch.cuda.device_count():
                raise UserError(
                    f"{self.local_count} processes on a machine with "
                    f"{torch.cuda.device_count()} CUDA devices: start one for each device"
                )
            device = torch.device("cuda", self.local_rank)
            torch.cuda.set_device(device)
        if not dist.is_initialized():
            dist.init_process_group(
                "cpu:gloo,cuda:nccl" if cuda else "gloo", rank=self.rank, world_size=self.count
            )
        return device

    def disconnect(self) -> None:
        """Close the connections to the other processes."""
        if self.several and dist.is_initialized():
            dist.destroy_process_group()

    def gather(self, value: T) -> list[T]:
        """Return the value of every process, by rank."""
        if not self.several:
            return [value]
        values: list[Any] = [None] * self.count
        with connection():
            dist.all_gather_object(values, value)
        return values

    def from_first(self, compute: Callable[[], T]) -> T:
        """Return what process 0 computes, in every process."""
        if not self.several:
            return compute()
        values = [compute() if self.is_first else None]
        with connection():
            dist.broadcast_object_list(values, src=0)
        value: Any = values[0]
        return value

    def raise_signals(self, received: Sequence[int]) -> None:
        """Raise a signal that any process has received, in all of them."""
        if not self.several:
            return
        number = torch.tensor(received[0] if received else 0)
        self.all_reduce(number, dist.ReduceOp.MAX)
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        if number:
            raise Terminated(int(number))

    def sum_counts(self, counts: Mapping[str, int], tokens: int) -> tuple[Counter[str], int]:
        """Return the counts and the tokens of all processes."""
        total, total_tokens = Counter[str](), 0
        for others, more in self.gather((dict(counts), tokens)):
            total.update(others)
            total_tokens += more
        return total, total_tokens

    def sum_losses(
        self, loss: Tensor, sums: Mapping[str, Tensor], names: Sequence[str]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss and its parts over all processes; `names` are the same in each."""
        parts = [sums.get(name, torch.zeros_like(loss)) for name in names]
        values = torch.stack([loss, *parts]).double()
        self.all_reduce(values)
        total, *rest = values.to(loss.dtype).unbind()
        named = dict(zip(names, rest, strict=True))
        return total, {name: named[name] for name in sums}

    def sum_gradients(self, parameters: Sequence[nn.Parameter]) -> None:
        """Replace every gradient by its sum over all processes, in buckets.

        A parameter that no process has a gradient of keeps none, as the optimizer skips it.
        """
        present = torch.tensor([p.grad is not None for p in parameters], dtype=torch.uint8)
        self.all_reduce(present, dist.ReduceOp.MAX)
        gradients: list[Tensor] = []
        for parameter, found in zip(parameters, present.tolist(), strict=True):
            if found and parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            if parameter.grad is not None:
                gradients.append(parameter.grad)
        for bucket in buckets(gradients):
            flat = torch.cat([gradient.flatten() for gradient in bucket])
            self.all_reduce(flat)
            summed = torch.split(flat, [gradient.numel() for gradient in bucket])
            views = [part.view_as(g) for part, g in zip(summed, bucket, strict=True)]
            torch._foreach_copy_(bucket, views)

    def all_reduce(self, values: Tensor, operation: Any = dist.ReduceOp.SUM) -> None:
        """Replace a tensor by its sum, or another reduction, over all processes."""
        with connection():
            dist.all_reduce(values, operation)

    def broadcast_weights(self, model: nn.Module) -> None:
        """Copy the weights of process 0 to the others, whose machines may round otherwise."""
        if self.several:
            for tensor in (*model.parameters(), *model.buffers()):
                with connection(), torch.no_grad():
                    dist.broadcast(tensor, src=0)

    def gather_memory(self, memory: Sequence[SegmentMemory]) -> list[dict[str, Tensor]]:
        """Return the memory of all rows, of each micro-batch: the rows of all processes in order.

        So a checkpoint does not depend on the number of processes.
        """
        if not self.several:
            return [dict(vars(own)) for own in memory]
        shares = self.gather([vars(own.to("cpu")) for own in memory])
        return [
            {
                name: torch.cat([part[name] for part in parts], d)
                for name, d in ROW_DIMENSIONS.items()
            }
            for parts in zip(*shares, strict=True)
        ]

    def memory_share(self, saved: Mapping[str, Tensor]) -> SegmentMemory:
        """Return the memory of this process's rows, of that of all rows."""
        shares = {
            name: saved[name].chunk(self.count, d)[self.rank].contiguous()
            for name, d in ROW_DIMENSIONS.items()
        }
        return SegmentMemory(**shares)

    def memory_shape(self, name: str, own: Tensor) -> tuple[int, ...]:
        """Return the shape of a part of the memory of all rows, from that of this process."""
        return tuple(
            size * self.count if dimension == ROW_DIMENSIONS[name] else size
            for dimension, size in enumerate(own.shape)
        )


@contextmanager
def connection() -> Iterator[None]:
    """Raise LostProcessError where a call that all processes take part in fails."""
    try:
        yield
    except RuntimeError as error:
        raise LostProcessError(f"another process of this run ended ({error})") from error


def buckets(tensors: Sequence[Tensor], size: int = BUCKET_SIZE) -> Iterator[list[Tensor]]:
    """Yield tensors of one type in groups of up to `size` elements, larger ones alone."""
    bucket: list[Tensor] = []
    elements = 0
    for tensor in tensors:
        full = elements + tensor.numel() > size
        if bucket and (full or tensor.dtype != bucket[0].dtype):
            yield bucket
            bucket, elements = [], 0
        bucket.append(tensor)
        elements += tensor.numel()
    if bucket:
        yield bucket


def prints_error() -> bool:
    """Return whether this process prints its error: of those of `torchrun`, the first with any.

    All processes find most mistakes of a user at once, but a file may be missing on one machine.
    """
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return True
    key = f"kinfolk/error/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"
    try:
        address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        store = dist.TCPStore(address, port, is_master=False)
        return store.add(key, 1) == 1
    except (KeyError, ValueError, RuntimeError):  # torchrun has ended, and with it the store
        return os.environ.get("RANK") == "0"
