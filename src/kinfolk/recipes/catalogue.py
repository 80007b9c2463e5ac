"""The family as it is: what lies in `models/`, and what else is known of each."""

import importlib
import pkgutil
import re
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any

import kinfolk.hub
import kinfolk.models
import kinfolk.recipes
from kinfolk.config import did_you_mean
from kinfolk.errors import UserError
from kinfolk.nn.language_model import LanguageModel
from kinfolk.training.config import TrainConfig


@dataclass(frozen=True)
class Family:
    """One family member: a file in `models/`."""

    name: str
    title: str
    paper: str
    year: int
    architecture: str  # encoder, decoder, encoder-decoder, recurrent
    objectives: tuple[str, ...]  # what it can learn by, its own first
    sizes: tuple[str, ...]
    capabilities: tuple[str, ...]

    @property
    def model(self) -> ModuleType:
        """The file of its network."""
        return importlib.import_module(f"kinfolk.models.{self.name}")

    @property
    def recipe(self) -> ModuleType:
        """The file of its settings."""
        return importlib.import_module(f"kinfolk.recipes.{self.name}")

    def objective(self, name: str | None = None) -> type[Any]:
        """Return a way of learning by name; its own where none is given."""
        ways: dict[str, type[Any]] = self.recipe.OBJECTIVES
        name = name or self.objectives[0]
        if name not in ways:
            raise UserError(
                f"{self.name} cannot learn by {name!r}: it learns by {' or '.join(ways)}"
            )
        return ways[name]

    def config(self, size: str) -> Any:
        """Return a preset by its name."""
        if size not in self.sizes:
            raise UserError(f"{self.name} has no size {size!r}: {did_you_mean(size, self.sizes)}")
        return self.model.SIZES[size]

    def train(self, size: str) -> TrainConfig:
        """Return the settings of a run: the paper's for a published size."""
        published = size.startswith(self.name.split("_")[0])
        found: TrainConfig = self.recipe.PAPER if published else self.recipe.TRAIN
        return found


@cache
def families() -> dict[str, Family]:
    """Find the family by the files there are."""
    names = [m.name for m in pkgutil.iter_modules(kinfolk.models.__path__)]
    found = [_member(name) for name in names]
    return {m.name: m for m in sorted(found, key=lambda m: (m.year, m.name))}


def family(name: str) -> Family:
    """Return a member by its name."""
    if name not in families():
        raise UserError(f"no member {name!r} in the family: {did_you_mean(name, list(families()))}")
    return families()[name]


def family_of(model: LanguageModel) -> Family:
    """Return the member a network belongs to, whatever stands on it."""
    return family(type(model.pretrained).__module__.rpartition(".")[2])


def _member(name: str) -> Family:
    model = importlib.import_module(f"kinfolk.models.{name}")
    # The first line of a model's file: "GPT-2 (Radford et al., 2019): what is new in it."
    line = re.match(r"([^(]+) \((.+), (\d{4})\): ", model.__doc__ or "")
    assert line, f"models/{name}.py must start with its paper"
    recipes = {m.name for m in pkgutil.iter_modules(kinfolk.recipes.__path__)}
    network: type[LanguageModel] = next(iter(model.SIZES.values())).network()
    tables = {m.name for m in pkgutil.iter_modules(kinfolk.hub.__path__)}
    known = name in recipes
    objectives = importlib.import_module(f"kinfolk.recipes.{name}").OBJECTIVES if known else {}
    can = {
        "pretrain": known,
        "generate": network.decoding is not None,
        "fill": network.can_fill,
        "export": name in tables,
    }
    return Family(
        name,
        line[1],
        f"{line[2]} {line[3]}",
        int(line[3]),
        network.architecture,
        tuple(objectives),
        tuple(model.SIZES),
        tuple(ability for ability, has in can.items() if has),
    )
