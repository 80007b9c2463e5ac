"""The jobs of a comparison in the order in which they run: first all entrants with one seed."""

from collections.abc import Iterator, Sequence

from kinfolk.workflows.comparison.plan import Job, PlannedEntrant, PlannedTask, RaceOptions
from kinfolk.workflows.comparison.samples import no_samples_reason
from kinfolk.workflows.comparison.tasks import finetune_steps

# Seconds of jobs, guessed before any is done.
LIKELIHOOD_SECONDS, PROBE_SECONDS, SAMPLE_SECONDS, BASELINE_SECONDS = 6.0, 10.0, 6.0, 1.0
START_SECONDS = 4.0  # of a process
STEP_SECONDS = 0.03  # of fine-tuning
SCORE_SECONDS = 0.003  # of a test row


def race_jobs(
    options: RaceOptions, entrants: Sequence[PlannedEntrant], tasks: Sequence[PlannedTask]
) -> Iterator[Job]:
    """Yield all jobs."""
    taking_part = [entrant for entrant in entrants if entrant.left_out is None]
    for entrant in taking_part:
        yield from search_jobs(entrant)
    yield from baseline_jobs(options, taking_part, tasks)
    for seed in range(options.seeds):
        for entrant in taking_part:
            if not entrant.baseline or (entrant.size and not entrant.gradient_free):
                yield from entrant_jobs(options, entrant, tasks, seed)


def search_jobs(entrant: PlannedEntrant) -> Iterator[Job]:
    """Yield a short run for each learning rate."""
    step = (entrant.cost or {}).get("seconds", 0.0)
    for rate in entrant.rates:
        yield Job(
            name=f"search.{entrant.slug}.lr-{rate:g}",
            kind="search",
            group=f"search.{entrant.slug}",
            entrant=entrant.name,
            rate=rate,
            stage=0,
            seconds=entrant.search_steps * step + START_SECONDS,
        )


def baseline_jobs(
    options: RaceOptions, entrants: Sequence[PlannedEntrant], tasks: Sequence[PlannedTask]
) -> Iterator[Job]:
    """Yield the baselines without a network, which share a process."""
    for entrant in entrants:
        if entrant.baseline and entrant.gradient_free:
            name = f"likelihood.{entrant.slug}.seed-0"
            yield Job(name, "likelihood", "baselines", entrant.name, seconds=LIKELIHOOD_SECONDS)
    for task in tasks:
        for title in task.baselines:
            slug = title.lower().replace(" ", "-")
            for labels in task.labels:
                for seed in range(options.seeds):
                    yield Job(
                        name=f"baseline.{task.slug}.{slug}.labels-{labels}.seed-{seed}",
                        kind="baseline",
                        group="baselines",
                        entrant=title,
                        seed=seed,
                        task=task.slug,
                        labels=labels,
                        seconds=BASELINE_SECONDS,
                    )


def entrant_jobs(
    options: RaceOptions, entrant: PlannedEntrant, tasks: Sequence[PlannedTask], seed: int
) -> Iterator[Job]:
    """Yield the jobs of an entrant with one seed, which share a process."""
    group, end = f"{entrant.slug}.seed-{seed}", f"{entrant.slug}.seed-{seed}"
    if entrant.gradient_free and seed:
        return
    if entrant.pretrains:
        seconds = entrant.steps_of(seed) * (entrant.cost or {}).get("seconds", 0.0) + START_SECONDS
        yield Job(f"pretrain.{end}", "pretrain", group, entrant.name, seed, seconds=seconds)
        seconds = LIKELIHOOD_SECONDS
        yield Job(f"likelihood.{end}", "likelihood", group, entrant.name, seed, seconds=seconds)
        if not seed and options.samples and no_samples_reason(entrant) is None:
            yield Job(f"sample.{end}", "sample", group, entrant.name, seconds=SAMPLE_SECONDS)
    for task in tasks:
        if entrant.name not in task.entrants:
            continue
        if (options.probe_seeds or not seed) and options.probes and entrant.pretrains:
            name, time = f"probe.{task.slug}.{end}", PROBE_SECONDS
            yield Job(name, "probe", group, entrant.name, seed, task=task.slug, seconds=time)
        for labels in task.labels:
            yield Job(
                name=f"finetune.{task.slug}.{entrant.slug}.labels-{labels}.seed-{seed}",
                kind="finetune",
                group=group,
                entrant=entrant.name,
                seed=seed,
                task=task.slug,
                labels=labels,
                seconds=finetune_seconds(options, task, labels),
            )


def finetune_seconds(options: RaceOptions, task: PlannedTask, labels: str) -> float:
    """Guess how long a fine-tuning takes."""
    rows = task.train if labels == "all" else int(labels)
    steps = finetune_steps(rows, task, options)
    return steps * STEP_SECONDS + task.test * SCORE_SECONDS + 1.0
