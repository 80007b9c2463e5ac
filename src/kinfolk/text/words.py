"""Where words begin, by spaces or by a Chinese dictionary; the text itself never changes."""

import logging
import re
import unicodedata
import warnings
from collections.abc import Callable, Sequence
from functools import cache
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kinfolk.errors import UserError

SEGMENTERS = ("spaces", "jieba")

# Chinese characters, and the sign for "as before" and the zero among them.
HAN = "々〇\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
MAX_JIEBA_CHARS = 1024  # characters given to jieba at once, where nothing parts them earlier

Segmenter = Callable[[str], list[int]]


def word_starts(text: str, by: str, /) -> list[int]:
    """Return where each word begins, in characters, by a segmenter's name.

    White space belongs to no word, each punctuation mark is one: "It's 3 o'clock." gives
    [0, 5, 7, 14]. By "spaces" each Chinese character is a word too; "jieba" finds their words.
    """
    return word_segmenter(by)(text)


@cache
def word_segmenter(name: str) -> Segmenter:
    """Return the function from a text to where its words begin, ready to run."""
    if name not in SEGMENTERS:
        raise UserError(f"{name!r} finds no words: choose one of {', '.join(SEGMENTERS)}")
    if name == "spaces":
        words = re.compile(_pattern(f"[{HAN}]"))
        return lambda text: [word.start() for word in words.finditer(text)]
    runs = re.compile(_pattern(f"(?P<run>[{HAN}]{{1,{MAX_JIEBA_CHARS}}})"))
    cut = _jieba().cut

    def starts(text: str) -> list[int]:
        found: list[int] = []
        for word in runs.finditer(text):
            if word["run"] is None:
                found.append(word.start())
            else:
                lengths = map(len, cut(word["run"]))
                found += [*accumulate(lengths, initial=word.start())][:-1]
        return found

    return starts


def tokens_starting_words(
    starts: Sequence[int], indices: Sequence[tuple[int, int]]
) -> NDArray[np.bool_]:
    """Tell which tokens begin a word, from where words begin and where each token stands.

    Several tokens may stand for one character (its bytes): the first of them begins the word.
    """
    ends = np.array([end for _, end in indices], np.int64)
    begun = np.maximum.accumulate(np.searchsorted(np.array(starts, np.int64), ends, side="left"))
    return np.diff(begun, prepend=0) > 0


def _pattern(chinese: str) -> str:
    # Python's \w leaves out the marks that vowels and accents are written with.
    marks = "".join(c for c in map(chr, range(0x300, 0x20000)) if unicodedata.category(c)[0] == "M")
    letter = rf"[^\W_{HAN}]"
    # Zero-width joiners and soft hyphens stand inside words.
    run = rf"{letter}++(?:[{marks}\u200c\u200d\xad]++{letter}*+)*+"
    # A mark or an invisible sign that follows no letter begins nothing.
    other = rf"[^\s{marks}\x00-\x1f\x7f\xad\u200b-\u200f\ufeff]"
    # Most text is found by these two, which take a quarter of the time of those long classes.
    plain = r"[A-Za-z0-9]++(?!['’\x80-\U0010ffff])|[!-/:-@\[-`{-~]"
    return rf"{plain}|{chinese}|{run}(?:['’]{run})*+|{other}"


def _jieba() -> Any:
    """Return a segmenter with jieba's own dictionary, whatever others added to theirs."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of its old escapes and of pkg_resources
            import jieba
    except ImportError as error:
        raise UserError(
            "the words of Chinese are found by jieba, which is not installed: "
            "pip install 'kinfolk[zh]'"
        ) from error
    jieba.setLogLevel(logging.WARNING)
    tokenizer = jieba.Tokenizer()
    # As its `initialize`, without the cache that all users of a machine would share.
    tokenizer.FREQ, tokenizer.total = tokenizer.gen_pfdict(tokenizer.get_dict_file())
    tokenizer.initialized = True
    return tokenizer
