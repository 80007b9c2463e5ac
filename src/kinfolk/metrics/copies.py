"""The longest parts of texts that another text has too: memorized training text."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from kinfolk.metrics.baselines import Ids

MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)  # of a polynomial hash modulo 2^64


def longest_copies(texts: Sequence[Ids], known: Ids) -> NDArray[np.int64]:
    """Return the tokens of the longest part of each text that occurs in a known text.

    All n-grams of one size are compared at once by their hashes of 64 bits, for growing sizes, as
    long as one of the texts has a copy.
    """
    longest = np.zeros(len(texts), np.int64)
    tokens = np.concatenate([np.zeros(0, np.int64), *texts])
    owners = np.repeat(np.arange(len(texts)), [len(text) for text in texts])
    ends = np.cumsum([len(text) for text in texts])
    starts = np.arange(len(tokens))  # of n-grams that may be copies
    mixed, known_mixed = mix(tokens), mix(known)
    hashes, known_hashes = np.zeros_like(mixed), np.zeros(len(known) + 1, np.uint64)
    for size in range(1, len(known) + 1):
        fits = starts + size <= ends[owners[starts]]
        starts, hashes = starts[fits], hashes[fits]
        hashes = hashes * MULTIPLIER + mixed[starts + size - 1]
        known_hashes = known_hashes[:-1] * MULTIPLIER + known_mixed[size - 1 :]
        copied = occur(hashes, known_hashes)
        starts, hashes = starts[copied], hashes[copied]
        if not len(starts):
            break
        longest[owners[starts]] = size
    return longest


def mix(tokens: Ids) -> NDArray[np.uint64]:
    """Return a number of 64 bits for each token, as in SplitMix64 (Steele et al. 2014)."""
    state = (np.asarray(tokens).astype(np.uint64) + np.uint64(1)) * MULTIPLIER
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    return state ^ (state >> np.uint64(27))


def occur(values: NDArray[np.uint64], known: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Return which values occur among many known ones."""
    distinct, inverse = np.unique(values, return_inverse=True)
    if not len(distinct):
        return np.zeros(0, np.bool_)
    found = np.zeros(len(distinct), np.bool_)
    index = np.searchsorted(distinct, known).clip(max=len(distinct) - 1)
    found[index[distinct[index] == known]] = True
    return found[inverse]
