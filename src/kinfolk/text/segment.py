"""Sentence and word segmentation for English and Chinese."""

import logging
import re
import unicodedata
import warnings
from collections.abc import Callable, Sequence
from functools import cache
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kinfolk.errors import UserError

CLOSING_CHARS = "\"'”’»)\\]}」』）》】〉〕〗］｝＂＇"
SENTENCE_END_CHARS = "。！？；｡"  # in any context

# Words whose full stop does not end a sentence; the second list only before a number.
_ABBREVIATIONS = """
    mr mrs ms dr prof st rev hon gen col lt sgt capt gov sen rep pres messrs mme mlle
    vs cf al eg ie e.g i.e viz ca approx mt ft u.s u.k u.n d.c ph.d
"""
_NUMBERED = """
    no nos fig figs eq vol vols p pp ch sec art jan feb mar apr jun jul aug sep sept oct nov dec
"""
ABBREVIATIONS = frozenset(_ABBREVIATIONS.split())
ABBREVIATIONS_BEFORE_NUMBERS = frozenset(_NUMBERED.split())

_HAN = "\u3000-\u30ff\u3400-\u9fff\uf900-\ufaff\uff00-\uffef"
# For speed, every alternative starts with a character of one class, so that other text is skipped,
# and after a character of another class, so that a run is matched once. The first alternative is
# the frequent case: a full stop after a word of four or more letters that is no abbreviation. The
# second requires white space and a capital, which skips stops as in 3.14.
_SHORT = "|".join(
    sorted(
        {w[-4:] for w in ABBREVIATIONS | ABBREVIATIONS_BEFORE_NUMBERS if len(w) > 3 and w.isalpha()}
    )
)
_STOP = re.compile(
    rf"[{SENTENCE_END_CHARS}.!?…\n](?:"
    rf"(?<=[a-z]{{4}}\.)(?<!(?:{_SHORT})\.)(?=\s++[!-`{{-~])"
    rf"|(?<=[.!?])(?<![.!?…{_HAN}].)[.!?]*+(?!…)(?P<shut>[{CLOSING_CHARS}]*+)(?=\s++(?P<then>[^\sa-z]))"
    rf"|(?<=[{SENTENCE_END_CHARS}])(?<![{SENTENCE_END_CHARS}]{{2}})[{SENTENCE_END_CHARS}]*+[…!?]*+[{CLOSING_CHARS}]*+(?=\s*+\S)"
    rf"|(?<=[.!?…])(?<![.!?…]{{2}})(?:(?<=[{_HAN}].)|(?<=…)|(?=[.!?]*+…))"
    rf"[.!?…]*+(?P<closers>[{CLOSING_CHARS}]*+)(?=\s*+(?P<next>\S))"
    r"|(?<=\n)(?P<line>\s*+)"
    r")"
)
_CHINESE = re.compile(f"[{_HAN}]")
_WORD = re.compile(r"[^\s\"'“‘”’(\[{]+\Z")
_LONG = 1 + max(map(len, ABBREVIATIONS | ABBREVIATIONS_BEFORE_NUMBERS))


def sentence_ends(text: str) -> list[int]:
    """Return the end of each sentence, in characters; leading white space belongs to a sentence.

    "Hi there. It is 3.14." gives [9, 21]; a new line always ends a sentence.
    """
    ends: list[int] = []
    last = 0
    for stop in _STOP.finditer(text):
        start, end = stop.span()
        match stop.lastgroup:
            case "then":
                before = text[max(last, start - 32) : start]
                if not _plain(before, text[start : stop.start("shut")], stop["then"]):
                    continue
            case "next":
                if not _mixed(text[max(last, start - 32) : start], stop):
                    continue
            case "line":
                if end == len(text):
                    break
                end = start
                while end > last and text[end - 1].isspace():
                    end -= 1
                if end == last:
                    continue
        ends.append(end)
        last = end
    return [*ends, len(text)] if text else ends


def split_sentences(text: str) -> list[str]:
    """Return the sentences of a text without the white space around them."""
    parts = (text[start:end].strip() for start, end in pairwise([0, *sentence_ends(text)]))
    return [part for part in parts if part]


def _mixed(before: str, stop: re.Match[str]) -> bool:
    """Return whether . ! ? or an ellipsis next to Chinese ends a sentence."""
    mark = stop.string[stop.start() : stop.start("closers")]
    after = bool(before and _CHINESE.match(before[-1]))
    if "…" in mark and (after or _CHINESE.match(stop["next"])):
        return True
    if after and mark.strip("."):
        return True
    return stop.end() != stop.start("next") and _plain(before, mark, stop["next"])


def _plain(before: str, mark: str, next: str) -> bool:
    """Return whether . ! ? or an ellipsis before white space ends a sentence."""
    if next.islower():
        return False
    tail = before[-_LONG:]
    if mark != "." or (len(tail) == _LONG and tail.isalpha() and tail.islower()):
        return True  # no abbreviation is that long
    word = _WORD.search(before)
    if word is None:
        return True
    initial = len(word[0]) == 1 and word[0].isupper()
    listed = word[0].isdecimal() and not before[: word.start()].strip()  # "1. Flour"
    name = word[0].lower()
    short = name in ABBREVIATIONS or (name in ABBREVIATIONS_BEFORE_NUMBERS and next.isdecimal())
    return not (initial or listed or short)


SEGMENTERS = ("spaces", "jieba")

# Chinese characters, with the iteration mark and the zero.
HAN = "々〇\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
MAX_JIEBA_CHARS = 1024  # of one call of jieba

Segmenter = Callable[[str], list[int]]


def word_starts(text: str, by: str, /) -> list[int]:
    """Return the start of each word, in characters, with the segmenter of this name.

    White space belongs to no word and each punctuation mark is a word: "It's 3 o'clock." gives
    [0, 5, 7, 14]. With "spaces" each Chinese character is a word; "jieba" segments Chinese.
    """
    return word_segmenter(by)(text)


@cache
def word_segmenter(name: str) -> Segmenter:
    """Return the function that segments a text, by name."""
    if name not in SEGMENTERS:
        raise UserError(f"unknown segmenter {name!r}: choose one of {', '.join(SEGMENTERS)}")
    if name == "spaces":
        words = re.compile(_pattern(f"[{HAN}]"))
        return lambda text: [word.start() for word in words.finditer(text)]
    runs = re.compile(_pattern(f"(?P<run>[{HAN}]{{1,{MAX_JIEBA_CHARS}}})"))
    cut = _jieba().cut

    def starts(text: str) -> list[int]:
        result: list[int] = []
        for word in runs.finditer(text):
            if word["run"] is None:
                result.append(word.start())
            else:
                lengths = map(len, cut(word["run"]))
                result += [*accumulate(lengths, initial=word.start())][:-1]
        return result

    return starts


def tokens_starting_words(
    starts: Sequence[int], indices: Sequence[tuple[int, int]]
) -> NDArray[np.bool_]:
    """Return which tokens begin a word, from the starts of words and the offsets of tokens.

    Of several tokens for the bytes of one character, the first begins the word.
    """
    ends = np.array([end for _, end in indices], np.int64)
    begun = np.maximum.accumulate(np.searchsorted(np.array(starts, np.int64), ends, side="left"))
    return np.diff(begun, prepend=0) > 0


def _pattern(chinese: str) -> str:
    # Combining marks, which Python's \w does not match.
    marks = "".join(c for c in map(chr, range(0x300, 0x20000)) if unicodedata.category(c)[0] == "M")
    letter = rf"[^\W_{HAN}]"
    # Zero-width joiners and soft hyphens occur inside words.
    run = rf"{letter}++(?:[{marks}\u200c\u200d\xad]++{letter}*+)*+"
    # A combining mark or an invisible character without a letter is no word.
    other = rf"[^\s{marks}\x00-\x1f\x7f\xad\u200b-\u200f\ufeff]"
    # The frequent case first, which takes a quarter of the time of the long classes.
    plain = r"[A-Za-z0-9]++(?!['’\x80-\U0010ffff])|[!-/:-@\[-`{-~]"
    return rf"{plain}|{chinese}|{run}(?:['’]{run})*+|{other}"


def _jieba() -> Any:
    """Return a jieba tokenizer of its own, with the original dictionary."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes and pkg_resources
            import jieba
    except ImportError as error:
        raise UserError(
            "segmenting Chinese needs the jieba package: pip install 'kinfolk[zh]'"
        ) from error
    jieba.setLogLevel(logging.WARNING)
    tokenizer = jieba.Tokenizer()
    # As `initialize`, without its cache file in a shared temporary folder.
    tokenizer.FREQ, tokenizer.total = tokenizer.gen_pfdict(tokenizer.get_dict_file())
    tokenizer.initialized = True
    return tokenizer
