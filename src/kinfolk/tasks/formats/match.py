"""How a fine-tuned model reads a file: as its training file, or as the file is detected.

Columns that are known by their number alone are checked, so that no label, id or header row is
taken for a text.
"""

import re
from collections.abc import Sequence
from dataclasses import replace

from kinfolk.errors import UserError
from kinfolk.tasks.formats.base import Columns, FileSpec, read_rows
from kinfolk.tasks.formats.conll import DOCSTART, are_tags, detect_columns, is_conllu
from kinfolk.tasks.formats.detect import (
    are_texts,
    columns_by_content,
    conll_spec,
    describe_columns,
    detect_format,
    has_header,
)
from kinfolk.tasks.formats.label_lines import (
    TEXT_LINE_TASKS,
    detect_label_lines,
    text_lines_spec,
)
from kinfolk.tasks.formats.labelled_file import LabelledFile, preview
from kinfolk.text.segment import HAN, SENTENCE_END_CHARS

UNSPACED_CHAR = re.compile(f"[\u3041-\u30ff{HAN}]")
MEAN_WORD_CHARS = 4  # of Chinese and Japanese words in a file; longer lines are sentences
HAS_COLUMNS = ("table", "columns", "digits")


def match_format(
    file: LabelledFile, trained: FileSpec, *, labelled: bool, labels: Sequence[str] = ()
) -> FileSpec:
    """Return the format of the training file if the file is in it, else the detected one.

    `labels` are those of the model. A file without labels may also be lines of text.
    """
    if trained.task == "lm":
        return trained
    file.check_commas()
    if not labelled and is_unlabelled_text(file, trained, labels):
        return text_lines_spec(trained.task)
    if has_new_header(file, trained):
        return _detected_or(file, replace(trained, header=True), labelled=labelled)
    spec = trained if labelled else without_labels(trained)
    try:
        next(read_rows(file, spec), None)
    except UserError as error:
        spec = _detected_or(file, trained, labelled=labelled, error=error)
    check_text_columns(file, spec, labels)
    return spec


def without_labels(spec: FileSpec) -> FileSpec:
    """Return the spec of a file without its label column."""
    if spec.format not in HAS_COLUMNS or spec.columns is None:
        return spec
    columns = Columns(spec.columns.texts, None)
    if spec.format != "table":
        return conll_spec(columns, spec.format)
    return replace(spec, columns=columns, description=describe_columns(spec.task, columns))


def detect_inputs(file: LabelledFile, task: str) -> FileSpec:
    """Detect how a file without labels is read for a task: also as lines of text."""
    try:
        return without_labels(detect_format(file, task=task))
    except UserError:
        if not is_text_lines(file, task):
            raise
    return text_lines_spec(task)


def is_text_lines(file: LabelledFile, task: str) -> bool:
    """Return whether a file can be lines of text alone: neither JSON nor a table."""
    if file.is_json or file.is_delimited or task not in TEXT_LINE_TASKS:
        return False
    return not file.is_json_lines and not any("\t" in line for line in file.sample_lines)


def is_unlabelled_text(file: LabelledFile, trained: FileSpec, labels: Sequence[str]) -> bool:
    """Return whether a file is lines of text alone, which the training file was not."""
    if not is_text_lines(file, trained.task):
        return False
    lines = [line for line in file.sample_lines if line.strip()]
    if trained.format == "label_lines":
        known = all(line.split()[0] in labels for line in lines)
        return not known and detect_label_lines(file) is None
    if trained.format in ("columns", "digits"):
        return not _are_words_in_columns(file, lines, labels)
    if trained.format in ("trees", "slashes", "roles", "objects"):
        return not _is_readable(file, trained)
    return trained.format == "table" and not has_header(file.sample_cells)


def has_new_header(file: LabelledFile, trained: FileSpec) -> bool:
    """Return whether a table has a header and the training file had none."""
    return (
        trained.format == "table"
        and not trained.header
        and not file.is_json
        and _are_numbers(trained.columns)
        and has_header(file.sample_cells)
    )


def check_text_columns(file: LabelledFile, spec: FileSpec, labels: Sequence[str]) -> None:
    """Refuse a table without a header whose text column holds labels, or no texts."""
    if spec.format != "table" or file.is_json or spec.header or not _are_numbers(spec.columns):
        return
    assert spec.columns is not None
    rows = file.sample_cells
    columns = [[row[n] for row in rows if n < len(row)] for n in range(max(map(len, rows)))]
    texts = {n for n, values in enumerate(columns, 1) if are_texts(values)}
    for column in spec.columns.texts:
        values = columns[int(column) - 1] if int(column) <= len(columns) else []
        are_labels = bool(values) and {*map(str.strip, values)} <= {*labels}
        if not are_labels and (column in texts or texts <= {*spec.columns.texts}):
            continue
        found = columns_by_content(rows)
        if found is not None and spec.columns.label is None:
            found = Columns(found.texts, None)
        example = "2," if found is None else str(found)
        raise UserError(
            f"column {column} of {file} holds {'labels' if are_labels else 'no texts'} (line 1: "
            f"{preview(values[0] if values else '')}), but the model was trained on texts in "
            f"column {column}: name the columns with {file.option('columns', example)}"
        )


def _detected_or(
    file: LabelledFile, spec: FileSpec, *, labelled: bool, error: UserError | None = None
) -> FileSpec:
    """Return the detected spec of the same task, else the given one, or raise its error."""
    try:
        detected = replace(detect_format(file, task=spec.task), missing_label=spec.missing_label)
        detected = detected if labelled else without_labels(detected)
        next(read_rows(file, detected), None)
    except UserError:
        if error is not None:
            raise error from None
        return spec if labelled else without_labels(spec)
    return detected


def _are_words_in_columns(file: LabelledFile, lines: Sequence[str], labels: Sequence[str]) -> bool:
    """Return whether each line is a word and its columns, not a sentence."""
    words = [line for line in lines if not line.startswith(("# ", DOCSTART))]
    rows = [line.split() for line in words]
    widths = {*map(len, rows)}
    if is_conllu(file):
        return True
    if widths <= {1}:
        return not _are_unspaced_sentences(words)
    if detect_columns(file) is not None:
        return True
    last = [row[-1] for row in rows]
    known = bool(labels) and {*last} <= {*labels}
    return len(widths) == 1 and (known or (len(rows) > 1 and are_tags(last, last)))


def _are_unspaced_sentences(lines: Sequence[str]) -> bool:
    """Return whether lines without spaces are sentences of Chinese or Japanese, not words."""
    texts = [line.strip() for line in lines if UNSPACED_CHAR.search(line)]
    if not texts:
        return False
    ends = any(len(text) > 1 and text[-1] in SENTENCE_END_CHARS for text in texts)
    return ends or sum(map(len, texts)) / len(texts) > MEAN_WORD_CHARS


def _is_readable(file: LabelledFile, spec: FileSpec) -> bool:
    try:
        next(read_rows(file, spec), None)
    except UserError:
        return False
    return True


def _are_numbers(columns: Columns | None) -> bool:
    return columns is not None and all(isinstance(column, int) for column in columns.texts)
