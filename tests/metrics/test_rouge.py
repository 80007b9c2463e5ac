"""ROUGE: Lin's examples, and scores that rouge-score gave."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinfolk.errors import UserError
from kinfolk.metrics.text import ROUGE, lcs_length


def rouge(predictions: Sequence[str], references: Sequence[str]) -> list[float]:
    """Return ROUGE-1, ROUGE-2 and ROUGE-L."""
    return [metric(predictions, references) for metric in ROUGE]


@pytest.mark.parametrize(
    ("reference", "written", "expected"),
    [
        # Lin 2004, section 3: the same words in another order.
        ("police killed the gunman", "police kill the gunman", (3 / 4, 1 / 3, 3 / 4)),
        ("police killed the gunman", "the gunman kill police", (3 / 4, 1 / 3, 1 / 2)),
        # The tests of rouge-score.
        ("testing one two", "testing", (1 / 2, 0, 1 / 2)),
        ("testing one two", "testing one", (4 / 5, 2 / 3, 4 / 5)),
        ("testing one two", "testing two", (4 / 5, 0, 4 / 5)),
        ("testing one two", "", (0, 0, 0)),
        ("The cat sat on the mat.", "the cat lay on a mat", (2 / 3, 1 / 5, 2 / 3)),
    ],
)
def test_golden_values(reference: str, written: str, expected: tuple[float, ...]) -> None:
    assert rouge([written], [reference]) == pytest.approx(expected)


def test_a_score_is_the_mean_of_all() -> None:
    written, references = ["a b", "c d", "x"], ["a b", "c e", "y"]
    each = [metric.values(written, references) for metric in ROUGE]
    assert each == [[1, 0.5, 0], [1, 0, 0], [1, 0.5, 0]]
    assert rouge(written, references) == [0.5, 1 / 3, 0.5]


def test_chinese_is_counted_by_its_characters() -> None:
    found = rouge(["中国发布 iPhone 6 新规"], ["中国发布新规：支持iPhone"])
    # 8 words and 9, of which 7 match; 4 pairs of 7 and 8; 中国发布新规 in this order
    assert found == pytest.approx([2 * 7 / 17, 2 * 4 / 15, 2 * 6 / 17])


def test_other_letters_are_no_words_in_english() -> None:
    """As in rouge-score, which knows a to z and digits."""
    assert rouge(["a 中 b"], ["a b"]) == [1, 1, 1]


def test_scores_equal_those_of_rouge_score() -> None:
    """`golden/make.py` wrote them."""
    file = Path(__file__).parent / "golden" / "rouge.json"
    cases, wrong = json.loads(file.read_text("utf-8"))["cases"], []
    for case in cases:
        found = rouge([case["written"]], [case["reference"]])
        expected = [case[kind] for kind in ("rouge1", "rouge2", "rougeL")]
        if found != pytest.approx(expected, abs=1e-8):
            wrong.append((case, found))
    assert len(cases) == 100
    assert not wrong, wrong


@given(st.lists(st.sampled_from("abc")), st.lists(st.sampled_from("abc")))
def test_a_subsequence_is_as_long_as_in_the_table(one: list[str], other: list[str]) -> None:
    row = [0] * (len(other) + 1)
    for word in one:
        before, row = row, [0]
        for place, wanted in enumerate(other):
            longest = max(before[place + 1], row[-1])
            row.append(before[place] + 1 if word == wanted else longest)
    assert lcs_length(one, other) == row[-1]


def test_what_cannot_be_scored_is_a_sentence() -> None:
    with pytest.raises(UserError, match="got 2 summaries for 1 references"):
        rouge(["a", "b"], ["a"])
    with pytest.raises(UserError, match="no summaries"):
        rouge([], [])
