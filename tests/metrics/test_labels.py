"""Labels and numbers: golden values of scikit-learn and scipy, and both as peers where they are."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinfolk.errors import UserError
from kinfolk.metrics.classification import (
    Average,
    accuracy,
    binary_prf,
    confusion_matrix,
    f1,
    matthews_corrcoef,
    pearsonr,
    spearmanr,
)

TRUTH = ["pos", "neg", "neu", "neg", "neg", "pos", "pos", "neu", "neg", "pos", "neu", "neg"]
SAID = ["pos", "neg", "neg", "neg", "pos", "pos", "neu", "neu", "neg", "pos", "pos", "neg"]
AVERAGES: tuple[Average, ...] = ("micro", "macro", "weighted")
PAIRS = st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from("abcd")), min_size=1)
NUMBERS = st.integers(-500, 500).map(lambda number: number / 100)
SCALES = st.lists(st.tuples(NUMBERS, NUMBERS), min_size=2, max_size=30)


def test_golden_values_of_scikit_learn() -> None:
    """Written down from scikit-learn 1.9.1."""
    table = confusion_matrix(SAID, TRUTH)
    assert table.labels == ("neg", "neu", "pos")
    assert accuracy(SAID, TRUTH) == table.accuracy == pytest.approx(2 / 3)
    assert matthews_corrcoef(SAID, TRUTH) == pytest.approx(0.48924605479008165, abs=1e-12)
    assert f1(SAID, TRUTH, "micro") == pytest.approx(2 / 3)
    assert f1(SAID, TRUTH) == pytest.approx(0.6222222222222222)
    assert f1(SAID, TRUTH, "weighted") == pytest.approx(0.6555555555555556)
    macro, weighted = table.average("macro"), table.average("weighted")
    assert (macro.precision, macro.recall) == pytest.approx((0.6333333333333333, 113 / 180))
    assert (weighted.precision, weighted.recall) == pytest.approx((0.6583333333333333, 2 / 3))
    found = {label: (s.precision, s.recall, s.f1, s.support) for label, s in table.scores.items()}
    assert found["neg"] == pytest.approx((0.8, 0.8, 0.8, 5))
    assert found["neu"] == pytest.approx((0.5, 1 / 3, 0.4, 3))
    assert found["pos"] == pytest.approx((0.6, 0.75, 2 / 3, 4))
    assert binary_prf(SAID, TRUTH, "pos") == table.scores["pos"]


def test_a_table_is_in_the_order_given() -> None:
    table = confusion_matrix(SAID, TRUTH, ["pos", "neu", "neg"])
    assert table.counts.tolist() == [[3, 1, 0], [1, 1, 1], [1, 0, 4]]
    assert confusion_matrix([10, 2], [2, 2]).labels == (2, 10)


def test_a_label_that_is_nowhere_counts_where_it_is_named() -> None:
    table = confusion_matrix(["a", "b"], ["a", "b"], ["a", "b", "c"])
    assert table.scores["c"].f1 == 0
    assert table.average("macro").f1 == pytest.approx(2 / 3)
    assert binary_prf(["a"], ["a"], "c").f1 == 0


@pytest.mark.filterwarnings("ignore")  # the peer warns where there is one label only
@given(PAIRS)
def test_labels_equal_scikit_learn(pairs: list[tuple[str, str]]) -> None:
    peer: Any = pytest.importorskip("sklearn.metrics")
    said, truth = (list(side) for side in zip(*pairs, strict=True))
    table = confusion_matrix(said, truth)
    assert table.counts.tolist() == peer.confusion_matrix(truth, said).tolist()
    assert accuracy(said, truth) == pytest.approx(peer.accuracy_score(truth, said))
    assert matthews_corrcoef(said, truth) == pytest.approx(peer.matthews_corrcoef(truth, said))
    measure = peer.precision_recall_fscore_support
    for average in AVERAGES:
        expected = measure(truth, said, average=average, zero_division=0)
        mine = table.average(average)
        assert (mine.precision, mine.recall, mine.f1) == pytest.approx(expected[:3])
    for label in table.labels:
        expected = peer.f1_score(truth, said, labels=[label], average=None, zero_division=0)
        assert binary_prf(said, truth, label).f1 == pytest.approx(expected[0])


@given(PAIRS)
def test_averages_agree_with_what_they_mean(pairs: list[tuple[str, str]]) -> None:
    said, truth = (list(side) for side in zip(*pairs, strict=True))
    table = confusion_matrix(said, truth)
    assert table.average("micro").f1 == pytest.approx(table.accuracy)
    assert table.average("weighted").recall == pytest.approx(table.accuracy)
    assert table.average("macro").support == len(pairs)
    assert -1 - 1e-12 <= table.matthews <= 1 + 1e-12
    assert confusion_matrix(truth, said).matthews == pytest.approx(table.matthews)


def test_golden_values_of_scipy() -> None:
    """Written down from scipy 1.17.1; two of the numbers are equal."""
    said, truth = [4.2, 0.3, 2.5, 3.1, 5.0, 1.2, 3.1], [5.0, 0.0, 3.0, 2.6, 4.4, 2.0, 3.8]
    assert pearsonr(said, truth) == pytest.approx(0.9255555968366511, abs=1e-12)
    assert spearmanr(said, truth) == pytest.approx(0.900937462695559, abs=1e-12)


@pytest.mark.filterwarnings("ignore")  # of two examples the peer has no p-value
@given(SCALES)
def test_numbers_equal_scipy(pairs: list[tuple[float, float]]) -> None:
    peer: Any = pytest.importorskip("scipy.stats")
    said, truth = (list(side) for side in zip(*pairs, strict=True))
    if min(len(set(said)), len(set(truth))) > 1:
        line, rank = peer.pearsonr(said, truth), peer.spearmanr(said, truth)
        assert pearsonr(said, truth) == pytest.approx(line.statistic, abs=1e-9)
        assert spearmanr(said, truth) == pytest.approx(rank.statistic, abs=1e-9)
    else:
        assert pearsonr(said, truth) == spearmanr(said, truth) == 0


def test_numbers_may_be_large_or_all_the_same() -> None:
    assert pearsonr([1e300, 2e300, 3e300], [1, 2, 3]) == pytest.approx(1)
    assert pearsonr([2.5, 2.5, 2.5], [1, 2, 3]) == 0
    assert spearmanr([1, 2, 3], [0, 0, 0]) == 0
    assert matthews_corrcoef(["a", "a"], ["a", "b"]) == 0


def test_what_cannot_be_scored_is_a_sentence() -> None:
    with pytest.raises(UserError, match="3 labels cannot be scored against 2"):
        accuracy(["a", "b", "c"], ["a", "b"])
    with pytest.raises(UserError, match="there are no labels to score"):
        f1([], [])
    with pytest.raises(UserError, match="1 numbers cannot be scored against 2"):
        pearsonr([1.0], [1.0, 2.0])
    with pytest.raises(UserError, match="there are no numbers"):
        spearmanr([], [])
    with pytest.raises(UserError, match="number 2 is nan"):
        pearsonr([1.0, math.nan], [1.0, 2.0])
    with pytest.raises(UserError, match="label 'c' is not among 'a', 'b'"):
        confusion_matrix(["a"], ["c"], ["a", "b"])
