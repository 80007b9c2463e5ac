"""Words in columns, a word a line and a blank line between sentences (CoNLL), as tagged sentences.

    EU       NNP  B-NP  B-ORG
    rejects  VBZ  B-VP  O               Tagged(("EU", "rejects"), ("B-ORG", "O"), 1)

Also CoNLL-U, its roles (a column for each predicate), `word/tag` lines, and JSON lines.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Literal, TypeAlias

from kinfolk.errors import UserError
from kinfolk.metrics.entities import repair_tags
from kinfolk.tasks.formats.base import (
    ReadReport,
    as_text_list,
    first_key,
    preview,
    read_json,
    read_lines,
)
from kinfolk.tasks.rows import TaggedSentence

TagErrors: TypeAlias = Literal["repair", "refuse"]
TOKEN_KEYS = ("words", "tokens", "text")
TAG_KEYS = ("tags", "ner_tags", "pos_tags", "chunk_tags", "labels", "ner", "pos")
BIO_TAG = re.compile(r"O|[BIES]-.+")  # the tags of words that are parts of something
DOCSTART = "-DOCSTART-"
PREDICATE_COLUMN = 10  # in Universal Propositions, the column of senses; those of roles follow


@dataclass(frozen=True)
class ConllSentence:
    """The cells of each of its lines, and the line that it begins on."""

    number: int
    cells: list[list[str]]


def read_conll(
    path: Path,
    *,
    word: int = 1,
    tag: int | None = -1,
    digits: bool = False,
    nesting: TagErrors = "repair",
    notes: ReadReport | None = None,
) -> Iterator[TaggedSentence]:
    """Stream sentences with the words and tags of two columns, from 1, or from the end with -1.

    With digits, the last character of a word is its place in a longer one, and is cut off.
    """
    notes = notes or ReadReport()
    for sentence in read_sentences(path):
        width = len(sentence.cells[0])
        for place in (word, tag or word):
            if not -width <= place <= width or not place:
                raise UserError(
                    f"line {sentence.number:,} of {path} has {width} columns, so no {place}: count "
                    "them from 1, or from the end with -1"
                )
        words = [cells[_place(word)] for cells in sentence.cells]
        if digits:
            words = [one[:-1] if one[-1:].isdecimal() and len(one) > 1 else one for one in words]
        tags = None if tag is None else [cells[_place(tag)] for cells in sentence.cells]
        if tags is not None:
            tags = repair_nesting(tags, nesting, path, sentence.number, notes)
        yield TaggedSentence(tuple(words), None if tags is None else tuple(tags), sentence.number)


def read_srl(path: Path, notes: ReadReport | None = None) -> Iterator[TaggedSentence]:
    """Stream a sentence for each predicate, with the roles of its words; O is none."""
    notes = notes or ReadReport()
    for sentence in read_sentences(path, even=False):
        words = tuple(cells[1] for cells in sentence.cells)
        senses = [_cell(cells, PREDICATE_COLUMN) for cells in sentence.cells]
        verbs = [place for place, sense in enumerate(senses) if sense != "O"]
        if not verbs:
            notes.count("sentences without a predicate, left out, on lines", sentence.number)
        for n, verb in enumerate(verbs, PREDICATE_COLUMN + 1):
            tags = tuple(_cell(cells, n) for cells in sentence.cells)
            yield TaggedSentence(words, tags, sentence.number, verb)


def read_word_tag(path: Path) -> Iterator[TaggedSentence]:
    """Stream lines of words that each carry a tag behind their last slash."""
    for number, line in read_lines(path):
        pairs = [part.rpartition("/") for part in line.split()]
        for place, (word, _, tag) in enumerate(pairs, 1):
            if not word or not tag:
                raise UserError(
                    f"word {place:,} on line {number:,} of {path} is {word or tag!r}: write "
                    "word/tag, with spaces between words"
                )
        if pairs:
            yield TaggedSentence(tuple(p[0] for p in pairs), tuple(p[2] for p in pairs), number)


def read_tagged_json(
    path: Path, *, nesting: TagErrors = "repair", notes: ReadReport | None = None
) -> Iterator[TaggedSentence]:
    """Stream JSON lines with a list of words and one of tags."""
    notes = notes or ReadReport()
    for number, row in read_json(path):
        where = f"line {number:,} of {path}"
        name, label = first_key(row, TOKEN_KEYS), first_key(row, TAG_KEYS)
        if name is None:
            raise UserError(
                f"{where} has no words: give a list named {TOKEN_KEYS[0]} or {TOKEN_KEYS[1]}"
            )
        words = as_text_list(row[name], name, where)
        if label is None:
            yield TaggedSentence(words, None, number)
            continue
        if not isinstance(row[label], list) or len(row[label]) != len(words):
            raise UserError(
                f"{label!r} in {where} is {preview(row[label])} for {len(words)} words: give a tag "
                "for each"
            )
        tags = repair_nesting([str(tag) for tag in row[label]], nesting, path, number, notes)
        yield TaggedSentence(words, tuple(tags), number)


def read_sentences(path: Path, even: bool = True) -> Iterator[ConllSentence]:
    """Stream the sentences of a file; where it is even, every line has as many columns."""
    universal, tabs = ".conllu" in path.name.lower(), False
    width, found, begun = 0, list[list[str]](), 0
    for number, line in read_lines(path):
        if not line.strip():
            if found:
                yield ConllSentence(begun, found)
            found = []
            continue
        if not width:
            tabs = "\t" in line or (universal and line[0] != "#")
        cells = line.split("\t") if tabs else line.split()
        if line[0] == "#" and (universal or (not found and len(cells) != width)):
            continue  # a comment; a word # has the columns of any other
        if cells[0] == DOCSTART or (universal and not cells[0].isdecimal()):
            continue  # 1-2 is written in one, 1.1 is not written
        wanted = width if even else len(found[0]) if found else len(cells)
        if width and len(cells) != wanted:
            raise UserError(
                f"line {number:,} of {path} has {len(cells)} columns and those before have "
                f"{wanted}: write a word a line, all with the same columns, and a blank line "
                "between sentences"
            )
        width = width or len(cells)
        begun = number if not found else begun
        found.append(cells)
    if found:
        yield ConllSentence(begun, found)


def repair_nesting(
    tags: Sequence[str], nesting: TagErrors, path: Path, number: int, notes: ReadReport
) -> list[str]:
    """Let every part begin with B; tags that are no parts of anything stay as they are."""
    if not any(tag[:2] in ("I-", "E-") for tag in tags) or not all(map(BIO_TAG.fullmatch, tags)):
        return list(tags)
    mended, _ = repair_tags(tags, "BIOES" if any(tag[0] in "ES" for tag in tags) else "IOB2")
    wrong = [place for place, tag in enumerate(tags) if tag != mended[place]]
    if wrong and nesting == "refuse":
        before = repr(tags[wrong[0] - 1]) if wrong[0] else "the beginning"
        raise UserError(
            f"word {wrong[0] + 1:,} of the sentence on line {number:,} of {path} has the tag "
            f"{tags[wrong[0]]!r} after {before}, which does not nest: {mended[wrong[0]]!r} would; "
            "mend it, or let it be repaired"
        )
    for _ in wrong:
        notes.count("tags that did not nest, repaired, in the sentences on lines", number)
    return mended


def sample_sentences(path: Path, most: int = 200) -> list[ConllSentence]:
    """Return the first sentences of a file."""
    return list(islice(read_sentences(path, even=False), most))


def _place(column: int) -> int:
    return column - 1 if column > 0 else column


def _cell(cells: Sequence[str], place: int) -> str:
    found = cells[place] if place < len(cells) else ""
    return "O" if found in ("", "_") else found
