"""Trees of dataclasses with tensors, and one buffer that holds all tensors of a tree.

tree      Batch(inputs=Inputs(input_ids=tensor, ...), targets=TokenTargets(labels=tensor, ...))
layout    Batch(inputs=Inputs(input_ids=Place(...), ...), ...)
buffer    bytes: input_ids, document_ids, ..., labels; each begins at a multiple of `ALIGNMENT`

A buffer is written, pinned and copied to a device as a whole: one call in place of one for each
tensor. The layout gives the tree of the tensors that lie in a buffer.
"""

from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import fields, is_dataclass, replace
from functools import cache
from math import prod
from typing import Any, NamedTuple, Self, TypeVar

import torch
from torch import Tensor
from torch.utils.dlpack import from_dlpack, to_dlpack  # type: ignore[attr-defined]  # by its stubs

ALIGNMENT = 64  # bytes; kernels that read 16 at a time need a multiple of 16
T = TypeVar("T")


def tree_fields(value: Any) -> Any:
    """Return the names of the fields of a dataclass, and nothing for other values.

    What `dataclasses.fields` reads, in less time: every step walks some trees.
    """
    cls: Any = type(value)
    return field_names(cls)


@cache
def field_names(cls: Any) -> tuple[str, ...]:
    """Return the names of the fields of a dataclass."""
    return tuple(f.name for f in fields(cls)) if is_dataclass(cls) else ()


def tree_map(
    value: T, change: Callable[[Any], Any], leaf: type = Tensor, *, checked: bool = True
) -> T:
    """Change every tensor in a tree of dataclasses, or every leaf of another type.

    Dataclasses check the new fields, unless these are other things than the leaves were.
    """
    if isinstance(value, leaf):
        return change(value)
    changes = {}
    for name in tree_fields(value):
        old = getattr(value, name)
        if old is not None and (new := tree_map(old, change, leaf, checked=checked)) is not old:
            changes[name] = new
    if not changes:
        return value
    return (replace if checked else with_unchecked)(value, **changes)  # type: ignore[type-var]


def with_unchecked(value: T, **changes: Any) -> T:
    """Return a dataclass with other fields, which it does not check."""
    new = copy(value)
    for name, field in changes.items():
        object.__setattr__(new, name, field)  # also of a frozen one
    return new


def tensor_leaves(value: Any, leaf: type = Tensor) -> list[Any]:
    """Return every tensor in a tree of dataclasses, or every leaf of another type."""
    if isinstance(value, leaf):
        return [value]
    found = []
    for name in tree_fields(value):
        part = getattr(value, name)
        if part is not None:
            found += tensor_leaves(part, leaf)
    return found


class TensorTree:
    """A dataclass of tensors that moves to a device as a whole."""

    def to(self, device: torch.device | str) -> Self:
        """Copy every tensor to a device, asynchronously from pinned memory."""
        return tree_map(self, lambda t: t.to(device, non_blocking=True))


class Place(NamedTuple):
    """Where a contiguous tensor lies in a buffer."""

    start: int  # in elements of its type
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype


def lay_out(tree: T) -> tuple[T, dict[Place, Tensor], int]:
    """Return the layout of a tree, the tensors by their places, and the bytes of a buffer of it.

    A tensor that occurs twice in the tree has one place.
    """
    tensors: dict[Place, Tensor] = {}
    found: dict[int, Place] = {}
    size = 0

    def place(tensor: Tensor) -> Place:
        nonlocal size
        if id(tensor) not in found:
            shape = tuple(tensor.shape)
            strides = tuple(prod(shape[axis + 1 :]) for axis in range(len(shape)))
            new = Place(size // tensor.itemsize, shape, strides, tensor.dtype)
            found[id(tensor)], tensors[new] = new, tensor
            size += -(-tensor.numel() * tensor.itemsize // ALIGNMENT) * ALIGNMENT
        return found[id(tensor)]

    return tree_map(tree, place, checked=False), tensors, size


class BufferTensors:
    """The tensors of a buffer, by their places."""

    def __init__(self, buffer: Tensor) -> None:
        assert buffer.storage_offset() == 0, "places count from the start of the storage"
        self.buffer = buffer
        self.typed: dict[torch.dtype, Tensor] = {}  # the whole buffer as elements of each type

    def __call__(self, place: Place) -> Tensor:
        """Return the tensor at a place."""
        if place.dtype not in self.typed:
            self.typed[place.dtype] = self.buffer.view(place.dtype)
        view = self.typed[place.dtype].as_strided(place.shape, place.strides, place.start)
        # A tensor of its own and not a view at an offset: torch.compile would compile again where
        # an offset happens to equal a size.
        return from_dlpack(to_dlpack(view))


def write_buffer(tensors: Mapping[Place, Tensor], buffer: Tensor) -> None:
    """Copy tensors to their places in a buffer."""
    tensor_at = BufferTensors(buffer)
    for place, tensor in tensors.items():
        tensor_at(place).copy_(tensor)


def start_in(tensor: Tensor, buffer: Tensor) -> int | None:
    """Return the byte of a buffer at which a tensor starts; None where it lies elsewhere."""
    start = tensor.data_ptr() - buffer.data_ptr()
    inside = 0 <= start < buffer.nbytes and tensor.device == buffer.device
    return start if inside and tensor.is_contiguous() else None


def moved_with(
    buffer: Tensor, moved: Tensor, move: Callable[[Tensor], Tensor]
) -> Callable[[Tensor], Tensor]:
    """Return a change of tensors: those of a buffer to those of the moved one, others by `move`."""
    tensor_at = BufferTensors(moved)

    def change(tensor: Tensor) -> Tensor:
        start = start_in(tensor, buffer)
        if start is None:
            return move(tensor)
        at = start // tensor.itemsize
        return tensor_at(Place(at, tensor.shape, tensor.stride(), tensor.dtype))

    return change
