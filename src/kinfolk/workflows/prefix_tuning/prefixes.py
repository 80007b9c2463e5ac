"""Learning prefixes for a frozen decoder: the workload of labelled rows, or of text alone."""

import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, Self

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from kinfolk.batch import Loss
from kinfolk.config import apply_overrides
from kinfolk.errors import UserError
from kinfolk.files import partial_path
from kinfolk.generation.config import GenerationConfig
from kinfolk.generation.generate import generate_many
from kinfolk.nn.language_model import LanguageModel
from kinfolk.nn.prefixes import KeyValuePrefix, PrefixedModel
from kinfolk.tasks.dataset import RowSource, TaskDataset, task_dataset
from kinfolk.tasks.formulations.base import Instance
from kinfolk.tasks.formulations.sequences import causal_special_tokens
from kinfolk.tasks.instances import TaskBatches
from kinfolk.tasks.prefix_config import MAX_ATTRIBUTES, PrefixConfig
from kinfolk.tasks.prefixes import LabelledPrefixes, LatentPrefixes, text_instance
from kinfolk.tasks.task import task_class
from kinfolk.tasks.unlabelled import TextLines, check_text_files
from kinfolk.text.tokenizer import Tokenizer
from kinfolk.training.config import TrainConfig
from kinfolk.training.log import RunSample
from kinfolk.training.loop import Callback
from kinfolk.training.run import Run
from kinfolk.training.workload import LossFn, Workload, select_device
from kinfolk.workflows.folders import check_new_folder, exclusive_run, find_model_folder
from kinfolk.workflows.load import load, require_ability
from kinfolk.workflows.prefix_tuning.files import PREFIXES_FILE, SavedPrefixes, weights_hash
from kinfolk.workflows.prefix_tuning.recipe import PrefixRecipe
from kinfolk.workflows.recipe import (
    Settings,
    check_resumed_recipe,
    keyword_settings,
    settings_list,
)
from kinfolk.workflows.report import write_report

TRAINED = "trained.safetensors"  # what prefixes are computed from, which a resume reads
DEFAULT_TRAIN = TrainConfig(
    steps=1000,
    batch_size=32,
    lr=1e-3,
    warmup=100,
    schedule="linear",
    min_lr_ratio=0.0,
    weight_decay=0.0,
    betas=(0.9, 0.999),
    eval_every=200,
    save_every=200,
    eval_batches=32,
)
SAMPLE_CONFIG = GenerationConfig(max_new_tokens=24, temperature=0.8, top_p=0.95)


def learn_prefixes(
    model: Path | str,
    train: RowSource | TaskDataset | None,
    out: Path | str,
    *,
    text: Path | str | None = None,
    attributes: int | None = None,
    dev: RowSource | None = None,
    columns: str | None = None,
    settings: Settings = (),
    callbacks: Sequence[Callback] = (),
    **fields: Any,
) -> Path:
    """Learn a prefix for each attribute of texts, into a new run folder; return the folder.

    `learn_prefixes("runs/gpt2", "reviews.tsv", "runs/sentiment")`

    The model is the folder of a run or a model that takes prefixes (GPT, GPT-2, GPT-3); it is not
    changed. `train` and `dev` are rows labelled with attributes, as `finetune` takes them. With
    `train=None`, `text` is a file with one text on each line, and `attributes` prefixes are learned
    without labels, named 1, 2, and so on. Keywords are fields of `TrainConfig` and `PrefixConfig`;
    settings are fields of the recipe by their paths.
    """
    overrides = keyword_settings(fields, {"train": TrainConfig, "prefixes": PrefixConfig})
    overrides += settings_list(settings)
    out = Path(out)
    check_new_folder(out, "choose another folder, or continue that run with resume")
    if (train is None) == (text is None):
        raise UserError("prefixes are learned from labelled rows or from text: give one of the two")
    source: TaskDataset | TextLines
    if text is not None:
        source, names = open_text(text, attributes, dev, columns)
    else:
        assert train is not None
        source, names = open_labelled(train, out, attributes, dev, columns)
    folder = find_model_folder(model).resolve()
    backbone, tokenizer = load(folder)
    require_ability(backbone, "prefixes")
    recipe = PrefixRecipe(
        name=backbone.family_name,
        init_from=str(folder),
        model_hash=weights_hash(backbone),
        attributes=names,
        dataset=source if isinstance(source, TaskDataset) else None,
        text=source if isinstance(source, TextLines) else None,
        train=DEFAULT_TRAIN,
    )
    recipe = fit_settings(apply_overrides(recipe, overrides), backbone.config, overrides)
    messages = source.messages() if isinstance(source, TaskDataset) else ()
    for message, callback in product(messages, callbacks):
        callback.on_message(message)
    run = Run.start(PrefixWorkload(recipe, backbone, tokenizer, callbacks), out, callbacks)
    with exclusive_run(out):
        return run.fit()


def open_text(
    text: Path | str, attributes: int | None, dev: RowSource | None, columns: str | None
) -> tuple[TextLines, tuple[str, ...]]:
    """Return a file of text, and the names of attributes without labels."""
    if dev is not None or columns is not None:
        raise UserError("dev and columns are of labelled rows: leave them out, or give train")
    count = 2 if attributes is None else attributes
    if not 2 <= count <= MAX_ATTRIBUTES:
        raise UserError(f"attributes={count}: it must be from 2 to {MAX_ATTRIBUTES:,}")
    check_text_files([text])
    return TextLines(path=str(Path(text).resolve())), tuple(map(str, range(1, count + 1)))


def open_labelled(
    train: RowSource | TaskDataset,
    out: Path,
    attributes: int | None,
    dev: RowSource | None,
    columns: str | None,
) -> tuple[TaskDataset, tuple[str, ...]]:
    """Return labelled rows, and the attributes that they are labelled with."""
    if attributes is not None:
        raise UserError("attributes is for text without labels: labelled rows name their own")
    if not isinstance(train, TaskDataset):
        train = task_dataset(train, dev, task="classify", columns=columns)
    elif dev is not None or columns is not None:
        raise UserError("dev and columns are part of a task_dataset: give them there")
    dataset = train.stored_in(out)
    if dataset.file_spec.task != "classify":
        raise UserError(
            f"{dataset.train} has rows of the task {dataset.file_spec.task}: prefixes need texts "
            "labelled with classes"
        )
    rows = dataset.splits[0]
    task = task_class("classify").from_rows(rows, file=dataset.train)
    if task.is_pair:
        raise UserError(
            f"{dataset.train} has pairs of texts: prefixes need one text in each row; name its "
            "column with --columns"
        )
    return dataset, task.labels


def fit_settings(recipe: PrefixRecipe, config: Any, overrides: Sequence[str]) -> PrefixRecipe:
    """Fit the settings that were not given to the context of the model and to a short run."""
    given = {setting.partition("=")[0] for setting in overrides}
    prefixes, train = recipe.prefixes, recipe.train
    if prefixes.length > config.max_length:
        if "prefixes.length" in given:
            raise UserError(
                f"prefixes.length={prefixes.length}: the model reads at most {config.max_length} "
                "tokens; lower it"
            )
        prefixes = replace(prefixes, length=config.max_length)
    if train.warmup > train.steps and "train.warmup" not in given:
        train = replace(train, warmup=max(1, train.steps // 10))
    return replace(recipe, prefixes=prefixes, train=train)


class PrefixWorkload(Workload):
    """A frozen model, and the prefixes that are trained for it on the texts of a recipe.

    The best checkpoint has the lowest loss on dev texts.
    """

    command = "prefixes"
    results = (PREFIXES_FILE, "report.html")
    evaluates_model = True
    save_best = True
    model: PrefixedModel
    objective: LabelledPrefixes
    batches: TaskBatches

    def __init__(
        self,
        recipe: PrefixRecipe,
        backbone: LanguageModel,
        tokenizer: Tokenizer,
        callbacks: Sequence[Callback] = (),
    ) -> None:
        self.recipe, self.train, self.tokenizer = recipe, recipe.train, tokenizer
        c, latent = recipe.prefixes, recipe.text is not None
        kind = LatentPrefixes if latent else LabelledPrefixes
        self.objective = kind(c, tokenizer.special_tokens.pad)
        train, dev = ([self.instance(row) for row in rows] for rows in recipe.splits)
        if truncated := sum(bool(instance.truncated_tokens) for instance in train):
            for callback in callbacks:
                callback.on_message(
                    f"{recipe.file.name}: {truncated:,} of {len(train):,} texts cut to {c.length} "
                    "tokens (--length)"
                )
        self.dev, self.has_eval_data = dev, bool(dev)
        size = self.train.batch_size // self.train.gradient_accumulation
        self.batches = TaskBatches(self.objective, [train], batch=size, seed=self.train.seed)
        self.fingerprints = recipe.source.fingerprints
        torch.manual_seed(self.train.seed)
        model = PrefixedModel(
            backbone,
            len(recipe.attributes),
            length=c.prefix_length,
            embedding_size=c.embedding_size,
            start_id=causal_special_tokens(tokenizer.special_tokens)[0],
            latent=latent,
        )
        self.device = select_device(self.train.device)
        self.model = model.to(self.device)

    def instance(self, row: Any) -> Instance:
        """Return the text of a row, with the index of its attribute."""
        known = self.recipe.attributes
        label = None if row.label is None else str(row.label)
        if label is not None and label not in known:
            raise UserError(
                f"row {row.number:,} of the dev rows has the attribute {label!r}, which no "
                f"training row has (attributes: {', '.join(known)})"
            )
        index = None if label is None else known.index(label)
        return text_instance(row.texts[0], index, self.tokenizer, self.recipe.prefixes.length)

    @classmethod
    def reopen(
        cls, recipe: Any, folder: Path, newest: Path | None, callbacks: Sequence[Callback]
    ) -> Self:
        """Build the workload of a run folder; its model must be the same."""
        if newest is not None:
            check_resumed_recipe(folder, recipe, newest)
        backbone, tokenizer = load(recipe.init_from)
        if weights_hash(backbone) != recipe.model_hash:
            raise UserError(
                f"{recipe.init_from} has changed since {folder} was started: restore its weights, "
                "or start a new run"
            )
        return cls(recipe, backbone, tokenizer, callbacks)

    def write_recipe(self, folder: Path) -> None:
        """Write recipe.json, and the rows given in memory."""
        if self.recipe.dataset is not None:
            self.recipe.dataset.write_rows(folder)
        self.recipe.write(folder / "recipe.json")

    def evaluate(self, loss: LossFn) -> Mapping[str, Any]:
        """Return the loss on dev texts and, with labels, how many are likeliest after their prefix.

        The loss is computed from the same pass.
        """
        size = self.batches.batch
        shown = self.dev[: self.train.eval_batches * size]
        total, counts, correct = Loss({}), Counter[str](), 0
        for start in range(0, len(shown), size):
            batch = self.objective.make_batch(shown[start : start + size]).to(self.device)
            scores = self.objective.scores(self.model, batch)
            total = total + self.objective.loss_of(scores, self.model, batch)
            correct += int((scores.argmax(0) == batch.targets.attributes).sum())
            counts.update(batch.counts)
        metrics = {"eval_loss": float(total.mean(counts)), "eval_losses": total.means(counts)}
        return (
            metrics if self.recipe.dataset is None else metrics | {"accuracy": correct / len(shown)}
        )

    def main_metrics(self, metrics: Mapping[str, Any]) -> dict[str, float]:
        """Return the accuracy, where there are labels."""
        return {name: metrics[name] for name in ("accuracy",) if name in metrics}

    def save_model(self, folder: Path) -> None:
        """Write the prefixes, what they are computed from, and the recipe; not the model."""
        with torch.autocast(self.device.type, enabled=False):
            keys, values = (as_saved(part.transpose(0, 1)) for part in self.model.prefixes())
        recipe = self.recipe
        SavedPrefixes(
            folder, recipe.attributes, keys, values, recipe.init_from, recipe.model_hash
        ).write(folder / PREFIXES_FILE)
        trained = self.model.trained.state_dict()
        save_file({name: as_saved(part) for name, part in trained.items()}, folder / TRAINED)
        recipe.write(folder / "kinfolk.json")

    def load_weights(self, folder: Path) -> None:
        """Load what the prefixes of a checkpoint were computed from."""
        self.model.trained.load_state_dict(load_file(folder / TRAINED))

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of tokens, special tokens too."""
        return self.tokenizer.decode(ids, add_special_tokens=True)

    def samples(self) -> Sequence[RunSample]:
        """Return a text that starts with each prefix."""
        return [
            RunSample(f"attribute {name}", "", self.sample(self.model.prefix(index)))
            for index, name in enumerate(self.recipe.attributes[:8])
        ]

    def sample(self, prefix: KeyValuePrefix) -> str:
        """Return a text after a prefix."""
        backbone = self.model.backbone
        (texts,) = generate_many(backbone, self.tokenizer, "", SAMPLE_CONFIG, prefix=prefix)
        return texts[0].text

    def write_report(self, folder: Path, *, finished: bool) -> None:
        """Write report.html and, of a finished run, the prefixes of its best checkpoint."""
        if finished:
            partial = partial_path(folder / PREFIXES_FILE)
            shutil.copyfile(folder / "checkpoints" / "best" / PREFIXES_FILE, partial)
            partial.replace(folder / PREFIXES_FILE)
        write_report(folder, finished=finished)


def as_saved(tensor: Tensor) -> Tensor:
    """Return a copy of a tensor as a file holds it."""
    return tensor.detach().float().cpu().contiguous().clone()
