"""Keyed random numbers: every number is a function of seed, stream, epoch and index.

The generators are counter-based (Philox; Salmon et al. 2011), so that batch n of a run is computed
without the batches before it, and the number of workers or processes has no effect. The formulas
are part of the format of a run: changing them would change the batches of every seed.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from enum import IntEnum
from functools import lru_cache
from hashlib import blake2b
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.random.bit_generator import ISeedSequence

from kinfolk.errors import UserError


class Stream(IntEnum):
    """The purpose of random numbers; no two streams of a seed share a generator."""

    ORDER = 0  # of rows, one permutation per epoch
    EXAMPLE = 1  # masking and all other randomness of one example in one epoch
    SUBSAMPLE = 2  # rows of a labelled file that are kept
    SPLIT = 3  # rows of a labelled file that are held out, or used as few-shot examples
    SEGMENTS = 4  # lengths of rows that continue from batch to batch


class PhiloxKey(ISeedSequence):
    """The two words of a key, where numpy asks for the state of a seed.

    `Philox(key=...)` gives the same generator, and first reads entropy from the system for a seed
    that it does not use: 22 microseconds an example in place of 3.5.
    """

    def __init__(self, seed: int, counter: int) -> None:
        self.words = seed, counter

    def generate_state(self, n_words: int, dtype: object = np.uint64) -> npt.NDArray[np.uint64]:
        """Return the key."""
        assert n_words == len(self.words)
        return np.array(self.words, np.uint64)


INTEGERS = (int, np.integer)


class KeyedGenerator(np.random.Generator):
    """A generator with a `choice` that draws the same, without what numpy checks every time.

    Weights should be a tuple: their sums are computed once.
    """

    def choice(
        self,
        a: Any,
        size: Any = None,
        replace: bool = True,
        p: Any = None,
        axis: int = 0,
        shuffle: bool = True,
    ) -> Any:
        """Draw from `range(a)`, or from the elements of `a`."""
        if not replace or axis:
            return super().choice(a, size, replace, p, axis, shuffle)
        counts = isinstance(a, INTEGERS)
        number: Any
        if p is None:
            number = self.integers(a if counts else len(a), size=size)
        elif size is None:
            number = bisect_right(cumulative(tuple(p))[1], self.random())
        else:
            number = cumulative(tuple(p))[0].searchsorted(self.random(size), side="right")
        return number if counts else a[number]


@lru_cache(maxsize=64)
def cumulative(p: tuple[float, ...]) -> tuple[npt.NDArray[np.float64], Sequence[float]]:
    """Return the cumulative distribution of some weights, as an array and as a list."""
    sums = np.cumsum(p, dtype=np.float64)
    sums /= sums[-1]
    return sums, sums.tolist()


def keyed_generator(seed: int, counter: int) -> np.random.Generator:
    """Return the Philox generator of a key of two words."""
    key: Any = PhiloxKey(seed, counter)  # numpy's stubs know one class of such a sequence
    return KeyedGenerator(np.random.Philox(key))


def generator(seed: int, stream: Stream, epoch: int = 0, index: int = 0) -> np.random.Generator:
    """Return the generator for one use of random numbers in a run."""
    return keyed_generator(seed, key_counter(stream, epoch, index))


class ExampleGenerators:
    """The generators of the examples of a seed, one at a time: the next takes the place of this.

    They are one generator, whose key is set: a seventh of the time that another one takes.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.rng = keyed_generator(seed, 0)
        self.state: Any = self.rng.bit_generator.state  # before anything was drawn
        self.key = self.state["state"]["key"]

    def __reduce__(self) -> Any:
        return ExampleGenerators, (self.seed,)

    def __call__(self, epoch: int, index: int) -> np.random.Generator:
        """Return what `generator` returns for an example, until the next call."""
        self.key[1] = key_counter(Stream.EXAMPLE, epoch, index)
        self.rng.bit_generator.state = self.state
        return self.rng


def key_counter(stream: Stream, epoch: int, index: int) -> int:
    """Return the second word of a key."""
    match stream:
        case Stream.ORDER:
            assert 0 <= epoch < 1 << 29 and index == 0
            counter = epoch
        case Stream.EXAMPLE:
            assert epoch >= 0 and 0 <= index < 1 << 40
            counter = ((epoch + 1) << 40) + index
        case Stream.SUBSAMPLE:
            assert epoch == index == 0
            counter = 1 << 29
        case Stream.SPLIT:
            assert epoch == index == 0
            counter = 1 << 30
        case Stream.SEGMENTS:
            assert 0 <= epoch < 1 << 29 and index == 0
            counter = (1 << 31) + epoch
    return counter


def uniforms(seed: int, indices: Iterable[int], count: int) -> npt.NDArray[np.float64]:
    """Return `count` numbers from [0, 1) for each index: (indices, count)."""
    if not 0 <= seed < 2**64:
        raise UserError(f"seed={seed}: it must be from 0 to 2^64 - 1")
    return np.stack([keyed_generator(seed, index).random(count) for index in indices])


def derive_seed(*numbers: int) -> int:
    """Combine several numbers to one seed, as in SplitMix64 (Steele et al. 2014)."""
    state = 0
    for number in numbers:
        state = (state + number + 0x9E3779B97F4A7C15) % 2**64
        state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        state = (state ^ (state >> 27)) * 0x94D049BB133111EB % 2**64
        state ^= state >> 31
    return state


def corpus_seed(seed: int, corpus: int) -> int:
    """Return the seed of one of several corpora; the first has the seed of the run."""
    if corpus == 0:
        return seed
    return int(np.random.SeedSequence([seed, corpus]).generate_state(1, np.uint64)[0] >> 1)


def text_uniform(text: str) -> float:
    """Return a number from [0, 1] that depends only on a text, for the held-out split."""
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big") / 2**64


def sequential(seed: int) -> np.random.Generator:
    """Return a sequential generator, for resampling."""
    return np.random.default_rng(seed)
