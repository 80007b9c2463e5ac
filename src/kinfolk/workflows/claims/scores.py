"""Effects of claims: the difference that a claim predicts, from the results of a comparison."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from kinfolk.data.corpus import Corpus, corpus_fingerprint
from kinfolk.metrics.bootstrap import CONFIDENCE_LEVEL
from kinfolk.metrics.comparison import BITS_PER_BYTE, compare_all, document_statistics
from kinfolk.metrics.metric import Metric, Statistics
from kinfolk.metrics.verdicts import format_alike, unit_of
from kinfolk.workflows.baselines import fit_ngram, score_text
from kinfolk.workflows.claims.catalog import Claim, Part
from kinfolk.workflows.comparison.data import read_stored
from kinfolk.workflows.comparison.jobs import read_result
from kinfolk.workflows.comparison.plan import ALL_LABELS, Job, Plan

JOB_KINDS = {"likelihood": "likelihood", "task": "finetune", "probe": "probe"}
BITS, LAYERS = "bits per byte", "layers"


@dataclass(frozen=True)
class ClaimEffect:
    """How far the first is better than the second, with its 95 % interval.

    Above 0 is what the claim says; `value` is None where a job failed.
    """

    first: str
    second: str
    unit: str
    value: float | None
    low: float | None
    high: float | None
    seeds: int
    verdict: str  # holds, reversed or undecided
    words: str
    stage: str = ""
    margin: float = 0.0
    smallest: float = 0.0  # effect that would matter
    scores: Mapping[str, tuple[float, ...]] | None = None  # of each seed, in the unit
    secondary: bool = False


@dataclass(frozen=True)
class Measured:
    """A difference in the unit of its measure, where above 0 the first is better."""

    value: float
    low: float
    high: float
    seeds: int
    scores: Mapping[str, tuple[float, ...]]


class MissingScoresError(Exception):
    """A job of a comparison failed; the message is its reason."""


def claim_effects(claim: Claim, races: Mapping[str, Path]) -> tuple[ClaimEffect, ...]:
    """Return the effect of each part of a claim; `races` are folders by the names of stages."""
    plans = {stage: Plan.read(race / "plan.json") for stage, race in races.items()}
    return tuple(
        part_effect(claim, part, races[part.stage], plans[part.stage]) for part in claim.parts
    )


def part_effect(claim: Claim, part: Part, race: Path, plan: Plan) -> ClaimEffect:
    """Measure one difference."""
    unit = BITS if claim.measure == "likelihood" else LAYERS
    try:
        if claim.measure == "probe":
            measured = probe_difference(claim, part, race, plan)
        else:
            metric = task_metric(race, plan) if claim.measure == "task" else BITS_PER_BYTE
            measured, unit = score_difference(claim, part, race, plan, metric)
    except MissingScoresError as error:
        return failed_effect(claim, part, unit, str(error))
    verdict, words = decide(measured, part.margin), effect_words(claim, part, measured, unit)
    if untrained := untrained_words(claim, race, plan, measured):
        verdict, words = "undecided", f"{words}; {untrained}"
    return ClaimEffect(
        first=part.first,
        second=part.second,
        unit=unit,
        value=measured.value,
        low=measured.low,
        high=measured.high,
        seeds=measured.seeds,
        verdict=verdict,
        words=words,
        stage=part.stage,
        margin=part.margin,
        smallest=claim.effect,
        scores=measured.scores,
        secondary=part.secondary,
    )


def failed_effect(claim: Claim, part: Part, unit: str, reason: str) -> ClaimEffect:
    """Return the effect of a comparison whose job failed."""
    return ClaimEffect(
        first=part.first,
        second=part.second,
        unit=unit,
        value=None,
        low=None,
        high=None,
        seeds=0,
        verdict="undecided",
        words=f"no score: {reason}",
        stage=part.stage,
        margin=part.margin,
        smallest=claim.effect,
        secondary=part.secondary,
    )


def decide(measured: Measured, margin: float) -> str:
    """Return the verdict of an interval: on which side of the margin it lies."""
    if measured.low > -margin:
        return "holds"
    return "reversed" if measured.high < -margin else "undecided"


def effect_words(claim: Claim, part: Part, measured: Measured, unit: str) -> str:
    """Return an effect in a sentence, and whether it would matter."""
    value, low, high = format_alike((measured.value, measured.low, measured.high), unit)
    size = value.lstrip("−")
    where = f" ({part.stage})" if part.stage else ""
    if claim.measure == "probe":
        start = f"pretraining moves {part.second} by {value} {unit} more than {part.first}"
    else:
        side = "ahead of" if measured.value >= 0 else "behind"
        start = f"{part.first} is {side} {part.second} by {size} {unit}"
    plural = "" if measured.seeds == 1 else "s"
    interval = f"95 % interval of the gain {low} to {high}, {measured.seeds} seed{plural}"
    return f"{start}{where} ({interval}{small_words(claim, part, measured, unit)})"


def small_words(claim: Claim, part: Part, measured: Measured, unit: str) -> str:
    """Say that an effect is smaller than what would matter, and whether it may be larger."""
    is_shown = not measured.low <= 0 <= measured.high
    may_matter = max(abs(measured.low), abs(measured.high)) >= claim.effect
    if part.margin or abs(measured.value) >= claim.effect or (may_matter and not is_shown):
        return ""
    amount = f"{claim.effect:g} {unit.removesuffix('s') if claim.effect == 1 else unit}"
    words = f"; less than the {amount} that would matter"
    return f"{words}, which the interval does not exclude" if may_matter else words


def untrained_words(claim: Claim, race: Path, plan: Plan, measured: Measured) -> str | None:
    """Say that no entrant is better than a model without context; None if one is.

    Such entrants have not been trained enough to tell anything about a claim.
    """
    means = {name: float(np.mean(scores)) for name, scores in measured.scores.items()}
    if claim.measure == "likelihood":
        corpora = {name: Path(plan.entrant_of[name].corpus) for name in means}
        floors = {
            name: corpus_unigram_bits(c, corpus_fingerprint(c)) for name, c in corpora.items()
        }
        best = min(means, key=lambda name: means[name])
        if means[best] < floors[best]:
            return None
        return f"{best} is not better than a unigram model of its tokens ({floors[best]:.3f})"
    task = plan.tasks[0]
    if claim.measure == "probe" or task.metric != "accuracy":
        return None
    rows = read_stored(race / "tasks" / task.slug / "test.jsonl", task.kind)
    largest = max(task.class_counts, key=lambda name: task.class_counts[name])
    floor = 100 * float(np.mean([str(task.value.reference(row)) == largest for row in rows]))
    if max(means.values()) > floor:
        return None
    return f"neither is better than the largest class ({floor:.1f})"


@cache
def corpus_unigram_bits(folder: Path, fingerprint: str) -> float:
    """Return the bits per byte of the held-out text of a corpus by a unigram model."""
    corpus = Corpus.open(folder)
    scores = score_text(fit_ngram([(corpus, 1.0)], 1), Corpus.open(corpus.folder / "holdout"))
    return scores.bits_per_byte


# Scores and likelihoods


def score_difference(
    claim: Claim, part: Part, race: Path, plan: Plan, metric: Metric
) -> tuple[Measured, str]:
    """Compare two entrants on the same rows; return also the unit."""
    statistics = {
        name: entrant_statistics(claim, name, race, plan) for name in (part.first, part.second)
    }
    (difference,) = compare_all(metric, statistics)
    unit, scale = (BITS, 1.0) if claim.measure == "likelihood" else unit_of(metric)
    # `compare_all` puts the better entrant first; a lower score may be the better one.
    sign = scale * (1 if difference.first == part.first else -1)
    sign *= -1 if metric.lower_is_better else 1
    low, high = sorted((sign * difference.low, sign * difference.high))
    scores = {
        name: tuple(scale * metric.aggregate(rows) for rows in seeds)
        for name, seeds in statistics.items()
    }
    return Measured(sign * difference.value, low, high, difference.seeds, scores), unit


def task_metric(race: Path, plan: Plan) -> Metric:
    """Return the metric of the task of a comparison."""
    task = plan.tasks[0]
    rows = read_stored(race / "tasks" / task.slug / "test.jsonl", task.kind)
    metric: Metric = task.value.main_metric_of(rows)
    return metric


def entrant_statistics(claim: Claim, entrant: str, race: Path, plan: Plan) -> list[Statistics]:
    """Return the statistics of rows or documents, an array for each seed."""
    found = []
    for job in plan.jobs:
        if job.kind != JOB_KINDS[claim.measure] or job.entrant != entrant:
            continue
        if claim.measure == "task" and job.labels != ALL_LABELS:
            continue
        result = job_result(race, job)
        if claim.measure == "likelihood":
            found.append(document_statistics(result["documents"]))
        else:
            found.append(np.array(result["statistics"]))
    if not found:
        reasons = [task.left_out[entrant] for task in plan.tasks if entrant in task.left_out]
        raise MissingScoresError(plan.entrant_of[entrant].left_out or "; ".join(reasons))
    return found


def job_result(race: Path, job: Job) -> Mapping[str, Any]:
    """Return the result of a job that has one."""
    result = read_result(race, job) or {"failed": f"{job.name} has no result"}
    if result["failed"]:
        raise MissingScoresError(result["failed"])
    return result


# Probes


def probe_difference(claim: Claim, part: Part, race: Path, plan: Plan) -> Measured:
    """Return how many layers pretraining moves the second task above the first."""
    centers: dict[str, list[float]] = {
        need: probe_centers(race, plan, task.slug)
        for need, task in zip(claim.tasks, plan.tasks, strict=True)
    }
    first, second = centers[part.first], centers[part.second]
    value, half = seed_interval([b - a for a, b in zip(first, second, strict=True)])
    scores = {part.first: tuple(first), part.second: tuple(second)}
    return Measured(value, value - half, value + half, len(first), scores)


def probe_centers(race: Path, plan: Plan, task: str) -> list[float]:
    """Return the centre of gravity of the probe of a task for each seed, less that of the control.

    The control has random weights: even there, the best layer depends on the task.
    """
    jobs = [job for job in plan.jobs if job.kind == "probe" and job.task == task]
    results = [job_result(race, job)["probe"] for job in jobs]
    if not results:
        raise MissingScoresError("no probe was run")
    return [center_above_control(rows) for rows in results]


def center_above_control(rows: Sequence[Mapping[str, Any]]) -> float:
    """Return how much higher the probe of a pretrained network is than that of random weights."""
    centers = {row["pretrained"]: float(row["center_of_gravity"]) for row in rows}
    return centers[True] - centers[False]


def seed_interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean of values of several seeds, and half the width of its 95 % interval."""
    from scipy.special import stdtrit  # quantiles of Student's distribution

    mean, count = float(np.mean(values)), len(values)
    if count < 2:
        return mean, math.inf
    quantile = -stdtrit(count - 1, (1 - CONFIDENCE_LEVEL) / 2)
    return mean, float(quantile * np.std(values, ddof=1) / math.sqrt(count))
