"""The page of a run, or of several models: curves, scores, samples, settings."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from kinfolk.reports import page
from kinfolk.reports.charts import NUM_COLORS, Bar, ReferenceLine, Series, bars, line_chart

MASK = "[MASK]"  # in the prompt of a model that fills it


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
class ReferenceScore:
    """A reference line for models."""

    name: str
    loss: float  # nats per token
    bits_per_byte: float | None = None
    # A model without context: its pseudo-likelihood is its likelihood.
    is_unigram: bool = False

    @property
    def perplexity(self) -> float:
        return math.exp(min(self.loss, 700))


@dataclass(frozen=True, kw_only=True)
class LossPanel:
    """Losses of one kind by step: what shares an axis can be compared."""

    title: str  # names the loss; not shown above the only panel of a page
    curves: Sequence[Series]
    y: str = "nats per token"
    with_baselines: bool = False


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


@dataclass(frozen=True)
class SampleTimeline:
    """What a model made of one prompt at several steps."""

    title: str
    prompt: str
    texts: Sequence[tuple[int, str]]


@dataclass(frozen=True, kw_only=True)
class Report:
    """The values that the page shows; empty ones are not shown."""

    title: str
    subtitle: str = ""
    facts: Sequence[tuple[str, str]] = ()
    panels: Sequence[LossPanel] = ()
    x: str = "step"
    metrics: Sequence[Series] = ()  # scores on dev rows by step
    results: Sequence[Sequence[str]] = ()  # a metric, and its value in each of `result_columns`
    result_columns: Sequence[str] = ()
    scores: Sequence[ModelScore] = ()
    baselines: Sequence[ReferenceScore] = ()
    samples: Sequence[Sample] = ()
    training: Sequence[LossPanel] = ()  # learning rate, gradient norm, speed, memory by step
    timelines: Sequence[SampleTimeline] = ()
    commands: Sequence[tuple[str, str]] = ()  # what they are for, and the command
    recipe: str = ""  # as JSON
    notes: Sequence[str] = ()
    alarms: Sequence[str] = ()  # what was wrong with the run, and what to do


def render(report: Report) -> str:
    """Return the page as HTML."""
    models = dict.fromkeys(score.model for score in report.scores)
    colors = {model: index % NUM_COLORS for index, model in enumerate(models)}
    return page.render(
        "run_page.html",
        report=report,
        colors=colors,
        standings=[versus_baselines(score, report.baselines) for score in report.scores],
        panels=[(panel.title, loss_chart(panel, report)) for panel in report.panels],
        training=[(panel.title, training_chart(panel, report.x)) for panel in report.training],
        metrics=metric_charts(report),
        bars=bar_charts(report, colors),
        generated=generated_spans,
    )


def generated_spans(prompt: str, text: str) -> list[TextSpan]:
    """Return the parts of an output: of a prompt with a mask, only what was put into it is new."""
    before, mask, after = prompt.partition(MASK)
    if not mask or not text.startswith(before):
        return [TextSpan(text, generated=True)]
    inside = text.removeprefix(before)
    if not inside.endswith(after):  # the output was cut
        after = ""
    inside = inside.removesuffix(after)
    return [TextSpan(before), TextSpan(inside, generated=True), TextSpan(after)]


def loss_chart(panel: LossPanel, report: Report) -> Markup:
    """Draw losses of one kind, over the baselines where these predict the same tokens."""
    baselines = report.baselines if panel.with_baselines else ()
    lines = [ReferenceLine(line.name, line.loss) for line in baselines]
    return line_chart(panel.curves, lines, x=report.x, y=panel.y)


def training_chart(panel: LossPanel, x: str) -> Markup:
    """Draw values of one unit, with as many digits as the smallest needs."""
    largest = max((abs(y) for curve in panel.curves for y in curve.ys if y), default=1.0)
    digits = min(9, max(0, 2 - math.floor(math.log10(largest))))
    return line_chart(panel.curves, x=x, y=panel.y, digits=digits)


def metric_charts(report: Report) -> list[tuple[str, Markup]]:
    """Draw the scores on dev rows, each metric on an axis of its own."""
    return [("", line_chart([metric], x=report.x, y=metric.name)) for metric in report.metrics]


def bar_charts(report: Report, colors: dict[str, int]) -> list[tuple[str, Markup]]:
    """Draw bits per byte: likelihoods over the baselines, each pseudo-likelihood by itself."""
    charts: dict[str, list[Bar]] = {}
    for score in sorted(report.scores, key=lambda score: not score.comparable):
        if score.bits_per_byte is None:
            continue
        # What predicts each token and what predicts spans cannot be compared.
        title = "Likelihood" if score.comparable else capitalized(score.kind)
        charts.setdefault(title, []).append(
            Bar(
                score.model,
                score.bits_per_byte,
                score.kind,
                colors[score.model],
                not score.comparable,
            )
        )
    x = "bits per byte, lower is better"
    return [
        (title, bars(values, baseline_lines(report, title == "Likelihood"), x=x))
        for title, values in charts.items()
    ]


def baseline_lines(report: Report, is_likelihood: bool) -> list[ReferenceLine]:
    """Return the baselines of bits per byte: of a pseudo-likelihood the unigram model alone."""
    return [
        ReferenceLine(line.name, line.bits_per_byte)
        for line in report.baselines
        if line.bits_per_byte is not None and (is_likelihood or line.is_unigram)
    ]


def capitalized(text: str) -> str:
    """Return a text that begins a line."""
    return text[:1].upper() + text[1:]


def versus_baselines(
    score: ModelScore, baselines: Sequence[ReferenceScore]
) -> list[tuple[str, bool]]:
    """Compare a score with each baseline: [("12% below the 3-gram", True), ...]."""
    if not math.isfinite(score.loss) or (not score.comparable and score.bits_per_byte is None):
        return []
    differences = []
    for baseline in baselines:
        if not score.comparable and not (baseline.is_unigram and baseline.bits_per_byte):
            continue
        ours, theirs = score.loss, baseline.loss
        if score.bits_per_byte is not None and baseline.bits_per_byte is not None:
            ours, theirs = score.bits_per_byte, baseline.bits_per_byte
        if theirs <= 0:  # text of one repeated token
            continue
        change = ours / theirs - 1
        side = "below" if change < 0 else "above"
        differences.append((f"{abs(change):.0%} {side} the {baseline.name}", change < 0))
    return differences
