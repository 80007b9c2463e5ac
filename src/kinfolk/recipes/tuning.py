"""What describes a fine-tuning run, and how it is put together from a few words."""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from kinfolk.config import config, field, read_json, write_json
from kinfolk.data.sources import documents
from kinfolk.errors import UserError
from kinfolk.recipes import ways
from kinfolk.rng import Stream, generator
from kinfolk.tasks.forms import Guess, rows
from kinfolk.tasks.guess import guess
from kinfolk.tasks.notes import Notes
from kinfolk.tasks.rows import Written
from kinfolk.tasks.scoring import truth
from kinfolk.tasks.speech import mostly_chinese
from kinfolk.tasks.tables import columns as parsed
from kinfolk.tasks.task import Task
from kinfolk.tasks.ways.way import Way
from kinfolk.training.settings import Train

HELD_OUT = 0.1  # of the rows, where no file of its own is given to choose by
MOST_HELD_OUT = 2000
DROPOUTS = ("dropout", "attention_dropout")
Say = Callable[[str], None]


@config("labelled_file")
class Sheet:
    """A labelled file, and how it is read."""

    train: str = field(help="file of training rows")
    guess: Guess = field(help="file format and task")
    dev: str | None = field(
        default=None, help="file of dev rows; None holds some training rows out"
    )
    target: str | None = field(default=None, help="file of target lines, for line-aligned text")
    dev_target: str | None = field(default=None, help="file of target lines of the dev rows")

    def learned(self, notes: Notes) -> list[Any]:
        """Read what is learned from."""
        return read(Path(self.train), self.guess, target=self.target, notes=notes)

    def known(self, rows: Sequence[Any], notes: Notes) -> list[Any]:
        """Leave out rows without a label."""
        found = []
        for row in rows:
            if labelled(self.guess.task, row):
                found.append(row)
            else:
                notes.add("rows without a label, left out, on lines", row.number)
        return found

    def parted(self, notes: Notes) -> tuple[list[Any], list[Any]]:
        """Return the rows to learn from and those to choose by: a file's, or some of the others.

        Those are drawn alike for every seed, so that runs can be held against each other.
        """
        found = self.known(self.learned(notes), notes)
        if self.dev is not None:
            rows = read(Path(self.dev), self.guess, target=self.dev_target, notes=notes)
            return found, self.known(rows, notes)
        count = min(MOST_HELD_OUT, round(HELD_OUT * len(found)))
        order = generator(0, Stream.SPLIT).permutation(len(found))
        kept = set(order[:count].tolist())
        learned = [row for place, row in enumerate(found) if place not in kept]
        return learned, [row for place, row in enumerate(found) if place in kept]


@config("finetune_config")
class Habits:
    """How fine-tuning differs from pretraining."""

    epochs: float = field(default=3.0, gt=0, help="number of passes over the training rows")
    shrink: float = field(
        default=1.0,
        gt=0,
        le=1,
        help="learning rate of each layer relative to the one above (layer-wise decay)",
    )
    thaw: bool = field(
        default=False, help="unfreeze one more layer every epoch, from the top (gradual unfreezing)"
    )
    noise: float = field(
        default=0.0,
        ge=0,
        help="noise added to the initial weights, relative to their deviation (NoisyTune)",
    )
    attack: float = field(
        default=0.0,
        ge=0,
        help="size of adversarial perturbations of the embeddings (FGM); 0 for none",
    )
    dropout: float | None = field(
        default=None, ge=0, lt=1, help="dropout rate of the network; None keeps its own"
    )
    patience: int = field(
        default=0,
        ge=0,
        help="number of evaluations without improvement before stopping; 0 never stops",
    )
    weights: Literal["none", "balanced"] = field(
        default="none", help="class weights: balanced weighs rare classes more"
    )
    temperature: float = field(
        default=1.0,
        gt=0,
        help="temperature of the mixture of several files; a high one mixes equally",
    )
    scores: int = field(default=1, ge=1, help="number of evaluations on the dev rows in an epoch")


@config("finetune")
class Tuning:
    """The network it starts from, the tasks, how each is solved, and the settings."""

    name: str = field(help="model family")
    start: str = field(help="folder of the initial weights; empty for new ones")
    model: Any = field(group="model", help="network")
    ways: tuple[Way, ...] = field(group="formulation", help="how each file's task is solved")
    sheets: tuple[Sheet, ...] = field(group="file", help="labelled files")
    train: Train = field(help="training settings")
    habits: Habits = field(default=Habits(), help="settings of fine-tuning alone")
    teacher: str = field(default="", help="fine-tuned run to distil from; empty for none")

    def write(self, path: Path) -> None:
        """Write it as JSON."""
        write_json(self, path)

    @classmethod
    def read(cls, path: Path) -> "Tuning":
        """Read what `write` wrote."""
        found = read_json(path)
        if not isinstance(found, Tuning):
            raise UserError(f"{path.parent} was pretrained, not fine-tuned: finetune it first")
        return found


def read(
    path: Path, guess: Guess, *, target: str | Path | None = None, notes: Notes | None = None
) -> list[Any]:
    """Read all rows of a labelled file."""
    if guess.task == "lm":
        return [Written("", one.text, number) for number, one in enumerate(documents([path]), 1)]
    where = None if target is None else Path(target)
    return list(rows(path, guess, target=where, notes=notes))


def labelled(kind: str, row: Any) -> bool:
    """Say whether a row can be learned from."""
    return truth(Task(kind=kind), row) is not None


def sheet(
    train: Path | str,
    dev: Path | str | None = None,
    *,
    task: str | None = None,
    columns: str | None = None,
    target: Path | None = None,
    dev_target: Path | None = None,
) -> Sheet:
    """Guess what a file is for, unless it is said."""
    train, dev = Path(train), None if dev is None else Path(dev)
    for file in (train, dev, target, dev_target):
        if file is not None and not file.is_file():
            raise UserError(f"{file} is not there: give a file with labelled examples")
    if (target is not None) and dev is not None and dev_target is None:
        raise UserError("--dev has no --dev-target: give the lines to be written, too")
    wanted = None if task in (None, "auto") else task
    found = guess(
        train,
        task=wanted,  # type: ignore[arg-type]
        columns=None if columns is None else parsed(columns),
        target=target,
    )
    names = {"train": train, "dev": dev, "target": target, "dev_target": dev_target}
    where = {name: None if path is None else str(path.resolve()) for name, path in names.items()}
    return Sheet(guess=found, **where)  # type: ignore[arg-type]


def asked(
    sheet: Sheet,
    learned: Sequence[Any],
    *,
    metric: str | None = None,
    positive: str | None = None,
    prefix: str | None = None,
) -> Task:
    """Describe the task of a file by its rows."""
    kind = sheet.guess.task
    labels: tuple[str, ...] = ()
    if kind == "classify":
        labels = in_order({str(row.label) for row in learned})
        if len(labels) < 2:
            raise UserError(
                f"every row of {sheet.train} has the label {', '.join(labels) or 'none'}: there is "
                "nothing to tell apart; give rows of two classes or more"
            )
        if positive is not None and positive not in labels:
            raise UserError(f"--positive {positive} is no class: there are {', '.join(labels)}")
        if positive is None and len(labels) == 2:
            positive = labels[1]
    if kind == "tag":
        labels = in_order({tag for row in learned for tag in row.tags})
    texts = [sample(row) for row in learned[:50]]
    return Task(
        kind=kind,
        labels=labels,
        metric=metric or "",
        positive=positive if kind == "classify" else None,
        pair=kind in ("classify", "regress") and len(learned[0].texts) == 2,
        prefix=prefix or "",
        chinese=mostly_chinese(texts),
    )


def sample(row: Any) -> str:
    """Return some text of a row."""
    for name in ("texts", "context", "source", "words"):
        if hasattr(row, name):
            found = getattr(row, name)
            return found if isinstance(found, str) else " ".join(found)
    return str(row)


def in_order(labels: set[str]) -> tuple[str, ...]:
    """Sort labels, numbers by their size and "O" before all other tags."""

    def size(label: str) -> tuple[int, float, str]:
        try:
            return 1, float(label), label
        except ValueError:
            return (0 if label == "O" else 2), 0.0, label

    return tuple(sorted(labels, key=size))


def balanced(task: Task, learned: Sequence[Any]) -> tuple[float, ...]:
    """Return a weight for each class, so that all weigh alike and an example 1 on average."""
    if task.kind == "tag":
        counts = Counter(tag for row in learned for tag in row.tags)
    else:
        counts = Counter(str(row.label) for row in learned)
    whole = sum(counts.values())
    return tuple(round(whole / (len(task.labels) * counts[label]), 6) for label in task.labels)


def usual(config: Any, *, fresh: bool) -> Train:
    """Return the settings of fine-tuning a network: small steps for a large one."""
    body = config.pretrained
    kind = ways.Nature.of(body).kind
    common = {"batch": 32, "schedule": "linear", "floor": 0.0, "betas": (0.9, 0.999)}
    common |= {"evaluate_batches": 64}
    if kind == "encoder-decoder":
        return Train(**common, optimiser="adamw_rms", peak=5e-3, decay=0.0)  # type: ignore[arg-type]
    # BERT's 4e-5 at width 768 (appendix A.3), more for a narrower network, and for fresh weights.
    peak = 2e-3 if kind == "recurrent" else min(2e-3, (0.12 if fresh else 0.03) / body.hidden_size)
    return Train(**common, peak=float(f"{peak:.1e}"), decay=0.01)  # type: ignore[arg-type]


def dropping(config: Any, share: float) -> Any:
    """Return a network, with a head or without, that drops a share of its units as it learns."""
    body = config.pretrained
    less = body.with_fields(**dict.fromkeys(DROPOUTS, share))
    return less if body is config else replace(config, backbone=less)


def epoch_steps(train: Train, examples: Sequence[int]) -> int:
    """Return the steps of an epoch over sets with so many examples."""
    return max(1, math.ceil(sum(examples) / train.batch))


def timed(tuning: Tuning, examples: Sequence[int], said: Sequence[str] = ()) -> Tuning:
    """Set how many steps a run has, and when it is scored, by how many examples there are."""
    train, habits = tuning.train, tuning.habits
    epoch = epoch_steps(train, examples)
    steps = max(1, math.ceil(habits.epochs * epoch))
    every = max(1, math.ceil(epoch / habits.scores))
    words = [setting.partition("=")[0] for setting in said]
    given: dict[str, Any] = {}
    if "train.steps" not in words:
        given["steps"] = steps
    if "train.evaluate_every" not in words:
        given["evaluate_every"] = every
    if "train.save_every" not in words:  # what is scored is saved
        given["save_every"] = given.get("evaluate_every", train.evaluate_every)
    if "train.warmup" not in words:
        given["warmup"] = max(1, given.get("steps", train.steps) // 10)
    return replace(tuning, train=replace(train, **given))


def weighty(way: Way, learned: Sequence[Any], habits: Habits) -> Way:
    """Let rare classes weigh more, where it is wished."""
    if habits.weights == "none":
        return way
    if not hasattr(way, "weights"):
        raise UserError(f"the way {way.name!r} weighs no classes: leave --class-weights out")
    return replace(way, weights=balanced(way.task, learned))  # type: ignore[call-arg]


def spread(scores: Sequence[float]) -> tuple[float, float]:
    """Return the mean of some scores, and how far they lie apart (the standard deviation)."""
    values = np.array(scores, np.float64)
    return float(values.mean()), float(values.std(ddof=1)) if len(values) > 1 else 0.0
