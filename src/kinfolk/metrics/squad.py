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
from kinfolk.metrics.classification import check_lengths, f_score, safe_divide

ARTICLES = re.compile(r"\b(a|an|the)\b")
NO_PUNCTUATION = str.maketrans("", "", string.punctuation)

# What CMRC's script leaves out. It names the ellipsis too, but as two characters, which no single
# one equals: so it stays.
CMRC_PUNCTUATION = str.maketrans("", "", "-:_*^/\\~`+=，。：？！“”；’《》·、「」（）－～『』")
CHARACTER = re.compile("([\u4e00-\u9fa5])")
# What is not Chinese, that script has parted by NLTK's rules: these are the ones that matter.
SINGLE_CHAR_TOKENS = r";@#$%&?!()\[\]{}<>\"—–‘«»„"
ENDINGS = "(?:s|m|d|re|ve|ll)"
WORD = re.compile(
    rf"\.\.+|[{SINGLE_CHAR_TOKENS}]|[,:](?!\d)|'{ENDINGS}(?!\w)"
    rf"|(?:[^\s{SINGLE_CHAR_TOKENS},:.']|[,:](?=\d)|(?<=\w)'(?!{ENDINGS}?(?!\w))"
    rf"|\.(?!\.|[])}}>\"' ]*$))+|[.']"
)

Compare = Callable[[str, str], float]  # what was said with an answer


@dataclass(frozen=True)
class SquadScores:
    """Means over questions of the best match with any of a question's answers."""

    exact_match: float
    f1: float
    questions: int


@dataclass(frozen=True)
class NoAnswerThreshold:
    """The best mean there is when every question with more doubt than this has no answer."""

    score: float
    threshold: float


@dataclass(frozen=True)
class Squad2Scores:
    """Scores of questions some of which have no answer; None where there are none of a kind."""

    overall: SquadScores
    has_answer: SquadScores | None  # the questions that have an answer
    no_answer: SquadScores | None
    best_exact: NoAnswerThreshold | None = None  # where doubts are given
    best_f1: NoAnswerThreshold | None = None


def squad_v1(said: Sequence[str], answers: Sequence[Sequence[str]]) -> SquadScores:
    """Score answers as SQuAD 1.1 does."""
    return average(score_questions(said, answers, exact_match, token_f1))


def cmrc2018(said: Sequence[str], answers: Sequence[Sequence[str]]) -> SquadScores:
    """Score Chinese answers as CMRC 2018 does: its F1 is of the longest stretch in common."""
    return average(score_questions(said, answers, cmrc_exact_match, cmrc_f1))


def cmrc2(said: Sequence[str], answers: Sequence[Sequence[str]]) -> SquadScores:
    """Score Chinese answers some of which do not exist: those questions want an empty one."""
    wanted = [texts or [""] for texts in answers]
    return average(score_questions(said, wanted, cmrc_exact_match, cmrc_agreement))


def squad_v2(
    said: Sequence[str],
    answers: Sequence[Sequence[str]],
    doubts: Sequence[float] | None = None,
    threshold: float = 1.0,
) -> Squad2Scores:
    """Score answers as SQuAD 2.0 does; a question without answers wants an empty one.

    A doubt is how likely a question has no answer. Above the threshold it is given none.
    """
    check_lengths(said, answers, "answers")
    wanted = [[text for text in texts if normalize_answer(text)] or [""] for texts in answers]
    raw = score_questions(said, wanted, exact_match, token_f1_v2)
    has = [bool(texts) for texts in answers]
    if doubts is None:
        return split_by_answerable(raw, has)
    check_lengths(doubts, answers, "doubts")
    final = [
        (float(not real), float(not real)) if doubt > threshold else row
        for row, real, doubt in zip(raw, has, doubts, strict=True)
    ]
    # To answer a question that has no answer costs what silence earned.
    gains = [
        row if real else (-float(bool(text)),) * 2
        for row, real, text in zip(raw, has, said, strict=True)
    ]
    found = split_by_answerable(final, has)
    exact, f1 = (best_threshold([gain[part] for gain in gains], has, doubts) for part in (0, 1))
    return Squad2Scores(found.overall, found.has_answer, found.no_answer, exact, f1)


def best_threshold(
    gains: Sequence[float], has: Sequence[bool], doubts: Sequence[float]
) -> NoAnswerThreshold:
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
    return NoAnswerThreshold(highest / len(gains), doubt)


def score_questions(
    said: Sequence[str], answers: Sequence[Sequence[str]], exact: Compare, f1: Compare
) -> list[tuple[float, float]]:
    """Return exact match and F1 of each question with the answer that fits best."""
    check_lengths(said, answers, "answers")
    for number, texts in enumerate(answers, 1):
        if not texts:
            raise UserError(f"question {number} has no answer: score such questions by squad2")
    return [
        (max(exact(text, one) for one in texts), max(f1(text, one) for one in texts))
        for text, texts in zip(said, answers, strict=True)
    ]


def average(pairs: Sequence[tuple[float, float]]) -> SquadScores:
    """Average over questions."""
    exact, f1 = (sum(values) / len(pairs) for values in zip(*pairs, strict=True))
    return SquadScores(exact, f1, len(pairs))


def split_by_answerable(pairs: Sequence[tuple[float, float]], has: Sequence[bool]) -> Squad2Scores:
    """Average over all questions, those that have an answer, and the others."""
    answered = [pair for pair, real in zip(pairs, has, strict=True) if real]
    unanswered = [pair for pair, real in zip(pairs, has, strict=True) if not real]
    return Squad2Scores(
        average(pairs),
        average(answered) if answered else None,
        average(unanswered) if unanswered else None,
    )


def normalize_answer(text: str) -> str:
    """Return a text as SQuAD compares it: "The  Beatles!" is "beatles"."""
    return " ".join(ARTICLES.sub(" ", text.lower().translate(NO_PUNCTUATION)).split())


def exact_match(said: str, answer: str) -> float:
    """Tell whether two answers are the same for SQuAD."""
    return float(normalize_answer(said) == normalize_answer(answer))


def token_f1(said: str, answer: str) -> float:
    """Return F1 of the words of two answers, as SQuAD 1.1 has it."""
    words, wanted = normalize_answer(said).split(), normalize_answer(answer).split()
    hits = (Counter(words) & Counter(wanted)).total()
    return f_score(safe_divide(hits, len(words)), safe_divide(hits, len(wanted)))


def token_f1_v2(said: str, answer: str) -> float:
    """Return the same as SQuAD 2.0 has it: two answers without a word agree."""
    if not normalize_answer(said) or not normalize_answer(answer):
        return exact_match(said, answer)
    return token_f1(said, answer)


def cmrc_exact_match(said: str, answer: str) -> float:
    """Tell whether two answers are the same for CMRC: but for case and marks."""
    one, other = (text.lower().strip().translate(CMRC_PUNCTUATION) for text in (said, answer))
    return float(one == other)


def cmrc_f1(said: str, answer: str) -> float:
    """Return F1 of the longest stretch of segments that two answers have in common."""
    one, other = cmrc_tokenize(said), cmrc_tokenize(answer)
    hits = longest_common_substring(one, other)
    return f_score(safe_divide(hits, len(one)), safe_divide(hits, len(other)))


def cmrc_agreement(said: str, answer: str) -> float:
    """Return the same, where two answers without a segment agree."""
    if not cmrc_tokenize(said) or not cmrc_tokenize(answer):
        return cmrc_exact_match(said, answer)
    return cmrc_f1(said, answer)


def cmrc_tokenize(text: str) -> list[str]:
    """Part a text without its marks: "在2008年，NBA" gives 在, 2008, 年 and nba."""
    chunks = CHARACTER.split(text.lower().strip().translate(CMRC_PUNCTUATION))
    return [
        word
        for number, chunk in enumerate(chunks)
        for word in ([chunk] if number % 2 else WORD.findall(chunk))
    ]


def longest_common_substring(one: Sequence[str], other: Sequence[str]) -> int:
    """Return the length of the longest run of segments that is in both."""
    longest, before = 0, [0] * (len(other) + 1)
    for segment in one:
        row = [0] * (len(other) + 1)
        for place, wanted in enumerate(other):
            if segment == wanted:
                row[place + 1] = before[place] + 1
        longest, before = max(longest, *row), row
    return longest
