"""Texts whose next word is asked for: LAMBADA, the Children's Book Test, and plain lines.

    {"prompt": "He did not care about", "label": "signs"}

A line of plain text is a context and its last word. In the Children's Book Test (Hill et al., 2015)
twenty numbered sentences come before one with a hole, its answer and the candidates.
"""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from kinfolk.errors import UserError
from kinfolk.tasks.formats.base import (
    ReadReport,
    as_text,
    as_text_list,
    first_key,
    is_json,
    read_json,
    read_lines,
)
from kinfolk.tasks.rows import CompletionRow

PROMPT_KEYS = ("prompt", "context", "input")
TARGET_KEYS = ("label", "target", "answer", "completion", "last_word")
OPTION_KEYS = ("options", "candidates")
CBT_BLANK = "XXXXX"


def read(path: Path, notes: ReadReport | None = None) -> Iterator[CompletionRow]:
    """Stream the contexts of a file and the words that go on with them."""
    if is_json(path):
        return _objects(path)
    book = any(CBT_BLANK in line and "\t" in line for _, line in islice(read_lines(path), 64))
    return _book(path) if book else _lines(path, notes or ReadReport())


def _objects(path: Path) -> Iterator[CompletionRow]:
    for number, row in read_json(path):
        where = f"line {number:,} of {path}"
        name, target, some = (
            first_key(row, names) for names in (PROMPT_KEYS, TARGET_KEYS, OPTION_KEYS)
        )
        if name is None:
            whole = first_key(row, ("text",))
            if whole is None:
                raise UserError(f"{where} has no context: name it prompt, context or text")
            context, _, word = as_text(row[whole], whole, where).strip().rpartition(" ")
            yield CompletionRow(context, word, None, number)
            continue
        answer = None if target is None else as_text(row[target], target, where)
        options = None if some is None else as_text_list(row[some], some, where)
        if answer is not None and options is not None and answer not in options:
            raise UserError(f"{where}: the answer {answer!r} is none of its {some}")
        yield CompletionRow(as_text(row[name], name, where), answer, options, number)


def _lines(path: Path, notes: ReadReport) -> Iterator[CompletionRow]:
    for number, line in read_lines(path):
        context, _, word = line.strip().rpartition(" ")
        if context:
            yield CompletionRow(context, word, None, number)
        elif word:
            notes.count("lines of one word, left out", number)


def _book(path: Path) -> Iterator[CompletionRow]:
    context: list[str] = []
    for number, line in read_lines(path):
        place, _, said = line.strip().partition(" ")
        if not place:
            context = []
            continue
        if not place.isdecimal():
            raise UserError(
                f"line {number:,} of {path} begins with {place!r}: the Children's Book Test "
                "numbers the sentences of each question from 1"
            )
        if CBT_BLANK not in said or "\t" not in said:
            context.append(said)
            continue
        question, answer, *_, some = said.split("\t")
        before, after = question.split(CBT_BLANK, 1)
        options = tuple(some.split("|"))
        if answer not in options:
            raise UserError(
                f"line {number:,} of {path}: the answer {answer!r} is none of its candidates"
            )
        yield CompletionRow(
            " ".join([*context, before]).rstrip(), answer, options, number, after.rstrip()
        )
        context = []
