"""Training in several processes, which `torchrun` starts: a grid of pipeline x data x tensor.

Along the data axis each process computes the loss and the gradients of its share of the rows of
every micro-batch. The gradients are summed, so that each makes the same update as one process
would. Processes along the tensor axis hold the width of every layer together
(tensor_parallel.py), those along the pipeline axis the layers (pipeline.py): they read the same
rows and compute one loss. Process 0 alone writes and prints; its copy of the model is evaluated.
"""

import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from kinfolk.batch import SegmentMemory
from kinfolk.errors import Terminated, UserError

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

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
    tensor: int = 1  # processes that share the width of a layer
    pipeline: int = 1  # processes that share the layers

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
        """Whether this process writes and prints."""
        return self.rank == 0

    def as_grid(self, tensor: int, pipeline: int) -> Self:
        """Return this process in a grid of pipeline x data x tensor."""
        if self.count % (tensor * pipeline):
            raise UserError(
                f"train.tensor={tensor} and train.pipeline={pipeline} need a multiple of "
                f"{tensor * pipeline} processes, not {self.count}: start them with torchrun "
                f"--nproc-per-node {tensor * pipeline}, or set both to 1, in recipe.json of a run "
                "that is resumed"
            )
        return replace(self, tensor=tensor, pipeline=pipeline)

    @property
    def splits_model(self) -> bool:
        """Whether other processes hold parts of the same model."""
        return self.tensor * self.pipeline > 1

    @property
    def data_count(self) -> int:
        """The number of copies of the model, which share the rows of a micro-batch."""
        return self.count // (self.tensor * self.pipeline)

    @property
    def data_rank(self) -> int:
        """The copy of the model that this process belongs to."""
        return self.rank // self.tensor % self.data_count

    @property
    def tensor_rank(self) -> int:
        """This process among those that share the width of its layers."""
        return self.rank % self.tensor

    @property
    def stage(self) -> int:
        """The stage of the pipeline that this process computes."""
        return self.rank // (self.tensor * self.data_count)

    @property
    def is_last_stage(self) -> bool:
        """Whether this process computes the loss."""
        return self.stage == self.pipeline - 1

    @cached_property
    def mesh(self) -> "DeviceMesh":
        """The groups of processes along each axis of the grid; all processes make them at once."""
        from torch.distributed.device_mesh import init_device_mesh

        return init_device_mesh(
            "cuda" if "nccl" in dist.get_backend_config() else "cpu",
            (self.pipeline, self.data_count, self.tensor),
            mesh_dim_names=("pipeline", "data", "tensor"),
        )

    def group(self, axis: str) -> dist.ProcessGroup:
        """Return the processes along one axis of the grid that this one belongs to."""
        return self.mesh.get_group(axis)

    def command(self, arguments: str) -> str:
        """Return the command line that starts as many processes, on this machine or on several.

        Machines also need an address to meet at (--rdzv-endpoint), which the cluster knows.
        """
        if not self.several:
            return f"kinfolk {arguments}"
        nodes = self.count // self.local_count
        place = "--standalone" if nodes <= 1 else f"--nnodes {nodes}"
        return f"torchrun {place} --nproc-per-node {self.local_count} -m kinfolk {arguments}"

    def rows(self, batch_size: int, gradient_accumulation: int) -> int:
        """Return this process's rows of a micro-batch: the same number in every process."""
        rows, count = batch_size // gradient_accumulation, self.data_count
        if rows % count:
            sharing = "copies of the model" if self.splits_model else "processes"
            raise UserError(
                f"train.batch_size={batch_size} and train.gradient_accumulation="
                f"{gradient_accumulation} make micro-batches of {rows} rows, which {count} "
                f"{sharing} cannot share equally: choose a multiple of "
                f"{count * gradient_accumulation} as batch size, or start fewer processes"
            )
        return rows // count

    def own_device(self, device: torch.device) -> torch.device:
        """Return the device of this process, of those of the machine."""
        if not self.several or device.type != "cuda":
            return device
        if self.local_rank >= torch.cuda.device_count():
            raise UserError(
                f"{self.local_count} processes on a machine with "
                f"{torch.cuda.device_count()} CUDA devices: start one for each device"
            )
        return torch.device("cuda", self.local_rank)

    def connect(self, device: torch.device) -> torch.device:
        """Wait for the other processes; return the device of this one."""
        if not self.several:
            return device
        device = self.own_device(device)
        cuda = device.type == "cuda"
        if cuda:
            torch.cuda.set_device(device)
        if not dist.is_initialized():
            dist.init_process_group(
                "cpu:gloo,cuda:nccl" if cuda else "gloo", rank=self.rank, world_size=self.count
            )
        if self.splits_model:
            assert self.mesh.size() == self.count
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

    def wait(self) -> None:
        """Wait until every process is here."""
        self.gather(None)

    def from_first(self, compute: Callable[[], T]) -> T:
        """Return what process 0 computes, in every process.

        Those that hold its copy of the model with it compute it too.
        """
        if not self.several:
            return compute()
        values = [compute() if self.data_rank == 0 else None]
        with connection():
            dist.broadcast_object_list(values, src=0)
        value: Any = values[0]
        return value

    def all_agree(self, value: bool) -> bool:
        """Return whether a value is true in every process that holds a part of the model."""
        if not self.splits_model:  # all have the same model
            return value
        agreed = torch.tensor(value, dtype=torch.uint8)
        for axis in ("tensor", "pipeline"):
            self.all_reduce(agreed, dist.ReduceOp.MIN, self.group(axis))
        return bool(agreed)

    def raise_signals(self, received: Sequence[int]) -> None:
        """Raise a signal that any process has received, in all of them."""
        number = received[0] if received else 0
        if self.several:
            largest = torch.tensor(number)
            self.all_reduce(largest, dist.ReduceOp.MAX)
            number = int(largest)
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        if number:
            raise Terminated(number)

    def all_true(self, value: bool) -> bool:
        """Return whether a statement is true in every process."""
        if not self.several:
            return value
        least = torch.tensor(int(value))
        self.all_reduce(least, dist.ReduceOp.MIN)
        return bool(least)

    def sum_counts(self, counts: Mapping[str, int], tokens: int) -> tuple[Counter[str], int]:
        """Return the counts and the tokens of all rows."""
        total, total_tokens = Counter[str](), 0
        own = (dict(counts), tokens) if self.tensor_rank == 0 and self.stage == 0 else ({}, 0)
        for others, more in self.gather(own):
            total.update(others)
            total_tokens += more
        return total, total_tokens

    def sum_losses(
        self, loss: Tensor, sums: Mapping[str, Tensor], names: Sequence[str]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss and its parts over all rows; `names` are the same in each process."""
        parts = [sums.get(name, torch.zeros_like(loss)) for name in names]
        values = torch.stack([loss, *parts]).double()
        if self.tensor_rank or not self.is_last_stage:  # others have computed the same loss
            values = torch.zeros_like(values)
        self.all_reduce(values)
        total, *rest = values.to(loss.dtype).unbind()
        named = dict(zip(names, rest, strict=True))
        return total, {name: named[name] for name in (names if self.pipeline > 1 else sums)}

    def sum_gradients(self, parameters: Sequence[Tensor]) -> None:
        """Replace every gradient by its sum over all rows, in buckets.

        A parameter that no process has a gradient of keeps none, as the optimizer skips it.
        """
        group = self.group("data") if self.splits_model else None
        present = torch.tensor([p.grad is not None for p in parameters], dtype=torch.uint8)
        self.all_reduce(present, dist.ReduceOp.MAX, group)
        gradients: list[Tensor] = []
        for parameter, found in zip(parameters, present.tolist(), strict=True):
            if found and parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            if parameter.grad is not None:
                gradients.append(local(parameter.grad))
        for bucket in buckets(gradients):
            flat = torch.cat([gradient.flatten() for gradient in bucket])
            self.all_reduce(flat, group=group)
            summed = torch.split(flat, [gradient.numel() for gradient in bucket])
            views = [part.view_as(g) for part, g in zip(summed, bucket, strict=True)]
            torch._foreach_copy_(bucket, views)

    def all_reduce(
        self,
        values: Tensor,
        operation: Any = dist.ReduceOp.SUM,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        """Replace a tensor by its sum, or another reduction, over all processes or a group."""
        with connection():
            dist.all_reduce(values, operation, group)

    def broadcast_weights(self, model: nn.Module) -> None:
        """Copy the weights of process 0 to the others, whose machines may round otherwise.

        In a grid, those of the first copy of the model to the others.
        """
        if self.several:
            groups = [self.group("data"), self.group("tensor")] if self.splits_model else [None]
            for tensor in (*model.parameters(), *model.buffers()):
                for group in groups[:1] if is_sharded(tensor) else groups:
                    with connection(), torch.no_grad():
                        dist.broadcast(local(tensor), group=group, group_src=0)

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
            name: saved[name].chunk(self.data_count, d)[self.data_rank].contiguous()
            for name, d in ROW_DIMENSIONS.items()
        }
        return SegmentMemory(**shares)

    def memory_shape(self, name: str, own: Tensor) -> tuple[int, ...]:
        """Return the shape of a part of the memory of all rows, from that of this process."""
        return tuple(
            size * self.data_count if dimension == ROW_DIMENSIONS[name] else size
            for dimension, size in enumerate(own.shape)
        )


def local(tensor: Tensor) -> Tensor:
    """Return the part of a sharded tensor that this process holds; others are returned whole."""
    if not is_sharded(tensor):
        return tensor
    sharded: Any = tensor.detach()
    return sharded.to_local()


def is_sharded(tensor: Tensor) -> bool:
    """Return whether a tensor is one of several processes together."""
    if type(tensor) in (Tensor, nn.Parameter):  # without the import, which takes a second
        return False
    from torch.distributed.tensor import DTensor

    return isinstance(tensor, DTensor)


def shard_like(value: Tensor, parameter: Tensor) -> Tensor:
    """Divide a whole value of the shape of a parameter as the parameter is divided, if it is."""
    if not is_sharded(parameter) or is_sharded(value) or value.shape != parameter.shape:
        return value
    from torch.distributed.tensor import distribute_tensor

    sharded: Any = parameter
    mesh, placements = sharded.device_mesh, sharded.placements
    return distribute_tensor(value.to(parameter.device), mesh, placements, src_data_rank=None)


def load_whole_weights(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Load weights that every process has whole into a model, sharded or not."""
    if not any(map(is_sharded, model.parameters())):
        model.load_state_dict(weights)
        return
    from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict

    set_model_state_dict(model, dict(weights), options=StateDictOptions(full_state_dict=True))


@contextmanager
def connection() -> Iterator[None]:
    """Raise LostProcessError where a call that all processes take part in fails."""
    try:
        yield
    except RuntimeError as error:
        raise LostProcessError(f"another process of this run ended ({error})") from error


@contextmanager
def model_connection() -> Iterator[None]:
    """As `connection`, around a network that processes compute together; its own errors pass."""
    try:
        yield
    except RuntimeError as error:
        cause: BaseException | None = error
        while cause is not None:
            lost = isinstance(cause, dist.DistError) or "gloo" in str(cause).lower()
            if lost or "Connection" in str(cause):
                raise LostProcessError(f"another process of this run ended ({cause})") from error
            cause = cause.__cause__
        raise


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
