"""Interactive charts for the pages: each is a figure with its data as JSON and as a table.

`static/charts.js` draws them with Apache ECharts when the page opens, each kind by a function of
`curves.js` or `rows.js`. Colors come from
`style.css`: color 0 is `--c0`, the first model's. Names are escaped in the JSON and in the table.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from kinfolk.reports.chart_data import (
    curve_points,
    curve_table,
    finite_points,
    round_significant,
    running_mean,
)

NUM_COLORS = 8  # in the page's palette; the ninth model starts again
MAX_TABLE_ROWS = 200  # of the table of a chart's data

FIGURE = Markup(
    '<figure class="chart {kind}"><div class="scroll"><div class="plot" role="img" '
    'aria-label="{label}"></div></div>'
    '<script type="application/json">{data}</script>'
    '<details class="data" open><summary>Data</summary><div class="scroll" tabindex="0">'
    "<table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table></div></details></figure>\n"
)


@dataclass(frozen=True)
class Series:
    """A curve; points that are not finite are skipped. `color` defaults to its place.

    `low` and `high`, an interval at every x, are drawn as a band, or as whiskers of few points. A
    curve `of` another is hidden with it and not in the legend.
    """

    name: str
    xs: Sequence[float]
    ys: Sequence[float]
    color: int | None = None
    dashed: bool = False
    muted: bool = False
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    of: str = ""


@dataclass(frozen=True)
class ReferenceLine:
    """A dashed line across the chart: horizontal in curves, vertical in bars."""

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
class IntervalRow:
    """A score with its interval; rows of one group follow each other below its name."""

    name: str
    value: float
    low: float
    high: float
    note: str = ""
    muted: bool = False
    color: int = 0
    group: str = ""


@dataclass(frozen=True)
class Point:
    """A point with a name; the interval of its height is drawn where it is given."""

    name: str
    x: float
    y: float
    note: str = ""
    color: int = 0
    muted: bool = False
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Bin:
    """A bar of a histogram; `low` and `high` are the names of its edges."""

    low: str
    high: str
    value: float
    note: str = ""  # above the bar


def line_chart(
    series: Sequence[Series],
    lines: Sequence[ReferenceLine] = (),
    *,
    x: str,
    y: str,
    smooth: bool = True,
    log_x: bool = False,
    log_y: bool = False,
    markers: bool = False,
    digits: int = 3,
    least_span: float = 0.0,
    names: Sequence[str] = (),
) -> Markup:
    """Draw curves over an axis: long ones pale, with their running mean; each line dashed.

    `names` are those of x = 1, 2, 3 ..., for the tooltip and the table.
    `log_x` and `log_y` set the axis at first; the reader can switch where all values are positive.
    The y axis spans at least `least_span` of its highest value, so that it magnifies no rounding.
    """
    curves: list[Mapping[str, Any]] = []
    for index, curve in enumerate(series):
        xs, ys = finite_points(curve.xs, curve.ys)
        soft = running_mean(ys) if smooth else ys
        curves.append(
            {
                "name": curve.name,
                "color": color_of(index if curve.color is None else curve.color),
                "of": curve.of,
                "dashed": curve.dashed,
                "muted": curve.muted,
                "band": [
                    (x, known(low), known(high))
                    for x, low, high in zip(curve.xs, curve.low, curve.high, strict=False)
                ],
                "points": curve_points(xs, soft),
                "raw": curve_points(xs, ys) if soft is not ys else [],
                "last": round_significant(ys[-1]) if len(ys) else None,
            }
        )
    spec = {
        "series": curves,
        "lines": reference_lines(lines),
        "x": x,
        "y": y,
        "logX": log_x,
        "logY": log_y,
        "markers": markers,
        "digits": digits,
        "leastSpan": least_span,
        "names": names,
    }
    heads = [x, *(curve.name for curve in series), *(line["name"] for line in spec_lines(spec))]
    table = curve_table([curve["points"] for curve in curves], digits, names)
    levels = [number(line["value"], digits) for line in spec_lines(spec)]
    return figure(
        "line", chart_summary(y, x, heads[1:]), spec, heads, [[*r, *levels] for r in table]
    )


def bars(
    values: Sequence[Bar], lines: Sequence[ReferenceLine] = (), *, x: str, digits: int | None = 2
) -> Markup:
    """Draw a bar per model from zero, and each reference line across all of them."""
    rows = [
        {
            "name": bar.name,
            "value": known(bar.value),
            "note": bar.note,
            "color": color_of(bar.color),
            "muted": bar.muted,
        }
        for bar in values
    ]
    spec = {"rows": rows, "lines": reference_lines(lines), "x": x, "digits": digits}
    table = [(bar.name, bar.note, number(bar.value, digits)) for bar in values]
    table += [(line.name, "", number(line.y, digits)) for line in lines]
    return figure("bars", chart_summary(x, "", (r.name for r in values)), spec, ("", "", x), table)


def interval_chart(
    rows: Sequence[IntervalRow],
    lines: Sequence[ReferenceLine] = (),
    *,
    x: str,
    digits: int | None = 2,
    zero: bool = False,
) -> Markup:
    """Draw a dot with whiskers for each row; `zero` keeps 0 on the axis (differences)."""
    drawn = [
        {
            "name": row.name,
            "value": known(row.value),
            "low": known(row.low),
            "high": known(row.high),
            "note": row.note,
            "color": color_of(row.color),
            "muted": row.muted,
            "group": row.group,
        }
        for row in rows
    ]
    spec = {"rows": drawn, "lines": reference_lines(lines), "x": x, "digits": digits, "zero": zero}
    table = [
        (
            f"{row.group}: {row.name}" if row.group else row.name,
            row.note,
            *(number(value, digits) for value in (row.value, row.low, row.high)),
        )
        for row in rows
    ]
    table += [(line.name, "", number(line.y, digits), "", "") for line in lines]
    heads = ("", "", x, "from", "to")
    return figure("interval", chart_summary(x, "", (row.name for row in rows)), spec, heads, table)


def scatter(
    points: Sequence[Point],
    *,
    x: str,
    y: str,
    digits: int = 2,
) -> Markup:
    """Draw named points, with the interval of their height where they have one."""
    shown = [point for point in points if math.isfinite(point.x) and math.isfinite(point.y)]
    drawn = [
        {
            "name": point.name,
            "x": point.x,
            "y": point.y,
            "low": known(point.low),
            "high": known(point.high),
            "note": point.note,
            "color": color_of(point.color),
            "muted": point.muted,
        }
        for point in shown
    ]
    spec = {"points": drawn, "x": x, "y": y, "logX": False, "logY": False, "digits": digits}
    table = [(p.name, p.note, number(p.x, digits), number(p.y, digits)) for p in shown]
    return figure(
        "scatter", chart_summary(y, x, (p.name for p in shown)), spec, ("", "", x, y), table
    )


def heatmap(
    rows: Sequence[str],
    columns: Sequence[str],
    counts: Sequence[Sequence[int]],
    *,
    x: str,
    y: str,
) -> Markup:
    """Draw counts as shaded cells, each by its share of the row; equal names are the diagonal."""
    spec = {"rows": rows, "columns": columns, "counts": counts, "x": x, "y": y}
    table = [
        (name, *(f"{count:,}" for count in values))
        for name, values in zip(rows, counts, strict=True)
    ]
    return figure("heatmap", chart_summary(y, x, rows), spec, (f"{y} \\ {x}", *columns), table)


def histogram(
    bins: Sequence[Bin],
    *,
    x: str,
    y: str,
    note: str = "",
    diagonal: bool = False,
    digits: int = 2,
) -> Markup:
    """Draw bins of equal width, with a line from the first edge to the last if `diagonal`.

    `note` says what the notes above the bars count.
    """
    drawn = [
        {"low": each.low, "high": each.high, "value": known(each.value), "note": each.note}
        for each in bins
    ]
    spec = {"bins": drawn, "x": x, "y": y, "note": note, "diagonal": diagonal, "digits": digits}
    table = [(f"{each.low} to {each.high}", number(each.value, digits), each.note) for each in bins]
    return figure("histogram", chart_summary(y, x, ()), spec, (x, y, note), table)


def figure(
    kind: str,
    label: str,
    spec: Mapping[str, Any],
    heads: Iterable[str],
    rows: Sequence[Sequence[str]],
) -> Markup:
    """Return a chart as HTML; its table is open until the script draws the chart."""
    from jinja2.utils import htmlsafe_json_dumps

    body = Markup("").join(
        Markup("<tr>{}</tr>").format(
            Markup("").join(Markup("<td>{}</td>").format(cell) for cell in row)
        )
        for row in rows[:MAX_TABLE_ROWS]
    )
    return FIGURE.format(
        kind=kind,
        label=label,
        data=htmlsafe_json_dumps(
            {"kind": kind, **spec}, allow_nan=False, ensure_ascii=False, separators=(",", ":")
        ),
        heads=Markup("").join(Markup('<th scope="col">{}</th>').format(head) for head in heads),
        rows=body,
    )


def chart_summary(what: str, by: str, names: Iterable[str]) -> str:
    """Say in words what a chart shows, for readers who do not see it."""
    listed = ", ".join(names)
    return (f"{what} by {by}" if by else what) + (f": {listed}" if listed else "")


def reference_lines(lines: Sequence[ReferenceLine]) -> list[dict[str, Any]]:
    """Return the lines that can be drawn."""
    return [{"name": line.name, "value": line.y} for line in lines if math.isfinite(line.y)]


def spec_lines(spec: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the reference lines of a chart."""
    return spec["lines"]


def color_of(color: int) -> int:
    """Return the place of a color in the palette."""
    return color % NUM_COLORS


def known(value: float | None) -> float | None:
    """Return a number as JSON has it: null where it is not finite."""
    return None if value is None or not math.isfinite(value) else float(value)


def number(value: float, digits: int | None) -> str:
    """Write a number for the table; without digits, with as many as tell it from 0."""
    if digits is None:
        return significant(value)
    if not math.isfinite(value):
        return "–"
    text = f"{value:,.{digits}f}" if abs(value) < 1e6 else compact_number(value)
    return text.replace("-", "−")


def significant(value: float | None, digits: int = 3, *, signed: bool = False) -> str:
    """Write decimals, or two significant digits where a number is too near 0: 0.123, 1.2e-05."""
    if value is None or not math.isfinite(value):
        return "–"
    near = 0 < abs(value) < 10.0 ** (1 - digits)
    return f"{value or 0.0:{'+' if signed and value else ''}{'#.2g' if near else f'.{digits}f'}}"


def compact_number(value: float) -> str:
    """Write 1500000 as 1.5M."""
    for power, letter in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= power:
            return f"{value / power:.4g}{letter}"
    return f"{value:.4g}"
