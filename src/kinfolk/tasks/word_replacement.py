"""Word replacement by a bilingual dictionary: a text in the words of another language.

    cat 猫          a word and its translation on each line, as in MUSE (Conneau et al. 2018)
    the cat sat     the 猫 sat

Words that the dictionary lacks stay as they are. Of several translations the first is used.
"""

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from kinfolk.data.files import decode_utf8, iter_lines, normalize_newlines, open_input
from kinfolk.errors import UserError
from kinfolk.files import cached_sha256
from kinfolk.tasks.rows import Article, detokenize

DICTIONARY_WORD = re.compile(r"\w+(?:['’]\w+)*")


def replace_words(text: str, dictionary: Mapping[str, str]) -> str:
    """Return a text with its words replaced by those of a dictionary."""
    replaced = DICTIONARY_WORD.sub(lambda word: dictionary.get(word[0].lower(), word[0]), text)
    return detokenize(replaced.split())


def replace_article(row: Article, path: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the sentences and the summaries of an article in the words of a dictionary file."""
    known = read_dictionary(path)
    return (
        tuple(replace_words(sentence, known) for sentence in row.sentences),
        tuple(replace_words(text, known) for text in row.references),
    )


def read_dictionary(path: str) -> Mapping[str, str]:
    """Return the first translation of each word, in lower case, of a file, which is read once."""
    return _read(*dictionary_fingerprint(path))


def dictionary_fingerprint(path: str) -> tuple[str, str]:
    """Return the path of a file and the hash of its content; one that does not exist is refused."""
    if not Path(path).is_file():
        raise UserError(
            f"--dictionary {path}: no such file; give a word and its translation on each line"
        )
    return path, cached_sha256(Path(path))


@cache
def _read(path: str, fingerprint: str) -> dict[str, str]:
    """Read a dictionary; the fingerprint tells apart what a path holds at different times."""
    translations: dict[str, str] = {}
    with open_input(Path(path)) as source:
        lines = iter_lines(source, normalize_newlines(decode_utf8(source)))
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            fields = line.split("\t") if "\t" in line else line.split(maxsplit=1)
            word, translation = (field.strip() for field in (*fields, "")[:2])
            if not word or not translation:
                raise UserError(
                    f"line {number:,} of {path} is {line.strip()[:40]!r}: write a word and its "
                    "translation on each line, with a space or a tab between them"
                )
            translations.setdefault(word.lower(), translation)
    if not translations:
        raise UserError(f"{path} is empty: give a word and its translation on each line")
    return translations
