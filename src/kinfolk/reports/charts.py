"""Two charts as inline SVG: curves by step, and bars with reference lines.

Colors and type come from `style.css`: class `c0` is the first model's color.
"""

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Floats: TypeAlias = npt.NDArray[np.float64]

NUM_COLORS = 8  # in the page's palette; the ninth model starts again
MAX_POINTS = 500  # of a curve
WIDTH = 760
CHAR_WIDTH = 7.2  # pixels, at a font size of 13
LABEL_HEIGHT = 20  # pixels


@dataclass(frozen=True)
class Series:
    """A curve; points that are not finite are skipped."""

    name: str
    xs: Sequence[float]
    ys: Sequence[float]


@dataclass(frozen=True)
class ReferenceLine:
    """A horizontal reference line across the chart."""

    name: str
    y: float


@dataclass(frozen=True)
class Bar:
    """A model's score, with a note below the name; muted where it is not comparable."""

    name: str
    value: float
    note: str = ""
    color: int = 0
    muted: bool = False


@dataclass(frozen=True)
class Label:
    """A name at the right edge, near a height, and tied to the curve that ends there."""

    height: float
    name: str
    value: str
    style: str
    has_leader: bool = True


@dataclass(frozen=True)
class Scale:
    """A linear map from a range of values to a range of pixels."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, values: Floats) -> Floats:
        fraction: Floats = (np.clip(values, self.low, self.high) - self.low) / (
            self.high - self.low
        )
        return self.start + fraction * (self.end - self.start)

    def at(self, value: float) -> float:
        return float(self(np.array(value)))


def line_chart(series: Sequence[Series], lines: Sequence[ReferenceLine], *, x: str, y: str) -> str:
    """Draw each series pale and smoothed, each line dashed, and every name at the right edge."""
    lines = [line for line in lines if math.isfinite(line.y)]
    drawn = [finite_points(curve) for curve in series]
    smooth = [running_mean(ys) for _, ys in drawn]
    # Single spikes are clipped; they would flatten the rest.
    typical = [np.percentile(ys, [1, 99]) for _, ys in drawn if len(ys)]
    heights = np.concatenate([[line.y for line in lines], *smooth, *typical])
    names = [*(curve.name for curve in series), *(line.name for line in lines)]
    right = min(240, 84 + round(CHAR_WIDTH * max(map(len, names), default=0)))
    left, top, bottom, edge = 52, 12, 46, WIDTH - right
    height = max(380, LABEL_HEIGHT * len(names) + top + bottom)
    to_x = Scale(*axis_range(np.concatenate([[], *(xs for xs, _ in drawn)]), 0), left, edge)
    to_y = Scale(*axis_range(heights, 0.05), height - bottom, top)

    parts = axes(to_x, to_y, x, y)
    labels = []
    for index, line in enumerate(lines):
        end, style = to_y.at(line.y), f"rule r{index % 2}"
        parts.append(f'<path class="{style}" d="M{left} {end:.1f}H{edge}"/>')
        labels.append(Label(end, line.name, f"{line.y:.2f}", style))
    for index, ((xs, ys), soft) in enumerate(zip(drawn, smooth, strict=True)):
        style = f"c{index % NUM_COLORS}"
        if not len(xs):
            labels.append(Label(height, names[index], "no data", style, has_leader=False))
            continue
        points = downsample(xs)
        if soft is not ys:
            parts.append(path(f"raw {style}", to_x(xs[points]), to_y(ys[points])))
        parts.append(path(f"curve {style}", to_x(xs[points]), to_y(soft[points])))
        last, end = to_x.at(xs[-1]), to_y.at(soft[-1])
        parts.append(f'<circle class="{style}" cx="{last:.1f}" cy="{end:.1f}" r="3.5"/>')
        labels.append(Label(end, names[index], f"{soft[-1]:.2f}", style, last > edge - 4))
    parts += legend(labels, edge + 14, top + LABEL_HEIGHT / 2, height - bottom)
    return svg(f"{y} against {x}: {', '.join(names)}", height, parts)


def bars(values: Sequence[Bar], lines: Sequence[ReferenceLine], *, x: str) -> str:
    """Draw a bar per model from zero, and each reference line across all of them."""
    lines = [line for line in lines if math.isfinite(line.y)]
    letters = max((max(1.15 * len(bar.name), len(bar.note)) for bar in values), default=0)
    left, right = min(270, 20 + round(CHAR_WIDTH * letters)), 64  # names are bold
    top, pitch, thick = 10 + LABEL_HEIGHT * len(lines), 46, 22
    floor = top + pitch * max(1, len(values)) + 4
    known = [bar.value for bar in values if math.isfinite(bar.value)]
    highest = 1.04 * max([*known, *(line.y for line in lines)], default=1) or 1
    to_x = Scale(0, highest, left, WIDTH - right)

    parts = []
    for tick in ticks(0, highest):
        parts.append(f'<path class="grid" d="M{to_x.at(tick):.1f} {top}V{floor}"/>')
        parts.append(text("tick", to_x.at(tick), floor + 18, compact_number(tick), "middle"))
    for index, bar in enumerate(values):
        middle = top + pitch * (index + 0.5)
        end, value = float(left), "no data"
        if math.isfinite(bar.value):
            end, value = to_x.at(bar.value), f"{bar.value:.2f}"
        parts.append(
            text("name", left - 12, middle - 2 if bar.note else middle + 5, bar.name, "end")
        )
        parts.append(text("note", left - 12, middle + 14, bar.note, "end"))
        parts.append(
            f'<rect class="bar c{bar.color % NUM_COLORS}{" pale" if bar.muted else ""}" x="{left}" '
            f'y="{middle - thick / 2}" width="{end - left:.1f}" height="{thick}" rx="2"/>'
        )
        parts.append(text("value", WIDTH - 2, middle + 5, value, "end"))  # right of every line
    for index, line in enumerate(lines):
        end, base = to_x.at(line.y), LABEL_HEIGHT * (index + 1)
        parts.append(f'<path class="rule r{index % 2}" d="M{end:.1f} {base - 10}V{floor}"/>')
        parts.append(text("line", end - 7, base, f"{line.name} {line.y:.2f}", "end"))
    parts.append(text("axis", (left + WIDTH - right) / 2, floor + 38, x, "middle"))
    return svg(f"{x}: {', '.join(bar.name for bar in values)}", floor + 46, parts)


def finite_points(series: Series) -> tuple[Floats, Floats]:
    """Return the points of a series that can be drawn."""
    xs, ys = (np.asarray(values, dtype=np.float64) for values in (series.xs, series.ys))
    good = np.isfinite(xs) & np.isfinite(ys)
    return xs[good], ys[good]


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


def downsample(xs: Floats) -> npt.NDArray[np.intp]:
    """Return the indices of at most MAX_POINTS points, evenly spaced."""
    if len(xs) <= MAX_POINTS:
        return np.arange(len(xs))
    return np.unique(np.linspace(0, len(xs) - 1, MAX_POINTS).round().astype(np.intp))


def axis_range(values: Floats, margin: float) -> tuple[float, float]:
    """Return the lowest and highest value with a margin; never an empty range."""
    if not len(values):
        return 1.0, 10.0
    low, high = float(values.min()), float(values.max())
    if low == high:
        return low - (abs(low) or 1) / 2, low + (abs(low) or 1) / 2
    if 0 < low < high / 20:
        low = 0.0  # a run that starts at step 1 starts at the axis
    return low - margin * (high - low), high + margin * (high - low)


def ticks(low: float, high: float) -> list[float]:
    """Return about six round numbers across a range."""
    rough = (high - low) / 6
    power = 10 ** math.floor(math.log10(rough))
    step = next(power * nice for nice in (1, 2, 2.5, 5, 10) if power * nice >= rough * 0.75)
    return [step * i for i in range(math.ceil(low / step), math.floor(high / step * 1.000001) + 1)]


def compact_number(value: float) -> str:
    """Write 1500000 as 1.5M."""
    for power, letter in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= power:
            return f"{value / power:.4g}{letter}"
    return f"{value:.4g}"


def axes(to_x: Scale, to_y: Scale, x: str, y: str) -> list[str]:
    """Draw a pale grid with its numbers and the titles of both axes."""
    parts = []
    for tick in ticks(to_y.low, to_y.high):
        at = to_y.at(tick)
        parts.append(f'<path class="grid" d="M{to_x.start} {at:.1f}H{to_x.end}"/>')
        parts.append(text("tick", to_x.start - 8, at + 4, compact_number(tick), "end"))
    for tick in ticks(to_x.low, to_x.high):
        at = to_x.at(tick)
        parts.append(f'<path class="grid" d="M{at:.1f} {to_y.start}v5"/>')
        parts.append(text("tick", at, to_y.start + 19, compact_number(tick), "middle"))
    return parts + axis_titles(to_x.start, to_x.end, to_y.end, to_y.start, x, y)


def axis_titles(left: float, right: float, top: float, bottom: float, x: str, y: str) -> list[str]:
    """Draw the line of the horizontal axis and the titles of both axes."""
    rotated = text("axis", 0, 0, y, "middle")
    return [
        f'<path class="floor" d="M{left} {bottom}H{right}"/>',
        text("axis", (left + right) / 2, bottom + 40, x, "middle"),
        f'<g transform="translate(12 {(top + bottom) / 2:.1f}) rotate(-90)">{rotated}</g>',
    ]


def legend(labels: Sequence[Label], left: float, top: float, bottom: float) -> list[str]:
    """Write the labels beside the ends of their curves, none over another."""
    parts = []
    ordered = sorted(labels, key=lambda label: label.height)
    heights = place_labels([label.height for label in ordered], top, bottom)
    for at, label in zip(heights, ordered, strict=True):
        if label.has_leader and abs(at - label.height) < 3 * LABEL_HEIGHT:
            ends = f"M{left - 11} {label.height:.1f}L{left - 2} {at:.1f}"
            parts.append(f'<path class="leader" d="{ends}"/>')
        parts.append(f'<path class="swatch {label.style}" d="M{left} {at:.1f}h16"/>')
        parts.append(text("label", left + 22, at + 4, label.name, letters=21, value=label.value))
    return parts


def place_labels(heights: Sequence[float], top: float, bottom: float) -> list[float]:
    """Move sorted heights apart until no two are nearer than a line."""
    moved: list[float] = []
    for height in heights:
        moved.append(max(height, moved[-1] + LABEL_HEIGHT if moved else top))
    limit = bottom
    for i in reversed(range(len(moved))):
        moved[i] = min(moved[i], limit)
        limit = moved[i] - LABEL_HEIGHT
    return moved


def path(style: str, xs: Floats, ys: Floats) -> str:
    """Draw straight lines through points."""
    points = "L".join(f"{x:.1f} {y:.1f}" for x, y in zip(xs, ys, strict=True))
    return f'<path class="{style}" d="M{points}"/>'


def text(
    style: str,
    x: float,
    y: float,
    words: str,
    anchor: str = "start",
    letters: int = 30,
    value: str = "",
) -> str:
    """Draw text at a position, truncated to `letters` characters, and a value after it."""
    fits = words if len(words) <= letters else words[: letters - 1] + "…"
    title = f"<title>{escape(words)}</title>" if fits != words else ""
    after = f' <tspan class="note">{escape(value)}</tspan>' if value else ""
    return (
        f'<text class="{style}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">'
        f"{title}{escape(fits)}{after}</text>"
    )


def escape(words: str) -> str:
    """Escape text for XML."""
    return html.escape("".join(c if c.isprintable() else " " for c in words))


def svg(summary: str, height: float, parts: Sequence[str]) -> str:
    """Wrap the parts of a chart."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="chart" role="img" '
        f'viewBox="0 0 {WIDTH} {height:.0f}" aria-label="{escape(summary)}">{"".join(parts)}</svg>'
    )
