"""The longest parts of texts that another text has too."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kinfolk.metrics.copies import longest_copies

TOKENS = st.lists(st.integers(0, 2), max_size=12)


def brute_force(text: list[int], known: list[int]) -> int:
    parts = {tuple(known[a:b]) for a in range(len(known) + 1) for b in range(a, len(known) + 1)} | {
        ()
    }
    return max(
        b - a
        for a in range(len(text) + 1)
        for b in range(a, len(text) + 1)
        if tuple(text[a:b]) in parts
    )


@given(texts=st.lists(TOKENS, max_size=4), known=TOKENS)
def test_the_longest_copies_are_those_of_a_search(texts: list[list[int]], known: list[int]) -> None:
    arrays = [np.array(text, np.int64) for text in texts]
    found = longest_copies(arrays, np.array(known, np.int64))
    assert found.tolist() == [brute_force(text, known) for text in texts]


def test_a_copy_does_not_continue_into_the_next_text() -> None:
    texts = [np.array([1, 2]), np.array([3, 4])]
    assert longest_copies(texts, np.array([1, 2, 3, 4])).tolist() == [2, 2]
