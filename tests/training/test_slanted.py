"""The slanted triangle: the formula of its paper, step by step."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinfolk.training.schedules import lr_schedule


def paper(number: int, steps: int, cut: int) -> float:
    """Howard and Ruder 2018, equation 3, of the peak; `number` counts from 1."""
    share = number / cut if number < cut else 1 - (number - cut) / (steps - cut)
    return (1 + share * 31) / 32


@pytest.mark.parametrize(("steps", "warmup", "cut"), [(100, 0, 10), (2000, 0, 200), (100, 40, 40)])
def test_it_is_the_formula_of_2018(steps: int, warmup: int, cut: int) -> None:
    factor = lr_schedule("slanted", steps=steps, warmup=warmup)
    expected = [paper(number, steps, cut) for number in range(1, steps + 1)]
    assert [factor(step) for step in range(steps)] == pytest.approx(expected, rel=1e-12)
    assert factor(cut - 1) == 1 and factor(steps - 1) == factor(steps + 99) == 1 / 32


@given(steps=st.integers(1, 300), warmup=st.integers(0, 300), floor=st.floats(0, 1))
def test_it_has_one_peak_and_never_falls_below_its_foot(
    steps: int, warmup: int, floor: float
) -> None:
    factor = lr_schedule("slanted", steps=steps, warmup=min(warmup, steps), min_lr_ratio=floor)
    factors = [factor(step) for step in range(steps)]
    top = factors.index(1.0)
    assert factors[: top + 1] == sorted(factors[: top + 1])
    assert factors[top:] == sorted(factors[top:], reverse=True)
    assert min(factors) >= 1 / 32
