"""Text to text: translation, summarization and every other generated text."""

from collections.abc import Sequence

from kinfolk.metrics.metric import Metric, Statistics
from kinfolk.metrics.text import BLEU, CHRF, ROUGE, describe_bleu
from kinfolk.tasks.rows import SourceTarget
from kinfolk.tasks.task import Prediction, Task, register_kind


@register_kind
class TextToTextTask(Task):
    """Generate a text for a text; a row may have several references."""

    name = "write"
    alias = "text_to_text"
    output = "text"
    all_metrics = (BLEU, CHRF, *ROUGE)

    @staticmethod
    def reference(row: SourceTarget) -> str | None:
        """Return the first reference."""
        return row.target

    def row_from_texts(self, *texts: str) -> SourceTarget:
        """Return the row of a source."""
        return SourceTarget(texts[0], None, 1)

    def statistics(
        self, metric: Metric, rows: Sequence[SourceTarget], predictions: Sequence[Prediction]
    ) -> Statistics:
        """Return the statistics of each row against all its references."""
        return metric.statistics([p.value for p in predictions], [row.references for row in rows])

    def score_notes(self, rows: Sequence[SourceTarget]) -> list[str]:
        """Return the tokenizer of BLEU where the language is written without spaces."""
        note = describe_bleu([row.references for row in rows])
        return [] if note is None else [note]

    def error(self, row: SourceTarget, prediction: Prediction) -> float:
        """Return 100 minus chrF."""
        return 100 - CHRF([prediction.value], [row.references])
