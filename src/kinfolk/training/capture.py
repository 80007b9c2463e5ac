"""Forward and backward of a micro-batch as one captured graph, recorded once and replayed.

On an accelerator a small network waits for its host: a compiled BERT of two layers needs a
millisecond of an H200, and a dozen of the Python that tells it what to do. A graph is recorded for
each shape of batch, which packing keeps few; a step copies its batch in and replays it.
"""

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import torch
from torch import Tensor

from kinfolk.batch import Batch, Loss, tree_map


@dataclass(frozen=True, eq=False)
class CapturedGraph:
    """A graph, and the tensors that it reads and writes: they stay where they are."""

    graph: torch.cuda.CUDAGraph
    read: Sequence[Tensor]  # the tensors of the batch
    shares: Tensor  # (parts of the loss,): what each counts for in what is differentiated
    said: Loss
    gradients: Sequence[Tensor | None]


class GraphedForwardBackward:
    """Let a batch be said something about, and find the gradients, by replaying a graph.

    Chance comes from the device's own generator, whose seed and offset are read at each replay.
    """

    def __init__(self, say: Callable[[Batch[Any]], Loss], parameters: Sequence[Tensor]) -> None:
        self.say, self.parameters = say, parameters
        self.graphs: dict[Hashable, CapturedGraph] = {}

    def __call__(self, batch: Batch[Any], counts: Mapping[str, int], *, alone: bool) -> Loss:
        """Add the gradients of the mean over `counts` to those there are; return the sums.

        The sums are good until the next call. `alone` says that no other micro-batch follows before
        the update: then the gradients need not be copied out of the graph.
        """
        key = graph_key(batch.inputs), graph_key(batch.targets)
        if key not in self.graphs:
            self.graphs[key] = self.record(batch)
        found = self.graphs[key]
        said = found.said
        for there, here in zip(found.read, tensor_leaves(batch), strict=True):
            there.copy_(here, non_blocking=True)
        found.shares.copy_(torch.tensor(loss_scales(said, counts)), non_blocking=True)
        found.graph.replay()
        self.accumulate_grads(found.gradients, alone)
        return Loss(said.sums, said.weights, tree_map(said.memory, Tensor.clone))

    def record(self, batch: Batch[Any]) -> CapturedGraph:
        """Record what is done to batches of this shape, after it was tried out."""
        device = self.parameters[0].device
        still = tree_map(
            batch, lambda t: torch.empty(t.shape, dtype=t.dtype, device=device).copy_(t)
        )
        # Compiled here. Nothing of it may live on: the parameters would stay bound to its stream.
        weights = torch.ones(len(self.say(still).sums), device=device)

        def learn() -> tuple[Loss, list[Tensor | None]]:
            said = self.say(still)
            sums, seeds = tuple(said.sums.values()), weights.unbind()
            seeds = tuple(seed.to(total.dtype) for seed, total in zip(seeds, sums, strict=True))
            found = torch.autograd.grad(sums, self.parameters, seeds, allow_unused=True)
            return said, with_own_storage(found)

        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):
                learn()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        # Only this thread's calls are watched: another one pins the batches to come.
        with torch.cuda.graph(graph, pool=self.pool, capture_error_mode="thread_local"):
            said, gradients = learn()
        sums = {name: total.detach() for name, total in said.sums.items()}
        said = Loss(sums, said.weights, said.memory)
        return CapturedGraph(graph, tuple(tensor_leaves(still)), weights, said, gradients)

    @property
    def pool(self) -> Any:
        """The memory that all graphs share: what one wrote is used before another runs."""
        return next((found.graph.pool() for found in self.graphs.values()), None)

    def accumulate_grads(self, gradients: Sequence[Tensor | None], alone: bool) -> None:
        """Add gradients to those that the parameters have."""
        before: list[Tensor] = []
        added: list[Tensor] = []
        for parameter, gradient in zip(self.parameters, gradients, strict=True):
            if gradient is None:
                continue
            if parameter.grad is None:
                parameter.grad = gradient if alone else gradient.clone()
            else:
                before.append(parameter.grad)
                added.append(gradient)
        if added:
            torch._foreach_add_(before, added)


def loss_scales(said: Loss, counts: Mapping[str, int]) -> list[float]:
    """Return the derivative of the mean by each of the sums: see Loss.mean."""
    return [said.weights.get(name, 1.0) / max(counts[name], 1) for name in said.sums]


def with_own_storage(gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
    """Give every gradient a place of its own: two parameters that are added share one."""
    taken: set[int] = set()
    found: list[Tensor | None] = []
    for gradient in gradients:
        if gradient is not None:
            place = gradient.untyped_storage().data_ptr()
            if place in taken or not gradient.is_contiguous():
                gradient = gradient.clone(memory_format=torch.contiguous_format)
            taken.add(gradient.untyped_storage().data_ptr())
        found.append(gradient)
    return found


def tensor_leaves(value: Any) -> Iterator[Tensor]:
    """Yield every tensor in a tree of dataclasses."""
    if isinstance(value, Tensor):
        yield value
    elif is_dataclass(value):
        for field in fields(value):
            yield from tensor_leaves(getattr(value, field.name))


def graph_key(value: Any) -> Hashable:
    """Return what two values must have in common for one graph to serve both."""
    if isinstance(value, Tensor):
        return value.shape, value.dtype
    if is_dataclass(value):
        return type(value), *(graph_key(getattr(value, field.name)) for field in fields(value))
    if isinstance(value, Mapping):
        return tuple((name, graph_key(part)) for name, part in value.items())
    return value
