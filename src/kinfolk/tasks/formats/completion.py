"""Texts whose next word is predicted (LAMBADA, the Children's Book Test, lines), and plain text.

    {"prompt": "He did not care about", "label": "signs"}

A line of plain text is a context and its last word. In the Children's Book Test (Hill et al. 2015)
twenty numbered sentences come before one with a blank, its answer and the candidates.
"""

from collections.abc import Iterator
from itertools import islice

from kinfolk.data.documents import read_documents
from kinfolk.errors import UserError
from kinfolk.tasks.formats.base import (
    FileSpec,
    Format,
    Predictions,
    ReadReport,
    register,
    write_json,
    write_lines,
)
from kinfolk.tasks.formats.detect import find_columns
from kinfolk.tasks.formats.labelled_file import LabelledFile, as_text_list, field_text, first_key
from kinfolk.tasks.rows import CompletionRow, SourceTarget

PROMPT_KEYS = ("prompt", "context", "input")
TARGET_KEYS = ("label", "target", "answer", "completion", "last_word")
CANDIDATE_KEYS = ("options", "candidates")
CBT_BLANK = "XXXXX"
CBT_LINES = 64  # in which the first question of the Children's Book Test ends


def detect_completions(file: LabelledFile) -> FileSpec | None:
    """Detect completions: nearly all targets are one word, and they differ more than classes do."""
    prompt, target = (first_key(file.first_record, k) for k in (PROMPT_KEYS, TARGET_KEYS))
    if prompt is None or target is None:
        return None
    records = [record for record in file.sample_records if isinstance(record, dict)]
    words = [str(record.get(target, "")) for record in records]
    single = sum(len(word.split()) == 1 for word in words)
    if single <= 0.9 * len(words) or len(set(words)) <= len(words) / 3:
        return None
    return FileSpec("complete", "objects", "complete each context with its word")


def detect_cbt(file: LabelledFile) -> FileSpec | None:
    """Detect the Children's Book Test by its blank."""
    if file.is_json or file.is_delimited or not any(map(_is_cbt_question, file.sample_lines)):
        return None
    return FileSpec("complete", "lines", "complete each question with one of its candidates")


def detect_text(file: LabelledFile) -> FileSpec | None:
    """Detect plain text: a file without labels."""
    if file.is_delimited:
        return None
    has_paragraphs = first_key(file.first_record, ("paragraphs",)) is not None
    if file.is_json and find_columns(file)[0] is None and not has_paragraphs:
        return None
    return FileSpec("lm", "text", "read as text, without labels")


def read_completions(
    file: LabelledFile, spec: FileSpec, report: ReadReport
) -> Iterator[CompletionRow]:
    """Stream the contexts of a file and the words that follow them."""
    if file.is_json:
        return _read_json(file)
    is_cbt = any(_is_cbt_question(line) for _, line in islice(file.lines(), CBT_LINES))
    return _read_cbt(file) if is_cbt else _read_lines(file, report)


def write_completions(predictions: Predictions) -> Iterator[str]:
    """Add the word to each JSON record, or to the end of each line."""
    return (write_json if predictions.file.is_json else write_lines)(predictions)


def read_text(file: LabelledFile, spec: FileSpec, report: ReadReport) -> Iterator[SourceTarget]:
    """Stream the documents of a text as targets without a source."""
    for number, document in enumerate(read_documents([file.path]), 1):
        yield SourceTarget("", document.text, number)


def write_text(predictions: Predictions) -> Iterator[str]:
    """Refuse to write: a text has no labels."""
    raise UserError("plain text has no labels to predict: use kinfolk evaluate --test")


def _is_cbt_question(line: str) -> bool:
    return CBT_BLANK in line and "\t" in line


def _read_json(file: LabelledFile) -> Iterator[CompletionRow]:
    for number, record in file.records():
        where = file.place(number)
        prompt, target, candidates = (
            first_key(record, names) for names in (PROMPT_KEYS, TARGET_KEYS, CANDIDATE_KEYS)
        )
        if prompt is None:
            text = first_key(record, ("text",))
            if text is None:
                raise UserError(f"{where} has no context: add a field prompt, context or text")
            context, _, word = field_text(record[text], text, where).strip().rpartition(" ")
            yield CompletionRow(context, word, None, number)
            continue
        answer = None if target is None else field_text(record[target], target, where)
        options = (
            None if candidates is None else as_text_list(record[candidates], candidates, where)
        )
        if answer is not None and options is not None and answer not in options:
            raise UserError(f"{where}: the answer {answer!r} is not among its {candidates}")
        yield CompletionRow(field_text(record[prompt], prompt, where), answer, options, number)


def _read_lines(file: LabelledFile, report: ReadReport) -> Iterator[CompletionRow]:
    for number, line in file.lines():
        context, _, word = line.strip().rpartition(" ")
        if context:
            yield CompletionRow(context, word, None, number)
        elif word:
            report.count("lines of one word skipped, on lines", number)


def _read_cbt(file: LabelledFile) -> Iterator[CompletionRow]:
    context: list[str] = []
    for number, line in file.lines():
        index, _, sentence = line.strip().partition(" ")
        if not index:
            context = []
            continue
        if not index.isdecimal():
            raise UserError(
                f"line {number:,} of {file} begins with {index!r}: the Children's Book Test "
                "numbers the sentences of each question from 1"
            )
        if not _is_cbt_question(sentence):
            context.append(sentence)
            continue
        question, answer, *_, candidates = sentence.split("\t")
        before, after = question.split(CBT_BLANK, 1)
        options = tuple(candidates.split("|"))
        if answer not in options:
            raise UserError(
                f"line {number:,} of {file}: the answer {answer!r} is not among its candidates"
            )
        yield CompletionRow(
            " ".join([*context, before]).rstrip(), answer, options, number, after.rstrip()
        )
        context = []


register(
    Format("lines", ("complete",), read_completions, write_completions, detect_cbt),
    Format(
        "objects", ("complete",), read_completions, write_completions, detect_completions, order=3
    ),
    Format("text", ("lm",), read_text, write_text, detect_text, order=5),
)
