"""The tables of race.json: scores of entrants on the same rows, and their differences."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from kinfolk.metrics.comparison import (
    BITS_PER_BYTE,
    Difference,
    Interval,
    compare_all,
    document_statistics,
    summarize,
)
from kinfolk.metrics.metric import Metric, Statistics
from kinfolk.metrics.verdicts import Verdicts, join_words, unit_of
from kinfolk.reports.page import plural
from kinfolk.tasks.task import task_class
from kinfolk.workflows.comparison.data import read_stored
from kinfolk.workflows.comparison.plan import ALL_LABELS, Job, Plan, PlannedEntrant, PlannedTask
from kinfolk.workflows.comparison.scores import BASELINE, LIKELIHOOD, PSEUDO, scored_documents

HELD_OUT_TEXT = "the held-out text"
TEXT = "text"  # what a likelihood predicts, whatever its tokens are

JsonObject = dict[str, Any]
Results = Mapping[str, JsonObject]  # by the name of the job, without those that failed
Scores = dict[str, dict[int, Statistics]]  # by entrant and seed


def likelihood_table(plan: Plan, results: Results) -> JsonObject:
    """Return bits per byte of every entrant; likelihoods are compared among themselves."""
    found, scores = likelihood_scores(plan, results)
    fixed = [e.name for e in plan.entrants if e.gradient_free]
    baselines = [name for name, row in found.items() if row["kind"] == BASELINE]
    rows: list[JsonObject] = []
    differences: list[Difference] = []
    sentences: list[str] = []
    heads: list[str] = []
    unigram = unigram_bits(plan, scores.get((LIKELIHOOD, TEXT), {}))
    for (words, units), compared in scores.items():
        where = HELD_OUT_TEXT if words == LIKELIHOOD else f"{HELD_OUT_TEXT} ({words})"
        table = Table(BITS_PER_BYTE, compared, fixed, baselines)
        # A model without context predicts a token as well with both sides as with none.
        reference = unigram.get(units.partition(",")[0]) if words != LIKELIHOOD else None
        extra = {} if reference is None else {"unigram": reference}
        rows += [{**table.row(name), **found[name], **extra} for name in table.intervals]
        differences += table.differences
        verdicts = table.verdicts(where, plan.options.seeds)
        sentences += verdicts.sentences()
        heads += verdicts.headlines()
        if reference is not None:
            sentences += unigram_sentences(table.intervals, reference, where)
    return {
        "unit": "bits per byte",
        "rows": rows,
        "differences": [asdict(d) for d in differences],
        "verdicts": first(heads, sentences),
        "headlines": heads,
    }


def likelihood_scores(
    plan: Plan, results: Results
) -> tuple[dict[str, JsonObject], dict[tuple[str, str], Scores]]:
    """Return how each entrant was scored, and the scores by method and units of prediction.

    Scores can be compared within a method and its units.
    """
    found: dict[str, JsonObject] = {}
    corpora = corpus_names(plan)
    scores: dict[tuple[str, str], Scores] = {}
    for job in plan.jobs:
        if job.kind != "likelihood" or job.name not in results:
            continue
        result = results[job.name]
        if plan.options.search:
            result = scored_documents(result)
        entrant = plan.entrant_of[job.entrant]
        words = score_words(entrant, result)
        is_pseudo = result["kind"] == PSEUDO
        units = prediction_units(entrant, words, corpora[entrant.corpus]) if is_pseudo else TEXT
        found[job.entrant] = {"kind": result["kind"], "words": words, "units": units}
        method = (words if is_pseudo else LIKELIHOOD), units
        statistics = document_statistics(result["documents"])
        scores.setdefault(method, {}).setdefault(job.entrant, {})[job.seed] = statistics
    return found, scores


def unigram_bits(plan: Plan, scores: Scores) -> dict[str, float]:
    """Return the bits per byte of the unigram baseline, by the units of its tokens."""
    corpora = corpus_names(plan)
    return {
        f"tokens of {corpora[plan.entrant_of[name].corpus]}": BITS_PER_BYTE.aggregate(found[0])
        for name, found in scores.items()
        if plan.entrant_of[name].baseline and plan.entrant_of[name].size == "1"
    }


def unigram_sentences(
    intervals: Mapping[str, Interval], unigram: float, where: str
) -> Iterator[str]:
    """Say which pseudo-likelihoods are no better than counting words, or not shown to be."""
    worse = [f"{name} ({i.value:.3f})" for name, i in intervals.items() if i.value >= unigram]
    near = [
        f"{name} ({i.value:.3f})" for name, i in intervals.items() if i.value < unigram <= i.high
    ]
    for names, words in ((worse, "not better"), (near, "not shown to be better")):
        if names:
            verb = "is" if len(names) == 1 else "are"
            start = f"{join_words(names)} {verb} {words} than counting words"
            yield f"{start} ({unigram:.3f}) on {where}"


def score_words(entrant: PlannedEntrant, result: JsonObject) -> str:
    """Return how a score was computed; that of ELECTRA is one of its generator."""
    words = str(result["words"])
    return (
        words.replace(PSEUDO, f"{PSEUDO} of the generator") if entrant.objective == "rtd" else words
    )


def corpus_names(plan: Plan) -> dict[str, str]:
    """Return a short name for the corpus of each tokenizer; none has two."""
    folders = list(dict.fromkeys(entrant.corpus for entrant in plan.entrants))
    names = [Path(folder).name for folder in folders]
    return {
        folder: name if names.count(name) == 1 else folder
        for folder, name in zip(folders, names, strict=True)
    }


def prediction_units(entrant: PlannedEntrant, words: str, corpus: str) -> str:
    """Return what a pseudo-likelihood predicts at once: only scores of the same units are compared.

    A shorter token, or a shorter span, is easier to predict from the text on both sides.
    """
    units = f"tokens of {corpus}"
    if "span" not in words:
        return units
    objective = (entrant.recipe or {}).get("objective", {})
    length, rate = (objective.get(key) for key in ("mean_span_length", "mask_rate"))
    return f"{units}, spans of {length} tokens in the mean and {rate} of the text"


class Table:
    """The scores of several entrants on the same rows."""

    def __init__(
        self, metric: Metric, scores: Scores, fixed: Sequence[str], baselines: Sequence[str]
    ) -> None:
        self.metric = metric
        by_seed = {name: [s for _, s in sorted(seeds.items())] for name, seeds in scores.items()}
        self.fixed = [name for name in fixed if name in by_seed]
        self.baselines = [name for name in baselines if name in by_seed]
        by_seed = {n: s[:1] if n in self.fixed else s for n, s in by_seed.items()}
        self.seed_numbers = {n: sorted(scores[n])[: len(s)] for n, s in by_seed.items()}
        self.intervals: dict[str, Interval] = {
            name: summarize(metric, seeds, fixed=name in self.fixed)
            for name, seeds in by_seed.items()
        }
        self.differences: list[Difference] = (
            compare_all(metric, by_seed, fixed=self.fixed, baselines=self.baselines)
            if len(by_seed) > 1
            else []
        )

    def row(self, name: str) -> JsonObject:
        """Return the score of an entrant; seeds whose training failed have none."""
        interval = self.intervals[name]
        return {
            "entrant": name,
            "mean": interval.value,
            "low": interval.low,
            "high": interval.high,
            "spread": interval.spread,
            "seeds": list(interval.scores),
            "seed_numbers": self.seed_numbers[name],
            "fixed": name in self.fixed,  # no seed changes the model
        }

    def verdicts(self, where: str, seeds: int) -> Verdicts:
        """Return what the scores show; `seeds` are those planned."""
        unit, scale = unit_of(self.metric)
        return Verdicts(
            where,
            unit,
            self.intervals,
            self.differences,
            seeds,
            scale=scale,
            baselines=self.baselines,
            fixed=self.fixed,
            lower_is_better=self.metric.lower_is_better,
        )


def first(heads: Sequence[str], sentences: Sequence[str]) -> list[str]:
    """Return sentences with some of them, or others, at the beginning."""
    return [*heads, *(s for s in sentences if s not in heads)]


# Tasks


def task_table(
    race: Path, plan: Plan, task: PlannedTask, results: Results, failures: Mapping[str, str]
) -> tuple[JsonObject, list[str], list[str]]:
    """Return the scores of a task, the sentences about all labels, and those about fewer."""
    rows = read_stored(race / "tasks" / task.slug / "test.jsonl", task.kind)
    metric = task.value.main_metric_of(rows)
    stood_beside = [e.name for e in plan.entrants if e.baseline] + [*task.baselines]
    scored: list[JsonObject] = []
    differences: list[JsonObject] = []
    sentences: list[list[str]] = []
    heads: list[str] = []
    for labels in task.labels:
        jobs = [
            job
            for job in plan.jobs
            if job.task == task.slug and job.labels == labels and job.name in results
        ]
        fixed = task.baselines if labels == ALL_LABELS else ()
        table = Table(metric, task_scores(jobs, results), fixed, stood_beside)
        scored += label_table_rows(table, labels, jobs, results)
        differences += [{"labels": labels, **asdict(d)} for d in table.differences]
        where = task.name if labels == ALL_LABELS else f"{task.name} with {labels} labels"
        verdicts = table.verdicts(where, plan.options.seeds)
        sentences.append(verdicts.sentences())
        if labels == ALL_LABELS:
            heads = verdicts.headlines(trained_on=f" with {plural(task.train, 'row')}")
            sentences[-1] = first(heads, sentences[-1])
    unit, _ = unit_of(metric)
    others = [s for part in reversed(sentences[:-1]) for s in part]
    table_json = {
        "name": task.name,
        "kind": task_class(task.kind).alias,
        "metric": metric.name,
        "metric_title": metric.title or metric.name,
        "unit": unit,
        "maximum": metric.maximum,
        "lower_is_better": metric.lower_is_better,
        **{split: vars(task)[split] for split in ("train", "dev", "test")},
        "labels": task.class_counts,
        "rows": scored,
        "differences": differences,
        "left_out": [
            {"entrant": name, "reason": reason}
            for name, reason in left_out_reasons(plan, task, results, failures).items()
        ],
        "verdicts": [*sentences[-1], *others],
        "headlines": heads,
    }
    return table_json, sentences[-1], others


def task_scores(jobs: Sequence[Job], results: Results) -> Scores:
    """Return the statistics of test rows that jobs measured."""
    scores: Scores = {}
    for job in jobs:
        scores.setdefault(job.entrant, {})[job.seed] = np.array(results[job.name]["statistics"])
    return scores


def label_table_rows(
    table: Table, labels: str, jobs: Sequence[Job], results: Results
) -> Iterator[JsonObject]:
    """Yield the rows of one number of labels, with the seconds and the settings of their jobs."""
    for name in table.intervals:
        own = [results[job.name] for job in jobs if job.entrant == name]
        yield {
            **table.row(name),
            "labels": labels,
            "seconds": float(np.mean([result["seconds"] for result in own])),
            "baseline": name in table.baselines,
            "settings": own[0].get("settings"),
        }


def left_out_reasons(
    plan: Plan, task: PlannedTask, results: Results, failures: Mapping[str, str]
) -> dict[str, str]:
    """Return why entrants have no score: they cannot do the task, or all of their jobs failed."""
    reasons = {e.name: e.left_out for e in plan.entrants if e.left_out is not None}
    reasons |= dict(task.left_out)
    jobs = [job for job in plan.jobs if job.kind == "finetune" and job.task == task.slug]
    scored = {job.entrant for job in jobs if job.name in results}
    for job in jobs:
        if job.entrant not in scored and job.name in failures:
            reasons.setdefault(job.entrant, failures[job.name])
    return reasons
