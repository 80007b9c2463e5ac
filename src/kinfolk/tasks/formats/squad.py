"""Questions about contexts in the format of SQuAD (Rajpurkar et al. 2016, 2018), and CMRC 2018."""

import json
from collections.abc import Iterator
from typing import Any

from kinfolk.errors import UserError
from kinfolk.tasks.formats.base import FileSpec, Format, Predictions, ReadReport, register
from kinfolk.tasks.formats.labelled_file import LabelledFile, preview
from kinfolk.tasks.rows import QuestionRow

NOT_FOUND = -1  # start of an answer that the context does not contain


def detect_squad(file: LabelledFile) -> FileSpec | None:
    """Detect SQuAD by the structure of its object."""
    if not is_squad(file.first_record):
        return None
    return FileSpec("span", "squad", "find the answer to each question in its context")


def read_squad(file: LabelledFile, spec: FileSpec, report: ReadReport) -> Iterator[QuestionRow]:
    """Stream the questions; an answer that is not at its offset is searched for."""
    number, ids = 0, set[str]()
    for where, context, record in _questions(file):
        number += 1
        if not context.strip():
            report.count("questions without a context skipped", number)
            continue
        id = str(record.get("id", number))
        if id in ids:
            report.count("questions with a duplicate id renamed", id)
            id = f"{id}#{number}"
        ids.add(id)
        question = _text(record, "question", where)
        answers = _list(record, "answers", where) if "answers" in record else []
        answerable = not record.get("is_impossible", False)
        located = tuple(_locate(answer, context, id, where, report) for answer in answers)
        yield QuestionRow(id, context, question, located if answerable else (), answerable, number)


def write_squad(predictions: Predictions) -> Iterator[str]:
    """Yield the official format of predictions: an object of answers by question id."""
    answers = {row.id: prediction.value for row, prediction in predictions.pairs()}
    yield json.dumps(answers, ensure_ascii=False) + "\n"


def is_squad(value: Any) -> bool:
    """Return whether a JSON value has SQuAD's structure: articles of paragraphs."""
    data = value.get("data") if isinstance(value, dict) else None
    return isinstance(data, list) and all(isinstance(a, dict) and "paragraphs" in a for a in data)


def _questions(file: LabelledFile) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Stream each question with its location and its context."""
    for _, value in file.records():
        if not is_squad(value):
            raise UserError(
                f"{file} is {preview(value)}: the SQuAD format is an object whose 'data' is a list "
                "of articles with 'paragraphs'"
            )
        for a, article in enumerate(value["data"], 1):
            paragraphs = _list(article, "paragraphs", f"article {a} of {file}")
            for p, paragraph in enumerate(paragraphs, 1):
                where = f"paragraph {p} of article {a} of {file}"
                context = _text(paragraph, "context", where)
                for q, question in enumerate(_list(paragraph, "qas", where), 1):
                    yield f"question {q} of {where}", context, question


def _locate(
    answer: dict[str, Any], context: str, id: str, where: str, report: ReadReport
) -> tuple[str, int]:
    """Return an answer and its start: the given offset, else the nearest occurrence."""
    text, start = _text(answer, "text", where), answer.get("answer_start", NOT_FOUND)
    if not isinstance(start, int):
        raise UserError(f"'answer_start' in {where} must be an integer (got {preview(start)})")
    if start >= 0 and context.startswith(text, start) and text:
        return text, start
    nearest = _nearest(text, context, start)
    if nearest == NOT_FOUND:
        report.count("answers not found in their context", f"{id}: {text!r}")
    elif "answer_start" in answer:
        report.count("answers found at another offset than given", id)
    return text, nearest


def _nearest(text: str, context: str, start: int) -> int:
    """Return the start of the occurrence that is nearest to an offset."""
    best, start_at = NOT_FOUND, context.find(text) if text else NOT_FOUND
    while start_at != NOT_FOUND:
        if best == NOT_FOUND or abs(start_at - start) < abs(best - start):
            best = start_at
        start_at = context.find(text, start_at + 1)
    return best


def _text(record: Any, name: str, where: str) -> str:
    value = record.get(name) if isinstance(record, dict) else None
    if not isinstance(value, str):
        raise UserError(f"{name!r} in {where} must be a string (got {preview(value)})")
    return value


def _list(record: Any, name: str, where: str) -> list[Any]:
    value = record.get(name) if isinstance(record, dict) else None
    if not isinstance(value, list):
        raise UserError(f"{name!r} in {where} must be a list (got {preview(value)})")
    return value


register(Format("squad", ("span",), read_squad, write_squad, detect_squad))
