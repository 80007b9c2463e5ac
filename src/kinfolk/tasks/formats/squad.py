"""Questions on contexts as SQuAD writes them (Rajpurkar et al., 2016, 2018), and CMRC 2018."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kinfolk.errors import UserError
from kinfolk.tasks.formats.base import ReadReport, preview, read_json
from kinfolk.tasks.rows import QuestionRow

NOT_FOUND = -1  # where an answer begins that the context does not hold


def read(path: Path, notes: ReadReport | None = None) -> Iterator[QuestionRow]:
    """Stream the questions of a file; answers that are not where it says are searched for."""
    notes = notes or ReadReport()
    number, ids = 0, set[str]()
    for where, context, question in _questions(path):
        number += 1
        if not context.strip():
            notes.count("questions without a context, left out", number)
            continue
        id = str(question.get("id", number))
        if id in ids:
            notes.count("questions with the id of another, which have a new one", id)
            id = f"{id}#{number}"
        ids.add(id)
        asked = _text(question, "question", where)
        answers = _list(question, "answers", where) if "answers" in question else []
        possible = not question.get("is_impossible", False)
        placed = [_placed(answer, context, id, where, notes) for answer in answers]
        yield QuestionRow(id, context, asked, tuple(placed) if possible else (), possible, number)


def is_squad(value: Any) -> bool:
    """Tell whether a JSON value has the form of SQuAD: articles of paragraphs."""
    data = value.get("data") if isinstance(value, dict) else None
    return isinstance(data, list) and all(isinstance(a, dict) and "paragraphs" in a for a in data)


def _questions(path: Path) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Stream each question with its context and where it is."""
    for _, value in read_json(path):
        if not is_squad(value):
            raise UserError(
                f"{path} is {preview(value)}: SQuAD's form is an object whose 'data' is a list of "
                "articles with 'paragraphs'"
            )
        for a, article in enumerate(value["data"], 1):
            for p, paragraph in enumerate(
                _list(article, "paragraphs", f"article {a} of {path}"), 1
            ):
                where = f"paragraph {p} of article {a} of {path}"
                context = _text(paragraph, "context", where)
                for q, question in enumerate(_list(paragraph, "qas", where), 1):
                    yield f"question {q} of {where}", context, question


def _placed(
    answer: dict[str, Any], context: str, id: str, where: str, notes: ReadReport
) -> tuple[str, int]:
    """Return an answer and where it begins: as said, else at the nearest place that has it."""
    text, start = _text(answer, "text", where), answer.get("answer_start", NOT_FOUND)
    if not isinstance(start, int):
        raise UserError(f"'answer_start' in {where} is {preview(start)}: give a whole number")
    if start >= 0 and context.startswith(text, start) and text:
        return text, start
    found = _nearest(text, context, start)
    if found == NOT_FOUND:
        notes.count("answers that their context does not hold", f"{id}: {text!r}")
    elif "answer_start" in answer:
        notes.count("answers found at another place than the file says", id)
    return text, found


def _nearest(text: str, context: str, start: int) -> int:
    """Find the occurrence of an answer that is nearest to where it should be."""
    best, found = NOT_FOUND, context.find(text) if text else NOT_FOUND
    while found != -1:
        if best == NOT_FOUND or abs(found - start) < abs(best - start):
            best = found
        found = context.find(text, found + 1)
    return best


def _text(row: Any, name: str, where: str) -> str:
    value = row.get(name) if isinstance(row, dict) else None
    if not isinstance(value, str):
        raise UserError(f"{name!r} in {where} is {preview(value)}: SQuAD's form has a text there")
    return value


def _list(row: Any, name: str, where: str) -> list[Any]:
    value = row.get(name) if isinstance(row, dict) else None
    if not isinstance(value, list):
        raise UserError(f"{name!r} in {where} is {preview(value)}: SQuAD's form has a list there")
    return value
