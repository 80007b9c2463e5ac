"""The page of a learning-rate range test: the loss by rate, and the suggested rates."""

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from kinfolk.reports import page
from kinfolk.reports.charts import Series, line_chart


@dataclass(frozen=True, kw_only=True)
class LRFindPage:
    """The values that the page shows."""

    title: str
    rates: Sequence[float]
    losses: Sequence[float]  # of each step
    smoothed: Sequence[float]
    suggestions: Sequence[tuple[str, float | None]]  # reason and rate; None where there is none
    facts: Sequence[tuple[str, str]] = ()
    notes: Sequence[str] = ()


def render(values: LRFindPage) -> str:
    """Return the page as HTML."""
    return page.render("lr_find_page.html", page=values, chart=rate_chart(values))


def rate_chart(values: LRFindPage) -> Markup:
    """Draw the loss by the rate, and a point on the smoothed loss for each suggestion."""
    curves = [
        Series("smoothed loss", values.rates, values.smoothed, 0),
        Series("loss of each step", values.rates, values.losses, muted=True),
    ]
    for color, (reason, rate) in enumerate(values.suggestions, 1):
        if rate is not None:
            nearest = min(range(len(values.rates)), key=lambda i: abs(values.rates[i] - rate))
            curves.append(
                Series(f"{reason}: {rate:.2g}", [rate], [values.smoothed[nearest]], color)
            )
    return line_chart(curves, x="learning rate", y="loss", smooth=False, log_x=True)
