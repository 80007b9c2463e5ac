"""Fine-tuning: the workload of labelled files, and the recipe that follows from them."""

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch

from kinfolk import hub
from kinfolk.batch import Loss
from kinfolk.errors import UserError
from kinfolk.files import new_file
from kinfolk.nn.language_model import LanguageModel, has_static_shapes
from kinfolk.nn.task_heads import ModelWithHead
from kinfolk.rng import corpus_seed
from kinfolk.tasks.baselines import baseline_messages, fit_baselines
from kinfolk.tasks.dataset import RowSource, TaskDataset, as_datasets
from kinfolk.tasks.formulations.base import Formulation, Instance
from kinfolk.tasks.formulations.cross_view import CrossView, UnlabelledBatches
from kinfolk.tasks.formulations.head import CausalHead, LabelHead
from kinfolk.tasks.formulations.sentence_selection import SentenceSelection
from kinfolk.tasks.instances import (
    TOKENS_PER_BATCH,
    AlternatingBatches,
    LazyInstances,
    TaskBatches,
    forward_instances,
    length_buckets,
    mixing_weights,
    predict_rows,
)
from kinfolk.tasks.static_shapes import static_batches
from kinfolk.tasks.unlabelled import unlabelled_text
from kinfolk.text.tokenizer import Tokenizer
from kinfolk.training.config import FineTuneConfig, TrainConfig
from kinfolk.training.distributed import Processes, load_whole_weights
from kinfolk.training.log import RunSample
from kinfolk.training.loop import Callback, check_callbacks
from kinfolk.training.regularize import FGM, GradualUnfreezing, noisy_tune
from kinfolk.training.run import Run
from kinfolk.training.workload import LossFn, Workload, select_device
from kinfolk.workflows.finetuning.label_search import learned_label_weights, weight_messages
from kinfolk.workflows.finetuning.recipe import (
    FineTuneRecipe,
    InitialWeights,
    epoch_steps,
    parse_initial_weights,
    resolve_steps,
)
from kinfolk.workflows.finetuning.setup import check_unlabelled, fit_formulations, make_recipe
from kinfolk.workflows.folders import check_new_folder, exclusive_run
from kinfolk.workflows.planning.preflight import announce, check_finetuning
from kinfolk.workflows.predict import load_predictor
from kinfolk.workflows.recipe import (
    Settings,
    check_resumed_recipe,
    keyword_settings,
    settings_list,
)
from kinfolk.workflows.report import best_metrics, write_report
from kinfolk.workflows.run_samples import row_samples

DISTILLATION_WEIGHT = 0.5  # of a teacher in the loss
RESOLVED_FIELDS = ("train.steps", "train.eval_every", "train.save_every", "train.warmup")


def finetune(
    model: InitialWeights | Path | str,
    train: RowSource | TaskDataset | Sequence[TaskDataset],
    out: Path | str,
    *,
    dev: RowSource | None = None,
    task: str | None = None,
    columns: str | None = None,
    formulation: str | None = None,
    length: int | None = None,
    settings: Settings = (),
    teacher: str = "",
    unlabelled: Sequence[Path | str] | None = None,
    metric: str | None = None,
    positive_label: str | None = None,
    source_prefix: Sequence[str] = (),
    options: Mapping[str, Any] | None = None,  # fields of the formulation; None where not given
    raw_weights: bool | None = None,
    callbacks: Sequence[Callback] = (),
    **fields: Any,
) -> Path:
    """Fine-tune a model on labelled rows, into a new run folder; return the folder.

    `finetune("runs/bert", "train.tsv", "runs/triage", dev="dev.tsv", epochs=4)`

    The model is the folder of a run or a model, or FAMILY/SIZE for new weights. `train` and `dev`
    are a file, a list of dictionaries like `{"text": ..., "label": ...}`, a DataFrame, or a Hugging
    Face Dataset; without `dev`, a tenth of the rows are held out. `train` may also be what
    `task_dataset` returns, or a list of those to train on together. Task and columns are detected
    unless they are given.
    `unlabelled` are files of text for cross-view training (cvt); an empty list trains on the labels
    alone. `raw_weights` chooses the defaults of raw or of pretrained weights, which otherwise
    follow from how much text the weights were pretrained on.
    Keywords are fields of `TrainConfig` and `FineTuneConfig`; settings are fields of the recipe by
    their paths.
    """
    check_callbacks(callbacks)
    overrides = keyword_settings(fields, {"train": TrainConfig, "finetune": FineTuneConfig})
    overrides += settings_list(settings)
    if not isinstance(model, InitialWeights | Path | str):
        raise UserError(
            f"model is of type {type(model).__name__}: give the folder of a model, or FAMILY/SIZE"
        )
    start = model if isinstance(model, InitialWeights) else parse_initial_weights(str(model))
    out = Path(out)
    check_new_folder(out, "choose another folder, or continue that run with resume")
    datasets = as_datasets(train, out, dev=dev, task=task, columns=columns)
    if len(datasets) > 1 and (metric or positive_label):
        raise UserError("several files have several tasks: leave metric and positive_label out")
    given = {"length": length, **(options or {})}
    if teacher and given.get("distillation_weight") is None:
        given["distillation_weight"] = DISTILLATION_WEIGHT
    text = unlabelled_text(unlabelled, datasets) if unlabelled else None
    known = [dataset.splits[0] for dataset in datasets]
    backbone, tokenizer = start.open(known if text is None else [*known, text.rows])
    if backbone.gradient_free is not None:
        raise UserError(
            f"{backbone.family_name} models cannot be fine-tuned ({backbone.gradient_free}): score "
            "labelled rows by kinfolk evaluate MODEL --test FILE --num-fewshot N"
        )
    formulations = fit_formulations(
        *(datasets, backbone, tokenizer, formulation, overrides),
        metric=metric or "",
        positive_label=positive_label,
        source_prefix=source_prefix,
        **given,
    )
    check_unlabelled(formulations[0], backbone.family_name, given=unlabelled is not None)
    recipe = make_recipe(
        start, backbone, formulations, datasets, teacher, overrides, text, raw_weights
    )
    if start.fresh:
        backbone = build_fresh_model(recipe)
    processes = Processes.from_environment()
    work = FineTuneWorkload(recipe, backbone, tokenizer, callbacks, overrides, processes=processes)
    estimate = check_finetuning(work.model, work.train, out, processes=processes)
    if processes.is_first:
        announce(estimate, callbacks)
    run = Run.start(work, out, callbacks)
    with exclusive_run(out) if processes.is_first else nullcontext():
        return run.fit()


class FineTuneWorkload(Workload):
    """The model, formulations and labelled rows of a recipe.

    The best checkpoint has the highest mean of the tasks' main metrics and, of equal ones, the
    lowest loss on dev rows.
    """

    command = "finetune"
    longer = "more --epochs"
    selects_by_loss = False
    evaluates_model = True
    results = ("scores.json", "report.html")
    save_best = True
    batches: TaskBatches | AlternatingBatches

    def __init__(
        self,
        recipe: FineTuneRecipe,
        backbone: LanguageModel,
        tokenizer: Tokenizer,
        callbacks: Sequence[Callback] = (),
        settings: Sequence[str] = (),  # given fields, which are not derived from the data
        *,
        fresh: bool = True,  # the weights are not those of a checkpoint
        processes: Processes = Processes(),
    ) -> None:
        self.tokenizer, self.objective = tokenizer, recipe.formulations[0]
        self.callbacks, self.processes = callbacks if processes.is_first else (), processes
        check_shares(recipe.train, processes)
        # Before a teacher is loaded, to the device of this process.
        device = processes.connect(select_device(recipe.train.device))
        self.dev_rows = [dataset.splits[1] for dataset in recipe.datasets]
        self.has_eval_data = any(self.dev_rows)
        # Of each task, for all evaluations: for predictions, and for the loss.
        self.dev_instances: dict[int, list[list[Instance]]] = {}
        self.loss_instances: dict[int, list[Instance]] = {}
        sets, messages = training_instances(recipe, tokenizer)
        messages += [text for dataset in recipe.datasets for text in dataset.report.messages()]
        for formulation, dev in zip(recipe.formulations, self.dev_rows, strict=True):
            messages += formulation.task.score_notes(dev) if dev else []
        self.report_messages(messages)
        sizes = list(map(len, sets))
        self.recipe = recipe = resolve_steps(recipe, sizes, settings)
        self.train, config = recipe.train, recipe.finetune
        self.batches = finetune_batches(recipe, sets, tokenizer, processes.count)
        model = model_for_task(recipe, backbone)
        obstacle = replay_obstacle(recipe, model)
        if self.train.cuda_graph == "yes" and obstacle is not None:
            raise UserError(f"train.cuda_graph=yes: {obstacle}; leave train.cuda_graph at auto")
        if device.type == "cuda" and obstacle is None:
            self.use_static_batches(model)
        hub.bind_tokenizer(model, tokenizer)
        if fresh:
            self.report_messages(self.objective.prepare(model, tokenizer))
        # Sharded, layer by layer: no device must hold all weights.
        self.model = model if self.train.parallel == "fsdp" else model.to(device)
        if config.noisy_tune:
            added = {*self.model.parameters()} - {*self.model.pretrained.parameters()}
            noisy_tune(self.model, config.noisy_tune, seed=self.train.seed, fresh=added)
        self.fingerprints = input_fingerprints(recipe)
        self.layer_lr_decay = config.layer_lr_decay
        self.early_stopping_patience = config.early_stopping_patience
        if config.gradual_unfreezing:
            epoch = epoch_steps(self.train, sizes) * recipe.steps_per_labelled_step
            self.unfreezing = GradualUnfreezing(self.model, epoch)
        if config.adversarial_epsilon:
            self.attack = FGM(self.model, config.adversarial_epsilon, processes)

    def use_static_batches(self, model: LanguageModel) -> None:
        """Make batches of few shapes where the steps of the run are replayed."""
        assert isinstance(self.batches, TaskBatches), "only labelled batches have static shapes"
        if not self.train.may_replay_static:
            return
        count = self.train.steps * self.train.gradient_accumulation * self.processes.count
        static = static_batches(self.recipe.formulations[0], self.batches, count)
        parameters = sum(p.numel() for p in model.parameters())
        if self.train.replays_static(parameters, static.max_positions):
            self.static_batches = static
            self.batches.formulation = static

    @classmethod
    def reopen(
        cls, recipe: Any, folder: Path, newest: Path | None, callbacks: Sequence[Callback]
    ) -> Self:
        """Build the workload of a run folder."""
        if newest is not None:
            check_resumed_recipe(folder, recipe, newest)
        tokenizer = Tokenizer.load(folder / "tokenizer")
        if newest is None and recipe.init_from:
            backbone = hub.load(Path(recipe.init_from), tokenizer)[0].pretrained
        else:
            backbone = build_fresh_model(recipe)
        fresh, processes = newest is None, Processes.from_environment()
        return cls(
            *(recipe, backbone, tokenizer, callbacks, RESOLVED_FIELDS),
            fresh=fresh,
            processes=processes,
        )

    def report_messages(self, messages: Sequence[str]) -> None:
        """Pass messages to the callbacks."""
        for message in messages:
            for callback in self.callbacks:
                callback.on_message(message)

    def write_recipe(self, folder: Path) -> None:
        """Write recipe.json, the tokenizer, and the rows given in memory."""
        self.tokenizer.save(folder / "tokenizer")
        for dataset in self.recipe.datasets:
            dataset.write_rows(folder)
        self.recipe.write(folder / "recipe.json")

    def evaluate(self, loss: LossFn) -> Mapping[str, Any]:
        """Return the loss on dev rows, its parts, and every metric of their predictions."""
        metrics = self.dev_loss(loss)
        for number, (prefix, formulation, rows) in enumerate(
            zip(self.recipe.metric_prefixes, self.recipe.formulations, self.dev_rows, strict=True)
        ):
            if rows:
                if number not in self.dev_instances:
                    self.dev_instances[number] = [
                        formulation.instances(row, self.tokenizer, labelled=False) for row in rows
                    ]
                encoded = self.dev_instances[number]
                predictions = predict_rows(
                    formulation, self.model, rows, self.tokenizer, encoded=encoded
                )
                scores = formulation.task.evaluate(rows, predictions)
                metrics |= {f"{prefix}{name}": value for name, value in scores.items()}
        return metrics

    def dev_loss(self, loss: LossFn) -> dict[str, Any]:
        """Return the loss on dev rows whose labels occur in training, and its parts."""
        limit = self.train.eval_batches * self.batches.batch
        total, counts = Loss({}), Counter[str]()
        for number, (formulation, rows) in enumerate(
            zip(self.recipe.formulations, self.dev_rows, strict=True)
        ):
            if number not in self.loss_instances:
                self.loss_instances[number] = [
                    instance
                    for row in rows[:limit]
                    if not formulation.task.unseen_labels([row])
                    for instance in formulation.instances(row, self.tokenizer)
                ]
            instances = self.loss_instances[number][:limit]
            for group in self.loss_groups(instances):
                batch = formulation.make_batch([instances[index] for index in group])
                total = total + loss(batch)
                counts.update(batch.counts)
        metrics: dict[str, Any] = {"eval_loss": float(total.mean(counts)) if counts else math.inf}
        if len(total.sums) > 1:
            metrics["eval_losses"] = total.means(counts)
        return metrics

    def loss_groups(self, instances: Sequence[Instance]) -> Iterator[Sequence[int]]:
        """Yield the instances of each batch of the loss: as many as a batch of training has.

        On CUDA batches are larger: launching the kernels of a small one takes longer than they run.
        """
        if next(self.model.parameters()).device.type == "cuda":
            yield from length_buckets([i.tokens for i in instances], TOKENS_PER_BATCH)
            return
        size = self.batches.batch
        for start in range(0, len(instances), size):
            yield range(start, min(start + size, len(instances)))

    def main_metrics(self, metrics: Mapping[str, Any]) -> dict[str, float]:
        """Return the main metric of each task that has dev rows."""
        return {name: metrics[name] for name in self.recipe.main_metrics if name in metrics}

    def score(self, metrics: Mapping[str, Any]) -> tuple[float, ...]:
        """Return the mean of the main metrics, and the loss with its sign changed."""
        return self.recipe.selection_score(metrics), -metrics["eval_loss"]

    def save_model(self, folder: Path) -> None:
        """Write a model folder, with the recipe as kinfolk.json."""
        template = "line" if isinstance(self.objective, CausalHead) else None
        hub.save(folder, self.model, self.tokenizer, frame=template)
        self.recipe.write(folder / "kinfolk.json")

    def load_weights(self, folder: Path) -> None:
        """Load the weights of a checkpoint."""
        saved: Any = hub.load_model(folder)
        load_whole_weights(self.model, saved.state_dict())

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of tokens, special tokens too."""
        return self.tokenizer.decode(ids, add_special_tokens=True)

    def write_report(self, folder: Path, *, finished: bool) -> None:
        """Write report.html and, of a finished run, scores.json: those of the best checkpoint."""
        if finished:
            metric = self.recipe.formulations[0].task.main_metric
            dev = best_metrics(folder)
            baselines, messages = self.baselines(dev)
            learned = self.learned_weights(folder)
            messages = [*messages, *weight_messages(learned)]
            scores = {"metric": metric, "dev": dev, "baselines": baselines, "messages": messages}
            scores |= {"label_weights": learned} if learned else {}
            with new_file(folder / "scores.json") as file:
                file.write(json.dumps(scores, indent=2) + "\n")
            self.report_messages(messages)
        write_report(folder, finished=finished)

    def learned_weights(self, folder: Path) -> dict[str, Any]:
        """Return the weights of label sets that the best checkpoint has learned, if any."""
        formulation = self.objective
        if not isinstance(formulation, SentenceSelection) or not formulation.learned_sets:
            return {}
        best = folder / "checkpoints" / "best"  # none without dev rows
        model = hub.load_model(best if best.exists() else best.with_name("last"))
        instances = [
            instance
            for row in self.dev_rows[0]
            for instance in formulation.instances(row, self.tokenizer)
        ]
        return learned_label_weights(formulation, model, instances)

    def samples(self) -> Sequence[RunSample]:
        """Return the predictions of the first dev rows of each task."""
        return [
            sample
            for formulation, rows in zip(self.recipe.formulations, self.dev_rows, strict=True)
            for sample in row_samples(formulation, self.model, rows, self.tokenizer)
        ]

    def baselines(
        self, metrics: Mapping[str, Any]
    ) -> tuple[dict[str, dict[str, float]], list[str]]:
        """Return the scores of baselines on the dev rows, and how the model compares with them."""
        scores: dict[str, dict[str, float]] = {}
        messages: list[str] = []
        for prefix, formulation, dataset in zip(
            self.recipe.metric_prefixes, self.recipe.formulations, self.recipe.datasets, strict=True
        ):
            train, dev = dataset.splits
            task, found = formulation.task, fit_baselines(formulation.task, train, dev)
            for name, values in found.scores.items():
                scores.setdefault(name, {}).update({f"{prefix}{n}": v for n, v in values.items()})
            own = {
                name.removeprefix(prefix): value
                for name, value in metrics.items()
                if name.startswith(prefix) and value is not None
            }
            messages += baseline_messages(task, found, dev, own)
        return scores, messages


def model_for_task(recipe: FineTuneRecipe, backbone: LanguageModel) -> LanguageModel:
    """Return the backbone, with a randomly initialized head if the formulation needs one."""
    torch.manual_seed(recipe.train.seed)
    try:
        model: LanguageModel = recipe.model.build_on(backbone)
    except RuntimeError:  # shapes differ
        raise UserError(
            f"the weights of {recipe.init_from} do not fit the model settings: remove those that "
            "change its size, or use --from-scratch"
        ) from None
    if isinstance(model, ModelWithHead) and recipe.is_raw:
        model.reset_pooling()
    return model


def replay_obstacle(recipe: FineTuneRecipe, model: LanguageModel) -> str | None:
    """Return why the steps of a run cannot be replayed as CUDA graphs; None where they can."""
    formulation, config = recipe.formulations[0], recipe.finetune
    if config.gradual_unfreezing:
        return "--gradual-unfreezing changes which parameters a step trains"
    if config.adversarial_epsilon:
        return "--adversarial-epsilon changes the embeddings inside of a step"
    if not formulation.static_shapes:
        return (
            f"shapes in the loss of the formulation {formulation.name!r} for "
            f"{formulation.task.kind} tasks depend on the rows of a batch"
        )
    if not has_static_shapes(model):
        return f"shapes inside {model.family_name} depend on the texts of a batch"
    return None


def check_shares(train: TrainConfig, processes: Processes) -> None:
    """Refuse micro-batches that have fewer examples than there are processes."""
    size = train.batch_size // train.gradient_accumulation
    if size < processes.count:
        raise UserError(
            f"train.batch_size={train.batch_size} and train.gradient_accumulation="
            f"{train.gradient_accumulation} make micro-batches of {size} examples, fewer than the "
            f"{processes.count} processes: choose a larger batch size, or start fewer processes"
        )


def training_instances(
    recipe: FineTuneRecipe, tokenizer: Tokenizer
) -> tuple[list[list[Instance]], list[str]]:
    """Return the instances of the training rows of each dataset, and messages about them."""
    sets: list[list[Instance]] = []
    messages: list[str] = []
    for formulation, dataset in zip(recipe.formulations, recipe.datasets, strict=True):
        rows, _ = dataset.splits
        instances = [formulation.instances(row, tokenizer) for row in rows]
        if truncated := sum(any(i.truncated_tokens for i in group) for group in instances):
            messages.append(
                f"{Path(dataset.train).name}: {truncated:,} of {len(rows):,} rows truncated to "
                f"{formulation.max_length} tokens (--length)"
            )
        if recipe.teacher:
            instances = distill(recipe.teacher, formulation, rows, instances, recipe.train.device)
        sets.append([instance for group in instances for instance in group])
        if not sets[-1]:
            reasons = "; ".join(dataset.report.messages()) or "no row has a target"
            raise UserError(f"{dataset.train} has no rows to learn from: {reasons}")
    return sets, messages


def input_fingerprints(recipe: FineTuneRecipe) -> list[tuple[str, str]]:
    """Return the path and hash of what a run reads, which a resume checks."""
    found = [f for dataset in recipe.datasets for f in dataset.fingerprints]
    found += recipe.formulations[0].fingerprints()
    return found + ([] if recipe.unlabelled is None else [*recipe.unlabelled.fingerprints])


def finetune_batches(
    recipe: FineTuneRecipe,
    sets: Sequence[Sequence[Instance]],
    tokenizer: Tokenizer,
    shares: int = 1,  # of a micro-batch, one for each process
) -> TaskBatches | AlternatingBatches:
    """Return the batches of a run by number, from the instances of each file."""
    train, formulations = recipe.train, recipe.formulations
    size = train.batch_size // train.gradient_accumulation
    weights = mixing_weights([*map(len, sets)], recipe.finetune.mixing_temperature)
    views = tuple(each for each in formulations if isinstance(each, CrossView))
    if not views:
        return TaskBatches(
            formulations[0], sets, batch=size, seed=train.seed, weights=weights, shares=shares
        )
    labelled = [
        TaskBatches(
            each, [instances], batch=size, seed=corpus_seed(train.seed, number), shares=shares
        )
        for number, (each, instances) in enumerate(zip(views, sets, strict=True))
    ]
    unlabelled = None
    if recipe.unlabelled is not None:
        maker = UnlabelledBatches(views)
        rows = LazyInstances(maker.reader, recipe.unlabelled.rows, tokenizer)
        seed = corpus_seed(train.seed, len(views))
        unlabelled = TaskBatches(maker, [rows], batch=size, seed=seed, shares=shares)
    return AlternatingBatches(
        labelled,
        unlabelled,
        weights=weights,
        micro_batches=train.gradient_accumulation,
        shares=shares,
    )


def build_fresh_model(recipe: FineTuneRecipe) -> Any:
    """Build the randomly initialized backbone."""
    torch.manual_seed(recipe.train.seed)
    return recipe.model.pretrained.build()


def distill(
    teacher: str,
    student: Formulation,
    rows: Sequence[Any],
    instances: Sequence[Sequence[Instance]],
    device: str,
) -> list[list[Instance]]:
    """Add the soft labels of a teacher to the instances of each row.

    Teacher and student may be of different families; only the task and its labels must be equal.
    """
    predictor = load_predictor(teacher, device=device)
    formulation, task = predictor.formulation, predictor.task
    if not isinstance(student, LabelHead) or not (student.distills and formulation.distills):
        raise UserError(
            f"teacher {teacher}: distillation needs a formulation with a head (classify, regress, "
            "choose or tag) for teacher and student"
        )
    if (task.kind, task.labels) != (student.task.kind, student.task.labels):
        raise UserError(
            f"teacher {teacher} has other labels ({', '.join(task.labels)}) than the training rows "
            f"({', '.join(student.task.labels)})"
        )
    inputs = [formulation.instances(row, predictor.tokenizer, labelled=False) for row in rows]
    flat = [instance for group in inputs for instance in group]
    logits = iter(forward_instances(formulation, predictor.model, flat, TOKENS_PER_BATCH))
    distilled = []
    for group, teacher_group in zip(instances, inputs, strict=True):
        soft = [formulation.soft_labels(next(logits), student.temperature) for _ in teacher_group]
        if task.output == "tags":  # the two may split a long sentence at different words
            cuts = np.cumsum([len(i.examples[0].read_positions) for i in group])[:-1]
            soft = list(np.split(np.concatenate(soft), cuts))
        distilled.append(
            [replace(i, teacher_probs=probs) for i, probs in zip(group, soft, strict=True)]
        )
    return distilled
