"""The page of an evaluation: scores, confusion matrix, calibration, worst errors."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from kinfolk.reports import page as page_module
from kinfolk.reports.charts import Bar, Bin, ReferenceLine, bars, heatmap, histogram

MAX_TABLE_CLASSES = 40  # rows of the table of classes
CALIBRATION_BINS = 10  # of tasks.error_analysis


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
        confusion=confusion_heatmap(page.confusion) if page.confusion else "",
        classes=list(page.classes.items())[:MAX_TABLE_CLASSES],
        more_classes=max(0, len(page.classes) - MAX_TABLE_CLASSES),
        calibration=reliability_diagram(page.calibration) if page.calibration else "",
        lengths=length_chart(page) if page.lengths else "",
    )


def confusion_heatmap(confusion: Mapping[str, Any]) -> Markup:
    """Draw the confusion matrix: a row per reference, shaded by the fraction of the row."""
    names = [str(label) for label in confusion["labels"]]
    return heatmap(names, names, confusion["counts"], x="prediction", y="reference")


def reliability_diagram(groups: Sequence[Mapping[str, float]]) -> Markup:
    """Draw accuracy by probability; calibrated predictions are on the dashed line."""
    found = {round(group["low"] * CALIBRATION_BINS): group for group in groups}
    bins = []
    for index in range(CALIBRATION_BINS):
        low, high = (f"{edge / CALIBRATION_BINS:g}" for edge in (index, index + 1))
        group = found.get(index)
        if group is None:
            bins.append(Bin(low, high, math.nan))
        else:
            bins.append(Bin(low, high, group["accuracy"], f"{group['count']:,}"))
    return histogram(
        bins, x="probability of the prediction", y="accuracy", note="predictions", diagonal=True
    )


def length_chart(page: EvaluationPage) -> Markup:
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
