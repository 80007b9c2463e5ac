"""Training text that holds what a model will be tested on.

After GPT-3 (Brown et al. 2020, appendix C): training text and test share 13 words in a row, in
lower case and without punctuation; of Chinese, 13 characters. Tests of fewer words find nothing.

Deviation: GPT-3 cut out the run with 200 characters on both sides and kept the rest; we drop the
document, which is what GPT-3 did at first. Deviation: GPT-3 let runs pass that are in more than
10 training documents; that asks for a second reading, and we drop those documents too.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from kinfolk.data.grams import Hashes, Places, hash_ngrams, normalized_words, words
from kinfolk.data.rows import FileProblems, RawDocument, rows
from kinfolk.errors import UserError

LENGTH = 13  # words in a gram


@dataclass(frozen=True)
class NgramMatch:
    """Words in a row that a document shares with a test."""

    ngram: str
    file: Path
    line: int


class ContaminationIndex:
    """The grams of test files: about 32 bytes each."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self.files = _files(paths)
        found = [part for number in range(len(self.files)) for part in self._grams(number)]
        if not found:
            raise UserError(
                f"nothing in {', '.join(map(str, paths))} has {LENGTH} words in a row: texts so "
                "short cannot be told from chance; leave these files out"
            )
        hashes, lines, numbers = (np.concatenate(part) for part in zip(*found, strict=True))
        self._hashes, first = np.unique(hashes, return_index=True)
        self._lines, self._numbers = lines[first], numbers[first]
        # Most grams of training text are told to be no test's by one look at their first bits.
        self._shift = np.uint64(64 - 3 - len(self._hashes).bit_length())
        self._prefilter = np.zeros(1 << (64 - int(self._shift)), dtype=bool)
        self._prefilter[self._hashes >> self._shift] = True

    def _grams(self, number: int) -> Iterator[tuple[Hashes, Places, Places]]:
        for row in rows(self.files[number], FileProblems()):
            hashes, indices = words(row.text)
            found = hash_ngrams(hashes, LENGTH)
            if len(found):
                lines = _lines(row, indices[: len(found)])
                yield found, lines, np.full(len(found), number, dtype=np.int32)

    def first_match(self, text: str) -> NgramMatch | None:
        """Return the first words in a row that the text shares with a test."""
        hashes, indices = words(text)
        found = hash_ngrams(hashes, LENGTH)
        likely = np.flatnonzero(self._prefilter[found >> self._shift])
        at = np.searchsorted(self._hashes, found[likely])
        at[at == len(self._hashes)] = 0
        (equal,) = np.nonzero(self._hashes[at] == found[likely])
        if not len(equal):
            return None
        start, known = likely[equal[0]], at[equal[0]]
        return NgramMatch(
            normalized_words(text, indices[start : start + LENGTH]),
            self.files[self._numbers[known]],
            int(self._lines[known]),
        )


def _files(paths: Sequence[Path]) -> list[Path]:
    found: list[Path] = []
    for path in map(Path, paths):
        if not path.exists():
            raise UserError(f"{path} does not exist: give files of test data")
        inside = sorted(path.rglob("[!.]*")) if path.is_dir() else [path]
        found += [file for file in inside if file.is_file()]
    return found


def _lines(row: RawDocument, indices: Places) -> Places:
    """Say on which line of the file each place of a text lies."""
    if not row.plain or "\n" not in row.text:
        return np.full(len(indices), row.line, dtype=np.int64)
    lengths = [len(line) + 1 for line in row.text.split("\n")]
    return row.line + np.searchsorted(np.cumsum(lengths), indices, side="right")
