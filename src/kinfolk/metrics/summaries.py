"""ROUGE (Lin, 2004): the words, pairs of words and longest subsequence that summaries share.

Scores equal those of Google's rouge-score without its stemmer. That knows the letters a to z and
digits alone; where the references are Chinese, every character is a word besides.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from kinfolk.metrics.samples import ngrams
from kinfolk.metrics.scores import check_lengths, f_score, safe_divide
from kinfolk.metrics.translation import CHINESE, References, each, is_chinese

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
