"""What every schedule has in common, and each one's own shape."""

import math
from collections.abc import Callable
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinfolk.errors import UserError
from kinfolk.training import optimizer
from kinfolk.training.config import Schedule, TrainConfig

FALLING = ("linear", "cosine", "trapezoid")
CLIMBING = [name for name in get_args(Schedule) if name != "slanted"]  # which starts above 0


def lr_schedule(name: Schedule, **settings: Any) -> Callable[[int], float]:
    return optimizer.lr_schedule(TrainConfig(schedule=name, **{"min_lr_ratio": 0.0, **settings}))


@st.composite
def runs(draw: st.DrawFn) -> dict[str, float]:
    steps = draw(st.integers(1, 300))
    return {
        "steps": steps,
        "warmup": draw(st.integers(0, steps)),
        "decay_ratio": draw(st.floats(0, 1)),
        "min_lr_ratio": draw(st.floats(0, 1)),
    }


@pytest.mark.parametrize("name", CLIMBING)
@given(run=runs())
def test_the_factor_climbs_to_one_and_never_climbs_again(name: str, run: dict) -> None:
    factor = lr_schedule(name, **run)
    factors = [factor(step) for step in range(run["steps"])]
    top = max(run["warmup"] - 1, 0)
    assert all(0 <= f <= 1 for f in factors)
    assert factors[0] > 0
    assert factors[top] == 1
    assert factors[: run["warmup"]] == [(s + 1) / run["warmup"] for s in range(run["warmup"])]
    assert all(b <= a + 1e-12 for a, b in zip(factors[top:], factors[top + 1 :], strict=False))


@pytest.mark.parametrize("name", get_args(Schedule))
@pytest.mark.parametrize("warmup", [0, 1, 100])
def test_no_step_jumps(name: str, warmup: int) -> None:
    factor = lr_schedule(name, steps=10_000, warmup=warmup, min_lr_ratio=0.1)
    start = max(warmup, 100)  # 1 / sqrt(step) is steep at its beginning
    jumps = [abs(factor(step + 1) - factor(step)) for step in range(start - 2, 9_999)]
    assert max(jumps) <= 1 / start + 1e-12


@pytest.mark.parametrize("name", FALLING)
@given(run=runs())
def test_what_falls_ends_at_the_floor_exactly(name: str, run: dict) -> None:
    last, top = run["steps"] - 1, max(run["warmup"] - 1, 0)
    factor = lr_schedule(name, **run)
    if last > top and (name != "trapezoid" or run["decay_ratio"] * run["steps"] > 1e-9):
        assert factor(last) == run["min_lr_ratio"]
        assert factor(last + 1000) == run["min_lr_ratio"]


def test_linear_is_halfway_down_halfway() -> None:
    assert lr_schedule("linear", steps=101, warmup=1)(50) == 0.5
    assert lr_schedule("linear", steps=101, warmup=1, min_lr_ratio=0.5)(50) == 0.75


def test_cosine_is_halfway_down_halfway() -> None:
    factor = lr_schedule("cosine", steps=101, warmup=1)
    assert factor(50) == pytest.approx(0.5)
    assert factor(25) == pytest.approx((1 + math.cos(math.pi / 4)) / 2)


def test_inverse_root_is_the_formula_of_2017() -> None:
    warmup, width = 4000, 512

    def paper(number: int) -> float:  # Vaswani et al. 2017, equation 3; its steps count from 1
        return width**-0.5 * min(number**-0.5, number * warmup**-1.5)

    factor = lr_schedule("inverse_root", steps=100_000, warmup=warmup)
    for step in (0, 1, 3998, 3999, 4000, 15_999, 99_999):
        assert factor(step) == pytest.approx(paper(step + 1) / paper(warmup))
    assert factor(15_999) == 0.5
    assert lr_schedule("inverse_root", steps=100_000, warmup=10, min_lr_ratio=0.25)(99_999) == 0.25


def test_constant_is_level_to_the_end() -> None:
    factor = lr_schedule("constant", steps=100, warmup=10)
    assert {factor(step) for step in range(9, 100)} == {1.0}


def test_trapezoid_falls_over_the_last_share_only() -> None:
    factor = lr_schedule("trapezoid", steps=100, warmup=10, decay_ratio=0.2)
    assert {factor(step) for step in range(9, 80)} == {1.0}
    assert factor(89) == pytest.approx(0.5)
    assert factor(99) == 0.0


def test_a_warm_up_longer_than_the_run_is_a_sentence() -> None:
    with pytest.raises(UserError, match=r"train\.warmup=11 exceeds train\.steps=10"):
        lr_schedule("linear", steps=10, warmup=11)


def slanted_triangle(number: int, steps: int, cut: int) -> float:
    """Howard and Ruder 2018, equation 3, of the peak; `number` counts from 1."""
    share = number / cut if number < cut else 1 - (number - cut) / (steps - cut)
    return (1 + share * 31) / 32


@pytest.mark.parametrize(("steps", "warmup", "cut"), [(100, 0, 10), (2000, 0, 200), (100, 40, 40)])
def test_slanted_is_the_formula_of_2018(steps: int, warmup: int, cut: int) -> None:
    factor = lr_schedule("slanted", steps=steps, warmup=warmup)
    expected = [slanted_triangle(number, steps, cut) for number in range(1, steps + 1)]
    assert [factor(step) for step in range(steps)] == pytest.approx(expected, rel=1e-12)
    assert factor(cut - 1) == 1 and factor(steps - 1) == factor(steps + 99) == 1 / 32


@given(steps=st.integers(1, 300), warmup=st.integers(0, 300), floor=st.floats(0, 1))
def test_slanted_has_one_peak_and_never_falls_below_its_foot(
    steps: int, warmup: int, floor: float
) -> None:
    factor = lr_schedule("slanted", steps=steps, warmup=min(warmup, steps), min_lr_ratio=floor)
    factors = [factor(step) for step in range(steps)]
    top = factors.index(1.0)
    assert factors[: top + 1] == sorted(factors[: top + 1])
    assert factors[top:] == sorted(factors[top:], reverse=True)
    assert min(factors) >= 1 / 32
