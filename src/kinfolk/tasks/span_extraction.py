"""Span extraction: the answer to a question as a part of its context, as in SQuAD."""

from collections.abc import Sequence
from dataclasses import replace

from kinfolk.metrics.metric import Metric
from kinfolk.metrics.squad import ExactMatch, SpanF1, best_threshold
from kinfolk.tasks.rows import QuestionRow
from kinfolk.tasks.task import Prediction, Task, register_kind

NO_ANSWER = "unanswerable"  # the target of a text-to-text model for unanswerable questions


@register_kind
class SpanExtraction(Task):
    """Predict a part of the context, or an empty text where there is no answer."""

    name = "span"
    alias = "question_answering"
    output = "span"
    head = "span"
    all_metrics = (SpanF1(), ExactMatch())
    min_texts = 2

    @staticmethod
    def reference(row: QuestionRow) -> tuple[str, ...] | None:
        """Return all correct answers, of which an unanswerable question has none."""
        texts = tuple(text for text, _ in row.answers)
        return texts if texts or not row.answerable else None

    def row_from_texts(self, *texts: str) -> QuestionRow:
        """Return the row of a question and its context."""
        return QuestionRow("1", texts[1], texts[0], (), True, 1)

    def metrics(self, references: Sequence[Sequence[str]] = ()) -> tuple[Metric, ...]:
        """Return `all_metrics`, F1 and exact match by the rules of the language."""
        return tuple(
            replace(metric, chinese=self.language)
            if isinstance(metric, SpanF1 | ExactMatch)
            else metric
            for metric in self.all_metrics
        )

    def prompt(self, row: QuestionRow) -> tuple[str, str]:
        """Return the prefix, the question and the context."""
        return f"{self.prefix}question: {row.question} context: {row.context}", ""

    def target_text(self, row: QuestionRow) -> str | None:
        """Return the first answer."""
        if row.answers:
            return row.answers[0][0]
        return None if row.answerable else NO_ANSWER

    def parse_text(self, row: QuestionRow, text: str) -> str:
        """Return the answer, empty for none."""
        return "" if text == NO_ANSWER else text

    def error(self, row: QuestionRow, prediction: Prediction) -> float | None:
        """Return the probability of an answer that is not an exact match."""
        exact = ExactMatch(chinese=self.language)([prediction.value], [self.reference(row)])
        return None if exact else prediction.probability or 0.0

    def diagnostics(
        self, rows: Sequence[QuestionRow], predictions: Sequence[Prediction]
    ) -> dict[str, float]:
        """Return the best `null_score_diff_threshold` for these rows, and F1 with it."""
        null_scores = [p.null_score_diff for p in predictions if p.null_score_diff is not None]
        if len(null_scores) < len(rows) or all(row.answers for row in rows):
            return {}
        best = best_threshold(
            SpanF1(chinese=self.language),
            [p.best_span for p in predictions],
            [[text for text, _ in row.answers] for row in rows],
            null_scores,
        )
        return {"best_f1": best.score, "best_null_score_diff_threshold": best.threshold}

    def describe(self, row: QuestionRow, prediction: Prediction) -> tuple[str, str]:
        """Return the first answer and the prediction."""
        gold = row.answers[0][0] if row.answers else ""
        return gold or "(no answer)", prediction.value or "(no answer)"
