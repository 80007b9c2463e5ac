"""Which columns of a table hold texts and which the label: by their names, else by what is in them.

Without names, the label is the column of few different short values, or of numbers that are not
few whole ones; the texts are the columns of many different long values.
"""

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kinfolk.data.tables import missing_name_error
from kinfolk.errors import UserError
from kinfolk.tasks.records import SAMPLE_ROWS, is_json, read_table, sample_json
from kinfolk.tasks.tables import NO_GOLD_LABEL, Column, Columns, LabelType

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
)
TEXT_COLUMNS = (
    "sentence",
    "text",
    "review",
    "content",
    "comment",
    "document",
    "tweet",
    "body",
    "query",
)
LABEL_COLUMNS = (
    "label", "gold_label", "labels", "class", "category", "is_duplicate", "quality", "sentiment",
    "entailment_judgment", "intent", "topic", "target", "answer",
)  # fmt: skip
SCORE_COLUMNS = ("score", "similarity", "similarity_score", "relatedness_score", "rating", "stars")
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
)
MAX_INTEGER_CLASSES = 20  # whole numbers: more of them are an amount, not a class
MAX_LABEL_CHARS = 40  # characters of a label at most


def columns_by_name(names: Sequence[str], labelled: bool = True) -> Columns | None:
    """Find the texts and the label among names; None where there are no such names."""
    known = {_plain(name): name for name in reversed(names)}
    label = next((known[name] for name in (*LABEL_COLUMNS, *SCORE_COLUMNS) if name in known), None)
    if label is None and labelled:
        return None
    left = {plain: name for plain, name in known.items() if name != label}
    for pair in PAIR_COLUMNS:
        if all(name in left for name in pair):
            return Columns(tuple(left[name] for name in pair), label)
    single = next((left[name] for name in TEXT_COLUMNS if name in left), None)
    return None if single is None else Columns((single,), label)


def source_target_columns(names: Sequence[str]) -> Columns | None:
    """Find a source and a target among names."""
    known = {_plain(name): name for name in reversed(names)}
    for source, target in SOURCE_TARGET_COLUMNS:
        if source in known and target in known:
            return Columns((known[source],), known[target])
    return None


def has_header(first: Sequence[str], rest: Sequence[Sequence[str]]) -> bool:
    """Tell whether a first row holds names: known ones, or words above a column of numbers."""
    titles = {_plain(title) for title in first}
    if len(titles) < len(first) or any(_number(title) is not None for title in first):
        return False
    known = {
        *TEXT_COLUMNS,
        *LABEL_COLUMNS,
        *SCORE_COLUMNS,
        *(name for pair in (*PAIR_COLUMNS, *SOURCE_TARGET_COLUMNS) for name in pair),
    }
    if titles & known:
        return all(len(title) <= MAX_LABEL_CHARS for title in first)
    columns = [[row[n] for row in rest if n < len(row)] for n in range(len(first))]
    return any(values and all(_number(v) is not None for v in values) for values in columns)


def columns_by_content(rows: Sequence[Sequence[str]]) -> Columns | None:
    """Find the texts and the label by what the columns hold, by number from 1."""
    width = Counter(map(len, rows)).most_common(1)[0][0]
    whole = [row for row in rows if len(row) >= width]
    columns = [[row[n].strip() for row in whole] for n in range(width)]
    texts = [n for n, values in enumerate(columns) if _wordy(values)][:2]
    ranked = [(_rank(values), n) for n, values in enumerate(columns) if n not in texts]
    near = max(texts, default=0)
    found = [(rank, abs(n - near), n) for rank, n in ranked if rank is not None]
    if not texts:
        return None
    label = min(found)[2] + 1 if found else None
    return Columns(tuple(n + 1 for n in texts), label)


def sample_labels(path: Path, columns: Columns, header: bool) -> list[Any]:
    """Return the labels of the first rows."""
    assert columns.label is not None
    if is_json(path):
        rows = [row for _, row in sample_json(path) if isinstance(row, dict)]
        return [row[columns.label] for row in rows if columns.label in row]
    table = read_table(path)
    first = next(table)[1]
    place = column_index(columns.label, first if header else None)
    some = [row for _, row in zip(range(SAMPLE_ROWS), table, strict=False)]
    return [row[place] for _, row in some if place < len(row)] + ([] if header else [first[place]])


def column_index(column: Column, titles: Sequence[str] | None) -> int:
    """Return the place of a column in a row, from 0."""
    if isinstance(column, int):
        return column - 1
    names = [title.strip() for title in titles or ()]
    if column not in names:
        raise missing_name_error(column, names, "the first row")
    return names.index(column)


def label_type(label: Column, values: Sequence[Any]) -> LabelType:
    """Tell a class from an amount by the labels and the name of their column."""
    numbers = [_number(value) for value in values if value not in ("", None, NO_GOLD_LABEL)]
    if not numbers or any(number is None for number in numbers):
        return "classify"
    fractions = any(number is not None and number % 1 for number in numbers)
    amount = isinstance(label, int) or _plain(label) in SCORE_COLUMNS
    return (
        "regress"
        if fractions or (amount and len(set(numbers)) > MAX_INTEGER_CLASSES)
        else "classify"
    )


def are_free_text(values: Sequence[Any]) -> bool:
    """Tell labels that are whole texts, to be written: long, or nearly all different."""
    if not values or any(isinstance(value, list) for value in values):
        return bool(values)
    if any(_number(value) is not None for value in values):
        return False
    said = [str(value) for value in values]
    many = len(said) >= MAX_INTEGER_CLASSES and len(set(said)) > len(said) / 2
    return many or sum(map(len, said)) > MAX_LABEL_CHARS * len(said)


def _plain(name: Any) -> str:
    """Write a name as the lists above do: `#1 String` is 1_string."""
    return re.sub(r"\W+", "_", str(name).strip().lower()).strip("_")


def _number(value: Any) -> float | None:
    if isinstance(value, bool):
        return None
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


def _few(values: Sequence[str]) -> bool:
    different = set(values)
    short = all(value and len(value) <= MAX_LABEL_CHARS for value in different)
    return short and 2 <= len(different) <= max(2, len(values) // 3)


def _wordy(values: Sequence[str]) -> bool:
    """Tell texts: most of them differ and have several words, or Chinese ones."""
    if _few(values) or not values:
        return False
    several = sum(len(v.split()) > 1 or any(c > "\u2e7f" for c in v) for v in values)
    return several > len(values) / 2 and len(set(values)) > len(values) / 2


def _rank(values: Sequence[str]) -> int | None:
    """Rank a column as the label, best first; None for what cannot be one."""
    numbers = [_number(value) for value in values]
    if values and all(number is not None for number in numbers):
        whole = [n for n in numbers if n is not None and n % 1 == 0]
        if len(whole) < len(numbers):
            return 0  # an amount
        return 1 if len(set(whole)) <= MAX_INTEGER_CLASSES and len(set(whole)) > 1 else None
    return 2 if _few(values) else None


def unknown_columns_error(path: Path) -> UserError:
    """Say that nothing in a table looks like a text with a label."""
    return UserError(
        f"{path}: no columns look like a text and its label; name them, --columns text,label, or "
        "by number, --columns 1,2"
    )
