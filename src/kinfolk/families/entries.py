"""The index of families, which needs no torch: index.json and its entries."""

import json
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

INDEX_FILE = Path(__file__).with_name("index.json")


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


@cache
def read_index() -> dict[str, IndexEntry]:
    """Return the families of the package, the oldest first."""
    rows: list[dict[str, Any]] = json.loads(INDEX_FILE.read_text(encoding="utf-8"))
    entries = {}
    for row in rows:
        lists: dict[str, Any] = {k: tuple(v) for k, v in row.items() if isinstance(v, list)}
        entries[row["name"]] = IndexEntry(**row | lists)
    return entries


def index_text(entries: list[IndexEntry]) -> str:
    """Return the contents of index.json: one family per line, the oldest first."""
    rows = sorted(entries, key=lambda entry: (entry.year, entry.name))
    lines = [json.dumps(asdict(row), ensure_ascii=False) for row in rows]
    return "[\n" + ",\n".join(lines) + "\n]\n"
