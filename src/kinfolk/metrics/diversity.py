"""Diversity and repetition of generated texts: distinct-n, loops, self-BLEU."""

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from kinfolk.text.segment import word_starts
from kinfolk.types import FloatArray

NGRAM_ORDERS = (1, 2, 3, 4)  # of distinct-n, and of BLEU
REPEAT_NGRAM = 4  # words of an n-gram that counts as repeated
LOOP_REPEATS = 3  # of a phrase of two words or more, in a loop (Holtzman et al. 2020)
SMOOTHING_FLOOR = 0.1  # matches of an order without any (Chen & Cherry 2014, method 1)

WordSequence = Sequence[str]
Gram = tuple[str, ...]


@dataclass(frozen=True)
class DiversityScores:
    """Measures of a set of texts; None where the set is too small."""

    texts: int
    empty: int  # texts without a word; only the mean of `words` includes them
    words: float  # mean per text
    distinct_n: tuple[float | None, ...]  # fractions of distinct 1- to 4-grams
    repetition_rate: float | None  # fraction of words in repeated 4-grams
    loop_rate: float | None  # fraction of texts that end in a loop
    self_bleu: float | None  # 1 where all texts are equal
    perplexity: float | None = None  # of a token under an n-gram model


def diversity_scores(texts: Sequence[str], perplexity: float | None = None) -> DiversityScores:
    """Score texts by their words; a Chinese character or a punctuation mark is a word."""
    tokenized = [words for text in texts if (words := word_tokenize(text))]
    return DiversityScores(
        texts=len(texts),
        empty=len(texts) - len(tokenized),
        words=sum(map(len, tokenized)) / max(len(texts), 1),
        distinct_n=tuple(distinct_n(tokenized, size) for size in NGRAM_ORDERS),
        repetition_rate=mean([repetition_rate(text) for text in tokenized]),
        loop_rate=mean([ends_in_loop(text) for text in tokenized]),
        self_bleu=self_bleu(tokenized),
        perplexity=perplexity,
    )


def word_tokenize(text: str) -> list[str]:
    """Split a text: "It's 3 o'clock." gives "It's", "3", "o'clock" and "."."""
    return [
        text[start:stop].rstrip() for start, stop in pairwise([*word_starts(text, "spaces"), None])
    ]


def distinct_n(texts: Sequence[WordSequence], size: int) -> float | None:
    """Return the fraction of distinct n-grams over all texts (Li et al. 2016)."""
    counts = Counter(gram for text in texts for gram in ngrams(text, size))
    return len(counts) / counts.total() if counts else None


def repetition_rate(text: WordSequence, size: int = REPEAT_NGRAM) -> float:
    """Return the fraction of words in a repeated n-gram: "a b a b a b" has 0.67."""
    seen: set[Gram] = set()
    repeated = np.zeros(len(text), np.bool_)
    for index, gram in enumerate(ngrams(text, size)):
        if gram in seen:
            repeated[index : index + size] = True
        seen.add(gram)
    return float(repeated.mean()) if len(text) else 0.0


def ends_in_loop(text: WordSequence) -> bool:
    """Return whether a text ends in a phrase of two or more words, repeated three times."""
    return any(
        all(text[-back] == text[-back - size] for back in range(1, (LOOP_REPEATS - 1) * size + 1))
        for size in range(2, len(text) // LOOP_REPEATS + 1)
    )


def self_bleu(texts: Sequence[WordSequence]) -> float | None:
    """Return the mean BLEU-4 of each text against all others (Zhu et al. 2018).

    The two highest counts of every n-gram are kept. One of them is the highest count among the
    other texts, so that all texts are scored exactly in one pass.
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
        # If the highest count is that of this text, the second is that of the others.
        hits = [
            sum(min(count, best[gram][count == best[gram][0]]) for gram, count in order.items())
            for order in own
        ]
        scores.append(bleu(hits, len(text), closest_length(lengths, len(text))))
    return mean(scores)


def bleu(hits: Sequence[int], length: int, reference: int) -> float:
    """Return BLEU from the matching n-grams of each order that is not longer than the text.

    As in sacrebleu with smooth_method="floor" and effective_order=True.
    """
    if not any(hits):
        return 0.0
    totals = [length - size + 1 for size in NGRAM_ORDERS if size <= length]
    precisions = [(n or SMOOTHING_FLOOR) / total for n, total in zip(hits, totals, strict=False)]
    brevity = min(0.0, 1 - reference / length)
    return math.exp(brevity + sum(map(math.log, precisions)) / len(precisions))


def closest_length(lengths: Sequence[int], length: int) -> int:
    """Return the closest other length to one of the sorted lengths; of two, the shorter.

    A second text of the same length is the closest.
    """
    index = bisect_left(lengths, length)
    others = [*lengths[max(index - 1, 0) : index], *lengths[index + 1 : index + 2]]
    return min(others, key=lambda other: (abs(other - length), other))


def perplexity(losses: Iterable[FloatArray]) -> float | None:
    """Return the perplexity per token from the losses of texts, without the end of each.

    A text that was generated up to a token limit has no end to predict.
    """
    nats, tokens = 0.0, 0
    for nll in losses:
        nats, tokens = nats + float(nll[:-1].sum()), tokens + len(nll) - 1
    return math.exp(nats / tokens) if tokens else None


def ngrams(text: WordSequence, size: int) -> Iterator[Gram]:
    """Yield every n-gram of words."""
    return (tuple(text[start : start + size]) for start in range(len(text) - size + 1))


def mean(values: Sequence[float]) -> float | None:
    """Return the mean; None without values."""
    return sum(values) / len(values) if values else None
