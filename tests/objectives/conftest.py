"""A vocabulary of words that can be read in a test."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from kinfolk.data.chunks import Chunk, InMemoryDocuments
from kinfolk.text.tokenizer import SpecialTokens

MARKS = ("<p>", "<u>", "<s>", "</s>", "[C]", "[S]", "[M]", "<x>", "<y>", "<z>")
WORDS = ("the", "cat", "sat", "down", "on", "mat", "Thank", "you", "for", "inviting", "me")
WORDS = (*WORDS, "to", "your", "party", "last", "week")


@pytest.fixture(scope="session")
def special_tokens() -> SpecialTokens:
    return SpecialTokens(pad=0, unk=1, bos=2, eos=3, cls=4, sep=5, mask=6, sentinels=(7, 8, 9))


@pytest.fixture(scope="session")
def ids() -> Callable[[str], list[int]]:
    """Read words and marks; a dot between spaces is a label that is ignored."""
    known = {word: i for i, word in enumerate((*MARKS, *WORDS))} | {".": -100}
    return lambda text: [known[word] for word in text.split()]


@pytest.fixture(scope="session")
def chunk() -> Callable[[Sequence[int]], Chunk]:
    """Wrap ids as a whole document; its end is predicted too where one stands for that."""

    def wrap(ids: Sequence[int], *, extra: int = 0) -> Chunk:
        return Chunk(InMemoryDocuments.from_lists([[list(ids)]]), 0, 0, len(ids) + extra)

    return wrap


class Chosen:
    """Random numbers that were chosen by the test."""

    def __init__(self, choices: Sequence[Sequence[int]], dice: Sequence[float] = ()) -> None:
        self.choices = list(choices)
        self.dice = dice

    def choice(self, *_: object, **__: object) -> np.ndarray:
        return np.array(self.choices.pop(0), np.int64)

    def random(self, *_: object) -> object:
        return np.array(self.dice)


@pytest.fixture(scope="session")
def chosen() -> type[Chosen]:
    return Chosen
