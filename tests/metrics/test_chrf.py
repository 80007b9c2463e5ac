"""chrF: what sacrebleu says, and how it was counted."""

import pytest

from kinfolk.errors import UserError
from kinfolk.metrics.text import chrf


def test_golden_values_of_sacrebleu() -> None:
    """Written down from sacrebleu 2.6.0."""
    found = chrf(["the cat sat on a red mat ."], ["the cat sat on the red mat ."])
    assert found.score == pytest.approx(70.66543891509554, abs=1e-6)
    assert "nc:6|nw:0" in found.signature
    assert chrf(["我今天很高兴"], ["我今天非常高兴"]).score == pytest.approx(24.34979544, abs=1e-6)


def test_the_same_text_has_a_hundred_and_another_none() -> None:
    assert chrf(["a cat"], ["a cat"]).score == pytest.approx(100)
    assert chrf(["xyz"], ["abc"]).score == 0


def test_each_text_needs_a_reference() -> None:
    with pytest.raises(UserError, match="1 texts cannot be scored against 2 references"):
        chrf(["a"], ["a", "b"])
