"""The page of probes: scores by layer, control tasks, selectivity, and the mix of layers."""

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from kinfolk.reports import page
from kinfolk.reports.chart_data import Estimate
from kinfolk.reports.charts import Bar, ReferenceLine, Series, bars, line_chart

LayerCurves = Sequence[tuple[str, Sequence[Estimate]]]


@dataclass(frozen=True, kw_only=True)
class ProbePage:
    """The values that the page shows."""

    title: str
    metric: str
    scores: LayerCurves
    control: LayerCurves
    selectivity: LayerCurves
    mix_columns: Sequence[str]  # of the table of probes on the mix of all layers, score first
    mixes: Sequence[tuple[str, Sequence[Estimate | None]]]
    mix_weights: Sequence[float]
    mix_center: float
    majority: float | None = None
    facts: Sequence[tuple[str, str]] = ()
    notes: Sequence[str] = ()


def render(values: ProbePage) -> str:
    """Return the page as HTML."""
    score = values.mixes[0][1][0]
    lines = [] if score is None else [ReferenceLine("mix of all layers", score[0])]
    if values.majority is not None:
        lines.append(ReferenceLine("most frequent label", values.majority))
    weights = [Bar(f"layer {n}", weight, color=0) for n, weight in enumerate(values.mix_weights)]
    return page.render(
        "probe_page.html",
        page=values,
        scores=layer_curves(values.scores, values.metric, lines),
        control=layer_curves(values.control, "accuracy"),
        selectivity=layer_curves(values.selectivity, "selectivity"),
        weights=bars(weights, x="weight in the mix", digits=3),
    )


def layer_curves(curves: LayerCurves, y: str, lines: Sequence[ReferenceLine] = ()) -> Markup:
    """Draw curves over the layers, each with its interval."""
    if not curves:
        return Markup("")
    series = [
        Series(
            name,
            range(len(points)),
            [value for value, _, _ in points],
            n,
            low=[low for _, low, _ in points],
            high=[high for _, _, high in points],
        )
        for n, (name, points) in enumerate(curves)
    ]
    return line_chart(series, lines, x="layer", y=y, smooth=False, markers=True)
