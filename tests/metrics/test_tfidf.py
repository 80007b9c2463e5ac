"""TF-IDF with logistic regression: the features, and the optimum that scikit-learn finds."""

import random

import numpy as np
import pytest

from kinfolk.metrics.tfidf import (
    INVERSE_PENALTY,
    TfidfClassifier,
    TfidfRegressor,
    Vectorizer,
    count_features,
    features,
)
from support.learnable import opinion

CHANCE = random.Random(0)
LABELS = [CHANCE.choice(["bad", "good"]) for _ in range(120)]
ROWS = [(opinion(CHANCE, label == "good"),) for label in LABELS]


def test_a_text_has_words_and_pairs_of_neighbours() -> None:
    assert [*features(["A fine Film, fine!"])] == [
        *("a", "fine", "film", "fine"),
        *("a fine", "fine film", "film fine"),
    ]


def test_chinese_and_japanese_are_read_by_character() -> None:
    assert [*features(["东京2024 お茶"])] == [
        *("东", "京", "2024", "お", "茶"),
        *("东 京", "京 2024", "2024 お", "お 茶"),
    ]


def test_a_pair_has_the_features_of_each_text_and_those_of_both() -> None:
    assert [*features(["a cat", "the cat"])] == [
        *("a: a", "a: cat", "a: a cat"),
        *("b: the", "b: cat", "b: the cat"),
        "both: cat",
    ]


def test_weights_and_optimum_are_those_of_scikit_learn() -> None:
    linear_model = pytest.importorskip("sklearn.linear_model")
    text = pytest.importorskip("sklearn.feature_extraction.text")
    three = [label if i % 3 else "odd" for i, label in enumerate(LABELS)]
    theirs = text.TfidfVectorizer(analyzer=features, sublinear_tf=True)
    inputs = theirs.fit_transform(ROWS)
    ours = TfidfClassifier.fit(ROWS, three)
    order = [theirs.vocabulary_[feature] for feature in ours.vectorizer.index]
    mine = ours.vectorizer(count_features(ROWS))
    np.testing.assert_allclose(mine.toarray(), inputs.toarray()[:, order], atol=1e-12)
    model = linear_model.LogisticRegression(C=INVERSE_PENALTY, max_iter=1000, tol=1e-8)
    model.fit(inputs, three)
    scores = np.exp(mine @ ours.weights[:-1] + ours.weights[-1])
    found = scores / scores.sum(1, keepdims=True)
    np.testing.assert_allclose(found, model.predict_proba(inputs), atol=2e-3)
    assert ours.predict(ROWS) == model.predict(inputs).tolist()


def test_ridge_regression_is_that_of_scikit_learn() -> None:
    linear_model = pytest.importorskip("sklearn.linear_model")
    numbers = [
        2.5 if label == "good" else len(row[0]) / 20
        for row, label in zip(ROWS, LABELS, strict=True)
    ]
    ours = TfidfRegressor.fit(ROWS, numbers)
    inputs = ours.vectorizer(count_features(ROWS))
    model = linear_model.Ridge(alpha=1.0, fit_intercept=False, tol=1e-8)
    model.fit(inputs, np.array(numbers) - np.mean(numbers))
    expected = model.predict(inputs) + np.mean(numbers)
    assert ours.predict(ROWS) == pytest.approx(expected.tolist(), abs=1e-4)


def test_many_classes_keep_fewer_features(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = count_features(ROWS)
    monkeypatch.setattr("kinfolk.metrics.tfidf.MAX_WEIGHTS", 20)
    kept = Vectorizer.fit(counts, classes=4).index
    assert len(kept) == 5
    frequency = {f: sum(f in row for row in counts) for row in counts for f in row}
    assert min(frequency[f] for f in kept) >= max(frequency[f] for f in frequency if f not in kept)


def test_a_text_without_known_features_gets_a_class() -> None:
    assert TfidfClassifier.fit(ROWS, LABELS).predict([("",), ("zebra",)])[0] in LABELS
