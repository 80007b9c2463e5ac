"""Metrics of labels and numbers equal those of scikit-learn and scipy."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinfolk.errors import UserError
from kinfolk.metrics.classification import (
    Accuracy,
    BinaryF1,
    MacroF1,
    MatthewsCorrelation,
    Pearson,
    Spearman,
    confusion_matrix,
)

REFERENCES = ["pos", "neg", "neu", "neg", "neg", "pos", "pos", "neu", "neg", "pos", "neu", "neg"]
PREDICTIONS = ["pos", "neg", "neg", "neg", "pos", "pos", "neu", "neu", "neg", "pos", "pos", "neg"]
PAIRS = st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from("abcd")), min_size=1)
NUMBERS = st.integers(-500, 500).map(lambda number: number / 100)
SCALES = st.lists(st.tuples(NUMBERS, NUMBERS), min_size=2, max_size=30)
accuracy, macro_f1, matthews = Accuracy(), MacroF1(), MatthewsCorrelation()
pearson, spearman = Pearson(), Spearman()


def test_golden_values_of_scikit_learn() -> None:
    """Written down from scikit-learn 1.9.1."""
    table = confusion_matrix(PREDICTIONS, REFERENCES)
    assert table.labels == ("neg", "neu", "pos")
    assert accuracy(PREDICTIONS, REFERENCES) == pytest.approx(2 / 3)
    assert matthews(PREDICTIONS, REFERENCES) == pytest.approx(0.48924605479008165, abs=1e-12)
    assert macro_f1(PREDICTIONS, REFERENCES) == pytest.approx(0.6222222222222222)
    found = {label: (s.precision, s.recall, s.f1, s.support) for label, s in table.scores.items()}
    assert found["neg"] == pytest.approx((0.8, 0.8, 0.8, 5))
    assert found["neu"] == pytest.approx((0.5, 1 / 3, 0.4, 3))
    assert found["pos"] == pytest.approx((0.6, 0.75, 2 / 3, 4))
    assert BinaryF1(positive_label="pos")(PREDICTIONS, REFERENCES) == table.scores["pos"].f1


def test_a_table_is_in_the_order_given() -> None:
    table = confusion_matrix(PREDICTIONS, REFERENCES, ["pos", "neu", "neg"])
    assert table.counts.tolist() == [[3, 1, 0], [1, 1, 1], [1, 0, 4]]
    assert confusion_matrix([10, 2], [2, 2]).labels == (2, 10)


def test_a_label_without_a_row_has_no_f1() -> None:
    table = confusion_matrix(["a", "b"], ["a", "b"], ["a", "b", "c"])
    assert table.scores["c"].f1 == 0
    assert BinaryF1(positive_label="c")(["a"], ["a"]) == 0


def test_counts_of_more_than_a_byte_add_up() -> None:
    predictions, references = ["a"] * 200 + ["b"] * 200, ["a"] * 300 + ["b"] * 100
    assert macro_f1(predictions, references) == pytest.approx((0.8 + 2 / 3) / 2)


@pytest.mark.filterwarnings("ignore")  # the peer warns where there is one label only
@given(PAIRS)
def test_labels_equal_scikit_learn(pairs: list[tuple[str, str]]) -> None:
    peer: Any = pytest.importorskip("sklearn.metrics")
    predictions, references = (list(side) for side in zip(*pairs, strict=True))
    table = confusion_matrix(predictions, references)
    assert table.counts.tolist() == peer.confusion_matrix(references, predictions).tolist()
    assert accuracy(predictions, references) == pytest.approx(
        peer.accuracy_score(references, predictions)
    )
    assert matthews(predictions, references) == pytest.approx(
        peer.matthews_corrcoef(references, predictions)
    )
    assert -1 - 1e-12 <= matthews(predictions, references) <= 1 + 1e-12
    assert matthews(references, predictions) == pytest.approx(matthews(predictions, references))
    expected = peer.f1_score(references, predictions, average="macro", zero_division=0)
    assert macro_f1(predictions, references) == pytest.approx(expected)
    for label in table.labels:
        expected = peer.precision_recall_fscore_support(
            references, predictions, labels=[label], average=None, zero_division=0
        )
        own = table.scores[label]
        assert (own.precision, own.recall, own.f1) == pytest.approx([e[0] for e in expected[:3]])
        assert BinaryF1(positive_label=label)(predictions, references) == own.f1


def test_golden_values_of_scipy() -> None:
    """Written down from scipy 1.17.1; two of the numbers are equal."""
    said, truth = [4.2, 0.3, 2.5, 3.1, 5.0, 1.2, 3.1], [5.0, 0.0, 3.0, 2.6, 4.4, 2.0, 3.8]
    assert pearson(said, truth) == pytest.approx(0.9255555968366511, abs=1e-12)
    assert spearman(said, truth) == pytest.approx(0.900937462695559, abs=1e-12)


@pytest.mark.filterwarnings("ignore")  # of two examples the peer has no p-value
@given(SCALES)
def test_numbers_equal_scipy(pairs: list[tuple[float, float]]) -> None:
    peer: Any = pytest.importorskip("scipy.stats")
    said, truth = (list(side) for side in zip(*pairs, strict=True))
    if min(len(set(said)), len(set(truth))) > 1:
        line, rank = peer.pearsonr(said, truth), peer.spearmanr(said, truth)
        assert pearson(said, truth) == pytest.approx(line.statistic, abs=1e-9)
        assert spearman(said, truth) == pytest.approx(rank.statistic, abs=1e-9)
    else:
        assert pearson(said, truth) == spearman(said, truth) == 0


def test_numbers_may_be_large_or_all_the_same() -> None:
    assert pearson([1e300, 2e300, 3e300], [1, 2, 3]) == pytest.approx(1)
    assert pearson([2.5, 2.5, 2.5], [1, 2, 3]) == 0
    assert spearman([1, 2, 3], [0, 0, 0]) == 0
    assert matthews(["a", "a"], ["a", "b"]) == 0


def test_what_cannot_be_scored_is_a_sentence() -> None:
    with pytest.raises(UserError, match="got 3 labels for 2 references"):
        accuracy(["a", "b", "c"], ["a", "b"])
    with pytest.raises(UserError, match="no labels to score"):
        macro_f1([], [])
    with pytest.raises(UserError, match="got 1 numbers for 2 references"):
        pearson([1.0], [1.0, 2.0])
    with pytest.raises(UserError, match="no numbers"):
        spearman([], [])
    with pytest.raises(UserError, match="number 2 is nan"):
        pearson([1.0, math.nan], [1.0, 2.0])
    with pytest.raises(UserError, match="label 'c' is not in 'a', 'b'"):
        confusion_matrix(["a"], ["c"], ["a", "b"])
