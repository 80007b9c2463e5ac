"""ROUGE (Lin, 2004): the words, pairs of words and longest subsequence that summaries share.

Scores equal those of Google's rouge-score without its stemmer. That knows the letters a to z and
digits alone; where the references are Chinese, every character is a word besides.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from kinfolk.metrics.samples import grams
from kinfolk.metrics.scores import harmonic, paired, share
from kinfolk.metrics.translation import CHINESE, References, chinese, each

LATIN_WORDS = re.compile("[a-z0-9]+")
CHINESE_WORDS = re.compile("[a-z0-9]+|[{}-{}]".format(*CHINESE))


@dataclass(frozen=True)
class Rouge:
    """F1 of words, of pairs of words, and of the longest common subsequence."""

    one: float
    two: float
    longest: float


def rouge(written: Sequence[str], references: Sequence[References]) -> Rouge:
    """Average over summaries, against the reference of each that fits best."""
    rows = rouges(written, references)
    one, two, longest = (
        sum(values) / len(rows)
        for values in zip(*((row.one, row.two, row.longest) for row in rows), strict=True)
    )
    return Rouge(one, two, longest)


def rouges(written: Sequence[str], references: Sequence[References]) -> list[Rouge]:
    """Score every summary against its reference; of several, the best of each score counts."""
    paired(written, references, "summaries")
    texts = [text for reference in references for text in each(reference)]
    pattern = CHINESE_WORDS if chinese(texts) else LATIN_WORDS
    found = []
    for text, reference in zip(written, references, strict=True):
        words = pattern.findall(text.lower())
        ones = [compare(words, pattern.findall(one.lower())) for one in each(reference)]
        found.append(
            Rouge(
                max(one.one for one in ones),
                max(one.two for one in ones),
                max(one.longest for one in ones),
            )
        )
    return found


def compare(written: Sequence[str], reference: Sequence[str]) -> Rouge:
    """Score the words of a summary against those of its reference."""
    hits = subsequence(written, reference)
    longest = harmonic(share(hits, len(written)), share(hits, len(reference)))
    return Rouge(matches(written, reference, 1), matches(written, reference, 2), longest)


def matches(written: Sequence[str], reference: Sequence[str], size: int) -> float:
    """Return F1 of grams; one that is written too often counts as often as it should be."""
    one, other = Counter(grams(written, size)), Counter(grams(reference, size))
    hits = (one & other).total()
    return harmonic(share(hits, one.total()), share(hits, other.total()))


def subsequence(one: Sequence[str], other: Sequence[str]) -> int:
    """Return the length of the longest common subsequence, a row of the table in one number.

    A bit is 0 where the length grows (Hyyrö 2004), so that long texts take no quadratic time.
    """
    places: defaultdict[str, int] = defaultdict(int)
    for place, word in enumerate(one):
        places[word] |= 1 << place
    full = row = (1 << len(one)) - 1
    for word in other:
        same = row & places.get(word, 0)
        row = ((row + same) | (row - same)) & full
    return len(one) - row.bit_count()
