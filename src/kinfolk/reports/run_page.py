"""The page of a run, or of several models: curves, scores, samples, settings."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from kinfolk.reports import page
from kinfolk.reports.charts import NUM_COLORS, Bar, ReferenceLine, Series, bars, line_chart


@dataclass(frozen=True)
class ModelScore:
    """The score of a model on held-out text, and its cost."""

    model: str
    kind: str  # how the text is scored: "left to right", "each token from all others" ...
    loss: float  # nats per token
    bits_per_byte: float | None = None
    tokens: int | None = None
    parameters: int | None = None
    seconds: float | None = None
    comparable: bool = True  # a pseudo-likelihood is not

    @property
    def perplexity(self) -> float:
        return math.exp(min(self.loss, 700))


@dataclass(frozen=True)
class Baseline:
    """A reference line for models."""

    name: str
    loss: float  # nats per token
    bits_per_byte: float | None = None

    @property
    def perplexity(self) -> float:
        return math.exp(min(self.loss, 700))


@dataclass(frozen=True)
class TextSpan:
    """A part of a sample's text, given or generated."""

    text: str
    generated: bool = False


@dataclass(frozen=True)
class Sample:
    """A text that a model generated, and its prompt."""

    model: str
    title: str
    prompt: str
    text: Sequence[TextSpan]


@dataclass(frozen=True, kw_only=True)
class Report:
    """The values that the page shows; empty ones are not shown."""

    title: str
    subtitle: str = ""
    facts: Sequence[tuple[str, str]] = ()
    curves: Sequence[Series] = ()
    x: str = "step"
    y: str = "loss, nats per token"
    metrics: Sequence[Series] = ()  # scores on dev rows by step
    results: Sequence[Sequence[str]] = ()  # a metric, and its value in each of `result_columns`
    result_columns: Sequence[str] = ()
    scores: Sequence[ModelScore] = ()
    baselines: Sequence[Baseline] = ()
    samples: Sequence[Sample] = ()
    notes: Sequence[str] = ()


def render(report: Report) -> str:
    """Return the page as HTML."""
    # A model has the color of its curve on the whole page.
    models = dict.fromkeys(
        [*(curve.name for curve in report.curves), *(s.model for s in report.scores)]
    )
    colors = {model: index % NUM_COLORS for index, model in enumerate(models)}
    return page.render(
        "run_page.html",
        report=report,
        colors=colors,
        standings=[versus_baselines(score, report.baselines) for score in report.scores],
        curves=Markup(curve_chart(report)),
        metrics=Markup(line_chart(report.metrics, [], x=report.x, y="score"))
        if report.metrics
        else "",
        bars=Markup(bar_chart(report, colors)),
    )


def curve_chart(report: Report) -> str:
    """Draw the loss of every model over the baselines."""
    if not report.curves:
        return ""
    lines = [ReferenceLine(line.name, line.loss) for line in report.baselines]
    return line_chart(report.curves, lines, x=report.x, y=report.y)


def bar_chart(report: Report, colors: dict[str, int]) -> str:
    """Draw the bits per byte of every model that has them."""
    values = [
        Bar(score.model, score.bits_per_byte, score.kind, colors[score.model], not score.comparable)
        for score in report.scores
        if score.bits_per_byte is not None
    ]
    lines = [
        ReferenceLine(line.name, line.bits_per_byte)
        for line in report.baselines
        if line.bits_per_byte is not None
    ]
    return bars(values, lines, x="bits per byte, lower is better") if values else ""


def versus_baselines(score: ModelScore, baselines: Sequence[Baseline]) -> list[tuple[str, bool]]:
    """Compare a score with each baseline: [("12% below the 3-gram", True), ...]."""
    if not score.comparable or not math.isfinite(score.loss):
        return []
    differences = []
    for baseline in baselines:
        ours, theirs = score.loss, baseline.loss
        if score.bits_per_byte is not None and baseline.bits_per_byte is not None:
            ours, theirs = score.bits_per_byte, baseline.bits_per_byte
        if theirs <= 0:  # text of one repeated token
            continue
        change = ours / theirs - 1
        side = "below" if change < 0 else "above"
        differences.append((f"{abs(change):.0%} {side} the {baseline.name}", change < 0))
    return differences
