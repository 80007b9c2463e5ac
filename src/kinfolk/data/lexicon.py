"""Words whose ids are known: most words of a text have been seen before, and are looked up.

A word, here, is a stretch that has the same ids wherever it stands: " sat" in "The cat sat."
"""

import re
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from kinfolk.text import Tokenizer
from kinfolk.text.words import begins, segmenter

KNOWN = 1 << 16  # words of a generation; two of them take some 25 MB
LONG = 48  # characters; what is longer is hardly seen again
BEGINS = 1 << 31  # the bit of a token that begins a word, beside its id

_SPACE = r"\t\n\r \xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
_POINT = r"!-&(-/:-@\[-`{-~"  # of ASCII; but the apostrophe, which may begin a piece: 's


def _cuts(space: str) -> re.Pattern[str]:
    """Cut before spaces, and where letters, digits and points meet; the last of spaces is apart."""
    run = f" ?+(?:[A-Za-z]++|[0-9]++)(?![^{space}{_POINT}])"
    points = f" ?+[{_POINT}]++(?=[A-Za-z0-9{space}])"
    return re.compile(f"{run}|{points}| ?+[^{space}]++|[{space}]+(?![^{space}])|[{space}]")


@dataclass(frozen=True)
class Way:
    """How text is cut into words for one sort of tokenizer, and what its model sees of them."""

    pattern: re.Pattern[str]
    space: str  # in place of the one before a word
    lower: bool = False


BYTES = _cuts(_SPACE + r"\x0b\x0c\x85")  # GPT-2's own pattern goes by Unicode's White_Space
BERT = _cuts(_SPACE)  # BERT takes these three for control characters, and removes them


class Lexicon(dict[str, bytes]):
    """The ids of words, four bytes a token with the highest bit set where a word begins.

    Words that are asked for are learned; two generations of those met lately are remembered.
    """

    def __init__(self, tokenizer: Tokenizer, words: str | None = None) -> None:
        super().__init__()
        self._tokenizer = tokenizer
        self._segment = None if words is None else segmenter(words)
        self._way = _way(tokenizer.state)
        self._model = tokenizer.model
        self._older: dict[str, bytes] = {}
        self._places: dict[str, list[int]] = {}  # of long words, since they were last forgotten

    def split(self, text: str) -> list[str]:
        """Cut a text into words; it is one itself where they cannot be told or would not come back.

        "The cat sat." gives ["The", " cat", " sat", "."] for byte-level BPE.
        """
        if self._way is None:
            return [text] if text else []
        words: list[str] = self._way.pattern.findall(text)
        # Chinese runs on without a space.
        return words if len(text) < LONG // 4 * len(words) or not text else [text]

    def __missing__(self, word: str) -> bytes:
        found = self._older.get(word) or self._spell(word)
        if len(word) <= LONG:
            self[word] = found
        return found

    def _spell(self, word: str) -> bytes:
        if self._way is not None and self._segment is None and word.isascii():
            bare = word.lstrip(" ")
            if bare.isalpha() or bare.isdecimal():
                return self._run(word, self._way)
        ids, places = self._tokenizer.offsets(word)
        if len(word) > LONG:
            self._places[word] = [start for start, _ in places]
        if self._segment is None:
            return array("I", ids).tobytes()
        marks = begins(self._segment(word), places).astype(np.uint32) * np.uint32(BEGINS)
        return (np.array(ids, np.uint32) | marks).tobytes()

    def _run(self, word: str, way: Way) -> bytes:
        """Give plain letters, or digits, straight to the model: it takes a third of the time."""
        seen = (word.lower() if way.lower else word).replace(" ", way.space)
        pieces = self._model.tokenize(seen)
        return array("I", [piece.id for piece in pieces]).tobytes()

    def starts(self, word: str) -> list[int]:
        """Return where each token of a word begins, in characters."""
        kept = self._places.get(word)
        return [start for start, _ in self._tokenizer.offsets(word)[1]] if kept is None else kept

    def forget(self) -> None:
        """Let the older generation go when the younger is grown, and long words at once."""
        self._places.clear()
        if len(self) > KNOWN:
            self._older = dict(self)
            self.clear()


def numbers(found: Sequence[bytes]) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.bool_]]:
    """Part what a lexicon gives into ids, and whether each begins a word."""
    both = np.frombuffer(b"".join(found), np.uint32)
    return both & np.uint32(BEGINS - 1), both >= BEGINS


def _way(state: Mapping[str, Any]) -> Way | None:
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
                return Way(BYTES, "Ġ", lower=normal is not None)
        case "BertPreTokenizer", None | "BertNormalizer":
            return Way(BERT, "", lower=normal is not None and normal["lowercase"])
    return None
