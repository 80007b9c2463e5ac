"""The learning-rate range test (Smith 2017): its rates, and what its losses say about them."""

import math
from collections.abc import Sequence

from kinfolk.errors import UserError

MIN_RANGE_STEPS = 10
SMOOTHING = 0.8  # weight of the losses before in the running mean
STOP_FACTOR = 4.0  # times the lowest loss, at which the test stops
SLOPE_FRACTION = 0.1  # of the steps: the losses that a slope is fitted to


def check_range(steps: int, lowest: float, highest: float) -> None:
    """Refuse a range that is empty, and steps that are too few for it."""
    if not 0 < lowest < highest < math.inf:
        raise UserError(f"--from {lowest:g} must be above 0 and below --to {highest:g}")
    if steps < MIN_RANGE_STEPS:
        raise UserError(f"--steps must be at least {MIN_RANGE_STEPS} (got {steps})")


def exponential_rates(steps: int, lowest: float, highest: float) -> list[float]:
    """Return the rate of each step: the ratio of two neighbours is the same everywhere."""
    return [lowest * (highest / lowest) ** (step / (steps - 1)) for step in range(steps)]


def running_losses(losses: Sequence[float]) -> list[float]:
    """Return the exponential running mean of losses, without a bias to zero at its start."""
    smoothed, mean = [], 0.0
    for number, loss in enumerate(losses, 1):
        mean = SMOOTHING * mean + (1 - SMOOTHING) * loss
        smoothed.append(mean / (1 - SMOOTHING**number))
    return smoothed


def is_over(smoothed: Sequence[float]) -> bool:
    """Return whether the last loss is several times the lowest."""
    return smoothed[-1] > STOP_FACTOR * min(smoothed)


def steepest_descent(rates: Sequence[float], losses: Sequence[float], steps: int) -> float | None:
    """Return the rate where a line through neighbouring losses falls fastest, if one falls.

    The slope is by the logarithm of the rate; `steps` are those of the whole range. Losses after
    the lowest smoothed one do not count.
    """
    half = max(2, round(SLOPE_FRACTION * steps / 2))
    ends = lowest_index(running_losses(losses)) + 1
    slopes = {
        middle: fitted_slope(losses[middle - half : middle + half + 1])
        for middle in range(half, ends - half)
    }
    middle = min(slopes, key=lambda index: slopes[index], default=None)
    return None if middle is None or slopes[middle] >= 0 else rates[middle]


def divergence(rates: Sequence[float], losses: Sequence[float]) -> float | None:
    """Return the first rate at which the smoothed loss has risen to its first value again.

    Four times the lowest loss is enough where that is less.
    """
    smoothed = running_losses(losses)
    lowest = lowest_index(smoothed)
    limit = min(smoothed[0], STOP_FACTOR * smoothed[lowest])
    after = range(lowest + 1, len(smoothed))
    return next((rates[step] for step in after if smoothed[step] > limit), None)


def lowest_index(values: Sequence[float]) -> int:
    """Return the place of the lowest value."""
    return min(range(len(values)), key=lambda index: values[index])


def fitted_slope(values: Sequence[float]) -> float:
    """Return the slope of the least-squares line through values at equal distances."""
    middle, mean = (len(values) - 1) / 2, sum(values) / len(values)
    offsets = [index - middle for index in range(len(values))]
    products = (offset * (value - mean) for offset, value in zip(offsets, values, strict=True))
    return sum(products) / sum(offset**2 for offset in offsets)
