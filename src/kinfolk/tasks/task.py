"""The interface of a task: what its rows hold, what is predicted, how predictions are scored."""

import importlib
import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeVar

from kinfolk.config import config, did_you_mean
from kinfolk.errors import UserError
from kinfolk.extensions import HINT
from kinfolk.metrics.bootstrap import ConfidenceInterval, PairedDifference, confidence_interval
from kinfolk.metrics.metric import PRF, Metric, Statistics
from kinfolk.text.unicode import guess_language

# The type of a prediction. Formulations declare the types that they support.
TaskOutput = Literal[
    "label",  # one of task.labels
    "number",
    "option",  # the index of one of the row's options
    "tags",  # one of task.labels for each word
    "span",  # a part of the row's context
    "text",
    "word",  # the next word of a text
    "likelihood",  # of the text itself
    "clusters",  # of spans
    "sentences",  # of the row's text, as a summary
]
KIND_MODULES = (
    "classification",
    "multiple_choice",
    "tagging",
    "span_extraction",
    "text_to_text",
    "completion",
    "coreference",
    "extractive_summarization",
)
TASK_KINDS: dict[str, "type[Task]"] = {}  # filled by `register_kind` when the modules are imported
PROBABILITY_DIGITS = 4  # in tables
MAX_LABELS_LISTED = 12
LANGUAGE_SAMPLE_ROWS = 50  # rows used to detect the language
TaskType = TypeVar("TaskType", bound="type[Task]")


@dataclass(frozen=True)
class Prediction:
    """The prediction for a row."""

    value: Any  # see TaskOutput
    probabilities: tuple[float, ...] = ()  # of each label or option, or of each word's tag
    probability: float | None = None  # of the value
    nll: float | None = None  # negative log-likelihood of the reference
    tokens: int = 0  # of the reference
    best_span: str = ""  # of a context, also where no answer is predicted
    null_score_diff: float | None = None  # score of no answer minus that of the best span
    sentences: tuple[int, ...] = ()  # indices of those that a summary is made of


@config("task")
class Task:
    """A task of one kind: a frozen value that is saved with the model.

    `Task(kind="classify", ...)` returns an instance of the class that is registered for the kind.
    A kind is one file: a subclass with `@register_kind`; built-in ones are listed in KIND_MODULES.
    """

    kind: str = ""
    labels: tuple[str, ...] = ()  # classes or tags in the order of the logits
    metric: str = ""  # the main metric; empty for the first of the kind
    positive_label: str | None = None  # the positive class of binary F1
    is_pair: bool = False  # rows have two texts
    prefix: str = ""  # put before every input of a text-to-text model
    language: bool = False  # texts are Chinese, and scores of texts count characters
    num_sentences: int = 0  # of an extractive summary

    name: ClassVar[str] = ""  # `kind` in JSON
    alias: ClassVar[str] = ""  # another accepted name
    output: ClassVar[TaskOutput]
    head: ClassVar[str | None] = None  # the head of a network that Hugging Face saves for it
    all_metrics: ClassVar[tuple[Metric, ...]]  # the default main metric first
    min_texts: ClassVar[int] = 1  # that `row_from_texts` needs

    def __new__(cls, *, kind: str = "", **fields: Any) -> "Task":
        """Create an instance of the class of the kind."""
        return object.__new__(task_class(kind) if cls is Task else cls)

    def __post_init__(self) -> None:
        object.__setattr__(self, "kind", self.name)
        names = self.metric_names()
        if self.metric and self.metric not in names:
            raise UserError(
                f"the metric {self.metric!r} does not apply to {self.kind} tasks: choose one of "
                f"{', '.join(names)}"
            )

    # Rows

    @classmethod
    def from_rows(
        cls,
        rows: Sequence[Any],
        *,
        file: str = "",
        metric: str = "",
        positive_label: str | None = None,
        prefix: str = "",
        num_sentences: int | None = None,
    ) -> "Task":
        """Return the task of labelled rows; `file` is their name in error messages."""
        if num_sentences is not None and cls.output != "sentences":
            raise UserError(
                f"--num-sentences applies to extractive summarization, not to {cls.name}: remove it"
            )
        sample = " ".join(row.texts_and_labels[0] for row in rows[:LANGUAGE_SAMPLE_ROWS])
        return cls(
            metric=metric,
            prefix=prefix,
            language=guess_language(sample) == "Chinese",
            **cls.label_fields(rows, file=file, positive_label=positive_label),
            num_sentences=num_sentences or 0,
        )

    @classmethod
    def label_fields(
        cls, rows: Sequence[Any], *, file: str, positive_label: str | None
    ) -> dict[str, Any]:
        """Return the fields that depend on the labels of the rows."""
        return {}

    @staticmethod
    def reference(row: Any) -> Any:
        """Return the reference of a row, None where the file does not give it."""
        raise NotImplementedError

    @staticmethod
    def row_labels(row: Any) -> Sequence[str]:
        """Return the class or the tags of a row, for kinds with a label set."""
        return ()

    def row_from_texts(self, *texts: str) -> Any:
        """Return the unlabelled row of these texts."""
        raise UserError(f"{self.kind} rows cannot be built from texts: use `predict` with rows")

    def label_id(self, label: str) -> int:
        """Return the index of a label."""
        try:
            return self.labels.index(label)
        except ValueError:
            known = ", ".join(self.labels[:MAX_LABELS_LISTED])
            known += " ..." if len(self.labels) > MAX_LABELS_LISTED else ""
            raise UserError(
                f"the label {label!r} does not occur in the training rows (labels: {known})"
            ) from None

    def class_weights(self, rows: Sequence[Any]) -> tuple[float, ...]:
        """Return class weights inversely proportional to frequency, 1 on average over the rows."""
        counts = Counter(label for row in rows for label in self.row_labels(row))
        total = sum(counts.values())
        return tuple(round(total / (len(self.labels) * counts[label]), 6) for label in self.labels)

    def unseen_labels(self, rows: Sequence[Any]) -> dict[str, int]:
        """Count the labels of rows that the training rows lack."""
        known = set(self.labels)
        labels = (label for row in rows for label in self.row_labels(row))
        return dict(Counter(label for label in labels if label not in known))

    @property
    def head_labels(self) -> tuple[str, ...]:
        """The names of a head's logits."""
        return self.labels

    # Text-to-text

    def prompt(self, row: Any) -> tuple[str, str]:
        """Return the texts before and after the answer, for a text-to-text model."""
        return f"{self.prefix}{row.fields['text']}", ""

    def options(self, row: Any) -> tuple[str, ...] | None:
        """Return the possible answers, None where the answer is a free text."""
        return None

    def option_index(self, row: Any) -> int | None:
        """Return the index of the reference among the options."""
        reference = self.reference(row)
        options = self.options(row)
        return None if reference is None or options is None else options.index(reference)

    def option_value(self, row: Any, index: int) -> Any:
        """Return the value of a prediction that chose an option."""
        options = self.options(row)
        assert options is not None
        return options[index]

    def target_text(self, row: Any) -> str | None:
        """Return the reference as text."""
        reference: str | None = self.reference(row)
        return reference

    def parse_text(self, row: Any, text: str) -> Any:
        """Return the value of a prediction from a generated text."""
        return text

    # Scores

    def metrics(self, references: Sequence[Any] = ()) -> tuple[Metric, ...]:
        """Return the metrics for rows with these references."""
        return self.all_metrics

    @classmethod
    def metric_names(cls) -> tuple[str, ...]:
        """Return the names of all metrics, the default main metric first."""
        return tuple(metric.name for metric in cls.all_metrics)

    @property
    def main_metric(self) -> str:
        """The metric that selects the best checkpoint."""
        return self.metric or self.all_metrics[0].name

    def main_metric_of(self, rows: Sequence[Any] = ()) -> Metric:
        """Return the main metric for the references of these rows."""
        metrics = self.metrics([self.reference(row) for row in rows])
        (metric,) = (m for m in metrics if m.name == self.main_metric)
        return metric

    def normalized(self, score: float) -> float:
        """Return a score of the main metric rescaled so that higher is better and 1 is best."""
        return self.main_metric_of().normalized(score)

    def statistics(
        self, metric: Metric, rows: Sequence[Any], predictions: Sequence[Prediction]
    ) -> Statistics:
        """Return the statistics of each row."""
        return metric.statistics([p.value for p in predictions], [self.reference(r) for r in rows])

    def evaluate(self, rows: Sequence[Any], predictions: Sequence[Prediction]) -> dict[str, float]:
        """Score predictions by every metric."""
        self.check_references(rows)
        scores = {}
        for metric in self.metrics([self.reference(row) for row in rows]):
            statistics = self.statistics(metric, rows, predictions)
            if len(statistics):
                scores[metric.name] = metric.aggregate(statistics)
        return scores

    def interval(
        self,
        rows: Sequence[Any],
        predictions: Sequence[Prediction],
        *,
        n_resamples: int = 1000,
        seed: int = 0,
    ) -> ConfidenceInterval:
        """Return the main metric with its bootstrap interval."""
        metric = self.main_metric_of(rows)
        return confidence_interval(
            metric,
            self.statistics(metric, rows, predictions),
            n_resamples=min(n_resamples, metric.max_resamples),
            seed=seed,
        )

    @classmethod
    def check_references(cls, rows: Sequence[Any]) -> None:
        """Refuse rows that cannot be scored."""
        if not rows:
            raise UserError("there are no rows to score: pass a file with labelled rows")
        for row in rows:
            if cls.reference(row) is None:
                raise UserError(
                    f"row {row.number:,} has no label, which scoring needs: use kinfolk predict"
                )

    def score_notes(self, rows: Sequence[Any]) -> list[str]:
        """Return what a reader of the scores of these rows must know."""
        return []

    # Errors

    def error(self, row: Any, prediction: Prediction) -> float | None:
        """Return how bad a prediction is, None where it is correct."""
        wrong = prediction.value != self.reference(row)
        return prediction.probability or 0.0 if wrong else None

    def describe(self, row: Any, prediction: Prediction) -> tuple[str, str]:
        """Return the reference and the prediction as a report shows them."""
        return str(self.reference(row)), str(prediction.value)

    def confidences(self, row: Any, prediction: Prediction) -> Iterator[tuple[float, bool]]:
        """Yield the probability of the prediction, and whether it is correct."""
        if prediction.probability is not None:
            yield prediction.probability, self.error(row, prediction) is None

    def class_scores(
        self, rows: Sequence[Any], predictions: Sequence[Prediction]
    ) -> dict[str, PRF]:
        """Return precision, recall and F1 of each class or type of entity."""
        return {}

    def diagnostics(
        self, rows: Sequence[Any], predictions: Sequence[Prediction]
    ) -> dict[str, float]:
        """Return further numbers for the JSON of an evaluation."""
        return {}

    # Predictions in files

    def to_json(self, row: Any, prediction: Prediction) -> dict[str, Any]:
        """Return the fields that `predict` adds to a row."""
        probability = prediction.probability
        known = {} if probability is None else {"probability": round(probability, 6)}
        return {"prediction": prediction.value, **known}

    def cell_names(self, *, all_probabilities: bool = False) -> list[str]:
        """Return the names of the columns that `predict` adds to a table."""
        return ["prediction"]

    def to_cells(self, prediction: Prediction, *, all_probabilities: bool = False) -> list[str]:
        """Return the cells that `predict` adds to a row of a table."""
        value = prediction.value
        return [value if isinstance(value, str) else f"{value:.{PROBABILITY_DIGITS}f}"]


@dataclass(frozen=True)
class BaselineComparison:
    """The scores of a baseline on the rows of an evaluation."""

    name: str
    scores: dict[str, ConfidenceInterval]  # by metric
    difference: PairedDifference  # main metric of the model minus that of the baseline


@dataclass(frozen=True)
class EvaluationResult:
    """The predictions for labelled rows, and their scores."""

    task: Task
    rows: list[Any]
    predictions: list[Prediction]
    scores: dict[str, float]
    confidence_interval: ConfidenceInterval  # of the main metric
    unseen_labels: dict[str, int]  # labels that the training rows lack, and how often each occurs
    baselines: tuple[BaselineComparison, ...] = ()  # that need no training rows


def register_kind(cls: TaskType) -> TaskType:
    """Register a kind of task under its name."""
    TASK_KINDS[cls.name] = cls
    return cls


def kinds() -> dict[str, type[Task]]:
    """Return the class of every kind by its name, in the order of KIND_MODULES, others last."""
    for module in KIND_MODULES:
        importlib.import_module(f"kinfolk.tasks.{module}")
    order = {f"kinfolk.tasks.{module}": place for place, module in enumerate(KIND_MODULES)}
    found = TASK_KINDS.items()  # in the order in which their modules happened to be imported
    return dict(sorted(found, key=lambda kind: order.get(kind[1].__module__, len(order))))


def task_class(name: str) -> type[Task]:
    """Return the class of a kind by its name or its alias."""
    known = kinds()
    for cls in known.values():
        if name in (cls.name, cls.alias):
            return cls
    raise UserError(f"unknown task {name!r}: {did_you_mean(name, [*known], HINT)}")


def sort_labels(labels: set[str]) -> tuple[str, ...]:
    """Sort labels, numbers by value and "O" before all other tags."""

    def key(label: str) -> tuple[int, float, str]:
        try:
            return 1, float(label), label
        except ValueError:
            return (0 if label == "O" else 2), 0.0, label

    return tuple(sorted(labels, key=key))


def find_metric(name: str) -> Metric | None:
    """Return a metric by its key in a log; `2_bleu` is BLEU of the second task."""
    key = re.sub(r"^\d+_", "", name)
    every = (metric for cls in kinds().values() for metric in cls.all_metrics)
    return next((metric for metric in every if metric.name == key), None)


def metric_title(name: str) -> str:
    """Return the title of a metric in tables."""
    metric = find_metric(name)
    if metric is None or not metric.title:
        return "loss" if name == "eval_loss" else name.replace("_", " ")
    return name.removesuffix(metric.name).replace("_", " ") + metric.title


def format_score(name: str, value: float) -> str:
    """Format a score with the decimals of its metric."""
    if not math.isfinite(value):
        return "–"
    metric = find_metric(name)
    return f"{value:,.2f}" if metric is not None and metric.decimals == 2 else f"{value:.4f}"
