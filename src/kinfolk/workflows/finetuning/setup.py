"""From labelled files and a network to the formulations and the recipe of a fine-tuning."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from kinfolk.config import apply_overrides
from kinfolk.errors import UserError
from kinfolk.families import family_of
from kinfolk.nn.language_model import LanguageModel
from kinfolk.tasks.dataset import TaskDataset
from kinfolk.tasks.formulations.base import Formulation
from kinfolk.tasks.formulations.choose import (
    build_formulation,
    choose_formulation,
    model_config,
    with_mean_pooling,
)
from kinfolk.tasks.formulations.cross_view import CrossView
from kinfolk.tasks.task import task_class
from kinfolk.tasks.unlabelled import NO_FILES, UnlabelledText
from kinfolk.text.tokenizer import Tokenizer
from kinfolk.training.config import FineTuneConfig
from kinfolk.workflows.finetuning.defaults import finetune_train_config, is_raw
from kinfolk.workflows.finetuning.recipe import FineTuneRecipe, InitialWeights, with_dropout


def fit_formulations(
    datasets: Sequence[TaskDataset],
    backbone: LanguageModel,
    tokenizer: Tokenizer,
    name: str | None,
    settings: Sequence[str],
    *,
    metric: str = "",
    positive_label: str | None = None,
    source_prefix: Sequence[str] = (),
    **options: Any,
) -> list[Formulation]:
    """Return the formulation of each dataset for a network, by the settings of the recipe."""
    own = [text.removeprefix("finetune.") for text in settings if text.startswith("finetune.")]
    chosen = apply_overrides(FineTuneConfig(), own)
    prefixes = [*source_prefix, *[""] * len(datasets)]
    formulations = [
        fit_formulation(
            dataset,
            backbone.config,
            tokenizer,
            name,
            chosen=chosen,
            metric=metric,
            positive_label=positive_label,
            prefix=prefix,
            **options,
        )
        for dataset, prefix in zip(datasets, prefixes, strict=False)
    ]
    return [
        replace(each, task_number=number) if isinstance(each, CrossView) else each
        for number, each in enumerate(formulations)
    ]


def fit_formulation(
    dataset: TaskDataset,
    config: Any,
    tokenizer: Tokenizer,
    name: str | None,
    *,
    chosen: FineTuneConfig,
    metric: str,
    positive_label: str | None,
    prefix: str,
    num_sentences: int | None = None,
    **options: Any,
) -> Formulation:
    """Return the formulation of a dataset's task for a network, fitted to its training rows."""
    rows, family = dataset.splits[0], family_of(config)
    task = task_class(dataset.file_spec.task).from_rows(
        rows,
        file=dataset.train,
        metric=metric,
        positive_label=positive_label,
        prefix=prefix,
        num_sentences=num_sentences,
    )
    cls = choose_formulation(family, type(task), name, file=dataset.train)
    formulation = build_formulation(cls, task, family, config, tokenizer, **options)
    if chosen.pooling == "mean":
        formulation = with_mean_pooling(formulation)
    return formulation.fit(rows, tokenizer, balanced=chosen.class_weights == "balanced")


def make_recipe(
    start: InitialWeights,
    backbone: LanguageModel,
    formulations: Sequence[Formulation],
    datasets: Sequence[TaskDataset],
    teacher: str,
    overrides: Sequence[str],
    unlabelled: UnlabelledText | None,
    raw_weights: bool | None = None,
) -> FineTuneRecipe:
    """Return the recipe with the default settings of the network, and with the overrides.

    `raw_weights` chooses the defaults of raw or of pretrained weights, whatever they are.
    """
    names = {each.name for each in formulations}
    if len(formulations) > 1 and names not in ({"text"}, {"cross_view"}):
        raise UserError(
            "several files are trained on together as text or by cross-view training: use the "
            "formulation text and a family that generates, like t5, or classify and tag with cvt"
        )
    config = model_config(formulations[0], backbone.config, others=formulations[1:])
    family = family_of(backbone.config)
    init_from = "" if start.fresh else start.folder
    raw = is_raw(init_from) if raw_weights is None else raw_weights
    train = finetune_train_config(config, raw=raw)
    if family.finetune_training is not None and not start.fresh:
        train = family.finetune_training
    recipe = FineTuneRecipe(
        name=backbone.family_name,
        init_from=init_from,
        model=config,
        formulations=tuple(formulations),
        datasets=tuple(datasets),
        train=train,
        # What protects pretrained weights would only delay new ones.
        finetune=FineTuneConfig() if start.fresh else family.finetuning,
        teacher=teacher,
        unlabelled=unlabelled,
        raw_weights=raw_weights,
    )
    recipe = apply_overrides(recipe, overrides)
    if recipe.finetune.dropout is not None:
        recipe = replace(recipe, model=with_dropout(recipe.model, recipe.finetune.dropout))
    return recipe


def check_unlabelled(formulation: Formulation, family_name: str, *, given: bool) -> None:
    """Refuse cross-view training without unlabelled text, and such text without it."""
    if given == isinstance(formulation, CrossView):
        return
    if given:
        raise UserError(
            f"--unlabelled does not apply to the formulation {formulation.name!r} of {family_name} "
            f"for {formulation.task.kind} tasks: remove it, or classify or tag with cvt"
        )
    raise UserError(
        f"{family_name} also learns from text without labels: give it with --unlabelled FILE, or "
        f"train on the labels alone with --unlabelled {NO_FILES}"
    )
