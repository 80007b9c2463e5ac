"""The page of knowledge neurons: what changing them does, their layers, and those of each fact."""

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from kinfolk.reports import page
from kinfolk.reports.chart_data import Estimate
from kinfolk.reports.charts import Bar, IntervalRow, bars, interval_chart

MAX_FACTS = 200  # in the table


@dataclass(frozen=True)
class EffectView:
    """The change of a mean probability by knowledge neurons, by random ones, and the difference."""

    name: str  # such as: suppressed, other facts
    before: float
    change: Estimate
    random: Estimate
    difference: Estimate
    p: float


@dataclass(frozen=True)
class FactView:
    """The values of one fact; probabilities are means over the prompts."""

    prompt: str
    answer: str
    before: float
    suppressed: float | None  # None where no neuron was found
    amplified: float | None
    neurons: Sequence[str]  # names, the highest attribution first


@dataclass(frozen=True, kw_only=True)
class NeuronsPage:
    """The values that the page shows."""

    title: str
    effects: Sequence[EffectView]
    over: str  # what intervals are over
    layers: Sequence[tuple[str, int]]  # knowledge neurons of each layer
    # Of the layers of one prompt: name, total attribution, difference of the outputs.
    completeness: Sequence[tuple[str, float, float]]
    highest: Sequence[tuple[str, float]]  # neurons of the first fact, by attribution
    facts: Sequence[FactView]
    settings: Sequence[tuple[str, str]] = ()
    notes: Sequence[str] = ()


def render(values: NeuronsPage) -> str:
    """Return the page as HTML."""
    return page.render(
        "neurons_page.html",
        page=values,
        shown=values.facts[:MAX_FACTS],
        effects=effect_chart(values.effects),
        layers=bars(
            [Bar(name, count, color=0) for name, count in values.layers],
            x="knowledge neurons",
            digits=0,
        ),
        highest=bars(
            [Bar(name, value, color=0) for name, value in values.highest],
            x="attribution",
            digits=None,
        )
        if values.highest
        else Markup(""),
    )


def effect_chart(effects: Sequence[EffectView]) -> Markup:
    """Draw the change of each group and operation, by knowledge neurons and by random ones."""
    if not effects:
        return Markup("")
    rows = [
        row
        for effect in effects
        for row in (
            IntervalRow("knowledge neurons", *effect.change, color=0, group=effect.name),
            IntervalRow("random neurons", *effect.random, color=1, group=effect.name),
        )
    ]
    return interval_chart(rows, x="change of the probability", digits=None, zero=True)
