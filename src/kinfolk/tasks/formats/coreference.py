"""Documents with coreference clusters: CoNLL-2012, JSON, and GAP.

CoNLL-2012 (Pradhan et al. 2012) marks a mention by `(4` on its first word and `4)` on its last, in
the last column. JSON records have `sentences` (lists of words) and `clusters` (lists of [first,
last] over the words of the document, the last one included). GAP (Webster et al. 2018) is a table
with a pronoun and two names, given by character offsets.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Any

from kinfolk.data.documents import missing_name_error
from kinfolk.errors import UserError
from kinfolk.tasks.formats.base import (
    FileSpec,
    Format,
    Predictions,
    ReadReport,
    register,
    write_json,
)
from kinfolk.tasks.formats.labelled_file import LabelledFile, as_text_list, preview
from kinfolk.tasks.formats.table import format_row
from kinfolk.tasks.rows import CorefDocument, WordRange
from kinfolk.tasks.task import Prediction
from kinfolk.text import segment

BEGIN, END = "#begin document", "#end document"
WORD, SPEAKER = 3, 9  # columns of CoNLL-2012, from 0
GAP_COLUMNS = ("Text", "Pronoun", "Pronoun-offset", "A", "A-offset", "B", "B-offset")
GAP_MENTIONS = ("Pronoun", "A", "B")
COREF_MARK = re.compile(r"(\()?(\d+)(\))?")


def detect_conll2012(file: LabelledFile) -> FileSpec | None:
    """Detect CoNLL-2012 by its first line."""
    first = next((line for line in file.sample_lines if line.strip()), "")
    if not first.startswith(BEGIN):
        return None
    return FileSpec("coref", "conll2012", "cluster coreferent spans, given in the last column")


def detect_coref_json(file: LabelledFile) -> FileSpec | None:
    """Detect records with sentences and clusters."""
    first = file.first_record
    if not isinstance(first, dict) or not {"sentences", "clusters"} <= first.keys():
        return None
    return FileSpec("coref", "objects", "cluster coreferent spans, given as clusters")


def detect_gap(file: LabelledFile) -> FileSpec | None:
    """Detect GAP by the names of its columns."""
    if file.is_json or not {*GAP_COLUMNS} <= {name.strip() for name in file.sample_cells[0]}:
        return None
    return FileSpec("coref", "gap", "find the names that the pronoun of each text refers to")


def read_conll2012(
    file: LabelledFile, spec: FileSpec, report: ReadReport
) -> Iterator[CorefDocument]:
    """Stream the documents of a CoNLL-2012 file."""
    id, begun = "", 0
    sentences: list[list[list[str]]] = [[]]
    for number, line in file.lines():
        if line.startswith(BEGIN):
            id, begun, sentences = line.removeprefix(BEGIN).strip(), number, [[]]
        elif line.startswith(END):
            yield _document(id, sentences, begun, file)
            begun = 0
        elif line.startswith("#"):
            continue
        elif not line.strip():
            sentences.append([])
        else:
            if not begun or len(cells := line.split()) <= WORD + 1:
                raise UserError(
                    f"line {number:,} of {file} is {preview(line)}: CoNLL-2012 has words between "
                    f"{BEGIN!r} and {END!r}, in column {WORD + 1}, and their coreference in the "
                    "last column"
                )
            sentences[-1].append(cells)
    if begun:
        raise UserError(f"{file} has no {END!r} for line {begun:,}: the file is truncated")


def read_coref_json(
    file: LabelledFile, spec: FileSpec, report: ReadReport
) -> Iterator[CorefDocument]:
    """Stream the documents of JSON records."""
    for number, row in file.records():
        where = file.place(number)
        if not isinstance(row, dict) or not isinstance(row.get("sentences"), list):
            raise UserError(f"{where} has no list of 'sentences', each a list of words")
        sentences = tuple(
            as_text_list(sentence, "sentences", where) for sentence in row["sentences"]
        )
        size = sum(map(len, sentences))
        given = row.get("clusters")
        if given is not None and not isinstance(given, list):
            raise UserError(f"'clusters' in {where} must be a list of lists (got {preview(given)})")
        clusters = None if given is None else tuple(_spans(c, size, where) for c in given)
        mentions = None if "mentions" not in row else _spans(row["mentions"], size, where)
        speakers = None
        if row.get("speakers"):
            speakers = tuple(as_text_list(s, "speakers", where) for s in row["speakers"])
            if [*map(len, speakers)] != [*map(len, sentences)]:
                raise UserError(
                    f"{where} has 'speakers' that do not match its words: give one per word"
                )
        id = str(row.get("doc_key", row.get("id", number)))
        yield CorefDocument(id, sentences, clusters, number, mentions, speakers)


def read_gap(file: LabelledFile, spec: FileSpec, report: ReadReport) -> Iterator[CorefDocument]:
    """Stream the texts of GAP: the pronoun and two names are given as mentions."""
    table = file.cells()
    names = next(table, (1, list[str]()))[1]
    for name in GAP_COLUMNS:
        if name not in names:
            raise missing_name_error(name, names, f"the first row of {file}")
    for number, row in table:
        if len(row) != len(names):
            raise UserError(
                f"line {number:,} of {file} has {len(row)} columns and the first row has "
                f"{len(names)}: check the tabs of that line"
            )
        fields = dict(zip(names, row, strict=True))
        where, text = f"line {number:,} of {file}", fields["Text"]
        spans = {
            name: _char_span(text, fields[name], fields[f"{name}-offset"], where)
            for name in GAP_MENTIONS
        }
        starts = _word_starts(text, [edge for span in spans.values() for edge in span])
        words = tuple(text[a:b].strip() for a, b in zip(starts, [*starts[1:], None], strict=True))
        mentions = {
            name: (starts.index(a), sum(start < b for start in starts))
            for name, (a, b) in spans.items()
        }
        same = [name for name in "AB" if fields.get(f"{name}-coref", "").upper() == "TRUE"]
        cluster = tuple(sorted(mentions[name] for name in ("Pronoun", *same)))
        clusters = None if "A-coref" not in fields else (cluster,) if same else ()
        id = fields.get("ID", str(number))
        yield CorefDocument(id, (words,), clusters, number, tuple(sorted(mentions.values())))


def write_conll2012(predictions: Predictions) -> Iterator[str]:
    """Add a last column with the brackets of CoNLL-2012."""
    by_number, marks, word = predictions.by_number(), list[list[str]](), 0
    for number, line in predictions.file.lines():
        if number in by_number:
            ((row, prediction),) = by_number[number]
            marks, word = coref_column(prediction.value, len(row.words)), 0
        if not line.strip() or line.startswith("#"):
            yield line + "\n"
            continue
        yield f"{line}\t{'|'.join(marks[word]) or '-'}\n"
        word += 1


def coref_column(clusters: Sequence[Sequence[WordRange]], size: int) -> list[list[str]]:
    """Return the marks of each word: `(0` opens a mention of cluster 0, `0)` closes it."""
    marks: list[list[str]] = [[] for _ in range(size)]
    for number, cluster in enumerate(clusters):
        for first, stop in cluster:
            if stop - first == 1:
                marks[first].append(f"({number})")
            else:
                marks[first].append(f"({number}")
                marks[stop - 1].append(f"{number})")
    return marks


def write_gap(predictions: Predictions) -> Iterator[str]:
    """Add a column with the name that the pronoun refers to."""
    by_number, rows = predictions.by_number(), predictions.file.cells()
    _, names = next(rows)
    yield format_row(predictions.file, [*names, "prediction"])
    for number, cells in rows:
        answer = _gap_answer(dict(zip(names, cells, strict=True)), *by_number[number][0])
        yield format_row(predictions.file, [*cells, answer])


def _gap_answer(fields: dict[str, str], row: CorefDocument, prediction: Prediction) -> str:
    """Return which of the two names is in a cluster with the pronoun."""
    order = sorted(GAP_MENTIONS, key=lambda name: int(fields[f"{name}-offset"]))
    spans = dict(zip(order, row.mentions or (), strict=True))
    clusters = [cluster for cluster in prediction.value if spans["Pronoun"] in cluster]
    same = [name for name in "AB" if any(spans[name] in cluster for cluster in clusters)]
    return " and ".join(same) or "neither"


def _document(
    id: str, lines: list[list[list[str]]], number: int, file: LabelledFile
) -> CorefDocument:
    sentences = [sentence for sentence in lines if sentence]
    marks = [cells[-1] for sentence in sentences for cells in sentence]
    speakers = tuple(
        tuple(cells[SPEAKER] if len(cells) > SPEAKER + 1 else "-" for cells in sentence)
        for sentence in sentences
    )
    words = tuple(tuple(cells[WORD] for cells in sentence) for sentence in sentences)
    return CorefDocument(id, words, _clusters(marks, id, file), number, None, speakers)


def _clusters(marks: list[str], id: str, file: LabelledFile) -> tuple[tuple[WordRange, ...], ...]:
    """Parse the brackets of a document; the one opened last is closed first."""
    opened: dict[str, list[int]] = {}
    clusters: dict[str, list[WordRange]] = {}
    for index, mark in enumerate(marks):
        for part in mark.split("|") if mark not in ("-", "_", "*") else ():
            match = COREF_MARK.fullmatch(part)
            if match is None or not (match[1] or match[3]):
                raise UserError(
                    f"{id} of {file} has {mark!r} at word {index + 1:,}: expected (4, 4) or (4)"
                )
            if match[1]:
                opened.setdefault(match[2], []).append(index)
            if match[3]:
                if not opened.get(match[2]):
                    raise UserError(
                        f"{id} of {file} closes {match[2]} at word {index + 1:,} before opening it"
                    )
                clusters.setdefault(match[2], []).append((opened[match[2]].pop(), index + 1))
    if left := [name for name, indices in opened.items() if indices]:
        raise UserError(f"{id} of {file} never closes {', '.join(left)}: the file is truncated")
    return tuple(tuple(sorted(spans)) for spans in clusters.values())


def _spans(spans: Any, size: int, where: str) -> tuple[WordRange, ...]:
    """Return spans of [first, last] as spans that end after their last word."""
    for span in spans if isinstance(spans, list) else [spans]:
        is_pair = isinstance(span, list) and len(span) == 2 and all(type(n) is int for n in span)
        if not is_pair or not 0 <= span[0] <= span[1] < size:
            raise UserError(
                f"{where} has the span {preview(span)}: a span is [first, last], word indices from "
                f"0 to {size - 1:,}"
            )
    return tuple((first, last + 1) for first, last in spans)


def _char_span(text: str, mention: str, offset: str, where: str) -> WordRange:
    start = int(offset) if offset.isdecimal() else -1
    if start < 0 or not text.startswith(mention, start) or not mention:
        raise UserError(f"{where} has no {mention!r} at character {offset}: correct the offset")
    return start, start + len(mention)


def _word_starts(text: str, edges: list[int]) -> list[int]:
    """Return the starts of the words; mentions start and end at word boundaries."""
    starts = {*segment.word_starts(text, "spaces"), *edges}
    return sorted(n for n in starts if n < len(text) and not text[n].isspace())


register(
    Format("conll2012", ("coref",), read_conll2012, write_conll2012, detect_conll2012),
    Format("objects", ("coref",), read_coref_json, write_json, detect_coref_json),
    Format("gap", ("coref",), read_gap, write_gap, detect_gap, order=3),
)
