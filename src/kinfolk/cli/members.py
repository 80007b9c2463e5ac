"""The command `members`: the model families, their objectives and sizes."""

from dataclasses import asdict
from typing import TYPE_CHECKING

import typer
from rich.table import Column

from kinfolk.cli.app import JSON, MODELS, command
from kinfolk.cli.output import numbers, print_facts, print_json, print_table, table
from kinfolk.config import did_you_mean
from kinfolk.errors import UserError

if TYPE_CHECKING:
    from kinfolk.families.base import Family

DIMENSIONS = {  # of a size, and the fields that hold them
    "layers": "num_layers",
    "hidden size": "hidden_size",
    "heads": "num_heads",
    "max length": "max_length",
    "order": "order",
}
NO_OBJECTIVES = "none (finetune)"  # its paper has no pretraining
EARLIER_MEMBER_KEYS = {"kind": "architecture", "can": "capabilities"}  # keys that programs read


@command("kinfolk members", panel=MODELS)
def members_command(
    family: str | None = typer.Argument(
        None, metavar="FAMILY", help="List the sizes of this family."
    ),
    json: bool = JSON,
) -> None:
    """List the model families: architecture, objectives and paper.

    With FAMILY, its sizes with their parameter counts.
    """
    from kinfolk.families import index

    families = {
        name: entry for name, entry in index().items() if entry.objectives or entry.capabilities
    }
    if family is not None:
        if family not in families:
            raise UserError(f"unknown family {family!r}: {did_you_mean(family, [*families])}")
        print_sizes(family, json=json)
        return
    if json:
        rows = [asdict(entry) for entry in families.values()]
        print_json(
            [row | {old: row[new] for old, new in EARLIER_MEMBER_KEYS.items()} for row in rows]
        )
        return
    shown = table(*(Column(name, no_wrap=True) for name in ("name", "architecture", "objectives")))
    shown.add_column("paper")
    for entry in families.values():
        objectives = ", ".join(entry.objectives) or NO_OBJECTIVES
        shown.add_row(f"[bold]{entry.name}[/]", entry.architecture, objectives, entry.paper)
    print_table(shown)
    every = [set(entry.sizes) for entry in families.values()]
    standard = [
        size for size in next(iter(families.values())).sizes if all(size in s for s in every)
    ]
    print(f"\nsizes of every family: {' '.join(standard)}")
    print("published sizes and parameter counts: kinfolk members FAMILY")


def print_sizes(name: str, *, json: bool) -> None:
    """Print the sizes of a family with their parameter counts and dimensions."""
    from kinfolk.families import IndexEntry, family
    from kinfolk.nn.meta import parameter_count

    chosen = family(name)
    counts = {size: parameter_count(config) for size, config in chosen.sizes.items()}
    if json:
        known_words = {size: config.vocab_size for size, config in chosen.sizes.items()}
        facts = {"parameters": counts, "vocab_size": known_words}
        print_json({**asdict(IndexEntry.of(chosen)), **facts})
        return
    print_facts(
        [
            ("family", f"{chosen.title} ({chosen.paper})"),
            ("architecture", chosen.architecture),
            ("objectives", ", ".join(chosen.objectives) or NO_OBJECTIVES),
            ("supports", ", ".join(supported_uses(chosen))),
            *([("--fast sets", fast_settings(chosen))] if chosen.fast_rates else []),
        ]
    )
    known = {field for config in chosen.sizes.values() for field in vars(config)}
    if chosen.model.gradient_free is None:  # where these follow from other fields, too
        known |= {DIMENSIONS["layers"], DIMENSIONS["hidden size"]}
    dimensions = {name: field for name, field in DIMENSIONS.items() if field in known}
    sizes = table("size", *numbers("parameters", *dimensions))
    for size, config in chosen.sizes.items():
        values = [getattr(config, field, None) for field in dimensions.values()]
        cells = ("-" if value is None else f"{value:,}" for value in values)
        sizes.add_row(size, f"{counts[size]:,}", *cells)
    print_table(sizes, "sizes")
    print(f"parameters: {vocabularies(chosen)}; a run has the vocabulary of its tokenizer")
    if chosen.model.gradient_free is not None:
        print("they are those of single tokens; those of longer n-grams depend on the text")


def fast_settings(family: "Family") -> str:
    """Return the settings of the fast recipe."""
    from kinfolk.families.base import FAST_FIELDS

    train = vars(family.fast_train(family.training))
    unused = () if train["optimizer"] == "muon" else ("matrix_lr",)
    return ", ".join(
        f"{name}={train[name]:g}" if isinstance(train[name], float) else f"{name}={train[name]}"
        for name in FAST_FIELDS
        if name not in unused
    )


def vocabularies(family: "Family") -> str:
    """Return the vocabulary sizes that the parameters of each size are counted with."""
    sizes: dict[int, list[str]] = {}
    for size, config in family.sizes.items():
        sizes.setdefault(config.vocab_size, []).append(size)
    usual, *others = sorted(sizes, key=lambda count: -len(sizes[count]))
    parts = [f"with {usual:,} tokens", *(f"{n:,} in {', '.join(sizes[n])}" for n in others)]
    return ", ".join(parts)


def supported_uses(family: "Family") -> tuple[str, ...]:
    """Return the uses of a family."""
    tuned = ("finetune",) if family.model.gradient_free is None else ()
    return (*tuned, "evaluate", *family.capabilities)
