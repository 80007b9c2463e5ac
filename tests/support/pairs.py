"""Pairs under the contracts: any text becomes pairs that fit the shortest row."""

from collections import Counter
from typing import Any

import numpy as np

from kinfolk.data.chunks import ChunkIndex, InMemoryDocuments, TokenizedDocuments
from kinfolk.data.parallel_text import pair_lengths
from kinfolk.objectives.seq2seq import Seq2Seq

LONGEST = 14  # tokens of a pair: two sides with their ends fit a row of eight


def halves(text: TokenizedDocuments) -> InMemoryDocuments:
    """Cut every document into pairs: the same stream, parted more often."""
    found = []
    for start, stop in zip(text.starts, text.starts[1:], strict=False):
        ids = text.ids(int(start), int(stop)).tolist()
        while ids:
            # One token alone would be no pair.
            size = LONGEST - 1 if len(ids) == LONGEST + 1 else min(len(ids), LONGEST)
            found.append([ids[: size // 2], ids[size // 2 : size]])
            ids = ids[size:]
    return InMemoryDocuments.from_lists(found)


class Paired(Seq2Seq):
    """Learn by pairs from any text."""

    def chunks(self, documents: TokenizedDocuments, /) -> ChunkIndex:
        return super().chunks(halves(documents))


def contracted(kind: type[Any]) -> type[Any]:
    """Return what stands for a way of learning under the contracts: itself, but for pairs."""
    return Paired if kind is Seq2Seq else kind


def targets(text: TokenizedDocuments) -> Counter[int]:
    """Count the tokens of all targets."""
    pairs = halves(text)
    starts = zip(
        pairs.starts.tolist(), pairs.starts[1:].tolist(), pair_lengths(pairs), strict=False
    )
    ids = [pairs.ids(start + int(size[0]), stop) for start, stop, size in starts]
    return Counter(np.concatenate(ids).tolist())
