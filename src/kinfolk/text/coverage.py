"""The text a tokenizer learns from: cut to bounded parts, and rid of its rarest characters."""

import json
import re
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO

from kinfolk.errors import UserError
from kinfolk.text.sentences import SENTENCE_END_CHARS
from kinfolk.text.words import HAN

LONGEST = 8192  # characters given to a trainer at once
CHARACTER_COVERAGE = (
    0.9995  # of all characters; the rarer ones are unknown (SentencePiece's default)
)

# Text without spaces: nearly every run of it is new, and a trainer keeps each in memory.
_OTHERS = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff"  # Thai to Khmer, and kana
_GOLDEN = (5**0.5 - 1) / 2  # its multiples spread evenly, and fall in with no rhythm of a text
UNSPACED = re.compile(rf"[{_OTHERS}{HAN}]+|\S{{65,}}")
UNSPACED_BUT_CHINESE = re.compile(rf"[{_OTHERS}]+|[^\s{HAN}]{{65,}}")


def cut(texts: Iterable[str]) -> Iterator[str]:
    """Give the texts in parts of bounded length, cut before white space or after sentences."""
    empty = True
    for text in texts:
        empty = empty and not text.strip()
        start = 0
        while len(text) - start > LONGEST:
            stop = _stop(text, start, start + LONGEST)
            yield text[start:stop]
            start = stop
        yield text[start:]
    if empty:
        raise UserError("there is no text to learn a tokenizer from: give text with words in it")


def _stop(text: str, start: int, limit: int) -> int:
    space = max(text.rfind(" ", start + 1, limit), text.rfind("\n", start + 1, limit))
    if space > start:
        return space
    return max(text.rfind(mark, start, limit) for mark in SENTENCE_END_CHARS) + 1 or limit


@dataclass(frozen=True)
class SpooledTexts:
    """Texts on disk, read again as often as needed, with a space for each rare character."""

    file: IO[str]
    common: list[str]
    rare_characters: dict[int, str]
    stride: int  # one in so many parts is read

    def alphabet(self, normalised: Callable[[str], str]) -> list[str]:
        """Return the common characters, as the normaliser leaves them."""
        return sorted({c for one in self.common for c in normalised(one) if not c.isspace()})

    def __iter__(self) -> Iterator[str]:
        self.file.seek(0)
        for number, line in enumerate(self.file):
            if number * _GOLDEN % 1 < 1 / self.stride:
                yield json.loads(line).translate(self.rare_characters)


@contextmanager
def spool_texts(
    texts: Iterable[str], unspaced: re.Pattern[str], most: int, *, share: float = CHARACTER_COVERAGE
) -> Iterator[SpooledTexts]:
    """Read a stream once for its characters, and keep it on disk to be read for its pieces.

    Where it has more than `most` characters of `unspaced` text, one in two, three ... parts is
    read, the same in every run, so that the memory of a trainer stays in bounds.
    """
    counts: Counter[str] = Counter()
    runs = 0
    with tempfile.TemporaryFile("w+", encoding="utf-8") as file:
        for text in texts:
            runs += sum(map(len, unspaced.findall(text)))
            if share < 1:
                counts.update(text)
            file.write(json.dumps(text, ensure_ascii=False) + "\n")
        step = max(1, -(-runs // most))
        if step > 1:
            warnings.warn(
                f"the text has {runs:,} characters without spaces between words, and memory is "
                f"kept for {most:,}: the tokenizer learns from one part in {step} of it",
                stacklevel=3,
            )
        common, rest = [], share * counts.total()
        # Ties in the order of the characters, so that one text gives one alphabet.
        for character, count in sorted(counts.items(), key=lambda pair: (-pair[1], pair[0])):
            if rest > 0:
                common.append(character)
            rest -= count
        yield SpooledTexts(file, common, {ord(c): " " for c in counts.keys() - set(common)}, step)
