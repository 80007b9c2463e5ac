"""Packing: several texts in a row of fixed length, told apart by their document number."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kinfolk.attention_mask import PADDING_ID
from kinfolk.batch import IGNORE_INDEX, TokenTargets
from kinfolk.data.chunks import IntArray

MAX_CANDIDATES = 16  # rows looked at before a new one is opened, where several streams must fit


@dataclass(frozen=True)
class Packing:
    """Which pieces lie in which row."""

    chunks: IntArray
    row_starts: IntArray  # row r holds pieces[bounds[r] : bounds[r + 1]]

    def __len__(self) -> int:
        return len(self.row_starts) - 1

    def __getitem__(self, row: int) -> IntArray:
        return self.chunks[self.row_starts[row] : self.row_starts[row + 1]]


def pack(sizes: IntArray, capacity: Sequence[int]) -> Packing:
    """Put pieces into as few rows as best fit manages, longest first.

    `sizes` is (pieces, streams): an encoder-decoder's examples take room in two rows at once, which
    are filled together. Where a row has just room enough for a piece, that is where it goes.
    """
    assert (sizes <= np.array(capacity)).all(), "a piece is longer than a row"
    row_of = np.empty(len(sizes), np.int64)
    left: list[list[int]] = []  # the room left in each row, by stream
    by_room: list[list[int]] = [[] for _ in range(capacity[0] + 1)]
    rooms = 0  # bit r is set where some row has room r left in its first stream
    streams = range(len(capacity))
    table = sizes.tolist()
    for chunk in np.argsort(-sizes[:, 0], kind="stable").tolist():
        size = table[chunk]
        row, tries, least = -1, 0, size[0]
        while rooms >> least and tries < MAX_CANDIDATES:
            fitting = rooms >> least
            room = least + (fitting & -fitting).bit_length() - 1
            candidate = by_room[room][-1]
            if all(left[candidate][s] >= size[s] for s in streams):
                row = candidate
                by_room[room].pop()
                if not by_room[room]:
                    rooms &= ~(1 << room)
                break
            tries, least = tries + 1, room + 1
        if row < 0:
            row = len(left)
            left.append(list(capacity))
        row_of[chunk] = row
        for s in streams:
            left[row][s] -= size[s]
        room = left[row][0]
        by_room[room].append(row)
        rooms |= 1 << room
    chunks = np.argsort(row_of, kind="stable")
    bounds = np.concatenate([[0], np.cumsum(np.bincount(row_of, minlength=len(left)))])
    return Packing(chunks, bounds)


def pad_rows(rows: Sequence[Sequence[IntArray]], length: int, fill: int) -> Tensor:
    """Lay arrays side by side in rows: (rows, length), `fill` where nothing lies."""
    page = np.full((len(rows), length), fill, np.int64)
    for line, arrays in zip(page, rows, strict=True):
        joined = np.concatenate(arrays)
        line[: len(joined)] = joined
    return torch.from_numpy(page)


def document_and_position_ids(sizes: Sequence[Sequence[int]], length: int) -> tuple[Tensor, Tensor]:
    """Number the documents in each row, and the places in each document: two (rows, length)."""
    document = np.full((len(sizes), length), PADDING_ID, np.int32)
    position_ids = np.zeros((len(sizes), length), np.int64)
    for row, lengths in enumerate(sizes):
        total = sum(lengths)
        document[row, :total] = np.repeat(np.arange(len(lengths)), lengths)
        firsts = np.cumsum(lengths) - lengths
        position_ids[row, :total] = np.arange(total) - np.repeat(firsts, lengths)
    return torch.from_numpy(document), torch.from_numpy(position_ids)


def firsts(sizes: Sequence[Sequence[int]], length: int) -> NDArray[np.int64]:
    """Return where each document starts, counted through the flattened rows."""
    return np.concatenate(
        [row * length + np.cumsum([0, *lengths[:-1]]) for row, lengths in enumerate(sizes)]
    )


def select_targets(labels: Tensor) -> tuple[TokenTargets, int]:
    """Keep only the slots that predict, and say how many there are.

    Empty predictions fill up to a multiple of a 64th of the page, so that the number of
    predictions, and with it every shape, is the same from step to step.
    """
    flat = labels.flatten()
    at = torch.nonzero(flat != IGNORE_INDEX)[:, 0]
    grain = max(1, flat.numel() // 64)
    empty = -len(at) % grain
    ids = torch.cat([flat[at], flat.new_full((empty,), IGNORE_INDEX)])
    return TokenTargets(ids, torch.cat([at, at.new_zeros(empty)])), len(flat[flat != IGNORE_INDEX])
