"""Batches whose loss or gradient is not finite: saved for the user, and left out where asked.

RUN/bad_batches/batch-00000011.safetensors   the tensors of a batch, for each micro-batch
RUN/bad_batches/batch-00000011.txt           its texts, where the run has a tokenizer
RUN/alarms.jsonl                             the batches that are left out, which a resume reads

Step n trains on batch n - 1 of the data, or on the first after it that is not left out. So a run
has as many updates as it has steps, whatever is left out, and the state of the data is the step and
the numbers of the batches that are left out.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from kinfolk.batch import Batch, Inputs, SegmentMemory
from kinfolk.errors import UserError
from kinfolk.files import error_number, new_file, partial_path
from kinfolk.training import log
from kinfolk.training.distributed import is_sharded, local

BAD_BATCHES = "bad_batches"  # folder in a run
ALARM = "non_finite"
# Left out before one step, or after one checkpoint. More are no fault of the data.
MAX_IN_A_ROW = 5

DroppedBatches = dict[int, int]  # number of a batch: number of steps that the run went on from


class DivergedError(UserError):
    """A run ends because its loss, its gradient or its weights are not finite."""


class NonFiniteError(DivergedError):
    """The loss or the gradient norm of a step is NaN or infinite."""

    def __init__(self, what: str, step: int, remedy: str = "") -> None:
        super().__init__(f"{what} at step {step}. {remedy}".rstrip())
        self.what, self.step = what, step  # steps count from 1


def batch_number(step: int, dropped: Collection[int]) -> int:
    """Return the number of the batch of a step; both count from 0."""
    number = step
    for other in sorted(dropped):
        number += other <= number
    return number


def batch_numbers(steps: range, dropped: Collection[int]) -> Iterator[int]:
    """Yield the number of the batch of each step."""
    if not steps:
        return
    number = batch_number(steps.start, dropped)
    for _ in steps:
        while number in dropped:
            number += 1
        yield number
        number += 1


def recorded_batches(run: Path) -> DroppedBatches:
    """Return the batches that the alarms of a run say are left out."""
    entries = [entry for entry in log.alarms(run) if "batch" in entry]
    return {entry["batch"]: entry["from_step"] for entry in entries}


def are_dropped(value: Any) -> bool:
    """Return whether a value from a file is what `DroppedBatches` describes."""
    return isinstance(value, dict) and all(
        type(number) is int and type(step) is int for number, step in value.items()
    )


@dataclass(frozen=True)
class InitialState:
    """Weights and memory of a run before its first step, until it has a checkpoint."""

    weights: Mapping[str, Tensor]  # in the memory of the host
    memory: Sequence[SegmentMemory]

    @classmethod
    def of(cls, model: nn.Module, memory: Sequence[SegmentMemory] | None) -> "InitialState":
        """Copy the state of a run."""
        weights = {
            name: local(t.detach()).to("cpu", copy=True) for name, t in model.state_dict().items()
        }
        return cls(weights, tuple(memory or ()))

    def restore(self, model: nn.Module, memory: list[SegmentMemory] | None) -> None:
        """Copy the state back."""
        if not any(map(is_sharded, model.parameters())):
            model.load_state_dict(dict(self.weights))
        else:  # each process has kept its share
            for name, tensor in model.state_dict().items():
                local(tensor).copy_(self.weights[name])
        if memory is not None:
            memory[:] = self.memory


def save_batch(
    run: Path,
    number: int,
    parts: Sequence[Batch[Any]],
    facts: Mapping[str, str],
    decode: Callable[[Sequence[int]], str | None],
) -> str:
    """Write the micro-batches of a batch and their texts; return where they are, or why not."""
    folder = run / BAD_BATCHES
    path = folder / f"batch-{number:08d}.safetensors"
    try:
        folder.mkdir(exist_ok=True)
        tensors = {
            f"{index}.{name}": tensor.detach().cpu().clone().contiguous()
            for index, batch in enumerate(parts)
            for name, tensor in named_tensors(batch)
        }
        save_file(tensors, partial_path(path), {"batch": str(number), **facts})
        partial_path(path).replace(path)
        lines = [line for batch in parts for line in decoded_texts(batch.inputs, decode)]
        if lines:
            with new_file(path.with_suffix(".txt")) as file:
                file.writelines(f"{line}\n" for line in lines)
    except Exception as error:  # what happened to the loss is still to be said
        if error_number(error) is None:
            raise
        return f"could not be saved ({error})"
    return f"is in {path.with_suffix('.txt') if lines else path}"


def named_tensors(value: Any, name: str = "") -> Iterator[tuple[str, Tensor]]:
    """Yield every tensor in a tree of dataclasses: inputs.input_ids, targets.labels."""
    if isinstance(value, Tensor):
        yield name, value
    elif is_dataclass(value):
        for part in fields(value):
            inner = vars(value).get(part.name)
            yield from named_tensors(inner, f"{name}.{part.name}".lstrip("."))


def decoded_texts(inputs: Inputs, decode: Callable[[Sequence[int]], str | None]) -> Iterator[str]:
    """Yield each text of packed rows, those of the encoder first, without padding."""
    if inputs.encoder_inputs is not None:
        yield from decoded_texts(inputs.encoder_inputs, decode)
    rows = zip(inputs.input_ids.tolist(), inputs.attention_mask.document_ids.tolist(), strict=True)
    for ids, documents in rows:
        for document, group in groupby(zip(documents, ids, strict=True), key=lambda pair: pair[0]):
            text = decode([token for _, token in group]) if document >= 0 else None
            if text is not None:
                yield " ".join(text.split())


def all_finite(weights: Sequence[Tensor]) -> bool:
    """Return whether no weight is NaN or infinite, with one read of the device."""
    return not weights or bool(torch.stack([p.isfinite().all() for p in weights]).all())
