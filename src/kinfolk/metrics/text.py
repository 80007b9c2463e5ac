"""BLEU, chrF and ROUGE."""

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from kinfolk.errors import UserError
from kinfolk.metrics.classification import check_lengths, f_score, safe_divide
from kinfolk.metrics.diversity import ngrams

References: TypeAlias = str | Sequence[str]  # of one text: all are right
CHINESE = ("\u3400", "\u9fff")  # the first and the last character of those that are counted


@dataclass(frozen=True)
class Rating:
    """A score from 0 to 100, and the signature that says how it was counted."""

    score: float
    signature: str


def library() -> Any:
    """Open sacrebleu, or say what it takes."""
    try:
        from sacrebleu import metrics
    except ImportError as error:
        raise UserError(
            "BLEU and chrF need the sacrebleu package: pip install sacrebleu"
        ) from error
    return metrics


def bleu(written: Sequence[str], references: Sequence[References]) -> Rating:
    """Score the words of what was written against its references, one or several for each."""
    return rating(metric("bleu", references), written, references)


def chrf(written: Sequence[str], references: Sequence[References]) -> Rating:
    """Score the characters of what was written; of several references, the closest counts."""
    return rating(metric("chrf", references), written, references)


def metric(name: str, references: Sequence[References]) -> Any:
    """Return sacrebleu's metric; Chinese references are counted by characters."""
    if name == "chrf":
        return library().CHRF()
    texts = [text for reference in references for text in each(reference)]
    return library().BLEU(tokenize="zh" if is_chinese(texts) else "13a")


def rating(metric: Any, written: Sequence[str], references: Sequence[References]) -> Rating:
    """Score a corpus."""
    check_text_lengths(written, references)
    found = metric.corpus_score(list(written), streams(references))
    return Rating(float(found.score), str(metric.get_signature()))


def statistics(
    metric: Any, written: Sequence[str], references: Sequence[References]
) -> NDArray[np.int64]:
    """Return the counts of each text, (texts, counts): the score of a corpus is one of their sum.

    So texts are read once, however often they are drawn for an interval.
    """
    check_text_lengths(written, references)
    return np.array(metric._extract_corpus_statistics(list(written), streams(references)))


def total(metric: Any, rows: Sequence[NDArray[np.int64]] | NDArray[np.int64]) -> float:
    """Return the score of the texts with these statistics."""
    return float(metric._aggregate_and_compute([np.sum(rows, axis=0).tolist()]).score)


def each(reference: References) -> Sequence[str]:
    """Return the references of one text as a list."""
    return (reference,) if isinstance(reference, str) else reference


def streams(references: Sequence[References]) -> list[list[str | None]]:
    """Return the first reference of every text, then the second, with None where it has none."""
    most = max(len(each(reference)) for reference in references)
    padded = [[*each(reference), *[None] * most][:most] for reference in references]
    return [list(stream) for stream in zip(*padded, strict=True)]


def check_text_lengths(written: Sequence[str], references: Sequence[References]) -> None:
    """Refuse texts without a reference each, and no texts at all."""
    if len(written) != len(references) or not written:
        raise UserError(
            f"{len(written)} texts cannot be scored against {len(references)} references: "
            "give one for each"
        )
    for number, reference in enumerate(references, 1):
        if not each(reference):
            raise UserError(f"text {number} has no reference: give one or more for each")


def is_chinese(texts: Sequence[str]) -> bool:
    """Say whether most characters are Chinese: then each of them counts as a word."""
    characters = [character for text in texts for character in text if character.isalpha()]
    inside = sum(CHINESE[0] <= character <= CHINESE[1] for character in characters)
    return 2 * inside > len(characters)


LATIN_WORDS = re.compile("[a-z0-9]+")
CHINESE_WORDS = re.compile("[a-z0-9]+|[{}-{}]".format(*CHINESE))


@dataclass(frozen=True)
class RougeScores:
    """F1 of words, of pairs of words, and of the longest common subsequence."""

    rouge1: float
    rouge2: float
    rougeL: float  # noqa: N815  # the name of the measure


def rouge(written: Sequence[str], references: Sequence[References]) -> RougeScores:
    """Average over summaries, against the reference of each that fits best."""
    rows = rouge_each(written, references)
    one, two, longest = (
        sum(values) / len(rows)
        for values in zip(*((row.rouge1, row.rouge2, row.rougeL) for row in rows), strict=True)
    )
    return RougeScores(one, two, longest)


def rouge_each(written: Sequence[str], references: Sequence[References]) -> list[RougeScores]:
    """Score every summary against its reference; of several, the best of each score counts."""
    check_lengths(written, references, "summaries")
    texts = [text for reference in references for text in each(reference)]
    pattern = CHINESE_WORDS if is_chinese(texts) else LATIN_WORDS
    found = []
    for text, reference in zip(written, references, strict=True):
        words = pattern.findall(text.lower())
        ones = [rouge_of_tokens(words, pattern.findall(one.lower())) for one in each(reference)]
        found.append(
            RougeScores(
                max(one.rouge1 for one in ones),
                max(one.rouge2 for one in ones),
                max(one.rougeL for one in ones),
            )
        )
    return found


def rouge_of_tokens(written: Sequence[str], reference: Sequence[str]) -> RougeScores:
    """Score the words of a summary against those of its reference."""
    hits = lcs_length(written, reference)
    longest = f_score(safe_divide(hits, len(written)), safe_divide(hits, len(reference)))
    return RougeScores(ngram_f1(written, reference, 1), ngram_f1(written, reference, 2), longest)


def ngram_f1(written: Sequence[str], reference: Sequence[str], size: int) -> float:
    """Return F1 of grams; one that is written too often counts as often as it should be."""
    one, other = Counter(ngrams(written, size)), Counter(ngrams(reference, size))
    hits = (one & other).total()
    return f_score(safe_divide(hits, one.total()), safe_divide(hits, other.total()))


def lcs_length(one: Sequence[str], other: Sequence[str]) -> int:
    """Return the length of the longest common subsequence, a row of the table in one number.

    A bit is 0 where the length grows (Hyyrö 2004), so that long texts take no quadratic time.
    """
    indices: defaultdict[str, int] = defaultdict(int)
    for place, word in enumerate(one):
        indices[word] |= 1 << place
    full = row = (1 << len(one)) - 1
    for word in other:
        same = row & indices.get(word, 0)
        row = ((row + same) | (row - same)) & full
    return len(one) - row.bit_count()
