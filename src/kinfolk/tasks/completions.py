"""Texts whose next word is asked for: LAMBADA, the Children's Book Test, and plain lines.

    {"prompt": "He did not care about", "label": "signs"}

A line of plain text is a context and its last word. In the Children's Book Test (Hill et al., 2015)
twenty numbered sentences come before one with a hole, its answer and the candidates.
"""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from kinfolk.errors import UserError
from kinfolk.tasks.notes import Notes
from kinfolk.tasks.records import first_of, holds_json, objects, text, text_lines, texts
from kinfolk.tasks.rows import Completion

CONTEXTS = ("prompt", "context", "input")
TARGETS = ("label", "target", "answer", "completion", "last_word")
OPTIONS = ("options", "candidates")
HOLE = "XXXXX"


def rows(path: Path, notes: Notes | None = None) -> Iterator[Completion]:
    """Stream the contexts of a file and the words that go on with them."""
    if holds_json(path):
        return _objects(path)
    book = any(HOLE in line and "\t" in line for _, line in islice(text_lines(path), 64))
    return _book(path) if book else _lines(path, notes or Notes())


def _objects(path: Path) -> Iterator[Completion]:
    for number, row in objects(path):
        where = f"line {number:,} of {path}"
        name, target, some = (first_of(row, names) for names in (CONTEXTS, TARGETS, OPTIONS))
        if name is None:
            whole = first_of(row, ("text",))
            if whole is None:
                raise UserError(f"{where} has no context: name it prompt, context or text")
            context, _, word = text(row[whole], whole, where).strip().rpartition(" ")
            yield Completion(context, word, None, number)
            continue
        answer = None if target is None else text(row[target], target, where)
        options = None if some is None else texts(row[some], some, where)
        if answer is not None and options is not None and answer not in options:
            raise UserError(f"{where}: the answer {answer!r} is none of its {some}")
        yield Completion(text(row[name], name, where), answer, options, number)


def _lines(path: Path, notes: Notes) -> Iterator[Completion]:
    for number, line in text_lines(path):
        context, _, word = line.strip().rpartition(" ")
        if context:
            yield Completion(context, word, None, number)
        elif word:
            notes.add("lines of one word, left out", number)


def _book(path: Path) -> Iterator[Completion]:
    context: list[str] = []
    for number, line in text_lines(path):
        place, _, said = line.strip().partition(" ")
        if not place:
            context = []
            continue
        if not place.isdecimal():
            raise UserError(
                f"line {number:,} of {path} begins with {place!r}: the Children's Book Test "
                "numbers the sentences of each question from 1"
            )
        if HOLE not in said or "\t" not in said:
            context.append(said)
            continue
        question, answer, *_, some = said.split("\t")
        before, after = question.split(HOLE, 1)
        options = tuple(some.split("|"))
        if answer not in options:
            raise UserError(
                f"line {number:,} of {path}: the answer {answer!r} is none of its candidates"
            )
        yield Completion(
            " ".join([*context, before]).rstrip(), answer, options, number, after.rstrip()
        )
        context = []
