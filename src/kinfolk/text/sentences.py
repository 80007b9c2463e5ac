"""Where sentences end, in English-like and in Chinese text; the text itself never changes."""

import re

CLOSING_CHARS = "\"'”’»)\\]}」』）》】〉〕〗］｝＂＇"
SENTENCE_END_CHARS = "。！？；｡"  # those that end a sentence wherever they stand

# Words whose full stop ends no sentence, and those of which this is true before a number.
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
# All begin with one of a few characters, so that the text between them is passed over at once, and
# where the character before is of another sort, so that a long run is read once. Most full stops
# end nothing, as in 3.14 and e.g. this: the third line passes over them, too. Most of the others
# follow a word of four letters or more that is not short for another: the second line finds them.
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
    """Return where each sentence ends, in characters; white space belongs to what follows it.

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


def _mixed(before: str, stop: re.Match[str]) -> bool:
    """Tell whether . ! ? or an ellipsis ends a sentence beside Chinese."""
    mark = stop.string[stop.start() : stop.start("closers")]
    after = bool(before and _CHINESE.match(before[-1]))
    if "…" in mark and (after or _CHINESE.match(stop["next"])):
        return True
    if after and mark.strip("."):
        return True
    return stop.end() != stop.start("next") and _plain(before, mark, stop["next"])


def _plain(before: str, mark: str, next: str) -> bool:
    """Tell whether . ! ? or an ellipsis, with space behind it, ends a sentence by the words."""
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
