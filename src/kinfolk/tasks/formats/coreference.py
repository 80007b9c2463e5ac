"""Documents and the spans that mean one thing: CoNLL-2012's columns, JSON lines, and GAP.

CoNLL-2012 (Pradhan et al., 2012) marks a span by `(4` on its first word and `4)` on its last, in
the last column. JSON lines have `sentences` (lists of words) and `clusters` (lists of [first, last]
over the words of the document, the last one in). GAP (Webster et al., 2018) is a table with a
pronoun and two names, given by characters.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kinfolk.data.documents import missing_name_error
from kinfolk.errors import UserError
from kinfolk.tasks.formats.base import as_text_list, preview, read_json, read_lines, read_table
from kinfolk.tasks.rows import CorefDocument, Span
from kinfolk.text import segment as words_of

BEGIN, END = "#begin document", "#end document"
WORD, SPEAKER = 3, 9  # columns of CoNLL-2012, from 0
GAP_COLUMNS = ("Text", "Pronoun", "Pronoun-offset", "A", "A-offset", "B", "B-offset")
COREF_MARK = re.compile(r"(\()?(\d+)(\))?")


def read_conll2012(path: Path) -> Iterator[CorefDocument]:
    """Stream the documents of a CoNLL-2012 file."""
    id, begun = "", 0
    sentences: list[list[list[str]]] = [[]]
    for number, line in read_lines(path):
        if line.startswith(BEGIN):
            id, begun, sentences = line.removeprefix(BEGIN).strip(), number, [[]]
        elif line.startswith(END):
            yield _document(id, sentences, begun, path)
            begun = 0
        elif line.startswith("#"):
            continue
        elif not line.strip():
            sentences.append([])
        else:
            if not begun or len(found := line.split()) <= WORD + 1:
                raise UserError(
                    f"line {number:,} of {path} is {preview(line)}: a word of CoNLL-2012 stands "
                    f"between {BEGIN!r} and {END!r}, in column {WORD + 1}, its coreference in the "
                    "last"
                )
            sentences[-1].append(found)
    if begun:
        raise UserError(f"{path} has no {END!r} for line {begun:,}: it was cut short")


def read_coref_json(path: Path) -> Iterator[CorefDocument]:
    """Stream the documents of JSON lines."""
    for number, row in read_json(path):
        where = f"line {number:,} of {path}"
        if not isinstance(row, dict) or not isinstance(row.get("sentences"), list):
            raise UserError(f"{where} has no list of 'sentences', each a list of words")
        sentences = tuple(
            as_text_list(sentence, "sentences", where) for sentence in row["sentences"]
        )
        size = sum(map(len, sentences))
        clusters = row.get("clusters")
        if clusters is not None and not isinstance(clusters, list):
            raise UserError(f"'clusters' in {where} is {preview(clusters)}: write a list of lists")
        groups = None if clusters is None else tuple(_group(c, size, where) for c in clusters)
        mentions = None if "mentions" not in row else _group(row["mentions"], size, where)
        speakers = row.get("speakers")
        said = None if not speakers else tuple(as_text_list(s, "speakers", where) for s in speakers)
        if said is not None and [*map(len, said)] != [*map(len, sentences)]:
            raise UserError(f"{where} has 'speakers' that do not match its words: give one a word")
        id = str(row.get("doc_key", row.get("id", number)))
        yield CorefDocument(id, sentences, groups, number, mentions, said)


def read_gap(path: Path) -> Iterator[CorefDocument]:
    """Stream the snippets of GAP: the pronoun and two names are the mentions that are given."""
    table = read_table(path)
    titles = next(table, (1, list[str]()))[1]
    for name in GAP_COLUMNS:
        if name not in titles:
            raise missing_name_error(name, titles, f"the first row of {path}")
    for number, row in table:
        if len(row) != len(titles):
            raise UserError(
                f"line {number:,} of {path} has {len(row)} columns and the first row has "
                f"{len(titles)}: look for a tab too many or too few there"
            )
        fields = dict(zip(titles, row, strict=True))
        where, snippet = f"line {number:,} of {path}", fields["Text"]
        spans = {
            who: _within(snippet, fields[who], fields[f"{who}-offset"], where)
            for who in ("Pronoun", "A", "B")
        }
        starts = _starts(snippet, [edge for span in spans.values() for edge in span])
        words = tuple(
            snippet[a:b].strip() for a, b in zip(starts, [*starts[1:], None], strict=True)
        )
        mentions = {who: (starts.index(a), _after(starts, b)) for who, (a, b) in spans.items()}
        same = [who for who in "AB" if fields.get(f"{who}-coref", "").upper() == "TRUE"]
        cluster = tuple(sorted(mentions[who] for who in ("Pronoun", *same)))
        groups = None if "A-coref" not in fields else (cluster,) if same else ()
        yield CorefDocument(fields.get("ID", str(number)), (words,), groups, number,
                        tuple(sorted(mentions.values())))  # fmt: skip


def _document(id: str, lines: list[list[list[str]]], number: int, path: Path) -> CorefDocument:
    sentences = [sentence for sentence in lines if sentence]
    marks = [cells[-1] for sentence in sentences for cells in sentence]
    speakers = tuple(
        tuple(cells[SPEAKER] if len(cells) > SPEAKER + 1 else "-" for cells in sentence)
        for sentence in sentences
    )
    words = tuple(tuple(cells[WORD] for cells in sentence) for sentence in sentences)
    return CorefDocument(id, words, _clusters(marks, id, path), number, None, speakers)


def _clusters(marks: list[str], id: str, path: Path) -> tuple[tuple[Span, ...], ...]:
    """Read the brackets of a document; the one opened last is closed first."""
    opened: dict[str, list[int]] = {}
    found: dict[str, list[Span]] = {}
    for place, mark in enumerate(marks):
        for part in mark.split("|") if mark not in ("-", "_", "*") else ():
            match = COREF_MARK.fullmatch(part)
            if match is None or not (match[1] or match[3]):
                raise UserError(f"{id} of {path} marks word {place + 1:,} by {mark!r}: write (4)")
            if match[1]:
                opened.setdefault(match[2], []).append(place)
            if match[3]:
                if not opened.get(match[2]):
                    raise UserError(
                        f"{id} of {path} closes {match[2]} at word {place + 1:,}: it is not open"
                    )
                found.setdefault(match[2], []).append((opened[match[2]].pop(), place + 1))
    if left := [name for name, indices in opened.items() if indices]:
        raise UserError(f"{id} of {path} never closes {', '.join(left)}: it was cut short")
    return tuple(tuple(sorted(spans)) for spans in found.values())


def _group(spans: Any, size: int, where: str) -> tuple[Span, ...]:
    """Return spans that end after their last word."""
    for span in spans if isinstance(spans, list) else [spans]:
        whole = isinstance(span, list) and len(span) == 2 and all(type(n) is int for n in span)
        if not whole or not 0 <= span[0] <= span[1] < size:
            raise UserError(
                f"{where} has the span {preview(span)}: give [first, last] among {size:,} words, "
                "from 0"
            )
    return tuple((first, last + 1) for first, last in spans)


def _within(snippet: str, span: str, offset: str, where: str) -> Span:
    start = int(offset) if offset.isdecimal() else -1
    if start < 0 or not snippet.startswith(span, start) or not span:
        raise UserError(f"{where} has no {span!r} at character {offset}: mend the offset")
    return start, start + len(span)


def _starts(snippet: str, edges: list[int]) -> list[int]:
    """Return where words begin; a span begins and ends with one, whatever stands around it."""
    found = {*words_of.word_starts(snippet, "spaces"), *edges}
    return sorted(n for n in found if n < len(snippet) and not snippet[n].isspace())


def _after(starts: list[int], end: int) -> int:
    return sum(start < end for start in starts)
