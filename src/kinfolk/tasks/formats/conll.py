"""Tagged sentences: CoNLL columns, CoNLL-U, semantic roles, `word/tag` lines, and JSON.

    EU       NNP  B-NP  B-ORG
    rejects  VBZ  B-VP  O         TaggedSentence(("EU", "rejects"), ("B-ORG", "O"), 1)

In columns a word is a line, and a blank line ends a sentence. CoNLL-U with semantic roles has one
more column for each predicate of the sentence.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kinfolk.errors import UserError
from kinfolk.metrics.entities import repair_tags, tag_scheme
from kinfolk.tasks.formats.base import (
    Column,
    Columns,
    FileSpec,
    Format,
    Predictions,
    ReadReport,
    register,
    write_json,
)
from kinfolk.tasks.formats.detect import conll_spec
from kinfolk.tasks.formats.labelled_file import LabelledFile, as_text_list, first_key, preview
from kinfolk.tasks.rows import TaggedSentence
from kinfolk.tasks.task import PROBABILITY_DIGITS, Prediction

TOKEN_KEYS = ("words", "tokens", "text")
TAG_KEYS = ("tags", "ner_tags", "pos_tags", "chunk_tags", "labels", "ner", "pos")
BIO_TAG = re.compile(r"O|[BIMELSU]-.+")
WORD_TAG = re.compile(r".+/[A-Za-z]+")
DOCSTART = "-DOCSTART-"
PREDICATE_COLUMN = 10  # of the senses in Universal Propositions, from 0; the role columns follow
MAX_COLUMNS = 14  # of a line, except where there are roles
CONLLU_WORD, CONLLU_UPOS = 2, 4


@dataclass(frozen=True)
class ConllSentence:
    """The cells of each word, and the number of the first line."""

    number: int
    cells: list[list[str]]


def detect_columns(file: LabelledFile) -> FileSpec | None:
    """Detect columns by a blank line between sentences and lines of equally many cells."""
    lines = [line for line in file.sample_lines if line.strip()]
    if file.is_json or not lines:
        return None
    if is_conllu(file):
        first = next(read_sentences(file, equal_width=False), None)
        if first is not None and len(first.cells[0]) > PREDICATE_COLUMN:
            return FileSpec("tag", "roles", "tag each predicate's words with their roles")
        return conll_spec(Columns((CONLLU_WORD,), CONLLU_UPOS))
    tabs = any("\t" in line for line in lines)
    rows = [line.split("\t") if tabs else line.split() for line in lines]
    width, count = Counter(map(len, rows)).most_common(1)[0]
    has_blank = any(not line.strip() for line in file.sample_lines[:-1])
    if not has_blank or not 2 <= width <= MAX_COLUMNS or count < 0.9 * len(rows):
        return None  # `read_columns` reports a few broken lines
    rows = [row for row in rows if len(row) == width]
    words, tags = [row[0] for row in rows], [row[-1] for row in rows]
    if any(len(cell.split()) > 1 for row in rows for cell in row) or not are_tags(tags, words):
        return None
    numbered = all(re.fullmatch(r".+\d", word) for word in words)
    return conll_spec(Columns((1,), width), "digits" if numbered else "columns")


def detect_word_tag(file: LabelledFile) -> FileSpec | None:
    """Detect lines in which every word ends in a slash and a tag."""
    lines = [line for line in file.sample_lines if line.strip()][:100]
    parts = [part for line in lines for part in line.split()]
    if file.is_json or file.is_delimited or not all(map(WORD_TAG.fullmatch, parts)):
        return None
    return FileSpec("tag", "slashes", "tag each word with the tag after its slash")


def detect_tagged_json(file: LabelledFile) -> FileSpec | None:
    """Detect JSON records with a list of words and a list of tags."""
    first = file.first_record
    words, tags = first_key(first, TOKEN_KEYS), first_key(first, TAG_KEYS)
    if not (words and tags and isinstance(first[words], list) and isinstance(first[tags], list)):
        return None
    return FileSpec("tag", "objects", f"tag the {words} with {tags}")


def read_columns(
    file: LabelledFile, spec: FileSpec, report: ReadReport
) -> Iterator[TaggedSentence]:
    """Stream sentences with the words and tags of two columns, from 1, or from the end with -1.

    In the format `digits`, the last character of a word is its index in a longer word, and is
    removed.
    """
    assert spec.columns is not None
    (word,) = map(_column_number, spec.columns.texts)
    tag = None if spec.columns.label is None else _column_number(spec.columns.label)
    for sentence in read_sentences(file):
        width = len(sentence.cells[0])
        for column in (word, tag or word):
            if not -width <= column <= width or not column:
                raise UserError(
                    f"line {sentence.number:,} of {file} has {width} columns, so no {column}: "
                    "use numbers from 1, or -1 for the last"
                )
        words = [cells[_index(word)] for cells in sentence.cells]
        if not is_conllu(file) and sum(len(w.split()) > 1 for w in words) > len(words) / 2:
            raise UserError(
                f"line {sentence.number + 1:,} of {file} has texts, not words in columns: give "
                "one word per line, or a file of plain lines"
            )
        if spec.format == "digits":
            words = [w[:-1] if w[-1:].isdecimal() and len(w) > 1 else w for w in words]
        tags = None
        if tag is not None:
            given = [cells[_index(tag)] for cells in sentence.cells]
            tags = tuple(repair_nesting(given, sentence.number, report))
        yield TaggedSentence(tuple(words), tags, sentence.number)


def read_roles(file: LabelledFile, spec: FileSpec, report: ReadReport) -> Iterator[TaggedSentence]:
    """Stream a sentence for each predicate, with the roles of its words; O for none."""
    for sentence in read_sentences(file, equal_width=False):
        words = tuple(cells[1] for cells in sentence.cells)
        senses = [_cell(cells, PREDICATE_COLUMN) for cells in sentence.cells]
        predicates = [index for index, sense in enumerate(senses) if sense != "O"]
        if not predicates:
            report.count("sentences without a predicate skipped, on lines", sentence.number)
        for column, predicate in enumerate(predicates, PREDICATE_COLUMN + 1):
            roles = tuple(_cell(cells, column) for cells in sentence.cells)
            yield TaggedSentence(words, roles, sentence.number, predicate)


def read_word_tag(
    file: LabelledFile, spec: FileSpec, report: ReadReport
) -> Iterator[TaggedSentence]:
    """Stream lines of words, each with its tag after the last slash."""
    for number, line in file.lines():
        pairs = [part.rpartition("/") for part in line.split()]
        for index, (word, _, tag) in enumerate(pairs, 1):
            if not word or not tag:
                raise UserError(
                    f"word {index:,} on line {number:,} of {file} is {word or tag!r}: write "
                    "word/tag, separated by spaces"
                )
        if pairs:
            yield TaggedSentence(tuple(p[0] for p in pairs), tuple(p[2] for p in pairs), number)


def read_tagged_json(
    file: LabelledFile, spec: FileSpec, report: ReadReport
) -> Iterator[TaggedSentence]:
    """Stream JSON records with a list of words and a list of tags."""
    for number, record in file.records():
        where = file.place(number)
        name, label = first_key(record, TOKEN_KEYS), first_key(record, TAG_KEYS)
        if name is None:
            raise UserError(
                f"{where} has no words: add a list named {TOKEN_KEYS[0]} or {TOKEN_KEYS[1]}"
            )
        words = as_text_list(record[name], name, where)
        if label is None:
            yield TaggedSentence(words, None, number)
            continue
        if not isinstance(record[label], list) or len(record[label]) != len(words):
            raise UserError(
                f"{label!r} in {where} is {preview(record[label])} for {len(words)} words: give "
                "one tag per word"
            )
        tags = repair_nesting([str(tag) for tag in record[label]], number, report)
        yield TaggedSentence(words, tuple(tags), number)


def write_columns(predictions: Predictions) -> Iterator[str]:
    """Add a last column to every word; with semantic roles, one for each predicate."""
    by_number, conllu = predictions.by_number(), is_conllu(predictions.file)
    lines = [line for _, line in predictions.file.lines()]
    separator = "\t" if any("\t" in line for line in lines) else " "
    sentence: Sequence[tuple[TaggedSentence, Prediction]] = ()
    word = 0
    for number, line in enumerate(lines, 1):
        cells = line.split()
        if not cells:
            sentence = ()
        elif number in by_number:
            sentence, word = by_number[number], 0
        if not sentence or _is_not_word(cells, conllu):
            yield line + "\n"
            continue
        added = [prediction.value[word] for _, prediction in sentence]
        if predictions.all_probabilities:
            added = [
                f"{p.value[word]}{separator}{p.probabilities[word]:.{PROBABILITY_DIGITS}f}"
                for _, p in sentence
            ]
        yield separator.join([line, *added]) + "\n"
        word += 1


def write_word_tag(predictions: Predictions) -> Iterator[str]:
    """Add the predicted tag to each word and its tag, after another slash."""
    by_number = predictions.by_number()
    for number, line in predictions.file.lines():
        tags = by_number[number][0][1].value if number in by_number else ()
        parts = zip(line.split(), tags, strict=True)
        yield "  ".join(f"{part}/{tag}" for part, tag in parts) + "\n"


def is_conllu(file: LabelledFile) -> bool:
    """Return whether a file is CoNLL-U, by its name."""
    return ".conllu" in file.path.name.lower()


def read_sentences(file: LabelledFile, equal_width: bool = True) -> Iterator[ConllSentence]:
    """Stream the sentences of a file; with equal width, every line has as many columns."""
    if file.is_json or file.is_json_lines:
        raise UserError(
            f"{file} is JSON, not words in columns: a tagger reads JSON records with a list of "
            f"words ({TOKEN_KEYS[0]} or {TOKEN_KEYS[1]})"
        )
    conllu, tabs = is_conllu(file), False
    width, sentence, first_line = 0, list[list[str]](), 0
    for number, line in file.lines():
        if not line.strip():
            if sentence:
                yield ConllSentence(first_line, sentence)
            sentence = []
            continue
        if not width:
            tabs = "\t" in line or (conllu and line[0] != "#")
        cells = line.split("\t") if tabs else line.split()
        if line[0] == "#" and (conllu or (not sentence and len(cells) != width)):
            continue  # a comment; the word # has the columns of any other word
        if _is_not_word(cells, conllu):
            continue
        expected = width if equal_width else len(sentence[0]) if sentence else len(cells)
        if width and len(cells) != expected:
            raise UserError(
                f"line {number:,} of {file} has {len(cells)} columns and those before have "
                f"{expected}: use one word per line, all with the same columns, and a blank line "
                "between sentences"
            )
        width = width or len(cells)
        first_line = first_line if sentence else number
        sentence.append(cells)
    if sentence:
        yield ConllSentence(first_line, sentence)


def repair_nesting(tags: Sequence[str], number: int, report: ReadReport) -> list[str]:
    """Return tags in which every entity begins with B; other schemes are left unchanged."""
    inner = any(tag[:2] in ("I-", "M-", "E-", "L-") for tag in tags)
    if not inner or not all(map(BIO_TAG.fullmatch, tags)):
        return list(tags)
    repaired = repair_tags(tags, tag_scheme(tags))
    for before, after in zip(tags, repaired, strict=True):
        if before != after:
            report.count("tags that did not nest repaired, in the sentences on lines", number)
    return repaired


def _is_not_word(cells: Sequence[str], conllu: bool) -> bool:
    """Return whether a line marks a document, a multiword token (1-2) or an empty node (1.1)."""
    return cells[0] == DOCSTART or (conllu and not cells[0].isdecimal())


def are_tags(tags: Sequence[str], words: Sequence[str]) -> bool:
    """Return whether a column holds tags: upper case, BIO, or few different values."""
    return (
        all(map(str.isupper, tags))
        or all(map(BIO_TAG.fullmatch, tags))
        or len(set(tags)) <= len(set(words)) / 2
    )


def _column_number(column: Column) -> int:
    if not isinstance(column, int):
        raise UserError(
            f"--columns {column}: CoNLL columns have no names; use numbers from 1, or from -1"
        )
    return column


def _index(column: int) -> int:
    return column - 1 if column > 0 else column


def _cell(cells: Sequence[str], index: int) -> str:
    value = cells[index] if index < len(cells) else ""
    return "O" if value in ("", "_") else value


register(
    Format("columns", ("tag",), read_columns, write_columns, detect_columns, order=1),
    Format("digits", ("tag",), read_columns, write_columns),
    Format("roles", ("tag",), read_roles, write_columns),
    Format("objects", ("tag",), read_tagged_json, write_json, detect_tagged_json, order=1),
    Format("slashes", ("tag",), read_word_tag, write_word_tag, detect_word_tag, order=2),
)
