"""Which columns of a table hold texts and which the label: by their names, else by what is in them.

Without names, the label is the column of few different short values, or of numbers that are not
few whole ones; the texts are the columns of many different long values.
"""

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kinfolk.data.tables import absent
from kinfolk.errors import UserError
from kinfolk.tasks.records import SAMPLE, cells, holds_json, sampled
from kinfolk.tasks.tables import OPEN, Column, Columns, Labels

PAIRS = (
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
TEXTS = ("sentence", "text", "review", "content", "comment", "document", "tweet", "body", "query")
LABELS = (
    "label", "gold_label", "labels", "class", "category", "is_duplicate", "quality", "sentiment",
    "entailment_judgment", "intent", "topic", "target", "answer",
)  # fmt: skip
SCORES = ("score", "similarity", "similarity_score", "relatedness_score", "rating", "stars")
SOURCES = (
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
CLASSES = 20  # whole numbers: more of them are an amount, not a class
SHORT = 40  # characters of a label at most


def by_names(names: Sequence[str], labelled: bool = True) -> Columns | None:
    """Find the texts and the label among names; None where there are no such names."""
    known = {_plain(name): name for name in reversed(names)}
    label = next((known[name] for name in (*LABELS, *SCORES) if name in known), None)
    if label is None and labelled:
        return None
    left = {plain: name for plain, name in known.items() if name != label}
    for pair in PAIRS:
        if all(name in left for name in pair):
            return Columns(tuple(left[name] for name in pair), label)
    single = next((left[name] for name in TEXTS if name in left), None)
    return None if single is None else Columns((single,), label)


def sides(names: Sequence[str]) -> Columns | None:
    """Find a source and a target among names."""
    known = {_plain(name): name for name in reversed(names)}
    for source, target in SOURCES:
        if source in known and target in known:
            return Columns((known[source],), known[target])
    return None


def header_of(first: Sequence[str], rest: Sequence[Sequence[str]]) -> bool:
    """Tell whether a first row holds names: known ones, or words above a column of numbers."""
    titles = {_plain(title) for title in first}
    if len(titles) < len(first) or any(_number(title) is not None for title in first):
        return False
    known = {*TEXTS, *LABELS, *SCORES, *(name for pair in (*PAIRS, *SOURCES) for name in pair)}
    if titles & known:
        return all(len(title) <= SHORT for title in first)
    columns = [[row[n] for row in rest if n < len(row)] for n in range(len(first))]
    return any(values and all(_number(v) is not None for v in values) for values in columns)


def by_content(rows: Sequence[Sequence[str]]) -> Columns | None:
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


def labels_of(path: Path, columns: Columns, header: bool) -> list[Any]:
    """Return the labels of the first rows."""
    assert columns.label is not None
    if holds_json(path):
        rows = [row for _, row in sampled(path) if isinstance(row, dict)]
        return [row[columns.label] for row in rows if columns.label in row]
    table = cells(path)
    first = next(table)[1]
    place = place_of(columns.label, first if header else None)
    some = [row for _, row in zip(range(SAMPLE), table, strict=False)]
    return [row[place] for _, row in some if place < len(row)] + ([] if header else [first[place]])


def place_of(column: Column, titles: Sequence[str] | None) -> int:
    """Return the place of a column in a row, from 0."""
    if isinstance(column, int):
        return column - 1
    names = [title.strip() for title in titles or ()]
    if column not in names:
        raise absent(column, names, "the first row")
    return names.index(column)


def task_of(label: Column, values: Sequence[Any]) -> Labels:
    """Tell a class from an amount by the labels and the name of their column."""
    numbers = [_number(value) for value in values if value not in ("", None, OPEN)]
    if not numbers or any(number is None for number in numbers):
        return "classify"
    fractions = any(number is not None and number % 1 for number in numbers)
    amount = isinstance(label, int) or _plain(label) in SCORES
    return "regress" if fractions or (amount and len(set(numbers)) > CLASSES) else "classify"


def are_texts(values: Sequence[Any]) -> bool:
    """Tell labels that are whole texts, to be written: long, or nearly all different."""
    if not values or any(isinstance(value, list) for value in values):
        return bool(values)
    if any(_number(value) is not None for value in values):
        return False
    said = [str(value) for value in values]
    many = len(said) >= CLASSES and len(set(said)) > len(said) / 2
    return many or sum(map(len, said)) > SHORT * len(said)


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
    short = all(value and len(value) <= SHORT for value in different)
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
        return 1 if len(set(whole)) <= CLASSES and len(set(whole)) > 1 else None
    return 2 if _few(values) else None


def unsure(path: Path) -> UserError:
    """Say that nothing in a table looks like a text with a label."""
    return UserError(
        f"{path}: no columns look like a text and its label; name them, --columns text,label, or "
        "by number, --columns 1,2"
    )
