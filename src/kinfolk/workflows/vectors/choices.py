"""Which hidden states become the vector of a text, as users write it; checked without torch."""

from collections.abc import Iterable, Sequence
from numbers import Integral
from pathlib import Path
from typing import Literal

from kinfolk.errors import UserError

VectorPooling = Literal["mean", "cls", "last", "max"]
POOLINGS: tuple[VectorPooling, ...] = ("mean", "cls", "last", "max")
TRANSFORM_SETTINGS = "transform.json"  # in the folder of a saved transform
Layers = str | int | Sequence[int]  # "last", "all", "1,-1", or numbers


def check_pooling(pooling: str) -> VectorPooling:
    """Return the name of a pooling; refuse others."""
    for known in POOLINGS:
        if known == pooling:
            return known
    raise UserError(f"unknown --pooling {pooling!r}: choose one of {', '.join(POOLINGS)}")


def check_choices(pooling: str | None, layers: Layers | None) -> None:
    """Refuse what no network has, before one is opened."""
    if pooling is not None:
        check_pooling(pooling)
    if layers is not None:
        layer_numbers(layers)


def layer_numbers(layers: Layers) -> list[int] | None:
    """Return the numbers in a choice of layers, which the network may not have; None for all."""
    if layers == "all":
        return None
    given: list[object] = [layers]
    if isinstance(layers, str):
        given = [*("-1" if layers == "last" else layers).split(",")]
    elif isinstance(layers, Iterable):
        given = [*layers]
    found = [layer_number(word) for word in given]
    if not found or None in found:
        raise UserError(
            f"--layers {layers} must be last, all, or numbers such as 1,-1 (0 is the input of the "
            "first layer, -1 the last layer)"
        )
    return [number for number in found if number is not None]


def layer_number(word: object) -> int | None:
    """Return a number that is one or is written as one, None for anything else."""
    if isinstance(word, str) and word.strip().lstrip("-").isdecimal():
        return int(word)
    return int(word) if isinstance(word, Integral) else None


def check_saved_transform(folder: Path) -> None:
    """Refuse a folder that holds no saved transform."""
    if not (folder / TRANSFORM_SETTINGS).is_file():
        raise UserError(f"{folder} is no saved transform: it has no {TRANSFORM_SETTINGS}")
