"""chrF: what sacrebleu says, and how it was counted."""

import pytest

from kinfolk.errors import UserError
from kinfolk.metrics.text import CHRF


def test_golden_values_of_sacrebleu() -> None:
    """Written down from sacrebleu 2.6.0."""
    texts = ["the cat sat on a red mat ."], ["the cat sat on the red mat ."]
    assert CHRF(*texts) == pytest.approx(70.66543891509554, abs=1e-6)
    assert "nc:6|nw:0" in CHRF.signature(*texts)
    assert CHRF(["我今天很高兴"], ["我今天非常高兴"]) == pytest.approx(24.34979544, abs=1e-6)


def test_the_same_text_has_a_hundred_and_another_none() -> None:
    assert CHRF(["a cat"], ["a cat"]) == pytest.approx(100)
    assert CHRF(["xyz"], ["abc"]) == 0


def test_each_text_needs_a_reference() -> None:
    with pytest.raises(UserError, match="got 1 texts for 2 references"):
        CHRF(["a"], ["a", "b"])
