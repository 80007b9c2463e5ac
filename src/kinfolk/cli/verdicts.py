"""`evaluate --test`: the scores of a model on labelled rows, and where it goes wrong."""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.markup import escape
from rich.table import Column, Table

from kinfolk.cli.answers import stepwise
from kinfolk.cli.app import console, print_json
from kinfolk.cli.tasks import say
from kinfolk.cli.translate import progress as watching
from kinfolk.errors import UserError

if TYPE_CHECKING:
    from kinfolk.tasks.formats.base import ReadReport
    from kinfolk.tasks.task import EvaluationResult
    from kinfolk.workflows.predict import Predictor

LETTERS = 60  # of a text in the table of mistakes
TYPES = 20  # classes with their scores; the page has more


@dataclass(frozen=True, kw_only=True)
class Question:
    """What is asked of a model, and how: fields that are None were not said."""

    test: Path
    target: Path | None = None
    columns: str | None = None
    number: int = 1  # of the task, where a model learned several
    device: str = "auto"


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """How a model is asked that learned no task: fields that are None were not said."""

    way: str | None = None
    shots: int | None = None
    train: Path | None = None
    task: str | None = None
    pattern: str | None = None
    words: str | None = None
    length: int | None = None
    seed: int | None = None

    @property
    def said(self) -> list[str]:
        """The names of what was said."""
        names = [field.name for field in fields(self) if field.name != "length"]
        return [name for name in names if getattr(self, name) is not None]


def test(model: Path, question: Question, prompt: Prompt, *, out: Path | None, json: bool) -> None:
    """Score a model on labelled rows, print how good it is, and write a page about it."""
    from kinfolk.tasks.error_analysis import to_plain
    from kinfolk.tasks.formats.base import ReadReport
    from kinfolk.workflows.check_labels import format_counts
    from kinfolk.workflows.predict import (
        evaluate_rows,
        truncation_report,
        write_evaluation_page,
    )

    if out is not None and out.is_dir():
        raise UserError(f"{out} is a folder: give -o the name of a page, such as {out}/test.html")
    notes = ReadReport()
    found, rows = opened(model, question, prompt, notes)
    found.task.check_references(rows)
    told = [*notes.messages(), *truncation_report(found, rows)]
    with watching("test", len(rows), shown=False) as watch:
        verdict = evaluate_rows(found, rows, watch=stepwise(watch))
    if verdict.unseen_labels:
        told.append(
            f"{sum(verdict.unseen_labels.values()):,} labels were not there in training, "
            "and count as "
            f"wrong: {format_counts(verdict.unseen_labels)}"
        )
    for sentence in told:
        say(sentence)
    if out is None and (model / "scores.json").is_file():
        out = model / f"test-{question.test.name.partition('.')[0]}.html"
    if out is not None:
        title = f"{model.resolve().name} on {question.test.name}"
        details = facts(found, question)
        write_evaluation_page(verdict, out, title=title, details=details, notes=told)
    if json:
        # Scores are also at the top level, where programs look for `accuracy` or `f1`.
        page = None if out is None else str(out)
        print_json({**verdict.scores, **to_plain(verdict), "page": page})
        return
    show(verdict)
    if out is not None:
        print(f"\nthe pictures are in {out}")


def opened(
    model: Path, question: Question, prompt: Prompt, notes: "ReadReport"
) -> tuple["Predictor", list[Any]]:
    """Open the model and read the rows."""
    from kinfolk.tasks.formats.labelled_file import LabelledFile
    from kinfolk.workflows.predict import few_shot_predictor, load_predictor, read_test_file

    if not prompt.said:
        if prompt.length is not None:
            raise UserError("a fine-tuned model reads as it learned to: leave --length out")
        found = load_predictor(model, device=question.device, number=question.number - 1)
        rows, _ = read_test_file(
            found,
            LabelledFile(question.test, target=question.target),
            columns=question.columns,
            report=notes,
        )
        return found, rows
    if prompt.way not in (None, "prompt"):
        raise UserError(
            f"--way {prompt.way}: a model is asked as it was taught, or by prompt; to teach it "
            "another way, finetune it"
        )
    return few_shot_predictor(
        model,
        question.test,
        train=prompt.train,
        shots=prompt.shots or 0,
        seed=prompt.seed or 0,
        task=prompt.task,
        columns=question.columns,
        target=question.target,
        pattern=prompt.pattern,
        words=None if prompt.words is None else prompt.words.split(","),
        length=prompt.length,
        device=question.device,
        notes=notes,
    )


def facts(found: "Predictor", question: Question) -> list[tuple[str, str]]:
    """Say what was asked of whom."""
    shots = getattr(found.formulation, "examples", None)
    said = [
        ("task", found.task.kind),
        ("member", found.model.family_name),
        ("way", found.formulation.name),
        ("tokens read at a time", f"{found.formulation.max_length:,}"),
        ("file", question.test.name),
    ]
    if found.task.labels:
        said.append(("labels", f"{len(found.task.labels):,}"))
    return said if shots is None else [*said, ("solved rows in the prompt", str(len(shots)))]


def show(verdict: "EvaluationResult") -> None:
    """Print scores, confusions, classes and the worst mistakes."""
    from kinfolk.tasks import error_analysis
    from kinfolk.tasks.task import format_score, metric_title

    main, bounds = verdict.task.main_metric, verdict.confidence_interval
    table = Table(box=None, show_header=False, pad_edge=False)
    for name, value in verdict.scores.items():
        between = f"{format_score(name, bounds.low)} to {format_score(name, bounds.high)}"
        table.add_row(
            metric_title(name), format_score(name, value), between if name == main else ""
        )
    table.add_row("rows", f"{len(verdict.rows):,}", "")
    console.print(table)
    confused = error_analysis.confusion_table(verdict)
    if confused is not None:
        names = [escape(str(label)) for label in confused.labels]
        columns = [Column(name, justify="right", overflow="ellipsis") for name in names]
        called = Table("is \\ said", *columns, box=None, pad_edge=False)
        for name, counts in zip(names, confused.counts, strict=True):
            called.add_row(name, *(f"{count:,}" if count else "·" for count in counts))
        headed("what is taken for what", called)
    each = error_analysis.per_class_scores(verdict)
    if each:
        columns = [Column(n, justify="right") for n in ("precision", "recall", "F1", "there are")]
        alone = Table("", *columns, box=None, pad_edge=False)
        for label, one in list(each.items())[:TYPES]:
            shares = [f"{value:.3f}" for value in (one.precision, one.recall, one.f1)]
            alone.add_row(escape(label), *shares, f"{one.support:,}")
        headed("each by itself", alone)
    worst = error_analysis.worst_errors(verdict)
    if worst:
        wrong = Table("row", "text", "right", "said", "sure", box=None, pad_edge=False)
        for mistake in worst:
            cells = (mistake.text, mistake.right, mistake.said)
            sure = "" if mistake.probability is None else f"{mistake.probability:.1%}"
            wrong.add_row(f"{mistake.number:,}", *(escape(short(cell)) for cell in cells), sure)
        headed("the worst mistakes", wrong)


def headed(title: str, table: Table) -> None:
    """Print a table under its title."""
    console.print(f"\n[bold]{title}[/]")
    console.print(table)


def short(text: str) -> str:
    """Cut a text to what fits, in one line."""
    line = " ".join(text.split())
    return line if len(line) <= LETTERS else f"{line[: LETTERS - 1]}…"
