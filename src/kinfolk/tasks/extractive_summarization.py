"""Extractive summarization: some sentences of a text, in its order, as its summary."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from kinfolk.errors import UserError
from kinfolk.metrics.metric import Metric, Statistics
from kinfolk.metrics.text import ROUGE
from kinfolk.tasks.rows import Article, detokenize
from kinfolk.tasks.task import Prediction, Task, register_kind

LEAD_SENTENCES = 3  # of the usual baseline, and of a summary where nothing else is known
SCORE_DIGITS = 4


@register_kind
class ExtractiveSummarization(Task):
    """Choose the sentences of a text that have the most words of a summary by a person."""

    name = "extract"
    alias = "extractive_summarization"
    output = "sentences"
    head = "sentences"
    all_metrics = ROUGE

    @classmethod
    def from_rows(
        cls, rows: Sequence[Article], *, num_sentences: int | None = None, **fields: Any
    ) -> Task:
        """Return the task of articles; a summary has as many sentences as most oracles have."""
        if num_sentences is not None and num_sentences < 1:
            raise UserError(f"--num-sentences must be at least 1 (got {num_sentences})")
        if all(len(row.sentences) < 2 for row in rows):
            raise UserError(
                f"every text of {fields.get('file') or 'these rows'} is one sentence, so that none "
                "can be chosen: give whole articles, or write summaries with --task write"
            )
        if num_sentences is None:
            oracles = [row.oracle for row in rows if row.oracle]
            mean = sum(map(len, oracles)) / max(1, len(oracles))
            num_sentences = max(1, round(mean))
        return super().from_rows(rows, num_sentences=num_sentences, **fields)

    @property
    def summary_size(self) -> int:
        """The number of sentences of a summary."""
        return self.num_sentences or LEAD_SENTENCES

    def with_num_sentences(self, count: int) -> "Task":
        """Return the task with summaries of another number of sentences."""
        if count < 1:
            raise UserError(f"--num-sentences must be at least 1 (got {count})")
        return replace(self, num_sentences=count)

    @staticmethod
    def reference(row: Article) -> str | None:
        """Return the first summary."""
        return row.target

    def row_from_texts(self, *texts: str) -> Article:
        """Return the row of a text."""
        return Article(texts[0], None, 1)

    @staticmethod
    def summary(row: Article, indices: Sequence[int]) -> str:
        """Return the text of some sentences of a row."""
        return detokenize([row.sentences[index] for index in indices])

    def statistics(
        self, metric: Metric, rows: Sequence[Article], predictions: Sequence[Prediction]
    ) -> Statistics:
        """Return the statistics of each row against all its summaries."""
        return metric.statistics([p.value for p in predictions], [row.references for row in rows])

    def score_notes(self, rows: Sequence[Article]) -> list[str]:
        """Return the number of sentences of a summary, on which ROUGE depends."""
        size = self.summary_size
        return [f"a summary has {size} sentence{'s' * (size > 1)} (--num-sentences)"]

    def error(self, row: Article, prediction: Prediction) -> float:
        """Return 1 minus ROUGE-1."""
        return 1 - ROUGE[0]([prediction.value], [row.references])

    def to_json(self, row: Article, prediction: Prediction) -> dict[str, Any]:
        """Return the summary, the indices of its sentences, and the probability of every one."""
        return {
            "prediction": prediction.value,
            "sentences": list(prediction.sentences),
            "probabilities": [round(p, SCORE_DIGITS) for p in prediction.probabilities],
        }
