"""Forward and backward of a micro-batch as one CUDA graph, recorded once and replayed.

A small network on a GPU is limited by the host: a step of a compiled BERT of two layers takes 1 ms
on an H200, and Python needs 10 ms to launch it. A graph is recorded for each shape
of batch, of which packing leaves few; a step copies its batch in and replays it.
"""

from collections.abc import Callable, Collection, Container, Hashable, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from typing import Any

import torch
from torch import Tensor

from kinfolk.batch import Batch, Loss, tree_map
from kinfolk.packed_texts import PackedTexts
from kinfolk.tensor_tree import start_in, tensor_leaves, tree_fields

MAX_GRAPHS = 16  # shapes that are recorded: each keeps gradients of the whole network


@dataclass(frozen=True, eq=False)
class CapturedGraph:
    """A graph, and the tensors that it reads and writes: their addresses are fixed."""

    graph: torch.cuda.CUDAGraph
    inputs: Sequence[Tensor]  # of the batch: see `copied_tensors`
    scales: Tensor  # (parts of the loss,): the derivative of the mean by each sum
    loss: Loss
    gradients: Sequence[Tensor | None]


class GraphedForwardBackward:
    """Compute the loss of a batch and its gradients by replaying a graph.

    Random numbers come from the device's generator, whose seed and offset are read at each replay.
    They are not those of the same step without a graph. So that a resumed run draws the same as one
    that was not stopped, it must not depend on the steps before which batches are replayed: where
    the lengths of rows vary, `lengths` are those that are, where shapes vary in other ways (batches
    of fine-tuning) those that `static` contains, and others are never recorded.
    """

    def __init__(
        self,
        forward: Callable[[Batch[Any]], Loss],
        parameters: Sequence[Tensor],
        lengths: Collection[int] | None = None,  # of rows; None: any, up to MAX_GRAPHS shapes
        static: Container[Batch[Any]] | None = None,  # batches of few shapes; None: any
    ) -> None:
        self.forward, self.parameters = forward, parameters
        self.lengths, self.static = lengths, static
        self.graphs: dict[Hashable, CapturedGraph] = {}
        # Of parameters by their number, where the graphs of all shapes write them: memory does not
        # grow with the number of shapes.
        self.gradients: dict[int, Tensor] = {}

    def accepts(self, batch: Batch[Any]) -> bool:
        """Return whether a batch can be replayed: its shape is recorded, or can still be.

        Where layers read texts one by one, shapes inside of the network depend on their lengths.
        """
        if has_packed_texts(batch):
            return False
        if self.static is not None:
            return batch in self.static
        if self.lengths is not None:
            return batch.inputs.input_ids.shape[1] in self.lengths
        return len(self.graphs) < MAX_GRAPHS or batch_key(batch) in self.graphs

    def __call__(self, batch: Batch[Any], counts: Mapping[str, int], *, alone: bool) -> Loss:
        """Add the gradients of the mean over `counts` to the existing ones; return the sums.

        With `alone`, no other micro-batch follows before the update: sums and gradients are not
        copied out of the graph, and the sums are valid until the next call.
        """
        key = batch_key(batch)
        if key not in self.graphs:
            # The replay draws what it would have drawn if the graph had been recorded before.
            with torch.random.fork_rng(devices=[self.parameters[0].device]):
                self.graphs[key] = self.record(batch)
        recorded = self.graphs[key]
        loss = recorded.loss
        for target, source in zip(recorded.inputs, copied_tensors(batch), strict=True):
            target.copy_(source, non_blocking=True)
        recorded.scales.copy_(torch.tensor(loss_scales(loss, counts)), non_blocking=True)
        recorded.graph.replay()
        self.accumulate_grads(recorded.gradients, alone)
        sums = loss.sums if alone else {name: part.clone() for name, part in loss.sums.items()}
        return Loss(sums, loss.weights, tree_map(loss.memory, Tensor.clone))

    def record(self, batch: Batch[Any]) -> CapturedGraph:
        """Record forward and backward for batches of this shape, after two runs to warm up."""
        device = self.parameters[0].device
        static = batch.to(device, copy=True)
        # Compiles the learner. The result is not kept: it would bind the parameters to its stream.
        scales = torch.ones(len(self.forward(static).sums), device=device)

        def forward_backward() -> tuple[Loss, list[Tensor | None]]:
            loss = self.forward(static)
            return loss, with_own_storage(scaled_gradients(loss, scales, self.parameters))

        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            forward_backward()
            self.copy_gradients(forward_backward()[1])  # outside of the memory of the graphs
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        # Only the calls of this thread are checked: another one may pin memory meanwhile.
        with torch.cuda.graph(graph, pool=self.pool, capture_error_mode="thread_local"):
            loss, gradients = forward_backward()
            gradients = self.copy_gradients(gradients)
        sums = {name: total.detach() for name, total in loss.sums.items()}
        loss = Loss(sums, loss.weights, loss.memory)
        return CapturedGraph(graph, tuple(copied_tensors(static)), scales, loss, gradients)

    def copy_gradients(self, gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Copy gradients to where those of all shapes are, so that they take memory once."""
        if self.lengths is None and self.static is None:
            return [*gradients]
        present = {n: gradient for n, gradient in enumerate(gradients) if gradient is not None}
        for number, gradient in present.items():
            if number not in self.gradients:
                self.gradients[number] = torch.empty_like(gradient)
        torch._foreach_copy_([self.gradients[n] for n in present], [*present.values()])
        return [self.gradients[n] if n in present else None for n in range(len(gradients))]

    @property
    def pool(self) -> Any:
        """The memory pool of all graphs: the output of one is used before another is replayed."""
        return next((recorded.graph.pool() for recorded in self.graphs.values()), None)

    def accumulate_grads(self, gradients: Sequence[Tensor | None], alone: bool) -> None:
        """Add gradients to those that the parameters have."""
        totals: list[Tensor] = []
        added: list[Tensor] = []
        for parameter, gradient in zip(self.parameters, gradients, strict=True):
            if gradient is None:
                continue
            if parameter.grad is None:
                parameter.grad = gradient if alone else gradient.clone()
            else:
                totals.append(parameter.grad)
                added.append(gradient)
        if added:
            torch._foreach_add_(totals, added)


def loss_scales(loss: Loss, counts: Mapping[str, int]) -> list[float]:
    """Return the derivative of the mean by each of the sums: see Loss.mean."""
    return [loss.weights.get(name, 1.0) / max(counts[name], 1) for name in loss.sums]


def scaled_gradients(
    loss: Loss, scales: Tensor, parameters: Sequence[Tensor]
) -> Sequence[Tensor | None]:
    """Differentiate the sums, each times its scale.

    Sums that are only logged have no gradient, such as the plain loss beside a smoothed one.
    """
    parts = [
        (total, scale.to(total.dtype))
        for total, scale in zip(loss.sums.values(), scales.unbind(), strict=True)
        if total.requires_grad
    ]
    sums, seeds = zip(*parts, strict=True)
    return torch.autograd.grad(sums, parameters, seeds, allow_unused=True)


def with_own_storage(gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
    """Give every gradient its own storage; gradients of added parameters share one."""
    seen: set[int] = set()
    separate: list[Tensor | None] = []
    for gradient in gradients:
        if gradient is not None:
            address = gradient.untyped_storage().data_ptr()
            if address in seen or not gradient.is_contiguous():
                gradient = gradient.clone(memory_format=torch.contiguous_format)
            seen.add(gradient.untyped_storage().data_ptr())
        separate.append(gradient)
    return separate


def copied_tensors(batch: Batch[Any]) -> list[Tensor]:
    """Return what is copied of a batch: its buffer, and the tensors that do not lie in it."""
    leaves, buffer = tensor_leaves(batch), batch.buffer
    if buffer is None:
        return leaves
    return [leaf for leaf in leaves if leaf is buffer or start_in(leaf, buffer) is None]


def has_packed_texts(value: Any) -> bool:
    """Return whether a tree of dataclasses has packed texts, in the order of recurrent layers."""
    return bool(tensor_leaves(value, PackedTexts))


def batch_key(batch: Batch[Any]) -> Hashable:
    """Return the key of a batch: batches with equal keys share a graph."""
    parts, buffer = (batch.inputs, batch.targets), batch.buffer
    key = tuple(map(graph_key, parts))
    if buffer is None:
        return key
    return *key, *(start_in(leaf, buffer) for part in parts for leaf in tensor_leaves(part))


def graph_key(value: Any) -> Hashable:
    """Return the shapes and types of the tensors in a tree, and the values beside them."""
    if isinstance(value, Tensor):
        return value.shape, value.dtype
    if is_dataclass(value):
        return type(value), *[graph_key(getattr(value, name)) for name in tree_fields(value)]
    if isinstance(value, Mapping):
        return tuple((name, graph_key(part)) for name, part in value.items())
    return value
