"""Multiple choice: one of the options of a row."""

from typing import Any

from kinfolk.metrics.classification import Accuracy
from kinfolk.tasks.rows import MultipleChoiceRow
from kinfolk.tasks.task import Prediction, Task, register_kind


@register_kind
class MultipleChoice(Task):
    """Predict the index of the correct option."""

    name = "choose"
    alias = "multiple_choice"
    output = "option"
    head = "choice"
    all_metrics = (Accuracy(),)
    min_texts = 2

    @staticmethod
    def reference(row: MultipleChoiceRow) -> int | None:
        """Return the index of the correct option."""
        return row.label

    def row_from_texts(self, *texts: str) -> MultipleChoiceRow:
        """Return the row of a context and its options."""
        return MultipleChoiceRow(texts[0], texts[1:], None, 1)

    def prompt(self, row: MultipleChoiceRow) -> tuple[str, str]:
        """Return the prefix, then context, question and options, each under its name."""
        fields = {"context": row.context, **row.fields}
        del fields["text"]
        named = " ".join(f"{name}: {text}" for name, text in fields.items() if text)
        return f"{self.prefix}{named}", ""

    def options(self, row: MultipleChoiceRow) -> tuple[str, ...]:
        """Return the options."""
        return row.options

    def option_index(self, row: MultipleChoiceRow) -> int | None:
        """Return the index of the correct option."""
        return row.label

    def option_value(self, row: MultipleChoiceRow, index: int) -> int:
        """Return the index itself."""
        return index

    def target_text(self, row: MultipleChoiceRow) -> str | None:
        """Return the correct option."""
        return None if row.label is None else row.options[row.label]

    def describe(self, row: MultipleChoiceRow, prediction: Prediction) -> tuple[str, str]:
        """Return the correct and the predicted option."""
        return self.target_text(row) or "", row.options[prediction.value]

    def to_json(self, row: MultipleChoiceRow, prediction: Prediction) -> dict[str, Any]:
        """Return the index, the option, and the probability of every option."""
        return {
            "prediction": prediction.value,
            "option": row.options[prediction.value],
            "probability": round(prediction.probability or 0.0, 6),
            "probabilities": [round(p, 6) for p in prediction.probabilities],
        }
