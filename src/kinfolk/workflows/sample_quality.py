"""Measuring what a model wrote, beside real text of the same length."""

import json
import re
import warnings
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import numpy as np

from kinfolk.data.corpus import Corpus, IntArray
from kinfolk.data.documents import DEFAULT_TEXT_FIELD, get_text, read_jsonl
from kinfolk.data.files import JSON, content_suffix, decode_utf8, normalize_newlines, open_input
from kinfolk.errors import UserError
from kinfolk.metrics.diversity import DiversityScores, diversity_scores, perplexity
from kinfolk.workflows.baselines import counted
from kinfolk.workflows.recipe import CorpusShare

_BLANK = re.compile(r"\n\s*\n")


def measure_samples(
    path: Path | str, corpus: Path | str | None = None
) -> tuple[DiversityScores, DiversityScores | None]:
    """Measure the samples in a file, and as many pieces of what the corpus holds out.

    A corpus also tells how likely its 3-grams make the samples.
    """
    texts = read(Path(path))
    if corpus is None:
        return diversity_scores(texts), None
    model, tokenizer = counted(corpus)
    written = [
        np.array(ids, np.int64) for ids in tokenizer.encode_batch(texts, add_special_tokens=False)
    ]
    found = diversity_scores(texts, perplexity(model.counts, written))
    held_out = CorpusShare(str(corpus)).held_out()
    if held_out is None:
        warnings.warn(
            f"{corpus} holds no documents out, so there is no real text to compare with: "
            "prepare it with --holdout",
            stacklevel=2,
        )
        return found, None
    length = max(1, round(sum(map(len, written)) / len(written)))
    real = sample_excerpts(held_out, len(texts), length)
    return found, diversity_scores(
        [tokenizer.decode(ids) for ids in real], perplexity(model.counts, real)
    )


def sample_excerpts(corpus: Corpus, count: int, length: int) -> list[IntArray]:
    """Take so many pieces of a length from documents of all the corpus, as few as can be of each.

    Documents that are shorter come last, whole.
    """
    starts, sizes = corpus.starts[:-1], np.diff(corpus.starts)
    found: list[IntArray] = []
    turn = 0
    while len(found) < count and (sizes >= (turn + 1) * length).any():
        begins = starts[sizes >= (turn + 1) * length] + turn * length
        found += [
            corpus.ids(b, b + length) for b in evenly_spaced(begins, count - len(found)).tolist()
        ]
        turn += 1
    short = np.flatnonzero((sizes > 0) & (sizes < length))
    return found + [corpus.document(i) for i in evenly_spaced(short, count - len(found)).tolist()]


def evenly_spaced(values: IntArray, most: int) -> IntArray:
    """Return all values or, of too many, some at equal distances."""
    if len(values) <= most:
        return values
    return values[np.arange(most) * len(values) // max(most, 1)]


def as_dict(found: DiversityScores) -> dict[str, float | int | None]:
    """Return what was measured by name, a number each."""
    values = asdict(found)
    shares = {f"distinct_{size}": share for size, share in enumerate(values["distinct_n"], 1)}
    before = ("texts", "empty", "words")
    after = ("repetition_rate", "loop_rate", "self_bleu", "perplexity")
    return {**{n: values[n] for n in before}, **shares, **{n: values[n] for n in after}}


def read(path: Path) -> list[str]:
    """Read samples: of JSON the field "text", of plain text its blocks or, if it is one, its lines.

    JSON has an object a line, or one list of objects or texts. A text may hold a NUL, which a
    network that generates bytes may write.
    """
    if path.is_dir() or not path.exists():
        raise UserError(f"{path} is no file: give one of samples, as kinfolk generate writes them")
    with open_input(path) as source:
        text = "".join(normalize_newlines(decode_utf8(source)))
    if content_suffix(path) in JSON:
        found = list(_rows(path, text))
    else:
        blocks = _BLANK.split(text.strip())
        found = blocks if len(blocks) > 1 else text.strip().split("\n")
    if not any(text.strip() for text in found):
        raise UserError(
            f"{path} holds no samples: give a text a line, or blocks between blank lines, or "
            f"JSON lines with a field {DEFAULT_TEXT_FIELD!r}"
        )
    return found


def _rows(path: Path, text: str) -> Iterator[str]:
    try:
        rows = json.loads(text)
    except (ValueError, RecursionError):  # several lines, or one that is told by its number
        with open_input(path) as source:
            yield from read_jsonl(source, allow_nul=True)
        return
    for number, row in enumerate(rows if isinstance(rows, list) else [rows], 1):
        row = {DEFAULT_TEXT_FIELD: row} if isinstance(row, str) else row
        yield get_text(row, DEFAULT_TEXT_FIELD, f"sample {number:,} of {path}", allow_nul=True)
