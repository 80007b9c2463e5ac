"""Configuration: frozen dataclasses that check themselves, JSON by registered names, overrides.

`@config("gpt2")` makes a frozen dataclass and registers it under a short name. JSON holds that name
under the key "type"; reading JSON imports the module that `TYPES` gives for the name, and no other.
JSON, overrides like `train.steps=500` and Python calls pass the same checks.
"""

import dataclasses
import difflib
import importlib
import json
import math
import re
import sys
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar, dataclass_transform

from kinfolk.errors import UserError
from kinfolk.extensions import HINT
from kinfolk.synonyms import OTHER_WAYS, SAME_VALUES, SYNONYMS

T = TypeVar("T")
MAX_SHOWN = 200  # characters of a wrong value in a sentence
REMOTE = 2**18  # an upper bound from here on only guards against absurd sizes
LONE_SURROGATE = re.compile(r"[\ud800-\udfff]")
TYPE = "type"  # the key under which JSON holds the registered name of a dataclass

# A family's config has the name of the family and of its module.
FAMILY_INDEX = Path(__file__).parent / "families" / "index.json"
FAMILY_NAMES = [row["name"] for row in json.loads(FAMILY_INDEX.read_text(encoding="utf-8"))]

# group: {registered name: module that defines it}. The group limits the types of a field with a
# general type hint: `model: Any = field(group="model")`.
TYPES: dict[str, dict[str, str]] = {
    "recipe": {
        "pretrain": "kinfolk.workflows.recipe",
        "finetune": "kinfolk.workflows.finetuning.recipe",
        "prefixes": "kinfolk.workflows.prefix_tuning.recipe",
        "stages": "kinfolk.workflows.finetuning.stages",
    },
    "train": {"train": "kinfolk.training.config"},
    "finetune": {"finetune_config": "kinfolk.training.config"},
    "model": {
        "with_features": "kinfolk.nn.task_networks",
        "with_head": "kinfolk.nn.task_heads",
        "with_views": "kinfolk.nn.views",
        **{name: f"kinfolk.families.{name}" for name in FAMILY_NAMES},
    },
    "task_network": {
        "bcn": "kinfolk.nn.biattention",
        "bilstm_classifier": "kinfolk.nn.task_networks",
        "bilstm_tagger": "kinfolk.nn.task_networks",
        "reader": "kinfolk.nn.biattention",
    },
    "objective": {
        "bilm": "kinfolk.objectives.bilm",
        "blanks": "kinfolk.objectives.blank_infilling",
        "blanks_pll": "kinfolk.objectives.blank_infilling",
        "bptt": "kinfolk.objectives.bptt",
        "clm": "kinfolk.objectives.clm",
        "full_sentences": "kinfolk.objectives.full_sentences",
        "mlm": "kinfolk.objectives.mlm",
        "mlm_pll": "kinfolk.objectives.mlm",
        "nsp": "kinfolk.objectives.nsp",
        "pairs": "kinfolk.objectives.seq2seq",
        "permutation": "kinfolk.objectives.permutation_lm",
        "permutation_pll": "kinfolk.objectives.permutation_lm",
        "prefix": "kinfolk.objectives.prefix_lm",
        "rtd": "kinfolk.objectives.rtd",
        "rtd_pll": "kinfolk.objectives.rtd",
        "sop": "kinfolk.objectives.sop",
        "spans": "kinfolk.objectives.span_corruption",
        "spans_pll": "kinfolk.objectives.span_corruption",
        "stream": "kinfolk.objectives.recurrent_clm",
        "unilm": "kinfolk.objectives.unilm",
    },
    "formulation": {
        "bare": "kinfolk.tasks.formulations.head",
        "cloze": "kinfolk.tasks.formulations.scoring",
        "concat": "kinfolk.tasks.formulations.concat_head",
        "coreference_head": "kinfolk.tasks.formulations.coreference_head",
        "cross_view_tags": "kinfolk.tasks.formulations.cross_view",
        "cross_view_texts": "kinfolk.tasks.formulations.cross_view",
        "feature_classifier": "kinfolk.tasks.formulations.features",
        "feature_reader": "kinfolk.tasks.formulations.feature_reader",
        "feature_tagger": "kinfolk.tasks.formulations.features",
        "prompt": "kinfolk.tasks.formulations.scoring",
        "sentence_selection": "kinfolk.tasks.formulations.sentence_selection",
        "sequence_head": "kinfolk.tasks.formulations.head",
        "span_head": "kinfolk.tasks.formulations.span_head",
        "text": "kinfolk.tasks.formulations.text_to_text",
        "token_head": "kinfolk.tasks.formulations.head",
        "transformed": "kinfolk.tasks.formulations.head",
    },
    "file": {
        "labelled_file": "kinfolk.tasks.dataset",
        "text_lines": "kinfolk.tasks.unlabelled",
        "unlabelled_text": "kinfolk.tasks.unlabelled",
    },
    "": {  # fields of the others
        "columns": "kinfolk.tasks.formats.base",
        "corpus": "kinfolk.workflows.recipe",
        "format": "kinfolk.tasks.formats.base",
        "generation": "kinfolk.generation.config",
        "pooling": "kinfolk.nn.language_model",
        "prefix_config": "kinfolk.tasks.prefix_config",
        "special_tokens": "kinfolk.text.tokenizer",
        "task": "kinfolk.tasks.task",
        "task_views": "kinfolk.nn.views",
    },
}
IN_RECIPE = ("train", "finetune", "model", "objective")  # groups that are fields of a recipe
CLASSES: dict[str, type[Any]] = {}  # registered name: its class, once its module is imported


# Declarations


def field(
    *,
    default: Any = dataclasses.MISSING,
    help: str = "",
    group: str = "",
    panel: str = "",
    ge: float | None = None,
    gt: float | None = None,
    le: float | None = None,
    lt: float | None = None,
) -> Any:
    """Declare a field: its default, help text, range, and the group of types it may hold.

    The range of a field that holds a tuple is that of each number in it. `panel` is the heading
    under which a command lists the option made from the field.
    """
    bounds = {"ge": ge, "gt": gt, "le": le, "lt": lt}
    declared = {name: bound for name, bound in bounds.items() if bound is not None}
    metadata = {"help": help, "group": group, "panel": panel, "bounds": declared}
    return dataclasses.field(default=default, metadata=metadata)


@dataclass_transform(
    frozen_default=True, kw_only_default=True, field_specifiers=(field, dataclasses.field)
)
def config(name: str, *, group: str = "", kw_only: bool = True) -> Callable[[type[T]], type[T]]:
    """Make a frozen dataclass that checks its fields, registered under a short name.

    A class may have a `__post_init__` for rules between fields, which runs after these checks. Only
    classes outside the package need a group: `TYPES` has that of the others.
    """

    def decorate(cls: type[T]) -> type[T]:
        register_config(name, cls.__module__, group=group)
        if name in CLASSES and CLASSES[name].__qualname__ != cls.__qualname__:
            raise ValueError(f"{name!r} is the registered name of {CLASSES[name].__qualname__}")
        own = (vars(base) for base in cls.__mro__ if "__post_init__" in vars(base))
        rules = next(own, {"__post_init__": lambda self: None})["__post_init__"]

        def checked(self: Any) -> None:
            check_fields(self)
            rules(self)

        cls.__post_init__ = checked  # type: ignore[attr-defined]
        CLASSES[name] = dataclasses.dataclass(frozen=True, kw_only=kw_only)(cls)
        return CLASSES[name]

    return decorate


def register_config(name: str, module: str, *, group: str = "") -> None:
    """Register the module that defines a configuration, so that JSON may name it.

    The module is imported when JSON first names the type; it declares its class with
    `@config(name)`.
    """
    for known in TYPES.values():
        if name in known:
            if known[name] != module:
                raise ValueError(f"type {name!r} is already registered by {known[name]}")
            return
    TYPES.setdefault(group, {})[name] = module


def set_group(name: str, group: str) -> None:
    """Put a registered name into a group, if it was declared without one."""
    if name in TYPES[""]:
        TYPES[group][name] = TYPES[""].pop(name)


def type_name(value: Any) -> str:
    """Return the registered name of a value or a class."""
    cls = value if isinstance(value, type) else type(value)
    for base in cls.__mro__:
        for name, known in CLASSES.items():
            if known is base and dataclasses.fields(base) == dataclasses.fields(cls):
                return name
    raise UserError(
        f"{cls.__module__}.{cls.__qualname__} has no registered name: declare it with "
        '@kinfolk.config.config("name")'
    )


def check_fields(value: Any) -> None:
    """Check types and ranges of all fields of a configuration."""
    for name, declared in describe(type(value)).items():
        declared.check(getattr(value, name), f"{_place(value)}{name}")


# Reading and writing


def to_json(value: Any) -> Any:
    """Turn a tree of configurations into plain JSON values, each object with its type."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: to_json(getattr(value, f.name)) for f in dataclasses.fields(value)}
        return {TYPE: type_name(value), **fields}
    if isinstance(value, tuple | list):
        return [to_json(item) for item in value]
    if isinstance(value, Path):
        return str(value)
    return value


def from_json(value: Any, *, group: str | None = None) -> Any:
    """Return the configuration of a value from `to_json`, of a type of `group` if given."""
    if not isinstance(value, dict):
        return convert_value(value, Any, "")
    return _build(value, "", group=group)


def from_fields(cls: type[T], value: Mapping[str, Any], path: str) -> T:
    """Build a configuration from the fields that a JSON object has; others are left aside."""
    fields = describe(cls)
    values: dict[str, Any] = {}
    for name, declared in fields.items():
        inner = f"{path}{name}"
        if name in value:
            values[name] = convert_value(value[name], declared.hint, inner, group=declared.group)
            declared.check(values[name], inner)
        elif declared.default is dataclasses.MISSING:
            raise UserError(f"{inner} is missing: it must be {_words(declared.hint)}")
    return cls(**values)


def write_json(value: Any, path: Path) -> None:
    """Write a tree of configurations as JSON."""
    text = json.dumps(to_json(value), indent=2, ensure_ascii=False)
    path.write_text(text + "\n", encoding="utf-8")


def read_json(path: Path, *, group: str = "recipe") -> Any:
    """Read a configuration from a file of `write_json`."""
    value = _read_object(path, group)
    try:
        return from_json(value, group=group)
    except UserError as error:
        raise UserError(f"{path}: {error}") from None


def read_type(path: Path, *, group: str = "recipe") -> str:
    """Return the registered name in a JSON file, without importing the type."""
    name = _read_object(path, group)[TYPE]
    return name if isinstance(name, str) else ""


def apply_overrides(value: T, settings: Sequence[str]) -> T:
    """Set fields by their paths: `apply_overrides(recipe, ["train.steps=500"])`."""
    changes: dict[str, Any] = {}
    for setting in settings:
        path, equals, text = setting.partition("=")
        if not equals:
            raise UserError(f"{setting!r} is not a setting: write field.path=value")
        *groups, name = path.split(".")
        inner = changes
        for group in groups:
            inner = inner.setdefault(group, {})
            if not isinstance(inner, dict):
                raise UserError(f"{setting}: {group} is set to a value before")
        inner[name] = text
    return _override(value, changes, _place(value))


def as_settings(values: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Return values by path as overrides: `{"train.lr": 1e-3}` is `["train.lr=0.001"]`."""
    return [f"{prefix}{path}={as_text(value)}" for path, value in values.items()]


def as_text(value: Any) -> str:
    """Return a value as overrides write it: `0.9,0.98`."""
    return ",".join(map(str, value)) if isinstance(value, tuple | list) else str(value)


def shorten(text: str) -> str:
    """Return the beginning of a text that is too long for a sentence."""
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}..."


def convert_value(value: Any, hint: Any, path: str, *, text: bool = False, group: str = "") -> Any:
    """Return a plain value as the type that a field declares; raise a UserError if it is not one.

    `text` is for values of the command line: "500" is a number, "0.9,0.98" a tuple, "none" None.
    """
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        return _convert_union(value, hint, path, text, group)
    if origin is tuple:
        return _convert_tuple(value, hint, path, text, group)
    if text and (hint is Any or dataclasses.is_dataclass(hint)):
        raise UserError(f"{path} is a group of fields: set one of them, such as {path}.NAME=VALUE")
    if hint is Any and not group and not isinstance(value, dict):
        return (
            tuple(convert_value(v, Any, path) for v in value) if isinstance(value, list) else value
        )
    if hint is Any or dataclasses.is_dataclass(hint):
        if not isinstance(value, dict):
            raise UserError(f"{path}={_shown(value)}: it must be {_words(hint)}")
        return _build(value, f"{path}.", group=group or None, hint=hint)
    if text:
        value = _parse(value, hint)
    if not _fits(value, hint):
        shown = as_text(value) if text else _shown(value)
        raise UserError(f"{path}={shorten(shown)}: it must be {_words(hint)}")
    return value  # an int stays an int in a float field: files are written unchanged


def did_you_mean(name: str, names: Sequence[str], hint: str = "") -> str:
    """Return the end of a sentence that names the closest choices, or all of them and a hint.

    Names that other libraries use for a choice come first; the rest are compared by letters.
    """
    for theirs, ours, sentence in OTHER_WAYS:
        if name in theirs and ours in names:
            return sentence
    close = suggestions(name, names)
    if close:
        return f"did you mean {_join_or(close)}?"
    return f"there are {', '.join(names)}{f'; {hint}' if hint else ''}"


def same_names(name: str, names: Sequence[str]) -> list[str]:
    """Return the choices that are other names of the same setting."""
    same = [other for words in SYNONYMS if name.lower() in words for other in words]
    return [other for other in dict.fromkeys(same) if other in names and other != name]


def is_setting(name: str) -> bool:
    """Return whether a name is that of a setting, here or in another library."""
    return any(name.lower() in words for words in SYNONYMS)


def suggestions(name: str, names: Sequence[str]) -> list[str]:
    """Return the choices closest to a wrong name."""
    if known := same_names(name, names):
        return known
    close = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    ratios = [difflib.SequenceMatcher(None, other, name).ratio() for other in close]
    return [other for other, ratio in zip(close, ratios, strict=True) if ratio > max(ratios) - 0.1]


@dataclasses.dataclass(frozen=True, kw_only=True)
class FieldInfo:
    """The declaration of a field."""

    name: str
    hint: Any  # its type
    default: Any  # dataclasses.MISSING where there is none
    help: str = ""
    group: str = ""
    panel: str = ""
    bounds: Mapping[str, float] = dataclasses.field(default_factory=dict)

    @property
    def rule(self) -> str:
        """The type and the range in words, without an upper bound that nobody reaches."""
        bounds = {k: b for k, b in self.bounds.items() if k not in ("le", "lt") or b < REMOTE}
        return f"{_words(self.hint)}, {_range(bounds)}" if bounds else _words(self.hint)

    def check(self, value: Any, label: str, text: str = "") -> None:
        """Refuse a value of another type or out of range.

        The sentence names the field by `label`, and shows the `text` that was parsed if given.
        """
        if not _fits(value, self.hint):
            raise UserError(f"{label}={_shown(value)}: it must be {_words(self.hint)}")
        for number in value if isinstance(value, tuple) else (value,):
            if type(number) in (int, float) and not _inside(number, **self.bounds):
                shown = shorten(text) or _shown(value)
                raise UserError(f"{label}={shown}: it must be {self._broken_range(number)}")

    def _broken_range(self, number: float) -> str:
        """Return the range in words; of a wide one only the bound that a number breaks."""
        low = {k: b for k, b in self.bounds.items() if k in ("ge", "gt")}
        wide = any(bound > 1 for name, bound in self.bounds.items() if name in ("le", "lt"))
        return _range(low if wide and low and not _inside(number, **low) else self.bounds)


_DESCRIBED: dict[type[Any], dict[str, FieldInfo]] = {}


def describe(cls: type[Any]) -> dict[str, FieldInfo]:
    """Return the declaration of every field of a configuration, by name."""
    if cls not in _DESCRIBED:
        hints = typing.get_type_hints(cls)
        _DESCRIBED[cls] = {
            f.name: FieldInfo(name=f.name, hint=hints[f.name], default=f.default, **f.metadata)
            for f in dataclasses.fields(cls)
        }
    return _DESCRIBED[cls]


def parse_field(cls: type[Any], name: str, text: str, label: str) -> Any:
    """Return the value of a field from text, checked; `label` names the field in errors."""
    declared = describe(cls)[name]
    value = convert_value(text, declared.hint, label, text=True)
    declared.check(value, label, text)
    return value


# Details


def _place(value: Any) -> str:
    """Return the path of a value in a recipe, with a dot, where its type determines it."""
    known = {cls: name for name, cls in CLASSES.items()}.get(type(value))
    for group, names in TYPES.items():
        if known in names:
            return f"{group}." if group in IN_RECIPE else ""
    return ""


def _names(group: str | None) -> list[str]:
    groups = TYPES.values() if group is None else [TYPES.get(group, {})]
    return [name for names in groups for name in names]


def _expected(group: str | None, hint: Any) -> list[str]:
    """Return the registered names that a field may hold, without importing their modules."""
    own = [name for name, cls in CLASSES.items() if hint is not Any and issubclass(cls, hint)]
    return own if own and group is None else _names(group)


def _build(value: dict[str, Any], path: str, *, group: str | None, hint: Any = Any) -> Any:
    """Build the configuration of a JSON object: a registered type with its fields."""
    where = f"{path[:-1]}: " if path else ""
    name, expected = value.get(TYPE), _expected(group, hint)
    if TYPE not in value:
        raise UserError(f"{where}missing {TYPE!r} (expected one of: {', '.join(expected)})")
    cls = _class(name) if isinstance(name, str) and name in expected else None
    if cls is None or (hint is not Any and not issubclass(cls, hint)):
        raise UserError(f"{where}unknown type {name!r}: {did_you_mean(str(name), expected, HINT)}")
    for key in value:
        if key != TYPE and key not in describe(cls):
            close = did_you_mean(key, [*describe(cls)])
            raise UserError(f"{path}{key}: no field {key!r}: {close}")
    return from_fields(cls, value, path)


def _class(name: str) -> type[Any] | None:
    """Return the class with a registered name; only the module that `TYPES` gives is imported."""
    if name not in CLASSES:
        for names in TYPES.values():
            if name in names:
                importlib.import_module(names[name])
    return CLASSES.get(name)


def _read_object(path: Path, group: str) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8-sig")  # editors may add a BOM
        value = _read_yaml(text, path) if path.suffix in (".yaml", ".yml") else json.loads(text)
    except FileNotFoundError:
        raise UserError(f"{path.parent} is not a run: it has no {path.name}") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not JSON: {error}") from None
    if not isinstance(value, dict) or TYPE not in value:
        expected = ", ".join(_names(group))
        raise UserError(f"{path}: missing {TYPE!r} (expected one of: {expected})")
    return value


def _read_yaml(text: str, path: Path) -> Any:
    try:
        yaml = importlib.import_module("yaml")  # not a requirement of the package
    except ImportError:
        raise UserError(
            f"reading {path} needs the package pyyaml: pip install pyyaml, or write it as JSON"
        ) from None
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise UserError(f"{path} is not YAML: {' '.join(str(error).split())}") from None


def _override(value: T, changes: Mapping[str, Any], place: str) -> T:
    """Set fields from text, all at once: rules between fields hold for the result only."""
    if not changes:
        return value
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        name = next(iter(changes))
        path = _first_path(changes, place)
        raise UserError(f"{path}: {name!r} is not a field: the value before it has no fields")
    fields, new = describe(type(value)), {}
    for name, change in changes.items():
        path = f"{place}{name}"
        if name not in fields:
            full = _first_path({name: change}, place)
            raise UserError(f"{full}: no field {name!r}: {did_you_mean(name, [*fields])}")
        if isinstance(change, str):
            new[name] = parse_field(type(value), name, change, path)
        else:
            new[name] = _override(getattr(value, name), change, f"{path}.")
    return dataclasses.replace(value, **new)


def _first_path(changes: Mapping[str, Any], place: str) -> str:
    """Return the path of the first of some overrides."""
    name, change = next(iter(changes.items()))
    return f"{place}{name}" if isinstance(change, str) else _first_path(change, f"{place}{name}.")


def _convert_union(value: Any, hint: Any, path: str, text: bool, group: str) -> Any:
    choices = typing.get_args(hint)
    empty = value.lower() in ("none", "null") if text else value is None
    if type(None) in choices and empty:
        return None
    fitting = [choice for choice in choices if choice is not type(None)]
    if text:
        return convert_value(value, fitting[0], path, text=True)
    if isinstance(value, list):
        fitting = [choice for choice in fitting if typing.get_origin(choice) is tuple] or fitting
    if isinstance(value, dict):
        fitting = [choice for choice in fitting if dataclasses.is_dataclass(choice)] or fitting
    if len(fitting) > 1:
        fitting = [choice for choice in fitting if _fits(value, choice)]
    if not fitting:
        raise UserError(f"{path}={_shown(value)}: it must be {_words(hint)}")
    return convert_value(value, fitting[0], path, group=group)


def _convert_tuple(value: Any, hint: Any, path: str, text: bool, group: str) -> Any:
    choices = typing.get_args(hint)
    items = [item for item in value.strip("()").split(",") if item] if text else value
    any_length = choices[-1] is ...
    if not isinstance(items, list) or (not any_length and len(items) != len(choices)):
        if text:
            raise UserError(
                f"{path}={value}: it must be {len(choices)} values, with commas between"
            )
        raise UserError(f"{path}={_shown(value)}: it must be {_words(hint)}")
    inner = choices[:1] * len(items) if any_length else choices
    return tuple(
        convert_value(item, choice, path if text else f"{path}.{number}", text=text, group=group)
        for number, (item, choice) in enumerate(zip(items, inner, strict=True))
    )


def _parse(text: str, hint: Any) -> Any:
    """Parse text as a number, boolean or choice; text that is none is returned unchanged."""
    if hint is bool:
        word = _choice(text.lower(), ("true", "false"))
        return {"true": True, "false": False}.get(word, text)
    if typing.get_origin(hint) is Literal:
        return _choice(text, typing.get_args(hint))
    if hint in (int, float):
        try:
            return hint(text.replace("_", ""))
        except ValueError:
            return text
    return text


def _choice(text: str, choices: Sequence[Any]) -> str:
    """Return the choice that a word is a synonym of: `bf16` for bfloat16, `on` for yes."""
    same = [other for words in SAME_VALUES if text.lower() in words for other in words]
    return next((other for other in (text, *same) if other in choices), text)


def _fits(value: Any, hint: Any) -> bool:
    """Return whether a value has the type that a field declares."""
    if hint is str:  # JSON may hold half a character, which no file and no terminal takes
        return type(value) is str and not LONE_SURROGATE.search(value)
    if hint in (int, bool):
        return type(value) is hint
    if hint is float:  # no bool, no NaN, nothing beyond the range of a float
        return type(value) in (int, float) and abs(value) <= sys.float_info.max
    if hint is Any:
        return True
    origin, choices = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return any(_fits(value, choice) for choice in choices)
    if origin is Literal:
        return any(type(value) is type(choice) and value == choice for choice in choices)
    if origin is tuple:
        if not isinstance(value, tuple):
            return False
        inner = choices[:1] * len(value) if choices[-1] is ... else choices
        return len(value) == len(inner) and all(map(_fits, value, inner))
    return isinstance(value, hint)


def _inside(
    number: float,
    ge: float = -math.inf,
    gt: float = -math.inf,
    le: float = math.inf,
    lt: float = math.inf,
) -> bool:
    return ge <= number <= le and gt < number < lt


def _range(bounds: Mapping[str, float]) -> str:
    low = {"ge": "at least {}", "gt": "above {}"}
    high = {"le": "at most {}", "lt": "less than {}"}
    if "ge" in bounds and "le" in bounds:
        return f"from {bounds['ge']} to {bounds['le']}"
    if "ge" in bounds and "lt" in bounds:
        return f"from {bounds['ge']} to less than {bounds['lt']}"
    words = low | high
    return " and ".join(words[name].format(bounds[name]) for name in words if name in bounds)


def _shown(value: Any) -> str:
    """Return a value as a sentence shows it: text in quotes if it is not part of a command."""
    return shorten(as_text(value) if isinstance(value, tuple) else repr(value))


def _words(hint: Any) -> str:
    """Describe a type hint in words."""
    known: dict[Any, str] = {int: "a whole number", float: "a number", str: "text"}
    known |= {bool: "true or false", dict: "an object"}
    origin, choices = typing.get_origin(hint), typing.get_args(hint)
    if hint in known:
        return known[hint]
    if hint in (None, type(None)):
        return "null"
    if origin in (typing.Union, types.UnionType):
        return _join_or([_words(choice) for choice in choices])
    if origin is Literal:
        return _join_or([str(choice) for choice in choices])
    if origin is tuple:
        count = "values" if choices[-1] is ... else f"{len(choices)} values"
        return f"a list of {count}, each {_words(choices[0])}"
    if hint is Any:
        return "an object with a type"
    return f"an object whose type is {_join_or(_expected(None, hint))}"


def _join_or(names: Sequence[str]) -> str:
    return " or ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
