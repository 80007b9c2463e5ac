"""Evaluate generated samples by their diversity, beside excerpts of held-out documents."""

import json
import re
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from kinfolk.data.corpus import Corpus
from kinfolk.data.documents import DEFAULT_TEXT_FIELD, get_text, read_jsonl
from kinfolk.data.files import (
    JSON_SUFFIXES,
    content_suffix,
    decode_utf8,
    normalize_newlines,
    open_input,
)
from kinfolk.errors import UserError
from kinfolk.metrics.diversity import DiversityScores, diversity_scores, perplexity
from kinfolk.types import IntArray
from kinfolk.workflows.baselines import document_nll, end_ids, ngram_of_corpus
from kinfolk.workflows.recipe import CorpusShare

BLANK_LINES = re.compile(r"\n\s*\n")


def measure_samples(
    path: Path | str, corpus: Path | str | None = None
) -> tuple[DiversityScores, DiversityScores | None]:
    """Measure the diversity of samples, and of as many excerpts of held-out documents.

    With a corpus, also their perplexity under its 3-gram model.
    """
    texts = read_samples(Path(path))
    if corpus is None:
        return diversity_scores(texts), None
    model, tokenizer = ngram_of_corpus(corpus)
    ends = end_ids(Corpus.open(corpus))
    written = [
        np.array(ids, np.int64) for ids in tokenizer.encode_batch(texts, add_special_tokens=False)
    ]
    scores = diversity_scores(texts, perplexity(document_nll(model, written, *ends)))
    held_out = CorpusShare(str(corpus)).held_out()
    if held_out is None:
        warnings.warn(
            f"corpus {corpus} has no held-out documents to compare with: prepare it with --holdout",
            stacklevel=2,
        )
        return scores, None
    length = max(1, round(sum(map(len, written)) / len(written)))
    real = sample_excerpts(held_out, len(texts), length)
    return scores, diversity_scores(
        [tokenizer.decode(ids) for ids in real], perplexity(document_nll(model, real, *ends))
    )


def sample_excerpts(corpus: Corpus, count: int, length: int) -> list[IntArray]:
    """Return excerpts of one length, spread over the documents; shorter documents come last."""
    starts, sizes = corpus.starts[:-1], np.diff(corpus.starts)
    excerpts: list[IntArray] = []
    index = 0  # of the excerpt within its document
    while len(excerpts) < count and (sizes >= (index + 1) * length).any():
        begins = starts[sizes >= (index + 1) * length] + index * length
        begins = evenly_spaced(begins, count - len(excerpts))
        excerpts += [corpus.ids(begin, begin + length) for begin in begins.tolist()]
        index += 1
    short = evenly_spaced(np.flatnonzero((sizes > 0) & (sizes < length)), count - len(excerpts))
    return excerpts + [corpus.document(i) for i in short.tolist()]


def evenly_spaced(values: IntArray, count: int) -> IntArray:
    """Return at most `count` values, at equal distances."""
    if len(values) <= count:
        return values
    return values[np.arange(count) * len(values) // max(count, 1)]


def samples_as_dict(scores: DiversityScores) -> dict[str, float | int | None]:
    """Return the measures by name, one number each."""
    values: dict[str, float | int | None] = {}
    for name, value in vars(scores).items():
        numbered = {f"distinct_{n}": share for n, share in enumerate(scores.distinct_n, 1)}
        values |= numbered if name == "distinct_n" else {name: value}
    return values


def read_samples(path: Path) -> list[str]:
    """Read samples: the field "text" of JSON, the blocks of plain text or, of one block, its lines.

    JSON has one object per line, or one list of objects or strings. A NUL is allowed: a model that
    generates bytes may emit it.
    """
    if path.is_dir() or not path.exists():
        raise UserError(f"no such file: {path}")
    with open_input(path) as source:
        text = "".join(normalize_newlines(decode_utf8(source)))
    if content_suffix(path) in JSON_SUFFIXES:
        samples = list(_sample_texts(path, text))
    else:
        blocks = BLANK_LINES.split(text.strip())
        samples = blocks if len(blocks) > 1 else text.strip().split("\n")
    if not any(sample.strip() for sample in samples):
        raise UserError(
            f"{path} has no samples: use one text per line, blocks between blank lines, or JSON "
            f"lines with a field {DEFAULT_TEXT_FIELD!r}"
        )
    return samples


def _sample_texts(path: Path, text: str) -> Iterator[str]:
    try:
        rows = json.loads(text)
    except (
        ValueError,
        RecursionError,
    ):  # several lines, or an error that `read_jsonl` reports with its line
        with open_input(path) as source:
            yield from read_jsonl(source, allow_nul=True)
        return
    for number, row in enumerate(rows if isinstance(rows, list) else [rows], 1):
        row = {DEFAULT_TEXT_FIELD: row} if isinstance(row, str) else row
        yield get_text(row, DEFAULT_TEXT_FIELD, f"sample {number:,} of {path}", allow_nul=True)
