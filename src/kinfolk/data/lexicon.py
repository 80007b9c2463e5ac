"""Words whose ids are known: most words of a text have been seen before, and are looked up.

A word, here, is a stretch that has the same ids wherever it stands: " sat" in "The cat sat."
"""

import re
from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import compress
from typing import Any

import numpy as np
import numpy.typing as npt

from kinfolk.data.shards import IntArray
from kinfolk.data.slots import WordKeys, WordTable, keys
from kinfolk.data.stretches import ODD, STOP, ascii_codes, char_classes, plain, starts
from kinfolk.text import Tokenizer
from kinfolk.text.words import tokens_starting_words, word_segmenter

KNOWN = 1 << 16  # words outside the slots; they take some 10 MB
MAX_CACHED_CHARS = 48  # characters; what is longer is hardly seen again
WORD_START_BIT = 1 << 31  # the bit of a token that begins a word, beside its id


@dataclass(frozen=True)
class PreTokenizerRule:
    """How a sort of tokenizer cuts a word of ASCII, and what its model sees of the pieces."""

    pattern: re.Pattern[str]
    space: str  # in place of the one before a word
    lower: bool = False


BYTE_LEVEL_PATTERN = re.compile(
    r"'(?:[stmd]|re|ve|ll)|Ġ?(?:[A-Za-z]+|[0-9]+|[^ĠA-Za-z0-9]+)|Ġ"
)  # as GPT-2
BERT = re.compile(r"[A-Za-z0-9]+|[^A-Za-z0-9]")


@dataclass(frozen=True)
class CachedWords:
    """The words of a text, and their tokens end to end."""

    starts: IntArray  # of words, in characters
    tokens: IntArray  # in each word
    tagged_ids: npt.NDArray[np.uint32]  # the ids, with the highest bit set where a word begins

    @property
    def ids(self) -> npt.NDArray[np.uint32]:
        return self.tagged_ids & np.uint32(WORD_START_BIT - 1)

    @property
    def begins(self) -> npt.NDArray[np.bool_]:
        return self.tagged_ids >= WORD_START_BIT


class WordCache:
    """The ids of words. Those that are met are learned, and all forgotten once they are many."""

    def __init__(self, tokenizer: Tokenizer, words: str | None = None) -> None:
        self._tokenizer = tokenizer
        self._segment = None if words is None else word_segmenter(words)
        self._way = _pretokenizer_rule(tokenizer.to_dict)
        self._model = tokenizer.model
        self._slots = WordTable()
        self._others: dict[str, bytes] = {}  # four bytes a token, as `Words.both`
        self._places: dict[str, list[int]] = {}  # of the tokens in long words of the last text

    def read(self, text: str, stops: IntArray) -> CachedWords:
        """Find the words of several texts, each with a character behind it that is not read."""
        seen = ascii_codes(text)
        kinds = char_classes(seen, stops)
        if self._way is None:
            kinds[kinds != STOP] = ODD
        first = starts(kinds, stops)
        lengths = np.diff(first, append=len(text))
        packed = keys(seen, first, np.where(plain(kinds, first), lengths, 0))
        indices, tokens = self._slots.find(packed)
        tokens[np.searchsorted(first, stops)] = 0
        new = np.flatnonzero(tokens < 0)
        spans = zip(first[new].tolist(), (first + lengths)[new].tolist(), strict=True)
        words = [text[start:end] for start, end in spans]
        once = dict(zip(words, new.tolist(), strict=True))  # one place where each stands
        found = self._spelled(once)
        spelled = [found[word] for word in words]
        tokens[new] = np.fromiter(map(len, spelled), np.int64, len(new)) // 4
        both = self._slots.tokens(indices, tokens)
        both[np.repeat(indices < 0, tokens)] = np.frombuffer(b"".join(spelled), np.uint32)
        self._insert(found, packed[np.array(list(once.values()), np.int64)])
        return CachedWords(first, tokens, both)

    def _spelled(self, words: Iterable[str]) -> dict[str, bytes]:
        """Look words up that are in no slot, or spell them."""
        self._places.clear()
        return {word: self._others.get(word) or self._encode_word(word) for word in words}

    def _insert(self, found: Mapping[str, bytes], packed: WordKeys) -> None:
        """Remember words, in the slots if they can be."""
        free = self._slots.free(packed)
        kept = list(compress(found.values(), free.tolist()))
        others = compress(found.items(), (~free).tolist())
        self._others.update((word, ids) for word, ids in others if len(word) <= MAX_CACHED_CHARS)
        if not self._slots.add(packed[np.flatnonzero(free)], kept) or len(self._others) > KNOWN:
            self._slots.clear()
            self._others.clear()

    def _encode_word(self, word: str) -> bytes:
        plain = word.isascii() and word.isprintable() and " " not in word[1:]
        if plain and self._way is not None and self._segment is None:
            return self._encode_ascii_word(word, self._way)
        ids, indices = self._tokenizer.offsets(word)
        if len(word) > MAX_CACHED_CHARS:
            self._places[word] = [start for start, _ in indices]
        if self._segment is None:
            return array("I", ids).tobytes()
        marks = tokens_starting_words(self._segment(word), indices).astype(np.uint32) * np.uint32(
            WORD_START_BIT
        )
        return (np.array(ids, np.uint32) | marks).tobytes()

    def _encode_ascii_word(self, word: str, way: PreTokenizerRule) -> bytes:
        """Give the pieces of a plain word straight to the model: it takes a third of the time."""
        seen = (word.lower() if way.lower else word).replace(" ", way.space)
        chunks = (seen,) if seen.isalpha() else way.pattern.findall(seen)
        tokenize = self._model.tokenize
        return array("I", [token.id for chunk in chunks for token in tokenize(chunk)]).tobytes()

    def starts(self, word: str) -> list[int]:
        """Return where each token of a word begins, in characters."""
        kept = self._places.get(word)
        return [start for start, _ in self._tokenizer.offsets(word)[1]] if kept is None else kept


def _pretokenizer_rule(state: Mapping[str, Any]) -> PreTokenizerRule | None:
    """Return how to cut text into words of their own for this tokenizer; None where unknown."""
    normal, cut, added = state["normalizer"], state["pre_tokenizer"] or {}, state["added_tokens"]
    # Such a token may stand across two words; special ones are plain text here.
    if not all(t["special"] and t["content"].split() == [t["content"]] for t in added):
        return None
    if state["model"].get("dropout"):
        return None
    match cut.get("type"), (normal or {}).get("type"):
        case "ByteLevel", None | "Lowercase":
            if cut["use_regex"] and not cut["add_prefix_space"]:
                return PreTokenizerRule(BYTE_LEVEL_PATTERN, "Ġ", lower=normal is not None)
        case "BertPreTokenizer", None | "BertNormalizer":
            return PreTokenizerRule(BERT, "", lower=normal is not None and normal["lowercase"])
    return None
