"""Questions about contexts: SQuAD (Rajpurkar et al. 2016, 2018), CMRC 2018, TyDi QA, JSON records.

    {"data": [{"paragraphs": [{"context": "Ann ran", "qas": [{"question": "Who?", ...}]}]}]}
    {"context": "Ann ran", "question": "Who?", "answers": {"text": ["Ann"], "answer_start": [0]}}

A record of TyDi QA (Clark et al. 2020) has `document_plaintext`, `question_text` and `annotations`,
whose `minimal_answer` is given by offsets in bytes of UTF-8.
"""

import json
from collections.abc import Iterator
from typing import Any

from kinfolk.errors import UserError
from kinfolk.tasks.formats.base import (
    FileSpec,
    Format,
    Predictions,
    ReadReport,
    register,
    write_json,
)
from kinfolk.tasks.formats.labelled_file import LabelledFile, preview
from kinfolk.tasks.rows import QuestionRow

TYDI_KEYS, TYDI_ANSWERS = ("document_plaintext", "question_text"), "annotations"
CONTEXT_QUESTION_KEYS = (("context", "question"), TYDI_KEYS)
NOT_FOUND = -1  # start of an answer that the context does not contain


def detect_squad(file: LabelledFile) -> FileSpec | None:
    """Detect SQuAD by the structure of its object, or records of questions with answers."""
    first = file.first_record
    if not is_squad(first) and not (is_question(first) and _has_answers(first)):
        return None
    return FileSpec("span", "squad", "find the answer to each question in its context")


def read_squad(file: LabelledFile, spec: FileSpec, report: ReadReport) -> Iterator[QuestionRow]:
    """Stream the questions; an answer that is not at its offset is searched for."""
    ids = set[str]()
    for number, where, context, record in _questions(file):
        if not context.strip():
            report.count("questions without a context skipped", number)
            continue
        id = str(record.get("id", number))
        if id in ids:
            report.count("questions with a duplicate id renamed", id)
            id = f"{id}#{number}"
        ids.add(id)
        question = _text(record, "question", where)
        answers = _answers(record, where)
        no_answer = not answers and (
            isinstance(record.get("answers"), dict) or bool(record.get(TYDI_ANSWERS))
        )  # of records that are annotated
        answerable = not (_flag(record, "is_impossible", where) or no_answer)
        located = tuple(_locate(answer, context, id, where, report) for answer in answers)
        yield QuestionRow(id, context, question, located if answerable else (), answerable, number)


def write_squad(predictions: Predictions) -> Iterator[str]:
    """Yield the official format of predictions: an object of answers by question id.

    Records of one question each get fields.
    """
    if not is_squad(predictions.file.first_record):
        yield from write_json(predictions)
        return
    answers = {row.id: prediction.value for row, prediction in predictions.pairs()}
    yield json.dumps(answers, ensure_ascii=False) + "\n"


def is_squad(value: Any) -> bool:
    """Return whether a JSON value has SQuAD's structure: articles of paragraphs."""
    data = value.get("data") if isinstance(value, dict) else None
    return isinstance(data, list) and all(isinstance(a, dict) and "paragraphs" in a for a in data)


def is_question(value: Any) -> bool:
    """Return whether a JSON value is one question about a context."""
    return isinstance(value, dict) and any({*names} <= {*value} for names in CONTEXT_QUESTION_KEYS)


def _has_answers(record: dict[str, Any]) -> bool:
    answers = record.get("answers", record.get(TYDI_ANSWERS))
    items = answers if isinstance(answers, list) else [answers]
    return answers is not None and all(isinstance(item, dict) for item in items)


def _questions(file: LabelledFile) -> Iterator[tuple[int, str, str, dict[str, Any]]]:
    """Stream each question with its number, its location and its context."""
    number = 0
    for record_number, value in file.records():
        if is_question(value):
            where = f"line {record_number:,} of {file}"
            context, question = next(keys for keys in CONTEXT_QUESTION_KEYS if {*keys} <= {*value})
            record = {**value, "question": value[question]}
            yield record_number, where, _text(value, context, where), record
            continue
        if not is_squad(value):
            raise UserError(
                f"{file} is {preview(value)}: the SQuAD format is an object whose 'data' is a list "
                "of articles with 'paragraphs', or one object with a context, a question and "
                "answers per line"
            )
        for a, article in enumerate(value["data"], 1):
            paragraphs = _list(article, "paragraphs", f"article {a} of {file}")
            for p, paragraph in enumerate(paragraphs, 1):
                where = f"paragraph {p} of article {a} of {file}"
                context = _text(paragraph, "context", where)
                for q, question in enumerate(_list(paragraph, "qas", where), 1):
                    number += 1
                    if not isinstance(question, dict):
                        raise UserError(
                            f"question {q} of {where} is {preview(question)}: write an object with "
                            "'question', 'id' and 'answers'"
                        )
                    yield number, f"question {q} of {where}", context, question


def _answers(record: dict[str, Any], where: str) -> list[Any]:
    """Return the answers of a question: a list, an object of two lists, or TyDi QA's offsets."""
    if TYDI_ANSWERS in record:
        return _tydi_answers(record, where)
    answers = record.get("answers", [])
    if not isinstance(answers, dict):
        return _list(record, "answers", where) if answers else []
    texts = _list(answers, "text", where)
    starts = answers.get("answer_start") or [NOT_FOUND] * len(texts)
    if not isinstance(starts, list) or len(starts) != len(texts):
        raise UserError(
            f"'answers' in {where} has {len(texts)} texts and {preview(starts)} as 'answer_start': "
            "give one start for each text"
        )
    return [{"text": t, "answer_start": s} for t, s in zip(texts, starts, strict=True)]


def _tydi_answers(record: dict[str, Any], where: str) -> list[dict[str, Any]]:
    """Return the minimal answers of a TyDi QA record; a start of -1 is no answer."""
    data, answers = _text(record, TYDI_KEYS[0], where).encode(), []
    for annotation in _list(record, TYDI_ANSWERS, where):
        answer = annotation.get("minimal_answer") if isinstance(annotation, dict) else None
        ends = ("plaintext_start_byte", "plaintext_end_byte")
        start, end = (answer.get(e) if isinstance(answer, dict) else None for e in ends)
        if not isinstance(start, int) or not isinstance(end, int) or end > len(data):
            raise UserError(
                f"{TYDI_ANSWERS!r} in {where} has the 'minimal_answer' {preview(answer)}: it must "
                f"be an object with {ends[0]} and {ends[1]} within the text"
            )
        if 0 <= start < end:
            text = data[start:end].decode(errors="ignore")
            before = data[:start].decode(errors="ignore")
            answers.append({"text": text, "answer_start": len(before)})
    return answers


def _flag(record: dict[str, Any], name: str, where: str) -> bool:
    """Return a field that is true or false, also written as a string; false where it is missing."""
    value = record.get(name, False)
    flags = {"true": True, "false": False}
    if not isinstance(value, bool) and str(value).lower() not in flags:
        raise UserError(f"{name!r} in {where} must be true or false (got {preview(value)})")
    return flags[str(value).lower()]


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
