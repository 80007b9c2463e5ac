"""The labelled files of a comparison: who can solve them, with which settings and baselines."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path
from typing import Any

from kinfolk.config import describe, did_you_mean, from_json, parse_field, to_json
from kinfolk.data.corpus import Corpus
from kinfolk.errors import UserError
from kinfolk.families import family
from kinfolk.tasks.baselines import baseline_names
from kinfolk.tasks.dataset import TaskDataset
from kinfolk.tasks.formulations.base import Formulation
from kinfolk.tasks.formulations.choose import choose_formulation, no_formulation
from kinfolk.text.tokenizer import Tokenizer
from kinfolk.training.config import FineTuneConfig, TrainConfig
from kinfolk.workflows.comparison.data import TaskRows, read_task, stored_dataset, write_splits
from kinfolk.workflows.comparison.plan import Plan, PlannedEntrant, PlannedTask, RaceOptions, slugs
from kinfolk.workflows.finetuning.defaults import RAW_TOKENS, default_steps, tokens_of_steps
from kinfolk.workflows.finetuning.recipe import InitialWeights
from kinfolk.workflows.finetuning.setup import fit_formulation
from kinfolk.workflows.recipe import Recipe

TASK_BATCH_SIZE = 32  # examples of a fine-tuning step, the same for all
TASK_EVALUATIONS = 4  # of a fine-tuning, on dev rows


@dataclass(frozen=True)
class TaskChoices:
    """The fine-tuning settings of an entrant for a kind of task."""

    formulation: str | None
    settings: tuple[str, ...]  # of the recipe
    options: Mapping[str, Any]  # fields of the formulation


def task_choices(name: str, model: str, settings: Sequence[str], kind: type[Any]) -> TaskChoices:
    """Sort the `task.KEY=VALUE` of an entrant; refuse a key that nothing has."""
    given = dict(setting.split("=", 1) for setting in settings)
    formulation = given.pop("formulation", None)
    chosen = family(model.partition("/")[0])
    groups = {"finetune": FineTuneConfig, "train": TrainConfig}
    own = describe(choose_formulation(chosen, kind, formulation)) if given else {}
    recipe, options = [], {}
    for key, text in given.items():
        group = next((g for g, cls in groups.items() if key in describe(cls)), None)
        if group is not None:
            parse_field(groups[group], key, text, f"task.{key}")
            recipe.append(f"{group}.{key}={text}")
        elif key in own:
            cls = choose_formulation(chosen, kind, formulation)
            options[key] = parse_field(cls, key, text, f"task.{key}")
        else:
            fields = (field for cls in groups.values() for field in describe(cls))
            known = [*dict.fromkeys([*own, *fields])]
            raise UserError(f"task.{key} of {name}: no such field: {did_you_mean(key, known)}")
    return TaskChoices(formulation, tuple(recipe), options)


def read_tasks(options: RaceOptions) -> list[TaskRows]:
    """Read all labelled files; two of one name are told apart by their folders."""
    tasks = [read_task(text, options) for text in options.tasks]
    names = [task.name for task in tasks]
    paths = [Path(text.split(",")[0]) for text in options.tasks]
    return [
        replace(task, name=f"{path.parent.name}/{path.name}")
        if names.count(task.name) > 1
        else task
        for task, path in zip(tasks, paths, strict=True)
    ]


def plan_task(
    task: TaskRows,
    slug: str,
    options: RaceOptions,
    entrants: Sequence[PlannedEntrant],
    race: Path,
    length: int,
) -> PlannedTask:
    """Write the splits of a task, and find out which entrants can solve it."""
    sizes, folder = task.label_sizes(options.labels), race / "tasks" / slug
    write_splits(task, folder, sizes, options.seeds)
    data = stored_dataset(folder, task.task.name, sizes[-1], 0)
    left_out: dict[str, str] = {}
    truncated: dict[str, float] = {}
    for entrant in entrants:
        if entrant.left_out is not None:
            continue
        found = entrant_formulation(entrant, task, data, length)
        if not isinstance(found, str):
            truncated[entrant.name] = truncated_share(*found, task.test)
        elif not (entrant.baseline and entrant.gradient_free):  # those score text alone
            left_out[entrant.name] = found
    return PlannedTask(
        name=task.name,
        slug=slug,
        kind=task.task.name,
        task=to_json(task.task),
        metric=task.task.main_metric,
        train=len(task.train),
        dev=len(task.dev),
        test=len(task.test),
        labels=sizes,
        class_counts=task.class_counts,
        entrants=tuple(truncated),
        left_out=left_out,
        baselines=baseline_names(task.task, task.train) if options.baselines else (),
        notes=(*task.notes, *filter(None, [task.labels_note(options.labels)])),
        truncated=truncated,
        read_as=task.read_as,
    )


def plan_tasks(
    tasks: Sequence[TaskRows],
    options: RaceOptions,
    entrants: Sequence[PlannedEntrant],
    race: Path,
    length: int,
) -> tuple[PlannedTask, ...]:
    """Plan all tasks."""
    named = zip(tasks, slugs([task.name for task in tasks]), strict=True)
    return tuple(plan_task(task, slug, options, entrants, race, length) for task, slug in named)


def unsupported(name: str, kind: type[Any]) -> str | None:
    """Return why a family has no fine-tuning for a kind of task; None if it has."""
    chosen = family(name)
    if chosen.model.gradient_free is not None:
        return f"{name} models cannot be fine-tuned: {chosen.model.gradient_free}"
    try:
        choose_formulation(chosen, kind)
    except UserError:
        return no_formulation(chosen, kind)
    return None


def entrant_formulation(
    entrant: PlannedEntrant, task: TaskRows, data: TaskDataset, length: int
) -> tuple[Formulation, Tokenizer] | str:
    """Return the formulation and tokenizer of an entrant for a task, or why it has none."""
    chosen, kind = family(entrant.family), type(task.task)
    if (reason := unsupported(entrant.family, kind)) is not None:
        return reason
    choices = task_choices(entrant.name, entrant.model, entrant.task_settings, kind)
    tokenizer = Corpus.open(entrant.corpus).tokenizer().with_end_token(chosen.required_tokens)
    config = entrant_config(entrant, tokenizer)
    try:
        formulation = fit_formulation(
            data,
            config,
            tokenizer,
            choices.formulation,
            chosen=FineTuneConfig(),
            metric="",
            positive_label=None,
            prefix="",
            length=length,
            **choices.options,
        )
    except UserError as error:
        if choices.options or choices.formulation:
            raise
        return str(error)
    return formulation, tokenizer


def truncated_share(formulation: Formulation, tokenizer: Tokenizer, rows: Sequence[Any]) -> float:
    """Return the share of rows whose texts are cut to the maximum length."""
    instances = (formulation.instances(row, tokenizer, labelled=False) for row in rows)
    return sum(any(i.truncated_tokens for i in group) for group in instances) / len(rows)


def entrant_config(entrant: PlannedEntrant, tokenizer: Tokenizer) -> Any:
    """Return the config of an entrant's network."""
    if entrant.recipe is not None:
        return entrant_recipe(entrant).model
    return InitialWeights(name=entrant.model).config(tokenizer)


def entrant_recipe(entrant: PlannedEntrant) -> Recipe:
    """Return the recipe of an entrant that pretrains."""
    recipe: Recipe = from_json(dict(entrant.recipe or {}), group="recipe")
    return recipe


def finetune_steps(rows: int, task: PlannedTask, options: RaceOptions) -> int:
    """Return the steps of a fine-tuning, the same for all entrants."""
    epoch = max(1, ceil(rows / TASK_BATCH_SIZE))
    steps = default_steps(epoch, classes=len(task.class_counts), hidden_size=0, raw=True)
    if options.task_epochs is not None:
        steps = max(1, ceil(options.task_epochs * epoch))
    return min(options.task_steps, steps)


def any_raw(entrants: Sequence[PlannedEntrant]) -> bool:
    """Return whether an entrant reads so little text that its weights count as raw.

    Then all entrants are fine-tuned with the defaults of raw weights, so that none has another
    learning rate or pooling for reading a few tokens more than another.
    """
    return any(
        tokens_of_steps(entrant_recipe(entrant), entrant.steps) < RAW_TOKENS
        for entrant in entrants
        if entrant.pretrains and not entrant.gradient_free and entrant.left_out is None
    )


def finetune_arguments(
    entrant: PlannedEntrant, task: PlannedTask, plan: Plan, *, steps: int, seed: int
) -> dict[str, Any]:
    """Return what `finetune` receives beside the model, the data and the folder."""
    kind = type(task.value)
    choices = task_choices(entrant.name, entrant.model, entrant.task_settings, kind)
    every = max(1, ceil(steps / TASK_EVALUATIONS))
    common = [f"train.batch_size={TASK_BATCH_SIZE}", f"train.steps={steps}"]
    common += [f"train.eval_every={every}", f"train.save_every={every}"]
    common += [f"train.seed={seed}", f"train.device={plan.options.device}"]
    arguments: dict[str, Any] = {
        "settings": [*common, "train.keep_checkpoints=1", *choices.settings],
        "options": choices.options,
        "formulation": choices.formulation,
        "raw_weights": plan.raw_weights if entrant.pretrains else None,  # new ones are raw
    }
    if "cross_view" in family(entrant.family).capabilities:
        arguments["unlabelled"] = ()  # it trains on labels alone, as the others do
    return arguments
