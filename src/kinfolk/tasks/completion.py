"""Completion, the next word of a text, and language modeling, the likelihood of a text."""

from collections.abc import Sequence
from typing import Any

from kinfolk.errors import UserError
from kinfolk.metrics.classification import Accuracy
from kinfolk.metrics.metric import Metric, Statistics
from kinfolk.metrics.text import BitsPerByte, Perplexity
from kinfolk.tasks.rows import CompletionRow, SourceTarget
from kinfolk.tasks.task import Prediction, Task, register_kind


class LikelihoodTask(Task):
    """Base of completion and language modeling: the likelihood of a target."""

    @staticmethod
    def reference(row: CompletionRow | SourceTarget) -> str | None:
        """Return the target."""
        return row.target

    def statistics(
        self, metric: Metric, rows: Sequence[Any], predictions: Sequence[Prediction]
    ) -> Statistics:
        """Return the statistics of each row; perplexity skips rows without a likelihood."""
        if not isinstance(metric, Perplexity):
            return metric.statistics(
                [p.value.strip() for p in predictions], [row.target.strip() for row in rows]
            )
        known = [
            (p.nll, p.tokens, row.target)
            for p, row in zip(predictions, rows, strict=True)
            if p.nll is not None
        ]
        return metric.statistics(
            [(nll, tokens) for nll, tokens, _ in known], [text for _, _, text in known]
        )


@register_kind
class Completion(LikelihoodTask):
    """Predict the next word, among options where a row has them."""

    name = "complete"
    alias = "completion"
    output = "word"
    all_metrics = (Accuracy(), Perplexity())

    def row_from_texts(self, *texts: str) -> CompletionRow:
        """Return the row of a text, and options where there are more texts."""
        return CompletionRow(texts[0], None, texts[1:] or None, 1)

    def prompt(self, row: CompletionRow) -> tuple[str, str]:
        """Return the text before and after the word."""
        return row.context, row.suffix

    def options(self, row: CompletionRow) -> tuple[str, ...] | None:
        """Return the options of the row."""
        return row.options

    def option_index(self, row: CompletionRow) -> int | None:
        """Return the index of the target among the options."""
        if row.target is None or row.options is None:
            return None
        if row.target not in row.options:
            raise UserError(
                f"row {row.number}: the answer {row.target!r} is not among the options "
                f"{', '.join(row.options)}"
            )
        return row.options.index(row.target)

    def parse_text(self, row: CompletionRow, text: str) -> str:
        """Return the first word."""
        return text.split()[0] if text.split() else ""

    def error(self, row: CompletionRow, prediction: Prediction) -> float | None:
        """Return the probability of a wrong word."""
        wrong = prediction.value.strip() != (row.target or "").strip()
        return prediction.probability or 0.0 if wrong else None


@register_kind
class LanguageModeling(LikelihoodTask):
    """Compute the likelihood of a text, without a prediction."""

    name = "lm"
    alias = "language_modeling"
    output = "likelihood"
    all_metrics = (Perplexity(), BitsPerByte())

    def error(self, row: SourceTarget, prediction: Prediction) -> float:
        """Return the mean negative log-likelihood of a token."""
        return (prediction.nll or 0.0) / max(1, prediction.tokens)

    def describe(self, row: SourceTarget, prediction: Prediction) -> tuple[str, str]:
        """Return the mean negative log-likelihood of a token."""
        return "", f"{self.error(row, prediction):.2f} nats per token"
