"""TF-IDF features with logistic or ridge regression: what counting words reaches on a text task.

A token is a word in lower case or, in Chinese and Japanese, a character. Features are single tokens
and pairs of neighbours; the weights of a text are (1 + log count) * idf with a norm of 1.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from kinfolk.types import FloatArray

# One character of a script without spaces, or a word.
TOKEN = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]|[^\W\u3040-\u30ff\u3400-\u9fff]+")
MAX_WEIGHTS = 500_000  # features times classes: the features in the most texts are kept
MAX_FEATURES = 50_000
MAX_LBFGS_ITERATIONS = 30  # of L-BFGS
INVERSE_PENALTY = 5.0  # C of scikit-learn: the loss is summed over texts, |weights|^2 / 2C added
PAIR_FIELDS = ("a", "b", "both")


def tokens(text: str) -> list[str]:
    """Return the words of a text, or its characters where it is written without spaces."""
    return TOKEN.findall(text.lower())


def unigrams_and_bigrams(text: str) -> list[str]:
    """Return the tokens of a text and the pairs of neighbours."""
    words = tokens(text)
    return words + [f"{a} {b}" for a, b in pairwise(words)]


def features(texts: Sequence[str]) -> Iterator[str]:
    """Yield the n-grams of a text; of a pair, those of each text and those that both have."""
    if len(texts) == 1:
        yield from unigrams_and_bigrams(texts[0])
        return
    first, second, *_ = map(unigrams_and_bigrams, texts)
    shared = {*first} & {*second}
    for field, grams in zip(PAIR_FIELDS, (first, second, sorted(shared)), strict=True):
        for gram in grams:
            yield f"{field}: {gram}"


@dataclass(frozen=True)
class Vectorizer:
    """The features of a collection of texts, and their inverse document frequencies."""

    index: dict[str, int]
    idf: FloatArray

    @classmethod
    def fit(cls, counts: Sequence[Counter[str]], classes: int = 1) -> Self:
        """Keep the features of most texts; idf is log((1 + texts) / (1 + df)) + 1."""
        frequencies = Counter(feature for row in counts for feature in row)
        kept = frequencies.most_common(min(MAX_FEATURES, MAX_WEIGHTS // classes))
        df = np.array([count for _, count in kept], np.float64)
        idf = np.log((1 + len(counts)) / (1 + df)) + 1
        return cls({feature: i for i, (feature, _) in enumerate(kept)}, idf)

    def __call__(self, counts: Sequence[Counter[str]]) -> Any:
        """Return the weights of texts: a sparse matrix (texts, features), rows of norm 1."""
        from scipy.sparse import csr_array

        known = [[(self.index[f], n) for f, n in row.items() if f in self.index] for row in counts]
        starts = np.cumsum([0, *map(len, known)])
        columns = np.array([column for row in known for column, _ in row], np.int64)
        values = np.array([count for row in known for _, count in row], np.float64)
        values = (1 + np.log(values)) * self.idf[columns]
        rows = np.repeat(np.arange(len(known)), np.diff(starts))
        norms = np.sqrt(np.bincount(rows, values**2, minlength=len(known)))
        return csr_array(
            (values / norms[rows], columns, starts), shape=(len(known), len(self.index))
        )


def count_features(rows: Sequence[Sequence[str]]) -> list[Counter[str]]:
    """Count the features of each text or pair."""
    return [Counter(features(texts)) for texts in rows]


@dataclass(frozen=True)
class TfidfClassifier:
    """Multinomial logistic regression with an L2 penalty, the bias without one."""

    vectorizer: Vectorizer
    labels: tuple[str, ...]
    weights: FloatArray  # (features + 1, labels): the bias last

    @classmethod
    def fit(cls, rows: Sequence[Sequence[str]], labels: Sequence[str]) -> Self:
        """Minimize the penalized loss by L-BFGS."""
        counts = count_features(rows)
        names = tuple(sorted({*labels}))
        vectorizer = Vectorizer.fit(counts, len(names))
        targets = np.array([names.index(label) for label in labels])
        return cls(vectorizer, names, fit_logistic(vectorizer(counts), targets, len(names)))

    def predict(self, rows: Sequence[Sequence[str]]) -> list[str]:
        """Return the most probable label of each text or pair."""
        return [self.labels[best] for best in self.scores(rows).argmax(1).tolist()]

    def scores(self, rows: Sequence[Sequence[str]]) -> FloatArray:
        """Return the logits of each text or pair: (rows, labels)."""
        scores: FloatArray = self.vectorizer(count_features(rows)) @ self.weights[:-1]
        return scores + self.weights[-1]


@dataclass(frozen=True)
class TfidfRegressor:
    """Ridge regression: a number for each text or pair."""

    vectorizer: Vectorizer
    weights: FloatArray  # (features,)
    mean: float

    @classmethod
    def fit(cls, rows: Sequence[Sequence[str]], numbers: Sequence[float]) -> Self:
        """Solve the penalized least squares of the numbers around their mean."""
        from scipy.sparse.linalg import lsqr

        counts = count_features(rows)
        vectorizer, mean = Vectorizer.fit(counts), float(np.mean(numbers))
        solved = lsqr(vectorizer(counts), np.asarray(numbers) - mean, damp=1.0)
        return cls(vectorizer, solved[0], mean)

    def predict(self, rows: Sequence[Sequence[str]]) -> list[float]:
        """Return the number of each text or pair."""
        inputs = self.vectorizer(count_features(rows))
        return [*map(float, inputs @ self.weights + self.mean)]


def fit_logistic(inputs: Any, targets: NDArray[np.int64], classes: int) -> FloatArray:
    """Return the weights of multinomial logistic regression: (features + 1, classes)."""
    from scipy.optimize import minimize

    rows, size = np.arange(len(targets)), inputs.shape[1]
    transposed = inputs.T.tocsr()
    # The loss is divided by its weight, so that the gradient has the scale of a mean.
    scale, penalty = 1 / len(targets), 1 / (INVERSE_PENALTY * len(targets))

    def loss(flat: FloatArray) -> tuple[float, FloatArray]:
        weights = flat.reshape(size + 1, classes)
        scores = inputs @ weights[:-1] + weights[-1]
        scores -= scores.max(1, keepdims=True)
        probabilities = np.exp(scores)
        totals = probabilities.sum(1)
        nll = np.log(totals) - scores[rows, targets]
        probabilities /= totals[:, None]
        probabilities[rows, targets] -= 1
        gradient = np.empty_like(weights)
        gradient[:-1] = scale * (transposed @ probabilities) + penalty * weights[:-1]
        gradient[-1] = scale * probabilities.sum(0)
        value = scale * nll.sum() + penalty / 2 * float((weights[:-1] ** 2).sum())
        return float(value), gradient.ravel()

    start = np.zeros((size + 1) * classes)
    found = minimize(
        loss,
        start,
        jac=True,
        method="L-BFGS-B",
        options={"maxiter": MAX_LBFGS_ITERATIONS, "gtol": 1e-5},
    )
    return np.asarray(found.x.reshape(size + 1, classes))
