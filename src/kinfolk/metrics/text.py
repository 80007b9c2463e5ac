"""BLEU and chrF by sacrebleu, ROUGE, perplexity and bits per byte."""

import math
import re
from abc import abstractmethod
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from kinfolk.errors import UserError
from kinfolk.metrics.diversity import ngrams
from kinfolk.metrics.metric import (
    Counts,
    MeanMetric,
    Metric,
    Statistics,
    precision_recall_f1,
    resampled_totals,
    safe_divide,
)
from kinfolk.text.unicode import guess_language

References: TypeAlias = str | Sequence[str]  # the references of one text
CHINESE = ("\u3400", "\u9fff")  # first and last character
LANGUAGE_SAMPLE_TEXTS = 200  # references used to detect the language
BLEU_TOKENIZERS = {"Chinese": "zh", "Japanese": "ja-mecab", "Korean": "ko-mecab"}
MAX_EXPONENT = 700.0  # exp of more overflows
LATIN_WORDS = re.compile("[a-z0-9]+")
# The words that ROUGE compares, where they are not those of rouge-score.
ROUGE_WORDS = {
    "Chinese": re.compile("[a-z0-9]+|[{}-{}]".format(*CHINESE)),
    "Japanese": re.compile("[a-z0-9]+|[\u3041-\u30ff{}-{}]".format(*CHINESE)),
    "Korean": re.compile(r"\w+"),
}
# Of texts in the words of two languages: Chinese characters, and words of all other scripts.
MIXED_WORDS = re.compile(r"[{0}-{1}]|[^\W{0}-{1}]+".format(*CHINESE))


def sacrebleu_metrics() -> Any:
    """Return the metrics of sacrebleu."""
    try:
        from sacrebleu import metrics
    except ImportError as error:
        raise UserError(
            "BLEU and chrF need the sacrebleu package: pip install sacrebleu"
        ) from error
    return metrics


@dataclass(frozen=True)
class TextMetric(Metric):
    """A metric of sacrebleu, from 0 to 100."""

    maximum: float = 100.0
    decimals: int = 2
    max_resamples: int = 100

    @abstractmethod
    def implementation(self, references: Sequence[References]) -> Any:
        """Return sacrebleu's object for texts with these references."""

    def __call__(self, predictions: Sequence[str], references: Sequence[References]) -> float:
        """Score texts against one reference each, or several."""
        return self.aggregate(self.statistics(predictions, references))

    def statistics(
        self, predictions: Sequence[str], references: Sequence[References], /
    ) -> Statistics:
        """Return the counts of each text: (texts, counts)."""
        check_references(predictions, references)
        statistics = self.implementation(references)._extract_corpus_statistics(
            list(predictions), reference_streams(references)
        )
        return np.array(statistics)

    def score(self, total: Statistics, /) -> float:
        """Return the score of summed counts, which does not depend on the tokenizer."""
        return float(self.implementation(())._aggregate_and_compute([total.tolist()]).score)

    def signature(self, predictions: Sequence[str], references: Sequence[References]) -> str:
        """Return sacrebleu's signature, which describes how the score is computed."""
        implementation = self.implementation(references)
        implementation.corpus_score(list(predictions), reference_streams(references))
        return str(implementation.get_signature())


@dataclass(frozen=True)
class Bleu(TextMetric):
    """BLEU of words, by sacrebleu's tokenizer for the language of the references."""

    name: str = "bleu"
    title: str = "BLEU"

    def implementation(self, references: Sequence[References]) -> Any:
        """Return sacrebleu's object with the tokenizer of the language."""
        return sacrebleu_bleu(bleu_tokenizer(reference_language(references)))


@dataclass(frozen=True)
class Chrf(TextMetric):
    """chrF of characters; of several references, the closest counts."""

    name: str = "chrf"
    title: str = "chrF"

    def implementation(self, references: Sequence[References]) -> Any:
        """Return sacrebleu's object."""
        return sacrebleu_chrf()


def reference_language(references: Sequence[References]) -> str:
    """Return the language of references where BLEU has a tokenizer for it, else `other`."""
    sample = (text for r in references[:LANGUAGE_SAMPLE_TEXTS] for text in as_sequence(r))
    language = guess_language(" ".join(sample))
    if language in ("Japanese", "Korean"):
        return language
    return "Chinese" if mostly_chinese(references) else "other"


@cache
def bleu_tokenizer(language: str) -> str:
    """Return sacrebleu's tokenizer for a language: characters where its package is missing."""
    tokenizer = BLEU_TOKENIZERS.get(language, "13a")
    try:
        sacrebleu_metrics().BLEU(tokenize=tokenizer)
    except (ImportError, RuntimeError):  # MeCab is not installed
        return "char"
    return tokenizer


def describe_bleu(references: Sequence[References]) -> str | None:
    """Return which tokenizer BLEU uses, None for the one of languages with spaces."""
    language = reference_language(references)
    tokenizer, best = bleu_tokenizer(language), BLEU_TOKENIZERS.get(language)
    if best is None:
        return None
    if tokenizer == best:
        return f"BLEU of {language} uses sacrebleu's tokenizer {tokenizer}"
    return (
        f"BLEU of {language} counts characters (sacrebleu's tokenizer {tokenizer}), because "
        f"{best} is not installed: pip install 'sacrebleu[{best[:2]}]' to score words"
    )


@cache
def sacrebleu_bleu(tokenize: str) -> Any:
    return sacrebleu_metrics().BLEU(tokenize=tokenize)


@cache
def sacrebleu_chrf() -> Any:
    return sacrebleu_metrics().CHRF()


def as_sequence(reference: References) -> Sequence[str]:
    """Return the references of one text as a sequence."""
    return (reference,) if isinstance(reference, str) else reference


def reference_streams(references: Sequence[References]) -> list[list[str | None]]:
    """Return the first references of all texts, then the second ones; None where missing."""
    most = max(len(as_sequence(reference)) for reference in references)
    padded = [[*as_sequence(reference), *[None] * most][:most] for reference in references]
    return [list(stream) for stream in zip(*padded, strict=True)]


def check_references(predictions: Sequence[str], references: Sequence[References]) -> None:
    """Check that each text has a reference, and that there are texts."""
    if len(predictions) != len(references) or not predictions:
        raise UserError(
            f"got {len(predictions)} texts for {len(references)} references: "
            "pass one text for each reference"
        )
    for number, reference in enumerate(references, 1):
        if not as_sequence(reference):
            raise UserError(f"text {number} has no reference: pass at least one for each text")


def mostly_chinese(references: Sequence[References]) -> bool:
    """Return whether most letters are Chinese, each of which then counts as a word."""
    letters = [c for r in references for text in as_sequence(r) for c in text if c.isalpha()]
    return 2 * sum(CHINESE[0] <= letter <= CHINESE[1] for letter in letters) > len(letters)


def rouge_pattern(references: Sequence[References]) -> re.Pattern[str]:
    """Return the pattern of the words, in lower case, that ROUGE compares in their language."""
    return ROUGE_WORDS.get(reference_language(references), LATIN_WORDS)


@dataclass(frozen=True)
class Rouge(MeanMetric):
    """Mean F1 of summaries, each against the reference that fits best."""

    max_resamples: int = 100

    things = "summaries"

    def values(
        self, predictions: Sequence[str], references: Sequence[References], /
    ) -> list[float]:
        """Return the score of each summary."""
        pattern = rouge_pattern(references)
        values = []
        for text, reference in zip(predictions, references, strict=True):
            words = pattern.findall(text.lower())
            each = [pattern.findall(other.lower()) for other in as_sequence(reference)]
            values.append(max(self.compare(words, other) for other in each))
        return values

    @abstractmethod
    def compare(self, words: Sequence[str], reference: Sequence[str]) -> float:
        """Return F1 of the words of a summary against those of its reference."""


@dataclass(frozen=True)
class RougeN(Rouge):
    """F1 of n-grams; a repeated one counts at most as often as in the reference."""

    n: int = 1

    def compare(self, words: Sequence[str], reference: Sequence[str]) -> float:
        """Return F1 of the n-grams."""
        predicted, gold = Counter(ngrams(words, self.n)), Counter(ngrams(reference, self.n))
        hits = (predicted & gold).total()
        return precision_recall_f1(hits, predicted.total(), gold.total()).f1


@dataclass(frozen=True)
class RougeL(Rouge):
    """F1 of the longest common subsequence."""

    name: str = "rougeL"
    title: str = "ROUGE-L"

    def compare(self, words: Sequence[str], reference: Sequence[str]) -> float:
        """Return F1 of the longest common subsequence."""
        hits = lcs_length(words, reference)
        return precision_recall_f1(hits, len(words), len(reference)).f1


BLEU, CHRF = Bleu(), Chrf()
ROUGE = (RougeN("rouge1", "ROUGE-1", n=1), RougeN("rouge2", "ROUGE-2", n=2), RougeL())


def lcs_length(first: Sequence[str], second: Sequence[str]) -> int:
    """Return the length of the longest common subsequence.

    A row of the table is an integer; a bit is 0 where the length increases (Hyyrö 2004).
    """
    indices: defaultdict[str, int] = defaultdict(int)
    for index, word in enumerate(first):
        indices[word] |= 1 << index
    full = row = (1 << len(first)) - 1
    for word in second:
        same = row & indices.get(word, 0)
        row = ((row + same) | (row - same)) & full
    return len(first) - row.bit_count()


@dataclass(frozen=True)
class Perplexity(Metric):
    """The perplexity per token; predictions are pairs of negative log-likelihood and tokens."""

    name: str = "perplexity"
    decimals: int = 2
    lower_is_better: bool = True

    def statistics(
        self, predictions: Sequence[tuple[float, int]], references: Sequence[str], /
    ) -> Statistics:
        """Return negative log-likelihood in nats and number of tokens: (rows, 2)."""
        return np.array(predictions, np.float64)

    def score(self, total: Statistics, /) -> float:
        """Return exp of the mean negative log-likelihood."""
        return math.exp(min(MAX_EXPONENT, float(total[0]) / max(float(total[1]), 1)))


@dataclass(frozen=True)
class BitsPerByte(Perplexity):
    """Negative log-likelihood in bits per byte of UTF-8."""

    name: str = "bits_per_byte"
    decimals: int = 4

    def statistics(
        self, predictions: Sequence[tuple[float, int]], references: Sequence[str], /
    ) -> Statistics:
        """Return negative log-likelihood in nats and number of bytes: (rows, 2)."""
        return np.array(
            [
                (nll, len(text.encode()))
                for (nll, _), text in zip(predictions, references, strict=True)
            ],
            np.float64,
        )

    def score(self, total: Statistics, /) -> float:
        """Return bits per byte; 0 of texts without bytes."""
        return safe_divide(float(total[0]) / math.log(2), float(total[1]))

    def resampled_scores(self, statistics: Statistics, counts: Counts) -> NDArray[np.float64]:
        """Divide all sums at once."""
        nats, sizes = resampled_totals(statistics, counts).T
        return nats / math.log(2) / np.where(sizes > 0, sizes, np.inf)
