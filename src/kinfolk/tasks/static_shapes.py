"""Few static shapes for the batches of fine-tuning, so that its steps are replayed as CUDA graphs.

examples of a batch       12 7 31 9 22 ...             another number of tokens in every batch
packed, eager             6 rows of 48, 5 rows of 72   another shape in nearly every batch
packed, static            4, 5 or 6 rows of 72         rows of padding fill up to one of the shapes

Padding predicts nothing. An instance after the last owns what fills up the targets: its label is
ignored and its weight is 0.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch.nn.functional as F
from torch import Tensor

from kinfolk.batch import IGNORE_INDEX, Batch, Inputs, TokenTargets
from kinfolk.data.chunks import IntArray
from kinfolk.data.packing import Packing, pack
from kinfolk.tasks.formulations.base import (
    PAD_TO_MULTIPLE_OF,
    ROW_LENGTH_FACTORS,
    SHORT_ROW,
    Formulation,
    Instance,
    TaskTargets,
    collate_packed,
    round_up,
)
from kinfolk.tasks.instances import TaskBatches

MAX_SHAPES = 8  # of a run
MERGE_COST = 1.03  # shapes are merged while positions stay below this factor of those without
TWO_LENGTHS_GAIN = 0.95  # rows of a second length must leave less than this part of the positions
SPARE_TARGETS = 1.1  # room in the targets over the most of all sampled batches
SAMPLED_BATCHES = 256  # of a run, from which shapes are chosen

TargetSizes = Mapping[str, int]  # elements of each tensor of the targets, by its name


@dataclass(frozen=True)
class BatchShape:
    """The shape of all tensors of a batch."""

    num_rows: int
    row_lengths: tuple[int, ...]  # of each stream
    target_sizes: TargetSizes

    @property
    def positions(self) -> int:
        """The positions of all rows, with padding."""
        return self.num_rows * sum(self.row_lengths)


@dataclass(frozen=True)
class StaticBatches:
    """Makes the batches of a formulation in a few shapes; one that fits into none is as it was.

    It contains the batches that have one of these shapes.
    """

    formulation: Formulation
    shapes: tuple[BatchShape, ...]  # from the smallest to the largest

    def make_batch(self, instances: Sequence[Instance], /) -> Batch[TaskTargets]:
        """Pack the examples of instances into rows, and fill up to the smallest shape they fit."""
        examples = [example for instance in instances for example in instance.examples]
        sizes = np.array([example.lengths for example in examples], np.int64)
        packings: dict[tuple[int, ...], Packing | None] = {}
        for shape in self.shapes:
            lengths = shape.row_lengths
            if lengths not in packings:
                packings[lengths] = pack(sizes, lengths) if fits(sizes, lengths) else None
            packing = packings[lengths]
            if packing is None or len(packing) > shape.num_rows:
                continue
            collated = collate_packed(
                examples, packing, lengths, self.formulation.pad_id, num_rows=shape.num_rows
            )
            targets = self.formulation.targets(instances, examples, collated)
            padded = pad_targets(targets, shape.target_sizes)
            if padded is not None:
                counts = self.formulation.counts(instances, targets)
                return Batch(collated.inputs, padded, counts)
        return self.formulation.make_batch(instances)

    def __contains__(self, batch: object) -> bool:
        if not isinstance(batch, Batch):
            return False
        sizes = input_sizes(batch.inputs), target_sizes(batch.targets)
        return any(
            sizes == ((shape.num_rows, *shape.row_lengths), shape.target_sizes)
            for shape in self.shapes
        )

    @property
    def max_positions(self) -> int:
        """The positions of the largest batch."""
        return self.shapes[-1].positions


def input_sizes(inputs: Inputs) -> tuple[int, ...]:
    """Return the rows of a batch, and the length of each stream."""
    rows, length = inputs.input_ids.shape
    if inputs.encoder_inputs is None:
        return rows, length
    return rows, inputs.encoder_inputs.input_ids.shape[1], length


def target_tensors(targets: TaskTargets) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors of the targets with their names."""
    for name in ("read_at", "instance_ids", "target", "weight", "teacher_probs", "example_ids"):
        value = getattr(targets, name)
        if value is not None:
            yield name, value
    if targets.tokens is not None:
        yield "tokens", targets.tokens.labels


def target_sizes(targets: TaskTargets) -> TargetSizes:
    """Return the elements of each tensor of the targets."""
    return {name: len(value) for name, value in target_tensors(targets)}


def pad_targets(targets: TaskTargets, sizes: TargetSizes) -> TaskTargets | None:
    """Fill up the targets; None where some have no room for padding.

    What is added reads the first position, and belongs to an instance and an example after the
    last ones.
    """
    own = target_sizes(targets)
    if any(size > 0 and size >= sizes[name] for name, size in own.items()):
        return None

    def fill(name: str, value: float, tensor: Tensor) -> Tensor:
        missing = sizes[name] - len(tensor)
        return F.pad(tensor, (*[0] * (2 * tensor.ndim - 2), 0, missing), value=value)

    instances = int(targets.instance_ids.max()) + 1
    values: dict[str, float] = {
        "instance_ids": instances,
        "target": 0 if targets.target.is_floating_point() else IGNORE_INDEX,
        "example_ids": own["instance_ids"],
    }
    padded: dict[str, Any] = {
        name: fill(name, values.get(name, 0), tensor)
        for name, tensor in target_tensors(targets)
        if name != "tokens"
    }
    if (tokens := targets.tokens) is None:
        return replace(targets, **padded)
    assert tokens.positions is not None, "a formulation predicts at some positions"
    labels = fill("tokens", IGNORE_INDEX, tokens.labels)
    filled = TokenTargets(labels, fill("tokens", 0, tokens.positions))
    return replace(targets, **padded, tokens=filled)


def fits(sizes: IntArray, row_lengths: Sequence[int]) -> bool:
    """Return whether every example is as long as a row or shorter."""
    return bool((sizes.max(0) <= np.array(row_lengths)).all())


def static_batches(
    formulation: Formulation, batches: TaskBatches, num_batches: int
) -> StaticBatches:
    """Choose the shapes of a run of so many micro-batches: a function of its data alone."""
    numbers = np.unique(np.linspace(0, num_batches - 1, SAMPLED_BATCHES).astype(np.int64))
    sample = [batches.instances(number) for number in numbers.tolist()]
    every = (example for some in batches.sets for instance in some for example in instance.examples)
    return choose_shapes(formulation, sample, np.max([e.lengths for e in every], axis=0))


def choose_shapes(
    formulation: Formulation, sample: Sequence[Sequence[Instance]], longest: IntArray
) -> StaticBatches:
    """Choose the shapes of a run by some of its batches and its longest examples, (streams,).

    Rows have one length, or two where the longest examples are much longer than most; the numbers
    of rows are those of the sample, merged while that adds few positions.
    """
    sizes = [
        np.array([example.lengths for instance in batch for example in instance.examples])
        for batch in sample
    ]
    lengths = candidate_lengths(sizes, longest)
    needed = np.array([[num_rows(some, length) for length in lengths] for some in sizes])
    widths = np.array([sum(length) for length in lengths])
    whole = [number for number, length in enumerate(lengths) if fits(longest[None], length)]
    chosen, best = [whole[0]], np.inf
    for number in whole:
        positions = float((needed[:, number] * widths[number]).sum())
        if positions < 0.97 * best:
            chosen, best = [number], positions
    for other in range(len(lengths)):
        pair = [other, chosen[-1]]
        positions = float((needed[:, pair] * widths[pair]).min(1).sum())
        if positions < TWO_LENGTHS_GAIN * best:
            chosen, best = pair, positions
    merged = merge_shapes(needed[:, chosen], widths[chosen])
    measured = [target_sizes(formulation.make_batch(batch).targets) for batch in sample]
    shapes = [
        BatchShape(
            rows,
            lengths[chosen[number]],
            room_for(measured, needed[:, chosen[number]] <= rows),
        )
        for number, rows in merged
    ]
    return StaticBatches(formulation, tuple(sorted(shapes, key=lambda shape: shape.positions)))


def candidate_lengths(sizes: Sequence[IntArray], longest: IntArray) -> list[tuple[int, ...]]:
    """Return the lengths of rows to choose from, the shortest first."""
    usual = np.median([some.max(0) for some in sizes], axis=0)
    found = {
        tuple(round_up(int(np.ceil(factor * size)), PAD_TO_MULTIPLE_OF) for size in base)
        for base in (usual, longest)
        for factor in (ROW_LENGTH_FACTORS if base.max() <= SHORT_ROW else ROW_LENGTH_FACTORS[:1])
    }
    return sorted(found, key=sum)


def num_rows(sizes: IntArray, row_lengths: Sequence[int]) -> float:
    """Return the rows of this length that a batch takes; infinite where an example is longer."""
    return len(pack(sizes, row_lengths)) if fits(sizes, row_lengths) else np.inf


def merge_shapes(
    needed: np.ndarray[Any, np.dtype[np.float64]], widths: IntArray
) -> list[tuple[int, int]]:
    """Return the shapes of a run, each the number of its row length and its number of rows.

    `needed` has the rows of each length that a batch takes: (batches, lengths).
    """
    cheapest = (needed * widths).argmin(1)
    shapes = sorted(
        {(number, int(needed[batch, number])) for batch, number in enumerate(cheapest.tolist())}
    )
    cost = np.array([rows * widths[number] for number, rows in shapes], np.float64)
    fitting = np.stack([needed[:, number] <= rows for number, rows in shapes], axis=1)
    each = np.where(fitting, cost, np.inf)  # (batches, shapes)
    limit = MERGE_COST * each.min(1).sum()
    while len(shapes) > 1:
        totals = [np.delete(each, n, axis=1).min(1).sum() for n in range(len(shapes))]
        least = int(np.argmin(totals))
        if len(shapes) <= MAX_SHAPES and totals[least] > limit:
            break
        each = np.delete(each, least, axis=1)
        del shapes[least]
    return shapes


def room_for(
    measured: Sequence[TargetSizes], fitting: np.ndarray[Any, np.dtype[np.bool_]]
) -> TargetSizes:
    """Return the sizes of targets with room for those of the batches that fit, and for padding.

    Tensors that always have as many elements as each other get as much room as each other.
    """
    room = {}
    for name in measured[0]:
        sizes = np.array([some[name] for some in measured])
        most = int(sizes[fitting].max())
        if sizes.max() == 0:
            room[name] = 0
        elif (sizes == most).all():
            room[name] = most + 1
        else:
            room[name] = round_up(int(SPARE_TARGETS * most) + 1, PAD_TO_MULTIPLE_OF)
    return room
