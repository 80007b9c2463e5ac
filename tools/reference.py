"""Write the reference pages of docs/reference: every command, every setting, the Python interface.

    python tools/reference.py --write       write the pages
    python tools/reference.py               print their names; exit 1 where one is out of date

The pages are made from the declarations themselves: options of commands, fields of configs,
signatures and docstrings.
"""

import dataclasses
import inspect
import re
import sys
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import kinfolk
from kinfolk import families
from kinfolk.cli import load_app
from kinfolk.cli.app import ORDER
from kinfolk.cli.finetune import FINETUNE_DEFAULTS
from kinfolk.config import CLASSES, FAMILY_NAMES, FieldInfo, as_text, describe
from kinfolk.generation.config import GenerationConfig
from kinfolk.tasks.prefix_config import PrefixConfig
from kinfolk.training.config import FineTuneConfig, TrainConfig

FOLDER = Path(__file__).parents[1] / "docs" / "reference"
RENEWED = "This page is made by `python tools/reference.py --write`."
# Fields of every objective, which the recipe fills in.
SHARED_FIELDS = ("special_tokens", "vocab_size", "max_length")
# Families of the package without its baseline, as `kinfolk members` lists them.
FAMILIES = [
    name
    for name in FAMILY_NAMES
    if families.index()[name].objectives or families.index()[name].capabilities
]
Row = Sequence[str]


def pages() -> dict[str, str]:
    """Return the text of each page by its file name."""
    made = {"commands.md": commands(), "settings.md": settings(), "python.md": python_interface()}
    return {name: "\n".join(lines) + "\n" for name, lines in made.items()}


def cell(text: object) -> str:
    """Return text for a cell of a table, in one line."""
    return re.sub(r"\s+", " ", str(text)).strip().replace("|", "\\|")


def code(text: str) -> str:
    """Return a value as code, or nothing."""
    return f"`{cell(text)}`" if text else ""


def table(head: Row, rows: Iterable[Row]) -> Iterator[str]:
    """Yield the lines of a table."""
    for row in (head, ["---"] * len(head), *rows):
        yield "| " + " | ".join(row) + " |"
    yield ""


def headings(names: Iterable[str]) -> str:
    """Return links to headings of the page."""
    return ", ".join(f"[{name}](#{anchor(name)})" for name in names)


def anchor(heading: str) -> str:
    """Return the anchor of a heading, as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


# Commands


def commands() -> Iterator[str]:
    """Yield the page of all commands."""
    import typer.main

    root: Any = typer.main.get_command(load_app())
    found = dict(each_command(root, "kinfolk"))
    yield from ("# Commands", "")
    yield "Every command with its options. `kinfolk COMMAND --help` prints the same in a terminal."
    yield "Defaults of training options are replaced by those of the family, the size and the task."
    yield from ("", RENEWED, "", headings(found), "")
    for name, command in found.items():
        yield from one_command(name, command)


def each_command(group: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield the commands of a group and of the groups in it, in the order of work."""
    names = group.commands if path != "kinfolk" else ORDER
    for name in names:
        command = group.commands[name]
        if getattr(command, "commands", None):
            yield from each_command(command, f"{path} {name}")
        else:
            yield f"{path} {name}", command


def one_command(name: str, command: Any) -> Iterator[str]:
    """Yield the section of one command."""
    yield from (f"## {name}", "")
    yield from (unwrapped(inspect.cleandoc(command.help or "")), "")
    if example := re.match(r"Example: `(.*)`$", command.epilog or "", re.DOTALL):
        yield from ("```sh", example[1], "```", "")
    arguments = [p for p in command.params if p.param_type_name == "argument" and not p.hidden]
    if arguments:
        yield from table(
            ("argument", "meaning"),
            ([code(p.metavar or p.name.upper()), cell(p.help or "")] for p in arguments),
        )
    by_panel: dict[str, list[Row]] = {}
    for p in command.params:
        if p.param_type_name == "option" and not p.hidden and p.name != "help":
            by_panel.setdefault(p.rich_help_panel or "", []).append(option_row(p))
    for panel, rows in by_panel.items():
        yield from table((panel or "option", "value", "meaning"), rows)


def option_row(option: Any) -> Row:
    """Return the row of one option."""
    names = [*option.opts, *option.secondary_opts]
    default = option.default
    meaning = option.help or ""
    plain = isinstance(default, (str, int, float)) and not isinstance(default, bool)
    if plain and default != "" and "(default:" not in meaning:
        meaning += f" Default: {default}."
    value = "" if option.is_flag else (option.metavar or "")
    return [", ".join(code(name) for name in names), code(value), cell(meaning)]


def unwrapped(text: str) -> str:
    """Return a text whose paragraphs are one line each."""
    return "\n\n".join(" ".join(part.split()) for part in text.split("\n\n"))


# Settings


def settings() -> Iterator[str]:
    """Yield the page of all settings."""
    yield from ("# Settings", "")
    yield (
        "Every field of a recipe, as `kinfolk pretrain gpt2/tiny ... train.lr=2e-3 "
        "model.dropout=0.1` or `kinfolk.recipe(..., settings=[...])` set it. Ranges are checked on "
        "the command line, in Python and in files alike."
    )
    yield from ("", RENEWED, "")
    yield from ("## train", "")
    yield "Of pretraining, where families and sizes have other defaults, and of fine-tuning, where"
    yield "steps and rate follow [the rows](../tasks.md#default-steps-and-learning-rates)."
    yield ""
    yield from fields("train", TrainConfig, finetuning=FINETUNE_DEFAULTS)
    yield from ("## finetune", "", "Of fine-tuning alone.", "")
    yield from fields("finetune", FineTuneConfig)
    yield from ("## objective", "")
    yield (
        "Of pretraining, by the name of the objective. All have `objective.max_length`, the length "
        "of a row in tokens; vocabulary and special tokens are those of the corpus."
    )
    yield ""
    for name, cls in objectives().items():
        yield from (f"### {name}", "", first_line(cls), "")
        own = {f: info for f, info in describe(cls).items() if f not in SHARED_FIELDS}
        if own:
            yield from fields("objective", cls, own)
    yield from ("## model", "")
    yield "Of the network, by family, with the defaults of its published network."
    yield "`kinfolk members FAMILY` lists the sizes; the values of one are printed by"
    yield "`kinfolk pretrain FAMILY/SIZE --help-fields`."
    yield ""
    for name in FAMILIES:
        chosen = families.family(name)
        size = next(iter(chosen.sizes.values()))
        yield from (f"### {name}", "", f"{chosen.title}, {chosen.paper}.", "")
        yield from fields("model", type(size))
    yield from ("## generation", "", "Of `kinfolk generate` and `kinfolk.generate`.", "")
    yield from fields("", GenerationConfig)
    yield from ("## prefixes", "", "Of `kinfolk prefixes`.", "")
    yield from fields("prefixes", PrefixConfig)


def objectives() -> dict[str, Any]:
    """Return the objectives of all families by their names."""
    found: dict[str, Any] = {}
    for name in FAMILIES:
        for way, cls in families.family(name).objectives.items():
            found.setdefault(way, cls)
    return dict(sorted(found.items()))


def fields(
    path: str,
    cls: type[Any],
    declared: Mapping[str, FieldInfo] | None = None,
    finetuning: Mapping[str, str] | None = None,  # other defaults, in words
) -> Iterator[str]:
    """Yield the table of the fields of a config."""
    rows = []
    for name, info in (declared or describe(cls)).items():
        shown = "" if info.default is dataclasses.MISSING else as_text(info.default)
        place = f"{path}.{name}" if path else name
        others = [] if finetuning is None else [cell(finetuning.get(name, ""))]
        rows.append([code(place), code(shown), *others, cell(info.rule), cell(info.help)])
    head = ["default"] if finetuning is None else ["default", "in fine-tuning, if another"]
    yield from table(("field", *head, "value", "meaning"), rows)


def first_line(thing: Any) -> str:
    """Return the first line of a docstring."""
    return (inspect.getdoc(thing) or "").partition("\n")[0]


# Python


def python_interface() -> Iterator[str]:
    """Yield the page of the Python interface."""
    yield from ("# Python", "")
    yield "What `import kinfolk` offers. Nothing heavy is imported before it is used."
    yield from ("", RENEWED, "")
    sections = public_names()
    for title, names in sections.items():
        yield from (f"**{title}**: {headings(names)}", "")
    for title, names in sections.items():
        yield from (f"## {title}", "")
        for name in names:
            yield from entry(name, getattr(kinfolk, name))


def public_names() -> dict[str, list[str]]:
    """Return the names of the interface by the headings of the package's docstring."""
    text, found = inspect.getdoc(kinfolk) or "", dict[str, list[str]]()
    title = ""
    for line in text.splitlines():
        if re.fullmatch(r"[A-Z][a-z]+", line):
            title = line
            found[title] = []
        elif title and (row := re.match(r" {4}(\w+(?:, \w+)*) {2,}\S", line)):
            found[title] += row[1].split(", ")
    listed = {name for names in found.values() for name in names}
    found["Types"] = [name for name in kinfolk.__all__ if name not in listed]
    return found


def entry(name: str, thing: Any) -> Iterator[str]:
    """Yield the entry of a function, a class or a module."""
    yield from (f"### {name}", "")
    if isinstance(thing, types.ModuleType):
        yield from (prose(inspect.getdoc(thing) or ""), "")
        return
    if not isinstance(thing, type):
        yield from ("```python", call(f"kinfolk.{name}", thing), "```", "")
    yield from (prose(inspect.getdoc(thing) or ""), "")
    if isinstance(thing, type):
        yield from class_tables(thing)


def class_tables(thing: type[Any]) -> Iterator[str]:
    """Yield the fields of a class that holds values, and its methods."""
    if dataclasses.is_dataclass(thing) and thing not in CLASSES.values():
        hints = ((f.name, shorter(annotation(f.type))) for f in dataclasses.fields(thing))
        yield from table(("field", "type"), ([code(name), code(hint)] for name, hint in hints))
    members = [
        (member, value)
        for member, value in vars(thing).items()
        if not member.startswith("_")
        and isinstance(value, (types.FunctionType, classmethod, staticmethod, property))
        and inspect.getdoc(value)
    ]
    if members:
        yield from table(
            ("method or property", "meaning"),
            (
                [code(member_name(thing, member, value)), cell(first_line(value))]
                for member, value in members
            ),
        )


def prose(docstring: str) -> str:
    """Return a docstring as Markdown: its indented examples are code, its lines are joined."""
    parts = []
    for part in docstring.split("\n\n"):
        lines = part.splitlines()
        if all(line.startswith("    ") for line in lines):
            parts.append("\n".join(["```python", *(line[4:] for line in lines), "```"]))
        else:
            listed = re.sub(r"\n(?! *- )\s*", " ", part)
            # Outside of code, what looks like a tag of HTML is text.
            spans = re.split(r"(`[^`]*`)", listed)
            parts.append("".join(s if s[:1] == "`" else s.replace("<", "\\<") for s in spans))
    return "\n\n".join(parts)


def member_name(cls: type[Any], name: str, value: Any) -> str:
    """Return how a member is written."""
    if isinstance(value, property):
        return name
    parameters = inspect.signature(getattr(cls, name)).parameters
    return f"{name}({', '.join(p for p in parameters if p != 'self')})"


def call(name: str, thing: Any) -> str:
    """Return the signature of a function, a line for each parameter where it is long."""
    signature = inspect.signature(thing)
    parameters = [shorter(str(p)) for p in signature.parameters.values()]
    keywords = [p.kind for p in signature.parameters.values()]
    if inspect.Parameter.KEYWORD_ONLY in keywords:
        parameters.insert(keywords.index(inspect.Parameter.KEYWORD_ONLY), "*")
    result = signature.return_annotation
    arrow = "" if result is inspect.Signature.empty else f" -> {shorter(annotation(result))}"
    one = f"{name}({', '.join(parameters)}){arrow}"
    if len(one) <= 100:
        return one
    return f"{name}(\n" + "".join(f"    {p},\n" for p in parameters) + f"){arrow}"


def annotation(hint: Any) -> str:
    """Return a type as it is written."""
    return hint if isinstance(hint, str) else inspect.formatannotation(hint)


def shorter(text: str) -> str:
    """Leave the modules of types out."""
    text = re.sub(r"\b(?:[A-Za-z_]\w*\.)+([A-Z_a-z]\w*)", r"\1", text)
    return re.sub(
        r"<function .*? at 0x[0-9a-f]+>|<.*? object at 0x[0-9a-f]+>|<factory>", "...", text
    )


def main(arguments: Sequence[str]) -> int:
    """Write the pages, or say which are out of date."""
    outdated = []
    for name, text in pages().items():
        path = FOLDER / name
        if path.is_file() and path.read_text(encoding="utf-8") == text:
            continue
        outdated.append(name)
        if "--write" in arguments:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    print("written:" if "--write" in arguments else "out of date:", ", ".join(outdated) or "none")
    return 0 if "--write" in arguments or not outdated else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
