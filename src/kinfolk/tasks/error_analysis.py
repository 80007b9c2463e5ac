"""Error analysis of predictions: confusions, worst errors, calibration, scores by text length."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from kinfolk.metrics.classification import ConfusionMatrix, confusion_matrix
from kinfolk.metrics.metric import PRF
from kinfolk.tasks.task import EvaluationResult

MAX_CONFUSION_CLASSES = 12  # the others are counted together
OTHERS = "(others)"
NUM_WORST = 10
CALIBRATION_BINS = 10
NUM_LENGTH_BUCKETS = 6  # of equally many rows each
MIN_BUCKET_ROWS = 20


@dataclass(frozen=True)
class ErrorExample:
    """A row with a wrong prediction."""

    number: int  # its line or record
    text: str
    label: str
    prediction: str
    probability: float | None


@dataclass(frozen=True)
class CalibrationBin:
    """Predictions of about the same probability, and the fraction of them that is correct."""

    low: float
    high: float
    count: int
    probability: float  # on average
    accuracy: float


@dataclass(frozen=True)
class LengthBucket:
    """Rows with texts of about the same length, and their score."""

    low: int  # characters
    high: int
    rows: int
    score: float


def confusion_table(result: EvaluationResult) -> ConfusionMatrix | None:
    """Return the confusion matrix of the most frequent classes."""
    task = result.task
    if task.output != "label":
        return None
    references = [str(task.reference(row)) for row in result.rows]
    predictions = [str(prediction.value) for prediction in result.predictions]
    counts = Counter(references)
    counts.update(dict.fromkeys(predictions, 0))
    kept = [label for label, _ in counts.most_common(MAX_CONFUSION_CLASSES)]
    order = [label for label in task.labels if label in kept]
    order += [label for label in kept if label not in order]
    if len(counts) > len(kept):
        order.append(OTHERS)
    known = set(kept)
    return confusion_matrix(
        [label if label in known else OTHERS for label in predictions],
        [label if label in known else OTHERS for label in references],
        order,
    )


def per_class_scores(result: EvaluationResult) -> dict[str, PRF]:
    """Return the scores of each class or type of entity, the most frequent first."""
    scores = result.task.class_scores(result.rows, result.predictions)
    return dict(sorted(scores.items(), key=lambda item: -item[1].support))


def worst_errors(result: EvaluationResult) -> list[ErrorExample]:
    """Return the wrong predictions that are most confident, or furthest from the reference."""
    task, errors = result.task, []
    for row, prediction in zip(result.rows, result.predictions, strict=True):
        if (error := task.error(row, prediction)) is not None:
            errors.append((error, row, prediction))
    errors.sort(key=lambda item: -item[0])
    examples = []
    for error, row, prediction in errors[:NUM_WORST]:
        has_probability = any(task.confidences(row, prediction))
        probability = error if has_probability else None
        examples.append(
            ErrorExample(row.number, row.text, *task.describe(row, prediction), probability)
        )
    return examples


def calibration_bins(result: EvaluationResult) -> list[CalibrationBin]:
    """Group predictions by their probability and compute the fraction of correct ones."""
    pairs = np.array(
        [
            pair
            for row, prediction in zip(result.rows, result.predictions, strict=True)
            for pair in result.task.confidences(row, prediction)
        ],
        np.float64,
    ).reshape(-1, 2)
    indices = np.minimum((pairs[:, 0] * CALIBRATION_BINS).astype(int), CALIBRATION_BINS - 1)
    groups = [(i, pairs[indices == i]) for i in range(CALIBRATION_BINS)]
    return [
        CalibrationBin(
            i / CALIBRATION_BINS, (i + 1) / CALIBRATION_BINS, len(group), *group.mean(0).tolist()
        )
        for i, group in groups
        if len(group)
    ]


def expected_calibration_error(bins: Sequence[CalibrationBin]) -> float:
    """Return the mean distance of probability and accuracy (Guo et al., 2017): 0 is best."""
    total = sum(group.count for group in bins)
    gaps = (group.count * abs(group.probability - group.accuracy) for group in bins)
    return sum(gaps) / max(1, total)


def scores_by_length(result: EvaluationResult) -> list[LengthBucket]:
    """Group rows by the length of their texts, and score each group."""
    sizes = [len(row.text) for row in result.rows]
    groups = min(NUM_LENGTH_BUCKETS, len(sizes) // MIN_BUCKET_ROWS)
    if groups < 2:
        return []
    order = sorted(range(len(sizes)), key=sizes.__getitem__)
    buckets = []
    for group in np.array_split(np.array(order), groups):
        scores = result.task.evaluate(
            [result.rows[i] for i in group], [result.predictions[i] for i in group]
        )
        score = scores[result.task.main_metric]
        buckets.append(LengthBucket(sizes[group[0]], sizes[group[-1]], len(group), score))
    return buckets


def to_plain(result: EvaluationResult) -> dict[str, Any]:
    """Return an evaluation and its errors as plain values: for JSON and for the page."""
    confusion, bins = confusion_table(result), calibration_bins(result)
    interval = result.confidence_interval
    return {
        "task": result.task.kind,
        "metric": result.task.main_metric,
        "score": interval.score,
        "low": interval.low,
        "high": interval.high,
        "scores": result.scores,
        "rows": len(result.rows),
        "unseen": result.unseen_labels,
        "confusion": None
        if confusion is None
        else {
            "labels": [str(label) for label in confusion.labels],
            "counts": confusion.counts.tolist(),
        },
        "classes": {name: asdict(scores) for name, scores in per_class_scores(result).items()},
        "calibration": [asdict(group) for group in bins],
        "calibration_error": expected_calibration_error(bins) if bins else None,
        "lengths": [asdict(bucket) for bucket in scores_by_length(result)],
        "mistakes": [  # `right` and `said` are keys that programs read
            asdict(error) | {"right": error.label, "said": error.prediction}
            for error in worst_errors(result)
        ],
        "baselines": {
            baseline.name: {
                "scores": {name: asdict(bounds) for name, bounds in baseline.scores.items()},
                "difference": asdict(baseline.difference),
            }
            for baseline in result.baselines
        },
        **result.task.diagnostics(result.rows, result.predictions),
    }
