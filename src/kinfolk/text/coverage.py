"""The text a tokenizer learns from: cut to bounded parts, and rid of its rarest characters."""

import json
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO

from kinfolk.errors import UserError

LONGEST = 8192  # characters given to a trainer at once
COVERAGE = 0.9995  # of all characters; the rarer ones are unknown (SentencePiece's default)


def cut(texts: Iterable[str]) -> Iterator[str]:
    """Give the texts in parts of bounded length, cut before white space where there is some."""
    empty = True
    for text in texts:
        empty = empty and not text.strip()
        start = 0
        while len(text) - start > LONGEST:
            limit = start + LONGEST
            space = max(text.rfind(" ", start + 1, limit), text.rfind("\n", start + 1, limit))
            stop = space if space > start else limit
            yield text[start:stop]
            start = stop
        yield text[start:]
    if empty:
        raise UserError("there is no text to learn a tokenizer from: give text with words in it")


@dataclass(frozen=True)
class Covered:
    """Texts on disk, read again as often as needed, with a space for each rare character."""

    file: IO[str]
    common: list[str]
    rare: dict[int, str]

    def alphabet(self, normalised: Callable[[str], str]) -> list[str]:
        """Return the common characters, as the normaliser leaves them."""
        return sorted({c for one in self.common for c in normalised(one) if not c.isspace()})

    def __iter__(self) -> Iterator[str]:
        self.file.seek(0)
        return (json.loads(line).translate(self.rare) for line in self.file)


@contextmanager
def covered(texts: Iterable[str]) -> Iterator[Covered]:
    """Read a stream once for its characters, and keep it on disk to be read for its pieces."""
    counts: Counter[str] = Counter()
    with tempfile.TemporaryFile("w+", encoding="utf-8") as file:
        for text in texts:
            counts.update(text)
            file.write(json.dumps(text) + "\n")
        common, rest = [], COVERAGE * counts.total()
        # Ties in the order of the characters, so that one text gives one alphabet.
        for character, count in sorted(counts.items(), key=lambda pair: (-pair[1], pair[0])):
            if rest > 0:
                common.append(character)
            rest -= count
        yield Covered(file, common, {ord(c): " " for c in counts.keys() - set(common)})
