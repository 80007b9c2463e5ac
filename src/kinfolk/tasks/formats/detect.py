"""Find the task, the format and the columns of a labelled file."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from kinfolk.data.documents import missing_name_error
from kinfolk.data.files import DELIMITED_SUFFIXES, content_suffix
from kinfolk.errors import UserError
from kinfolk.tasks.formats import completion, conll, coreference, multiple_choice, squad
from kinfolk.tasks.formats import table as table_module
from kinfolk.tasks.formats.base import (
    SAMPLE_ROWS,
    first_key,
    is_json,
    read_lines,
    read_table,
    sample_json,
)
from kinfolk.tasks.formats.registry import FileSpec, TaskName
from kinfolk.tasks.formats.table import NO_GOLD_LABEL, Column, Columns, LabelType

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


MAX_CONLL_COLUMNS = 14  # a line of words in columns has no more, but for roles


def detect_format(
    path: Path,
    *,
    task: TaskName | None = None,
    columns: Columns | None = None,
    target: Path | None = None,
) -> FileSpec:
    """Guess what a file is for; what the user says of its task or columns goes first."""
    if target is not None:
        return FileSpec(
            "write", "parallel", f"write line n of {target.name} from that of {path.name}"
        )
    if not path.is_file():
        raise UserError(f"{path} does not exist: give a file with labelled examples")
    if columns is not None:
        return _named(path, columns, task)
    if task == "complete" and is_json(path):
        return FileSpec("complete", "objects", "complete each context with its word")
    if task == "complete":
        return FileSpec("complete", "lines", "complete each line with its last word")
    if task == "lm":
        return FileSpec("lm", "text", "read as text, without labels")
    if is_json(path):
        found = _json(path)
    elif content_suffix(path) in DELIMITED_SUFFIXES:
        found = _words(path) or _table(path)
    else:
        found = _text(path)
    if found is None:
        raise unknown_columns_error(path)
    if task is None or task == found.task:
        return found
    if {task, found.task} == {"classify", "regress"} and found.columns is not None:
        return replace(found, task=task, description=_said(task, found.columns))
    raise UserError(
        f"--task {task}: {path} looks like one to {found.task} ({found.description}); give another "
        "file, or say where its texts and labels are with --columns"
    )


def _named(path: Path, found: Columns, task: TaskName | None) -> FileSpec:
    """Read the columns that the user names."""
    if task == "tag":
        return FileSpec("tag", "columns", _tags(found), found)
    numbered = all(isinstance(c, int) for c in (*found.texts, found.label or 1))
    header = not is_json(path) and (not numbered or _headed(path))
    if task == "write":
        return FileSpec("write", "table", _said("write", found), found, header)
    if task not in (None, "classify", "regress"):
        raise UserError(
            f"--columns: the examples of --task {task} are not in columns; leave it out"
        )
    if task is None:
        task = "classify"
        if found.label is not None:
            task = label_type(found.label, sample_labels(path, found, header))
    return FileSpec(task, "table", _said(task, found), found, header)


def _table(path: Path) -> FileSpec | None:
    """Guess from a table with tabs or commas."""
    some = [row for _, row in islice(read_table(path), SAMPLE_ROWS)]
    if not some:
        raise UserError(f"{path} is empty: give a table with a text and a label on each line")
    names = [title.strip() for title in some[0]]
    if set(coreference.GAP_COLUMNS) <= set(names):
        return FileSpec("coref", "gap", "find the names that the pronoun of each text means")
    header = has_header(some[0], some[1:])
    found = _by_names(names) if header else None
    if found is None:
        found = columns_by_content(some[header:])
        if found is not None and header:
            found = _titled(found, names)
    if found is None:
        return None
    return _judged(path, found, header)


def _judged(path: Path, found: Columns, header: bool) -> FileSpec:
    """Tell what columns are for: a class, an amount or a text to be written."""
    if found.label is None and len(found.texts) == 2 and isinstance(found.texts[1], int):
        both = Columns(found.texts[:1], found.texts[1])
        return FileSpec("write", "table", _said("write", both), both, header)
    if found.label is None:
        return FileSpec("classify", "table", _said("classify", found), found, header)
    values = sample_labels(path, found, header)
    sides = source_target_columns([*map(str, found.texts), str(found.label)])
    whole = sides == found or are_free_text(values)
    task: TaskName = "write" if whole else label_type(found.label, values)
    return FileSpec(task, "table", _said(task, found), found, header)


def _json(path: Path) -> FileSpec | None:
    """Guess from the fields of JSON objects."""
    some = [row for _, row in sample_json(path)]
    if not some:
        raise UserError(f"{path} is empty: give an object with a text and a label on each line")
    first = some[0]
    if squad.is_squad(first):
        return FileSpec("span", "squad", "find the answer to each question in its context")
    if isinstance(first, dict) and {"sentences", "clusters"} <= first.keys():
        return FileSpec("coref", "objects", "find the spans that mean one thing, given as clusters")
    names = list(first) if isinstance(first, dict) else []
    words, tags = first_key(first, conll.TOKEN_KEYS), first_key(first, conll.TAG_KEYS)
    if words and tags and isinstance(first[words], list) and isinstance(first[tags], list):
        return FileSpec("tag", "objects", f"tag the {words} with {tags}")
    if multiple_choice.is_multiple_choice(first):
        return FileSpec(
            "choose", "objects", "choose the right one among the options of each record"
        )
    if _completes(some):
        return FileSpec("complete", "objects", "complete each context with its word")
    found = _by_names(names)
    if found is not None and (found.label is not None or len(found.texts) == 2):
        return _judged(path, found, header=False)
    if found is not None or "paragraphs" in names:
        return FileSpec("lm", "text", "read as text, without labels")
    return None


def _text(path: Path) -> FileSpec | None:
    """Guess from the lines of a file whose name says nothing."""
    lines = [line for _, line in islice(read_lines(path), SAMPLE_ROWS)]
    full = [line for line in lines if line.strip()]
    if not full:
        raise UserError(f"{path} is empty: give a file with labelled examples")
    if full[0].startswith(coreference.BEGIN):
        return FileSpec(
            "coref", "conll2012", "find the spans that mean one thing, in the last column"
        )
    if all(table_module.TREE.fullmatch(line.strip()) for line in full):
        return FileSpec("classify", "trees", "classify the words of each tree as its top label")
    if any(completion.CBT_BLANK in line and "\t" in line for line in full):
        return FileSpec("complete", "lines", "complete each question with one of its candidates")
    if found := _columned(path, lines):
        return found
    if _slashed(full):
        return FileSpec("tag", "slashes", "tag each word with what stands behind its slash")
    if all("\t" in line for line in full):
        return _table(path)
    return FileSpec("lm", "text", "read as text, without labels")


def _words(path: Path) -> FileSpec | None:
    """Guess from a file that is called a table, and may be words in columns."""
    lines = [line for _, line in islice(read_lines(path), SAMPLE_ROWS)]
    return _columned(path, lines) if any(line.strip() for line in lines) else None


def _columned(path: Path, lines: Sequence[str]) -> FileSpec | None:
    """Guess from words in columns, with a blank line between sentences."""
    if ".conllu" in path.name.lower():
        wide = any(
            len(s.cells[0]) > conll.PREDICATE_COLUMN for s in conll.sample_sentences(path, 1)
        )
        if wide:
            return FileSpec("tag", "roles", "tag each predicate's words with their roles")
        found = Columns((2,), 4)
        return FileSpec("tag", "columns", _tags(found), found)
    tabs = any("\t" in line for line in lines)
    rows = [line.split("\t") if tabs else line.split() for line in lines if line.strip()]
    width, lot = Counter(map(len, rows)).most_common(1)[0]
    blank = any(not line.strip() for line in lines[:-1])
    if not blank or not 2 <= width <= MAX_CONLL_COLUMNS or lot < 0.9 * len(rows):
        return None  # a line or two may be broken, and will be named when it is read
    even = [row for row in rows if len(row) == width]
    words, tags = [row[0] for row in even], [row[-1] for row in even]
    if any(len(cell.split()) > 1 for row in even for cell in row) or not _are_tags(tags, words):
        return None
    found = Columns((1,), width)
    if all(re.fullmatch(r".+\d", word) for word in words):
        said = f"{_tags(found)}; the digit behind each word is cut off"
        return FileSpec("tag", "digits", said, found)
    return FileSpec("tag", "columns", _tags(found), found)


def _are_tags(tags: Sequence[str], words: Sequence[str]) -> bool:
    """Tell tags from more words: they are capitals, or few for many words."""
    return (
        all(map(str.isupper, tags))
        or all(map(conll.BIO_TAG.fullmatch, tags))
        or (len(set(tags)) <= len(set(words)) / 2)
    )


def _completes(some: Sequence[Any]) -> bool:
    """Tell a word that goes on with a text from a class: most of them differ."""
    name, target = (
        first_key(some[0], completion.PROMPT_KEYS),
        first_key(some[0], completion.TARGET_KEYS),
    )
    if name is None or target is None:
        return False
    words = [str(row.get(target, "")) for row in some if isinstance(row, dict)]
    single = sum(len(word.split()) == 1 for word in words)
    return single > 0.9 * len(words) and len(set(words)) > len(words) / 3


def _slashed(lines: Sequence[str]) -> bool:
    parts = [part for line in lines[:100] for part in line.split()]
    return all(re.fullmatch(r".+/[A-Za-z]+", part) for part in parts)


def _by_names(names: Sequence[str]) -> Columns | None:
    return (
        columns_by_name(names)
        or source_target_columns(names)
        or columns_by_name(names, labelled=False)
    )


def _headed(path: Path) -> bool:
    some = [row for _, row in islice(read_table(path), SAMPLE_ROWS)]
    return bool(some) and has_header(some[0], some[1:])


def _titled(found: Columns, names: Sequence[str]) -> Columns:
    """Call numbered columns by their names."""
    texts = tuple(names[column_index(column, None)] for column in found.texts)
    label = None if found.label is None else names[column_index(found.label, None)]
    return Columns(texts, label)


def _said(task: TaskName, found: Columns) -> str:
    many = "columns" if len(found.texts) > 1 else "column"
    names = f"{many} {' and '.join(map(str, found.texts))}"
    if found.label is None:
        return f"{task} {names}, without a label"
    if task == "write":
        return f"write column {found.label} from {names}"
    return f"{task} {names} by column {found.label}"


def _tags(found: Columns) -> str:
    rest = "" if found.label is None else f" with column {found.label}"
    return f"tag the words of column {found.texts[0]}{rest}"
