"""Two runs compared to the bit: weights, training state and log of their last checkpoints."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from itertools import zip_longest
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from kinfolk.files import CHECKSUMS, TRAINING_STATE
from kinfolk.training.log import read

PARTS = ("weights", "training state", "log")  # of a run, each with a digest


def differences(run: Path, other: Path) -> dict[str, str]:
    """Return the first difference of each part that differs, as a sentence without its end."""
    checkpoint, theirs = run / "checkpoints" / "last", other / "checkpoints" / "last"
    found = {
        "weights": [
            *tensor_differences(weights(checkpoint), weights(theirs)),
            *file_differences(checkpoint, theirs),
        ],
        "training state": [
            *tensor_differences(*map(training_tensors, (checkpoint, theirs))),
            *file_differences(checkpoint, theirs, TRAINING_STATE[:1]),
        ],
        "log": [*log_differences(run, other)],
    }
    return {part: sentences[0] for part, sentences in found.items() if sentences}


def digests(run: Path) -> dict[str, str]:
    """Return the SHA-256 of the weights, the training state and the log of a run."""
    checkpoint = run / "checkpoints" / "last"
    state = (checkpoint / "training.json").read_bytes()
    return dict(
        zip(
            PARTS,
            (
                tensor_digest(weights(checkpoint)),
                tensor_digest(training_tensors(checkpoint), state),
                hashlib.sha256((run / "log.jsonl").read_bytes()).hexdigest(),
            ),
            strict=True,
        )
    )


def counts(run: Path) -> dict[str, str]:
    """Return how much each part holds: `28 tensors`, `24 steps`."""
    checkpoint = run / "checkpoints" / "last"
    return {
        "weights": f"{len(weights(checkpoint)):,} tensors",
        "training state": f"{len(training_tensors(checkpoint)):,} tensors",
        "log": f"{len(read(run)):,} steps",
    }


def weights(checkpoint: Path) -> dict[str, Tensor]:
    """Read the tensors of the model files of a checkpoint, by file and name."""
    files = sorted(f for f in checkpoint.rglob("*.safetensors") if f.name not in TRAINING_STATE)
    return {
        f"{file.relative_to(checkpoint)}: {name}": tensor
        for file in files
        for name, tensor in load_file(file).items()
    }


def training_tensors(checkpoint: Path) -> dict[str, Tensor]:
    """Read the tensors of the training state of a checkpoint: of the optimizer and the memory."""
    tensors = load_file(checkpoint / "training.safetensors")
    return {f"training.safetensors: {name}": tensor for name, tensor in tensors.items()}


def bits(tensor: Tensor) -> Tensor:
    """Return the bytes of a tensor."""
    return tensor.contiguous().flatten().view(torch.uint8)


def tensor_digest(tensors: Mapping[str, Tensor], more: bytes = b"") -> str:
    """Return the SHA-256 of names, types, shapes and bytes of tensors."""
    digest = hashlib.sha256(more)
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(bits(tensor).numpy().data)
    return digest.hexdigest()


def tensor_differences(
    tensors: Mapping[str, Tensor], others: Mapping[str, Tensor]
) -> Iterator[str]:
    """Yield a sentence for each tensor whose bits differ, or that only one of both has."""
    for name in sorted({*tensors, *others}):
        if name not in tensors or name not in others:
            yield f"{name} is in one run only"
            continue
        one, other = tensors[name], others[name]
        if (one.dtype, one.shape) != (other.dtype, other.shape):
            yield f"{name} differs in type or shape"
        elif not torch.equal(bits(one), bits(other)):
            unequal = bits(one) != bits(other)
            count = int(unequal.view(-1, one.element_size()).any(1).sum())
            largest = float((one.double() - other.double()).abs().max())
            yield f"{name} differs in {count:,} of {one.numel():,} values, by up to {largest:.3g}"


def file_differences(
    checkpoint: Path, other: Path, names: tuple[str, ...] | None = None
) -> Iterator[str]:
    """Yield a sentence for each file that differs; by default of those beside the tensors."""
    if names is None:
        files = {f.relative_to(c) for c in (checkpoint, other) for f in c.rglob("*") if f.is_file()}
        names = tuple(
            str(name)
            for name in sorted(files)
            if name.suffix != ".safetensors" and name.name not in (CHECKSUMS, *TRAINING_STATE)
        )
    for name in names:
        one, theirs = (c / name for c in (checkpoint, other))
        if not one.is_file() or not theirs.is_file():
            yield f"{name} is in one run only"
        elif one.read_bytes() != theirs.read_bytes():
            yield f"{name} differs"


def log_differences(run: Path, other: Path) -> Iterator[str]:
    """Yield a sentence for each value of the log that differs."""
    for line, theirs in zip_longest(read(run), read(other)):
        if line is None or theirs is None:
            yield f"log.jsonl: step {(line or theirs)['step']} is in one run only"
            continue
        for name in {**line, **theirs}:
            if json.dumps(line.get(name)) != json.dumps(theirs.get(name)):
                yield (
                    f"log.jsonl, step {line['step']}: {name} is {shown(line.get(name))} "
                    f"and {shown(theirs.get(name))}"
                )


def shown(value: Any) -> str:
    """Write a value of the log with all its digits."""
    return json.dumps(value)
