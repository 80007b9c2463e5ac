"""The registry of families: an index that needs no torch, and one file imported for one family."""

import json
from dataclasses import asdict, dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kinfolk.config import did_you_mean, set_group, type_name
from kinfolk.errors import UserError
from kinfolk.extensions import HINT

if TYPE_CHECKING:
    from kinfolk.families.base import Family
    from kinfolk.nn.language_model import LanguageModel, ModelConfig

INDEX_FILE = Path(__file__).with_name("index.json")
_loaded: dict[str, "Family"] = {}


@dataclass(frozen=True, kw_only=True)
class IndexEntry:
    """A family's line in the index."""

    name: str
    title: str
    paper: str
    year: int
    architecture: str
    objectives: tuple[str, ...]
    sizes: tuple[str, ...]
    capabilities: tuple[str, ...]
    model_type: str | None  # of transformers

    @classmethod
    def of(cls, family: "Family") -> "IndexEntry":
        """Return the line of a family."""
        return cls(
            name=family.name,
            title=family.title,
            paper=family.paper,
            year=family.year,
            architecture=family.architecture,
            objectives=tuple(family.objectives),
            sizes=tuple(family.sizes),
            capabilities=family.capabilities,
            model_type=None if family.hf is None else family.hf.model_type,
        )


@cache
def read_index() -> dict[str, IndexEntry]:
    """Return the families of the package, the oldest first."""
    rows: list[dict[str, Any]] = json.loads(INDEX_FILE.read_text(encoding="utf-8"))
    entries = {}
    for row in rows:
        lists: dict[str, Any] = {k: tuple(v) for k, v in row.items() if isinstance(v, list)}
        entries[row["name"]] = IndexEntry(**row | lists)
    return entries


def index_text(families: "list[Family]") -> str:
    """Return the contents of index.json: one family per line, the oldest first."""
    rows = sorted(families, key=lambda family: (family.year, family.name))
    lines = [json.dumps(asdict(IndexEntry.of(row)), ensure_ascii=False) for row in rows]
    return "[\n" + ",\n".join(lines) + "\n]\n"


def register(family: "Family") -> "Family":
    """Add a family from outside the package, so that its name can be used."""
    known = _loaded.get(family.name)
    if known is not family and (known is not None or family.name in read_index()):
        raise ValueError(f"family {family.name!r} already exists: choose another name")
    set_group(family.name, "model")
    for objective in family.objectives.values():
        set_group(type_name(objective), "objective")
    _loaded[family.name] = family
    return family


def registered_families() -> "list[Family]":
    """Return the families from outside the package."""
    return [family for name, family in _loaded.items() if name not in read_index()]


def index() -> dict[str, IndexEntry]:
    """Return the index entry of every family, baselines included; imports no family."""
    return read_index() | {name: IndexEntry.of(family) for name, family in _loaded.items()}


def family(name: str) -> "Family":
    """Return a family by its name; imports only its module."""
    if name not in _loaded:
        if name not in read_index():
            check_indexed(name)
            raise UserError(f"unknown family {name!r}: {did_you_mean(name, [*index()], HINT)}")
        _loaded[name] = import_module(f"kinfolk.families.{name}").FAMILY
    return _loaded[name]


def families() -> dict[str, "Family"]:
    """Return every family that can be pretrained, the oldest first; imports all of them."""
    return {name: family(name) for name, entry in index().items() if entry.objectives}


def family_of(network: "LanguageModel | ModelConfig") -> "Family":
    """Return the family of a network or of its config, with a task head or without."""
    return family(network.family_name)


def check_indexed(name: str) -> None:
    """Refuse a family whose file is not in the index yet."""
    if name.isidentifier() and INDEX_FILE.with_name(f"{name}.py").is_file() and name != "base":
        raise UserError(
            f"families/{name}.py is not in families/index.json: run python -m kinfolk.families"
        )


def check_name(name: str) -> None:
    """Check an argument FAMILY/SIZE that is not a folder."""
    known, (family_name, _, size) = index(), name.partition("/")
    if family_name not in known:
        check_indexed(family_name)
        close = did_you_mean(family_name, [*known], HINT)
        raise UserError(f"{name} is neither a folder nor a family: {close}")
    if size and size not in known[family_name].sizes:
        sizes = known[family_name].sizes
        raise UserError(f"{family_name} has no size {size!r}: {did_you_mean(size, sizes)}")


def check_objective(name: str, objective: str | None) -> None:
    """Check the objective of an argument FAMILY/SIZE; a folder is not judged."""
    family_name = name.partition("/")[0]
    entry = None if Path(name).exists() else index().get(family_name)
    if entry is not None and entry.objectives and objective not in (None, *entry.objectives):
        supported = ", ".join(entry.objectives)
        raise UserError(f"{family_name} has no objective {objective!r} (supported: {supported})")
