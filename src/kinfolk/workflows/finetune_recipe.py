"""The recipe of a fine-tuning run: labelled files, settings, initial weights."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from kinfolk.config import config, field, read_json, write_json
from kinfolk.errors import UserError
from kinfolk.families import check_name, family
from kinfolk.nn.task_heads import ModelWithHead
from kinfolk.rng import Stream, generator
from kinfolk.tasks.formats.base import FileSpec, ReadReport, parse_columns, read_rows
from kinfolk.tasks.formats.detect import detect_format
from kinfolk.tasks.formulations.base import Formulation
from kinfolk.tasks.task import Task, task_class
from kinfolk.text import train as train_module
from kinfolk.text.tokenizer import Tokenizer
from kinfolk.training.config import FineTuneConfig, TrainConfig
from kinfolk.workflows.folders import find_model_folder, load_tokenizer
from kinfolk.workflows.load import load

DEV_SHARE = 0.1  # of the rows, where no file of its own is given to choose by
MAX_DEV_ROWS = 2000
DROPOUT_FIELDS = ("dropout", "attention_dropout")
OnMessage = Callable[[str], None]


@config("labelled_file")
class TaskDataset:
    """A labelled file, and how it is read."""

    train: str = field(help="file of training rows")
    guess: FileSpec = field(help="file format and task")
    dev: str | None = field(
        default=None, help="file of dev rows; None holds some training rows out"
    )
    target: str | None = field(default=None, help="file of target lines, for line-aligned text")
    dev_target: str | None = field(default=None, help="file of target lines of the dev rows")

    def train_rows(self, notes: ReadReport) -> list[Any]:
        """Read what is learned from."""
        return list(read_rows(Path(self.train), self.guess, target=self.target, report=notes))

    def with_labels(self, rows: Sequence[Any], notes: ReadReport) -> list[Any]:
        """Leave out rows without a label."""
        found = []
        cls = task_class(self.guess.task)
        for row in rows:
            if cls.reference(row) is not None:
                found.append(row)
            else:
                notes.count("rows without a label, left out, on lines", row.number)
        return found

    def split(self, notes: ReadReport) -> tuple[list[Any], list[Any]]:
        """Return the rows to learn from and those to choose by: a file's, or some of the others.

        Those are drawn alike for every seed, so that runs can be held against each other.
        """
        found = self.with_labels(self.train_rows(notes), notes)
        if self.dev is not None:
            rows = read_rows(Path(self.dev), self.guess, target=self.dev_target, report=notes)
            return found, self.with_labels([*rows], notes)
        count = min(MAX_DEV_ROWS, round(DEV_SHARE * len(found)))
        order = generator(0, Stream.SPLIT).permutation(len(found))
        kept = set(order[:count].tolist())
        learned = [row for place, row in enumerate(found) if place not in kept]
        return learned, [row for place, row in enumerate(found) if place in kept]


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

    @property
    def metric_prefixes(self) -> list[str]:
        """The prefix of each task's metrics in the log: none where there is one task."""
        numbers = range(1, len(self.formulations) + 1)
        return [""] if len(self.formulations) == 1 else [f"{number}_" for number in numbers]

    @property
    def main_metrics(self) -> dict[str, Task]:
        """The task of each main metric, by its name in the log."""
        tasks = [formulation.task for formulation in self.formulations]
        pairs = zip(self.metric_prefixes, tasks, strict=True)
        return {f"{prefix}{task.main_metric}": task for prefix, task in pairs}

    def selection_score(self, metrics: Mapping[str, float]) -> float:
        """Return the mean of the main metrics, each turned so that more is better."""
        values = [
            task.normalized(metrics[name])
            for name, task in self.main_metrics.items()
            if name in metrics
        ]
        return sum(values) / len(values)

    def write(self, path: Path) -> None:
        """Write it as JSON."""
        write_json(self, path)

    @classmethod
    def read(cls, path: Path) -> "FineTuneRecipe":
        """Read what `write` wrote."""
        found = read_json(path)
        if not isinstance(found, FineTuneRecipe):
            raise UserError(f"{path.parent} was pretrained, not fine-tuned: finetune it first")
        return found


def task_dataset(
    train: Path | str,
    dev: Path | str | None = None,
    *,
    task: str | None = None,
    columns: str | None = None,
    target: Path | None = None,
    dev_target: Path | None = None,
) -> TaskDataset:
    """Guess what a file is for, unless it is said."""
    train, dev = Path(train), None if dev is None else Path(dev)
    for file in (train, dev, target, dev_target):
        if file is not None and not file.is_file():
            raise UserError(f"{file} is not there: give a file with labelled examples")
    if (target is not None) and dev is not None and dev_target is None:
        raise UserError("--dev has no --dev-target: give the lines to be written, too")
    wanted = None if task in (None, "auto") else task_class(str(task)).name
    found = detect_format(
        train,
        task=wanted,
        columns=None if columns is None else parse_columns(columns),
        target=target,
    )
    names = {"train": train, "dev": dev, "target": target, "dev_target": dev_target}
    where = {name: None if path is None else str(path.resolve()) for name, path in names.items()}
    return TaskDataset(guess=found, **where)  # type: ignore[arg-type]


def default_train_config(config: Any, *, fresh: bool) -> TrainConfig:
    """Return the training settings of fine-tuning a network: a large one has a small rate."""
    body = config.pretrained
    kind = body.network().architecture
    common = {"batch_size": 32, "schedule": "linear", "min_lr_ratio": 0.0, "betas": (0.9, 0.999)}
    common |= {"eval_batches": 64}
    if kind == "encoder-decoder":
        return TrainConfig(**common, optimizer="adamw_rms", lr=5e-3, weight_decay=0.0)  # type: ignore[arg-type]
    # BERT's 4e-5 at width 768 (appendix A.3), more for a narrower network, and for fresh weights.
    peak = 2e-3 if kind == "recurrent" else min(2e-3, (0.12 if fresh else 0.03) / body.hidden_size)
    return TrainConfig(**common, lr=float(f"{peak:.1e}"), weight_decay=0.01)  # type: ignore[arg-type]


def with_dropout(config: Any, share: float) -> Any:
    """Return the config of a network, with a head or without, with another dropout rate."""
    body = config.pretrained
    less = body.with_fields(**dict.fromkeys(DROPOUT_FIELDS, share))
    return less if body is config else replace(config, backbone=less)


def epoch_steps(train: TrainConfig, examples: Sequence[int]) -> int:
    """Return the steps of an epoch over sets with these numbers of examples."""
    return max(1, math.ceil(sum(examples) / train.batch_size))


def resolve_steps(
    tuning: FineTuneRecipe, examples: Sequence[int], said: Sequence[str] = ()
) -> FineTuneRecipe:
    """Set steps, evaluations, checkpoints and warm-up by the number of examples."""
    train, finetune_config = tuning.train, tuning.finetune
    epoch = epoch_steps(train, examples)
    steps = max(1, math.ceil(finetune_config.epochs * epoch))
    every = max(1, math.ceil(epoch / finetune_config.evals_per_epoch))
    words = [setting.partition("=")[0] for setting in said]
    given: dict[str, Any] = {}
    if "train.steps" not in words:
        given["steps"] = steps
    if "train.eval_every" not in words:
        given["eval_every"] = every
    if "train.save_every" not in words:  # every evaluation is saved
        given["save_every"] = given.get("eval_every", train.eval_every)
    if "train.warmup" not in words:
        given["warmup"] = max(1, given.get("steps", train.steps) // 10)
    return replace(tuning, train=replace(train, **given))


def mean_and_std(scores: Sequence[float]) -> tuple[float, float]:
    """Return the mean of scores, and their standard deviation."""
    values = np.array(scores, np.float64)
    return float(values.mean()), float(values.std(ddof=1)) if len(values) > 1 else 0.0


VOCAB = 8192  # of a tokenizer that is learned from the labelled text itself


@dataclass(frozen=True, kw_only=True)
class InitialWeights:
    """A folder, or the name of a network whose weights are fresh."""

    folder: str = ""  # of a saved model
    name: str = ""  # or member/size
    tokenizer: str = ""  # of a network that is named
    from_scratch: bool = False  # forget the weights of the folder
    seed: int = 0

    @property
    def fresh(self) -> bool:
        """Whether the weights are drawn here."""
        return self.from_scratch or not self.folder

    def open(self, rows: Sequence[Sequence[Any]]) -> tuple[Any, Tokenizer]:
        """Return the network and its tokenizer; one may be learned from the rows."""
        if self.folder:
            model, tokenizer = load(self.folder)
            body: Any = model.backbone if isinstance(model, ModelWithHead) else model
            if self.from_scratch:
                torch.manual_seed(self.seed)
                body = body.config.build()
            return body, tokenizer
        tokenizer = self.open_tokenizer(rows)
        torch.manual_seed(self.seed)
        return self.config(tokenizer).build(), tokenizer

    def open_tokenizer(self, rows: Sequence[Sequence[Any]]) -> Tokenizer:
        """Open the tokenizer, or learn one from the texts."""
        if self.tokenizer:
            return load_tokenizer(self.tokenizer)
        texts = [text for some in rows for row in some for text in row.texts_and_labels]
        return train_module.train_tokenizer(
            iter(texts), kind="wordpiece", vocab_size=VOCAB, fewer=True
        )

    def config(self, tokenizer: Tokenizer) -> Any:
        """Return the network that is named."""
        name, _, size = self.name.partition("/")
        config = family(name).config(size or "tiny")
        return config.with_fields(
            vocab_size=tokenizer.vocab_size,
            decoder_start_token_id=tokenizer.special_tokens.pad,
            padding_idx=tokenizer.special_tokens.pad,
        )


def parse_initial_weights(
    model: str, *, tokenizer: Path | None = None, scratch: bool = False, seed: int = 0
) -> InitialWeights:
    """Tell a folder from a name."""
    wanted = "" if tokenizer is None else str(tokenizer)
    if Path(model).exists():
        if wanted:
            raise UserError(f"{model} has its own tokenizer: leave --tokenizer out")
        return InitialWeights(
            folder=str(find_model_folder(model).resolve()), from_scratch=scratch, seed=seed
        )
    check_name(model)
    return InitialWeights(name=model, tokenizer=wanted, seed=seed)
