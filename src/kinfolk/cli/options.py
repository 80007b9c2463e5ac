"""Options of commands, made from the fields of configuration dataclasses.

`@field_options("train", TrainConfig)` on a command replaces its parameter `train` by one option for
each field: `--weight-decay` for `weight_decay`, with the field's help text, type, default and
panel. The command receives a dictionary of the fields that were given, with checked values:

    @command("kinfolk pretrain gpt2/tiny --corpus corpus -o runs/gpt2", panel="Train")
    @field_options("train", TrainConfig)
    def pretrain(model: str, train: dict[str, Any]) -> None: ...

`@option_group("data", DataOptions)` does the same for a dataclass whose defaults are options of
typer; the command receives an instance of it.

Nothing here imports torch: the modules of these dataclasses must not either.
"""

import dataclasses
import inspect
import types
import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from copy import copy
from functools import wraps
from pathlib import Path
from typing import Any, Literal

import typer
from typer.core import TyperCommand

from kinfolk.cli.hints import OPTION_NAMES, suggested_option
from kinfolk.config import (
    FieldInfo,
    as_text,
    describe,
    did_you_mean,
    parse_field,
    read_type,
)
from kinfolk.errors import UserError

COUNT_SUFFIXES = {"K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}  # of a number of tokens
MINUTES_OF = {"MIN": 1.0, "S": 1 / 60, "M": 1.0, "H": 60.0}

# Hidden names of options: those of earlier versions, and where several are given, the first that
# the command has.
OPTION_ALIASES: dict[str, tuple[str, ...]] = {
    "--accumulate": ("--grad-accum",),
    "--allow": ("--choice",),
    "--attack": ("--adversarial-epsilon",),
    "--ban": ("--bad-words",),
    "--beam-size": ("--num-beams",),
    "--column": ("--text-field",),
    "--diversity": ("--diversity-penalty",),
    "--field": ("--text-field", "--prompt-field"),
    "--groups": ("--num-beam-groups",),
    "--layer-decay": ("--layer-lr-decay",),
    "--max-tokens": ("--max-new-tokens",),
    "--min-tokens": ("--min-new-tokens",),
    "--near": ("--near-duplicates",),
    "--no-near": ("--no-near-duplicates",),
    "--no-repeat-ngram": ("--no-repeat-ngram-size",),
    "--noise": ("--noisy-tune",),
    "--num": ("--num-samples",),
    "--only": ("--tasks",),
    "--patience": ("--early-stopping-patience",),
    "--penalty": ("--penalty-alpha",),
    "--per": ("--document",),
    "--positive": ("--positive-label",),
    "--prefix": ("--source-prefix", "--forced-prefix"),
    "--rate": ("--lr",),
    "--scratch": ("--from-scratch",),
    "--shots": ("--num-fewshot",),
    "--task-number": ("--task-index",),
    "--teaching": ("--distillation-weight",),
    "--temperature": ("--mixing-temperature",),
    "--thaw": ("--gradual-unfreezing",),
    "--top": ("--candidates",),
    "--train": ("--fewshot-from",),
    "--typical": ("--typical-p",),
    "--vocab": ("--vocab-size",),
    "--way": ("--formulation",),
    "--words": ("--verbalizer", "--segmenter", "--word-boundaries"),
}

AnyFunction = Callable[..., Any]
OVERRIDES = typer.Argument(
    None,
    metavar="KEY=VALUE",
    help="Override any recipe field: train.grad_clip=0.5, model.dropout=0.1.",
)


class UsageError(UserError):
    """A wrong combination of options; the command line adds where its help is."""

    command = "kinfolk"


def parse_count(text: str, option: str) -> float:
    """Return a number of tokens or FLOPs that may have a suffix: 3B is 3e9."""
    return parse_quantity(text, option, COUNT_SUFFIXES, "3e9 or 3B")


def parse_minutes(text: str, option: str) -> float:
    """Return a number of minutes: 90s, 3m and 1.5h are 1.5, 3 and 90."""
    return parse_quantity(text, option, MINUTES_OF, "3, 90s or 1.5h")


def parse_quantity(text: str, option: str, units: Mapping[str, float], example: str) -> float:
    """Return a number that may have one of these units."""
    unit = next((unit for unit in units if text.upper().endswith(unit)), "")
    try:
        return float(text.strip().upper().removesuffix(unit)) * units.get(unit, 1.0)
    except ValueError:
        raise UsageError(f"{option} {text!r} is not a number: write {example}") from None


class Command(TyperCommand):
    """A command that accepts hidden names of options and suggests the right name for a wrong one.

    All of its usage errors are `UsageError`.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments of the command."""
        known = [name for param in self.get_params(ctx) for name in param.opts if name[:2] == "--"]
        known += [name for param in self.get_params(ctx) for name in param.secondary_opts]
        try:
            return super().parse_args(ctx, replace_aliases(args, known))
        except typer.TyperException as error:
            sentence = error.format_message().rstrip(".")
            for argument in args:
                name = argument.partition("=")[0]
                if name[:2] == "--" and name not in known and name in sentence:
                    hint = suggested_option(name, known, self.arguments(ctx))
                    sentence = f"unknown option {name}{hint}"
            if "option" in sentence.lower() and self.takes_text(ctx):
                sentence += " (put -- before a text that begins with -)"
            raise usage_error(sentence, ctx) from None

    def takes_text(self, ctx: Any) -> bool:
        """Return whether one of the arguments is a text, which may begin with a hyphen."""
        return not {"prompt", "text"}.isdisjoint(self.arguments(ctx))

    def arguments(self, ctx: Any) -> list[str]:
        """Return the names of the arguments."""
        return [p.name for p in self.get_params(ctx) if p.param_type_name == "argument"]

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except typer.TyperException as error:
            raise usage_error(error.format_message(), ctx) from None
        except UsageError as error:
            raise usage_error(str(error), ctx) from None


def usage_error(sentence: str, ctx: Any) -> UsageError:
    """Return an error that names the command whose help explains the options."""
    error = UsageError(sentence)
    error.command = ctx.command_path
    return error


def replace_aliases(args: list[str], known: Collection[str]) -> list[str]:
    """Replace hidden names of options by those that a command has."""
    replaced, open_end = [], "--" in args
    end = args.index("--") if open_end else len(args)
    for argument in args[:end]:
        name, equals, value = argument.partition("=")
        if name not in known:
            name = next((new for new in OPTION_ALIASES.get(name, ()) if new in known), name)
        replaced.append(f"{name}{equals}{value}")
    return [*replaced, *args[end:]]


def field_options(
    parameter: str,
    cls: type[Any],
    *,
    only: Collection[str] | None = None,
    without: Collection[str] = (),
    defaults: Mapping[str, str] = types.MappingProxyType({}),
    help: Mapping[str, str] = types.MappingProxyType({}),
    panel: str | None = None,
) -> Callable[[AnyFunction], AnyFunction]:
    """Replace one parameter of a command by an option for each field of a configuration.

    The command receives {field: value} of what was given. `only` and `without` choose fields,
    `defaults` and `help` are shown in place of the fields' own, and `panel` is the heading of
    fields that declare none.
    """
    fields = [
        field
        for field in describe(cls).values()
        if (only is None or field.name in only) and field.name not in without
    ]
    generated = [
        option_parameter(
            field,
            default=defaults.get(field.name, shown_default(field.default)),
            help=help.get(field.name, field.help),
            panel=field.panel or panel,
        )
        for field in fields
    ]

    def build(arguments: dict[str, Any]) -> dict[str, Any]:
        return {
            field.name: parsed_option(cls, field, arguments[field.name])
            for field in fields
            if arguments[field.name] not in (None, [])
        }

    return lambda function: replace_parameter(function, parameter, generated, build)


def option_group(
    parameter: str, cls: type[Any], *, panel: str | None = None
) -> Callable[[AnyFunction], AnyFunction]:
    """Replace one parameter of a command by an option for each field of a dataclass.

    The command receives an instance of the dataclass, whose defaults are options of typer. `panel`
    is the heading of those that declare none.
    """
    hints = typing.get_type_hints(cls)
    generated = []
    for field in dataclasses.fields(cls):
        option: Any = copy(field.default)
        option.rich_help_panel = option.rich_help_panel or panel
        generated.append(keyword_parameter(field.name, option, hints[field.name]))
    return lambda function: replace_parameter(
        function, parameter, generated, lambda arguments: cls(**arguments)
    )


def replace_parameter(
    function: AnyFunction,
    parameter: str,
    generated: Sequence[inspect.Parameter],
    build: Callable[[dict[str, Any]], Any],
) -> AnyFunction:
    """Replace one parameter of a command by others; `build` makes its value from theirs."""
    signature = inspect.signature(function, eval_str=True)
    parameters: list[inspect.Parameter] = []
    for declared in signature.parameters.values():
        own = declared.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        parameters += generated if declared.name == parameter else [own]

    @wraps(function)
    def run(**arguments: Any) -> Any:
        value = build({p.name: arguments.pop(p.name) for p in generated})
        return function(**arguments, **{parameter: value})

    run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {p.name: p.annotation for p in parameters}
    return run


def keyword_parameter(name: str, default: Any, annotation: Any) -> inspect.Parameter:
    """Return a parameter of a command."""
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, kind, default=default, annotation=annotation)


def check_resume(context: typer.Context, run: Path, kind: str) -> None:
    """Refuse other options beside `--resume`, and a folder that is not a run of this kind."""
    sources = {name: context.get_parameter_source(name) for name in context.params}
    given = {name for name, source in sources.items() if source and source.name != "DEFAULT"}
    if given - {"resume", "json"}:
        raise UsageError(
            f"--resume cannot be combined with other options: change settings in "
            f"{run / 'recipe.json'}"
        )
    actual = read_type(run / "recipe.json")
    if actual in ("pretrain", "finetune", "prefixes") and actual != kind:
        raise UsageError(f"{run} is a run of {actual}: use kinfolk {actual} --resume {run}")


def check_overrides(
    overrides: Sequence[str], configs: Mapping[str, type[Any]], others: Sequence[str]
) -> None:
    """Refuse wrong KEY=VALUE arguments, before torch is imported.

    `configs` are the groups of fields whose classes are known here, `others` the remaining keys.
    """
    for text in overrides:
        path, equals, value = text.partition("=")
        if not equals:
            raise UserError(f"{text!r} is not a setting: write KEY=VALUE, such as train.lr=1e-3")
        group, _, name = path.partition(".")
        if group not in configs and group not in others:
            close = did_you_mean(group, [*configs, *others])
            raise UserError(f"{path}: no field {group!r}: {close}")
        if group in configs and name:
            fields = describe(configs[group])
            if name not in fields:
                raise UserError(f"{path}: no field {name!r}: {did_you_mean(name, [*fields])}")
            parse_field(configs[group], name, value, path)


def option_name(field: str) -> str:
    """Return the name of the option that is made from a field."""
    return OPTION_NAMES.get(field, f"--{field.replace('_', '-')}")


def option_parameter(
    field: FieldInfo, *, default: str, help: str, panel: str | None
) -> inspect.Parameter:
    """Return the parameter of a command from which typer makes the option of a field."""
    hint = without_none(field.hint)
    text = f"{help[:1].upper()}{help[1:]}"
    option = typer.Option(
        None,
        option_name(field.name),
        help=f"{text} (default: {default})." if default else f"{text}.",
        metavar="" if hint is bool else metavar(hint),
        show_default=False,
        rich_help_panel=panel,
    )
    plain: Any = bool if hint is bool else list[str] if is_repeated(hint) else str
    return keyword_parameter(field.name, option, plain | None)


def parsed_option(cls: type[Any], field: FieldInfo, value: Any) -> Any:
    """Return the value of an option, checked as the field declares it."""
    if isinstance(value, bool):
        return value
    if isinstance(value, list):
        return tuple(value)
    try:
        return parse_field(cls, field.name, value, option_name(field.name))
    except UserError as error:
        raise UsageError(str(error)) from None


def shown_default(value: Any) -> str:
    """Return a default as help shows it; empty where there is none."""
    if value is dataclasses.MISSING or value is None or value is False or value in ("", ()):
        return ""
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return f"{value:g}" if isinstance(value, float) else as_text(value)


def without_none(hint: Any) -> Any:
    """Return the type of a field that may also hold None."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return next(arg for arg in typing.get_args(hint) if arg is not type(None))
    return hint


def is_repeated(hint: Any) -> bool:
    """Return whether a field holds any number of texts."""
    return typing.get_origin(hint) is tuple and typing.get_args(hint) == (str, ...)


def metavar(hint: Any) -> str:
    """Return the type of a field in help: N, X, TEXT or the choices."""
    if typing.get_origin(hint) is Literal:
        return "|".join(map(str, typing.get_args(hint)))
    if typing.get_origin(hint) is tuple and not is_repeated(hint):
        return ",".join(metavar(arg) for arg in typing.get_args(hint) if arg is not ...)
    return {int: "N", float: "X"}.get(hint, "TEXT")
