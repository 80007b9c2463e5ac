"""Tagging: one tag for each word, for entities, parts of speech or semantic roles."""

from collections.abc import Iterator, Sequence
from typing import Any

from kinfolk.errors import UserError
from kinfolk.metrics.classification import confusion_matrix
from kinfolk.metrics.entities import (
    EntityF1,
    TagAccuracy,
    WordF1,
    has_entity_tags,
    scores_by_type,
    unknown_prefix,
)
from kinfolk.metrics.metric import PRF, Metric
from kinfolk.tasks.rows import TaggedSentence, is_cjk
from kinfolk.tasks.task import Prediction, Task, register_kind, sort_labels


@register_kind
class Tagging(Task):
    """Predict one of `labels` for each word."""

    name = "tag"
    alias = "tagging"
    output = "tags"
    head = "tokens"
    all_metrics = (EntityF1(), TagAccuracy())

    @classmethod
    def label_fields(
        cls, rows: Sequence[TaggedSentence], *, file: str, positive_label: str | None
    ) -> dict[str, Any]:
        """Return the tags; those of entities must all have a prefix."""
        labels = sort_labels({tag for row in rows for tag in row.tags or ()})
        if has_entity_tags(labels) and (unknown := unknown_prefix(labels)) is not None:
            number = next(row.number for row in rows if unknown in (row.tags or ()))
            raise UserError(
                f"the sentence on line {number:,} of {file} has the tag {unknown!r}, and other "
                "tags begin with B- or I-: write O, or a prefix before every type (B-PER, I-PER)"
            )
        return {"labels": labels}

    @staticmethod
    def reference(row: TaggedSentence) -> tuple[str, ...] | None:
        """Return the tags."""
        return row.tags

    @staticmethod
    def row_labels(row: TaggedSentence) -> Sequence[str]:
        """Return the tags."""
        return row.tags or ()

    def row_from_texts(self, *texts: str) -> TaggedSentence:
        """Return the row of words, or of one text that is split at its spaces."""
        words = texts[0].split() if len(texts) == 1 else texts
        if len(words) == 1 and is_cjk(words[0][:1]):
            words = tuple(words[0])  # a sentence without spaces
        return TaggedSentence(tuple(words), None, 1)

    @property
    def main_metric(self) -> str:
        """The first metric: F1, or accuracy where every word has a class, as parts of speech do."""
        return self.metric or self.metrics()[0].name

    @property
    def has_outside(self) -> bool:
        """Whether words may have no class: tags of entities, or the tag O among classes."""
        return not self.labels or "O" in self.labels or has_entity_tags(self.labels)

    def metrics(self, references: Sequence[Sequence[str]] = ()) -> tuple[Metric, ...]:
        """Return `all_metrics`; F1 of tags without a B- or I- prefix is of words.

        Where every word has a class, F1 of entities is left out unless it is asked for.
        """
        if not self.has_outside and self.metric != EntityF1.name:
            return tuple(m for m in self.all_metrics if not isinstance(m, EntityF1))
        tags = {tag for sentence in (self.labels, *references) for tag in sentence}
        if has_entity_tags(sorted(tags)):
            return self.all_metrics
        return tuple(WordF1() if isinstance(m, EntityF1) else m for m in self.all_metrics)

    def score_notes(self, rows: Sequence[TaggedSentence]) -> list[str]:
        """Return what F1 counts where it is not entities."""
        (metric, *_) = self.metrics([row.tags or () for row in rows])
        if not isinstance(metric, WordF1) or isinstance(metric, EntityF1):
            return []
        return ["F1 counts words with a tag other than O, because no tag begins with B- or I-"]

    def target_text(self, row: TaggedSentence) -> str | None:
        """Return the tags with spaces between them."""
        return None if row.tags is None else " ".join(row.tags)

    def parse_text(self, row: TaggedSentence, text: str) -> tuple[str, ...]:
        """Return one tag per word; words that are not tags become O or the first tag."""
        other = "O" if "O" in self.labels else self.labels[0]
        tags = [tag if tag in self.labels else other for tag in text.split()[: len(row.words)]]
        return (*tags, *[other] * (len(row.words) - len(tags)))

    def error(self, row: TaggedSentence, prediction: Prediction) -> float | None:
        """Return the highest probability of a wrong tag, or the number of wrong tags."""
        wrong = self.wrong_words(row, prediction)
        if not wrong:
            return None
        if not prediction.probabilities:
            return float(len(wrong))
        return max(prediction.probabilities[i] for i in wrong)

    def describe(self, row: TaggedSentence, prediction: Prediction) -> tuple[str, str]:
        """Return the words with wrong tags."""
        wrong, tags = self.wrong_words(row, prediction), row.tags or ()
        return (
            ", ".join(f"{row.words[i]} {tags[i]}" for i in wrong),
            ", ".join(f"{row.words[i]} {prediction.value[i]}" for i in wrong),
        )

    def wrong_words(self, row: TaggedSentence, prediction: Prediction) -> list[int]:
        """Return the indices of words with wrong tags."""
        tags = row.tags or ()
        return [i for i, tag in enumerate(prediction.value) if tag != tags[i]]

    def confidences(
        self, row: TaggedSentence, prediction: Prediction
    ) -> Iterator[tuple[float, bool]]:
        """Yield the probability of each tag, and whether it is correct."""
        pairs = zip(prediction.probabilities, prediction.value, row.tags or (), strict=False)
        for probability, predicted, tag in pairs:
            yield probability, predicted == tag

    def class_scores(
        self, rows: Sequence[TaggedSentence], predictions: Sequence[Prediction]
    ) -> dict[str, PRF]:
        """Return precision, recall and F1 of each type of entity, or of each tag."""
        predicted, gold = [p.value for p in predictions], [row.tags or () for row in rows]
        if has_entity_tags(self.labels):
            return scores_by_type(predicted, gold)
        words = [[tag for tags in side for tag in tags] for side in (predicted, gold)]
        return {str(tag): scores for tag, scores in confusion_matrix(*words).scores.items()}

    def to_json(self, row: TaggedSentence, prediction: Prediction) -> dict[str, Any]:
        """Return the tags and their probabilities."""
        probabilities = [round(p, 6) for p in prediction.probabilities]
        known = {"probability": probabilities} if probabilities else {}
        return {"prediction": list(prediction.value), **known}
