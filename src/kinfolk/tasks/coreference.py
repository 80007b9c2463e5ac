"""Coreference: clusters of spans that refer to one entity."""

from collections.abc import Iterator
from typing import Any

from kinfolk.metrics.coreference import ConllF1
from kinfolk.tasks.rows import CorefDocument
from kinfolk.tasks.task import Prediction, Task, register_kind


@register_kind
class Coreference(Task):
    """Predict the clusters of a document."""

    name = "coref"
    alias = "coreference"
    output = "clusters"
    head = "coref"
    all_metrics = (ConllF1(),)

    @staticmethod
    def reference(row: CorefDocument) -> Any:
        """Return the clusters."""
        return row.clusters

    def error(self, row: CorefDocument, prediction: Prediction) -> float:
        """Return 1 minus the F1 of the document."""
        return 1 - ConllF1()([prediction.value], [row.clusters])

    def describe(self, row: CorefDocument, prediction: Prediction) -> tuple[str, str]:
        """Return the number of clusters."""
        return f"{len(row.clusters or ())} clusters", f"{len(prediction.value)} clusters"

    def confidences(
        self, row: CorefDocument, prediction: Prediction
    ) -> Iterator[tuple[float, bool]]:
        """Yield nothing: a cluster has no probability."""
        yield from ()

    def to_json(self, row: CorefDocument, prediction: Prediction) -> dict[str, Any]:
        """Return the clusters as pairs of first and last word."""
        spans = [[[first, end - 1] for first, end in cluster] for cluster in prediction.value]
        return {"prediction": spans}
