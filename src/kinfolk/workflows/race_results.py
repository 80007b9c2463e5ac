"""From the results of jobs to race.json, race.csv and race.html."""

import csv
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from kinfolk.files import new_file
from kinfolk.metrics.comparison import (
    BITS_PER_BYTE,
    Difference,
    Interval,
    compare_all,
    document_statistics,
    summarize,
)
from kinfolk.metrics.metric import Metric, Statistics
from kinfolk.metrics.verdicts import unit_of, verdict_sentences
from kinfolk.reports.page import write
from kinfolk.reports.race_page import render
from kinfolk.tasks.task import task_class
from kinfolk.workflows.race_data import read_stored
from kinfolk.workflows.race_jobs import planned_task, read_result
from kinfolk.workflows.race_plan import ALL_LABELS, Plan, PlannedEntrant, PlannedTask, write_json
from kinfolk.workflows.race_scores import BASELINE, LIKELIHOOD, PSEUDO, main_metric, odd_documents

SCHEMA = 1
TEXT = "the held-out text"
COLUMNS = ("table", "entrant", "labels", "seed", "metric", "value", "low", "high")

Json = dict[str, Any]
Results = Mapping[str, Json]  # by the name of the job, without those that failed
Scores = dict[str, dict[int, Statistics]]  # by entrant and seed


def build_race(race: Path, plan: Plan) -> Json:
    """Return the contents of race.json from the results that are there."""
    all_results = {job.name: read_result(race, job) for job in plan.jobs}
    complete = all(result is not None for result in all_results.values())
    failures = {n: r["failed"] for n, r in all_results.items() if r is not None and r["failed"]}
    results = {n: r for n, r in all_results.items() if r is not None and not r["failed"]}
    likelihood = likelihood_table(plan, results)
    tasks = [task_table(race, plan, task, results) for task in plan.tasks]
    sentences = [s for table in tasks for s in table["verdicts"]] + likelihood["verdicts"]
    return {
        "schema": SCHEMA,
        "complete": complete,
        "kinfolk": plan.kinfolk,
        "created": plan.created,
        "command": command_line(plan),
        "machine": plan.machine,
        "corpus": plan.corpus,
        "budget": plan.budget,
        "learning_rates": learning_rates(plan),
        "seeds": plan.options.seeds,
        "entrants": [entrant_row(plan, e, results, failures) for e in plan.entrants],
        "likelihood": likelihood,
        "tasks": tasks,
        "probes": probe_tables(race, plan, results),
        "samples": sample_rows(plan, results),
        "verdicts": sentences,
        "notes": [*plan.notes, *failure_notes(plan, failures)],
    }


def write_race(race: Path, plan: Plan) -> Json:
    """Write race.json, race.csv and race.html; return the contents of the first."""
    values = build_race(race, plan)
    write_json(values, race / "race.json")
    with new_file(race / "race.csv", newline="") as file:
        csv.writer(file).writerows([COLUMNS, *csv_lines(values)])
    write(render(values), race / "race.html")
    return values


def command_line(plan: Plan) -> str:
    """Return the command that asks for the same comparison, without rarer options."""
    options = plan.options
    words = [quoted(entrant_text(entrant)) for entrant in options.entrants]
    words += [part for path in options.corpus for part in ("--corpus", quoted(path))]
    words += [part for path in options.tasks for part in ("--task", quoted(path))]
    words += [f"--{options.budget_kind}", f"{options.budget_amount:g}"]
    return " ".join(["kinfolk compare", *words, "--seeds", str(options.seeds), "-o RACE"])


def entrant_text(entrant: Any) -> str:
    """Return an entrant as it was given."""
    words = [f"{entrant.name}={entrant.model}", *entrant.settings]
    if entrant.name == entrant.model or entrant.name.startswith(f"{entrant.model} ("):
        words[0] = entrant.model
    words += [f"objective={entrant.objective}"] if entrant.objective else []
    words += [f"tokenizer={entrant.tokenizer}"] if entrant.tokenizer else []
    return " ".join([*words, *(f"task.{setting}" for setting in entrant.task_settings)])


def quoted(text: str) -> str:
    """Return a word for the shell."""
    return f"'{text}'" if " " in text else text


def learning_rates(plan: Plan) -> Json:
    """Return how learning rates were chosen."""
    count = plan.options.search
    if not count:
        words = "Each entrant trains at the learning rate that its family has for its size."
        return {"method": "ladder", "words": words}
    words = (
        f"Each entrant tries {count} learning rates around that of its size in a third of its "
        "budget, and trains with the one of the lowest loss on development documents, which are "
        "held out and not scored. The search is done once, with seed 0."
    )
    return {"method": "search", "words": words}


def entrant_row(
    plan: Plan, entrant: PlannedEntrant, results: Results, failures: Mapping[str, str]
) -> Json:
    """Return an entrant with the cost of one pretraining, the mean over seeds."""
    runs = [
        results[job.name]
        for job in plan.jobs
        if job.kind == "pretrain" and job.entrant == entrant.name and job.name in results
    ]
    failed = [failures[f"pretrain.{entrant.slug}.seed-{s}"] for s in range(plan.options.seeds)
              if f"pretrain.{entrant.slug}.seed-{s}" in failures]  # fmt: skip
    left_out = entrant.left_out or (failed[0] if failed and not runs else None)
    recipe = entrant.recipe or {}
    return {
        "name": entrant.name,
        "family": entrant.family,
        "size": entrant.size,
        "settings": [*entrant.settings, *(f"task.{s}" for s in entrant.task_settings)],
        "objective": entrant.objective,
        "parameters": entrant.parameters,
        "non_embedding_parameters": entrant.non_embedding_parameters,
        "steps": entrant.steps,
        "lr": runs[0]["lr"] if runs else recipe.get("train", {}).get("lr"),
        "cost": cost_of(runs),
        "baseline": entrant.baseline,
        "counted": entrant.counted,
        "left_out": left_out,
        "curve": runs[0]["curve"] if runs else None,
    }


def cost_of(runs: Sequence[Json]) -> Json | None:
    """Return the mean cost of runs; the largest memory."""
    if not runs:
        return None

    def mean(name: str) -> float | None:
        known = [run[name] for run in runs if run.get(name) is not None]
        return float(np.mean(known)) if known else None

    names = ("tokens", "flops", "seconds", "joules", "tokens_per_second")
    peak = max((run["peak_bytes"] or 0 for run in runs), default=0)
    return {**{name: mean(name) for name in names}, "peak_bytes": peak or None}


# Likelihood


def likelihood_table(plan: Plan, results: Results) -> Json:
    """Return bits per byte of every entrant; likelihoods are compared among themselves."""
    found: dict[str, tuple[str, str]] = {}
    scores: dict[str, Scores] = {}  # of each method that scores can be compared within
    for job in plan.jobs:
        if job.kind != "likelihood" or job.name not in results:
            continue
        result = results[job.name]
        if plan.options.search:
            result = odd_documents(result)
        found[job.entrant] = result["kind"], result["words"]
        method = result["words"] if result["kind"] == PSEUDO else LIKELIHOOD
        statistics = document_statistics(result["documents"])
        scores.setdefault(method, {}).setdefault(job.entrant, {})[job.seed] = statistics
    counted = [e.name for e in plan.entrants if e.counted]
    baselines = [name for name, (kind, _) in found.items() if kind == BASELINE]
    rows: list[Json] = []
    differences: list[Difference] = []
    sentences: list[str] = []
    for method, compared in scores.items():
        where = TEXT if method == LIKELIHOOD else f"{TEXT} ({method})"
        table = Table(BITS_PER_BYTE, compared, counted, baselines)
        for name, interval in table.intervals.items():
            row = interval_row(name, interval)
            rows.append({**row, "kind": found[name][0], "words": found[name][1]})
        differences += table.differences
        sentences += table.sentences(where, plan.options.seeds)
    return {
        "unit": "bits per byte",
        "rows": rows,
        "differences": [asdict(d) for d in differences],
        "verdicts": sentences,
    }


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
        self.intervals: dict[str, Interval] = {
            name: summarize(metric, seeds, fixed=name in self.fixed)
            for name, seeds in by_seed.items()
        }
        self.differences: list[Difference] = (
            compare_all(metric, by_seed, fixed=self.fixed, baselines=self.baselines)
            if len(by_seed) > 1
            else []
        )

    def sentences(self, where: str, seeds: int) -> list[str]:
        """Return what the differences show."""
        unit, scale = unit_of(self.metric)
        return verdict_sentences(
            where,
            unit,
            self.intervals,
            self.differences,
            seeds,
            baselines=self.baselines,
            scale=scale,
        )


def interval_row(name: str, interval: Interval) -> Json:
    """Return the score of an entrant."""
    return {
        "entrant": name,
        "mean": interval.value,
        "low": interval.low,
        "high": interval.high,
        "spread": interval.spread,
        "seeds": list(interval.scores),
    }


# Tasks


def task_table(race: Path, plan: Plan, task: PlannedTask, results: Results) -> Json:
    """Return the scores of a task for every number of labels; sentences about all labels first."""
    rows = read_stored(race / "tasks" / task.slug / "test.jsonl", task.kind)
    metric = main_metric(planned_task(task), rows)
    stood_beside = [e.name for e in plan.entrants if e.baseline] + [*task.baselines]
    scored: list[Json] = []
    differences: list[Json] = []
    sentences: list[list[str]] = []
    for labels in task.labels:
        jobs = [
            job
            for job in plan.jobs
            if job.task == task.slug and job.labels == labels and job.name in results
        ]
        scores: Scores = {}
        for job in jobs:
            statistics = np.array(results[job.name]["statistics"])
            scores.setdefault(job.entrant, {})[job.seed] = statistics
        fixed = task.baselines if labels == ALL_LABELS else ()
        table = Table(metric, scores, fixed, stood_beside)
        seconds = {name: [results[j.name]["seconds"] for j in jobs if j.entrant == name]
                   for name in scores}  # fmt: skip
        scored += [
            {
                **interval_row(name, interval),
                "labels": labels,
                "seconds": float(np.mean(seconds[name])),
                "baseline": name in stood_beside,
            }
            for name, interval in table.intervals.items()
        ]
        differences += [{"labels": labels, **asdict(d)} for d in table.differences]
        where = task.name if labels == ALL_LABELS else f"{task.name} with {labels} labels"
        sentences.append(table.sentences(where, plan.options.seeds))
    unit, _ = unit_of(metric)
    return {
        "name": task.name,
        "kind": task_class(task.kind).alias,
        "metric": metric.name,
        "unit": unit,
        "maximum": metric.maximum,
        "lower_is_better": metric.lower_is_better,
        **{split: vars(task)[split] for split in ("train", "dev", "test")},
        "labels": task.class_counts,
        "rows": scored,
        "differences": differences,
        "left_out": [{"entrant": n, "reason": reason} for n, reason in task.left_out.items()],
        "verdicts": [s for part in reversed(sentences) for s in part],
    }


# Probes and samples


def probe_tables(race: Path, plan: Plan, results: Results) -> list[Json]:
    """Return the probes of each task that has any."""
    tables = []
    for task in plan.tasks:
        jobs = [j for j in plan.jobs if j.kind == "probe" and j.task == task.slug and not j.seed]
        rows = [row for job in jobs if job.name in results for row in results[job.name]["probe"]]
        if rows:
            tables.append({"task": task.name, "metric": task.metric, "rows": rows})
    return tables


def sample_rows(plan: Plan, results: Results) -> list[Json]:
    """Return the samples of each entrant, and once the real continuations."""
    rows: list[Json] = []
    reference: list[Json] = []
    for job in plan.jobs:
        if job.kind == "sample" and job.name in results:
            for row in results[job.name]["sample"]:
                (reference if row["reference"] else rows).append(row)
    return rows + reference[:1]


def failure_notes(plan: Plan, failures: Mapping[str, str]) -> list[str]:
    """Return a sentence for each job that failed, those of one reason and entrant together."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for job in plan.jobs:
        if job.name in failures:
            reasons.setdefault((job.entrant, failures[job.name]), []).append(job.kind)
    return [
        f"{entrant}: {', '.join(dict.fromkeys(kinds))} left out: {reason}"
        for (entrant, reason), kinds in reasons.items()
    ]


def csv_lines(values: Json) -> Iterator[tuple[Any, ...]]:
    """Yield a line for each score: of every seed, and their mean with its interval."""
    tables = [("held-out text", "bits_per_byte", values["likelihood"]["rows"])]
    tables += [(task["name"], task["metric"], task["rows"]) for task in values["tasks"]]
    for table, metric, rows in tables:
        for row in rows:
            labels = row.get("labels", "")
            start = (table, row["entrant"], labels)
            for seed, value in enumerate(row["seeds"]):
                yield (*start, seed, metric, value, "", "")
            yield (*start, "mean", metric, row["mean"], row["low"], row["high"])


class PartialRace:
    """Writes the results so far, as often as they take little of the time."""

    SHARE = 0.05  # of the time

    def __init__(self, race: Path, plan: Plan) -> None:
        self.race, self.plan = race, plan
        self._due = 0.0

    def update(self) -> None:
        """Write, unless it would take too much of the time."""
        began = time.monotonic()
        if began < self._due:
            return
        write_race(self.race, self.plan)
        ended = time.monotonic()
        self._due = ended + (ended - began) / self.SHARE
