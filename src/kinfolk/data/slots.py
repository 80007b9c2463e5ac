"""Short words of ASCII and their tokens, found all at once by their bytes as two numbers."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kinfolk.data.shards import IntArray
from kinfolk.data.stretches import Bytes

TABLE_SIZE = 1 << 19  # of 24 bytes
POOL_TOKENS = 1 << 20  # tokens, of 4 bytes
MAX_KEY_BYTES = 16  # characters

_MASKS = np.array([(1 << 8 * size) - 1 for size in range(9)], np.uint64)
# Odd numbers with half their bits set: the highest bits of a product hang on all of a word.
_MIX = np.array([0x9E3779B97F4A7C15, 0xD6E8FEB86659FD93], np.uint64)


@dataclass(frozen=True)
class WordKeys:
    """Words as numbers: their first eight bytes and the next; 0 and 0 where a word has none."""

    low: npt.NDArray[np.uint64]
    high: npt.NDArray[np.uint64]

    def __getitem__(self, which: IntArray) -> "WordKeys":
        return WordKeys(self.low[which], self.high[which])

    def slots(self) -> IntArray:
        """Return the one slot where each word may lie."""
        mixed = (self.low ^ self.high * _MIX[0]) * _MIX[1]
        slots: IntArray = (mixed >> np.uint64(65 - TABLE_SIZE.bit_length())).astype(np.int64)
        return slots


def keys(characters: Bytes, starts: IntArray, lengths: IntArray) -> WordKeys:
    """Read words as numbers, those that are short."""
    padded = np.concatenate([characters, np.zeros(MAX_KEY_BYTES, np.uint8)])
    eights = np.ndarray(len(padded) - 7, "<u8", padded.data, strides=(1,))
    sizes = np.where(lengths <= MAX_KEY_BYTES, lengths, 0)
    low = eights[starts] & _MASKS[np.minimum(sizes, 8)]
    return WordKeys(low, eights[starts + 8] & _MASKS[np.maximum(sizes - 8, 0)])


class WordTable:
    """Tokens by words. Who comes first has the slot, and the common words come first."""

    def __init__(self) -> None:
        self._low, self._high = np.zeros(TABLE_SIZE, np.uint64), np.zeros(TABLE_SIZE, np.uint64)
        self._places = np.zeros(
            TABLE_SIZE, np.int64
        )  # in the pool, above the 8 bits of their number
        self._pool = np.zeros(POOL_TOKENS, np.uint32)
        self._used = 0

    def find(self, keys: WordKeys) -> tuple[IntArray, IntArray]:
        """Return where the tokens of each word begin and how many they are: -1 where not known."""
        slots = keys.slots()
        known = (self._low[slots] == keys.low) & (self._high[slots] == keys.high) & (keys.low > 0)
        indices = np.where(known, self._places[slots], -1)
        return indices >> 8, np.where(known, indices & 0xFF, -1)

    def tokens(self, indices: IntArray, sizes: IntArray) -> npt.NDArray[np.uint32]:
        """Return the tokens of words, end to end; those of words that are not known are any."""
        before = np.cumsum(sizes) - sizes
        return self._pool.take(
            np.repeat(indices - before, sizes) + np.arange(sizes.sum()), mode="clip"
        )

    def free(self, keys: WordKeys) -> npt.NDArray[np.bool_]:
        """Tell which words can be added."""
        free: npt.NDArray[np.bool_] = (keys.low > 0) & (self._low[keys.slots()] == 0)
        return free

    def add(self, keys: WordKeys, found: Sequence[bytes]) -> bool:
        """Add words, or tell that there is no room for them."""
        tokens = np.frombuffer(b"".join(found), np.uint32)
        end = self._used + len(tokens)
        if end > POOL_TOKENS:
            return False
        self._pool[self._used : end] = tokens
        sizes = np.fromiter(map(len, found), np.int64, len(found)) // 4
        slots = keys.slots()
        self._low[slots], self._high[slots] = keys.low, keys.high
        self._places[slots] = (self._used + np.cumsum(sizes) - sizes) << 8 | sizes
        self._used = end
        return True

    def clear(self) -> None:
        """Forget all words."""
        self._low[:] = 0
        self._used = 0
