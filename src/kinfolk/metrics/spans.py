"""Answers found in a text: exact match and F1, as the scripts of SQuAD and CMRC 2018 count them.

Scores are shares from 0 to 1, where the scripts print per cent.
"""

import math
import re
import string
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kinfolk.errors import UserError
from kinfolk.metrics.scores import harmonic, paired, share

ARTICLES = re.compile(r"\b(a|an|the)\b")
NO_PUNCTUATION = str.maketrans("", "", string.punctuation)

# What CMRC's script leaves out. It names the ellipsis too, but as two characters, which no single
# one equals: so it stays.
MARKS = str.maketrans("", "", "-:_*^/\\~`+=，。：？！“”；’《》·、「」（）－～『』")
CHARACTER = re.compile("([\u4e00-\u9fa5])")
# What is not Chinese, that script has parted by NLTK's rules: these are the ones that matter.
ALONE = r";@#$%&?!()\[\]{}<>\"—–‘«»„"
ENDINGS = "(?:s|m|d|re|ve|ll)"
WORD = re.compile(
    rf"\.\.+|[{ALONE}]|[,:](?!\d)|'{ENDINGS}(?!\w)"
    rf"|(?:[^\s{ALONE},:.']|[,:](?=\d)|(?<=\w)'(?!{ENDINGS}?(?!\w))|\.(?!\.|[])}}>\"' ]*$))+|[.']"
)

Compare = Callable[[str, str], float]  # what was said with an answer


@dataclass(frozen=True)
class SpanScores:
    """Means over questions of the best match with any of a question's answers."""

    exact: float
    f1: float
    questions: int


@dataclass(frozen=True)
class Threshold:
    """The best mean there is when every question with more doubt than this has no answer."""

    score: float
    doubt: float


@dataclass(frozen=True)
class Squad2:
    """Scores of questions some of which have no answer; None where there are none of a kind."""

    every: SpanScores
    answered: SpanScores | None  # the questions that have an answer
    unanswered: SpanScores | None
    best_exact: Threshold | None = None  # where doubts are given
    best_f1: Threshold | None = None


def squad(said: Sequence[str], answers: Sequence[Sequence[str]]) -> SpanScores:
    """Score answers as SQuAD 1.1 does."""
    return summary(rows(said, answers, same, overlap))


def cmrc(said: Sequence[str], answers: Sequence[Sequence[str]]) -> SpanScores:
    """Score Chinese answers as CMRC 2018 does: its F1 is of the longest stretch in common."""
    return summary(rows(said, answers, cmrc_same, cmrc_overlap))


def cmrc2(said: Sequence[str], answers: Sequence[Sequence[str]]) -> SpanScores:
    """Score Chinese answers some of which do not exist: those questions want an empty one."""
    wanted = [texts or [""] for texts in answers]
    return summary(rows(said, wanted, cmrc_same, cmrc_agreement))


def squad2(
    said: Sequence[str],
    answers: Sequence[Sequence[str]],
    doubts: Sequence[float] | None = None,
    threshold: float = 1.0,
) -> Squad2:
    """Score answers as SQuAD 2.0 does; a question without answers wants an empty one.

    A doubt is how likely a question has no answer. Above the threshold it is given none.
    """
    paired(said, answers, "answers")
    wanted = [[text for text in texts if normal(text)] or [""] for texts in answers]
    raw = rows(said, wanted, same, agreement)
    has = [bool(texts) for texts in answers]
    if doubts is None:
        return split(raw, has)
    paired(doubts, answers, "doubts")
    final = [
        (float(not real), float(not real)) if doubt > threshold else row
        for row, real, doubt in zip(raw, has, doubts, strict=True)
    ]
    # To answer a question that has no answer costs what silence earned.
    gains = [
        row if real else (-float(bool(text)),) * 2
        for row, real, text in zip(raw, has, said, strict=True)
    ]
    found = split(final, has)
    exact, f1 = (best([gain[part] for gain in gains], has, doubts) for part in (0, 1))
    return Squad2(found.every, found.answered, found.unanswered, exact, f1)


def best(gains: Sequence[float], has: Sequence[bool], doubts: Sequence[float]) -> Threshold:
    """Find the threshold of the highest score, from no answers at all to every answer.

    As in the official script, questions of equal doubt are taken one after the other.
    """
    total = highest = float(sum(not real for real in has))
    # The script starts at 0; where doubts are not probabilities, below all of them.
    doubt = math.nextafter(min(doubts), -math.inf) if min(doubts) < 0 else 0.0
    for place in sorted(range(len(doubts)), key=doubts.__getitem__):
        total += gains[place]
        if total > highest:
            highest, doubt = total, doubts[place]
    return Threshold(highest / len(gains), doubt)


def rows(
    said: Sequence[str], answers: Sequence[Sequence[str]], exact: Compare, f1: Compare
) -> list[tuple[float, float]]:
    """Return exact match and F1 of each question with the answer that fits best."""
    paired(said, answers, "answers")
    for number, texts in enumerate(answers, 1):
        if not texts:
            raise UserError(f"question {number} has no answer: score such questions by squad2")
    return [
        (max(exact(text, one) for one in texts), max(f1(text, one) for one in texts))
        for text, texts in zip(said, answers, strict=True)
    ]


def summary(pairs: Sequence[tuple[float, float]]) -> SpanScores:
    """Average over questions."""
    exact, f1 = (sum(values) / len(pairs) for values in zip(*pairs, strict=True))
    return SpanScores(exact, f1, len(pairs))


def split(pairs: Sequence[tuple[float, float]], has: Sequence[bool]) -> Squad2:
    """Average over all questions, those that have an answer, and the others."""
    answered = [pair for pair, real in zip(pairs, has, strict=True) if real]
    unanswered = [pair for pair, real in zip(pairs, has, strict=True) if not real]
    return Squad2(
        summary(pairs),
        summary(answered) if answered else None,
        summary(unanswered) if unanswered else None,
    )


def normal(text: str) -> str:
    """Return a text as SQuAD compares it: "The  Beatles!" is "beatles"."""
    return " ".join(ARTICLES.sub(" ", text.lower().translate(NO_PUNCTUATION)).split())


def same(said: str, answer: str) -> float:
    """Tell whether two answers are the same for SQuAD."""
    return float(normal(said) == normal(answer))


def overlap(said: str, answer: str) -> float:
    """Return F1 of the words of two answers, as SQuAD 1.1 has it."""
    words, wanted = normal(said).split(), normal(answer).split()
    hits = (Counter(words) & Counter(wanted)).total()
    return harmonic(share(hits, len(words)), share(hits, len(wanted)))


def agreement(said: str, answer: str) -> float:
    """Return the same as SQuAD 2.0 has it: two answers without a word agree."""
    if not normal(said) or not normal(answer):
        return same(said, answer)
    return overlap(said, answer)


def cmrc_same(said: str, answer: str) -> float:
    """Tell whether two answers are the same for CMRC: but for case and marks."""
    one, other = (text.lower().strip().translate(MARKS) for text in (said, answer))
    return float(one == other)


def cmrc_overlap(said: str, answer: str) -> float:
    """Return F1 of the longest stretch of segments that two answers have in common."""
    one, other = segments(said), segments(answer)
    hits = stretch(one, other)
    return harmonic(share(hits, len(one)), share(hits, len(other)))


def cmrc_agreement(said: str, answer: str) -> float:
    """Return the same, where two answers without a segment agree."""
    if not segments(said) or not segments(answer):
        return cmrc_same(said, answer)
    return cmrc_overlap(said, answer)


def segments(text: str) -> list[str]:
    """Part a text without its marks: "在2008年，NBA" gives 在, 2008, 年 and nba."""
    pieces = CHARACTER.split(text.lower().strip().translate(MARKS))
    return [
        word
        for number, piece in enumerate(pieces)
        for word in ([piece] if number % 2 else WORD.findall(piece))
    ]


def stretch(one: Sequence[str], other: Sequence[str]) -> int:
    """Return the length of the longest run of segments that is in both."""
    longest, before = 0, [0] * (len(other) + 1)
    for segment in one:
        row = [0] * (len(other) + 1)
        for place, wanted in enumerate(other):
            if segment == wanted:
                row[place + 1] = before[place] + 1
        longest, before = max(longest, *row), row
    return longest
