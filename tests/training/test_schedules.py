"""What every schedule has in common, and each one's own shape."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinfolk.errors import UserError
from kinfolk.training.schedules import SCHEDULES, lr_schedule

FALLING = ("linear", "cosine", "trapezoid")
CLIMBING = [name for name in SCHEDULES if name != "slanted"]  # which has a foot: test_slanted.py


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


@pytest.mark.parametrize("name", SCHEDULES)
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
