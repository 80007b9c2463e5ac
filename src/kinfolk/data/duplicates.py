"""Documents that were there before, word for word or nearly so."""

from functools import cache
from hashlib import blake2b
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from kinfolk.data.grams import hash_ngrams, words

Signature: TypeAlias = npt.NDArray[np.uint32]

LENGTH = 5  # words in a gram
JACCARD_THRESHOLD = 0.8  # the share of common grams from which documents are near-duplicates
NUM_PERM = 128  # values in a sketch: its estimate of the share is within 0.07 for 19 in 20 pairs
# Two sketches are compared if they agree in a whole band of 8: 95 % of pairs at 0.8, 6 % at 0.5.
BAND_ROWS = 8
PART = 1 << 12  # grams sketched together, with SKETCH values for each


def hash64(text: str) -> int:
    """Return 64 bits that stand for a text."""
    return int.from_bytes(blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest())


class ExactDeduplicator:
    """The marks of texts: about 100 bytes each."""

    def __init__(self) -> None:
        self._seen: set[int] = set()

    def seen(self, text: str) -> bool:
        """Tell whether the text was there before, and remember it; white space at ends is none."""
        before = len(self._seen)
        self._seen.add(hash64(text.strip()))
        return len(self._seen) == before


class MinHashDeduplicator:
    """The sketches of texts (MinHash, Broder 1997): about 2 kB each, whatever their length.

    A text that is much like an earlier one is not remembered. Deviation: of several texts with
    one band in common only the first is found by it, so that no look-up takes long.
    """

    def __init__(self) -> None:
        self._bands: dict[int, int] = {}
        self._sketches = np.empty((1024, NUM_PERM), dtype=np.uint32)
        self._texts = 0

    def seen(self, text: str) -> bool:
        """Tell whether a text much like this one was there before, and remember it if not."""
        mine = minhash_signature(text)
        if mine is None:
            return False
        bands = _bands(mine)
        alike = {self._bands[band] for band in bands if band in self._bands}
        if alike:
            shares = (self._sketches[list(alike)] == mine).mean(axis=1)
            if shares.max() >= JACCARD_THRESHOLD:
                return True
        if self._texts == len(self._sketches):
            self._sketches = np.concatenate([self._sketches, np.empty_like(self._sketches)])
        self._sketches[self._texts] = mine
        for band in bands:
            self._bands.setdefault(band, self._texts)
        self._texts += 1
        return False


def _bands(sketch: Signature) -> list[int]:
    """Return a number for each band of a sketch, another for the same values elsewhere."""
    pairs = sketch.view(np.uint64)
    bands = hash_ngrams(pairs, BAND_ROWS // 2)[:: BAND_ROWS // 2]
    found: list[int] = (bands + np.arange(len(bands), dtype=np.uint64)).tolist()
    return found


def minhash_signature(text: str) -> Signature | None:
    """Return values of which two texts share as many as of their grams; None without words."""
    found = words(text)[0]
    if not len(found):
        return None
    numbers = hash_ngrams(found, min(LENGTH, len(found))) >> np.uint64(32)
    minhash = _minhash()
    minhash.clear()
    for start in range(0, len(numbers), PART):
        minhash.update_batch(numbers[start : start + PART].tolist())
    values: Signature = minhash.hashvalues
    return values


@cache
def _minhash() -> Any:
    from datasketch import MinHash

    return MinHash(num_perm=NUM_PERM, seed=1, hashfunc=int, scheme="affine32")
