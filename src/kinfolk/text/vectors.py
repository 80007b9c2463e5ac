"""Word vectors from a text file, for the vocabulary of a tokenizer: GloVe, word2vec, fastText.

    the 0.418 0.24968 -0.41242      a word and its numbers on each line
    400000 300                      word2vec and fastText begin with the counts of words and numbers

A token has the vector of the word that it spells, or else of that word in lower case.
"""

import bz2
import gzip
import lzma
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from kinfolk.errors import UserError
from kinfolk.files import cached_sha256
from kinfolk.text.tokenizer import Tokenizer

_OPEN: Mapping[str, Any] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}


@dataclass(frozen=True, eq=False)
class WordVectors:
    """The vectors of the tokens whose words a file has."""

    ids: npt.NDArray[np.int64]  # (found,): token ids, increasing
    values: npt.NDArray[np.float32]  # (found, size)
    words: int  # tokens of the vocabulary that are no special tokens

    @property
    def summary(self) -> str:
        """How many words were found."""
        return f"vectors of {len(self.ids):,} of {self.words:,} words"


def read_vectors(path: Path | str, tokenizer: Tokenizer) -> WordVectors:
    """Read the vectors of the words of a tokenizer; a file without any of them is refused."""
    path = Path(path)
    words = token_words(tokenizer)
    ids_of: dict[str, list[int]] = {}
    for id, word in words.items():
        for spelling in {word, word.lower()}:
            ids_of.setdefault(spelling, []).append(id)
    found: dict[int, npt.NDArray[np.float32]] = {}
    for number, word, numbers in _lines(path):
        for id in ids_of.get(word, ()):
            if id not in found or words[id] == word:
                found[id] = _parse(numbers, path, number)
    if not found:
        raise UserError(
            f"{path} has vectors of none of the {len(words):,} words of the tokenizer: use vectors "
            "of its language, and a tokenizer of words (kinfolk tokenizer train --kind word)"
        )
    ids = sorted(found)
    return WordVectors(np.array(ids), np.stack([found[id] for id in ids]), len(words))


def token_words(tokenizer: Tokenizer) -> dict[int, str]:
    """Return the word that each token spells; special tokens and WordPiece's "##..." have none."""
    special = tokenizer.special_tokens.ids
    ordinary = (id for id in range(tokenizer.vocab_size) if id not in special)
    spelled = {id: tokenizer.decode([id]).strip() for id in ordinary}
    return {
        id: word
        for id, word in spelled.items()
        if word and not tokenizer.id_to_token(id).startswith("##")
    }


def vector_size(path: Path | str) -> int:
    """Return the number of numbers of each vector of a file."""
    line, _, numbers = next(_lines(Path(path)))
    return len(_parse(numbers, Path(path), line))


def vectors_fingerprint(path: Path | str) -> tuple[str, str]:
    """Return the path of a file and the hash of its content."""
    check_vectors_file(Path(path))
    return str(path), cached_sha256(Path(path))


def check_vectors_file(path: Path) -> None:
    """Refuse a file that does not exist."""
    if not path.is_file():
        raise UserError(f"--vectors {path}: no such file; give a text file of word vectors")


def _lines(path: Path) -> Iterator[tuple[int, str, list[str]]]:
    """Yield the number, the word and the numbers of each line; all have equally many numbers."""
    with _open(path) as file:
        size = 0
        for number, line in enumerate(file, start=1):
            fields = line.split()
            if number == 1 and len(fields) == 2 and all(field.isdigit() for field in fields):
                continue
            size = size or len(fields) - 1
            if size < 1 or len(fields) <= size:
                raise UserError(
                    f"line {number} of {path} has {max(len(fields) - 1, 0)} numbers after its word"
                    + (f", but lines before it have {size}" if size > 0 else "")
                    + ": give a text file with a word and its vector on each line"
                )
            # Some words of published files contain spaces.
            yield number, " ".join(fields[:-size]), fields[-size:]
        if not size:
            raise UserError(f"{path} is empty: give a file with a word and its vector on each line")


def _parse(numbers: list[str], path: Path, line: int) -> npt.NDArray[np.float32]:
    try:
        values = np.array(numbers, np.float32)
    except ValueError:
        values = np.array([np.nan], np.float32)
    if not np.isfinite(values).all():
        raise UserError(
            f"line {line} of {path} has a value that is not a finite number: correct or remove it"
        )
    return values


@contextmanager
def _open(path: Path) -> Iterator[IO[str]]:
    """Open a text file, which may be compressed; invalid UTF-8 belongs to words nobody looks up."""
    check_vectors_file(path)
    try:
        with _OPEN.get(path.suffix.lower(), open)(
            path, "rt", encoding="utf-8", errors="replace", newline="\n"
        ) as file:
            yield file
    except (gzip.BadGzipFile, lzma.LZMAError, zlib.error, EOFError) as error:
        raise UserError(f"{path} is corrupt or truncated ({error}): download it again") from error
