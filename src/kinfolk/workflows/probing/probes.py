"""Probes: what a linear classifier reads from each frozen layer of a pretrained network.

    rows -> hidden states of every layer (0: the embeddings) -> one vector per text or word
         -> linear probe per layer -> the task's metric on test rows

The same network with random weights is the control: what its probe scores was not learned by
pretraining. For tags there is a second control, random tags of word types, which a probe can only
memorize (Hewitt & Liang 2019).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from kinfolk.errors import UserError
from kinfolk.families import family_of
from kinfolk.hub.folder import bind_tokenizer
from kinfolk.metrics.bootstrap import (
    CONFIDENCE_LEVEL,
    ConfidenceInterval,
    PairedDifference,
    paired_difference,
    percentiles,
    resample,
)
from kinfolk.metrics.metric import Metric
from kinfolk.nn.language_model import LanguageModel
from kinfolk.nn.linear_probe import PENALTIES
from kinfolk.reports.page import plural
from kinfolk.tasks.dataset import sample_rows
from kinfolk.tasks.task import Task
from kinfolk.text.tokenizer import Tokenizer
from kinfolk.training.workload import select_device
from kinfolk.workflows.load import load, restored
from kinfolk.workflows.probing.dataset import (
    LayerProbes,
    ProbeDataset,
    TextPooling,
    center_of_gravity,
)

MAX_TRAIN_ROWS, MAX_TEST_ROWS = 2000, 1000
CENTER_RESAMPLES = 500
MIN_KNOWN = 0.9  # of the resamples, which have a layer above random weights
MAX_TRAIN_WORDS = 5000  # of tagged sentences


@dataclass(frozen=True, eq=False)
class ProbeResult:
    """The probes of a pretrained network, and those of the same network with random weights."""

    metric: Metric
    train_rows: int
    dev_rows: int
    test_rows: int
    pretrained: LayerProbes
    control: LayerProbes

    def gains(self) -> list[PairedDifference]:
        """Return what the probe of each layer scores above that of random weights."""
        pairs = zip(self.pretrained.statistics, self.control.statistics, strict=True)
        return [
            paired_difference(self.metric, *pair, n_resamples=self.metric.max_resamples)
            for pair in pairs
        ]

    def gain_center(self) -> ConfidenceInterval | None:
        """Return the mean layer under the gains, with the interval of resampled test rows.

        Layers below random weights count as 0. None where no layer is above them, or none in more
        than a tenth of the resamples.
        """
        layers = [*self.pretrained.statistics, *self.control.statistics]

        def center(rows: Any = slice(None)) -> float | None:
            scores = np.array([self.metric.aggregate(layer[rows]) for layer in layers])
            trained, untrained = np.split(scores, 2)
            gains = np.maximum(trained - untrained, 0)
            return center_of_gravity(gains.tolist()) if gains.any() else None

        found = center()
        drawn = [center(rows) for rows in resample(len(layers[0]), CENTER_RESAMPLES, 0)]
        known = [value for value in drawn if value is not None]
        if found is None or len(known) < MIN_KNOWN * len(drawn):
            return None
        return ConfidenceInterval(found, *percentiles(known, CONFIDENCE_LEVEL))

    def to_json(self, entrant: str) -> list[dict[str, Any]]:
        """Return both rows of race.json; that of the pretrained network has the gains."""
        gains, center = self.gains(), self.gain_center()
        pretrained = {
            **self.pretrained.to_json(entrant),
            "gains": [gain.score for gain in gains],
            "gains_low": [gain.low for gain in gains],
            "gains_high": [gain.high for gain in gains],
            "gain_center": None if center is None else center.score,
            "gain_center_low": None if center is None else center.low,
            "gain_center_high": None if center is None else center.high,
        }
        return [pretrained, self.control.to_json(entrant)]


def probe_layers(
    model: Path | str | tuple[LanguageModel, Tokenizer],
    train: Sequence[Any],
    dev: Sequence[Any],
    test: Sequence[Any],
    task: Task,
    *,
    seed: int = 0,
    pooling: TextPooling = "mean",
    penalties: Sequence[float] = PENALTIES,
    max_train_rows: int = MAX_TRAIN_ROWS,
    max_test_rows: int = MAX_TEST_ROWS,
    device: str = "auto",
) -> ProbeResult:
    """Probe every layer of a pretrained network, and of the same network with random weights.

    The model is a run, a model folder, or what `load` returns. Rows above the limits are left out,
    the same ones for every model. Dev rows choose one of the L2 penalties, and
    nothing else. A text is the mean of its
    tokens (`pooling`), a word its first subword token, or the last one in a decoder, which has read
    the whole word there. Of a pair of texts the probe reads [u; v; |u - v|; u * v]. The seed is
    that of random weights and of control tags.
    """
    network, tokenizer = model if isinstance(model, tuple) else load(model)
    check_probes(network.pretrained, task)
    for name, rows in {"train": train, "dev": dev, "test": test}.items():
        if not rows:
            raise UserError(f"probes need {name} rows, and there are none: give some")
        task.check_references(rows)
    splits = (
        limit_words(sample_rows(list(train), max_train_rows), task),
        sample_rows(list(dev), max_test_rows),
        sample_rows(list(test), max_test_rows),
    )
    with restored(network):
        network = network.pretrained.to(select_device(device)).eval()
        dataset = ProbeDataset.open(network, tokenizer, task, splits, pooling, penalties, seed)
        fresh = random_network(network, tokenizer, seed)
        return ProbeResult(
            metric=dataset.metric,
            train_rows=len(splits[0]),
            dev_rows=len(splits[1]),
            test_rows=len(splits[2]),
            pretrained=dataset.probe(network, pretrained=True),
            control=dataset.probe(fresh, pretrained=False),
        )


def check_probes(network: LanguageModel, task: Task) -> None:
    """Refuse families without frozen layers to probe, and tasks that a linear probe cannot do."""
    family = family_of(network)
    if network.gradient_free is not None:
        raise UserError(f"{family.name} models have no hidden layers: probe a neural network")
    if not family.objectives:
        raise UserError(
            f"{family.name} has no pretraining objective, so that its layers know nothing before "
            "they are trained on labelled rows: probe a pretrained family"
        )
    if task.output not in ("label", "number", "tags"):
        raise UserError(
            f"linear probes apply to classification, regression and tagging, not to {task.kind}: "
            "choose another task"
        )


def check_classes(rows: Sequence[Any], task: Task) -> None:
    """Refuse training rows of one class, which any probe tells apart."""
    found = {task.reference(row) for row in rows} if task.output == "label" else {"", "other"}
    if len(found) < 2:
        raise UserError(
            f"{plural(len(rows), 'training row')} of one class ({', '.join(map(str, found))}): "
            "probes need two; raise --max-train, or use another file"
        )


def random_network(network: LanguageModel, tokenizer: Tokenizer, seed: int) -> LanguageModel:
    """Return the same network with new random weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        fresh: LanguageModel = network.config.build()
    bind_tokenizer(fresh, tokenizer)
    return fresh.to(next(network.parameters()).device).eval()


def limit_words(rows: list[Any], task: Task) -> list[Any]:
    """Draw fewer tagged sentences where they have too many words."""
    if task.output != "tags":
        return rows
    words = sum(len(row.words) for row in rows)
    return sample_rows(rows, max(1, len(rows) * MAX_TRAIN_WORDS // max(words, MAX_TRAIN_WORDS)))
