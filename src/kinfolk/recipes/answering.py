"""Asking a fine-tuned model: what it learned, its answers to rows, and how good they are."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from kinfolk.config import read_type, type_name
from kinfolk.errors import UserError
from kinfolk.metrics import translation
from kinfolk.metrics.bootstrap import Interval, interval, mean_interval
from kinfolk.metrics.summaries import rouges
from kinfolk.metrics.tags import pooled, tallies
from kinfolk.nn.task_heads import ModelWithHead
from kinfolk.recipes import ways
from kinfolk.recipes.opening import load, model_folder
from kinfolk.recipes.pretraining import pick
from kinfolk.recipes.tuning import Tuning, read
from kinfolk.tasks.forms import Guess
from kinfolk.tasks.forms import rows as streamed
from kinfolk.tasks.guess import guess
from kinfolk.tasks.lessons import answers
from kinfolk.tasks.notes import Notes
from kinfolk.tasks.records import text_lines
from kinfolk.tasks.rows import Asked, Choice, Completion, Labelled, Tagged, Written
from kinfolk.tasks.scoring import score, truth
from kinfolk.tasks.tables import Columns
from kinfolk.tasks.tables import columns as parsed
from kinfolk.tasks.task import Answer, Task
from kinfolk.tasks.ways.way import Way
from kinfolk.text.tokenizer import Tokenizer

KINDS = {"text": "classify", "tokens": "tag", "span": "span", "choice": "choose", "coref": "coref"}


@dataclass(frozen=True, eq=False)
class Solver:
    """A network that learned a task, and how it is asked."""

    model: Any
    tokenizer: Tokenizer
    way: Way
    guess: Guess | None = None  # how the file was read that it learned from

    @property
    def task(self) -> Task:
        """What it learned."""
        return self.way.task

    def ask(self, *texts: str) -> Answer:
        """Answer one question: a text or a pair, a context and its options, a question and context.

        `solver("runs/triage").ask("The invoice was never paid.").value`
        """
        rows: dict[str, Callable[[], Any]] = {
            "classify": lambda: Labelled(texts, None, 1),
            "regress": lambda: Labelled(texts, None, 1),
            "choose": lambda: Choice(texts[0], texts[1:], None, 1),
            "tag": lambda: Tagged(tuple(texts[0].split() if len(texts) == 1 else texts), None, 1),
            "span": lambda: Asked("1", texts[1], texts[0], (), True, 1),
            "write": lambda: Written(texts[0], None, 1),
            "complete": lambda: Completion(texts[0], None, texts[1:] or None, 1),
        }
        if self.task.kind not in rows:
            raise UserError(f"a {self.task.kind} model is asked about whole rows: use `answers`")
        least = 2 if self.task.kind in ("span", "choose") or self.task.pair else 1
        if len(texts) < least:
            raise UserError(f"{len(texts)} texts are too few to {self.task.kind}: give {least}")
        return self.answers([rows[self.task.kind]()])[0]

    def answers(
        self, rows: Sequence[Any], *, watch: Callable[[int], None] = lambda done: None
    ) -> list[Answer]:
        """Answer rows, in their order."""
        return answers(self.way, self.model, rows, self.tokenizer, watch=watch)


def solver(path: Path | str, *, device: str = "auto", number: int = 0) -> Solver:
    """Open what was fine-tuned here or elsewhere; of several tasks, the one with a number."""
    folder = model_folder(path)
    model, tokenizer = load(folder)
    model.to(pick(device))
    notes = folder / "kinfolk.json"
    if notes.is_file() and tuned(notes):
        tuning = Tuning.read(notes)
        if not 0 <= number < len(tuning.ways):
            raise UserError(
                f"{path} learned {len(tuning.ways)} tasks: there is no task {number + 1}"
            )
        return Solver(model, tokenizer, tuning.ways[number], tuning.sheets[number].guess)
    if not isinstance(model, ModelWithHead):
        raise UserError(
            f"{path} was not fine-tuned: finetune it on a labelled file, or ask it as it is with "
            "--way prompt"
        )
    return Solver(model, tokenizer, foreign(model, tokenizer))


def tuned(notes: Path) -> bool:
    """Say whether the notes of a model folder are those of a fine-tuning run."""
    return read_type(notes) == type_name(Tuning)


def foreign(model: ModelWithHead, tokenizer: Tokenizer) -> Way:
    """Find how a network that was fine-tuned elsewhere is asked."""
    c = model.config
    kind = "regress" if c.regression else KINDS[c.head]
    labels = c.labels if kind in ("classify", "tag") else ()
    task = Task(kind=kind, labels=labels)
    if ways.Nature.of(c.backbone).kind == "decoder" and kind in ("classify", "regress"):
        # As transformers reads it: the text, and nothing around it.
        return ways.build(ways.Bare, task, c.backbone, tokenizer)
    return ways.build(ways.choose(c.backbone, kind, "head"), task, c.backbone, tokenizer)


def asked(
    found: Solver,
    file: Path,
    *,
    columns: str | None = None,
    target: Path | None = None,
    labelled: bool = True,
    notes: Notes | None = None,
) -> tuple[list[Any], Guess]:
    """Read a file as that was read which the model learned from, where it is like it."""
    for path in (file, target):
        if path is not None and not path.is_file():
            raise UserError(f"{path} is not there: give a file with examples")
    kind: Any = found.task.kind
    if columns is not None:
        known = guess(file, task=kind, columns=parsed(columns))
    elif found.guess is not None and found.guess.form != "parallel" and target is None:
        known = likened(file, found.guess, labelled=labelled)
    elif kind == "write" and target is None and found.guess is not None:
        return lines(file), found.guess
    else:
        known = guess(file, task=kind, target=target)
    known = known if labelled else blank(known)
    return read(file, known, target=target, notes=notes), known


def likened(file: Path, known: Guess, *, labelled: bool) -> Guess:
    """Return how a file is read: as another, or, where its first row is not like it, by a guess."""
    known = known if labelled else blank(known)
    if known.task == "lm":
        return known
    try:
        next(streamed(file, known), None)
    except UserError as error:
        try:
            found = guess(file, task=known.task)
            next(streamed(file, found if labelled else blank(found)), None)
        except UserError:
            raise error from None
        return found
    return known


def blank(known: Guess) -> Guess:
    """Read a file without its labels, which it may lack."""
    if known.form not in ("table", "columns", "digits") or known.columns is None:
        return known
    return replace(known, columns=Columns(known.columns.texts, None))


def long(found: Solver, rows: Sequence[Any]) -> list[str]:
    """Say how many rows are longer than what is read at a time, and what becomes of them."""
    asked = [found.way.questions(row, found.tokenizer) for row in rows]
    cut = sum(any(one.cut for one in some) for some in asked)
    parted = sum(len(some) > 1 for some in asked)
    size = f"{found.way.length} tokens"
    return [
        f"{count:,} of {len(rows):,} rows are {what} {size}"
        for count, what in ((cut, "cut to"), (parted, "read in parts of"))
        if count
    ]


def lines(file: Path) -> list[Any]:
    """Read texts to be written about, one a line."""
    return [Written(line, None, number) for number, line in text_lines(file)]


@dataclass(frozen=True)
class Verdict:
    """How good the answers to a file are."""

    task: Task
    rows: list[Any]
    answers: list[Answer]
    scores: dict[str, float]
    interval: Interval  # of the main metric
    unseen: dict[str, int]  # labels that training had not, and how often each is right


def judge(
    found: Solver,
    rows: list[Any],
    *,
    draws: int = 1000,
    seed: int = 0,
    watch: Callable[[int], None] = lambda done: None,
) -> Verdict:
    """Answer rows and score the answers, the main metric with its interval."""
    task = found.task
    check(task, rows)
    said = found.answers(rows, watch=watch)
    scores = score(task, rows, said)
    bounds = bounded(task, rows, said, draws=draws, seed=seed)
    return Verdict(task, rows, said, scores, bounds, strangers(task, rows))


def check(task: Task, rows: Sequence[Any]) -> None:
    """Refuse rows that nothing can be scored on, before anything is answered."""
    if not rows:
        raise UserError("there are no rows to score: give a file with labelled examples")
    for row in rows:
        if truth(task, row) is None:
            raise UserError(f"row {row.number:,} has no label to score against: predict it instead")


def bounded(
    task: Task, rows: Sequence[Any], said: Sequence[Answer], *, draws: int, seed: int
) -> Interval:
    """Return the main metric with its interval; where it is a mean over rows, that is faster."""
    match task.kind, task.main:
        case ("classify" | "choose" | "complete", "accuracy") | ("span", _):
            each = [
                score(task, [row], [one])[task.main] for row, one in zip(rows, said, strict=True)
            ]
            return mean_interval(each, draws=draws, seed=seed)
        case "tag", "f1" if any(tag[:2] in ("B-", "I-") for tag in task.labels):
            counts = tallies([one.value for one in said], [truth(task, row) for row in rows])
            return interval(pooled, counts, draws=draws, seed=seed)
        case "write", name:
            texts, references = [one.value for one in said], [row.references for row in rows]
            few = min(draws, 100)
            if name.startswith("rouge"):
                parts = {"rouge1": "one", "rouge2": "two", "rougeL": "longest"}
                each = [getattr(one, parts[name]) for one in rouges(texts, references)]
                return interval(lambda some: sum(some) / len(some), each, draws=few, seed=seed)
            metric = translation.metric(name, references)
            found = list(translation.statistics(metric, texts, references))
            return interval(partial(translation.total, metric), found, draws=few, seed=seed)
    fewer = {"coref": 200, "tag": 200}.get(task.kind, draws)
    return interval(
        lambda some, known: score(task, some, known)[task.main],
        rows,
        said,
        draws=min(draws, fewer),
        seed=seed,
    )


def strangers(task: Task, rows: Sequence[Any]) -> dict[str, int]:
    """Count the labels that training had not: nobody could have named them."""
    if task.kind not in ("classify", "tag"):
        return {}
    known = set(task.labels)
    counts: dict[str, int] = {}
    for row in rows:
        right = truth(task, row)
        for label in (right,) if task.kind == "classify" else right:
            if label not in known:
                counts[label] = counts.get(label, 0) + 1
    return counts
