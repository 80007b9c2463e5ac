"""Baselines of labelled rows: the most frequent answer, and models that count words.

They take seconds, are scored on the dev rows of a fine-tuning run, and show what it is worth.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kinfolk.metrics.bootstrap import confidence_interval, paired_difference
from kinfolk.metrics.tfidf import TfidfClassifier, TfidfRegressor
from kinfolk.rng import Stream, generator
from kinfolk.tasks.extractive_summarization import LEAD_SENTENCES, ExtractiveSummarization
from kinfolk.tasks.rows import (
    Article,
    CompletionRow,
    LabelledText,
    MultipleChoiceRow,
    Row,
    SourceTarget,
    TaggedSentence,
)
from kinfolk.tasks.task import BaselineComparison, Prediction, Task, TaskOutput, metric_title

# Work of a baseline: training rows are left out above it. Text is what an n-gram model counts,
# classes are what its weights are fitted for.
MAX_CHARACTERS = 3_000_000
MAX_CLASS_SCORES = 1_000_000  # rows times classes
BASELINE_TITLES = {
    "majority": "majority",
    "mean": "mean",
    "tfidf": "TF-IDF",
    "word_tag": "tag per word",
    "copy": "copy of input",
    "random": "random",
    "lead3": f"LEAD-{LEAD_SENTENCES}",
    "lead": "LEAD-k",  # as many as the model chooses
    "oracle": "oracle",
}
UNTRAINED: tuple[TaskOutput, ...] = ("sentences",)  # whose baselines need no training rows
UPPER_BOUNDS = ("oracle",)  # that read the references: no model has to be better
STANDARD_ERRORS = 2.0  # between a score and the majority, below which nothing was learned

Predict = Callable[[Sequence[Any]], list[Any]]  # a value for each row
Fit = Callable[[Task, Sequence[Any]], Predict]


@dataclass(frozen=True)
class TaskBaseline:
    """A model that needs no network, and its scores on dev rows."""

    name: str  # a key of BASELINE_TITLES
    scores: dict[str, float]


@dataclass(frozen=True)
class TaskBaselines:
    """The baselines of a task on its dev rows."""

    models: tuple[TaskBaseline, ...] = ()
    rows: int = 0  # training rows that they were fitted on
    all_rows: int = 0

    @property
    def scores(self) -> dict[str, dict[str, float]]:
        """The scores by the name of the baseline, then by metric."""
        return {model.name: model.scores for model in self.models}


def fit_baselines(task: Task, train: Sequence[Any], dev: Sequence[Any]) -> TaskBaselines:
    """Fit the baselines of a task on training rows, and score them on dev rows."""
    fits = matching_fits(task, train)
    if not fits or not dev:
        return TaskBaselines()
    rows = limit_rows(task, train)
    models = []
    for name, fit in fits.items():
        values = fit(task, rows)(dev)
        models.append(
            TaskBaseline(name, task.evaluate(dev, [Prediction(value) for value in values]))
        )
    return TaskBaselines(tuple(models), len(rows), len(train))


def matching_fits(task: Task, rows: Sequence[Any]) -> dict[str, Fit]:
    """Return how each baseline of a task is fitted, by its name."""
    return {
        name: fit
        for output, row_type, name, fit in FITS
        if output == task.output and isinstance(rows[0], row_type)
    }


def baseline_names(task: Task, rows: Sequence[Any]) -> tuple[str, ...]:
    """Return the titles of the baselines of a task."""
    return tuple(BASELINE_TITLES[name] for name in matching_fits(task, rows))


def fit_values(task: Task, name: str, train: Sequence[Any], test: Sequence[Any]) -> list[Any]:
    """Fit one baseline on training rows; return its predictions for test rows."""
    return matching_fits(task, train)[name](task, train)(test)


def compare_untrained(
    task: Task, rows: Sequence[Any], predictions: Sequence[Prediction], *, seed: int = 0
) -> tuple[BaselineComparison, ...]:
    """Compare predictions with the baselines of a task that need no training rows."""
    if task.output not in UNTRAINED:
        return ()
    metrics = task.metrics([task.reference(row) for row in rows])
    main = next(metric for metric in metrics if metric.name == task.main_metric)
    own, compared = task.statistics(main, rows, predictions), []
    for name, fit in matching_fits(task, rows).items():
        values = [Prediction(value) for value in fit(task, rows)(rows)]
        statistics = {metric.name: task.statistics(metric, rows, values) for metric in metrics}
        intervals = {
            metric.name: confidence_interval(
                metric, statistics[metric.name], n_resamples=metric.max_resamples, seed=seed
            )
            for metric in metrics
        }
        difference = paired_difference(
            main, own, statistics[main.name], n_resamples=main.max_resamples, seed=seed
        )
        compared.append(BaselineComparison(name, intervals, difference))
    return tuple(compared)


def comparison_notes(task: Task, baselines: Sequence[BaselineComparison]) -> list[str]:
    """Return a sentence for each baseline that a model can be better than."""
    main = metric_title(task.main_metric)
    return [
        f"{main} minus that of {BASELINE_TITLES[b.name]} ({b.scores[task.main_metric].score:.4f}): "
        f"{b.difference.score:+.4f} [95% CI {b.difference.low:+.4f}, {b.difference.high:+.4f}]"
        for b in baselines
        if b.name not in UPPER_BOUNDS
    ]


def limit_rows(task: Task, rows: Sequence[Any]) -> Sequence[Any]:
    """Draw as many rows as a baseline reads in a few seconds, the same ones every time."""
    mean = sum(len(row.texts_and_labels[0]) for row in rows) / len(rows)
    limit = int(min(MAX_CHARACTERS / max(1, mean), MAX_CLASS_SCORES / max(1, len(task.labels))))
    if len(rows) <= limit:
        return rows
    drawn = generator(0, Stream.SUBSAMPLE).permutation(len(rows))[:limit]
    return [rows[index] for index in sorted(drawn.tolist())]


def majority(task: Task, rows: Sequence[Any]) -> Predict:
    """Predict the most frequent reference."""
    best = most_frequent(task.reference(row) for row in rows)
    return lambda dev: [best] * len(dev)


def majority_option(task: Task, rows: Sequence[Any]) -> Predict:
    """Predict the most frequent index, or the last option of a row with fewer."""
    best = most_frequent(row.label for row in rows)
    return lambda dev: [min(best, len(row.options) - 1) for row in dev]


def majority_tag(task: Task, rows: Sequence[Any]) -> Predict:
    """Predict the most frequent tag for every word."""
    best = most_frequent(tag for row in rows for tag in row.tags)
    return lambda dev: [(best,) * len(row.words) for row in dev]


def tag_per_word(task: Task, rows: Sequence[Any]) -> Predict:
    """Predict the most frequent tag of each word, and of all words for one that is unknown."""
    best = most_frequent(tag for row in rows for tag in row.tags)
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for row in rows:
        for word, tag in zip(row.words, row.tags, strict=True):
            counts[word][tag] += 1
    tags = {word: most_frequent(count.elements()) for word, count in counts.items()}
    return lambda dev: [tuple(tags.get(word, best) for word in row.words) for row in dev]


def mean_number(task: Task, rows: Sequence[Any]) -> Predict:
    """Predict the mean of the numbers."""
    mean = sum(task.reference(row) for row in rows) / len(rows)
    return lambda dev: [mean] * len(dev)


def tfidf_label(task: Task, rows: Sequence[Any]) -> Predict:
    """Predict a class by logistic regression."""
    model = TfidfClassifier.fit([row.texts for row in rows], [task.reference(row) for row in rows])
    return lambda dev: model.predict([row.texts for row in dev])


def tfidf_number(task: Task, rows: Sequence[Any]) -> Predict:
    """Predict a number by ridge regression."""
    model = TfidfRegressor.fit([row.texts for row in rows], [task.reference(row) for row in rows])
    return lambda dev: [*model.predict([row.texts for row in dev])]


def copy_source(task: Task, rows: Sequence[Any]) -> Predict:
    """Predict the source itself."""
    return lambda dev: [row.source for row in dev]


def random_sentences(task: Task, rows: Sequence[Any]) -> Predict:
    """Predict as many sentences as the model, drawn without replacement."""
    assert isinstance(task, ExtractiveSummarization)
    size, summary = task.summary_size, task.summary

    def predict(dev: Sequence[Any]) -> list[Any]:
        drawn = generator(0, Stream.SUBSAMPLE)
        orders = (drawn.permutation(len(row.sentences))[:size] for row in dev)
        return [summary(row, sorted(o.tolist())) for row, o in zip(dev, orders, strict=True)]

    return predict


def first_sentences(task: Task, size: int) -> Predict:
    """Predict the first sentences."""
    assert isinstance(task, ExtractiveSummarization)
    summary = task.summary
    return lambda dev: [summary(row, range(min(size, len(row.sentences)))) for row in dev]


def lead_three(task: Task, rows: Sequence[Any]) -> Predict:
    """Predict the first three sentences."""
    return first_sentences(task, LEAD_SENTENCES)


def lead_same_number(task: Task, rows: Sequence[Any]) -> Predict:
    """Predict as many of the first sentences as the model chooses."""
    assert isinstance(task, ExtractiveSummarization)
    return first_sentences(task, task.summary_size)


def oracle_sentences(task: Task, rows: Sequence[Any]) -> Predict:
    """Predict the sentences that are the labels of training."""
    assert isinstance(task, ExtractiveSummarization)
    summary = task.summary
    return lambda dev: [summary(row, row.oracle) for row in dev]


# By the type of prediction and of the rows; the constant prediction first.
FITS: tuple[tuple[TaskOutput, type[Row], str, Fit], ...] = (
    ("label", Row, "majority", majority),
    ("label", LabelledText, "tfidf", tfidf_label),
    ("number", Row, "mean", mean_number),
    ("number", LabelledText, "tfidf", tfidf_number),
    ("option", MultipleChoiceRow, "majority", majority_option),
    ("tags", TaggedSentence, "majority", majority_tag),
    ("tags", TaggedSentence, "word_tag", tag_per_word),
    ("text", SourceTarget, "copy", copy_source),
    ("word", CompletionRow, "majority", majority),
    ("sentences", Article, "random", random_sentences),
    ("sentences", Article, "lead3", lead_three),
    ("sentences", Article, "lead", lead_same_number),
    ("sentences", Article, "oracle", oracle_sentences),
)


def most_frequent(values: Any) -> Any:
    """Return the most frequent value; of equally frequent ones the first."""
    return Counter(values).most_common(1)[0][0]


def baseline_messages(
    task: Task, baselines: TaskBaselines, dev: Sequence[Any], scores: Mapping[str, float]
) -> list[str]:
    """Return warnings about a dev score near the majority or below word counts."""
    messages = []
    if baselines.rows < baselines.all_rows:
        messages.append(
            f"baselines are fitted on {baselines.rows:,} of {baselines.all_rows:,} training rows, "
            "to take seconds"
        )
    if warning := majority_warning(task, baselines, dev, scores):
        messages.append(warning)
    main = task.main_metric
    better = [
        model
        for model in baselines.models[1:]
        if model.name not in UPPER_BOUNDS
        and main in scores
        and task.normalized(model.scores[main]) > task.normalized(scores[main])
    ]
    messages += [
        f"the baseline {BASELINE_TITLES[model.name]}, which takes seconds, has a higher dev {main} "
        f"({model.scores[main]:.4f}) than the model ({scores[main]:.4f}): see "
        "'With ten minutes of CPU' in docs/tasks.md"
        for model in better
    ]
    return messages


def majority_warning(
    task: Task, baselines: TaskBaselines, dev: Sequence[Any], scores: Mapping[str, float]
) -> str:
    """Return a warning where a score is within two standard errors of a constant prediction."""
    name = "accuracy" if task.output != "number" else "pearson"
    if not baselines.models or name not in baselines.models[0].scores or name not in scores:
        return ""
    constant = baselines.models[0]
    count = sum(len(row.words) for row in dev) if task.output == "tags" else len(dev)
    share = constant.scores[name]
    # Of a share of rows; of a correlation that is 0.
    variance = 1.0 if task.output == "number" else max(share * (1 - share), 1 / count)
    error = math.sqrt(variance / count)
    if scores[name] > share + STANDARD_ERRORS * error:
        return ""
    things = "words" if task.output == "tags" else "rows"
    return (
        f"warning: dev {name} {scores[name]:.4f} is within two standard errors of a constant "
        f"prediction ({BASELINE_TITLES[constant.name]}: {share:.4f}, standard error {error:.4f} on "
        f"{count:,} dev {things}): the model may have learned nothing; train longer (--epochs), "
        "raise --lr, start from a pretrained model, or use more dev rows"
    )
