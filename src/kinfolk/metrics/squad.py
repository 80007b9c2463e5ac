"""Exact match and F1 of extracted answers, as the scripts of SQuAD and CMRC 2018 count them.

Scores are from 0 to 1, where the scripts print percent.
"""

import math
import re
import string
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kinfolk.metrics.metric import MeanMetric, check_lengths, precision_recall_f1

ARTICLES = re.compile(r"\b(a|an|the)\b")
NO_PUNCTUATION = str.maketrans("", "", string.punctuation)

# The characters that CMRC's script removes. It lists the ellipsis as two characters, which never
# match, so that the ellipsis is kept.
CMRC_PUNCTUATION = str.maketrans("", "", "-:_*^/\\~`+=，。：？！“”；’《》·、「」（）－～『』")
CHARACTER = re.compile("([\u4e00-\u9fa5])")
# The script splits other text by NLTK's rules, of which these are the relevant ones.
SINGLE_CHAR_TOKENS = r";@#$%&?!()\[\]{}<>\"—–‘«»„"
ENDINGS = "(?:s|m|d|re|ve|ll)"
PTB_WORD = re.compile(
    rf"\.\.+|[{SINGLE_CHAR_TOKENS}]|[,:](?!\d)|'{ENDINGS}(?!\w)"
    rf"|(?:[^\s{SINGLE_CHAR_TOKENS},:.']|[,:](?=\d)|(?<=\w)'(?!{ENDINGS}?(?!\w))"
    rf"|\.(?!\.|[])}}>\"' ]*$))+|[.']"
)

Compare = Callable[[str, str], float]  # of a prediction and an answer


@dataclass(frozen=True)
class NoAnswerThreshold:
    """The score and the threshold above which predicting no answer scores best."""

    score: float
    threshold: float


@dataclass(frozen=True)
class SpanMetric(MeanMetric):
    """The mean over questions of the best match with any of a question's answers.

    SQuAD 1.1's rules, or SQuAD 2.0's if some question has no answer, whose correct prediction is
    empty. Chinese answers are scored by CMRC 2018's rules.
    """

    chinese: bool = False

    things = "answers"

    def values(
        self, predictions: Sequence[str], references: Sequence[Sequence[str]], /
    ) -> list[float]:
        """Return the best match of each question."""
        compare = self.comparison(all(references))
        if all(references):
            gold = references
        elif self.chinese:
            gold = [texts or [""] for texts in references]
        else:
            gold = [[t for t in texts if normalize_answer(t)] or [""] for texts in references]
        return [
            max(compare(text, answer) for answer in answers)
            for text, answers in zip(predictions, gold, strict=True)
        ]

    @abstractmethod
    def comparison(self, all_answerable: bool) -> Compare:
        """Return the comparison of a prediction with an answer."""


@dataclass(frozen=True)
class ExactMatch(SpanMetric):
    """Whether a prediction equals an answer, but for case, punctuation and articles."""

    name: str = "exact"
    title: str = "exact match"

    def comparison(self, all_answerable: bool) -> Compare:
        """Return the comparison of the language."""
        return cmrc_exact_match if self.chinese else exact_match


@dataclass(frozen=True)
class SpanF1(SpanMetric):
    """F1 of the words of a prediction and an answer; in Chinese, of their common substring."""

    name: str = "f1"
    title: str = "F1"

    def comparison(self, all_answerable: bool) -> Compare:
        """Return the comparison of the language."""
        if self.chinese:
            return cmrc_f1 if all_answerable else cmrc_f1_v2
        return token_f1 if all_answerable else token_f1_v2


def best_threshold(
    metric: SpanMetric,
    predictions: Sequence[str],
    references: Sequence[Sequence[str]],
    null_scores: Sequence[float],
) -> NoAnswerThreshold:
    """Return the threshold of the highest score, from no answers at all to every answer.

    Questions with a null score above the threshold are predicted to have no answer. As in the
    official script, questions with equal null scores are taken one after the other.
    """
    check_lengths(null_scores, references, "null scores")
    values = metric.values(predictions, references)
    # Answering an unanswerable question loses the point of predicting no answer.
    gains = [
        value if texts else -float(bool(text))
        for value, texts, text in zip(values, references, predictions, strict=True)
    ]
    total = highest = float(sum(not texts for texts in references))
    # The script starts at 0; where null scores are not probabilities, below all of them.
    lowest = min(null_scores)
    threshold = math.nextafter(lowest, -math.inf) if lowest < 0 else 0.0
    for index in sorted(range(len(null_scores)), key=null_scores.__getitem__):
        total += gains[index]
        if total > highest:
            highest, threshold = total, null_scores[index]
    return NoAnswerThreshold(highest / len(gains), threshold)


def normalize_answer(text: str) -> str:
    """Normalize a text as SQuAD does: "The  Beatles!" is "beatles"."""
    return " ".join(ARTICLES.sub(" ", text.lower().translate(NO_PUNCTUATION)).split())


def exact_match(prediction: str, answer: str) -> float:
    """Return 1 if two answers are equal after normalization, else 0."""
    return float(normalize_answer(prediction) == normalize_answer(answer))


def token_f1(prediction: str, answer: str) -> float:
    """Return F1 of the words of two answers, as SQuAD 1.1 defines it."""
    predicted, gold = normalize_answer(prediction).split(), normalize_answer(answer).split()
    hits = (Counter(predicted) & Counter(gold)).total()
    return precision_recall_f1(hits, len(predicted), len(gold)).f1


def token_f1_v2(prediction: str, answer: str) -> float:
    """Return F1 as SQuAD 2.0 defines it: two answers without a word are equal."""
    if not normalize_answer(prediction) or not normalize_answer(answer):
        return exact_match(prediction, answer)
    return token_f1(prediction, answer)


def cmrc_exact_match(prediction: str, answer: str) -> float:
    """Return 1 if two answers are equal except for case and punctuation, else 0."""
    first, second = (t.lower().strip().translate(CMRC_PUNCTUATION) for t in (prediction, answer))
    return float(first == second)


def cmrc_f1(prediction: str, answer: str) -> float:
    """Return F1 of the longest common substring of tokens."""
    predicted, gold = cmrc_tokenize(prediction), cmrc_tokenize(answer)
    hits = longest_common_substring(predicted, gold)
    return precision_recall_f1(hits, len(predicted), len(gold)).f1


def cmrc_f1_v2(prediction: str, answer: str) -> float:
    """Return F1 as in SQuAD 2.0: two answers without a token are equal."""
    if not cmrc_tokenize(prediction) or not cmrc_tokenize(answer):
        return cmrc_exact_match(prediction, answer)
    return cmrc_f1(prediction, answer)


def cmrc_tokenize(text: str) -> list[str]:
    """Split a text without punctuation: "在2008年，NBA" gives 在, 2008, 年 and nba."""
    chunks = CHARACTER.split(text.lower().strip().translate(CMRC_PUNCTUATION))
    return [
        word
        for number, chunk in enumerate(chunks)
        for word in ([chunk] if number % 2 else PTB_WORD.findall(chunk))
    ]


def longest_common_substring(first: Sequence[str], second: Sequence[str]) -> int:
    """Return the length of the longest common run of tokens."""
    longest, before = 0, [0] * (len(second) + 1)
    for token in first:
        row = [0] * (len(second) + 1)
        for index, other in enumerate(second):
            if token == other:
                row[index + 1] = before[index] + 1
        longest, before = max(longest, *row), row
    return longest
