"""Open a fine-tuned or a pretrained model, predict labelled rows and score the predictions."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kinfolk.config import read_type, type_name
from kinfolk.errors import UserError
from kinfolk.nn.task_heads import ModelWithHead
from kinfolk.rng import Stream, generator
from kinfolk.tasks.formats.base import ReadReport, read_lines
from kinfolk.tasks.formats.detect import detect_format
from kinfolk.tasks.formats.registry import FileSpec
from kinfolk.tasks.formats.registry import read_rows as streamed
from kinfolk.tasks.formats.table import Columns
from kinfolk.tasks.formats.table import parse_columns as parsed
from kinfolk.tasks.formulations.base import Formulation
from kinfolk.tasks.instances import predict_rows
from kinfolk.tasks.rows import (
    CompletionRow,
    LabelledText,
    MultipleChoiceRow,
    QuestionRow,
    SourceTarget,
    TaggedSentence,
)
from kinfolk.tasks.scoring import EvaluationResult, main_metric_interval, reference, score
from kinfolk.tasks.task import Prediction, Task
from kinfolk.text.tokenizer import Tokenizer
from kinfolk.training.run import select_device
from kinfolk.workflows import formulations
from kinfolk.workflows.finetune_recipe import (
    FineTuneRecipe,
    TaskDataset,
    has_label,
    infer_task,
    read_labelled_rows,
    task_dataset,
)
from kinfolk.workflows.folders import find_model_folder
from kinfolk.workflows.load import load

TASK_OF_HEAD = {
    "text": "classify",
    "tokens": "tag",
    "span": "span",
    "choice": "choose",
    "coref": "coref",
}


@dataclass(frozen=True, eq=False)
class Predictor:
    """A network that learned a task, and how it is asked."""

    model: Any
    tokenizer: Tokenizer
    formulation: Formulation
    file_spec: FileSpec | None = None  # how the file was read that it learned from

    @property
    def task(self) -> Task:
        """What it learned."""
        return self.formulation.task

    def predict_one(self, *texts: str) -> Prediction:
        """Answer one question: a text or a pair, a context and its options, a question and context.

        `load_predictor("runs/triage").predict_one("The invoice was never paid.").value`
        """
        rows: dict[str, Callable[[], Any]] = {
            "classify": lambda: LabelledText(texts, None, 1),
            "regress": lambda: LabelledText(texts, None, 1),
            "choose": lambda: MultipleChoiceRow(texts[0], texts[1:], None, 1),
            "tag": lambda: TaggedSentence(
                tuple(texts[0].split() if len(texts) == 1 else texts), None, 1
            ),
            "span": lambda: QuestionRow("1", texts[1], texts[0], (), True, 1),
            "write": lambda: SourceTarget(texts[0], None, 1),
            "complete": lambda: CompletionRow(texts[0], None, texts[1:] or None, 1),
        }
        if self.task.kind not in rows:
            raise UserError(f"a {self.task.kind} model is asked about whole rows: use `answers`")
        least = 2 if self.task.kind in ("span", "choose") or self.task.is_pair else 1
        if len(texts) < least:
            raise UserError(f"{len(texts)} texts are too few to {self.task.kind}: give {least}")
        return self.answers([rows[self.task.kind]()])[0]

    def answers(
        self, rows: Sequence[Any], *, watch: Callable[[int], None] = lambda done: None
    ) -> list[Prediction]:
        """Answer rows, in their order."""
        return predict_rows(self.formulation, self.model, rows, self.tokenizer, watch=watch)


def load_predictor(path: Path | str, *, device: str = "auto", number: int = 0) -> Predictor:
    """Open what was fine-tuned here or elsewhere; of several tasks, the one with a number."""
    folder = find_model_folder(path)
    model, tokenizer = load(folder)
    model.to(select_device(device))
    notes = folder / "kinfolk.json"
    if notes.is_file() and is_finetuned(notes):
        tuning = FineTuneRecipe.read(notes)
        if not 0 <= number < len(tuning.formulations):
            raise UserError(
                f"{path} learned {len(tuning.formulations)} tasks: there is no task {number + 1}"
            )
        return Predictor(
            model, tokenizer, tuning.formulations[number], tuning.datasets[number].guess
        )
    if not isinstance(model, ModelWithHead):
        raise UserError(
            f"{path} was not fine-tuned: finetune it on a labelled file, or ask it as it is with "
            "--way prompt"
        )
    return Predictor(model, tokenizer, formulation_of_hf_model(model, tokenizer))


def is_finetuned(notes: Path) -> bool:
    """Say whether the notes of a model folder are those of a fine-tuning run."""
    return read_type(notes) == type_name(FineTuneRecipe)


def formulation_of_hf_model(model: ModelWithHead, tokenizer: Tokenizer) -> Formulation:
    """Find how a network that was fine-tuned elsewhere is asked."""
    c = model.config
    kind = "regress" if c.regression else TASK_OF_HEAD[c.head]
    labels = c.labels if kind in ("classify", "tag") else ()
    task = Task(kind=kind, labels=labels)
    if c.backbone.network().architecture == "decoder" and kind in ("classify", "regress"):
        # As transformers reads it: the text, and nothing around it.
        return formulations.build_formulation(
            formulations.BareCausalHead, task, c.backbone, tokenizer
        )
    return formulations.build_formulation(
        formulations.choose_formulation(c.backbone, kind, "head"), task, c.backbone, tokenizer
    )


def read_test_file(
    found: Predictor,
    file: Path,
    *,
    columns: str | None = None,
    target: Path | None = None,
    labelled: bool = True,
    notes: ReadReport | None = None,
) -> tuple[list[Any], FileSpec]:
    """Read a file as that was read which the model learned from, where it is like it."""
    for path in (file, target):
        if path is not None and not path.is_file():
            raise UserError(f"{path} is not there: give a file with examples")
    kind: Any = found.task.kind
    if columns is not None:
        known = detect_format(file, task=kind, columns=parsed(columns))
    elif found.file_spec is not None and found.file_spec.format != "parallel" and target is None:
        known = match_format(file, found.file_spec, labelled=labelled)
    elif kind == "write" and target is None and found.file_spec is not None:
        return read_sources(file), found.file_spec
    else:
        known = detect_format(file, task=kind, target=target)
    known = known if labelled else without_labels(known)
    return read_labelled_rows(file, known, target=target, notes=notes), known


def match_format(file: Path, known: FileSpec, *, labelled: bool) -> FileSpec:
    """Return how a file is read: as another, or, where its first row is not like it, by a guess."""
    known = known if labelled else without_labels(known)
    if known.task == "lm":
        return known
    try:
        next(streamed(file, known), None)
    except UserError as error:
        try:
            found = detect_format(file, task=known.task)
            next(streamed(file, found if labelled else without_labels(found)), None)
        except UserError:
            raise error from None
        return found
    return known


def without_labels(known: FileSpec) -> FileSpec:
    """Read a file without its labels, which it may lack."""
    if known.format not in ("table", "columns", "digits") or known.columns is None:
        return known
    return replace(known, columns=Columns(known.columns.texts, None))


def truncation_report(found: Predictor, rows: Sequence[Any]) -> list[str]:
    """Say how many rows are longer than what is read at a time, and what becomes of them."""
    asked = [found.formulation.inference_instances(row, found.tokenizer) for row in rows]
    cut = sum(any(one.truncated_tokens for one in some) for some in asked)
    parted = sum(len(some) > 1 for some in asked)
    size = f"{found.formulation.max_length} tokens"
    return [
        f"{count:,} of {len(rows):,} rows are {what} {size}"
        for count, what in ((cut, "cut to"), (parted, "read in parts of"))
        if count
    ]


def read_sources(file: Path) -> list[Any]:
    """Read texts to be written about, one a line."""
    return [SourceTarget(line, None, number) for number, line in read_lines(file)]


def evaluate_rows(
    found: Predictor,
    rows: list[Any],
    *,
    n_resamples: int = 1000,
    seed: int = 0,
    watch: Callable[[int], None] = lambda done: None,
) -> EvaluationResult:
    """Answer rows and score the answers, the main metric with its interval."""
    task = found.task
    require_labels(task, rows)
    said = found.answers(rows, watch=watch)
    scores = score(task, rows, said)
    bounds = main_metric_interval(task, rows, said, n_resamples=n_resamples, seed=seed)
    return EvaluationResult(task, rows, said, scores, bounds, unseen_labels(task, rows))


def require_labels(task: Task, rows: Sequence[Any]) -> None:
    """Refuse rows that nothing can be scored on, before anything is answered."""
    if not rows:
        raise UserError("there are no rows to score: give a file with labelled examples")
    for row in rows:
        if reference(task, row) is None:
            raise UserError(f"row {row.number:,} has no label to score against: predict it instead")


def unseen_labels(task: Task, rows: Sequence[Any]) -> dict[str, int]:
    """Count the labels that training had not: nobody could have named them."""
    if task.kind not in ("classify", "tag"):
        return {}
    known = set(task.labels)
    counts: dict[str, int] = {}
    for row in rows:
        right = reference(task, row)
        for label in (right,) if task.kind == "classify" else right:
            if label not in known:
                counts[label] = counts.get(label, 0) + 1
    return counts


def few_shot_predictor(
    model: Path | str,
    test: Path,
    *,
    train: Path | None = None,
    shots: int = 0,
    seed: int = 0,
    task: str | None = None,
    columns: str | None = None,
    target: Path | None = None,
    pattern: str | None = None,
    words: Sequence[str] | None = None,
    length: int | None = None,
    device: str = "auto",
    notes: ReadReport | None = None,
) -> tuple[Predictor, list[Any]]:
    """Open a model that is asked as it is, and the rows it is asked about.

    Its labels are those of the training file, from which the solved rows are drawn, or else those
    of the test.
    """
    if shots < 0:
        raise UserError(f"--shots {shots}: use 0 or more")
    if shots and train is None:
        raise UserError(
            f"--shots {shots} are solved rows: give the file to draw them from, --train"
        )
    notes = notes or ReadReport()
    file = task_dataset(test, task=task, columns=columns, target=target)
    rows = file.train_rows(notes)
    known = rows if train is None else fewshot_rows(train, file, notes)
    network, tokenizer = load(model)
    network.to(select_device(device))
    body: Any = network.backbone if isinstance(network, ModelWithHead) else network
    asking = infer_task(file, [row for row in known if has_label(file.guess.task, row)])
    kind = formulations.choose_formulation(body.config, asking.kind, "prompt")
    if words is not None and len(words) != len(asking.labels):
        raise UserError(
            f"--words {','.join(words)}: {len(words)} words for {len(asking.labels)} classes; give "
            f"one for each of {', '.join(asking.labels)}"
        )
    way: Any = formulations.build_formulation(
        kind,
        asking,
        body.config,
        tokenizer,
        length=length,
        pattern=pattern,
        verbalizer=None if words is None else tuple(words),
    )
    way = replace(
        way, examples=tuple(way.format_example(row) for row in sample_fewshot(known, shots, seed))
    )
    return Predictor(body, tokenizer, way, file.guess), rows


def fewshot_rows(train: Path, file: TaskDataset, notes: ReadReport) -> list[Any]:
    """Read the rows that solved ones are drawn from, in the form of the test or its own."""
    if not train.is_file():
        raise UserError(f"{train} is not there: give a file with labelled examples")
    try:
        found = read_labelled_rows(train, file.guess, notes=notes)
    except UserError:
        found = task_dataset(train, task=file.guess.task).train_rows(notes)
    rows = [row for row in found if has_label(file.guess.task, row)]
    if not rows:
        raise UserError(f"{train} has no labelled row: there is nothing to show as solved")
    return rows


def sample_fewshot(rows: Sequence[Any], shots: int, seed: int) -> list[Any]:
    """Draw solved rows; the same seed draws the same."""
    if shots > len(rows):
        raise UserError(f"--shots {shots}: there are only {len(rows)} rows to draw them from")
    order = generator(seed, Stream.SPLIT).permutation(len(rows))
    return [rows[place] for place in order[:shots]]
