"""The points of a curve: those that can be drawn, smoothed, thinned out, and as a table."""

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Floats: TypeAlias = npt.NDArray[np.float64]
Points: TypeAlias = list[tuple[float, float]]
Estimate: TypeAlias = tuple[float, float, float]  # value, low and high

MAX_POINTS = 600  # of a curve
TABLE_ROWS = 20  # of a table of curves
SIGNIFICANT = 6  # digits of a coordinate


def finite_points(xs: Sequence[float], ys: Sequence[float]) -> tuple[Floats, Floats]:
    """Return the points of a series that can be drawn."""
    all_xs, all_ys = (np.asarray(values, dtype=np.float64) for values in (xs, ys))
    good = np.isfinite(all_xs) & np.isfinite(all_ys)
    return all_xs[good], all_ys[good]


def running_mean(ys: Floats) -> Floats:
    """Return a running mean; the window grows from the first point, where a loss falls fastest."""
    if len(ys) < 40:
        return ys
    index = np.arange(len(ys))
    half = np.minimum(len(ys) // 50 + 1, index)
    low, high = index - half, np.minimum(index + half, len(ys) - 1) + 1
    sums = np.concatenate([[0.0], np.cumsum(ys)])
    mean: Floats = (sums[high] - sums[low]) / (high - low)
    return mean


def downsample(count: int, most: int) -> npt.NDArray[np.intp]:
    """Return the indices of at most `most` of `count` points, evenly spaced."""
    if count <= most:
        return np.arange(count)
    return np.unique(np.linspace(0, count - 1, most).round().astype(np.intp))


def curve_points(xs: Floats, ys: Floats) -> Points:
    """Return at most MAX_POINTS points, with the digits that a reader can see."""
    kept = downsample(len(xs), MAX_POINTS)
    return [
        (round_significant(x), round_significant(y))
        for x, y in zip(xs[kept], ys[kept], strict=True)
    ]


def round_significant(value: float) -> float:
    """Round to SIGNIFICANT digits."""
    return float(f"{value:.{SIGNIFICANT}g}")


def curve_table(
    curves: Sequence[Points], digits: int, names: Sequence[str] = ()
) -> list[list[str]]:
    """Return rows of x and the newest value of each curve there; empty before its first point.

    `names` are those of x = 1, 2, 3 ...
    """
    all_xs = np.unique([x for points in curves for x, _ in points])
    rows = []
    for x in all_xs[downsample(len(all_xs), TABLE_ROWS)]:
        row = [f"{x:,g} {names[int(x) - 1]}" if names else f"{x:,g}"]
        for points in curves:
            past = [y for at, y in points if at <= x]
            inside = bool(past) and x <= points[-1][0]
            row.append(f"{past[-1]:,.{digits}f}" if inside else "")
        rows.append(row)
    return rows
