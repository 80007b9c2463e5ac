"""Documents to ids, sentence by sentence; the ids are those of the whole text."""

import re
from collections.abc import Iterator, Sequence

import numpy as np

from kinfolk.data.writer import Encoded
from kinfolk.text import Tokenizer, boundaries

LONGEST = 1 << 20  # characters encoded at once: the library takes a hundred bytes a token
_LINE = re.compile(r"\n(?=\S)")


class Encoder:
    """Encode documents and count the tokens of each sentence."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        whole, first, second = (tokenizer.offsets(text)[0] for text in ("a\nb", "a\n", "b"))
        # Only some foreign tokenizers give a text other ids than its lines have.
        self._parts = whole == first + second

    def __call__(self, texts: Sequence[str]) -> Encoded:
        """Encode documents, each by itself."""
        ids: list[int] = []
        sentences: list[int] = []
        documents: list[int] = []
        for text in texts:
            before = len(sentences)
            for part in _parts(text) if self._parts else [text]:
                found, places = self._tokenizer.offsets(part)
                ids += found
                sentences += _lengths([start for start, _ in places], boundaries(part))
            documents.append(len(sentences) - before)
        return Encoded(
            np.array(ids, np.int64),
            np.array(sentences, np.int32),
            np.array(documents, np.int64),
            np.array([len(text.encode()) for text in texts], np.int64),
        )


def _lengths(starts: list[int], ends: list[int]) -> list[int]:
    """Count the tokens of each sentence; one that crosses an end belongs to the sentence before."""
    cuts = np.searchsorted(starts, ends, side="left")
    lengths: list[int] = np.diff(cuts, prepend=0).tolist()
    return [length for length in lengths if length]


def _parts(text: str) -> Iterator[str]:
    """Cut a very long text after the ends of lines, where sentences end and no token crosses."""
    start = 0
    while len(text) - start > LONGEST and (line := _LINE.search(text, start + LONGEST)):
        yield text[start : line.end()]
        start = line.end()
    yield text[start:]
