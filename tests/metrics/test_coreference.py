"""Clusters of mentions: published values of Luo (2005) and of the reference scorer's own tests."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinfolk.errors import UserError
from kinfolk.metrics.coreference import ConllF1, CorefScores

pytest.importorskip("scipy")

CONLL = ConllF1()

LUO = ["12345", "67", "89ABC"]
KEY = ["a", "bc", "def"]


def coref_scores(predictions: Any, references: Any) -> CorefScores:
    found = CONLL.scores(CONLL.statistics(predictions, references).sum(0))
    assert found.conll == CONLL(predictions, references)
    return found


CLUSTERS = st.dictionaries(st.integers(0, 9), st.integers(0, 4)).map(
    lambda homes: [{m for m, home in homes.items() if home == n} for n in set(homes.values())]
)


@pytest.mark.parametrize(
    ("said", "muc", "b_cubed", "ceaf"),
    [
        (["12345", "6789ABC"], 94.7, 86.5, 73.3),
        (["1234589ABC", "67"], 94.7, 73.7, 66.7),
        (["123456789ABC"], 90.0, 54.5, 29.4),
        (list("123456789ABC"), 0, 40.0, 17.8),
    ],
)
def test_the_table_of_luo(said: list[str], muc: float, b_cubed: float, ceaf: float) -> None:
    found = coref_scores([said], [LUO])
    scores = [100 * one.f1 for one in (found.muc, found.b_cubed, found.ceaf)]
    assert scores == pytest.approx([muc, b_cubed, ceaf], abs=0.05)
    assert 100 * found.conll == pytest.approx((muc + b_cubed + ceaf) / 3, abs=0.05)


@pytest.mark.parametrize(
    ("said", "muc", "b_cubed", "ceaf"),
    [
        # Recall and precision of the cases A1 to A6 and A10 to A13; capitals overlap.
        (["a", "bc", "def"], (1, 1), (1, 1), (1, 1)),
        (["a", "de"], (1 / 3, 1), (7 / 18, 1), (0.6, 0.9)),
        (["a", "bcx", "defy", "z"], (1, 3 / 5), (1, (4 + 7 / 12) / 9), (0.88571, 0.66429)),
        (["a", "bcx", "dy", "z"], (1 / 3, 1 / 3), (5 / 9, 17 / 42), (0.73333, 0.55)),
        (["a", "bcxB", "dy", "z"], (1 / 3, 1 / 4), (5 / 9, 5 / 16), (0.68889, 0.51667)),
        (["a", "bcx", "dy", "Bz"], (1 / 3, 1 / 4), (5 / 9, 17 / 48), (0.73333, 0.55)),
        (["a", "b", "c", "d", "e", "f"], (0, 0), (1 / 2, 1), None),
        (["abcdef"], (1, 3 / 5), (1, 7 / 18), None),
        (["a", "b", "d", "e", "x", "y", "z"], (0, 0), (13 / 36, 4 / 7), None),
        (["abdexyz"], (1 / 3, 1 / 6), (17 / 36, 6 / 49), None),
    ],
)
def test_the_cases_of_the_reference_scorer(
    said: list[str],
    muc: tuple[float, float],
    b_cubed: tuple[float, float],
    ceaf: tuple[float, float] | None,
) -> None:
    found = coref_scores([said], [KEY])
    assert (found.muc.recall, found.muc.precision) == pytest.approx(muc)
    assert (found.b_cubed.recall, found.b_cubed.precision) == pytest.approx(b_cubed)
    if ceaf is not None:
        assert (found.ceaf.recall, found.ceaf.precision) == pytest.approx(ceaf, abs=5e-6)


def test_the_example_of_pradhan() -> None:
    """Pradhan et al. 2014: each side has mentions that the other lacks."""
    found = coref_scores([["ab", "cd", "fghi"]], [["abc", "defg"]])
    assert found.muc.f1 == pytest.approx(0.40)
    assert (found.b_cubed.recall, found.b_cubed.precision) == pytest.approx((35 / 84, 0.5))
    assert (found.ceaf.recall, found.ceaf.precision) == pytest.approx((0.65, 1.3 / 3))
    assert [found.muc.support, found.b_cubed.support, found.ceaf.support] == [5, 7, 2]


def test_documents_are_summed_before_they_are_divided() -> None:
    found = coref_scores([["ab"], ["a", "b", "c"]], [["ab"], ["abc"]])
    assert found.muc.recall == pytest.approx(1 / 3) and found.muc.precision == 1
    assert found.b_cubed.recall == pytest.approx(3 / 5)
    assert found.ceaf.precision == pytest.approx(1.5 / 4)


@given(CLUSTERS, CLUSTERS)
def test_sides_may_change_and_order_does_not_matter(
    said: list[set[int]], truth: list[set[int]]
) -> None:
    found, turned = coref_scores([said], [truth]), coref_scores([truth[::-1]], [said])
    for name in ("muc", "b_cubed", "ceaf"):
        one, other = getattr(found, name), getattr(turned, name)
        assert (one.precision, one.f1) == pytest.approx((other.recall, other.f1))
        assert 0 <= one.f1 <= 1 + 1e-12
    if truth:
        assert coref_scores([truth], [truth]).b_cubed.f1 == pytest.approx(1)
        assert coref_scores([truth], [truth]).ceaf.f1 == pytest.approx(1)


def test_what_cannot_be_scored_is_a_sentence() -> None:
    with pytest.raises(UserError, match="got 1 documents for 2 references"):
        CONLL([[]], [[], []])
    with pytest.raises(UserError, match="no documents"):
        CONLL([], [])
    with pytest.raises(UserError, match="mention b of document 1 is in two clusters"):
        coref_scores([["ab", "bc"]], [["abc"]])
    assert coref_scores([[]], [[]]).conll == 0
