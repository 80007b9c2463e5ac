"""The registry of families: names without importing torch, and one file imported for one family."""

from importlib import import_module
from typing import TYPE_CHECKING

from kinfolk.config import did_you_mean
from kinfolk.errors import UserError
from kinfolk.families.entries import IndexEntry, read_index

if TYPE_CHECKING:
    from kinfolk.families.base import Family
    from kinfolk.nn.language_model import LanguageModel, ModelConfig

_loaded: dict[str, "Family"] = {}


def register(family: "Family") -> "Family":
    """Add a family from outside the package, so that its name can be used."""
    known = _loaded.get(family.name)
    if known is not family and (known is not None or family.name in read_index()):
        raise ValueError(f"family {family.name!r} already exists: choose another name")
    _loaded[family.name] = family
    return family


def index() -> dict[str, IndexEntry]:
    """Return the index entry of every family, baselines included; imports no family."""
    return read_index() | {name: family.entry for name, family in _loaded.items()}


def family(name: str) -> "Family":
    """Return a family by its name; imports only its module."""
    if name not in _loaded:
        if name not in read_index():
            raise UserError(f"unknown family {name!r}: {did_you_mean(name, [*index()])}")
        _loaded[name] = import_module(f"kinfolk.families.{name}").FAMILY
    return _loaded[name]


def families() -> dict[str, "Family"]:
    """Return every family that can be pretrained, the oldest first; imports all of them."""
    return {name: family(name) for name, entry in index().items() if entry.objectives}


def family_of(network: "LanguageModel | ModelConfig") -> "Family":
    """Return the family of a network or of its config, with a task head or without."""
    return family(network.family_name)


def check_name(name: str) -> None:
    """Check an argument FAMILY/SIZE that is not a folder."""
    known, (family_name, _, size) = index(), name.partition("/")
    if family_name not in known:
        close = did_you_mean(family_name, [*known])
        raise UserError(f"{name} is neither a folder nor a family: {close}")
    if size and size not in known[family_name].sizes:
        sizes = known[family_name].sizes
        raise UserError(f"{family_name} has no size {size!r}: {did_you_mean(size, sizes)}")
