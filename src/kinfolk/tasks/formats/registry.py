"""How a labelled file is read, once its task and its form are known."""

from collections.abc import Iterator
from pathlib import Path
from typing import Literal, TypeAlias

from kinfolk.config import config
from kinfolk.data.parallel_text import ParallelText
from kinfolk.errors import UserError
from kinfolk.tasks.formats import completion, conll, coreference, multiple_choice, squad, table
from kinfolk.tasks.formats.base import ReadReport, preview
from kinfolk.tasks.formats.table import Columns
from kinfolk.tasks.rows import Row, SourceTarget

TaskName: TypeAlias = Literal[
    "classify", "regress", "choose", "tag", "span", "write", "complete", "lm", "coref"
]
FormatName: TypeAlias = Literal[
    "table", "trees", "columns", "digits", "roles", "slashes", "objects", "squad", "lines",
    "parallel", "conll2012", "gap", "text",
]  # fmt: skip


@config("format", kw_only=False)
class FileSpec:
    """What a file is for and how it is read, with a sentence that says so."""

    task: TaskName
    format: FormatName
    description: str
    columns: Columns | None = None
    header: bool = False


def read_rows(
    path: Path,
    guess: FileSpec,
    *,
    target: Path | None = None,
    nesting: conll.TagErrors = "repair",
    notes: ReadReport | None = None,
) -> Iterator[Row]:
    """Stream the examples of a file as the guess says; what was mended is noted."""
    found = guess.columns
    match guess.task, guess.format:
        case ("classify" | "regress") as task, "table" if found is not None:
            yield from table.read_labelled(path, found, task=task, header=guess.header, notes=notes)
        case "write", "table" if found is not None:
            yield from table.read_pairs(path, found, header=guess.header, notes=notes)
        case "write", "parallel" if target is not None:
            yield from read_parallel(path, target, notes)
        case "classify", "trees":
            yield from table.read(path)
        case "tag", "columns" | "digits" if found is not None:
            (word,), tag = found.texts, found.label
            digits = guess.format == "digits"
            yield from conll.read_conll(
                path, word=_number(word), tag=None if tag is None else _number(tag),
                digits=digits, nesting=nesting, notes=notes,
            )  # fmt: skip
        case "tag", "roles":
            yield from conll.read_srl(path, notes)
        case "tag", "slashes":
            yield from conll.read_word_tag(path)
        case "tag", "objects":
            yield from conll.read_tagged_json(path, nesting=nesting, notes=notes)
        case "span", _:
            yield from squad.read(path, notes)
        case "choose", _:
            yield from multiple_choice.read(path)
        case "complete", _:
            yield from completion.read(path, notes)
        case "coref", "conll2012":
            yield from coreference.read_conll2012(path)
        case "coref", "gap":
            yield from coreference.read_gap(path)
        case "coref", _:
            yield from coreference.read_coref_json(path)
        case _:
            raise UserError(f"{path} has no labels: pretrain on it, or give a labelled file")


def read_parallel(
    source: Path, target: Path, notes: ReadReport | None = None
) -> Iterator[SourceTarget]:
    """Stream the pairs of two files that are aligned by line."""
    notes = notes or ReadReport()
    files, last = ParallelText(source, target), 0
    files.check()
    for number, pair in files.pairs():
        for left in range(last + 1, number):
            notes.count("pairs with an empty side, left out, on lines", left)
        last = number
        yield SourceTarget(pair.source, pair.target, number)


def _number(column: table.Column) -> int:
    if not isinstance(column, int):
        raise UserError(
            f"--columns: words in columns have no names, so no {preview(column)}: count"
        )
    return column
