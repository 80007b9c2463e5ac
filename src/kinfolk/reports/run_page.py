"""One page that says how the models did: no file beside it, no network, no script needed."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from kinfolk.files import new_file
from kinfolk.reports.charts import (
    COLOURS,
    Bar,
    ReferenceLine,
    Series,
    bars,
    compact_number,
    line_chart,
)


@dataclass(frozen=True)
class ModelScore:
    """What a model scored on held-out text, and what it cost."""

    model: str
    kind: str  # how the text was priced: "left to right", "one token hidden at a time" ...
    loss: float  # nats per token
    bits_per_byte: float | None = None
    tokens: int | None = None
    parameters: int | None = None
    seconds: float | None = None
    comparable: bool = True  # a model that sees both sides gives no price of the text

    @property
    def perplexity(self) -> float:
        return math.exp(min(self.loss, 700))


@dataclass(frozen=True)
class Baseline:
    """A line that a model has to beat."""

    name: str
    loss: float  # nats per token
    bits_per_byte: float | None = None

    @property
    def perplexity(self) -> float:
        return math.exp(min(self.loss, 700))


@dataclass(frozen=True)
class TextSpan:
    """A stretch of a sample's text, given or made by the model."""

    text: str
    generated: bool = False


@dataclass(frozen=True)
class Sample:
    """What a model wrote, and what it was asked."""

    model: str
    title: str
    prompt: str
    text: Sequence[TextSpan]


@dataclass(frozen=True, kw_only=True)
class Report:
    """All that the page shows; what is empty leaves no trace on it."""

    title: str
    subtitle: str = ""
    facts: Sequence[tuple[str, str]] = ()
    curves: Sequence[Series] = ()
    x: str = "tokens seen"
    y: str = "loss, nats per token"
    log_x: bool = False
    metrics: Sequence[Series] = ()  # scores on dev rows by step
    results: Sequence[tuple[str, str]] = ()  # metrics of the best checkpoint
    scores: Sequence[ModelScore] = ()
    baselines: Sequence[Baseline] = ()
    samples: Sequence[Sample] = ()
    notes: Sequence[str] = ()


def render(report: Report) -> str:
    """Return the page as HTML."""
    pages = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    pages.filters |= {"short": compact_number, "duration": duration, "number": format_number}
    source = files(__package__).joinpath("run_page.html").read_text(encoding="utf-8")
    # A model has one colour on the whole page, that of its curve.
    models = dict.fromkeys(
        [*(one.name for one in report.curves), *(s.model for s in report.scores)]
    )
    colours = {model: place % COLOURS for place, model in enumerate(models)}
    return pages.from_string(source).render(
        report=report,
        colours=colours,
        standings=[versus_baselines(score, report.baselines) for score in report.scores],
        curves=Markup(curve_chart(report)),
        metrics=Markup(line_chart(report.metrics, [], x=report.x, y="score"))
        if report.metrics
        else "",
        bars=Markup(bar_chart(report, colours)),
    )


def write(report: Report, path: Path) -> Path:
    """Write the page; a reader finds the old one or the new one, never half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with new_file(path, errors="replace", newline="\n") as file:
        file.write(render(report))
    return path


def curve_chart(report: Report) -> str:
    """Draw the loss of every model over the baselines."""
    if not report.curves:
        return ""
    lines = [ReferenceLine(one.name, one.loss) for one in report.baselines]
    return line_chart(report.curves, lines, x=report.x, y=report.y, log_x=report.log_x)


def bar_chart(report: Report, colours: dict[str, int]) -> str:
    """Draw the bits per byte of every model that has them."""
    values = [
        Bar(
            score.model, score.bits_per_byte, score.kind, colours[score.model], not score.comparable
        )
        for score in report.scores
        if score.bits_per_byte is not None
    ]
    lines = [
        ReferenceLine(one.name, one.bits_per_byte)
        for one in report.baselines
        if one.bits_per_byte is not None
    ]
    return bars(values, lines, x="bits per byte, lower is better") if values else ""


def versus_baselines(score: ModelScore, baselines: Sequence[Baseline]) -> list[tuple[str, bool]]:
    """Say how far a score is below each baseline: [("12% below the 3-gram", True), ...]."""
    if not score.comparable or not math.isfinite(score.loss):
        return []
    said = []
    for baseline in baselines:
        ours, theirs = score.loss, baseline.loss
        if score.bits_per_byte is not None and baseline.bits_per_byte is not None:
            ours, theirs = score.bits_per_byte, baseline.bits_per_byte
        if theirs <= 0:  # text of one token over and over: nothing to beat
            continue
        change = ours / theirs - 1
        side = "below" if change < 0 else "above"
        said.append((f"{abs(change):.0%} {side} the {baseline.name}", change < 0))
    return said


def format_number(value: float | None, digits: int = 2) -> str:
    """Write a score, with commas where it is large."""
    if value is None or not math.isfinite(value):
        return "–"
    return f"{value:,.{digits}f}" if abs(value) < 1000 else f"{value:,.0f}"


def duration(seconds: float) -> str:
    """Write 3725 as 1 h 2 min."""
    whole = round(seconds)
    if whole < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
