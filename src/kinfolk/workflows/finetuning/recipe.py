"""The recipe of a fine-tuning run: labelled files, settings, initial weights."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from kinfolk.config import config, field, read_json, write_json
from kinfolk.errors import UserError
from kinfolk.families import family, family_of
from kinfolk.tasks.dataset import TaskDataset
from kinfolk.tasks.formulations.base import Formulation
from kinfolk.tasks.task import Task
from kinfolk.tasks.unlabelled import UnlabelledText
from kinfolk.text.tokenizer import Tokenizer
from kinfolk.text.train import train_tokenizer
from kinfolk.training.config import FineTuneConfig, TrainConfig
from kinfolk.workflows.finetuning.defaults import MAX_FINETUNE_EVALUATIONS, default_steps, is_raw
from kinfolk.workflows.folders import find_model_folder, load_tokenizer, model_or_family
from kinfolk.workflows.load import load

DROPOUT_FIELDS = ("dropout", "attention_dropout")


@config("finetune")
class FineTuneRecipe:
    """The initial weights, labelled files, formulations and settings of a fine-tuning run."""

    name: str = field(help="model family")
    init_from: str = field(help="folder of the initial weights; empty for new ones")
    model: Any = field(group="model", help="network")
    formulations: tuple[Formulation, ...] = field(
        group="formulation", help="how each file's task is solved"
    )
    datasets: tuple[TaskDataset, ...] = field(group="file", help="labelled files")
    train: TrainConfig = field(help="training settings")
    finetune: FineTuneConfig = field(default=FineTuneConfig(), help="settings of fine-tuning alone")
    teacher: str = field(default="", help="fine-tuned run to distil from; empty for none")

    def __post_init__(self) -> None:
        solved, files = len(self.formulations), len(self.datasets)
        if solved != files or not files:
            raise UserError(
                f"{solved} formulations and {files} datasets: a run has one of each for every "
                "labelled file"
            )

    unlabelled: UnlabelledText | None = field(
        default=None, help="text without labels, whose batches alternate with labelled ones"
    )
    raw_weights: bool | None = field(
        default=None, help="defaults of raw or of pretrained weights; None: by what they were"
    )

    @property
    def metric_prefixes(self) -> list[str]:
        """The prefix of each task's metrics in the log: none where there is one task."""
        numbers = range(1, len(self.formulations) + 1)
        return [""] if len(self.formulations) == 1 else [f"{number}_" for number in numbers]

    @property
    def is_raw(self) -> bool:
        """Whether the defaults are those of raw weights."""
        return is_raw(self.init_from) if self.raw_weights is None else self.raw_weights

    @property
    def steps_per_labelled_step(self) -> int:
        """The steps of a labelled batch and, where there is unlabelled text, of one of that."""
        return 1 if self.unlabelled is None else 2

    @property
    def main_metrics(self) -> dict[str, Task]:
        """The task of each main metric, by its name in the log."""
        tasks = [formulation.task for formulation in self.formulations]
        pairs = zip(self.metric_prefixes, tasks, strict=True)
        return {f"{prefix}{task.main_metric}": task for prefix, task in pairs}

    def selection_score(self, metrics: Mapping[str, float]) -> float:
        """Return the mean of the main metrics, each rescaled so that higher is better."""
        values = [
            task.normalized(metrics[name])
            for name, task in self.main_metrics.items()
            if name in metrics
        ]
        if not values:
            names = ", ".join(self.main_metrics)
            raise UserError(
                f"the metric {names}, which selects the best checkpoint, is not among the scores "
                f"({', '.join(metrics) or 'none'}): Task.metrics of its kind must return it"
            )
        return sum(values) / len(values)

    def write(self, path: Path) -> None:
        """Write the recipe as JSON."""
        write_json(self, path)

    @classmethod
    def read(cls, path: Path) -> "FineTuneRecipe":
        """Read a recipe written by `write`."""
        recipe = read_json(path)
        if not isinstance(recipe, FineTuneRecipe):
            raise UserError(f"{path.parent} is not a fine-tuning run: use kinfolk finetune first")
        return recipe


def with_dropout(config: Any, rate: float) -> Any:
    """Return the config with this dropout rate in the backbone and in the task head, if any."""
    backbone = config.pretrained
    changed = backbone.with_fields(**dict.fromkeys(DROPOUT_FIELDS, rate))
    return changed if backbone is config else config.with_fields(backbone=changed, dropout=rate)


def epoch_steps(train: TrainConfig, examples: Sequence[int]) -> int:
    """Return the number of steps of an epoch over datasets of these sizes."""
    return max(1, math.ceil(sum(examples) / train.batch_size))


def resolve_steps(
    recipe: FineTuneRecipe, examples: Sequence[int], settings: Sequence[str] = ()
) -> FineTuneRecipe:
    """Derive steps, evaluations, checkpoints and warm-up from the number of examples."""
    train, chosen = recipe.train, recipe.finetune
    given = {setting.partition("=")[0] for setting in settings}
    epoch = epoch_steps(train, examples)
    every = max(1, math.ceil(epoch / chosen.evals_per_epoch))
    if chosen.epochs is not None:
        steps = max(1, math.ceil(chosen.epochs * epoch))
    else:
        tasks = [formulation.task for formulation in recipe.formulations]
        steps = default_steps(
            epoch,
            classes=max(len(task.labels) if task.output == "label" else 0 for task in tasks),
            hidden_size=recipe.model.hidden_size,
            raw=recipe.is_raw,
        )
        if "finetune.evals_per_epoch" not in given:
            every = max(every, math.ceil(steps / MAX_FINETUNE_EVALUATIONS))
    steps, every = (number * recipe.steps_per_labelled_step for number in (steps, every))
    resolved: dict[str, Any] = {}
    if "train.steps" not in given:
        resolved["steps"] = steps
    if "train.eval_every" not in given:
        resolved["eval_every"] = every
    if "train.save_every" not in given:  # every evaluation is saved
        resolved["save_every"] = resolved.get("eval_every", train.eval_every)
    if "train.warmup" not in given:
        resolved["warmup"] = max(1, resolved.get("steps", train.steps) // 10)
    return replace(recipe, train=replace(train, **resolved))


def mean_and_std(scores: Sequence[float]) -> tuple[float, float]:
    """Return the mean of scores, and their standard deviation."""
    values = np.array(scores, np.float64)
    return float(values.mean()), float(values.std(ddof=1)) if len(values) > 1 else 0.0


WORDPIECE_VOCAB_SIZE = 8192  # of a tokenizer trained on the labelled text
WORD_VOCAB_SIZE = 2**15  # of whole words, where the network reads others by their characters


@dataclass(frozen=True, kw_only=True)
class InitialWeights:
    """A model folder, or FAMILY/SIZE for random initialization."""

    folder: str = ""  # of a saved model
    name: str = ""  # or FAMILY/SIZE
    tokenizer: str = ""  # folder or file; else the model folder's, or one trained on the rows
    from_scratch: bool = False  # ignore the weights of the folder
    seed: int = 0

    @property
    def fresh(self) -> bool:
        """Whether the weights are randomly initialized."""
        return self.from_scratch or not self.folder

    def open(self, rows: Sequence[Sequence[Any]]) -> tuple[Any, Tokenizer]:
        """Return the network and its tokenizer, which may be trained on the rows."""
        if self.folder:
            model, tokenizer = load(self.folder, self.tokenizer or None)
            backbone: Any = model.pretrained
            if self.from_scratch:
                torch.manual_seed(self.seed)
                backbone = backbone.config.build()
        else:
            tokenizer = self.open_tokenizer(rows)
            torch.manual_seed(self.seed)
            backbone = self.config(tokenizer).build()
        return backbone, tokenizer.with_end_token(family_of(backbone.config).required_tokens)

    def open_tokenizer(self, rows: Sequence[Sequence[Any]]) -> Tokenizer:
        """Load the tokenizer, or train one on the texts of the rows."""
        if self.tokenizer:
            return load_tokenizer(self.tokenizer)
        texts = (text for group in rows for row in group for text in row.texts_and_labels)
        if self.family_config.max_characters is None:
            return train_tokenizer(
                texts, kind="wordpiece", vocab_size=WORDPIECE_VOCAB_SIZE, fewer=True
            )
        return train_tokenizer(texts, kind="word", vocab_size=WORD_VOCAB_SIZE, fewer=True)

    @property
    def family_config(self) -> Any:
        """The config of FAMILY/SIZE."""
        name, _, size = self.name.partition("/")
        return family(name).config(size or "tiny")

    def config(self, tokenizer: Tokenizer) -> Any:
        """Return the config of FAMILY/SIZE for a tokenizer."""
        return self.family_config.with_fields(
            vocab_size=tokenizer.vocab_size,
            decoder_start_token_id=tokenizer.special_tokens.pad,
            padding_idx=tokenizer.special_tokens.pad,
        )


def parse_initial_weights(
    model: str, *, tokenizer: Path | None = None, from_scratch: bool = False
) -> InitialWeights:
    """Return the initial weights of a model folder or of FAMILY/SIZE."""
    model = model_or_family(model)
    if Path(model).exists():
        return InitialWeights(
            folder=str(find_model_folder(model).resolve()),
            tokenizer=str(tokenizer or ""),
            from_scratch=from_scratch,
        )
    return InitialWeights(name=model, tokenizer=str(tokenizer or ""))
