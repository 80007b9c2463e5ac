"""The range test on made-up losses: where they fall fastest, and where they diverge."""

import math
from itertools import pairwise

import pytest

from kinfolk.errors import UserError
from kinfolk.training.lr_range import (
    check_range,
    divergence,
    exponential_rates,
    fitted_slope,
    is_over,
    running_losses,
    steepest_descent,
)

RATES = exponential_rates(100, 1e-6, 1.0)


def loss(rate: float) -> float:
    """Return a loss that falls fastest at 1e-3, and rises from 0.1 on."""
    fall = 3 / (1 + math.exp(-3 * (math.log10(rate) + 3)))
    return 8 - fall + max(0.0, 12 * (math.log10(rate) + 1))


def test_rates_rise_by_one_factor_from_the_first_to_the_last() -> None:
    assert RATES[0] == 1e-6 and RATES[-1] == pytest.approx(1.0)
    factors = [high / low for low, high in pairwise(RATES)]
    assert max(factors) == pytest.approx(min(factors))


def test_the_steepest_descent_is_found_without_a_delay() -> None:
    losses = [loss(rate) for rate in RATES]
    found = steepest_descent(RATES, losses, 100)
    assert found is not None and 0.7e-3 < found < 1.4e-3


def test_a_rise_after_the_lowest_loss_does_not_count() -> None:
    """After a spike the loss falls faster than anywhere, which is no descent."""
    losses = [loss(rate) for rate in RATES[:85]] + [40.0, 60.0, 30.0, 9.0, 8.0]
    found = steepest_descent(RATES, losses, 100)
    assert found is not None and 0.7e-3 < found < 1.4e-3


def test_losses_that_only_rise_have_no_descent() -> None:
    losses = [5 + 0.1 * step for step in range(100)]
    assert steepest_descent(RATES, losses, 100) is None


def test_it_diverges_where_the_loss_is_as_high_as_at_first() -> None:
    losses = [loss(rate) for rate in RATES]
    found, smoothed = divergence(RATES, losses), running_losses(losses)
    assert found is not None
    step = RATES.index(found)
    assert smoothed[step] > smoothed[0] >= smoothed[step - 1]
    assert divergence(RATES, losses[:80]) is None


def test_four_times_the_lowest_loss_diverges_also_below_the_first() -> None:
    losses = [*(9 - 0.1 * step for step in range(85)), *([5.0] * 15)]
    smoothed = running_losses(losses)
    assert max(smoothed[85:]) < smoothed[0]
    found = divergence(RATES, losses)
    assert found is not None
    step = RATES.index(found)
    assert is_over(smoothed[: step + 1]) and not is_over(smoothed[:step])


def test_the_running_mean_has_no_bias_at_its_start() -> None:
    assert running_losses([5.0] * 4) == pytest.approx([5.0] * 4)
    assert running_losses([4.0, 1.0])[1] == pytest.approx((0.8 * 4 + 1) / 1.8)


def test_a_slope_is_that_of_the_line() -> None:
    assert fitted_slope([1.0, 3.0, 5.0, 7.0]) == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("steps", "lowest", "highest", "sentence"),
    [
        (100, 1.0, 1e-3, "--from 1 must be above 0 and below --to 0.001"),
        (100, 1e-3, 1e-3, "--from 0.001 must be above 0 and below --to 0.001"),
        (100, 0.0, 1.0, "--from 0 must be above 0"),
        (100, 1e-6, math.inf, "below --to inf"),
        (100, math.nan, 1.0, "--from nan"),
        (9, 1e-6, 1.0, r"--steps must be at least 10 \(got 9\)"),
    ],
)
def test_a_wrong_range_is_one_sentence(
    steps: int, lowest: float, highest: float, sentence: str
) -> None:
    with pytest.raises(UserError, match=sentence):
        check_range(steps, lowest, highest)
