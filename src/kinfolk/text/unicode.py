"""Scripts of a text, and a heuristic guess of its language."""

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
_LAST = 0x33480  # no letters from here on
# Names of characters begin with the script, with these exceptions.
_BEFORE = {"FULLWIDTH", "HALFWIDTH"}
_OTHERWISE = {"CJK": "HAN", "IDEOGRAPHIC": "HAN"}

LANGUAGE_SAMPLE_CHARS = 2000  # at the start of a document
LEAST = 0.08  # fraction of stop words; real text has three times as many
# Frequent words of languages in Latin letters, without single letters, which occur in codes. A word
# of two languages counts for both.
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
    """Return the number of the script of each character plus one; 0 for other than letters."""
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
    """Guess the language of a text by its script, or by stop words for Latin letters.

    "Der Hund ist im Garten" gives "German"; without enough stop words, "Latin, unknown".
    """
    sample = text[:LANGUAGE_SAMPLE_CHARS]
    counts = count_scripts(sample)
    if not counts:
        return "no letters"
    script = max(counts, key=lambda name: counts[name])
    if counts.get("Hiragana", 0) + counts.get("Katakana", 0) > 0.1 * sum(counts.values()):
        return "Japanese"
    if script != "Latin":
        return {"Han": "Chinese", "Hangul": "Korean"}.get(script, f"{script} script")
    words = _WORD.findall(sample.lower())
    hits = Counter(name for word in words for name in _languages().get(word, ()))
    best, most = max(hits.items(), key=lambda hit: hit[1], default=("", 0))  # ties: the first
    return best if most >= max(2, LEAST * len(words)) else "Latin, unknown"


@cache
def _languages() -> dict[str, tuple[str, ...]]:
    languages: dict[str, tuple[str, ...]] = {}
    for name, words in _STOP_WORDS.items():
        for word in words.split():
            languages[word] = (*languages.get(word, ()), name)
    return languages
