"""In which scripts a text is written, and a light guess at its language."""

import re
import unicodedata
from collections import Counter
from functools import cache

import numpy as np
import numpy.typing as npt

OTHER = "other"
_NAMES = """
    Latin Han Cyrillic Greek Arabic Hebrew Devanagari Bengali Gurmukhi Gujarati Tamil Telugu Kannada
    Malayalam Sinhala Thai Lao Tibetan Myanmar Georgian Armenian Ethiopic Khmer Mongolian Hangul
    Hiragana Katakana
"""
SCRIPTS = (OTHER, *_NAMES.split())
_LAST = 0x33480  # beyond it are no letters
# Unicode's names begin with the script, but for these.
_BEFORE = {"FULLWIDTH", "HALFWIDTH"}
_OTHERWISE = {"CJK": "HAN", "IDEOGRAPHIC": "HAN"}

LANGUAGE_SAMPLE_CHARS = 2000  # characters of a document that its language is guessed from
LEAST = 0.08  # stop words among all words: real text has three times that
# Frequent words of languages in Latin letters, none that is one letter of the alphabet: codes and
# numbers hold those. A word of two languages counts for both.
_STOP_WORDS = {
    "English": "the of and to in is was that it for on with as by at from this are be his an or",
    "German": "der die das und in den von zu mit sich des auf für ist im dem nicht ein eine als",
    "French": "le la les de des et du en un une est que qui dans pour par sur au pas ce il sont",
    "Spanish": "el la los las de del en un una es que por con para se su al como no más lo sus",
    "Italian": "il la le di del della in un una che per con si non da sono nel al dei gli lo",
    "Portuguese": "os as de do da em um uma que por com para se não no na dos ao são mais",
    "Dutch": "de het een van en in is dat op te zijn voor met die niet aan er om ook als door",
    "Vietnamese": "và của là có các được cho trong một không người những với này đã khi để ở về từ",
}
_WORD = re.compile(r"[^\W\d_]+")


@cache
def _table() -> npt.NDArray[np.uint8]:
    """Give every letter the number of its script plus one; what is no letter has 0."""
    numbers = {name.upper(): number for number, name in enumerate(SCRIPTS, 1)}
    table = np.zeros(0x110000, dtype=np.uint8)
    for code in range(_LAST):
        if unicodedata.category(chr(code)).startswith("L"):
            words = [
                w for w in re.split(r"[ -]", unicodedata.name(chr(code), "")) if w not in _BEFORE
            ]
            first = _OTHERWISE.get(words[0], words[0]) if words else ""
            table[code] = numbers.get(first, 1)
    return table


def count_scripts(text: str) -> dict[str, int]:
    """Count the letters of each script."""
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
    counts = np.bincount(_table()[codes], minlength=len(SCRIPTS) + 1).tolist()
    return {name: count for name, count in zip(SCRIPTS, counts[1:], strict=True) if count}


def guess_language(text: str) -> str:
    """Guess the language of a text: by script where that says it, by stop words in Latin letters.

    "Der Hund ist im Garten" gives "German"; without enough stop words, "Latin, unknown".
    """
    sample = text[:LANGUAGE_SAMPLE_CHARS]
    found = count_scripts(sample)
    if not found:
        return "no letters"
    script = max(found, key=lambda name: found[name])
    if found.get("Hiragana", 0) + found.get("Katakana", 0) > 0.1 * sum(found.values()):
        return "Japanese"
    if script != "Latin":
        return {"Han": "Chinese", "Hangul": "Korean"}.get(script, f"{script} script")
    words = _WORD.findall(sample.lower())
    hits = Counter(name for word in words for name in _languages().get(word, ()))
    # Of two with as many hits the first in the table; a document of two languages has one.
    best, most = max(hits.items(), key=lambda one: one[1], default=("", 0))
    return best if most >= max(2, LEAST * len(words)) else "Latin, unknown"


@cache
def _languages() -> dict[str, tuple[str, ...]]:
    every = {word for words in _STOP_WORDS.values() for word in words.split()}
    return {
        word: tuple(name for name, words in _STOP_WORDS.items() if word in words.split())
        for word in sorted(every)
    }
