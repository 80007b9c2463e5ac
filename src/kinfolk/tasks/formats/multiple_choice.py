"""Multiple choice from JSON: SWAG, Story Cloze, RACE, C3, COPA, CommonsenseQA, ChID.

    {"context": "She lit", "options": ["a candle.", "the sea."], "label": 0}

A field may have any of the names below, those of published files. Options are a list, or fields
that end in a number. A label is the index of the correct option from 0, its letter from A, or its
text; in a field called answer beside numbered options, indices count from 1.
"""

import re
import string
from collections.abc import Iterator, Sequence
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
from kinfolk.tasks.formats.labelled_file import (
    LabelledFile,
    as_text_list,
    field_text,
    first_key,
    preview,
)
from kinfolk.tasks.rows import MultipleChoiceRow

CONTEXT_KEYS = ("context", "ctx_a", "ctx", "article", "passage", "premise", "story", "sent1",
                "content", "sentence", "paragraph", "startphrase")  # fmt: skip
CONTEXT_PART_PREFIXES = ("input_sentence_", "InputSentence")  # of a context, numbered from 1
QUESTION_KEYS = ("question", "ctx_b", "sent2", "stem")
OPTION_KEYS = ("options", "endings", "choices", "candidates", "choice")
NUMBERED_OPTION_PREFIXES = ("ending", "choice", "option", "sentence_quiz",
                            "RandomFifthSentenceQuiz", "answer", "solution", "sol")  # fmt: skip
LABEL_KEYS = ("label", "answer_right_ending", "AnswerRightEnding", "answerKey", "answer", "gold",
          "correct")  # fmt: skip
OPTION_BLANK = re.compile(r"#idiom#|(?<!\S)_(?!\w)")  # filled by an option (ChID, WinoGrande)
COPA_QUESTIONS = {"cause": "What was the cause?", "effect": "What happened as a result?"}
OPTION_LETTERS = tuple(string.ascii_uppercase)


def detect_multiple_choice(file: LabelledFile) -> FileSpec | None:
    """Detect records with options."""
    try:
        questions = [q for record in file.sample_records[:1] for q in _questions(record, "")]
        if not any(_options(question, "") is not None for question in questions):
            return None
    except UserError:
        return None
    return FileSpec("choose", "objects", "choose the correct option of each record")


def read_multiple_choice(
    file: LabelledFile, spec: FileSpec, report: ReadReport
) -> Iterator[MultipleChoiceRow]:
    """Stream the questions of a file, numbered through its records."""
    number = 0
    for record_number, record in file.records():
        where = f"record {record_number:,} of {file}"
        for question in _questions(record, where):
            number += 1
            yield _row(question, number, where)


def write_multiple_choice(predictions: Predictions) -> Iterator[str]:
    """Add the prediction to each record; a record of several questions gets lists."""
    pairs = predictions.pairs()
    return write_json(
        predictions, lambda number, record: [next(pairs) for _ in _questions(record, "")]
    )


def _questions(row: Any, where: str) -> Iterator[dict[str, Any]]:
    """Split a passage with several questions: C3's lists, and RACE's own files."""
    if isinstance(row, list):  # [[lines], [questions], id]
        lists = len(row) > 1 and all(isinstance(part, list) for part in row[:2])
        if not lists or not all(isinstance(question, dict) for question in row[1]):
            raise UserError(
                f"{where} is {preview(row)}: a list must be [[lines], [questions], id], each "
                "question an object"
            )
        for question in row[1]:
            yield {"context": "\n".join(as_text_list(row[0], "lines", where)), **question}
        return
    if not isinstance(row, dict):
        raise UserError(f"{where} must be a JSON object (got {preview(row)})")
    if isinstance(row.get("questions"), list) and isinstance(row.get("options"), list):
        answers = row.get("answers") or [None] * len(row["questions"])
        counts = [len(row["questions"]), len(row["options"]), len(answers)]
        if len(set(counts)) > 1:
            raise UserError(
                f"{where} has {counts[0]} questions, {counts[1]} lists of options and {counts[2]} "
                "answers: every question needs one of each"
            )
        for question, options, answer in zip(
            row["questions"], row["options"], answers, strict=True
        ):
            yield {**row, "question": question, "options": options, "answer": answer}
        return
    if isinstance(row.get("question"), dict):  # CommonsenseQA
        yield {**row, **row["question"], "question": row["question"].get("stem", "")}
        return
    yield row


def _row(row: dict[str, Any], number: int, where: str) -> MultipleChoiceRow:
    options_and_letters = _options(row, where)
    if options_and_letters is None:
        raise UserError(
            f"{where} has no options: name a list {', '.join(OPTION_KEYS[:-1])}, or fields such as "
            "option1 and option2"
        )
    options, letters, numbered = options_and_letters
    if len(options) < 2:
        raise UserError(f"{where} has {len(options)} option: multiple choice needs at least two")
    context, question = _context(row, where), _question(row, where)
    label = _label(row, options, letters, numbered, where)
    parts = OPTION_BLANK.split(context)
    if len(parts) == 2 and not question:
        context, options = parts[0], tuple(option + parts[1] for option in options)
    return MultipleChoiceRow(context, options, label, number, question)


def _options(row: dict[str, Any], where: str) -> tuple[tuple[str, ...], Sequence[str], bool] | None:
    """Return the options, their letters, and whether they are in numbered fields."""
    name = first_key(row, OPTION_KEYS)
    if name is not None and isinstance(row[name], list):
        options = row[name]
        if all(isinstance(o, dict) and {"label", "text"} <= o.keys() for o in options):
            return tuple(str(o["text"]) for o in options), [str(o["label"]) for o in options], False
        return as_text_list(options, name, where), OPTION_LETTERS, False
    for prefix in NUMBERED_OPTION_PREFIXES:
        names = _numbered_fields(row, prefix)
        if len(names) > 1:
            return tuple(field_text(row[n], n, where) for n in names), OPTION_LETTERS, True
    return None


def _numbered_fields(row: dict[str, Any], prefix: str) -> list[str]:
    """Return the fields named by a prefix and a number, in the order of the numbers."""
    matches = {name: re.fullmatch(rf"{prefix}_?(\d+)", name) for name in row}
    numbers = {name: int(match[1]) for name, match in matches.items() if match}
    return sorted(numbers, key=numbers.__getitem__)


def _context(row: dict[str, Any], where: str) -> str:
    for prefix in CONTEXT_PART_PREFIXES:
        if names := _numbered_fields(row, prefix):
            return " ".join(field_text(row[name], name, where) for name in names)
    name = first_key(row, CONTEXT_KEYS)
    return "" if name is None else field_text(row[name], name, where)


def _question(row: dict[str, Any], where: str) -> str:
    name = first_key(row, QUESTION_KEYS)
    question = "" if name is None else field_text(row[name], name, where)
    return COPA_QUESTIONS.get(question, question)


def _label(
    row: dict[str, Any],
    options: tuple[str, ...],
    letters: Sequence[str],
    numbered: bool,
    where: str,
) -> int | None:
    """Return the index of the correct option."""
    name = first_key(row, LABEL_KEYS)
    value = None if name is None else row[name]
    if name is None or value is None:
        return None
    text = str(value).strip()
    if isinstance(value, str) and options.count(value) == 1:
        return options.index(value)
    if text in letters:
        index = list(letters).index(text)
    elif text.isdecimal():
        index = int(text) - (numbered and name.lower().startswith("answer"))
    else:
        index = len(options)
    if not 0 <= index < len(options):
        raise UserError(
            f"{name!r} in {where} is {preview(value)}, none of {len(options)} options: use the "
            "index from 0, the letter from A, or the text of an option"
        )
    return index


register(
    Format(
        "objects",
        ("choose",),
        read_multiple_choice,
        write_multiple_choice,
        detect_multiple_choice,
        order=2,
    )
)
