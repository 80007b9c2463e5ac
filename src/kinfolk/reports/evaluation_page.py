"""The page of an evaluation: scores, confusion matrix, calibration, worst errors."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from kinfolk.reports import page as page_module
from kinfolk.reports.charts import (
    CHAR_WIDTH,
    WIDTH,
    Bar,
    ReferenceLine,
    Scale,
    axes,
    bars,
    svg,
    text,
)

MIN_SHADE, MAX_SHADE = 0.04, 0.8  # of an empty cell, and of a cell with all counts of a row
MAX_CLASSES = 40  # rows of the table of classes


@dataclass(frozen=True, kw_only=True)
class EvaluationPage:
    """The values that the page shows."""

    title: str
    rows: int
    metric: str  # title of the main metric
    score: float  # by the main metric
    formatted: tuple[str, str, str]  # the score and the bounds of its interval
    scores: Sequence[tuple[str, str]]  # title of each metric, and its formatted score
    confusion: Mapping[str, Any] | None  # labels and counts, a row for each reference
    class_heading: str  # heading of the table of classes
    classes: Mapping[str, Mapping[str, float]]  # precision, recall, f1 and support of each
    calibration: Sequence[Mapping[str, float]]  # low, high, count, probability and accuracy
    calibration_error: float
    lengths: Sequence[Mapping[str, float]]  # low, high, rows and score
    errors: Sequence[Mapping[str, Any]]  # number, text, label, prediction and probability
    details: Sequence[tuple[str, str]] = ()
    notes: Sequence[str] = ()


def render(page: EvaluationPage) -> str:
    """Return the page as HTML."""
    return page_module.render(
        "evaluation_page.html",
        page=page,
        confusion=Markup(confusion_heatmap(page.confusion) if page.confusion else ""),
        classes=list(page.classes.items())[:MAX_CLASSES],
        more_classes=max(0, len(page.classes) - MAX_CLASSES),
        calibration=Markup(reliability_diagram(page.calibration) if page.calibration else ""),
        lengths=Markup(length_chart(page) if page.lengths else ""),
    )


def confusion_heatmap(confusion: Mapping[str, Any]) -> str:
    """Draw the confusion matrix: a row per reference, shaded by the fraction of the row."""
    names = [str(label) for label in confusion["labels"]]
    left = min(220, 24 + round(CHAR_WIDTH * max(map(len, names))))
    side = min(90.0, (WIDTH - left - 8) / len(names))
    tall, top = min(side, 56.0), 58
    letters = max(3, round(side / CHAR_WIDTH))
    parts = [text("axis", left + side * len(names) / 2, 14, "prediction", "middle")]
    for column, name in enumerate(names):
        parts.append(text("tick", left + side * (column + 0.5), 44, name, "middle", letters))
    for row, (name, counts) in enumerate(zip(names, confusion["counts"], strict=True)):
        y, total = top + tall * row, max(1, sum(counts))
        parts.append(text("name", left - 12, y + tall / 2 + 5, name, "end", 28))
        for column, count in enumerate(counts):
            x, shade = left + side * column, MIN_SHADE + (MAX_SHADE - MIN_SHADE) * count / total
            color = "c2" if row == column else "c1"
            parts.append(
                f'<rect class="bar {color}" fill-opacity="{shade:.3f}" x="{x + 1:.1f}" '
                f'y="{y + 1:.1f}" width="{side - 2:.1f}" height="{tall - 2:.1f}" rx="2">'
                f"<title>{count:,} of {total:,}</title></rect>"
            )
            if count:
                parts.append(text("line", x + side / 2, y + tall / 2 + 5, f"{count:,}", "middle"))
    height = top + tall * len(names) + 10
    return svg(f"Confusion matrix of {', '.join(names)}", height, parts)


def reliability_diagram(bins: Sequence[Mapping[str, float]]) -> str:
    """Draw accuracy by probability; calibrated predictions are on the dashed line."""
    left, right, top, floor = 62, 562, 14, 354
    to_x, to_y = Scale(0, 1, left, right), Scale(0, 1, floor, top)
    parts = axes(to_x, to_y, "probability of the prediction", "accuracy")
    numbers = []
    for group in bins:
        x, wide = to_x.at(group["low"]), to_x.at(group["high"]) - to_x.at(group["low"])
        y, count = to_y.at(group["accuracy"]), f"{group['count']:,}"
        parts.append(
            f'<rect class="bar c0" x="{x + 2:.1f}" y="{y:.1f}" width="{wide - 4:.1f}" '
            f'height="{floor - y:.1f}"><title>{count} predictions with a probability of '
            f"{group['probability']:.1%} on average: {group['accuracy']:.1%} are correct"
            "</title></rect>"
        )
        numbers.append(text("line note", x + wide / 2, y - 6, count, "middle"))
    parts += [f'<path class="rule r0" d="M{left} {floor}L{right} {top}"/>', *numbers]
    return svg("Accuracy of the predictions of each probability", floor + 50, parts)


def length_chart(page: EvaluationPage) -> str:
    """Draw the score of rows with short and with long texts."""
    values = [
        Bar(
            f"{group['low']:,} to {group['high']:,}",
            max(0.0, group["score"]),
            f"{group['rows']:,} rows",
        )
        for group in page.lengths
    ]
    line = ReferenceLine("all", max(0.0, page.score))
    return bars(values, [line], x=f"{page.metric} by characters of text")
