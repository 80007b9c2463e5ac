"""How a labelled file is read, once its task and its form are known."""

from collections.abc import Iterator
from pathlib import Path
from typing import Literal, TypeAlias

from kinfolk.config import config
from kinfolk.data.pairs import PairFiles
from kinfolk.errors import UserError
from kinfolk.tasks import choices, columns, completions, coreference, squad, tables, trees
from kinfolk.tasks.notes import Notes
from kinfolk.tasks.records import shown
from kinfolk.tasks.rows import Row, Written
from kinfolk.tasks.tables import Columns

Kind: TypeAlias = Literal[
    "classify", "regress", "choose", "tag", "span", "write", "complete", "lm", "coref"
]
Form: TypeAlias = Literal[
    "table", "trees", "columns", "digits", "roles", "slashes", "objects", "squad", "lines",
    "parallel", "conll2012", "gap", "text",
]  # fmt: skip


@config("format", kw_only=False)
class Guess:
    """What a file is for and how it is read, with a sentence that says so."""

    task: Kind
    form: Form
    sentence: str
    columns: Columns | None = None
    header: bool = False


def rows(
    path: Path,
    guess: Guess,
    *,
    target: Path | None = None,
    nesting: columns.Nesting = "repair",
    notes: Notes | None = None,
) -> Iterator[Row]:
    """Stream the examples of a file as the guess says; what was mended is noted."""
    found = guess.columns
    match guess.task, guess.form:
        case ("classify" | "regress") as task, "table" if found is not None:
            yield from tables.rows(path, found, task=task, header=guess.header, notes=notes)
        case "write", "table" if found is not None:
            yield from tables.written(path, found, header=guess.header, notes=notes)
        case "write", "parallel" if target is not None:
            yield from parallel(path, target, notes)
        case "classify", "trees":
            yield from trees.rows(path)
        case "tag", "columns" | "digits" if found is not None:
            (word,), tag = found.texts, found.label
            digits = guess.form == "digits"
            yield from columns.rows(
                path, word=_number(word), tag=None if tag is None else _number(tag),
                digits=digits, nesting=nesting, notes=notes,
            )  # fmt: skip
        case "tag", "roles":
            yield from columns.roles(path, notes)
        case "tag", "slashes":
            yield from columns.slashes(path)
        case "tag", "objects":
            yield from columns.listed(path, nesting=nesting, notes=notes)
        case "span", _:
            yield from squad.rows(path, notes)
        case "choose", _:
            yield from choices.rows(path)
        case "complete", _:
            yield from completions.rows(path, notes)
        case "coref", "conll2012":
            yield from coreference.columns(path)
        case "coref", "gap":
            yield from coreference.gap(path)
        case "coref", _:
            yield from coreference.listed(path)
        case _:
            raise UserError(f"{path} has no labels: pretrain on it, or give a labelled file")


def parallel(source: Path, target: Path, notes: Notes | None = None) -> Iterator[Written]:
    """Stream the pairs of two files that are aligned by line."""
    notes = notes or Notes()
    files, last = PairFiles(source, target), 0
    files.check()
    for number, pair in files.pairs():
        for left in range(last + 1, number):
            notes.add("pairs with an empty side, left out, on lines", left)
        last = number
        yield Written(pair.source, pair.target, number)


def _number(column: tables.Column) -> int:
    if not isinstance(column, int):
        raise UserError(f"--columns: words in columns have no names, so no {shown(column)}: count")
    return column
