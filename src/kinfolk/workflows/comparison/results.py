"""From the results of jobs to race.json, race.csv and race.html."""

import csv
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from kinfolk.files import new_file
from kinfolk.metrics.verdicts import join_words
from kinfolk.reports.page import write
from kinfolk.reports.race_cards import SHARE_ROUNDING, measured_words
from kinfolk.reports.race_page import render
from kinfolk.tasks.task import metric_title
from kinfolk.workflows.comparison.budget import BUDGET_TOLERANCE
from kinfolk.workflows.comparison.jobs import read_result
from kinfolk.workflows.comparison.plan import (
    ALL_LABELS,
    Plan,
    PlannedEntrant,
    RaceOptions,
    write_finite_json,
)
from kinfolk.workflows.comparison.samples import no_samples_reason
from kinfolk.workflows.comparison.scores import BASELINE
from kinfolk.workflows.comparison.tables import (
    JsonObject,
    Results,
    corpus_names,
    first,
    likelihood_table,
    task_table,
)

RACE_SCHEMA = 1
# Options that every command has, and those of Python alone.
COMMON_OPTIONS = ("entrants", "corpus", "budget_kind", "budget_amount", "tasks", "seeds")
PYTHON_OPTIONS = ("probe_seeds", "baselines")
# Scores of one table are comparable where method and units agree; n-gram baselines are likelihoods.
RACE_COLUMNS = (
    *("table", "entrant", "labels", "seed", "metric", "value", "low", "high"),
    *("kind", "method", "units"),
)
SAMPLE_METRICS = (
    *("distinct_1", "distinct_2", "distinct_3", "repetition", "loops", "self_bleu"),
    *("ngram_perplexity", "ngram_bits_per_byte", "longest_copy"),
)
# Fields of an objective that say nothing about what is predicted, or are the same for all.
SHARED_FIELDS = ("type", "special_tokens", "vocab_size", "max_length")
RATE_SETTINGS = ("train.lr=", "train.matrix_lr=", "train.optimizer=")
# What a budget limits, and the cost of a run that says how much of it was spent.
SPENT = {"minutes": "seconds", "flops": "flops", "tokens": "tokens"}


def build_race(race: Path, plan: Plan) -> JsonObject:
    """Return the contents of race.json from the results that are there."""
    all_results = {job.name: read_result(race, job) for job in plan.jobs}
    complete = all(result is not None for result in all_results.values())
    failures = {n: r["failed"] for n, r in all_results.items() if r is not None and r["failed"]}
    results = {n: r for n, r in all_results.items() if r is not None and not r["failed"]}
    measured = measured_spread(plan, results)
    likelihood = likelihood_table(plan, results)
    tables = [task_table(race, plan, task, results, failures) for task in plan.tasks]
    sentences = [s for _, first, _ in tables for s in first] + likelihood["verdicts"]
    sentences += [s for _, _, others in tables for s in others]
    found = [*(table for table, _, _ in tables), likelihood]
    sentences = first([s for table in found for s in table["headlines"]], sentences)
    return {
        "schema": RACE_SCHEMA,
        "complete": complete,
        "kinfolk": plan.kinfolk,
        "created": plan.created,
        "command": race_command(plan),
        "machine": plan.machine,
        "corpus": plan.corpus,
        "budget": {**plan.budget, "measured": measured, "tolerance": tolerance(plan)},
        "learning_rates": learning_rates(plan),
        "seeds": plan.options.seeds,
        "entrants": [entrant_row(plan, e, results, failures) for e in plan.entrants],
        "likelihood": likelihood,
        "tasks": [table for table, _, _ in tables],
        "probes": probe_tables(plan, results),
        "samples": generated_samples(plan, results),
        "not_sampled": not_sampled(plan, failures),
        "verdicts": sentences,
        "notes": [*unequal_notes(plan, measured), *plan.notes, *failure_notes(plan, failures)],
    }


def write_race(race: Path, plan: Plan) -> JsonObject:
    """Write race.json, race.csv and race.html; return the contents of the first."""
    values = build_race(race, plan)
    write_finite_json(values, race / "race.json")
    with new_file(race / "race.csv", newline="") as file:
        csv.writer(file).writerows([RACE_COLUMNS, *score_csv_lines(values)])
    write(render(values), race / "race.html")
    return values


def race_command(plan: Plan) -> str:
    """Return the command that asks for the same comparison."""
    options = plan.options
    if plan.repeats:
        return f"kinfolk compare --repeat {shlex.quote(plan.repeats)} -o RACE"
    words = [shlex.quote(entrant_text(entrant)) for entrant in options.entrants]
    words += [part for path in options.corpus for part in ("--corpus", shlex.quote(path))]
    words += [part for path in options.tasks for part in ("--task", shlex.quote(path))]
    amount = options.budget_amount
    words += [f"--{options.budget_kind}", f"{int(amount) if amount.is_integer() else amount}"]
    words += ["--seeds", str(options.seeds), *rarer_options(options)]
    return " ".join(["kinfolk compare", *words, "-o RACE"])


def rarer_options(options: RaceOptions) -> Iterator[str]:
    """Yield the options that differ from their defaults, as a command takes them."""
    for option in fields(options):
        value, name = vars(options)[option.name], f"--{option.name.replace('_', '-')}"
        if option.name in (*COMMON_OPTIONS, *PYTHON_OPTIONS) or value == option.default:
            continue
        if option.name == "probes":
            yield "--no-probes"
        elif value is True:
            yield name
        else:
            yield from (
                name,
                ",".join(value) if option.name == "labels" else shlex.quote(f"{value}"),
            )


def entrant_text(entrant: Any) -> str:
    """Return an entrant as it was given."""
    words = [f"{entrant.name}={entrant.model}", *entrant.settings]
    if entrant.name == entrant.model or entrant.name.startswith(f"{entrant.model} ("):
        words[0] = entrant.model
    words += [f"objective={entrant.objective}"] if entrant.objective else []
    words += [f"tokenizer={entrant.tokenizer}"] if entrant.tokenizer else []
    return " ".join([*words, *(f"task.{setting}" for setting in entrant.task_settings)])


def learning_rates(plan: Plan) -> JsonObject:
    """Return how learning rates were chosen."""
    count = plan.options.search
    own = join_words([e.name for e in plan.entrants if sets_rates(e)])
    if not count:
        words = "Each entrant trains at the learning rate that its family has for its size."
        words += f" Settings of its own changed rate or optimizer of {own}." if own else ""
        return {"method": "ladder", "words": words}
    words = (
        f"Each entrant tries {count} learning rates around that of its size in a third of its "
        "budget, and trains with the one of the lowest loss on development documents, which are "
        "held out and not scored. The search is done once, with seed 0."
    )
    words += f" Settings of its own changed the rate around which {own} searched." if own else ""
    return {"method": "search", "words": words}


def sets_rates(entrant: PlannedEntrant) -> bool:
    """Return whether the settings of an entrant have a learning rate or an optimizer."""
    return any(setting.startswith(RATE_SETTINGS) for setting in entrant.settings)


def entrant_row(
    plan: Plan, entrant: PlannedEntrant, results: Results, failures: Mapping[str, str]
) -> JsonObject:
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
    objective = recipe.get("objective", {})
    return {
        "name": entrant.name,
        "family": entrant.family,
        "size": entrant.size,
        "settings": [*entrant.settings, *(f"task.{s}" for s in entrant.task_settings)],
        "objective": entrant.objective,
        "objective_settings": {k: v for k, v in objective.items() if k not in SHARED_FIELDS},
        "corpus": corpus_names(plan)[entrant.corpus],  # of its tokenizer
        "parameters": entrant.parameters,
        "non_embedding_parameters": entrant.non_embedding_parameters,
        "steps": mean_steps(runs) or entrant.steps,
        "lr": runs[0]["lr"] if runs else recipe.get("train", {}).get("lr"),
        "cost": cost_of(runs, searched(plan, entrant.name, results, "seconds")),
        "baseline": entrant.baseline,
        "counted": entrant.gradient_free,
        "left_out": left_out,
        "curve": runs[0]["curve"] if runs else None,
    }


def mean_steps(runs: Sequence[JsonObject]) -> int:
    """Return the steps of runs, which may have ended by the clock; 0 without any."""
    known = [run["steps"] for run in runs if run.get("steps")]
    return round(float(np.mean(known))) if known else 0


def searched(plan: Plan, entrant: str, results: Results, unit: str) -> float:
    """Return what the search of an entrant's learning rate took, which all of its seeds share."""
    jobs = [job for job in plan.jobs if (job.kind, job.entrant) == ("search", entrant)]
    return float(sum(results[job.name].get(unit) or 0 for job in jobs if job.name in results))


def cost_of(runs: Sequence[JsonObject], search_seconds: float) -> JsonObject | None:
    """Return the mean cost of runs; the largest memory."""
    if not runs:
        return None

    def mean(name: str) -> float | None:
        known = [run[name] for run in runs if run.get(name) is not None]
        return float(np.mean(known)) if known else None

    names = ("tokens", "flops", "seconds", "joules")
    timed = [run for run in runs if run.get("tokens") and run.get("seconds")]
    speeds = [run["tokens"] / run["seconds"] for run in timed]
    peak = max((run["peak_bytes"] or 0 for run in runs), default=0)

    def ends(name: str) -> list[float] | None:
        known = [run[name] for run in runs if run.get(name) is not None]
        return [min(known), max(known)] if known else None

    return {
        **{name: mean(name) for name in names},
        # Of all seeds together, so that it is the mean tokens by the mean seconds.
        "tokens_per_second": sum(r["tokens"] for r in timed) / sum(r["seconds"] for r in timed)
        if timed
        else None,
        "tokens_per_second_range": [min(speeds), max(speeds)] if timed else None,
        "steps_range": ends("steps"),
        "seconds_range": ends("seconds"),
        "tokens_range": ends("tokens"),
        "search_seconds": search_seconds or None,
        "peak_bytes": peak or None,
    }


def measured_spread(plan: Plan, results: Results) -> JsonObject | None:
    """Return how far apart all runs are in what the budget limits, as a share of it.

    Seconds and tokens are those in the logs of the runs; FLOPs are the steps in them, times those
    that were counted on batches of the run. The search of a learning rate is a part of each run.
    """
    kind, amount = plan.budget["kind"], plan.budget["amount"]
    spent = [
        value + searched(plan, job.entrant, results, SPENT[kind])
        for job in plan.jobs
        if job.kind == "pretrain" and job.name in results
        if (value := results[job.name].get(SPENT[kind])) is not None
    ]
    if not spent:
        return None
    low, high = min(spent), max(spent)
    budget = 60 * amount if kind == "minutes" else amount
    return {"unit": SPENT[kind], "low": low, "high": high, "spread": (high - low) / budget}


def tolerance(plan: Plan) -> float | None:
    """Return how far apart runs may be; None where they repeat steps, whatever they take."""
    return None if plan.repeats and plan.budget["kind"] == "minutes" else BUDGET_TOLERANCE


def unequal_notes(plan: Plan, measured: JsonObject | None) -> list[str]:
    """Say that runs are farther apart than a budget promises; nothing where they are not."""
    allowed = tolerance(plan)
    if measured is None or allowed is None or measured["spread"] <= allowed + SHARE_ROUNDING:
        return []
    return [
        f"{measured_words(measured).removesuffix('.')}, which is more than the "
        f"{100 * allowed:.0f}\u00a0% that equal budgets allow: differences between entrants may "
        "come from that."
    ]


# Probes and samples


def probe_tables(plan: Plan, results: Results) -> list[JsonObject]:
    """Return the probes of each task that has any."""
    tables = []
    for task in plan.tasks:
        jobs = [j for j in plan.jobs if j.kind == "probe" and j.task == task.slug and not j.seed]
        rows = [row for job in jobs if job.name in results for row in results[job.name]["probe"]]
        if rows:
            title = metric_title(task.metric)
            found = {"task": task.name, "metric": task.metric, "metric_title": title, "rows": rows}
            tables.append(found)
    return tables


def generated_samples(plan: Plan, results: Results) -> list[JsonObject]:
    """Return the samples of each entrant, and once the real continuations."""
    rows: list[JsonObject] = []
    reference: list[JsonObject] = []
    for job in plan.jobs:
        if job.kind == "sample" and job.name in results:
            for row in results[job.name]["sample"]:
                (reference if row["reference"] else rows).append(row)
    return rows + reference[:1]


def not_sampled(plan: Plan, failures: Mapping[str, str]) -> list[JsonObject]:
    """Return the entrants that generated no text, each with the reason."""
    if not plan.options.samples:
        return []
    reasons = {
        entrant.name: no_samples_reason(entrant)
        for entrant in plan.entrants
        if entrant.left_out is None and not entrant.baseline
    }
    reasons |= {
        job.entrant: failures[job.name]
        for job in plan.jobs
        if job.kind == "sample" and job.name in failures
    }
    return [{"entrant": name, "reason": reason} for name, reason in reasons.items() if reason]


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


def score_csv_lines(values: JsonObject) -> Iterator[tuple[Any, ...]]:
    """Yield a line for each score: of every seed, and their mean with its interval.

    Probes and generated texts are those of the first seed. Costs are not here: they differ when a
    comparison is repeated.
    """
    tables = [("held-out text", "bits_per_byte", values["likelihood"]["rows"])]
    tables += [(task["name"], task["metric"], task["rows"]) for task in values["tasks"]]
    for table, metric, rows in tables:
        for row in rows:
            start = (table, row["entrant"], row.get("labels", ""))
            kind = row.get("kind") or (BASELINE if row["baseline"] else "fine-tuned")
            end = (kind, row.get("words", ""), row.get("units", ""))
            for seed, value in zip(row["seed_numbers"], row["seeds"], strict=True):
                yield (*start, seed, metric, value, "", "", *end)
            yield (*start, "mean", metric, row["mean"], row["low"], row["high"], *end)
    for probe in values["probes"]:
        for row in probe["rows"]:
            weights = "pretrained" if row["pretrained"] else "random weights"
            start = (f"probes of {probe['task']}", row["entrant"], ALL_LABELS)
            for layer, value in enumerate(row["layers"]):
                yield (
                    *start,
                    0,
                    probe["metric"],
                    value,
                    "",
                    "",
                    "probe",
                    f"layer {layer}, {weights}",
                    "",
                )
    for row in values["samples"]:
        start = ("generated text", row["entrant"], "")
        kind = "reference" if row["reference"] else "sample"
        for metric in SAMPLE_METRICS:
            yield (*start, 0, metric, row[metric], "", "", kind, "", "")


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
