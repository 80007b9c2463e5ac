"""Vectors of texts and words from every frozen layer, and the linear probes that read them."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from kinfolk.batch import IGNORE_INDEX, Batch
from kinfolk.families import family_of
from kinfolk.metrics.metric import Metric, Statistics
from kinfolk.nn.language_model import LanguageModel
from kinfolk.nn.linear_probe import LinearProbe, fit_probe
from kinfolk.nn.mlp_probe import MLPProbe
from kinfolk.rng import sequential
from kinfolk.tasks.formulations.base import Formulation, Instance, TaskTargets, segment_mean
from kinfolk.tasks.formulations.choose import build_formulation
from kinfolk.tasks.formulations.features import FeatureClassifier, FeatureTagger
from kinfolk.tasks.instances import TOKENS_PER_BATCH, length_buckets
from kinfolk.tasks.task import Prediction, Task
from kinfolk.text.tokenizer import Tokenizer

FittedProbe = LinearProbe | MLPProbe
TextPooling = Literal["mean", "max", "first", "last"]
MAX_TOKENS = 128  # of a text; the same for all families


@dataclass(frozen=True, eq=False)
class LayerProbes:
    """The scores of the probes of one network on the test rows."""

    pretrained: bool  # False: the control, with random weights
    scores: tuple[float, ...]  # of each layer alone
    statistics: tuple[Statistics, ...]  # of each layer alone: (rows, ...)
    penalties: tuple[float, ...]  # L2 penalty of each layer's probe
    cumulative_scores: tuple[float, ...]  # of the mix of layers 0 to n
    cumulative_statistics: tuple[Statistics, ...]
    mix_weights: tuple[float, ...]  # in the mix of all layers
    # Accuracy of words minus that of control tags; None for texts and for random weights.
    selectivity: tuple[float, ...] | None = None

    def to_json(self, entrant: str) -> dict[str, Any]:
        """Return the row of race.json, without the statistics of test rows."""
        return {
            "entrant": entrant,
            "layers": list(self.scores),
            "pretrained": self.pretrained,
            "cumulative": list(self.cumulative_scores),
            "mix_weights": list(self.mix_weights),
            "center_of_gravity": center_of_gravity(self.mix_weights),
            "expected_layer": expected_layer(self.cumulative_scores),
            "selectivity": None if self.selectivity is None else list(self.selectivity),
        }


@dataclass(frozen=True, eq=False)
class ProbeDataset:
    """Encoded rows of a task, which the layers of any network of one config are probed with."""

    task: Task
    metric: Metric
    formulation: Formulation
    pooling: TextPooling
    penalties: Sequence[float]
    rows: tuple[list[Any], ...]  # train, dev and test, and so below
    instances: tuple[list[Instance], ...]
    targets: tuple[Tensor, ...]  # of each text or word
    control: tuple[Tensor, ...] | None  # random tags of word types
    notes: tuple[str, ...] = ()  # what was cut

    @classmethod
    def open(
        cls,
        network: LanguageModel,
        tokenizer: Tokenizer,
        task: Task,
        splits: tuple[list[Any], ...],
        pooling: TextPooling,
        penalties: Sequence[float],
        seed: int,
    ) -> "ProbeDataset":
        """Encode the rows as the formulation `features` does, in full for a network's length."""
        family = family_of(network)
        tokenizer = tokenizer.with_end_token(family.required_tokens)
        length = min(network.config.max_length or MAX_TOKENS, MAX_TOKENS)
        formulation = build_formulation(
            FeatureTagger if task.output == "tags" else FeatureClassifier,
            *(task, family, network.config, tokenizer),
            length=length,
        )
        metrics = task.metrics([task.reference(row) for row in splits[-1]])
        device = next(network.parameters()).device
        control = control_tags(task, splits, seed) if task.output == "tags" else None
        encoded = [
            [formulation.instances(row, tokenizer, labelled=False) for row in rows]
            for rows in splits
        ]
        return cls(
            task,
            next(metric for metric in metrics if metric.name == task.main_metric),
            formulation,
            pooling,
            penalties,
            splits,
            tuple([instance for group in groups for instance in group] for groups in encoded),
            tuple(item_targets(task, rows).to(device) for rows in splits),
            control and tuple(tags.to(device) for tags in control),
            tuple(length_notes([each for groups in encoded for each in groups], length)),
        )

    def probe(self, network: LanguageModel, *, pretrained: bool) -> LayerProbes:
        """Fit and score the probes of each layer, and of the mixes of the first layers."""
        train, dev, test = (self.features(network, group) for group in self.instances)
        numbers = range(len(train))
        alone = [self.fit(train[n : n + 1], dev[n : n + 1]) for n in numbers]
        mixed = [alone[0], *(self.fit(train[: n + 1], dev[: n + 1]) for n in numbers[1:])]
        statistics = [self.test_statistics(p, test[n : n + 1]) for n, p in enumerate(alone)]
        cumulative = [self.test_statistics(p, test[: n + 1]) for n, p in enumerate(mixed)]
        return LayerProbes(
            pretrained,
            tuple(map(self.metric.aggregate, statistics)),
            tuple(statistics),
            tuple(probe.penalty for probe in alone),
            tuple(map(self.metric.aggregate, cumulative)),
            tuple(cumulative),
            tuple(mixed[-1].mix_weights),
            self.selectivity(alone, train, dev, test) if pretrained else None,
        )

    @torch.no_grad()
    def features(self, network: LanguageModel, instances: Sequence[Instance]) -> list[Tensor]:
        """Return the vectors of all texts or words from every layer: (items, size) each."""
        device = next(network.parameters()).device
        sizes = [self.num_items(instance) for instance in instances]
        starts = np.cumsum([0, *sizes])
        found: list[Tensor] = []
        for group in length_buckets([instance.tokens for instance in instances], TOKENS_PER_BATCH):
            batch: Batch[TaskTargets] = self.formulation.make_batch([instances[i] for i in group])
            batch = batch.to(device)
            items = torch.from_numpy(
                np.concatenate([np.arange(starts[i], starts[i + 1]) for i in group])
            ).to(device)
            for n, layer in enumerate(network.all_layer_outputs(batch.inputs)):
                vectors = self.read(layer, batch.targets)
                if n == len(found):
                    found.append(vectors.new_empty(int(starts[-1]), vectors.shape[1]))
                found[n][items] = vectors
        return found

    def num_items(self, instance: Instance) -> int:
        """Return the number of vectors of an instance: of a sentence one per word."""
        return len(instance.examples[0].read_positions) if self.task.output == "tags" else 1

    def read(self, layer: Tensor, targets: TaskTargets) -> Tensor:
        """Return the vectors of texts or words from a layer: (rows, length, size) to (items, n)."""
        states = layer.flatten(0, 1).index_select(0, targets.read_at)
        if targets.example_ids is None:
            return states
        texts = pool_texts(states, targets.example_ids, len(targets.instance_ids), self.pooling)
        if not self.task.is_pair:
            return texts
        u, v = texts[::2], texts[1::2]
        return torch.cat([u, v, (u - v).abs(), u * v], dim=1)

    def fit(self, train: Sequence[Tensor], dev: Sequence[Tensor]) -> LinearProbe:
        """Fit a probe on the vectors of one or more layers."""
        targets, dev_targets, _ = self.targets
        outputs = max(1, len(self.task.labels))
        if self.task.output == "number":  # the penalties are for targets of variance 1
            targets, dev_targets = self.standardized(targets), self.standardized(dev_targets)
        return fit_probe(
            train, targets, dev, dev_targets, outputs=outputs, penalties=self.penalties
        )

    def standardized(self, numbers: Tensor) -> Tensor:
        """Return numbers in the mean and deviation of the training rows."""
        known = self.targets[0]
        return (numbers - known.mean()) / known.std(correction=0).clamp(min=1e-6)

    def test_statistics(self, probe: FittedProbe, layers: Sequence[Tensor]) -> Statistics:
        """Return the metric's statistics of every test row."""
        scores = probe(layers)
        values: list[Any]
        if self.task.output == "number":
            known = self.targets[0]
            values = (scores[:, 0] * known.std(correction=0) + known.mean()).tolist()
        else:
            labels = [self.task.labels[best] for best in scores.argmax(1).tolist()]
            values = labels
            if self.task.output == "tags":
                ends = np.cumsum([0, *(len(row.words) for row in self.rows[-1])]).tolist()
                values = [tuple(labels[a:b]) for a, b in pairwise(ends)]
        return self.task.statistics(self.metric, self.rows[-1], [Prediction(v) for v in values])

    def selectivity(
        self, probes: Sequence[LinearProbe], *splits: Sequence[Tensor]
    ) -> tuple[float, ...] | None:
        """Return each probe's accuracy on words minus that of the same probe on control tags."""
        if self.control is None:
            return None
        selectivity = []
        for probe, *layers in zip(probes, *splits, strict=True):
            (train, dev, test), outputs = ([layer] for layer in layers), len(self.task.labels)
            control = fit_probe(
                *(train, self.control[0], dev, self.control[1]),
                outputs=outputs,
                penalties=(probe.penalty,),
            )
            hits = (probe(test).argmax(1) == self.targets[-1]).double().mean()
            memorized = (control(test).argmax(1) == self.control[-1]).double().mean()
            selectivity.append(float(hits - memorized))
        return tuple(selectivity)


def length_notes(rows: Sequence[Sequence[Instance]], length: int) -> list[str]:
    """Return sentences about rows that are longer than a number of tokens, if there are any."""
    counts = {
        "their end was cut off": sum(any(i.truncated_tokens for i in row) for row in rows),
        "they were read in parts": sum(len(row) > 1 for row in rows),
    }
    return [
        f"{count:,} of {len(rows):,} rows are longer than {length} tokens: {done}"
        for done, count in counts.items()
        if count
    ]


def item_targets(task: Task, rows: Sequence[Any]) -> Tensor:
    """Return the class of each text or word, or the number; of unknown labels IGNORE_INDEX."""
    if task.output == "number":
        return torch.tensor([float(task.reference(row)) for row in rows])
    index = {label: n for n, label in enumerate(task.labels)}
    labels = (label for row in rows for label in task.row_labels(row))
    return torch.tensor([index.get(label, IGNORE_INDEX) for label in labels])


def control_tags(task: Task, splits: Sequence[Sequence[Any]], seed: int) -> tuple[Tensor, ...]:
    """Return a random label for the type of every item, as frequent as in the training rows.

    The type of a tagged word is the word; of a text or of spans, see `item_types`.
    """
    tags = item_targets(task, splits[0]).numpy()
    found = [[kind for row in rows for kind in item_types(task, row)] for rows in splits]
    types = sorted({kind for kinds in found for kind in kinds})
    drawn = dict(zip(types, sequential(seed).choice(tags, len(types)).tolist(), strict=True))
    return tuple(torch.tensor([drawn[kind] for kind in kinds]) for kinds in found)


def item_types(task: Task, row: Any) -> Sequence[str]:
    """Return the words of a tagged sentence, of spans their words, of texts their first words."""
    if task.output == "tags":
        return list(row.words)
    firsts = (text.split()[:1] or [""] for text in row.texts)
    return [" ".join(row.texts) if row.is_span else " ".join(word for (word,) in firsts)]


def pool_texts(states: Tensor, text_ids: Tensor, texts: int, pooling: TextPooling) -> Tensor:
    """Return one vector of each text from those of its tokens: (tokens, size) to (texts, size)."""
    if pooling == "mean":
        return segment_mean(states, text_ids, texts)
    if pooling == "max":
        index = text_ids[:, None].expand_as(states)
        empty = states.new_zeros(texts, states.shape[1])
        return empty.scatter_reduce(0, index, states, "amax", include_self=False)
    ends = torch.bincount(text_ids, minlength=texts).cumsum(0)
    return states[ends - 1 if pooling == "last" else ends - torch.bincount(text_ids)]


def center_of_gravity(weights: Sequence[float]) -> float:
    """Return the mean layer under weights of layers 0, 1, ... (Tenney et al. 2019)."""
    return sum(n * weight for n, weight in enumerate(weights)) / sum(weights)


def expected_layer(scores: Sequence[float]) -> float | None:
    """Return the layer at which a task is solved on average (Tenney et al. 2019).

    The scores are those of mixes of layers 0 to n, higher for better. Layer n counts by what it
    adds to the best score before. None where no layer adds anything to the embeddings.

    Deviation: the paper also counts losses, which may put the mean outside of the network.
    """
    gains = np.diff(np.maximum.accumulate(np.asarray(scores, np.float64)))
    total = float(gains.sum())
    return float(gains @ np.arange(1, len(scores)) / total) if total > 0 else None
