"""What a labelled file is for: its task, its form and its columns, guessed from name and content.

    sst2/train.tsv      ->  classify column sentence by column label
    conll2003/test.txt  ->  tag the words of column 1 with column 4

A guess says in a sentence what it found, and is all that `forms.rows` needs to read the file.
"""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from kinfolk.data.listing import DELIMITED_SUFFIXES
from kinfolk.data.streams import content_suffix
from kinfolk.errors import UserError
from kinfolk.tasks import choices, columns, completions, coreference, squad, titles, trees
from kinfolk.tasks.forms import FileSpec, TaskName
from kinfolk.tasks.records import (
    SAMPLE_ROWS,
    first_key,
    is_json,
    read_lines,
    read_table,
    sample_json,
)
from kinfolk.tasks.tables import Columns

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
        raise titles.unknown_columns_error(path)
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
            task = titles.label_type(found.label, titles.sample_labels(path, found, header))
    return FileSpec(task, "table", _said(task, found), found, header)


def _table(path: Path) -> FileSpec | None:
    """Guess from a table with tabs or commas."""
    some = [row for _, row in islice(read_table(path), SAMPLE_ROWS)]
    if not some:
        raise UserError(f"{path} is empty: give a table with a text and a label on each line")
    names = [title.strip() for title in some[0]]
    if set(coreference.GAP_COLUMNS) <= set(names):
        return FileSpec("coref", "gap", "find the names that the pronoun of each text means")
    header = titles.has_header(some[0], some[1:])
    found = _by_names(names) if header else None
    if found is None:
        found = titles.columns_by_content(some[header:])
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
    values = titles.sample_labels(path, found, header)
    sides = titles.source_target_columns([*map(str, found.texts), str(found.label)])
    whole = sides == found or titles.are_free_text(values)
    task: TaskName = "write" if whole else titles.label_type(found.label, values)
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
    words, tags = first_key(first, columns.TOKEN_KEYS), first_key(first, columns.TAG_KEYS)
    if words and tags and isinstance(first[words], list) and isinstance(first[tags], list):
        return FileSpec("tag", "objects", f"tag the {words} with {tags}")
    if choices.is_multiple_choice(first):
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
    if all(trees.TREE.fullmatch(line.strip()) for line in full):
        return FileSpec("classify", "trees", "classify the words of each tree as its top label")
    if any(completions.CBT_BLANK in line and "\t" in line for line in full):
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
            len(s.cells[0]) > columns.PREDICATE_COLUMN for s in columns.sample_sentences(path, 1)
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
        or all(map(columns.BIO_TAG.fullmatch, tags))
        or (len(set(tags)) <= len(set(words)) / 2)
    )


def _completes(some: Sequence[Any]) -> bool:
    """Tell a word that goes on with a text from a class: most of them differ."""
    name, target = (
        first_key(some[0], completions.PROMPT_KEYS),
        first_key(some[0], completions.TARGET_KEYS),
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
        titles.columns_by_name(names)
        or titles.source_target_columns(names)
        or titles.columns_by_name(names, labelled=False)
    )


def _headed(path: Path) -> bool:
    some = [row for _, row in islice(read_table(path), SAMPLE_ROWS)]
    return bool(some) and titles.has_header(some[0], some[1:])


def _titled(found: Columns, names: Sequence[str]) -> Columns:
    """Call numbered columns by their names."""
    texts = tuple(names[titles.column_index(column, None)] for column in found.texts)
    label = None if found.label is None else names[titles.column_index(found.label, None)]
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
