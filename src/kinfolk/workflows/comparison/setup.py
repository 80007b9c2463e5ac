"""From the options of a comparison to its plan: recipes, equal budgets, jobs."""

import dataclasses
import datetime
import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import ceil
from pathlib import Path
from typing import Any

import torch

from kinfolk.config import describe as describe_fields
from kinfolk.config import did_you_mean, parse_field, to_json, type_name
from kinfolk.data.corpus import Corpus
from kinfolk.errors import UserError
from kinfolk.families import family
from kinfolk.reports.page import plural
from kinfolk.training.config import TrainConfig
from kinfolk.training.workload import select_device
from kinfolk.types import OnMessage
from kinfolk.version import __version__
from kinfolk.workflows.comparison.budget import (
    RACE_TIMED_SHARE,
    SEARCH_SHARE,
    Budget,
    Cost,
    RunSteps,
    budget_steps,
    describe_budget,
    measure_costs,
    run_steps,
    spread_of,
)
from kinfolk.workflows.comparison.data import TextSource, make_corpus, tokenizer_key
from kinfolk.workflows.comparison.plan import (
    Entrant,
    Plan,
    PlannedEntrant,
    PlannedTask,
    RaceOptions,
    slugs,
)
from kinfolk.workflows.comparison.schedule import race_jobs
from kinfolk.workflows.comparison.scores import parameter_counts
from kinfolk.workflows.comparison.step_timing import quick_seconds
from kinfolk.workflows.comparison.tasks import (
    TASK_BATCH_SIZE,
    any_raw,
    entrant_config,
    entrant_recipe,
    finetune_steps,
    plan_tasks,
    read_tasks,
    task_choices,
    unsupported,
)
from kinfolk.workflows.recipe import Recipe, default_length
from kinfolk.workflows.recipe import recipe as make_recipe

RUN_EVALUATIONS = 5  # of the curve of a run
EVAL_BATCHES = 8
CHECKPOINTS = 4
MAX_WARMUP = 0.1  # of the steps
RATE_FACTOR = 3.0  # between two learning rates of a search
BASELINE_NGRAM_ORDER = 5  # of the baseline
FEW_SEEDS = 2  # so many show almost nothing
QUICK_SECONDS = 1.0  # of timing an entrant, where the budget is not in minutes
# A second, for the first estimate of the time: of a thread, and of a process that shares a GPU.
GUESSED_FLOPS, GUESSED_FLOPS_CUDA = 2e10, 5e12


def make_plan(options: RaceOptions, race: Path, *, jobs: int, on_message: OnMessage) -> Plan:
    """Check the options, prepare the data, measure the costs and list the jobs."""
    budget = Budget(options.budget_kind, options.budget_amount)  # type: ignore[arg-type]
    source = TextSource.open(options)
    tasks = read_tasks(options)
    for entrant in options.entrants:
        check_entrant(entrant, options, [type(task.task) for task in tasks])
    threads = max(1, torch.get_num_threads() // max(jobs, 1))
    corpora = make_corpora(options, source, race, on_message)
    length, batch_size = shared_shape(options)
    named = zip(options.entrants, slugs([e.name for e in options.entrants]), strict=True)
    entrants = [
        plan_entrant(entrant, slug, corpora, options, length, batch_size, bool(tasks))
        for entrant, slug in named
    ]
    if not any(entrant.left_out is None for entrant in entrants):
        raise UserError(f"no entrant can take part: {entrants[0].left_out}")
    torch.set_num_threads(threads)
    if few := few_seeds_note(entrants, options.seeds):
        on_message(few)
    on_message(f"measuring the steps of {plural(len(entrants), 'entrant')}")
    entrants, spread, timed = share_budget(entrants, budget, options, threads, jobs)
    common = baseline_key(corpora)
    entrants += baseline_entrants(options, corpora[common], has_tasks=bool(tasks))
    planned = plan_tasks(tasks, options, entrants, race, length)
    return Plan(
        options=options,
        corpus=text_facts(options, source, corpora, common),
        budget={
            "kind": budget.kind,
            "amount": budget.amount,
            "words": budget.words,
            "how": describe_budget(budget),
            "spread": spread,
            "timed": timed,
        },
        entrants=tuple(entrants),
        tasks=planned,
        jobs=tuple(race_jobs(options, entrants, planned)),
        length=length,
        threads=threads,
        machine=machine(options.device, threads),
        kinfolk=__version__,
        created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        notes=(
            *filter(None, [few_seeds_note(entrants, options.seeds)]),
            *plan_notes(planned, options, corpora[common], length),
        ),
        raw_weights=any_raw(entrants),
        samples_corpus=str(corpora[common].folder.resolve()),
    )


def few_seeds_note(entrants: Sequence[PlannedEntrant], seeds: int) -> str | None:
    """Warn where the seeds are too few to tell entrants apart; None if there are enough."""
    if seeds > FEW_SEEDS or all(e.gradient_free or e.left_out is not None for e in entrants):
        return None
    if seeds == 1:
        return (
            "--seeds 1: no interval covers the chance in training, so that another seed may show "
            "the opposite; use --seeds 3 or more."
        )
    return (
        f"--seeds {seeds}: intervals from the spread of {seeds} seeds are so wide that almost no "
        "difference can be shown; use --seeds 3 or more."
    )


def plan_notes(
    tasks: Sequence[PlannedTask], options: RaceOptions, corpus: Corpus, length: int
) -> Iterator[str]:
    """Yield what a reader of the tables should know before a conclusion."""
    yield (
        f"N-gram models are outside of the budget: they count all {corpus.tokens:,} tokens of the "
        "training text once."
    )
    limit = f"--task-steps {options.task_steps}"
    if options.task_epochs is not None:
        limit = f"--task-epochs {options.task_epochs:g}, {limit}"
    for task in tasks:
        read = TASK_BATCH_SIZE * finetune_steps(task.train, task, options)
        if read < task.train:
            yield (
                f"{task.name}: networks read {read:,} of the {task.train:,} training rows "
                f"({limit}), baselines without a network all of them."
            )
        if len(task.labels) > 1:
            yield (
                f"{task.name}: beside k labels for training, at most k development rows choose the "
                "checkpoint of a network; baselines without a network do not need them."
            )
        if any(task.truncated.values()):
            yield task_truncation_note(task, length)
        yield from task.notes


def task_truncation_note(task: PlannedTask, length: int) -> str:
    """Return how many texts networks do not read to their ends."""
    least, most = (f"{100 * of(task.truncated.values()):.1f} %" for of in (min, max))
    share = most if least == most else f"{least} to {most}, by entrant,"
    return (
        f"{task.name}: networks read {length} tokens of a text (--length), so that {share} of the "
        "test rows are cut; baselines without a network read them whole."
    )


def check_entrant(entrant: Entrant, options: RaceOptions, kinds: Sequence[type[Any]]) -> None:
    """Refuse unknown settings of an entrant, before text is prepared."""
    tokenizer_key(options, entrant.family, entrant.tokenizer)
    chosen = family(entrant.family)
    groups: dict[str, Any] = {"train": TrainConfig, "model": type(chosen.config(entrant.size))}
    if chosen.objectives:
        groups["objective"] = chosen.objective(entrant.objective)
    for setting in entrant.settings:
        path, _, value = setting.partition("=")
        group, _, name = path.partition(".")
        known = describe_fields(groups[group]) if group in groups else {}
        if known and name not in known:
            raise UserError(f"{path} of {entrant.name}: {did_you_mean(name, [*known])}")
        if known:
            parse_field(groups[group], name, value, path)
    for kind in kinds:
        if entrant.task_settings and unsupported(entrant.family, kind) is None:
            task_choices(entrant.name, entrant.model, entrant.task_settings, kind)


def make_corpora(
    options: RaceOptions, source: TextSource, race: Path, on_message: OnMessage
) -> dict[str, Corpus]:
    """Prepare the corpus of each tokenizer that an entrant has; "" is the shared one."""
    keys = dict.fromkeys(tokenizer_key(options, e.family, e.tokenizer) for e in options.entrants)
    return {key: make_corpus(source, options, key, race, on_message) for key in keys}


def baseline_key(corpora: Mapping[str, Corpus]) -> str:
    """Return the tokenizer of the baselines: the shared one, byte-level BPE, or the first."""
    first = next(iter(corpora))
    return "" if "" in corpora else next((key for key in corpora if key.startswith("bpe:")), first)


def shared_shape(options: RaceOptions) -> tuple[int, int]:
    """Return the row length and the batch size of all entrants: those of the smallest size."""
    configs = [
        (family(e.family).config(e.size), family(e.family).train(e.size)) for e in options.entrants
    ]
    trained = [pair for pair in configs if pair[0].counting_steps is None] or configs
    length = min(default_length(config) for config, _ in trained)
    if options.length is not None:
        length = options.length
    return length, options.batch_size or min(train.batch_size for _, train in trained)


def plan_entrant(
    entrant: Entrant,
    slug: str,
    corpora: Mapping[str, Corpus],
    options: RaceOptions,
    length: int,
    batch_size: int,
    has_tasks: bool,
) -> PlannedEntrant:
    """Return an entrant with its recipe, or with the reason why it is left out."""
    corpus = corpora[tokenizer_key(options, entrant.family, entrant.tokenizer)]
    chosen = family(entrant.family)
    planned = PlannedEntrant(
        name=entrant.name,
        slug=slug,
        model=entrant.model,
        settings=entrant.settings,
        task_settings=entrant.task_settings,
        corpus=str(corpus.folder.resolve()),
    )
    if not chosen.objectives:
        reason = None if has_tasks else f"{entrant.family} does not pretrain, and no task is given"
        return with_parameters(replace(planned, left_out=reason))
    objective = entrant.objective
    if objective is None:
        objective = next((name for name in chosen.objectives if name != "pairs"), None)
    if objective in (None, "pairs"):
        reason = f"{entrant.family} is trained on sentence pairs, and --corpus is running text"
        return replace(planned, left_out=reason)
    gradient_free = chosen.config(entrant.size).counting_steps is not None
    recipe = make_recipe(
        entrant.model,
        corpus,
        objective=objective,
        length=None if gradient_free else length,
        settings=[
            *([] if gradient_free else [f"train.batch_size={batch_size}"]),
            f"train.device={options.device}",
            *entrant.settings,
        ],
    )
    if not gradient_free:
        check_batch(corpus, length, batch_size)
    objective = type_name(recipe.objective)
    planned = replace(
        planned, recipe=to_json(recipe), objective=objective, gradient_free=gradient_free
    )
    return with_parameters(planned)


def check_batch(corpus: Corpus, length: int, batch_size: int) -> None:
    """Refuse a corpus that does not fill one batch."""
    if corpus.tokens < length * batch_size:
        raise UserError(
            f"the training text has {corpus.tokens:,} tokens, fewer than a batch of {batch_size} "
            f"rows of {length} tokens: use more text, or a smaller --batch-size or "
            "--length"
        )


def with_parameters(planned: PlannedEntrant) -> PlannedEntrant:
    """Count the parameters; those of n-gram models are known when they are counted."""
    if planned.gradient_free:
        return planned
    tokenizer = Corpus.open(planned.corpus).tokenizer()
    total, others = parameter_counts(entrant_config(planned, tokenizer))
    return replace(planned, parameters=total, non_embedding_parameters=others)


def share_budget(
    entrants: Sequence[PlannedEntrant],
    budget: Budget,
    options: RaceOptions,
    threads: int,
    jobs: int,
) -> tuple[list[PlannedEntrant], float, bool]:
    """Give each entrant the steps of the budget.

    Return also their largest difference, and whether the seconds of a step were measured.
    """
    recipes = {
        e.name: entrant_recipe(e) for e in entrants if e.recipe is not None and not e.gradient_free
    }
    if not recipes:
        return [*entrants], 0.0, False
    processes = processes_of_device(min(jobs, len(recipes) * options.seeds), options.device)
    timing = RACE_TIMED_SHARE * budget.per_run * options.seeds if budget.kind == "minutes" else None
    costs = measure_costs(recipes, timing=timing, processes=processes)
    steps = budget_steps(budget, costs, search=options.search)
    runs = {
        name: run_steps(
            budget,
            recipes[name],
            cost,
            steps[name],
            search=options.search,
            seeds=options.seeds,
        )
        for name, cost in costs.items()
    }
    spread = spread_of([spent for found in runs.values() for spent in found.spent], budget)
    timed_costs = {
        name: with_timed_seconds(cost, recipes[name], steps[name] * options.seeds, threads)
        for name, cost in costs.items()
    }
    shared = []
    for entrant in entrants:
        if entrant.name not in costs:
            shared.append(entrant)
            continue
        cost = with_guessed_seconds(timed_costs[entrant.name], options.device, threads)
        shared.append(
            entrant_with_steps(entrant, recipes[entrant.name], runs[entrant.name], cost, options)
        )
    return shared, spread, all(cost.seconds for cost in timed_costs.values())


def processes_of_device(jobs: int, device: str) -> int:
    """Return how many of the processes that run at a time share a device."""
    if select_device(device).type == "cuda":
        jobs = ceil(jobs / torch.cuda.device_count())
    return max(1, jobs)


def with_timed_seconds(cost: Cost, recipe: Recipe, steps: int, threads: int) -> Cost:
    """Return a cost with the seconds of a few real steps, where they were not measured.

    They are timed for a share of what all steps of an entrant may take, and not for long.
    """
    if cost.seconds:
        return cost
    guess = with_guessed_seconds(cost, recipe.train.device, threads).seconds
    seconds = quick_seconds(recipe, min(QUICK_SECONDS, RACE_TIMED_SHARE * guess * steps))
    return replace(cost, seconds=seconds or 0.0)


def with_guessed_seconds(cost: Cost, device: str, threads: int) -> Cost:
    """Return a cost with a guess of the seconds, where they were not measured."""
    cuda = select_device(device).type == "cuda"
    flops = GUESSED_FLOPS_CUDA if cuda else GUESSED_FLOPS * threads
    return cost if cost.seconds else replace(cost, seconds=cost.flops / flops)


def entrant_with_steps(
    entrant: PlannedEntrant, recipe: Recipe, runs: RunSteps, cost: Cost, options: RaceOptions
) -> PlannedEntrant:
    """Scale the schedule of an entrant to the steps of its first seed."""
    rates: tuple[float, ...] = ()
    if options.search:
        middle = (options.search - 1) / 2
        rates = tuple(
            float(f"{recipe.train.lr * RATE_FACTOR ** (n - middle):.3g}")
            for n in range(options.search)
        )
    train = scaled(recipe.train, runs.seeds[0], own_warmup=sets_warmup(entrant))
    if options.budget_kind == "minutes":  # the steps are a first estimate
        share = 1 - SEARCH_SHARE if rates else 1.0
        train = replace(train, minutes=options.budget_amount * share)
    return replace(
        entrant,
        recipe=to_json(replace(recipe, train=train)),
        steps=runs.seeds[0],
        seed_steps=runs.seeds if len({*runs.seeds}) > 1 else (),
        cost=dataclasses.asdict(cost),
        rates=rates,
        search_steps=runs.search,
    )


def sets_warmup(entrant: PlannedEntrant) -> bool:
    """Return whether the settings of an entrant have a warm-up."""
    return any(setting.startswith("train.warmup=") for setting in entrant.settings)


def scaled(train: TrainConfig, steps: int, *, own_warmup: bool) -> TrainConfig:
    """Return training settings for a number of steps, with warm-up, evaluations and checkpoints."""
    warmup = train.warmup if own_warmup else max(1, min(train.warmup, round(MAX_WARMUP * steps)))
    return replace(
        train,
        steps=steps,
        warmup=min(warmup, steps),
        eval_every=max(1, ceil(steps / RUN_EVALUATIONS)),
        eval_batches=min(train.eval_batches, EVAL_BATCHES),
        save_every=max(1, ceil(steps / CHECKPOINTS)),
        keep_checkpoints=1,
    )


def baseline_entrants(
    options: RaceOptions, corpus: Corpus, *, has_tasks: bool
) -> list[PlannedEntrant]:
    """Return what stands beside the entrants: n-gram models, and a BiLSTM on tasks."""
    if not options.baselines:
        return []
    folder, models = str(corpus.folder.resolve()), {entrant.model for entrant in options.entrants}
    names = {entrant.name for entrant in options.entrants}
    orders = {"unigram": 1, f"{BASELINE_NGRAM_ORDER}-gram": BASELINE_NGRAM_ORDER}
    found = [
        PlannedEntrant(
            name, name, f"ngram/{order}", corpus=folder, baseline=True, gradient_free=True
        )
        for name, order in orders.items()
        if f"ngram/{order}" not in models and name not in names
    ]
    if has_tasks and not any(entrant.family == "bilstm" for entrant in options.entrants):
        sizes = family("bilstm").sizes
        size = next((e.size for e in options.entrants if e.size in sizes), "tiny")
        name = f"bilstm/{size}"
        bilstm = PlannedEntrant(name, f"bilstm-{size}", name, corpus=folder, baseline=True)
        found.append(with_parameters(bilstm))
    return found


def text_facts(
    options: RaceOptions, source: TextSource, corpora: Mapping[str, Corpus], common: str
) -> dict[str, Any]:
    """Return what a reader of the results must know about the text, as the baselines read it."""
    corpus = corpora[common]
    held_out = Corpus.open(corpus.folder / "holdout")
    shared = "shared" if not common else "of the baselines; each entrant has its own"
    if options.own_tokenizers:
        shared = "of its own kind for each family"
    is_bpe = not common or common.startswith("bpe:")
    is_new = is_bpe and not source.prepared and (bool(common) or options.tokenizer is None)
    kind = "byte-level BPE, " if is_new else ""
    return {
        "name": ", ".join(path.name or str(path) for path in source.paths),
        "bytes": corpus.bytes,
        "documents": corpus.documents,
        "tokens": corpus.tokens,
        "held_out_bytes": held_out.bytes,
        "held_out_documents": held_out.documents,
        "tokenizer": f"{kind}{corpus.vocab_size:,} tokens, {shared}",
    }


def machine(device: str, threads: int) -> dict[str, Any]:
    """Return what the runs are timed on."""
    selected = select_device(device)
    name = platform.processor() or platform.machine()
    if selected.type == "cuda":
        name = torch.cuda.get_device_name(selected)
    return {
        "device": f"{selected.type} ({name})",
        "threads": threads,
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "torch": str(torch.__version__),
    }
