"""Lines, cells and JSON objects of labelled files, each with its number; compressed or not."""

import json
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias

from kinfolk.data.listing import JSON
from kinfolk.data.streams import Source, decoded, lines, opened, suffix, unix
from kinfolk.data.tables import Row, absent, quoted, tabbed
from kinfolk.errors import UserError

Numbered: TypeAlias = tuple[int, Any]  # a line or record, from 1, and its JSON value
SAMPLE = 2000  # lines or records that are looked at before a guess


def text_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Stream the lines of a file, blank ones too."""
    with opened(path) as source:
        yield from enumerate(lines(source, unix(decoded(source))), 1)


def cells(path: Path) -> Iterator[Row]:
    """Stream the rows of a table; only commas are quoted, as in published files."""
    with opened(path) as source:
        yield from quoted(source) if suffix(path) == ".csv" else tabbed(source)


def objects(path: Path) -> Iterator[Numbered]:
    """Stream JSON values, one a line; a file that is one list or one object is read whole."""
    with opened(path) as source:
        numbered = enumerate(lines(source, unix(decoded(source))), 1)
        written = ((n, line) for n, line in numbered if line and not line.isspace())
        first = next(written, None)
        if first is None:
            return
        value = _first(first[1])
        if isinstance(value, dict):
            yield first[0], value
            yield from ((n, _parsed(line, n, source)) for n, line in written)
            return
        rest = "\n".join(line for _, line in numbered)  # most of it: an indented file
        value = _parsed(f"{first[1]}\n{rest}", first[0], source)
    yield from enumerate(value if isinstance(value, list) else [value], 1)


def sampled(path: Path) -> list[Numbered]:
    """Return the first records of a file."""
    return list(islice(objects(path), SAMPLE))


def holds_json(path: Path) -> bool:
    """Tell by its name whether a file holds JSON."""
    return suffix(path) in JSON


def field(row: Any, name: str, where: str) -> Any:
    """Return a field of an object; a dot leads into a field of a field."""
    value = row
    for step in [name] if isinstance(row, dict) and name in row else name.split("."):
        if not isinstance(value, dict):
            raise UserError(f"{where} has no field {name!r}: write an object with named fields")
        if step not in value:
            raise absent(name, list(value), where)
        value = value[step]
    return value


def text(value: Any, name: str, where: str) -> str:
    """Return a field's text; a list of texts is joined with spaces."""
    if isinstance(value, list) and all(isinstance(part, str) for part in value):
        return " ".join(value)
    if not isinstance(value, str):
        raise UserError(f"{name!r} in {where} is {shown(value)}, not text: choose another field")
    return value


def texts(value: Any, name: str, where: str) -> tuple[str, ...]:
    """Return a field's list of texts."""
    if not isinstance(value, list) or not all(isinstance(part, str) for part in value):
        raise UserError(f"{name!r} in {where} is {shown(value)}: give a list of texts")
    return tuple(value)


def first_of(row: Any, names: Sequence[str]) -> str | None:
    """Return the first of some names that an object has."""
    return next((n for n in names if isinstance(row, dict) and n in row), None)


def shown(value: Any, most: int = 40) -> str:
    """Write a JSON value for a sentence, cut where it is long."""
    said = json.dumps(value, ensure_ascii=False)
    return said if len(said) <= most else f"{said[: most - 1]}…"


def _first(line: str) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None  # the beginning of a value that goes on


def _parsed(written: str, number: int, source: Source) -> Any:
    try:
        return json.loads(written)
    except json.JSONDecodeError as error:
        raise UserError(
            f"line {number + error.lineno - 1:,} of {source.name} is not JSON ({error.msg}, column "
            f"{error.colno}): write one object a line, for example with jq -c, or one list"
        ) from error
    except (ValueError, RecursionError) as error:
        raise UserError(
            f"line {number:,} of {source.name} is no JSON that can be read ({error}): leave it out"
        ) from error
