"""Probes of one model over its layers: linear and with a hidden layer, against control tasks.

    rows -> vectors of every layer, and a learned mix of all layers
         -> linear and MLP probes -> scores, with intervals
         -> the same probes on random labels of word types: selectivity
    the same network with random weights -> linear probes

The linear probe has one solution; seeds draw the labels of control tasks, random weights, and the
initial weights of MLP probes.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kinfolk.errors import UserError
from kinfolk.metrics.bootstrap import CONFIDENCE_LEVEL, ConfidenceInterval, percentiles, resample
from kinfolk.metrics.metric import Metric, Statistics
from kinfolk.nn.language_model import LanguageModel
from kinfolk.nn.linear_probe import PENALTIES, LinearProbe, fit_probe
from kinfolk.nn.mlp_probe import fit_mlp_probe
from kinfolk.reports.probe_page import ProbePage
from kinfolk.tasks.dataset import sample_rows, task_dataset
from kinfolk.tasks.task import Task, task_class
from kinfolk.text.tokenizer import Tokenizer
from kinfolk.training.workload import select_device
from kinfolk.workflows.load import load, restored
from kinfolk.workflows.probing.dataset import (
    FittedProbe,
    ProbeDataset,
    TextPooling,
    center_of_gravity,
    control_tags,
)
from kinfolk.workflows.probing.probes import (
    MAX_TEST_ROWS,
    MAX_TRAIN_ROWS,
    check_classes,
    check_probes,
    limit_words,
    random_network,
)
from kinfolk.workflows.probing.span_probes import (
    SpanProbeDataset,
    check_forms,
    is_span_file,
    read_spans,
)

SEEDS, N_RESAMPLES = 3, 500
SPANS = "spans"  # the value of `task` for spans of CoNLL-U files
PROBED = ("classification", "classify", "regression", "regress", "tagging", "tag")


@dataclass(frozen=True)
class ProbeCurve:
    """A value of every layer, with intervals over test rows."""

    name: str
    layers: tuple[ConfidenceInterval, ...]


@dataclass(frozen=True)
class MixProbe:
    """The values of a probe on a learned mix of all layers, with intervals over test rows."""

    name: str
    score: ConfidenceInterval  # the metric
    # None for numbers and for random weights:
    accuracy: ConfidenceInterval | None = None  # whatever the metric
    control: ConfidenceInterval | None = None  # accuracy on random labels
    selectivity: ConfidenceInterval | None = None  # accuracy minus that


MixValue = Callable[[MixProbe], ConfidenceInterval | None]


@dataclass(frozen=True, kw_only=True)
class ProbeCurves:
    """What `probe` measures."""

    model: str
    task: str
    metric: str
    train_rows: int
    dev_rows: int
    test_rows: int
    labels: int
    seeds: int
    scores: tuple[ProbeCurve, ...]  # linear, mlp, and linear on random weights
    control: tuple[ProbeCurve, ...]  # accuracy on random labels; empty for numbers
    selectivity: tuple[ProbeCurve, ...]  # accuracy minus that
    accuracy: tuple[ProbeCurve, ...]  # of the same probes, whatever the metric
    mixes: tuple[MixProbe, ...]  # linear, mlp, and linear on random weights
    mix_weights: tuple[float, ...]  # of the linear probe
    mix_center: float  # mean layer under the weights
    majority: float | None  # accuracy of the most frequent training label
    notes: tuple[str, ...] = ()

    @property
    def mix(self) -> ConfidenceInterval:
        """The score of a linear probe on the learned mix of all layers."""
        return self.mixes[0].score

    def to_json(self) -> dict[str, Any]:
        """Return all values by their names."""
        return {**asdict(self), "mix": asdict(self.mix)}


@dataclass(frozen=True, eq=False)
class ProbeRows:
    """Labelled rows in three splits, and their task."""

    task: Task
    splits: tuple[list[Any], list[Any], list[Any]]
    notes: tuple[str, ...] = ()


def probe(
    model: Path | str | tuple[LanguageModel, Tokenizer],
    train: Any,
    dev: Any,
    test: Any = None,
    *,
    task: str | None = None,
    columns: str | None = None,
    seeds: int = SEEDS,
    pooling: TextPooling = "mean",
    max_train: int = MAX_TRAIN_ROWS,
    max_test: int = MAX_TEST_ROWS,
    tokenizer: Path | str | None = None,
    device: str = "auto",
    watch: Callable[[int, int], None] = lambda done, total: None,
) -> ProbeCurves:
    """Probe what every layer of a frozen network holds.

    `probe("runs/bert", "train.conllu", "dev.conllu").scores[0].layers`

    Rows are files or lists of dictionaries: texts or pairs with a class or a number, tagged
    sentences, or spans (`task="spans"` reads the relation of each word and its head from CoNLL-U).
    Dev rows choose penalties and when to stop; without a test file, one half of the dev rows does
    and the other half is scored. At most `max_train` training rows are used, and `max_test` dev and
    test rows, each. `watch` is told how many probes are fitted, of how many. A model that is passed
    keeps its device and the mode of each module.
    """
    for option, count in (("seeds", seeds), ("max-train", max_train), ("max-test", max_test)):
        if count < 1:
            raise UserError(f"--{option} must be at least 1 (got {count})")
    rows = read_probe_rows(train, dev, test, task=task, columns=columns)
    network, loaded = model if isinstance(model, tuple) else load(model, tokenizer)
    check_probes(network.pretrained, rows.task)
    first, second, third = rows.splits
    splits = (
        limit_words(sample_rows(first, max_train), rows.task),
        sample_rows(second, max_test),
        sample_rows(third, max_test),
    )
    check_classes(splits[0], rows.task)
    spans = rows.task.output == "label" and splits[0][0].is_span
    kind = SpanProbeDataset if spans else ProbeDataset
    with restored(network):
        network = network.pretrained.to(select_device(device)).eval()
        dataset = kind.open(network, loaded, rows.task, splits, pooling, PENALTIES, 0)
        features = [dataset.features(network, group) for group in dataset.instances]
        each = len(features[0]) + 1  # of the layers, and of their mix
        groups = 1 + 2 * seeds  # linear: one; MLP and linear on random weights: of each seed
        if rows.task.output != "number":
            groups += 2 * seeds  # control tasks of both
        fitted = itertools.count(1)

        def on_fit() -> None:
            watch(next(fitted), each * groups)

        linear = LayerFits.fit(dataset, features, "linear", seeds, on_fit)
        hidden = LayerFits.fit(dataset, features, "mlp", seeds, on_fit)
        untrained = [
            linear_statistics(dataset, random_network(network, loaded, seed), on_fit)
            for seed in range(seeds)
        ]
    mixed = linear.mix_weights
    return ProbeCurves(
        model=str(model) if isinstance(model, Path | str) else network.family_name,
        task=rows.task.kind if not spans else SPANS,
        metric=dataset.metric.name,
        train_rows=len(dataset.rows[0]),
        dev_rows=len(dataset.rows[1]),
        test_rows=len(dataset.rows[2]),
        labels=len(rows.task.labels),
        seeds=seeds,
        scores=(
            linear.curve("linear"),
            hidden.curve("one hidden layer"),
            curve("linear, random weights", dataset.metric, [each[:-1] for each in untrained]),
        ),
        control=linear.control_curves("linear") + hidden.control_curves("one hidden layer"),
        selectivity=linear.selectivity("linear") + hidden.selectivity("one hidden layer"),
        accuracy=linear.accuracy("linear") + hidden.accuracy("one hidden layer"),
        mixes=(
            linear.mix("linear"),
            hidden.mix("one hidden layer"),
            MixProbe(
                "linear, random weights",
                interval(dataset.metric, [each[-1] for each in untrained]),
            ),
        ),
        mix_weights=mixed,
        mix_center=center_of_gravity(mixed),
        majority=majority_accuracy(dataset),
        notes=(*rows.notes, *dataset.notes),
    )


def read_probe_rows(
    train: Any, dev: Any, test: Any, *, task: str | None, columns: str | None
) -> ProbeRows:
    """Read the rows of all splits; without test rows, the dev rows are halved."""
    if task not in (None, "auto", SPANS) and task not in PROBED:
        raise UserError(
            f"--task {task} has no probes: choose classification, regression, tagging or spans"
        )
    files = isinstance(train, Path | str)
    for file in (train, dev, test):
        if isinstance(file, Path | str) and not Path(file).is_file():
            raise UserError(f"no such file: {file}")
    if task == SPANS or (task is None and files and is_span_file(Path(train))):
        given = {"train": train, "dev": dev, "test": test}
        spans = {name: read_spans(Path(file)) for name, file in given.items() if file is not None}
        check_forms(spans)
        found: list[list[Any]] = [*spans.values()]
        probed = task_class("classify").from_rows(found[0], file=str(train))
    else:
        dataset = task_dataset(train, dev, task=task, columns=columns)
        found = [*dataset.splits]
        probed = task_class(dataset.file_spec.task).from_rows(found[0], file=dataset.train)
        if test is not None:
            named = dataset.file_spec.task
            found.append(labelled_rows(test, named, columns))
    notes = same_files(train, dev, test)
    if len(found) == 2:
        half = len(found[1]) // 2
        if not half:
            raise UserError("probes need at least 2 dev rows, or test rows with --test")
        found = [found[0], found[1][:half], found[1][half:]]
        notes.append(
            f"no --test: {half:,} dev rows choose penalties, the other {len(found[2]):,} are scored"
        )
    for name, rows in zip(("train", "dev", "test"), found, strict=True):
        if not rows:
            raise UserError(f"probes need {name} rows, and there are none: give some")
    return ProbeRows(probed, (found[0], found[1], found[2]), tuple(notes))


def same_files(train: Any, dev: Any, test: Any) -> list[str]:
    """Return a sentence where a file of dev or test rows is one of those before it."""
    known: dict[Path, str] = {}
    for name, file in (("train", train), ("dev", dev), ("test", test)):
        if not isinstance(file, Path | str):
            continue
        first = known.setdefault(Path(file).resolve(), name)
        if first != name:
            return [
                f"--{first} and --{name} are the same file ({file}): scores are of rows that the "
                "probes were fitted to, and too high"
            ]
    return []


def labelled_rows(file: Any, task: str, columns: str | None) -> list[Any]:
    """Return the rows of a file that have a label."""
    rows = task_dataset(file, task=task, columns=columns).rows
    kind = task_class(task)
    return [row for row in rows if kind.reference(row) is not None]


@dataclass(frozen=True, eq=False)
class LayerFits:
    """The test results of one kind of probe: of every seed, then of every layer and of the mix."""

    metric: Metric
    statistics: list[list[Statistics]]
    hits: list[list[NDArray[np.float64]]]  # 1 where an item is right; empty for numbers
    control_hits: list[list[NDArray[np.float64]]]
    mix_weights: tuple[float, ...]  # of the first seed

    @classmethod
    def fit(
        cls,
        dataset: ProbeDataset,
        features: Sequence[Sequence[Tensor]],
        kind: str,
        seeds: int,
        on_fit: Callable[[], None],
    ) -> "LayerFits":
        """Fit the probes of all layers and of their mix, and those of control tasks."""
        train, dev, test = (with_mix(layers) for layers in features)
        numbers = dataset.task.output == "number"
        targets, dev_targets, test_targets = dataset.targets
        statistics, hits, control_hits = [], [], []
        probes: list[FittedProbe] = []
        weights: tuple[float, ...] = ()
        for seed in range(seeds):
            if kind != "linear" or not probes:  # a linear probe is the same for every seed
                probes = [
                    fit_layers(dataset, kind, a, b, targets, dev_targets, seed, on_fit)
                    for a, b in zip(train, dev, strict=True)
                ]
                weights = weights or tuple(probes[-1].mix_weights)
            pairs = list(zip(probes, test, strict=True))
            statistics.append([dataset.test_statistics(*pair) for pair in pairs])
            if numbers:
                continue
            hits.append([hits_of(*pair, test_targets) for pair in pairs])
            drawn = control_tags(dataset.task, dataset.rows, seed)
            labels, dev_labels, test_labels = (part.to(targets.device) for part in drawn)
            control = (
                fit_layers(dataset, kind, a, b, labels, dev_labels, seed, on_fit, like=own)
                for a, b, own in zip(train, dev, probes, strict=True)
            )
            control_hits.append(
                [hits_of(*pair, test_labels) for pair in zip(control, test, strict=True)]
            )
        return cls(dataset.metric, statistics, hits, control_hits, weights)

    def curve(self, name: str) -> ProbeCurve:
        """Return the metric of every layer, a mean over seeds."""
        return curve(name, self.metric, [each[:-1] for each in self.statistics])

    def accuracy(self, name: str) -> tuple[ProbeCurve, ...]:
        """Return the accuracy on items: texts, words or spans."""
        return accuracy_curve(name, [each[:-1] for each in self.hits])

    def control_curves(self, name: str) -> tuple[ProbeCurve, ...]:
        """Return the accuracy on the labels of control tasks."""
        return accuracy_curve(name, [each[:-1] for each in self.control_hits])

    def selectivity(self, name: str) -> tuple[ProbeCurve, ...]:
        """Return the accuracy minus that on control tasks (Hewitt & Liang 2019)."""
        return accuracy_curve(name, [each[:-1] for each in self.differences])

    def mix(self, name: str) -> MixProbe:
        """Return the values of the probe on the mix of all layers."""
        score = interval(self.metric, [each[-1] for each in self.statistics])
        if not self.hits:
            return MixProbe(name, score)
        accuracy, control, difference = (
            accuracy_interval([each[-1] for each in values])
            for values in (self.hits, self.control_hits, self.differences)
        )
        return MixProbe(name, score, accuracy, control, difference)

    @property
    def differences(self) -> list[list[NDArray[np.float64]]]:
        """What an item adds to the selectivity: 1, 0 or -1."""
        return [
            [own - control for own, control in zip(*pair, strict=True)]
            for pair in zip(self.hits, self.control_hits, strict=True)
        ]


def with_mix(layers: Sequence[Tensor]) -> list[list[Tensor]]:
    """Return what each probe reads: a single layer, and the last one all of them."""
    return [*([layer] for layer in layers), [*layers]]


def fit_layers(
    dataset: ProbeDataset,
    kind: str,
    train: Sequence[Tensor],
    dev: Sequence[Tensor],
    targets: Tensor,
    dev_targets: Tensor,
    seed: int,
    on_fit: Callable[[], None],
    *,
    like: FittedProbe | None = None,
) -> FittedProbe:
    """Fit a linear probe or one with a hidden layer on one layer, or on a mix of several.

    A linear probe of a control task has the penalty of the one that it is `like`.
    """
    outputs = max(1, len(dataset.task.labels))
    if dataset.task.output == "number":  # the penalties are for targets of variance 1
        targets, dev_targets = dataset.standardized(targets), dataset.standardized(dev_targets)
    if kind == "linear":
        same = (like.penalty,) if isinstance(like, LinearProbe) else dataset.penalties
        probe: FittedProbe = fit_probe(
            train, targets, dev, dev_targets, outputs=outputs, penalties=same
        )
    else:
        probe = fit_mlp_probe(train, targets, dev, dev_targets, outputs=outputs, seed=seed)
    on_fit()
    return probe


def linear_statistics(
    dataset: ProbeDataset, network: LanguageModel, on_fit: Callable[[], None]
) -> list[Statistics]:
    """Return the test statistics of linear probes on every layer of a network, and on the mix."""
    features = (dataset.features(network, group) for group in dataset.instances)
    train, dev, test = map(with_mix, features)
    found = []
    for a, b, c in zip(train, dev, test, strict=True):
        found.append(dataset.test_statistics(dataset.fit(a, b), c))
        on_fit()
    return found


def hits_of(probe: FittedProbe, layers: Sequence[Tensor], targets: Tensor) -> NDArray[np.float64]:
    """Return 1 for every item whose best score is that of its target."""
    with torch.no_grad():
        return (probe(layers).argmax(1) == targets).double().cpu().numpy()


def interval(metric: Metric, statistics: Sequence[Statistics]) -> ConfidenceInterval:
    """Return the mean score over seeds, with an interval of resampled rows."""

    def mean(rows: Any = slice(None)) -> float:
        return float(np.mean([metric.aggregate(each[rows]) for each in statistics]))

    drawn = [mean(rows) for rows in resample(len(statistics[0]), N_RESAMPLES, 0)]
    return ConfidenceInterval(mean(), *percentiles(drawn, CONFIDENCE_LEVEL))


def curve(name: str, metric: Metric, statistics: Sequence[Sequence[Statistics]]) -> ProbeCurve:
    """Return the intervals of all layers."""
    by_layer = zip(*statistics, strict=True)
    return ProbeCurve(name, tuple(interval(metric, layer) for layer in by_layer))


def accuracy_curve(
    name: str, hits: Sequence[Sequence[NDArray[np.float64]]]
) -> tuple[ProbeCurve, ...]:
    """Return the mean of every layer with an interval of resampled items; none for numbers."""
    if not hits:
        return ()
    return (ProbeCurve(name, tuple(accuracy_interval(layer) for layer in zip(*hits, strict=True))),)


def accuracy_interval(hits: Sequence[NDArray[np.float64]]) -> ConfidenceInterval:
    """Return the mean over seeds and items, with an interval of resampled items."""
    values = np.mean(hits, axis=0)
    drawn = [float(values[rows].mean()) for rows in resample(len(values), N_RESAMPLES, 0)]
    return ConfidenceInterval(float(values.mean()), *percentiles(drawn, CONFIDENCE_LEVEL))


def majority_accuracy(dataset: ProbeDataset) -> float | None:
    """Return the accuracy of the most frequent training label on test items."""
    if dataset.task.output == "number":
        return None
    most = torch.bincount(dataset.targets[0].clamp(min=0)).argmax()
    return float((dataset.targets[2] == most).double().mean())


def mix_columns(result: ProbeCurves) -> Sequence[tuple[str, MixValue]]:
    """Return the columns of a table of the mix: headings, and their values of a probe."""
    score = [(result.metric, attrgetter("score"))]
    if not result.control:  # numbers have no control task
        return score
    accuracy = [] if result.metric == "accuracy" else [("accuracy", attrgetter("accuracy"))]
    controls = [("control task", attrgetter("control")), ("selectivity", attrgetter("selectivity"))]
    return score + accuracy + controls


def probe_page(result: ProbeCurves) -> ProbePage:
    """Gather the values of the page."""

    def bounds(value: ConfidenceInterval | None) -> tuple[float, float, float] | None:
        return None if value is None else (value.score, value.low, value.high)

    def points(curves: Sequence[ProbeCurve]) -> list[tuple[str, list[tuple[float, float, float]]]]:
        return [(c.name, [(i.score, i.low, i.high) for i in c.layers]) for c in curves]

    return ProbePage(
        title=f"Probes of {Path(result.model).name}",
        metric=result.metric,
        scores=points(result.scores),
        control=points(result.control),
        selectivity=points(result.selectivity),
        mix_columns=[heading for heading, _ in mix_columns(result)],
        mixes=[
            (mix.name, [bounds(value(mix)) for _, value in mix_columns(result)])
            for mix in result.mixes
        ],
        mix_weights=result.mix_weights,
        mix_center=result.mix_center,
        majority=result.majority if result.metric == "accuracy" else None,
        facts=[
            ("model", result.model),
            ("task", f"{result.task}, {result.labels} labels"),
            (
                "rows",
                f"{result.train_rows:,} train, {result.dev_rows:,} dev, {result.test_rows:,} test",
            ),
            ("seeds", str(result.seeds)),
        ],
        notes=result.notes,
    )
