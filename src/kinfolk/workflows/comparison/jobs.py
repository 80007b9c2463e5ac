"""The jobs of a comparison: each leaves its result in RACE/jobs/NAME.json and is not run again."""

import json
import shutil
import time
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path
from typing import Any

from kinfolk.config import from_json
from kinfolk.data.corpus import Corpus
from kinfolk.errors import UserError
from kinfolk.nn.task_heads import ModelWithHeadConfig
from kinfolk.tasks.baselines import BASELINE_TITLES, fit_values
from kinfolk.tasks.task import Prediction
from kinfolk.training import checkpoint
from kinfolk.training.loop import Callback, Progress
from kinfolk.training.time_budget import DECISIONS, Decision, read_decisions
from kinfolk.workflows.comparison import scores
from kinfolk.workflows.comparison.data import read_stored, stored_dataset
from kinfolk.workflows.comparison.plan import (
    Job,
    Plan,
    PlannedEntrant,
    PlannedTask,
    write_finite_json,
)
from kinfolk.workflows.comparison.samples import sample_quality, window_tokens
from kinfolk.workflows.comparison.tasks import finetune_arguments, finetune_steps
from kinfolk.workflows.comparison.usage import JobUsage
from kinfolk.workflows.finetuning.finetune import finetune
from kinfolk.workflows.finetuning.recipe import FineTuneRecipe, InitialWeights
from kinfolk.workflows.predict import load_predictor
from kinfolk.workflows.pretrain import pretrain, resume
from kinfolk.workflows.probing.probes import probe_layers
from kinfolk.workflows.recipe import Recipe

SECONDS_BETWEEN_REPORTS = 1.0

OnProgress = Callable[[float], None]  # receives the share of a job that is done


@dataclass(frozen=True)
class JobContext:
    """The folder and the plan that a job reads, and how it reports."""

    race: Path
    plan: Plan
    job: Job
    on_progress: OnProgress = lambda share: None

    @property
    def entrant(self) -> PlannedEntrant:
        """The entrant of the job."""
        return self.plan.entrant_of[self.job.entrant]

    @property
    def task(self) -> PlannedTask:
        """The task of the job."""
        return self.plan.task_of[self.job.task]

    @property
    def run(self) -> Path:
        """The pretraining run of the entrant and the seed, or that of the search."""
        if self.job.kind == "search":
            return self.race / "search" / self.entrant.slug / f"lr-{self.job.rate:g}"
        seed = 0 if self.entrant.gradient_free else self.job.seed
        return self.race / "runs" / self.entrant.slug / f"seed-{seed}"

    @property
    def task_folder(self) -> Path:
        """The splits of the task."""
        return self.race / "tasks" / self.job.task

    @property
    def usage_path(self) -> Path:
        """The file of what interrupted starts of the job used."""
        return result_path(self.race, self.job).with_suffix(".usage")

    def usage(self) -> JobUsage:
        """Return the meter of the job."""
        return JobUsage(self.usage_path, self.plan.options.device)

    def training_callbacks(self, usage: JobUsage) -> list[Callback]:
        """Return what a training of the job reports to."""
        return [ShareOfSteps(self.on_progress), UsageSaver(usage)]


class OncePerSecond(Callback):
    """Do something about once a second while a run trains."""

    def __init__(self) -> None:
        self._last = 0.0

    def on_step(self, progress: Progress) -> None:
        """Report, if the last report was a second ago."""
        now = time.monotonic()
        if now - self._last >= SECONDS_BETWEEN_REPORTS:
            self._last = now
            self.report(progress)

    @abstractmethod
    def report(self, progress: Progress) -> None:
        """Report the newest step."""


class ShareOfSteps(OncePerSecond):
    """Report the share of a run's steps that is done."""

    def __init__(self, on_progress: OnProgress) -> None:
        super().__init__()
        self._on_progress = on_progress

    def report(self, progress: Progress) -> None:
        """Report the share."""
        self._on_progress(progress.step / progress.steps)


class UsageSaver(OncePerSecond):
    """Save what a job used so far, for the case that it is killed."""

    def __init__(self, usage: JobUsage) -> None:
        super().__init__()
        self._usage = usage

    def report(self, progress: Progress) -> None:
        """Save the usage."""
        self._usage.update()


def result_path(race: Path, job: Job) -> Path:
    """Return the file of a job's result."""
    return race / "jobs" / f"{job.name}.json"


def read_result(race: Path, job: Job) -> dict[str, Any] | None:
    """Return the result of a job; None where there is none yet."""
    try:
        result: dict[str, Any] = json.loads(result_path(race, job).read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None
    return result


def run_job(context: JobContext) -> dict[str, Any]:
    """Run a job and write its result; what a user can mend, such as divergence, is a result too."""
    began = time.perf_counter()
    try:
        found: dict[str, Any] = RUNNERS[context.job.kind](context)
        failed = None
    except UserError as error:
        found, failed = {}, str(error)
    result = {"job": context.job.name, "failed": failed, "total_seconds": 0.0, **found}
    result["total_seconds"] = time.perf_counter() - began
    path = result_path(context.race, context.job)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_finite_json(result, path)
    context.usage_path.unlink(missing_ok=True)
    if context.job.kind == "finetune":  # weights are large, and can be made again
        shutil.rmtree(finetuned_folder(context) / "checkpoints", ignore_errors=True)
    return result


# Pretraining


def run_search(context: JobContext) -> dict[str, Any]:
    """Pretrain with one learning rate, and return the loss on development documents."""
    entrant, rate = context.entrant, context.job.rate
    assert rate is not None
    recipe = planned_recipe(entrant, steps=entrant.search_steps, lr=rate, seed=0)
    if recipe.train.minutes is not None:  # those of the run are what all of these leave
        minutes = context.plan.budget["amount"] - recipe.train.minutes
        train = replace(recipe.train, minutes=minutes / len(entrant.rates))
        recipe = replace(recipe, train=train)
    train_or_resume(context, recipe, context.run)
    facts = {name: found for name, found in spent(context, recipe).items() if name != "curve"}
    return {"lr": rate, "loss": scores.development_loss(context.run, recipe), **facts}


def run_pretrain(context: JobContext) -> dict[str, Any]:
    """Pretrain an entrant with one seed."""
    entrant, seed = context.entrant, context.job.seed
    steps = entrant.steps_of(seed)
    recipe = planned_recipe(entrant, steps=steps, lr=chosen_rate(context), seed=seed)
    if recipe.train.minutes is not None and not context.plan.repeats:
        minutes = context.plan.budget["amount"] - searched_seconds(context) / 60
        recipe = replace(recipe, train=replace(recipe.train, minutes=minutes))
    usage = train_or_resume(context, recipe, context.run)
    return {"lr": recipe.train.lr, **spent(context, recipe), **usage}


def spent(context: JobContext, recipe: Recipe) -> dict[str, Any]:
    """Return the cost and the curve of the run of a job; seconds as its budget counted them."""
    facts = scores.run_facts(context.run, context.entrant)
    if recipe.train.minutes is not None and not context.plan.repeats:
        facts["seconds"] = read_decisions(context.run / DECISIONS)[-1].seconds
    return facts


def search_results(context: JobContext) -> list[dict[str, Any]]:
    """Return the results of the search of an entrant's learning rate that are there."""
    jobs = [j for j in context.plan.jobs if (j.kind, j.entrant) == ("search", context.job.entrant)]
    return [found for job in jobs if (found := read_result(context.race, job)) is not None]


def searched_seconds(context: JobContext) -> float:
    """Return the seconds that the search took of an entrant's budget."""
    return float(sum(result.get("seconds") or 0.0 for result in search_results(context)))


def planned_recipe(entrant: PlannedEntrant, *, steps: int, lr: float | None, seed: int) -> Recipe:
    """Return the recipe of a run; its schedule is scaled to the steps."""
    recipe = from_json(dict(entrant.recipe or {}), group="recipe")
    assert isinstance(recipe, Recipe)
    if entrant.gradient_free:
        return recipe
    train = replace(recipe.train, seed=seed, lr=recipe.train.lr if lr is None else lr)
    if steps != train.steps:
        warmup = max(1, round(train.warmup * steps / train.steps))
        evaluate, save = (
            ceil(n * steps / train.steps) for n in (train.eval_every, train.save_every)
        )
        train = replace(train, steps=steps, warmup=warmup, eval_every=evaluate, save_every=save)
    return replace(recipe, train=train)


def chosen_rate(context: JobContext) -> float | None:
    """Return the learning rate that the search chose; None where there was no search."""
    found = [
        (result["loss"], result["lr"])
        for result in search_results(context)
        if result.get("loss") is not None
    ]
    if context.entrant.rates and not found:
        raise UserError("training diverged with every learning rate of the search")
    return min(found)[1] if found else None


def train_or_resume(context: JobContext, recipe: Recipe, folder: Path) -> dict[str, Any]:
    """Train a run to its end, from where it was interrupted; return the resources it used."""
    usage = context.usage()
    callbacks = context.training_callbacks(usage)
    with usage.measuring(energy=True):
        if not (folder / "recipe.json").is_file():
            given = context.plan.decisions.get(context.job.name, ())
            decisions = [Decision(int(step), int(steps), each) for step, steps, each in given]
            pretrain(recipe, folder, callbacks=callbacks, decisions=decisions)
        elif not is_run_complete(folder, ("report.html",)):
            resume(folder, callbacks=callbacks)
    return {"peak_bytes": usage.peak_bytes, "joules": usage.joules}


def is_run_complete(folder: Path, results: Sequence[str]) -> bool:
    """Return whether a run is finished and has its results."""
    newest = checkpoint.latest_valid(folder)
    return (
        newest is not None
        and bool(checkpoint.load_training_state(newest).get("finished"))
        and all((folder / name).is_file() for name in results)
    )


def run_likelihood(context: JobContext) -> dict[str, Any]:
    """Score held-out documents by a pretrained model, or by an n-gram baseline."""
    plan, entrant = context.plan, context.entrant
    if entrant.pretrains:
        return scores.model_likelihood(
            context.run, Path(entrant.corpus), plan.options.max_tokens, plan.options.device
        )
    return scores.ngram_likelihood(Corpus.open(entrant.corpus), order=int(entrant.size))


# Tasks


def finetuned_folder(context: JobContext) -> Path:
    """Return the folder of a fine-tuning."""
    job, base = context.job, context.race / "finetuned" / context.job.task
    return base / context.entrant.slug / f"labels-{job.labels}" / f"seed-{job.seed}"


def run_finetune(context: JobContext) -> dict[str, Any]:
    """Fine-tune an entrant on a task, and score its predictions for the test rows."""
    folder, usage = finetuned_folder(context), context.usage()
    callbacks = context.training_callbacks(usage)
    with usage.measuring(energy=False):
        if not (folder / "recipe.json").is_file():
            start_finetune(context, folder, callbacks)
        elif not is_run_complete(folder, ("scores.json", "report.html")):
            resume(folder, callbacks=callbacks)
    predictor = load_predictor(folder, device=context.plan.options.device)
    rows = test_rows(context)
    predictions = predictor.predict(rows)
    with (folder / "predictions.jsonl").open("w", encoding="utf-8") as file:
        for row, prediction in zip(rows, predictions, strict=True):
            fields = {"number": row.number, "prediction": prediction.value}
            file.write(json.dumps(fields, ensure_ascii=False) + "\n")
    found = score_predictions(context, rows, predictions)
    return {"seconds": usage.seconds, "settings": finetune_settings(folder), **found}


def finetune_settings(folder: Path) -> dict[str, Any]:
    """Return the learning rate, steps and pooling of a fine-tuning."""
    recipe = FineTuneRecipe.read(folder / "recipe.json")
    pooling = None
    if isinstance(recipe.model, ModelWithHeadConfig) and recipe.model.pools_text:
        pooling = f"{recipe.model.pooling.token}"
        if recipe.is_raw and recipe.model.pretrained.network.architecture == "encoder":
            pooling += ", starts as the mean"
    return {"lr": recipe.train.lr, "steps": recipe.train.steps, "pooling": pooling}


def start_finetune(context: JobContext, folder: Path, callbacks: Sequence[Callback]) -> None:
    """Fine-tune from the pretrained run, or from new weights with the shared tokenizer."""
    plan, job, entrant = context.plan, context.job, context.entrant
    data = stored_dataset(context.task_folder, context.task.kind, job.labels, job.seed)
    model = InitialWeights(folder=str(checkpoint_of(context.run))) if entrant.pretrains else (
        InitialWeights(
            name=entrant.model, tokenizer=str(Path(entrant.corpus) / "tokenizer"), seed=job.seed
        )
    )  # fmt: skip
    steps = finetune_steps(len(data.splits[0]), context.task, plan.options)
    arguments = finetune_arguments(entrant, context.task, plan, steps=steps, seed=job.seed)
    finetune(model, data, folder, length=plan.length, callbacks=callbacks, **arguments)


def checkpoint_of(run: Path) -> Path:
    """Return the newest valid checkpoint of a run."""
    newest = checkpoint.latest_valid(run)
    if newest is None:
        raise UserError(f"{run} was not pretrained")
    return newest.resolve()


def test_rows(context: JobContext) -> list[Any]:
    """Return the rows that are scored."""
    return read_stored(context.task_folder / "test.jsonl", context.task.kind)


def score_predictions(
    context: JobContext, rows: Sequence[Any], predictions: Sequence[Prediction]
) -> dict[str, Any]:
    """Return the score of predictions, and the statistics of each row."""
    task = context.task.value
    metric = task.main_metric_of(rows)
    statistics = task.statistics(metric, rows, predictions)
    return {"score": metric.aggregate(statistics), "statistics": statistics.tolist()}


def run_baseline(context: JobContext) -> dict[str, Any]:
    """Fit a baseline without a network on the rows of a seed, and score it on the test rows."""
    began, job = time.perf_counter(), context.job
    data = stored_dataset(context.task_folder, context.task.kind, job.labels, job.seed)
    rows = test_rows(context)
    name = next(key for key, title in BASELINE_TITLES.items() if title == job.entrant)
    values = fit_values(context.task.value, name, data.splits[0], rows)
    predictions = [Prediction(value) for value in values]
    seconds = time.perf_counter() - began
    return {"seconds": seconds, **score_predictions(context, rows, predictions)}


def run_probe(context: JobContext) -> dict[str, Any]:
    """Probe the frozen layers of a pretrained model."""
    plan, seed = context.plan, context.job.seed
    data = stored_dataset(context.task_folder, context.task.kind, "all", seed)
    train, dev = data.splits
    rows, task = test_rows(context), context.task.value
    found = probe_layers(context.run, train, dev, rows, task, seed=seed, device=plan.options.device)
    return {"probe": found.to_json(context.entrant.name)}


def run_sample(context: JobContext) -> dict[str, Any]:
    """Generate texts, and measure them."""
    plan = context.plan
    prompt_tokens, new_tokens = window_tokens(plan)
    found = sample_quality(
        context.run,
        plan.samples_corpus,
        seed=context.job.seed,
        count=plan.options.samples,
        prompt_tokens=prompt_tokens,
        new_tokens=new_tokens,
        device=plan.options.device,
    )
    return {"sample": found.to_json(context.entrant.name)}


RUNNERS: Mapping[str, Callable[[JobContext], dict[str, Any]]] = {
    "search": run_search,
    "pretrain": run_pretrain,
    "likelihood": run_likelihood,
    "finetune": run_finetune,
    "baseline": run_baseline,
    "probe": run_probe,
    "sample": run_sample,
}
