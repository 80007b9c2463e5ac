"""Where sentences end, in English-like and in Chinese text; the text itself never changes."""

import re

CLOSERS = "\"'”’»)\\]}」』）》】〉〕〗］｝＂＇"
STOPS = "。！？；｡"  # those that end a sentence wherever they stand

# Words whose full stop ends no sentence, and those of which this is true before a number.
_ABBREVIATIONS = """
    mr mrs ms dr prof st rev hon gen col lt sgt capt gov sen rep pres messrs mme mlle
    vs cf al eg ie e.g i.e viz ca approx mt ft u.s u.k u.n d.c ph.d
"""
_NUMBERED = """
    no nos fig figs eq vol vols p pp ch sec art jan feb mar apr jun jul aug sep sept oct nov dec
"""
ABBREVIATIONS = frozenset(_ABBREVIATIONS.split())
NUMBERED = frozenset(_NUMBERED.split())

# All begin with one of a few characters, so that the text between them is passed over at once, and
# where the character before is of another sort, so that a long run is read once.
_STOP = re.compile(
    rf"[{STOPS}.!?…\n](?:"
    rf"(?<=[{STOPS}])(?<![{STOPS}]{{2}})[{STOPS}]*+[…!?]*+[{CLOSERS}]*+(?=\s*+\S)"
    rf"|(?<=[.!?…])(?<![.!?…]{{2}})[.!?…]*+(?P<closers>[{CLOSERS}]*+)(?=\s*+(?P<next>\S))"
    r"|(?<=\n)(?P<line>\s*+)"
    r")"
)
_CHINESE = re.compile("[\u3000-\u30ff\u3400-\u9fff\uf900-\ufaff\uff00-\uffef]")
_WORD = re.compile(r"[^\s\"'“‘”’(\[{]+\Z")


def boundaries(text: str) -> list[int]:
    """Return where each sentence ends, in characters; white space belongs to what follows it.

    "Hi there. It is 3.14." gives [9, 21]; a new line always ends a sentence.
    """
    ends: list[int] = []
    last = 0
    for stop in _STOP.finditer(text):
        start, end = stop.span()
        if stop.lastgroup == "line":
            if end == len(text):
                break
            end = last + len(text[last:start].rstrip())
        elif stop.lastgroup == "next" and not _ends(text[max(last, start - 32) : start], stop):
            continue
        if text[last:end].strip():
            ends.append(end)
            last = end
    return [*ends, len(text)] if text else ends


def _ends(before: str, stop: re.Match[str]) -> bool:
    """Tell whether . ! ? or an ellipsis ends a sentence, by the words around it."""
    mark = stop.string[stop.start() : stop.start("closers")]
    after = bool(before and _CHINESE.match(before[-1]))
    if "…" in mark and (after or _CHINESE.match(stop["next"])):
        return True
    if after and mark.strip("."):
        return True
    if stop.end() == stop.start("next") or stop["next"].islower():
        return False
    if mark != ".":
        return True
    word = _WORD.search(before)
    if word is None:
        return True
    initial = len(word[0]) == 1 and word[0].isupper()
    listed = word[0].isdecimal() and not before[: word.start()].strip()  # "1. Flour"
    name = word[0].lower()
    short = name in ABBREVIATIONS or (name in NUMBERED and stop["next"].isdecimal())
    return not (initial or listed or short)
