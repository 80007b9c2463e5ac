"""Diversity and repetition of generated texts: distinct-n, loops, self-BLEU."""

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
REPEAT_NGRAM = 4  # words that count as a repetition when the text has them before
LOOP_REPEATS = 3  # of a phrase of two words or more, in a loop (Holtzman et al. 2020)
SMOOTHING_FLOOR = 0.1  # matches where there are none (Chen & Cherry 2014, method 1)

WordSequence = Sequence[str]
Gram = tuple[str, ...]


@dataclass(frozen=True)
class DiversityScores:
    """Measures of a set of texts; None where the set is too small."""

    texts: int
    empty: int  # texts without a word, which only `words` below counts
    words: float  # of a text on average
    distinct_n: tuple[float | None, ...]  # shares of distinct 1- to 4-grams
    repetition_rate: float | None  # share of words in repeated 4-grams
    loop_rate: float | None  # share of texts that end in a loop
    self_bleu: float | None  # 1 where all texts are equal
    perplexity: float | None = None  # of a token under an n-gram model


def diversity_scores(texts: Sequence[str], perplexity: float | None = None) -> DiversityScores:
    """Measure texts by their words; a Chinese character is one, and so is a punctuation mark."""
    every = [word_tokenize(text) for text in texts]
    some = [words for words in every if words]
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
    """Split a text: "It's 3 o'clock." gives "It's", "3", "o'clock" and "."."""
    return [
        text[start:stop].rstrip() for start, stop in pairwise([*word_starts(text, "spaces"), None])
    ]


def distinct_n(texts: Sequence[WordSequence], size: int) -> float | None:
    """Return the share of distinct n-grams over all texts (Li et al. 2016)."""
    found = Counter(gram for text in texts for gram in ngrams(text, size))
    return len(found) / found.total() if found else None


def repetition_rate(text: WordSequence, size: int = REPEAT_NGRAM) -> float:
    """Return the share of words that are part of a repeated n-gram: "a b a b a b" has 0.67."""
    seen: set[Gram] = set()
    repeated = np.zeros(len(text), np.bool_)
    for index, gram in enumerate(ngrams(text, size)):
        if gram in seen:
            repeated[index : index + size] = True
        seen.add(gram)
    return float(repeated.mean()) if len(text) else 0.0


def ends_in_loop(text: WordSequence) -> bool:
    """Return whether a text ends in a phrase of two words or more, three times over."""
    return any(
        all(text[-back] == text[-back - size] for back in range(1, (LOOP_REPEATS - 1) * size + 1))
        for size in range(2, len(text) // LOOP_REPEATS + 1)
    )


def self_bleu(texts: Sequence[WordSequence]) -> float | None:
    """Return the mean BLEU-4 of each text against all others (Zhu et al. 2018).

    Every n-gram keeps the two highest counts that any text has of it: the highest among the others
    is one of them, so that all texts are scored in one pass, exactly.
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
        # Where the highest count is the text's own, the second is that of the others.
        hits = [
            sum(min(count, best[gram][count == best[gram][0]]) for gram, count in order.items())
            for order in own
        ]
        scores.append(bleu(hits, len(text), closest_length(lengths, len(text))))
    return mean(scores)


def bleu(hits: Sequence[int], length: int, reference: int) -> float:
    """Return BLEU from the matching n-grams of each order that is not longer than the text.

    It is sacrebleu's, with smoothing by a floor and the effective order.
    """
    if not any(hits):
        return 0.0
    totals = [length - size + 1 for size in NGRAM_ORDERS if size <= length]
    shares = [(hit or SMOOTHING_FLOOR) / total for hit, total in zip(hits, totals, strict=False)]
    brevity = min(0.0, 1 - reference / length)
    return math.exp(brevity + sum(map(math.log, shares)) / len(shares))


def closest_length(lengths: Sequence[int], length: int) -> int:
    """Return the other length that is closest to one of the sorted lengths, the shorter of two.

    A second text of the same length is the closest.
    """
    place = bisect_left(lengths, length)
    others = [*lengths[max(place - 1, 0) : place], *lengths[place + 1 : place + 2]]
    return min(others, key=lambda other: (abs(other - length), other))


def perplexity(model: KneserNey, texts: Sequence[Ids]) -> float | None:
    """Return the perplexity of a token under an n-gram model, without the end of the text.

    A text that was generated up to a number of tokens has no end to predict.
    """
    costs = [model.nll(ids)[:-1] for ids in texts]
    tokens = sum(map(len, costs))
    return math.exp(sum(float(nats.sum()) for nats in costs) / tokens) if tokens else None


def ngrams(text: WordSequence, size: int) -> Iterator[Gram]:
    """Yield every n-gram of some words."""
    return (tuple(text[start : start + size]) for start in range(len(text) - size + 1))


def mean(values: Sequence[float]) -> float | None:
    """Return the mean, None of no values."""
    return sum(values) / len(values) if values else None
