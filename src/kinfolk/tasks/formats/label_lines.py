"""Lines of a label and a text, as of TREC and fastText, and lines of text alone.

    DESC:manner How did it begin ?     LabelledText(("How did it begin ?",), "DESC:manner")
    __label__spam You won a prize      LabelledText(("You won a prize",), "spam")

Lines of text alone have no labels: they are read by `predict`.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from kinfolk.errors import UserError
from kinfolk.tasks.formats.base import (
    FileSpec,
    Format,
    Predictions,
    ReadReport,
    register,
    write_lines,
)
from kinfolk.tasks.formats.labelled_file import LabelledFile
from kinfolk.tasks.rows import LabelledText
from kinfolk.tasks.task import task_class

FASTTEXT_PREFIX = "__label__"
COARSE_AND_FINE = re.compile(r"[A-Z]+:\w+")  # labels of TREC (Li & Roth 2002)
PLAIN_LABEL = re.compile(r"[\w-]+")
MIN_LINES, LINES_PER_LABEL = 20, 10  # in which plain words are recognized as labels
TEXT_LINE_TASKS = ("classify", "regress", "tag", "write", "extract")


def detect_label_lines(file: LabelledFile) -> FileSpec | None:
    """Detect lines whose first words are labels by their form, or because they are few."""
    lines = [line.split(maxsplit=1) for line in file.sample_lines if line.strip()]
    if file.is_json or file.is_delimited or any(len(line) < 2 for line in lines):
        return None
    labels = [label for label, _ in lines]
    if (
        all(label.startswith(FASTTEXT_PREFIX) for label in labels)
        or all(map(COARSE_AND_FINE.fullmatch, labels))
        or (are_few_labels(labels) and not any("\t" in line for line in file.sample_lines))
    ):
        return label_lines_spec()
    return None


def are_few_labels(labels: Sequence[str]) -> bool:
    """Return whether the first words of lines are labels: plain, few, and each repeated."""
    counts = Counter(labels)
    return (
        len(labels) >= MIN_LINES
        and 2 <= len(counts) <= len(labels) / LINES_PER_LABEL
        and min(counts.values()) > 1
        and all(map(PLAIN_LABEL.fullmatch, counts))
    )


def label_lines_spec() -> FileSpec:
    """Return how lines of a label and a text are read."""
    return FileSpec("classify", "label_lines", "classify each line by its first word")


def text_lines_spec(task: str) -> FileSpec:
    """Return how lines of text alone are read."""
    return FileSpec(task, "text_lines", f"{task} each line, without a label")


def read_label_lines(
    file: LabelledFile, spec: FileSpec, report: ReadReport
) -> Iterator[LabelledText]:
    """Stream lines of a label and a text."""
    for number, line in file.lines():
        if not line.strip():
            continue
        label, *rest = line.split(maxsplit=1)
        text = rest[0].strip() if rest else ""
        if not text:
            raise UserError(
                f"line {number:,} of {file} is {label!r}: write a label, a space and a text"
            )
        if text.startswith(FASTTEXT_PREFIX):
            raise UserError(
                f"line {number:,} of {file} has several labels ({label} {text.split()[0]}): one "
                "label is predicted for each text, so keep one"
            )
        yield LabelledText((text,), label.removeprefix(FASTTEXT_PREFIX), number)


def read_text_lines(file: LabelledFile, spec: FileSpec, report: ReadReport) -> Iterator[Any]:
    """Stream the lines that are not blank as rows without a label."""
    task = task_class(spec.task)()
    for number, line in file.lines():
        if line.strip():
            yield replace(task.row_from_texts(line.strip()), number=number)


def write_text_lines(predictions: Predictions) -> Iterator[str]:
    """Add the prediction to each line after a tab; tagged words are written as word/tag."""
    if predictions.task.output != "tags":
        yield from write_lines(predictions)
        return
    by_number = predictions.by_number()
    for number, line in predictions.file.lines():
        for row, prediction in by_number.get(number, []):
            pairs = zip(row.words, prediction.value, strict=True)
            line = " ".join(f"{word}/{tag}" for word, tag in pairs)
        yield line + "\n"


register(
    Format(
        "label_lines",
        ("classify",),
        read_label_lines,
        write_text_lines,
        detect_label_lines,
        order=2,
    ),
    Format("text_lines", TEXT_LINE_TASKS, read_text_lines, write_text_lines),
)
