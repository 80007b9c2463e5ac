"""Packing: which chunks or examples share a row of fixed length."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kinfolk.data.chunks import IntArray


@dataclass(frozen=True)
class Packing:
    """The assignment of chunks to rows."""

    chunks: IntArray
    row_starts: IntArray  # row r holds chunks[row_starts[r] : row_starts[r + 1]]

    def __len__(self) -> int:
        return len(self.row_starts) - 1

    def __getitem__(self, row: int) -> IntArray:
        return self.chunks[self.row_starts[row] : self.row_starts[row + 1]]


def pack(sizes: IntArray, capacity: Sequence[int]) -> Packing:
    """Pack chunks into few rows: best fit, largest first by the fuller stream.

    `sizes` is (chunks, streams) for one stream or two: an example of an encoder-decoder takes space
    in two rows, which are filled together. Open rows are looked up by the space left in both.
    """
    assert (sizes <= np.array(capacity)).all(), "a chunk is longer than a row"
    first, second = (*capacity, 0)[:2]  # one stream: the other has no tokens and no space
    lengths = [*sizes.T.tolist(), [0] * len(sizes)][:2]
    rows: dict[int, list[int]] = {}  # open rows by the space left: r * (second + 1) + s
    spaces = [0] * (first + 1)  # bit s of spaces[r]: some row has r left in stream 0 and s in 1
    levels = 0  # bit r: spaces[r] is not empty
    row_of, num_rows = [0] * len(sizes), 0
    for chunk in np.argsort(-(sizes / np.array(capacity)).max(1), kind="stable").tolist():
        a, b = lengths[0][chunk], lengths[1][chunk]
        r = a
        while fitting := levels >> r:
            r += (fitting & -fitting).bit_length() - 1
            if both := spaces[r] >> b:
                s = b + (both & -both).bit_length() - 1
                some = rows[r * (second + 1) + s]
                row = some.pop()
                if not some:
                    spaces[r] ^= 1 << s
                    if not spaces[r]:
                        levels ^= 1 << r
                break
            r += 1
        else:
            row, r, s, num_rows = num_rows, first, second, num_rows + 1
        row_of[chunk] = row
        r, s = r - a, s - b
        if r and (s or not second):
            rows.setdefault(r * (second + 1) + s, []).append(row)
            spaces[r] |= 1 << s
            levels |= 1 << r
    assigned = np.array(row_of, np.int64)
    bounds = np.concatenate([[0], np.cumsum(np.bincount(assigned, minlength=num_rows))])
    return Packing(np.argsort(assigned, kind="stable"), bounds)
