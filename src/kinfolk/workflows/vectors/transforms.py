"""Transforms of text vectors in their order, as they are fitted, saved and loaded again.

A saved transform is a folder: transform.json names the transforms and the vectors that they were
fitted on, transform.safetensors has the tensors.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from kinfolk.errors import UserError
from kinfolk.files import new_folder
from kinfolk.nn.flow import Flow
from kinfolk.nn.vector_transforms import (
    ComponentRemoval,
    Standardization,
    VectorTransform,
    Whitening,
)
from kinfolk.workflows.vectors.choices import TRANSFORM_SETTINGS, check_saved_transform

SETTINGS, TENSORS = TRANSFORM_SETTINGS, "transform.safetensors"
REFERENCE = "model.reference"  # the tensor of a ModelReference
REFERENCE_TOLERANCE = 0.01  # of the norm; devices and precisions differ by less
TRANSFORM_KINDS: dict[str, type[VectorTransform]] = {
    kind.kind: kind for kind in (Standardization, ComponentRemoval, Whitening, Flow)
}


@dataclass(frozen=True)
class TransformSpec:
    """Which transforms are fitted; they are applied in the order of the fields."""

    standardize: bool = False
    remove_components: int = 0
    whiten: bool = False
    flow: bool = False

    @property
    def names(self) -> list[str]:
        """The names of the chosen transforms, as in options."""
        return [
            *(["standardize"] if self.standardize else []),
            *([f"remove-components-{self.remove_components}"] if self.remove_components else []),
            *(["whiten"] if self.whiten else []),
            *(["flow"] if self.flow else []),
        ]


@dataclass(frozen=True, eq=False)
class ModelReference:
    """What tells the model of vectors from others: its family, and what it returns for one text.

    Numbers that are compared within a tolerance hold on every device; a hash would not include the
    tokenizer, or would differ for heads that are initialized when a folder is opened.
    """

    family: str
    vector: Tensor  # of a fixed text: (size,)

    def matches(self, other: "ModelReference") -> bool:
        """Return whether both are of one model."""
        if self.family != other.family or self.vector.shape != other.vector.shape:
            return False
        distance = (self.vector - other.vector).norm()
        return bool(distance <= REFERENCE_TOLERANCE * self.vector.norm())


@dataclass(frozen=True, eq=False)
class VectorTransforms:
    """Transforms in their order, and the vectors that they were fitted on."""

    steps: tuple[VectorTransform, ...]
    pooling: str
    layers: tuple[int, ...]
    texts: int  # that they were fitted on
    model: ModelReference | None = None  # None for vectors that no model is known of

    @classmethod
    def fit(
        cls,
        spec: TransformSpec,
        vectors: ArrayLike,
        pooling: str = "mean",
        layers: Sequence[int] = (),
        *,
        model: ModelReference | None = None,
        seed: int = 0,
    ) -> "VectorTransforms":
        """Fit each transform on what those before it return."""
        x = torch.from_numpy(as_vectors(vectors)).double()
        if not bool(x.isfinite().all()):
            raise UserError("the vectors are not finite numbers: the model has diverged")
        steps: list[VectorTransform] = []

        def add(step: VectorTransform) -> None:
            nonlocal x
            steps.append(step)
            x = step(x)

        if spec.standardize:
            add(Standardization.fit(x))
        if spec.remove_components:
            add(ComponentRemoval.fit(x, spec.remove_components))
        if spec.whiten:
            add(Whitening.fit(x))
        if spec.flow:
            add(Flow.fit(x, seed=seed))
        return cls(tuple(steps), pooling, tuple(layers), len(x), model)

    @property
    def input_size(self) -> int:
        """The size of the vectors that they read."""
        return self.steps[0].input_size

    @property
    def output_size(self) -> int:
        """The size of the vectors that they return."""
        return self.steps[-1].output_size

    @property
    def notes(self) -> list[str]:
        """What the fits found."""
        return [step.summary for step in self.steps if step.summary]

    def __call__(self, vectors: ArrayLike) -> NDArray[np.float32]:
        """Return the transformed vectors."""
        x = torch.from_numpy(as_vectors(vectors)).double()
        self.check_size(x.shape[1])
        for step in self.steps:
            x = step(x)
        return x.float().numpy()

    def check_size(self, size: int) -> None:
        """Refuse vectors of another size."""
        if size != self.input_size:
            raise UserError(
                f"the transform was fitted on vectors of {self.input_size} numbers, and these have "
                f"{size}: use the model that it was fitted with"
            )

    def check(self, pooling: str, layers: Sequence[int]) -> None:
        """Refuse vectors of another pooling or of other layers than it was fitted on."""
        own, given = (self.pooling, self.layers), (pooling, tuple(layers))
        if own != given:
            listed = ",".join(map(str, self.layers))
            raise UserError(
                f"the transform was fitted on --pooling {self.pooling} --layers {listed}: use the "
                "same, or leave both out"
            )

    def check_family(self, family: str) -> None:
        """Refuse a model of another family than it was fitted on."""
        if self.model is not None and self.model.family != family:
            self.refuse(f"a {self.model.family} model, and this is {family}")

    def check_layers(self, sizes: Sequence[int]) -> None:
        """Refuse a network without the layers that it was fitted on; `sizes` are of all layers."""
        last = len(sizes) - 1
        missing = [n for n in self.layers if n > last]
        if missing:
            self.refuse(f"layer {missing[0]}, and this model has layers 0 to {last}")
        for n in self.layers:
            self.check_size(sizes[n])

    def check_model(self, model: ModelReference) -> None:
        """Refuse the vectors of another model than it was fitted on."""
        if self.model is None or self.model.matches(model):
            return
        self.check_family(model.family)
        self.refuse(f"another {model.family} model or tokenizer")

    @staticmethod
    def refuse(known: str) -> NoReturn:
        """Raise the error about vectors of another model."""
        raise UserError(
            f"the transform was fitted on vectors of {known}: use the model that it was fitted "
            "with, or fit a new transform"
        )

    def save(self, path: Path, *, replace: bool = False) -> None:
        """Write a new folder, or one in place of another saved transform."""
        settings = {
            "transforms": [step.kind for step in self.steps],
            "input_size": self.input_size,
            "output_size": self.output_size,
            "pooling": self.pooling,
            "layers": list(self.layers),
            "texts": self.texts,
            "family": None if self.model is None else self.model.family,
        }
        tensors = {
            f"{number}.{name}": value.contiguous().clone()
            for number, step in enumerate(self.steps)
            for name, value in step.tensors.items()
        }
        if self.model is not None:
            tensors[REFERENCE] = self.model.vector.contiguous().clone()
        if replace and path.is_dir():  # other files stay, and are refused below
            for name in (SETTINGS, TENSORS):
                (path / name).unlink(missing_ok=True)
        with new_folder(path) as folder:
            save_file(tensors, folder / TENSORS)
            text = json.dumps(settings, indent=2) + "\n"
            (folder / SETTINGS).write_text(text, encoding="utf-8")

    @classmethod
    def load(cls, path: Path | str) -> "VectorTransforms":
        """Read a folder that `save` wrote."""
        folder = Path(path)
        check_saved_transform(folder)
        try:
            settings = json.loads((folder / SETTINGS).read_text(encoding="utf-8"))
            tensors = load_file(folder / TENSORS)
            steps = []
            for number, kind in enumerate(settings["transforms"]):
                own = {
                    name.removeprefix(f"{number}."): value
                    for name, value in tensors.items()
                    if name.startswith(f"{number}.")
                }
                steps.append(TRANSFORM_KINDS[kind].from_tensors(own))
            family = settings.get("family")
            model = None if family is None else ModelReference(str(family), tensors[REFERENCE])
            found = cls(
                tuple(steps),
                str(settings["pooling"]),
                tuple(int(n) for n in settings["layers"]),
                int(settings["texts"]),
                model,
            )
            found.check_sizes()
        except (OSError, ValueError, KeyError, TypeError, RuntimeError, SafetensorError) as error:
            reason = " ".join(str(error).split())[:120]
            raise UserError(f"{folder} is damaged ({reason}): fit the transform again") from error
        return found

    def check_sizes(self) -> None:
        """Raise ValueError unless every transform reads what the one before returns."""
        if not self.steps:
            raise ValueError("no transforms")
        x = torch.zeros(1, self.input_size, dtype=torch.float64)
        for step in self.steps:
            x = step(x)
        if not bool(x.isfinite().all()):
            raise ValueError("values that are not finite")


def as_vectors(values: ArrayLike) -> NDArray[Any]:
    """Return vectors as an array; refuse what is not one vector of numbers per text."""
    try:
        found = np.asarray(values)
        numbers = found if found.dtype.kind == "f" else found.astype(np.float64)
    except (ValueError, TypeError):
        raise UserError(
            "vectors must be numbers, (texts, size): pass what kinfolk.embed returns"
        ) from None
    if numbers.ndim != 2:
        raise UserError(
            f"vectors must have two axes, (texts, size), and these have the shape "
            f"{numbers.shape}: pass what kinfolk.embed returns, of one text vectors[None]"
        )
    return numbers


def is_saved_transform(folder: Path) -> bool:
    """Return whether a folder has the files of a saved transform, and no others."""
    return folder.is_dir() and {path.name for path in folder.iterdir()} == {SETTINGS, TENSORS}
