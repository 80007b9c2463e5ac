"""Documents of numbered tokens, from which a test can tell how a sentence pair was made."""

from typing import Any

import numpy as np

from kinfolk.batch import IGNORE_INDEX
from kinfolk.data.chunks import InMemoryDocuments
from kinfolk.objectives.nsp import NSP
from kinfolk.rng import Stream, generator

TENS = range(20, 80, 10)  # the first token of each document; no two documents share a token


def tens() -> InMemoryDocuments:
    """Return six documents of ten tokens in sentences of three, four and three."""
    return InMemoryDocuments.from_lists(
        [[[t, t + 1, t + 2], [t + 3, t + 4, t + 5, t + 6], [t + 7, t + 8, t + 9]] for t in TENS]
    )


def drawn(objective: NSP, count: int = 2000) -> list[tuple[int, Any]]:
    """Return examples of the documents by turns, each with the number of its document."""
    chunks = objective.chunks(tens())
    return [
        (i % 6, objective.example(chunks[i % 6], generator(0, Stream.EXAMPLE, 0, i)))
        for i in range(count)
    ]


def sides(example: Any) -> tuple[list[int], list[int]]:
    """Return the tokens of the first and of the second text, unmasked."""
    ids = np.where(example.labels == IGNORE_INDEX, example.input_ids, example.labels)
    ordinary = ids >= 20
    first, second = (ids[ordinary & (example.token_type_ids == s)].tolist() for s in (0, 1))
    return first, second
