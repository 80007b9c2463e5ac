"""What a comparison is asked for, checked before torch is imported and anything is written."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args

from kinfolk.config import did_you_mean
from kinfolk.data.documents import DocumentUnit
from kinfolk.errors import UserError
from kinfolk.workflows.comparison.data import TextSource, task_files, training_file
from kinfolk.workflows.comparison.plan import (
    DEFAULT_LABELS,
    MAX_SEEDS,
    Entrant,
    RaceOptions,
    check_entrant_names,
    parse_labels,
)
from kinfolk.workflows.input_checks import check_text

OPTIONS_FILE = "options.json"
MAX_SEARCH = 9  # learning rates
BUDGETS = ("minutes", "flops", "tokens")
MAX_AMOUNT = {"minutes": 1e7, "flops": 1e30, "tokens": 1e18}  # of one run


def race_options(
    entrants: Sequence[Entrant | str],
    corpus: Path | str | Sequence[Path | str],
    budgets: Mapping[str, float | None],
    *,
    tasks: Path | str | Sequence[Path | str] = (),
    seeds: int = 3,
    labels: Sequence[str | int] = DEFAULT_LABELS,
    **options: Any,
) -> RaceOptions:
    """Return the options of a comparison, checked as far as no file is read."""
    if isinstance(entrants, str):
        raise UserError(f"entrants is the text {entrants!r}: give a list, such as [{entrants!r}]")
    known = [f.name for f in fields(RaceOptions) if not f.name.startswith("budget_")]
    for name in options:
        if name not in known:
            raise UserError(
                f"unknown option {name!r} of compare: {did_you_mean(name, [*known, *BUDGETS])}"
            )
    parsed = tuple(e if isinstance(e, Entrant) else Entrant.parse(e) for e in entrants)
    check_entrant_names(parsed)
    given = {kind: amount for kind, amount in budgets.items() if amount is not None}
    if len(given) != 1:
        count = f"{len(given)} budgets are" if given else "no budget is"
        raise UserError(f"{count} given: give one of {', '.join(f'--{k}' for k in BUDGETS)}")
    if not 1 <= seeds <= MAX_SEEDS:
        raise UserError(f"--seeds must be from 1 to {MAX_SEEDS} (got {seeds})")
    if not (options.get("search", 0) == 0 or 2 <= options["search"] <= MAX_SEARCH):
        raise UserError(f"--search must be from 2 to {MAX_SEARCH} (got {options['search']})")
    if (epochs := options.get("task_epochs")) is not None and not 0 < epochs < math.inf:
        raise UserError(f"--task-epochs must be greater than 0 (got {epochs:g})")
    check_document_unit(options.get("document", "block"))
    ((kind, amount),) = given.items()
    check_amount(kind, amount)
    return RaceOptions(
        entrants=parsed,
        corpus=tuple(str(path) for path in as_list(corpus)),
        budget_kind=kind,
        budget_amount=float(amount),
        tasks=tuple(str(path) for path in as_list(tasks)),
        seeds=seeds,
        labels=parse_labels([str(size) for size in labels]),
        **options,
    )


def check_document_unit(unit: str) -> None:
    """Refuse a unit of documents that there is not."""
    if unit not in get_args(DocumentUnit):
        raise UserError(f"--document must be {' or '.join(get_args(DocumentUnit))} (got {unit})")


def as_list(value: Path | str | Sequence[Path | str]) -> list[Path | str]:
    """Return one path or several as a list."""
    return [value] if isinstance(value, Path | str) else list(value)


def check_amount(kind: str, amount: float) -> None:
    """Refuse a budget that is no positive number, or absurd."""
    limit = MAX_AMOUNT[kind]
    if not 0 < amount <= limit:
        raise UserError(f"--{kind} must be greater than 0 and at most {limit:g} (got {amount:g})")


def check_inputs(options: RaceOptions) -> None:
    """Refuse text and labelled files that are missing, or whose beginning cannot be read."""
    source = TextSource.open(options)
    for path in () if source.prepared else source.paths:
        check_text(path)
    for text in options.tasks:
        training_file(task_files(text)["train"], options)


def read_options(race: Path) -> RaceOptions:
    """Return what a comparison was asked for; refuse a folder of something else."""
    path = race / OPTIONS_FILE
    if not path.is_file():
        raise UserError(f"{race} is not the folder of a comparison: it has no {OPTIONS_FILE}")
    try:
        return RaceOptions.read(path)
    except (ValueError, LookupError, TypeError, AttributeError):
        raise UserError(
            f"{path} is damaged, or of something else: start the comparison again in a new folder"
        ) from None
