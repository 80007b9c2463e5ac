"""Classification and regression: one label or one number for a text or a pair of texts."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from kinfolk.errors import UserError
from kinfolk.metrics.classification import (
    Accuracy,
    BinaryF1,
    MacroF1,
    MatthewsCorrelation,
    Pearson,
    Spearman,
    confusion_matrix,
)
from kinfolk.metrics.metric import PRF, Metric
from kinfolk.tasks.rows import LabelledText
from kinfolk.tasks.task import (
    PROBABILITY_DIGITS,
    Prediction,
    Task,
    register_kind,
    sort_labels,
)


class TextTask(Task):
    """Base of classification and regression: rows of one text or two."""

    head = "text"

    @classmethod
    def label_fields(
        cls, rows: Sequence[LabelledText], *, file: str, positive_label: str | None
    ) -> dict[str, Any]:
        """Return whether rows are pairs."""
        return {"is_pair": len(rows[0].texts) == 2}

    def row_from_texts(self, *texts: str) -> LabelledText:
        """Return the row of a text or a pair."""
        return LabelledText(texts, None, 1)

    def prompt(self, row: LabelledText) -> tuple[str, str]:
        """Return the prefix and the texts under their names (Raffel et al. 2020, appendix D)."""
        if len(row.texts) > 1:
            text = " ".join(f"sentence{n}: {text}" for n, text in enumerate(row.texts, 1))
        else:
            text = f"sentence: {row.texts[0]}" if self.prefix else row.texts[0]
        return f"{self.prefix}{text}", ""


@register_kind
class Classification(TextTask):
    """Predict one of `labels`; F1 is about `positive_label` where there are two."""

    name = "classify"
    alias = "classification"
    output = "label"
    all_metrics = (Accuracy(), BinaryF1(), MacroF1(), MatthewsCorrelation())

    @classmethod
    def label_fields(
        cls, rows: Sequence[LabelledText], *, file: str, positive_label: str | None
    ) -> dict[str, Any]:
        """Return the label set and the positive label."""
        labels = sort_labels({str(row.label) for row in rows})
        if len(labels) < 2:
            raise UserError(
                f"all rows of {file} have the label {', '.join(labels) or 'none'}: "
                "classification needs rows of at least two classes"
            )
        if positive_label is not None and positive_label not in labels:
            raise UserError(
                f"--positive-label {positive_label} is not a label of {file} (labels: "
                f"{', '.join(labels)})"
            )
        if positive_label is None and len(labels) == 2:
            positive_label = labels[1]
        pairs = super().label_fields(rows, file=file, positive_label=None)
        return {"labels": labels, "positive_label": positive_label, **pairs}

    @staticmethod
    def reference(row: LabelledText) -> str | None:
        """Return the label."""
        return None if row.label is None else str(row.label)

    @staticmethod
    def row_labels(row: LabelledText) -> Sequence[str]:
        """Return the label."""
        return () if row.label is None else (str(row.label),)

    def metrics(self, references: Sequence[str] = ()) -> tuple[Metric, ...]:
        """Return `all_metrics`, with F1 of the positive class where there is one."""
        found: list[Metric] = []
        for metric in self.all_metrics:
            if not isinstance(metric, BinaryF1):
                found.append(metric)
            elif self.positive_label is not None:
                found.append(replace(metric, positive_label=self.positive_label))
        return tuple(found)

    def score_notes(self, rows: Sequence[LabelledText]) -> list[str]:
        """Return the positive class of F1."""
        if not any(isinstance(metric, BinaryF1) for metric in self.metrics()):
            return []
        return [f"F1 is of the class {self.positive_label} (--positive-label)"]

    def options(self, row: LabelledText) -> tuple[str, ...]:
        """Return the labels."""
        return self.labels

    def option_index(self, row: LabelledText) -> int | None:
        """Return the index of the label."""
        return None if row.label is None else self.label_id(str(row.label))

    def target_text(self, row: LabelledText) -> str | None:
        """Return the label, which must occur in the training rows."""
        index = self.option_index(row)
        return None if index is None else self.labels[index]

    def class_scores(
        self, rows: Sequence[LabelledText], predictions: Sequence[Prediction]
    ) -> dict[str, PRF]:
        """Return precision, recall and F1 of each class."""
        references = [str(row.label) for row in rows]
        matrix = confusion_matrix([p.value for p in predictions], references)
        return {str(label): scores for label, scores in matrix.scores.items()}

    def to_json(self, row: LabelledText, prediction: Prediction) -> dict[str, Any]:
        """Return the label, its probability and that of every label."""
        probabilities = [round(p, 6) for p in prediction.probabilities]
        return {
            "prediction": prediction.value,
            "probability": round(prediction.probability or 0.0, 6),
            "probabilities": dict(zip(self.labels, probabilities, strict=True)),
        }

    def cell_names(self, *, all_probabilities: bool = False) -> list[str]:
        """Return the names of the added columns."""
        each = [f"probability_{label}" for label in self.labels] if all_probabilities else []
        return ["prediction", "probability", *each]

    def to_cells(self, prediction: Prediction, *, all_probabilities: bool = False) -> list[str]:
        """Return the label, its probability and, if asked for, that of every label."""
        each = prediction.probabilities if all_probabilities else ()
        numbers = [prediction.probability or 0.0, *each]
        return [prediction.value, *(f"{p:.{PROBABILITY_DIGITS}f}" for p in numbers)]


@register_kind
class Regression(TextTask):
    """Predict a number."""

    name = "regress"
    alias = "regression"
    output = "number"
    all_metrics = (Pearson(), Spearman())

    @property
    def head_labels(self) -> tuple[str, ...]:
        """The name of the only logit."""
        return ("score",)

    @staticmethod
    def reference(row: LabelledText) -> float | None:
        """Return the number."""
        return None if row.label is None else float(row.label)

    def error(self, row: LabelledText, prediction: Prediction) -> float:
        """Return the absolute error."""
        return float(abs(prediction.value - float(row.label or 0.0)))

    def describe(self, row: LabelledText, prediction: Prediction) -> tuple[str, str]:
        """Return both numbers."""
        return f"{float(row.label or 0.0):g}", f"{prediction.value:.2f}"
