"""Configuration is Python: frozen dataclasses, fields set by path, and JSON both ways."""

import dataclasses
import difflib
import importlib
import json
import types
import typing
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

from kinfolk.errors import UserError

T = TypeVar("T")
TAG = "is"  # the key under which JSON keeps the import path of a dataclass


def to_json(value: Any) -> Any:
    """Turn a tree of dataclasses into what JSON knows, each with its import path."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        kind = type(value)
        fields = {f.name: to_json(getattr(value, f.name)) for f in dataclasses.fields(value)}
        return {TAG: f"{kind.__module__}:{kind.__qualname__}", **fields}
    if isinstance(value, tuple | list):
        return [to_json(item) for item in value]
    if isinstance(value, Path):
        return str(value)
    return value


def from_json(value: Any) -> Any:
    """Rebuild what `to_json` wrote."""
    if isinstance(value, list):
        return tuple(from_json(item) for item in value)
    if not isinstance(value, dict):
        return value
    if not isinstance(value.get(TAG), str):
        raise UserError(f"this JSON says not what it is: {TAG!r} should hold an import path")
    kind = _find(value[TAG])
    names = {f.name for f in dataclasses.fields(kind)}
    given = {name: from_json(item) for name, item in value.items() if name != TAG}
    if unknown := given.keys() - names:
        raise UserError(
            f"{value[TAG]} has no field {_or(sorted(unknown))}: it has {_or(sorted(names))}"
        )
    return kind(**given)


def write(value: Any, path: Path) -> None:
    """Write a tree of dataclasses as JSON."""
    text = json.dumps(to_json(value), indent=2, ensure_ascii=False)
    path.write_text(text + "\n", encoding="utf-8")


def read(path: Path) -> Any:
    """Read what `write` wrote."""
    try:
        return from_json(json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        raise UserError(f"{path.parent} is not a run: it has no {path.name}") from None
    except json.JSONDecodeError as error:
        raise UserError(f"{path} is not JSON: {error}") from None


def override(value: T, settings: Sequence[str]) -> T:
    """Set fields by their paths: `override(recipe, ["train.steps=500"])`."""
    for setting in settings:
        path, equals, text = setting.partition("=")
        if not equals:
            raise UserError(f"{setting!r} is not a setting: write field.path=value")
        value = _set(value, path.split("."), text, path)
    return value


def nearest(name: str, names: Sequence[str]) -> str:
    """Return the end of a sentence that names the closest choices, or all of them."""
    close = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    return f"did you mean {_or(close)}?" if close else f"there are {', '.join(names)}"


def _set(value: Any, path: list[str], text: str, whole: str) -> Any:
    name, *rest = path
    if not dataclasses.is_dataclass(value):
        raise UserError(f"{whole}: {name!r} is not a field: what stands before it has none")
    names = [f.name for f in dataclasses.fields(value)]
    if name not in names:
        raise UserError(f"{whole}: no field {name!r}: {nearest(name, names)}")
    if rest:
        new = _set(getattr(value, name), rest, text, whole)
    else:
        new = _parse(text, typing.get_type_hints(type(value))[name], whole)
    return dataclasses.replace(value, **{name: new})  # type: ignore[type-var]


def _parse(text: str, hint: Any, path: str) -> Any:
    origin, choices = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        if type(None) in choices and text.lower() in ("none", "null"):
            return None
        return _parse(text, next(c for c in choices if c is not type(None)), path)
    if origin is typing.Literal:
        if text not in choices:
            raise UserError(f"{path}={text}: it must be {_or([str(c) for c in choices])}")
        return text
    if origin is tuple:
        items = [item for item in text.strip("()").split(",") if item]
        if choices[-1] is not ... and len(items) != len(choices):
            raise UserError(f"{path}={text}: it must be {len(choices)} values with commas between")
        return tuple(_parse(item, choices[0], path) for item in items)
    if hint is bool:
        if text.lower() not in ("true", "false"):
            raise UserError(f"{path}={text}: it must be true or false")
        return text.lower() == "true"
    if hint in (int, float):
        try:
            return hint(text.replace("_", ""))
        except ValueError:
            kind = "a whole number" if hint is int else "a number"
            raise UserError(f"{path}={text}: it must be {kind}") from None
    if hint is str:
        return text
    raise UserError(f"{path}: this field holds parts of its own: set one of those")


def _find(path: str) -> type[Any]:
    module, _, name = path.partition(":")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise UserError(f"{path} cannot be found: {error}") from None
    if not dataclasses.is_dataclass(found):
        raise UserError(f"{path} is not a configuration")
    assert isinstance(found, type)
    return found


def _or(names: Sequence[str]) -> str:
    return " or ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
