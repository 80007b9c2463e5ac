"""Documents to ids, sentence by sentence; the ids are those of the whole text."""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from kinfolk.data.lexicon import CachedWords, WordCache
from kinfolk.data.shards import IntArray
from kinfolk.data.writer import EncodedDocuments
from kinfolk.text import Tokenizer, sentence_ends

LONGEST = 1 << 18  # characters encoded at once: the library takes a hundred bytes a token
_LINE = re.compile(r"\n(?=\S)")


class DocumentEncoder:
    """Encode documents and count the tokens of each sentence.

    With `words`, the name of a segmenter, it also says which tokens begin a word.
    """

    def __init__(
        self, tokenizer: Tokenizer, *, words: str | None = None, type: npt.DTypeLike = np.int64
    ) -> None:
        self._lexicon = WordCache(tokenizer, words)
        self._marked, self._type = words is not None, type
        whole, first, second = (tokenizer.offsets(text)[0] for text in ("a\nb", "a\n", "b"))
        # Only some foreign tokenizers give a text other ids than its lines have.
        self._parts = whole == first + second

    def __call__(self, texts: Sequence[str]) -> EncodedDocuments:
        """Encode documents, each by itself."""
        parts = (
            (number, part)
            for number, text in enumerate(texts)
            for part in (_parts(text) if self._parts else [text])
        )
        found = [self._encode_group(group) for group in _groups(parts)] or [self._encode_group([])]
        ids, marks, lengths, owners = (
            np.concatenate(column) for column in zip(*found, strict=True)
        )
        return EncodedDocuments(
            ids,
            lengths,
            np.bincount(owners, minlength=len(texts)),
            np.array([len(text.encode()) for text in texts], np.int64),
            marks if self._marked else None,
        )

    def _encode_group(self, group: Sequence[tuple[int, str]]) -> tuple[npt.NDArray[Any], ...]:
        """Encode parts of documents: ids, marks, lengths of sentences and whose each of them is."""
        text = "".join(f"{part}\n" for _, part in group)
        stops = np.cumsum(np.array([len(part) + 1 for _, part in group], np.int64)) - 1
        words = self._lexicon.read(text, stops)
        ends: list[int] = []  # of sentences, in characters since the first part
        owners: list[int] = []
        for (number, part), stop in zip(group, stops.tolist(), strict=True):
            own = sentence_ends(part)
            ends += [stop - len(part) + end for end in own]
            owners += [number] * len(own)
        lengths = np.diff(
            self._sentence_token_ends(text, words, np.array(ends, np.int64)), prepend=0
        )
        filled = lengths > 0
        whose = np.array(owners, np.int64)[filled]
        ids = words.ids.astype(self._type)
        return ids, words.begins, lengths[filled].astype(np.int32), whose

    def _sentence_token_ends(self, text: str, words: CachedWords, ends: IntArray) -> IntArray:
        """Count the tokens before each end; one that crosses it belongs to the sentence before."""
        before = np.cumsum(words.tokens) - words.tokens
        at = np.searchsorted(words.starts, ends)
        cuts = before[at]
        crossed = np.flatnonzero(words.starts[at] != ends)
        for own in np.split(crossed, np.flatnonzero(np.diff(at[crossed])) + 1):
            for word in (at[own[:1]] - 1).tolist():
                start, end = words.starts[word : word + 2].tolist()
                starts = self._lexicon.starts(text[start:end])
                cuts[own] = before[word] + np.searchsorted(starts, ends[own] - start, side="left")
        return cuts


def _groups(parts: Iterable[tuple[int, str]]) -> Iterator[list[tuple[int, str]]]:
    """Gather parts to be encoded together."""
    group: list[tuple[int, str]] = []
    size = 0
    for part in parts:
        group.append(part)
        size += len(part[1])
        if size >= LONGEST:
            yield group
            group, size = [], 0
    if group:
        yield group


def _parts(text: str) -> Iterator[str]:
    """Cut a very long text after the ends of lines, where sentences end and no token crosses."""
    start = 0
    while len(text) - start > LONGEST and (line := _LINE.search(text, start + LONGEST)):
        yield text[start : line.end()]
        start = line.end()
    yield text[start:]
