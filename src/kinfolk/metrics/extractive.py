"""Oracle labels of extractive summarization: the sentences that a greedy search by ROUGE chooses.

As in Nallapati et al. (2017): the sentence that raises the sum of the F1 of ROUGE-1 and ROUGE-2 the
most is added, until none raises it. N-grams do not cross the ends of sentences.
"""

import re
from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from kinfolk.metrics.diversity import ngrams
from kinfolk.metrics.text import as_sequence, rouge_pattern

OVERLAP_ORDERS = (1, 2)  # of the n-grams
MIN_GAIN = 1e-9  # rounding errors are no improvement


def greedy_oracle(
    sentences: Sequence[str],
    references: str | Sequence[str],
    max_sentences: int,
    pattern: re.Pattern[str] | None = None,
) -> tuple[int, ...]:
    """Return the indices of at most this many sentences, increasing; of several references, those
    for the reference that fits best. No sentence is chosen where none has a word of a reference.
    `pattern` is that of the words, by default of the language of the references.
    """
    each = as_sequence(references)
    pattern = pattern or rouge_pattern([each])
    words = [pattern.findall(sentence.lower()) for sentence in sentences]
    searched = (greedy_search(words, pattern.findall(text.lower()), max_sentences) for text in each)
    return max(searched, key=lambda found: found[0])[1]


def greedy_search(
    sentences: Sequence[Sequence[str]], reference: Sequence[str], max_sentences: int
) -> tuple[float, tuple[int, ...]]:
    """Return the best sum of F1 and the indices of its sentences, both of lists of words."""
    tables = [overlap_counts(sentences, reference, n) for n in OVERLAP_ORDERS]
    left = list(range(len(sentences)))
    chosen: list[int] = []
    best = 0.0
    while left and len(chosen) < max_sentences:
        scores = np.zeros(len(left))
        for counts, sizes, gold in tables:
            hits = np.minimum(counts[chosen].sum(0) + counts[left], gold).sum(1)
            predicted = sizes[chosen].sum() + sizes[left]
            # F1 is twice the hits over the sum of both sizes.
            scores += 2 * hits / np.maximum(predicted + gold.sum(), 1)
        index = int(scores.argmax())
        if scores[index] <= best + MIN_GAIN:
            break
        best = float(scores[index])
        chosen.append(left.pop(index))
    return best, tuple(sorted(chosen))


def overlap_counts(
    sentences: Sequence[Sequence[str]], reference: Sequence[str], n: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return how often each n-gram of the reference is in each sentence, (sentences, n-grams), the
    number of n-grams of each sentence, and how often each is in the reference.
    """
    gold = Counter(ngrams(reference, n))
    columns = {ngram: column for column, ngram in enumerate(gold)}
    counts = np.zeros((len(sentences), len(gold)), np.int64)
    sizes = np.zeros(len(sentences), np.int64)
    for row, sentence in enumerate(sentences):
        for ngram in ngrams(sentence, n):
            sizes[row] += 1
            if ngram in columns:
                counts[row, columns[ngram]] += 1
    return counts, sizes, np.array([*gold.values()], np.int64)
