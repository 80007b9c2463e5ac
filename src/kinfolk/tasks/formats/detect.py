"""Detect the format, the task and the columns of a labelled file, one function per decision."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from kinfolk.data.documents import TEXT_COLUMNS, missing_name_error
from kinfolk.errors import UserError
from kinfolk.tasks.formats.base import Column, Columns, FileSpec, all_formats
from kinfolk.tasks.formats.label_lines import label_lines_spec
from kinfolk.tasks.formats.labelled_file import LabelledFile, get_field

PAIR_COLUMNS = (
    ("sentence1", "sentence2"),
    ("sentence_a", "sentence_b"),
    ("sent1", "sent2"),
    ("text1", "text2"),
    ("text_a", "text_b"),
    ("string1", "string2"),
    ("1_string", "2_string"),
    ("premise", "hypothesis"),
    ("question1", "question2"),
    ("question", "sentence"),
    ("question", "passage"),
    ("question", "context"),
    ("query", "passage"),
    ("query", "title"),
    ("abst", "keyword"),
    ("句子1", "句子2"),
    ("文本1", "文本2"),
    ("问题1", "问题2"),
    ("前提", "假设"),
)
LABEL_COLUMNS = (
    "label", "gold_label", "labels", "class", "category", "is_duplicate", "quality", "sentiment",
    "entailment_judgment", "intent", "topic", "target", "answer",
    "标签", "类别", "分类", "情感", "情感倾向", "情感极性", "意图", "主题", "答案",
)  # fmt: skip
SCORE_COLUMNS = (
    "score", "similarity", "similarity_score", "relatedness_score", "rating", "stars",
    "评分", "得分", "分数", "打分", "星级", "相似度",
)  # fmt: skip
SOURCE_TARGET_COLUMNS = (
    ("source", "target"),
    ("src", "tgt"),
    ("input", "output"),
    ("prompt", "completion"),
    ("instruction", "output"),
    ("document", "summary"),
    ("article", "summary"),
    ("article", "highlights"),
    ("dialogue", "summary"),
    ("text", "summary"),
    ("content", "title"),
    ("en", "de"),
    ("en", "zh"),
    ("question", "answer"),
    ("原文", "译文"),
    ("原文", "摘要"),
    ("正文", "摘要"),
    ("内容", "摘要"),
    ("正文", "标题"),
    ("内容", "标题"),
    ("问题", "答案"),
)
NO_LABELS = ("", None, "-")  # values of a label column for a missing label
MAX_INTEGER_CLASSES = 20  # more distinct integers are a score, not classes
MAX_LABEL_CHARS = 40
MAX_FIELDS_SHOWN = 12  # in one message
MAX_NAME_CHARS = 20  # of a column, where its name is not a known one
MIN_ROWS_BELOW = 20  # below such a header
MAX_SHARE_OF_SINGLES = 0.02  # of labels that occur once: the next row may well have a new one
NOT_IN_NAMES = re.compile(r"[,.;:!?\"，。；：！？、“”…]")


def detect_format(
    file: Path | LabelledFile,
    *,
    task: str | None = None,
    columns: Columns | None = None,
    target: Path | None = None,
) -> FileSpec:
    """Detect how a file is read; a task and columns given by the user have priority."""
    opened = file if isinstance(file, LabelledFile) else LabelledFile(file, target=target)
    if opened.target is not None:
        names = opened.target.path.name, opened.path.name
        if task == "extract":
            chosen = "choose sentences of line n of {1} by line n of {0}"
            return FileSpec(task, "parallel", chosen.format(*names))
        return FileSpec("write", "parallel", "write line n of {} from line n of {}".format(*names))
    if not opened.in_memory and not opened.path.is_file():
        raise UserError(f"no such file: {opened}")
    if columns is not None:
        return spec_of_columns(opened, columns, task)
    if task == "complete" and opened.is_json:
        return FileSpec("complete", "objects", "complete each context with its word")
    if task == "complete":
        return FileSpec("complete", "lines", "complete each line with its last word")
    if task == "lm":
        return FileSpec("lm", "text", "read as text, without labels")
    spec = first_spec(opened)
    if spec is None:
        raise no_columns_error(opened)
    if task is None or task == spec.task:
        return spec
    if {task, spec.task} == {"classify", "regress"} and spec.columns is not None:
        return replace(spec, task=task, description=describe_columns(task, spec.columns))
    if (task, spec.task) == ("extract", "write") and spec.columns is not None:
        return replace(spec, task=task, description=describe_columns(task, spec.columns))
    if task == "extract":
        raise UserError(
            f"{opened} has no column of summaries ({spec.description}): give a text and its "
            f"summary, and name their columns with {opened.option('columns', 'article,summary')}"
        )
    if task == "classify" and spec.task == "lm" and begins_with_labels(opened):
        return label_lines_spec()
    raise UserError(
        f"{opened.option('task', task)}: {opened} was detected as {spec.task} "
        f"({spec.description}); use another file, or name its text and label columns with "
        f"{opened.option('columns', 'text,label')}"
    )


def no_columns_error(file: LabelledFile) -> UserError:
    """Return the error about a file without columns of texts and labels, with its fields."""
    first = file.first_record
    fields = f" among {', '.join([*first][:MAX_FIELDS_SHOWN])}" if isinstance(first, dict) else ""
    numbers = "" if file.is_json else f" or {file.option('columns', '1,2')}"
    return UserError(
        f"{file}: no text and label columns were detected{fields}; name them with "
        f"{file.option('columns', 'text,label')}{numbers}"
    )


def begins_with_labels(file: LabelledFile) -> bool:
    """Return whether the first words of lines repeat like labels; the task is known."""
    lines = [line.split() for line in file.sample_lines if line.strip()]
    several = not file.is_json and all(len(line) > 1 for line in lines)
    return several and len({line[0] for line in lines}) <= len(lines) / 2


def first_spec(file: LabelledFile) -> FileSpec | None:
    """Return the spec of the first format that recognises a file."""
    check_has_records(file)
    return next((spec for format in all_formats() if (spec := format.detect(file))), None)


def check_has_records(file: LabelledFile) -> None:
    """Refuse a file without lines or records."""
    blank = not any(line.strip() for line in file.sample_lines)
    if blank or (file.is_json and not file.sample_records):
        raise UserError(f"{file} is empty: pass a file with labelled rows")


def spec_of_columns(file: LabelledFile, columns: Columns, task: str | None) -> FileSpec:
    """Return how a file is read whose columns are given."""
    check_has_records(file)
    if task == "tag" and len(columns.texts) > 1:
        raise UserError(
            f"{file.option('columns', str(columns))}: a tagger reads one column of words; use the "
            "word and the tag, such as 1,2"
        )
    if task == "tag":
        return conll_spec(columns)
    if task not in (None, "classify", "regress", "write", "extract"):
        raise UserError(
            f"--columns does not apply to --task {task}, whose files have no columns: remove it"
        )
    numbered = all(isinstance(c, int) for c in (*columns.texts, columns.label or 1))
    header = not file.is_json and (not numbered or has_header(file.sample_cells))
    check_names(file, columns, header)
    if task is None and columns.label is None:
        task = "classify"
    labels = [] if columns.label is None else sample_labels(file, columns, header)
    spec = _table_spec(task or label_task(columns.label, labels), columns, header)
    return replace(spec, missing_label=missing_label(labels))


def check_names(file: LabelledFile, columns: Columns, header: bool) -> None:
    """Refuse names of text columns that the first row or the first record does not have."""
    names = [name.strip() for name in file.sample_cells[0]] if header else []
    for column in columns.texts:
        if isinstance(column, str) and isinstance(file.first_record, dict):
            get_field(file.first_record, column, f"line 1 of {file}")
        elif isinstance(column, str) and header and column not in names:
            raise missing_name_error(column, names, f"the first row of {file}")


def table_spec(file: LabelledFile, columns: Columns, header: bool) -> FileSpec:
    """Return the task of the columns of a table: a class, a score, or a text to generate."""
    if columns.label is None:
        if len(columns.texts) == 2 and isinstance(columns.texts[1], int):
            return _table_spec("write", Columns(columns.texts[:1], columns.texts[1]), header)
        return _table_spec("classify", columns, header)
    labels = sample_labels(file, columns, header)
    names = [*map(str, columns.texts), str(columns.label)]
    is_text = source_target_columns(names) == columns or are_free_text(labels)
    task = "write" if is_text else label_task(columns.label, labels)
    return replace(_table_spec(task, columns, header), missing_label=missing_label(labels))


def missing_label(labels: Sequence[Any]) -> str:
    """Return the label of rows without one; "-" is a class beside a single other one, as is "+"."""
    others = {str(label).strip() for label in labels} - {"", "-"}
    return "" if len(others) == 1 else "-"


def unused_columns(file: LabelledFile, spec: FileSpec) -> list[str]:
    """Return the columns of a table that are neither a text nor the label."""
    if spec.format != "table" or spec.columns is None:
        return []
    used = {*map(str, spec.columns.texts), str(spec.columns.label)}
    if file.is_json:
        names = [*file.first_record] if isinstance(file.first_record, dict) else []
        used |= {name.partition(".")[0] for name in used}
        return [name for name in names if name not in used]
    first = [name.strip() for row in file.sample_cells[:1] for name in row]
    names = first if spec.header else [str(n) for n in range(1, len(first) + 1)]
    return [name for n, name in enumerate(names, 1) if not {name, str(n)} & used]


def conll_spec(columns: Columns, format: str = "columns") -> FileSpec:
    """Return how words and tags in columns are read."""
    tags = "" if columns.label is None else f" with column {columns.label}"
    description = f"tag the words of column {columns.texts[0]}{tags}"
    if format == "digits":
        description += "; the digit after each word is removed"
    return FileSpec("tag", format, description, columns)


def find_columns(file: LabelledFile) -> tuple[Columns | None, bool]:
    """Find the texts and the label of a table, and whether its first row is a header."""
    if file.is_json:
        first = file.first_record
        names = [*first] if isinstance(first, dict) else []
        return _columns_of_names(names) or fields_by_content(file.sample_records), False
    rows = file.sample_cells
    names, header = [name.strip() for name in rows[0]], has_header(rows)
    columns = _columns_of_names(names) if header else None
    if columns is None or columns.label is None:
        found = columns_by_content(rows[header:])
        if found is not None and header:
            found = _named(found, names)
        if columns is None or found is None:
            return columns or found, header
        if found.label not in columns.texts:  # the name of a text is known, that of the label not
            columns = replace(columns, label=found.label)
    return columns, header


def _named(columns: Columns, names: Sequence[str]) -> Columns:
    """Return columns that are numbers by their names."""
    texts = tuple(names[n - 1] for n in columns.texts if isinstance(n, int))
    return Columns(texts, names[columns.label - 1] if isinstance(columns.label, int) else None)


def columns_by_name(names: Sequence[str], labelled: bool = True) -> Columns | None:
    """Find the texts and the label by the names that published files use."""
    known = _by_normalized_name(names)
    label = next((known[name] for name in (*LABEL_COLUMNS, *SCORE_COLUMNS) if name in known), None)
    if label is None and labelled:
        return None
    others = {normalized: name for normalized, name in known.items() if name != label}
    for pair in PAIR_COLUMNS:
        if all(name in others for name in pair):
            return Columns(tuple(others[name] for name in pair), label)
    text = next((others[name] for name in TEXT_COLUMNS if name in others), None)
    return None if text is None else Columns((text,), label)


def source_target_columns(names: Sequence[str]) -> Columns | None:
    """Find a source and a target by the names that published files use."""
    known = _by_normalized_name(names)
    for source, target in SOURCE_TARGET_COLUMNS:
        if source in known and target in known:
            return Columns((known[source],), known[target])
    return None


def has_header(rows: Sequence[Sequence[str]]) -> bool:
    """Return whether the first row is a header.

    It has known names, words above a column of numbers, or short names above texts and classes.
    """
    if not rows:
        return False
    first, rest = rows[0], rows[1:]
    names = {_normalized(name) for name in first}
    known = {
        *TEXT_COLUMNS,
        *LABEL_COLUMNS,
        *SCORE_COLUMNS,
        *(name for pair in (*PAIR_COLUMNS, *SOURCE_TARGET_COLUMNS) for name in pair),
    }
    short = all(len(name) <= MAX_LABEL_CHARS for name in first)
    if len(names & known) > 1 or names <= known:
        return short
    if len(names) < len(first) or any(_number(name) is not None for name in first):
        return False
    if names & known:
        return short and not _recurs(first, rest)
    columns = [[row[n] for row in rest if n < len(row)] for n in range(len(first))]
    if any(values and all(_number(v) is not None for v in values) for values in columns):
        return True
    return are_names_above(first, columns)


def are_names_above(first: Sequence[str], columns: Sequence[Sequence[str]]) -> bool:
    """Return whether a row of short names is unlike the rows below it.

    It is shorter than the texts and its label is a new one, where new labels are improbable.
    """
    names = [name.strip() for name in first]
    if not all(0 < len(name) <= MAX_NAME_CHARS for name in names):
        return False
    if any(map(NOT_IN_NAMES.search, names)) or len(columns[0]) < MIN_ROWS_BELOW:
        return False
    texts = [n for n, values in enumerate(columns) if are_texts(values)]
    labels = [n for n, values in enumerate(columns) if n not in texts and label_rank(values) == 2]
    if not texts or not labels:
        return False
    if any(_comes_in_runs(columns[n]) for n in labels):
        return False
    above_texts = all(_is_shorter(names[n], columns[n]) for n in texts)
    return above_texts and all(_is_new_label(names[n], columns[n]) for n in labels)


def _recurs(first: Sequence[str], rest: Sequence[Sequence[str]]) -> bool:
    """Return whether a cell of the first row is in its column again, as a label is.

    Files that were joined repeat their header as a whole.
    """
    names = [name.strip() for name in first]
    others = (row for row in rest if list(row) != list(first))
    return any(
        name and name == cell.strip()
        for row in others
        for name, cell in zip(names, row, strict=False)  # short rows are refused later
    )


def _comes_in_runs(labels: Sequence[str]) -> bool:
    """Return whether rows are sorted by their label, so that any may begin with a new one."""
    found = [label.strip() for label in labels]
    changes = sum(one != other for one, other in pairwise(found))
    return changes == len(set(found)) - 1


def _is_shorter(name: str, texts: Sequence[str]) -> bool:
    """Return whether a name is shorter than 95 % of the texts."""
    return sum(len(name) < len(text.strip()) for text in texts) >= 0.95 * len(texts)


def _is_new_label(name: str, labels: Sequence[str]) -> bool:
    """Return whether a label is a new one, where by Good's estimate one in 50 or fewer is."""
    counts = Counter(label.strip() for label in labels)
    singles = sum(count == 1 for count in counts.values())
    return name not in counts and singles <= MAX_SHARE_OF_SINGLES * len(labels)


def columns_by_content(rows: Sequence[Sequence[str]]) -> Columns | None:
    """Find the texts and the label by the contents of the columns, as numbers from 1."""
    if not rows:
        return None
    width = Counter(map(len, rows)).most_common(1)[0][0]
    complete = [row for row in rows if len(row) >= width]
    columns = [[row[n].strip() for row in complete] for n in range(width)]
    texts = [n for n, values in enumerate(columns) if are_texts(values)][:2]
    if not texts:
        return None
    ranks = [(label_rank(values), n) for n, values in enumerate(columns) if n not in texts]
    labels = [
        ("" in columns[n], rank, abs(n - max(texts)), n) for rank, n in ranks if rank is not None
    ]
    return Columns(tuple(n + 1 for n in texts), min(labels)[-1] + 1 if labels else None)


def fields_by_content(records: Sequence[Any]) -> Columns | None:
    """Find the text and the label of JSON objects with two fields by their contents."""
    objects = [record for record in records if isinstance(record, dict)]
    names = [*objects[0]] if objects else []
    values = [[record.get(name) for name in names] for record in objects]
    if len(names) != 2 or any(isinstance(v, dict | list) for row in values for v in row):
        return None
    found = columns_by_content([["" if v is None else str(v) for v in row] for row in values])
    return None if found is None or found.label is None else _named(found, names)


def sample_labels(file: LabelledFile, columns: Columns, header: bool) -> list[Any]:
    """Return the labels of the first rows."""
    if file.is_json:
        records = [record for record in file.sample_records if isinstance(record, dict)]
        return [record[columns.label] for record in records if columns.label in record]
    rows = file.sample_cells
    if isinstance(columns.label, int):
        index = columns.label - 1
    else:
        names = [name.strip() for name in rows[0]]
        if columns.label not in names:
            raise missing_name_error(str(columns.label), names, f"the first row of {file}")
        index = names.index(columns.label)
    return [row[index] for row in rows[header:] if index < len(row)]


def label_task(label: Column | None, values: Sequence[Any]) -> str:
    """Return classify or regress, by the labels and the name of their column."""
    numbers = [_number(value) for value in values if value not in NO_LABELS]
    if not numbers or None in numbers:
        return "classify"
    has_fractions = any(number % 1 for number in numbers if number is not None)
    is_score = isinstance(label, int) or _normalized(label) in SCORE_COLUMNS
    many = len(set(numbers)) > MAX_INTEGER_CLASSES
    return "regress" if has_fractions or (is_score and many) else "classify"


def are_free_text(values: Sequence[Any]) -> bool:
    """Return whether labels are texts to generate: long, or nearly all different."""
    if not values or any(isinstance(value, list) for value in values):
        return bool(values)
    if any(_number(value) is not None for value in values):
        return False
    texts = [str(value) for value in values]
    many = len(texts) >= MAX_INTEGER_CLASSES and len(set(texts)) > len(texts) / 2
    return many or sum(map(len, texts)) > MAX_LABEL_CHARS * len(texts)


def are_texts(values: Sequence[str]) -> bool:
    """Return whether a column holds texts: most differ and have several words, or Chinese ones."""
    if are_classes(values) or not values:
        return False
    several = sum(len(v.split()) > 1 or any(c > "\u2e7f" for c in v) for v in values)
    return several > len(values) / 2 and len(set(values)) > len(values) / 2


def are_classes(values: Sequence[str]) -> bool:
    """Return whether a column holds few different short values."""
    different = set(values)
    short = all(value and len(value) <= MAX_LABEL_CHARS for value in different)
    return short and 2 <= len(different) <= max(2, len(values) // 3)


def label_rank(values: Sequence[str]) -> int | None:
    """Rank a column as the label, 0 the best: scores, whole numbers, words; None for no label.

    Up to half of the labels may be empty: rows without a label are refused when they are read.
    """
    filled = [value for value in values if value.strip()]
    if 2 * len(filled) < len(values):
        return None
    numbers = [_number(value) for value in filled]
    if filled and None not in numbers:
        if any(number % 1 for number in numbers if number is not None):
            return 0
        return 1 if 1 < len(set(numbers)) <= MAX_INTEGER_CLASSES else None
    return 2 if are_classes(filled) else None


def _columns_of_names(names: Sequence[str]) -> Columns | None:
    return (
        columns_by_name(names)
        or source_target_columns(names)
        or columns_by_name(names, labelled=False)
    )


def _by_normalized_name(names: Sequence[str]) -> dict[str, str]:
    return {_normalized(name): name for name in reversed(names)}


def _normalized(name: Any) -> str:
    """Return a name in lower case with underscores: `#1 String` is 1_string."""
    return re.sub(r"\W+", "_", str(name).strip().lower()).strip("_")


def _number(value: Any) -> float | None:
    if isinstance(value, bool):
        return None
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


def _table_spec(task: str, columns: Columns, header: bool) -> FileSpec:
    return FileSpec(task, "table", describe_columns(task, columns), columns, header)


def describe_columns(task: str, columns: Columns) -> str:
    """Return what is done with the columns of a table, for messages."""
    texts = f"column{'s' * (len(columns.texts) > 1)} {' and '.join(map(str, columns.texts))}"
    if columns.label is None:
        return f"{task} {texts}, without a label"
    if task == "write":
        return f"write column {columns.label} from {texts}"
    if task == "extract":
        return f"choose sentences of {texts} by column {columns.label}"
    return f"{task} {texts} by column {columns.label}"
