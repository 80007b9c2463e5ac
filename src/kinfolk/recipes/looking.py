"""What is wrong with labelled files, before anything is learned from them."""

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from kinfolk.errors import UserError
from kinfolk.recipes.tuning import Say, Sheet, labelled, read
from kinfolk.tasks.notes import Notes

NAMED = 8  # labels in a sentence


def look(sheets: Sequence[Sheet], say: Say) -> None:
    """Say what each file is for, and refuse dev rows that nothing can be chosen by."""
    for sheet in sheets:
        say(f"{Path(sheet.train).name}: {sheet.guess.sentence}")
        if sheet.dev is None:
            continue
        kind = sheet.guess.task
        rows = read(Path(sheet.dev), sheet.guess, target=sheet.dev_target)
        for row in rows:
            if not labelled(kind, row):
                raise UserError(
                    f"row {row.number:,} of {sheet.dev} has no label: dev rows are what the best "
                    "model is chosen by; give labelled ones, or leave --dev out"
                )
        if not rows:
            raise UserError(f"{sheet.dev} holds no rows: give labelled ones, or leave --dev out")
        if strange := unseen(kind, sheet.learned(Notes()), rows):
            say(f"{Path(sheet.dev).name} has labels that {Path(sheet.train).name} has not, and "
                f"that count as wrong: {counted(strange)}")  # fmt: skip


def unseen(kind: str, learned: Sequence[Any], rows: Sequence[Any]) -> dict[str, int]:
    """Count the labels of rows that are not among those which are learned."""
    known = set(labels(kind, learned))
    return dict(Counter(label for label in labels(kind, rows) if label not in known))


def labels(kind: str, rows: Sequence[Any]) -> Iterable[str]:
    """List the labels of rows, where they have a class or tags."""
    if kind == "classify":
        return [str(row.label) for row in rows if row.label is not None]
    if kind == "tag":
        return [tag for row in rows for tag in row.tags or ()]
    return []


def counted(labels: dict[str, int]) -> str:
    """Name labels with how often each is there: `neutral (3), mixed (1)`."""
    ordered = sorted(labels.items(), key=lambda item: -item[1])
    said = [f"{label} ({count:,})" for label, count in ordered[:NAMED]]
    return ", ".join([*said, *(["…"] if len(labels) > NAMED else [])])
