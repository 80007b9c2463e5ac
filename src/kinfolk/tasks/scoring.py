"""Metrics of each kind of task: scores of predictions and the interval of the main metric."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kinfolk.errors import UserError
from kinfolk.metrics.bootstrap import ConfidenceInterval, confidence_interval
from kinfolk.metrics.classification import (
    Accuracy,
    BinaryF1,
    MacroF1,
    MatthewsCorrelation,
    Pearson,
    Spearman,
)
from kinfolk.metrics.coreference import ConllF1
from kinfolk.metrics.entities import EntityF1, TagAccuracy, WordF1, has_entity_tags
from kinfolk.metrics.metric import Metric, Statistics
from kinfolk.metrics.squad import ExactMatch, SpanF1
from kinfolk.metrics.text import BLEU, CHRF, ROUGE, BitsPerByte, Perplexity
from kinfolk.tasks.task import Prediction, Task


@dataclass(frozen=True)
class EvaluationResult:
    """The predictions for a file with labels, and their scores."""

    task: Task
    rows: list[Any]
    answers: list[Prediction]
    scores: dict[str, float]
    confidence_interval: ConfidenceInterval  # of the main metric
    unseen_labels: dict[str, int]  # labels that the training rows lack, and how often each occurs


def reference(task: Task, row: Any) -> Any:
    """Return what is right of a row, None where the file does not say."""
    match task.kind:
        case "classify":
            return None if row.label is None else str(row.label)
        case "regress" | "choose":
            return row.label
        case "tag":
            return row.tags
        case "span":
            known = tuple(text for text, _ in row.answers)
            return known if known or not row.answerable else None
        case "write" | "complete" | "lm":
            return row.target
        case _:
            return row.clusters


def metrics(task: Task, references: Sequence[Any]) -> tuple[Metric, ...]:
    """Return the metrics of a task for rows with these references."""
    match task.kind:
        case "classify":
            positive = task.positive_label
            binary = () if positive is None else (BinaryF1(positive_label=positive),)
            return (Accuracy(), *binary, MacroF1(), MatthewsCorrelation())
        case "regress":
            return Pearson(), Spearman()
        case "choose":
            return (Accuracy(),)
        case "tag":
            entities = any(has_entity_tags(tags) for tags in references)
            return EntityF1() if entities else WordF1(), TagAccuracy()
        case "span":
            return SpanF1(chinese=task.language), ExactMatch(chinese=task.language)
        case "write":
            return BLEU, CHRF, *ROUGE
        case "complete":
            return Accuracy(), Perplexity()
        case "lm":
            return Perplexity(), BitsPerByte()
        case _:
            return (ConllF1(),)


def statistics(
    task: Task, metric: Metric, rows: Sequence[Any], answers: Sequence[Prediction]
) -> Statistics:
    """Return the statistics of each row."""
    if isinstance(metric, Perplexity):
        known = [(a, row) for a, row in zip(answers, rows, strict=True) if a.nll is not None]
        return metric.statistics(
            [(a.nll or 0.0, a.tokens) for a, _ in known], [row.target for _, row in known]
        )
    values = [answer.value for answer in answers]
    if task.kind == "write":
        return metric.statistics(values, [row.references for row in rows])
    right = [reference(task, row) for row in rows]
    if task.kind == "complete":
        return metric.statistics([text.strip() for text in values], [r.strip() for r in right])
    return metric.statistics(values, right)


def score(task: Task, rows: Sequence[Any], answers: Sequence[Prediction]) -> dict[str, float]:
    """Score predictions by every metric of their task."""
    right = [reference(task, row) for row in rows]
    if None in right:
        row = rows[right.index(None)]
        raise UserError(f"row {row.number} has no label to score against: predict it instead")
    if not rows:
        raise UserError("there are no rows to score: give a file with labelled examples")
    found = {m.name: (m, statistics(task, m, rows, answers)) for m in metrics(task, right)}
    return {name: metric.aggregate(some) for name, (metric, some) in found.items() if len(some)}


def main_metric_interval(
    task: Task,
    rows: Sequence[Any],
    answers: Sequence[Prediction],
    *,
    n_resamples: int,
    seed: int,
) -> ConfidenceInterval:
    """Return the main metric with its bootstrap interval."""
    right = [reference(task, row) for row in rows]
    (metric,) = (m for m in metrics(task, right) if m.name == task.main_metric)
    return confidence_interval(
        metric,
        statistics(task, metric, rows, answers),
        n_resamples=min(n_resamples, metric.max_resamples),
        seed=seed,
    )
