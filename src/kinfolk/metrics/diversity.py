"""The quality of written texts: do they say different things, or the same over and over?"""

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from kinfolk.metrics.baselines import Ids, KneserNey
from kinfolk.text.segment import word_starts

NGRAM_ORDERS = (1, 2, 3, 4)  # of distinct-n, and of BLEU
REPEAT_NGRAM = 4  # words that are a repetition when they were said before
LOOP_REPEATS = 3  # a loop says a phrase of two words or more so often (Holtzman et al. 2020)
SMOOTHING_FLOOR = (
    0.1  # matches where there are none, so that a score is not 0 (Chen & Cherry 2014, method 1)
)

Words = Sequence[str]
Gram = tuple[str, ...]


@dataclass(frozen=True)
class DiversityScores:
    """What is measured of a set of texts; None where the set is too small to say."""

    texts: int
    empty: int  # texts without a word; all below but for `words` leave them out
    words: float  # a text, on average
    distinct_n: tuple[float | None, ...]  # shares of 1, 2, 3 and 4 words running that are different
    repetition_rate: float | None  # share of a text's words in phrases that it said before
    loop_rate: float | None  # share of texts that end in a loop
    self_bleu: float | None  # 0 where each text is unlike all others, 1 where all are equal
    perplexity: float | None = None  # of a token, where an n-gram model is at hand


def diversity_scores(texts: Sequence[str], perplexity: float | None = None) -> DiversityScores:
    """Measure texts by their words; a Chinese character is one, and so is a punctuation mark."""
    every = [word_tokenize(text) for text in texts]
    some = [text for text in every if text]
    return DiversityScores(
        texts=len(every),
        empty=len(every) - len(some),
        words=sum(map(len, some)) / max(len(every), 1),
        distinct_n=tuple(distinct_n(some, size) for size in NGRAM_ORDERS),
        repetition_rate=mean([repetition_rate(text) for text in some]),
        loop_rate=mean([ends_in_loop(text) for text in some]),
        self_bleu=self_bleu(some),
        perplexity=perplexity,
    )


def word_tokenize(text: str) -> list[str]:
    """Part a text: "It's 3 o'clock." gives "It's", "3", "o'clock" and "."."""
    return [
        text[start:stop].rstrip() for start, stop in pairwise([*word_starts(text, "spaces"), None])
    ]


def distinct_n(texts: Sequence[Words], size: int) -> float | None:
    """Return the share of grams that are different, over all texts (Li et al. 2016)."""
    found = Counter(gram for text in texts for gram in ngrams(text, size))
    return len(found) / found.total() if found else None


def repetition_rate(text: Words, size: int = REPEAT_NGRAM) -> float:
    """Return the share of words that are part of a gram said before: "a b a b a b" has 0.67."""
    seen: set[Gram] = set()
    again = np.zeros(len(text), np.bool_)
    for place, gram in enumerate(ngrams(text, size)):
        if gram in seen:
            again[place : place + size] = True
        seen.add(gram)
    return float(again.mean()) if len(text) else 0.0


def ends_in_loop(text: Words) -> bool:
    """Tell whether a text ends in a phrase of two words or more, three times over."""
    return any(
        all(text[-back] == text[-back - size] for back in range(1, (LOOP_REPEATS - 1) * size + 1))
        for size in range(2, len(text) // LOOP_REPEATS + 1)
    )


def self_bleu(texts: Sequence[Words]) -> float | None:
    """Return the mean BLEU-4 of each text against all others (Zhu et al. 2018).

    Every gram keeps the two highest counts any text has of it: the highest among the others is
    one of them, so that all texts are scored in one pass, exactly.
    """
    if len(texts) < 2:
        return None
    counts = [[Counter(ngrams(text, size)) for size in NGRAM_ORDERS] for text in texts]
    best: dict[Gram, tuple[int, int]] = {}
    for own in counts:
        for gram, count in (pair for order in own for pair in order.items()):
            first, second = best.get(gram, (0, 0))
            best[gram] = (max(first, count), max(min(first, count), second))
    lengths = sorted(map(len, texts))
    scores = []
    for text, own in zip(texts, counts, strict=True):
        # Where the highest count is its own, the second is that of the others.
        hits = [
            sum(min(count, best[gram][count == best[gram][0]]) for gram, count in order.items())
            for order in own
        ]
        scores.append(bleu(hits, len(text), closest_length(lengths, len(text))))
    return mean(scores)


def bleu(hits: Sequence[int], length: int, reference: int) -> float:
    """Return BLEU from the grams of each size that match; sizes longer than the text are left out.

    It is sacrebleu's, with smoothing by a floor and the effective order.
    """
    if not any(hits):
        return 0.0
    totals = [length - size + 1 for size in NGRAM_ORDERS if size <= length]
    shares = [(hit or SMOOTHING_FLOOR) / total for hit, total in zip(hits, totals, strict=False)]
    brevity = min(0.0, 1 - reference / length)
    return math.exp(brevity + sum(map(math.log, shares)) / len(shares))


def closest_length(lengths: Sequence[int], length: int) -> int:
    """Return the length nearest to one of the sorted lengths among the others, the shorter of two.

    A second text of the same length is the nearest there is.
    """
    place = bisect_left(lengths, length)
    others = [*lengths[max(place - 1, 0) : place], *lengths[place + 1 : place + 2]]
    return min(others, key=lambda other: (abs(other - length), other))


def perplexity(model: KneserNey, texts: Sequence[Ids]) -> float | None:
    """Return the perplexity of a token by an n-gram model; whether a text has ended is not asked.

    A text that was written to so many tokens is no worse for having no end.
    """
    costs = [model.nll(ids)[:-1] for ids in texts]
    tokens = sum(map(len, costs))
    return math.exp(sum(float(nats.sum()) for nats in costs) / tokens) if tokens else None


def ngrams(text: Words, size: int) -> Iterator[Gram]:
    """Yield every stretch of some words."""
    return (tuple(text[place : place + size]) for place in range(len(text) - size + 1))


def mean(values: Sequence[float]) -> float | None:
    """Return the mean, of nothing None."""
    return sum(values) / len(values) if values else None
