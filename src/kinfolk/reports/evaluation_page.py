"""One page that says how good answers are, and where they go wrong, in the report's dress."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from kinfolk.metrics.classification import ConfusionMatrix
from kinfolk.reports import page as page_module
from kinfolk.reports.charts import WIDTH, Bar, ReferenceLine, Scale, axes, bars, svg, text
from kinfolk.tasks import error_analysis
from kinfolk.tasks.error_analysis import CalibrationBin, LengthBucket
from kinfolk.tasks.scoring import EvaluationResult

PERCENT_METRICS = ("bleu", "chrf", "perplexity")  # scores that are no shares
MIN_SHADE, MAX_SHADE = 0.04, 0.8  # a cell with nothing in it, and one with all of a row
MAX_CLASSES = 40  # rows of the table of classes


@dataclass(frozen=True, kw_only=True)
class EvaluationPage:
    """What the page shows."""

    title: str
    evaluation: EvaluationResult
    details: Sequence[tuple[str, str]] = ()
    notes: Sequence[str] = ()


def render(page: EvaluationPage) -> str:
    """Return the page as HTML."""
    verdict = page.evaluation
    main = verdict.task.main_metric
    confused, sure = (
        error_analysis.confusion_table(verdict),
        error_analysis.calibration_bins(verdict),
    )
    each = error_analysis.per_class_scores(verdict)
    return page_module.render(
        "evaluation_page.html",
        page=page,
        main=metric_label(main),
        score=format_score(main, verdict.confidence_interval.score),
        bounds=[
            format_score(main, b)
            for b in (verdict.confidence_interval.low, verdict.confidence_interval.high)
        ],
        scores=[
            (metric_label(name), format_score(name, value))
            for name, value in verdict.scores.items()
        ],
        heat=Markup(confusion_heatmap(confused) if confused is not None else ""),
        each=list(each.items())[:MAX_CLASSES],
        left=max(0, len(each) - MAX_CLASSES),
        sure=Markup(reliability(sure) if sure else ""),
        off=error_analysis.expected_calibration_error(sure),
        lengths=Markup(by_length(error_analysis.scores_by_length(verdict), verdict)),
        worst=error_analysis.worst_errors(verdict),
    )


def confusion_heatmap(found: ConfusionMatrix) -> str:
    """Draw which class is called what: a row a true class, deep where much of it goes."""
    names = [str(label) for label in found.labels]
    left = min(220, 24 + round(7.2 * max(map(len, names))))
    side = min(90.0, (WIDTH - left - 8) / len(names))
    tall, top = min(side, 56.0), 58
    letters = max(3, round(side / 7.2))
    parts = [text("axis", left + side * len(names) / 2, 14, "said", "middle")]
    for column, name in enumerate(names):
        parts.append(text("tick", left + side * (column + 0.5), 44, name, "middle", letters))
    for row, name in enumerate(names):
        y, whole = top + tall * row, max(1, int(found.counts[row].sum()))
        parts.append(text("name", left - 12, y + tall / 2 + 5, name, "end", 28))
        for column in range(len(names)):
            count = int(found.counts[row, column])
            x, shade = left + side * column, MIN_SHADE + (MAX_SHADE - MIN_SHADE) * count / whole
            colour = "c2" if row == column else "c1"
            parts.append(
                f'<rect class="bar {colour}" fill-opacity="{shade:.3f}" x="{x + 1:.1f}" '
                f'y="{y + 1:.1f}" width="{side - 2:.1f}" height="{tall - 2:.1f}" rx="2">'
                f"<title>{count:,} of {whole:,}</title></rect>"
            )
            if count:
                parts.append(text("line", x + side / 2, y + tall / 2 + 5, f"{count:,}", "middle"))
    height = top + tall * len(names) + 10
    summary = f"Which of {', '.join(names)} is called what"
    return svg(summary, height, parts)


def reliability(groups: Sequence[CalibrationBin]) -> str:
    """Draw how many answers of each probability are right; on the dashed line, as many as said."""
    left, right, top, floor = 62, 562, 14, 354
    to_x, to_y = Scale(0, 1, left, right), Scale(0, 1, floor, top)
    parts = axes(to_x, to_y, "probability of the answers", "share that is right")
    numbers = []
    for group in groups:
        x, wide = to_x.at(group.low), to_x.at(group.high) - to_x.at(group.low)
        y = to_y.at(group.right)
        parts.append(
            f'<rect class="bar c0" x="{x + 2:.1f}" y="{y:.1f}" width="{wide - 4:.1f}" '
            f'height="{floor - y:.1f}"><title>{group.answers:,} answers with '
            f"{group.sure:.1%} on average: {group.right:.1%} are right</title></rect>"
        )
        numbers.append(text("line note", x + wide / 2, y - 6, f"{group.answers:,}", "middle"))
    parts += [f'<path class="rule r0" d="M{left} {floor}L{right} {top}"/>', *numbers]
    return svg("How many answers of each probability are right", floor + 50, parts)


def by_length(groups: Sequence[LengthBucket], verdict: EvaluationResult) -> str:
    """Draw the score of short and of long texts."""
    main = verdict.task.main_metric
    values = [
        Bar(f"{group.low:,} to {group.high:,}", max(0.0, group.score), f"{group.rows:,} rows")
        for group in groups
    ]
    line = ReferenceLine("all", max(0.0, verdict.confidence_interval.score))
    return bars(values, [line], x=f"{metric_label(main)} by characters of text") if values else ""


def metric_label(name: str) -> str:
    """Write the name of a metric out."""
    known = {"bleu": "BLEU", "chrf": "chrF", "f1": "F1", "macro_f1": "macro F1",
             "conll_f1": "CoNLL F1", "matthews": "Matthews", "pearson": "Pearson",
             "spearman": "Spearman", "exact": "exact match", "rouge1": "ROUGE-1",
             "rouge2": "ROUGE-2", "rougeL": "ROUGE-L", "eval_loss": "loss"}  # fmt: skip
    return known.get(name, name.replace("_", " "))


def format_score(name: str, value: float) -> str:
    """Write a score; BLEU, chrF and perplexity have large numbers."""
    if not math.isfinite(value):
        return "–"
    return f"{value:,.2f}" if name.rpartition("_")[2] in PERCENT_METRICS else f"{value:.4f}"
