"""Open a fine-tuned or a pretrained model, predict labelled rows and score the predictions."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kinfolk.config import LONE_SURROGATE, read_type, type_name
from kinfolk.data.files import (
    COMPRESSION_SUFFIXES,
    DELIMITED_SUFFIXES,
    JSON_SUFFIXES,
    PARQUET,
    TEXT_SUFFIXES,
)
from kinfolk.errors import UserError
from kinfolk.families import family_of
from kinfolk.nn.task_heads import ModelWithHead, TaskModel
from kinfolk.reports.evaluation_page import EvaluationPage, render
from kinfolk.reports.page import write
from kinfolk.rng import Stream, generator
from kinfolk.tasks.baselines import compare_untrained
from kinfolk.tasks.dataset import RowSource, TaskDataset, format_counts, open_rows, task_dataset
from kinfolk.tasks.error_analysis import to_plain
from kinfolk.tasks.extractive_summarization import ExtractiveSummarization
from kinfolk.tasks.formats.base import (
    FileSpec,
    Predictions,
    ReadReport,
    parse_columns,
    read_rows,
)
from kinfolk.tasks.formats.detect import detect_format
from kinfolk.tasks.formats.labelled_file import LabelledFile
from kinfolk.tasks.formats.match import detect_inputs, match_format, without_labels
from kinfolk.tasks.formulations.base import Formulation
from kinfolk.tasks.formulations.choose import build_formulation, choose_formulation
from kinfolk.tasks.formulations.head import BareCausalHead
from kinfolk.tasks.formulations.span_head import SpanHead
from kinfolk.tasks.instances import predict_rows
from kinfolk.tasks.rows import LabelledText
from kinfolk.tasks.rows_in_memory import as_list
from kinfolk.tasks.task import (
    EvaluationResult,
    Prediction,
    Task,
    format_score,
    kinds,
    metric_title,
    task_class,
)
from kinfolk.text.tokenizer import Tokenizer
from kinfolk.training.workload import select_device
from kinfolk.workflows.finetuning.recipe import FineTuneRecipe
from kinfolk.workflows.folders import find_model_folder
from kinfolk.workflows.load import load
from kinfolk.workflows.model_use import not_finetuned

DATA_SUFFIXES = {
    *TEXT_SUFFIXES,
    *JSON_SUFFIXES,
    *DELIMITED_SUFFIXES,
    *PARQUET,
    *COMPRESSION_SUFFIXES,
}


@dataclass(frozen=True, eq=False)
class Predictor:
    """A fine-tuned network with its tokenizer and formulation."""

    model: Any
    tokenizer: Tokenizer
    formulation: Formulation
    file_spec: FileSpec | None = None  # format of the training file

    @property
    def task(self) -> Task:
        """The task that it was trained for."""
        return self.formulation.task

    def with_null_score_diff_threshold(self, threshold: float) -> "Predictor":
        """Return a predictor of spans that predicts no answer above this score difference."""
        if not isinstance(self.formulation, SpanHead):
            raise UserError(
                f"--null-score-diff-threshold applies to span extraction, not to {self.task.kind}: "
                "remove it"
            )
        formulation = replace(
            self.formulation, null_score_diff_threshold=threshold, allow_no_answer=True
        )
        return replace(self, formulation=formulation)

    def with_num_sentences(self, count: int) -> "Predictor":
        """Return a predictor of extractive summaries of another number of sentences."""
        if not isinstance(self.task, ExtractiveSummarization):
            raise UserError(
                f"--num-sentences applies to extractive summarization, not to {self.task.kind}: "
                "remove it"
            )
        task = self.task.with_num_sentences(count)
        return replace(self, formulation=replace(self.formulation, task=task))

    def predict_one(self, *texts: str) -> Prediction:
        """Predict one row: a text or a pair, a context and its options, a question and its context.

        `load_predictor("runs/triage").predict_one("The invoice was never paid.").value`
        """
        return self.predict(self.rows_of_texts([texts]))[0]

    def predict(
        self, rows: Sequence[Any], *, watch: Callable[[int], None] = lambda done: None
    ) -> list[Prediction]:
        """Return the predictions for rows, in their order."""
        return predict_rows(self.formulation, self.model, rows, self.tokenizer, watch=watch)

    def read(
        self, source: RowSource, *, columns: str | None = None, labelled: bool = False
    ) -> list[Any]:
        """Read rows of the task from a file, a list of dictionaries or a DataFrame."""
        file = open_rows(source, "test" if labelled else "inputs")
        return read_test_file(self, file, columns=columns, labelled=labelled)[0]

    def check_texts(self, rows: Sequence[Any], where: str) -> None:
        """Refuse pairs for a model of single texts, and single texts for a model of pairs."""
        expected = 1 + self.task.is_pair
        for row in rows if self.file_spec is not None else ():
            if isinstance(row, LabelledText) and len(row.texts) != expected:
                trained = "pairs of texts" if self.task.is_pair else "single texts"
                raise UserError(
                    f"{where}: row {row.number:,} has {len(row.texts)} "
                    f"text{'s' * (len(row.texts) > 1)}, but the model was trained on {trained}: "
                    f"give {expected} per row, from files with --columns "
                    f"{'a,b,' if self.task.is_pair else 'a,'}"
                )

    def rows_of_texts(self, inputs: Sequence[str | Sequence[str]]) -> list[Any]:
        """Return a row for each input: a text, or several where the task reads several."""
        least, rows = max(self.task.min_texts, 1 + self.task.is_pair), []
        for number, item in enumerate(inputs, 1):
            texts: tuple[Any, ...] = tuple(item) if isinstance(item, tuple | list) else (item,)
            if not all(isinstance(text, str) for text in texts):
                raise UserError(f"inputs: item {number:,} is {item!r}: give texts, or dictionaries")
            if len(texts) < least:
                raise UserError(
                    f"inputs: {len(texts)} texts are too few to {self.task.kind}: give {least}"
                )
            if any(LONE_SURROGATE.search(text) for text in texts):
                raise UserError(
                    f"inputs: item {number:,} contains a lone surrogate, which is not valid "
                    "Unicode: fix it, or leave it out"
                )
            rows.append(self.task.row_from_texts(*texts))
        self.check_texts(rows, "inputs")
        return rows


def predict(
    model: Path | str | Predictor,
    inputs: RowSource | Iterator[Any],
    *,
    columns: str | None = None,
    task_index: int = 1,
    device: str = "auto",
) -> list[Prediction]:
    """Predict with a fine-tuned model; return a `Prediction` for each input, in their order.

    `predict("runs/triage", "The invoice was never paid.")[0].value`. The inputs are a text, a list
    of texts, a list of tuples where the task reads several texts (pairs, a context and its options,
    a question and its context), a column of texts, a list of dictionaries, a DataFrame, a Hugging
    Face Dataset, or a file: a `Path`, or a string that names an existing file. A string that ends
    like the name of a file and names none is refused. The model may be what `load_predictor`
    returns, which is then loaded once for many calls.
    """
    predictor = as_predictor(model, device=device, task_index=task_index)
    source = as_list(inputs)
    if isinstance(source, str) and not is_file(source):
        check_is_text(source)
        source = [source]
    if isinstance(source, Sequence) and not isinstance(source, str) and columns is None:
        if not source:
            return []
        if not isinstance(source[0], Mapping):
            return predictor.predict(predictor.rows_of_texts(source))
    return predictor.predict(predictor.read(source, columns=columns))


def is_file(text: str) -> bool:
    """Return whether a string names an existing file."""
    try:
        return Path(text).is_file()
    except (OSError, ValueError):  # too long for a path, or with a NUL
        return False


def check_is_text(text: str) -> None:
    """Refuse the name of a file that does not exist: a prediction for it would say nothing."""
    if len(text.split()) == 1 and Path(text).suffix.lower() in DATA_SUFFIXES:
        raise UserError(f"no such file: {text}; a text that ends like a file is passed as [text]")


def as_predictor(
    model: Path | str | Predictor, *, device: str = "auto", task_index: int = 1
) -> Predictor:
    """Return a predictor, loaded where a folder is given."""
    if isinstance(model, Predictor):
        return model
    if not isinstance(model, Path | str):
        raise UserError(
            f"model is of type {type(model).__name__}: give the folder of a fine-tuned model, "
            "or what kinfolk.load_predictor returns"
        )
    return load_predictor(model, device=device, task_index=task_index)


def load_predictor(
    path: Path | str,
    *,
    device: str = "auto",
    task_index: int = 1,
    tokenizer: Tokenizer | Path | str | None = None,
) -> Predictor:
    """Load a fine-tuned model, also of transformers.

    `task_index` is the task of a model that was fine-tuned on several files, counted from 1.
    """
    folder = find_model_folder(path)
    model, tokenizer = load(folder, tokenizer)
    model.to(select_device(device))
    recipe_file = folder / "kinfolk.json"
    if recipe_file.is_file() and read_type(recipe_file) == type_name(FineTuneRecipe):
        recipe = FineTuneRecipe.read(recipe_file)
        tasks = [*zip(recipe.formulations, recipe.datasets, strict=True)]
        if not 1 <= task_index <= len(tasks):
            raise UserError(
                f"task_index={task_index}: {path} has the tasks 1 to {len(tasks)}, one for each "
                "training file"
            )
        formulation, dataset = tasks[task_index - 1]
        if formulation.head is not None and not isinstance(model, TaskModel):
            raise UserError(
                f"{folder / 'config.json'}: `architectures` names no class with the task head of "
                f"{recipe_file.name}: copy the folder again"
            )
        if formulation.pad_id >= model.config.vocab_size:
            raise UserError(
                f"{recipe_file}: pad_id={formulation.pad_id}: it must be an id of the network, "
                f"less than {model.config.vocab_size}"
            )
        tokenizer = tokenizer.with_end_token(family_of(model).required_tokens)
        return Predictor(model, tokenizer, formulation, dataset.file_spec)
    if not isinstance(model, ModelWithHead):
        raise not_finetuned(path)
    return Predictor(model, tokenizer, formulation_of_hf_model(model, tokenizer))


def is_extractive(path: Path | str) -> bool:
    """Return whether a model was fine-tuned to choose the sentences of a summary."""
    recipe_file = find_model_folder(path) / "kinfolk.json"
    if not recipe_file.is_file() or read_type(recipe_file) != type_name(FineTuneRecipe):
        return False
    return FineTuneRecipe.read(recipe_file).formulations[0].task.output == "sentences"


def formulation_of_hf_model(model: ModelWithHead, tokenizer: Tokenizer) -> Formulation:
    """Return the formulation of a network that was fine-tuned with transformers."""
    c, family = model.config, family_of(model.config.backbone)
    cls = next(
        kind
        for kind in kinds().values()
        if kind.head == c.head and (kind.output == "number") == c.regression
    )
    task = cls(labels=c.labels if cls.output in ("label", "tags") else ())
    if c.backbone.network.architecture == "decoder" and c.head == "text":
        # As in transformers: the text without special tokens.
        return build_formulation(BareCausalHead, task, family, c.backbone, tokenizer)
    formulation = choose_formulation(family, cls, "head")
    return build_formulation(formulation, task, family, c.backbone, tokenizer)


def read_test_file(
    predictor: Predictor,
    file: LabelledFile,
    *,
    columns: str | None = None,
    labelled: bool = True,
    report: ReadReport | None = None,
) -> tuple[list[Any], FileSpec]:
    """Read the rows of a file in the format of the training file, or else as it is detected."""
    for path in (file.path, None if file.target is None else file.target.path):
        if path is not None and not file.in_memory and not path.is_file():
            raise UserError(f"{path} does not exist: give a file with examples")
    task, trained = predictor.task, predictor.file_spec
    if columns is not None:
        spec = detect_format(file, task=task.kind, columns=parse_columns(columns))
    elif trained is not None and trained.format != "parallel" and file.target is None:
        spec = match_format(file, trained, labelled=labelled, labels=task.labels)
    elif task.output in ("text", "sentences") and file.target is None and trained is not None:
        if labelled:
            raise UserError(
                f"{file}: the model was trained on two files, and scoring needs the lines of the "
                "second one: add --target FILE, or name the columns of a table with --columns "
                "text,summary"
            )
        rows = [replace(task.row_from_texts(line), number=n) for n, line in file.lines()]
        return rows, trained
    elif labelled:
        spec = detect_format(file, task=task.kind)
    else:
        spec = detect_inputs(file, task.kind)
    spec = spec if labelled else without_labels(spec)
    rows = list(read_rows(file, spec, report=report))
    predictor.check_texts(rows, str(file))
    return rows, spec


def format_notes(predictor: Predictor, file: LabelledFile, spec: FileSpec) -> list[str]:
    """Return how a file is read, where the training file was read in another way."""
    trained = predictor.file_spec
    if trained is None or spec in (trained, without_labels(trained)):
        return []
    return [f"{file.path.name}: {spec.description}"]


def added_columns(
    predictor: Predictor, file: LabelledFile, spec: FileSpec, *, all_probabilities: bool
) -> list[str]:
    """Return the names of the columns that `predict` adds where no header names them."""
    is_table = spec.format == "table" and not file.is_json and not spec.header
    if not is_table and spec.format not in ("label_lines", "text_lines", "trees"):
        return []
    if predictor.task.output == "tags":
        return []
    first = len(file.sample_cells[0]) + 1 if is_table else 2
    names = predictor.task.cell_names(all_probabilities=all_probabilities)
    columns = (f"{number} {name}" for number, name in enumerate(names, first))
    return [f"added columns: {', '.join(columns)}"]


def predict_file(
    predictor: Predictor,
    file: LabelledFile,
    rows: Sequence[Any],
    spec: FileSpec,
    *,
    all_probabilities: bool = False,
    watch: Callable[[int], None] = lambda done: None,
) -> Predictions:
    """Predict the rows of a file."""
    if predictor.task.output == "likelihood":
        raise UserError("plain text has no labels to predict: use kinfolk evaluate --test")
    if not rows:
        raise UserError(f"{file} has no rows to predict")
    values = predictor.predict(rows, watch=watch)
    return Predictions(file, spec, predictor.task, rows, values, all_probabilities)


def truncation_report(predictor: Predictor, rows: Sequence[Any]) -> list[str]:
    """Return messages about rows longer than the maximum input length."""
    formulation = predictor.formulation
    instances = [formulation.instances(row, predictor.tokenizer, labelled=False) for row in rows]
    truncated = sum(any(i.truncated_tokens for i in group) for group in instances)
    split = sum(len(group) > 1 for group in instances)
    return [
        f"{count:,} of {len(rows):,} rows {action} {formulation.max_length} tokens"
        for count, action in ((truncated, "truncated to"), (split, "split into windows of"))
        if count
    ]


def evaluate_rows(
    predictor: Predictor,
    rows: list[Any],
    *,
    n_resamples: int = 1000,
    seed: int = 0,
    watch: Callable[[int], None] = lambda done: None,
) -> EvaluationResult:
    """Predict rows and score the predictions, the main metric with its interval."""
    task = predictor.task
    task.check_references(rows)
    unseen = task.unseen_labels(rows)
    if unseen and sum(unseen.values()) == sum(len([*task.row_labels(row)]) for row in rows):
        raise UserError(
            f"no row has a label of the model ({', '.join(task.labels[:10])}): the labels of the "
            f"rows are {format_counts(unseen)}; choose their column with --columns"
        )
    predictions = predictor.predict(rows, watch=watch)
    scores = task.evaluate(rows, predictions)
    bounds = task.interval(rows, predictions, n_resamples=n_resamples, seed=seed)
    compared = compare_untrained(task, rows, predictions, seed=seed)
    return EvaluationResult(task, rows, predictions, scores, bounds, unseen, compared)


def write_evaluation_page(
    result: EvaluationResult,
    path: Path,
    *,
    title: str,
    details: Sequence[tuple[str, str]] = (),
    notes: Sequence[str] = (),
) -> None:
    """Write the page of an evaluation, atomically."""
    values, metric = to_plain(result), result.task.main_metric
    page = EvaluationPage(
        title=title,
        rows=values["rows"],
        metric=metric_title(metric),
        score=values["score"],
        formatted=(
            format_score(metric, values["score"]),
            format_score(metric, values["low"]),
            format_score(metric, values["high"]),
        ),
        scores=[(metric_title(n), format_score(n, value)) for n, value in result.scores.items()],
        confusion=values["confusion"],
        class_heading="type" if result.task.output == "tags" else "class",
        classes=values["classes"],
        calibration=values["calibration"],
        calibration_error=values["calibration_error"] or 0.0,
        lengths=values["lengths"],
        errors=values["mistakes"],
        details=details,
        notes=notes,
    )
    write(render(page), path)


def few_shot_predictor(
    model: Path | str,
    test: Path,
    *,
    fewshot_from: Path | None = None,
    num_fewshot: int = 0,
    seed: int = 0,
    task: str | None = None,
    columns: str | None = None,
    target: Path | None = None,
    pattern: str | None = None,
    verbalizer: str | None = None,  # a word for each class: "bad,good"
    length: int | None = None,
    device: str = "auto",
    tokenizer: Tokenizer | Path | str | None = None,
    report: ReadReport | None = None,
) -> tuple[Predictor, list[Any]]:
    """Load a pretrained model with a prompt, and the rows to predict.

    The labels are those of the file from which few-shot examples are drawn, or else those of the
    test file.
    """
    if num_fewshot < 0:
        raise UserError(f"--num-fewshot must be at least 0 (got {num_fewshot})")
    if num_fewshot and fewshot_from is None:
        raise UserError(
            f"--num-fewshot {num_fewshot} requires --fewshot-from, the file that examples are "
            "drawn from"
        )
    file = task_dataset(test, task=task, columns=columns, target=target)
    rows = list(read_rows(file.files["train"], file.file_spec, report=report))
    known = rows if fewshot_from is None else fewshot_rows(fewshot_from, file, report)
    network, tokenizer = load(model, tokenizer)
    network.to(select_device(device))
    body: Any = network.pretrained
    cls = task_class(file.file_spec.task)
    labelled = [row for row in known if cls.reference(row) is not None]
    file_task = cls.from_rows(labelled, file=file.train)
    family = family_of(body.config)
    tokenizer = tokenizer.with_end_token(family.required_tokens)
    formulation = choose_formulation(family, type(file_task), "prompt")
    words = None if verbalizer is None else tuple(verbalizer.split(","))
    if words is not None and len(words) != len(file_task.labels):
        raise UserError(
            f"--verbalizer has {len(words)} words for {len(file_task.labels)} classes: give one "
            f"for each of {', '.join(file_task.labels)}"
        )
    prompt: Any = build_formulation(
        formulation,
        file_task,
        family,
        body.config,
        tokenizer,
        length=length,
        pattern=pattern,
        verbalizer=words,
    )
    examples = [prompt.format_example(row) for row in sample_fewshot(known, num_fewshot, seed)]
    prompt = replace(prompt, examples=tuple(examples))
    return Predictor(body, tokenizer, prompt, file.file_spec), rows


def fewshot_rows(path: Path, file: TaskDataset, report: ReadReport | None) -> list[Any]:
    """Read the rows that few-shot examples are drawn from, in the format of the test or its own."""
    if not path.is_file():
        raise UserError(f"no such file: {path}")
    opened = LabelledFile(path)
    try:
        read = list(read_rows(opened, file.file_spec, report=report))
    except UserError:
        spec = detect_format(opened, task=file.file_spec.task)
        read = list(read_rows(opened, spec, report=report))
    cls = task_class(file.file_spec.task)
    rows = [row for row in read if cls.reference(row) is not None]
    if not rows:
        raise UserError(f"{path} has no labelled rows, which few-shot examples need")
    return rows


def sample_fewshot(rows: Sequence[Any], shots: int, seed: int) -> list[Any]:
    """Draw few-shot examples; the same seed draws the same ones."""
    if shots > len(rows):
        raise UserError(f"--num-fewshot {shots} exceeds the {len(rows)} rows to draw from")
    order = generator(seed, Stream.SPLIT).permutation(len(rows))
    return [rows[index] for index in order[:shots]]
