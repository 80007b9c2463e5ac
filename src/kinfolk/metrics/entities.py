"""Entity F1 of tagged sentences, as conlleval and seqeval count it.

    tags      B-PER  I-PER   O   B-LOC
    entities  (PER, 0, 2)        (LOC, 3, 4)

Tags that break the BIO scheme are read as conlleval reads them: an I-LOC after an I-PER begins an
entity.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, NamedTuple

import numpy as np

from kinfolk.errors import UserError
from kinfolk.metrics.metric import (
    PRF,
    Metric,
    Statistics,
    check_lengths,
    precision_recall_f1,
    safe_divide,
)

Tags = Sequence[str]
TagScheme = Literal["IOB2", "BIOES", "BMES", "BILOU"]
# The prefixes of an entity's first, inner and last token, and of an entity of one token.
SCHEME_PREFIXES: dict[TagScheme, tuple[str, str, str, str]] = {
    "IOB2": ("B", "I", "I", "B"),
    "BIOES": ("B", "I", "E", "S"),
    "BMES": ("B", "M", "E", "S"),
    "BILOU": ("B", "I", "L", "U"),
}
SAME_PREFIX = {"M": "I", "L": "E", "U": "S"}  # of BMES and BILOU, in BIOES
TAG_PREFIXES = "BIMELSU"


class Tag(NamedTuple):
    """The two parts of a tag: I-PER and M-PER are I and PER, a bare I has the type _."""

    prefix: str
    type: str


class Entity(NamedTuple):
    """A span of tokens, `end` exclusive."""

    type: str
    start: int
    end: int


OUTSIDE = Tag("O", "_")


@dataclass(frozen=True)
class TagMetric(Metric):
    """A metric of sentences of tags."""

    max_resamples: int = 200

    things = "sentences"

    def statistics(self, predictions: Sequence[Tags], references: Sequence[Tags], /) -> Statistics:
        """Return the counts of each sentence."""
        check_tag_lengths(predictions, references)
        return np.array([self.counts(p, r) for p, r in zip(predictions, references, strict=True)])

    def counts(self, predicted: Tags, gold: Tags) -> tuple[int, ...]:
        """Return the number of correct tags and of all."""
        return sum(p == g for p, g in zip(predicted, gold, strict=True)), len(gold)

    def score(self, total: Statistics, /) -> float:
        """Return the score of the summed counts: the fraction of correct tags."""
        return safe_divide(*map(int, total))


@dataclass(frozen=True)
class TagAccuracy(TagMetric):
    """The fraction of correct tags."""

    name: str = "accuracy"


@dataclass(frozen=True)
class WordF1(TagMetric):
    """F1 over words without the tag O, for tags that are not parts of entities."""

    name: str = "f1"
    title: str = "F1"

    def counts(self, predicted: Tags, gold: Tags) -> tuple[int, ...]:
        """Return hits, predictions and references of tags other than O."""
        hits = sum(p == g != "O" for p, g in zip(predicted, gold, strict=True))
        return hits, sum(tag != "O" for tag in predicted), sum(tag != "O" for tag in gold)

    def score(self, total: Statistics, /) -> float:
        """Return F1 of the counts."""
        return precision_recall_f1(*map(int, total)).f1


@dataclass(frozen=True)
class EntityF1(WordF1):
    """F1 over entities, which must match in type, start and end (micro average)."""

    max_resamples: int = 1000

    def counts(self, predicted: Tags, gold: Tags) -> tuple[int, ...]:
        """Return hits, predictions and references."""
        predictions, references = set(get_entities(predicted)), set(get_entities(gold))
        return len(predictions & references), len(predictions), len(references)


def scores_by_type(predictions: Sequence[Tags], references: Sequence[Tags]) -> dict[str, PRF]:
    """Return precision, recall and F1 of each type of entity."""
    check_tag_lengths(predictions, references)
    all_predicted, all_gold = indexed_entities(predictions), indexed_entities(references)
    hits, predicted, gold = (
        Counter(entity.type for _, entity in entities)
        for entities in (all_predicted & all_gold, all_predicted, all_gold)
    )
    return {
        type: precision_recall_f1(hits[type], predicted[type], gold[type])
        for type in sorted(predicted | gold)
    }


def check_tag_lengths(predictions: Sequence[Tags], references: Sequence[Tags]) -> None:
    """Check that each sentence has as many predicted as reference tags."""
    check_lengths(predictions, references, "sentences")
    for number, (predicted, gold) in enumerate(zip(predictions, references, strict=True), 1):
        if len(predicted) != len(gold):
            raise UserError(
                f"sentence {number} has {len(predicted)} predicted tags and {len(gold)} reference "
                "tags: pass one for each token"
            )


def indexed_entities(sentences: Sequence[Tags]) -> set[tuple[int, Entity]]:
    """Return all entities with the index of their sentence."""
    return {(n, entity) for n, tags in enumerate(sentences) for entity in get_entities(tags)}


def get_entities(tags: Tags) -> list[Entity]:
    """Return the entities of a sentence; every tag but O is part of one."""
    entities, start = [], None
    parts = [OUTSIDE, *(split_tag(tag) for tag in tags), OUTSIDE]
    for index, (before, tag) in enumerate(pairwise(parts)):
        begins = tag.prefix != "O" and (
            tag.prefix in "BS" or before.prefix in "OES" or tag.type != before.type
        )
        if start is not None and (begins or tag.prefix == "O"):
            entities.append(Entity(before.type, start, index))
            start = None
        if begins:
            start = index
    return entities


def has_entity_tags(tags: Tags) -> bool:
    """Return whether tags are parts of entities, not classes of words.

    Word segmentation has the prefixes alone: B, M, E and S.
    """
    bare = {*tags} <= {*TAG_PREFIXES, "O"} and "B" in tags
    return bare or any(tag[:2] in ("B-", "I-", "M-", "S-", "E-") for tag in tags)


def tag_scheme(tags: Tags) -> TagScheme:
    """Return the scheme of tags by their prefixes."""
    prefixes = {tag[0] for tag in tags if tag}
    if prefixes & {"L", "U"}:
        return "BILOU"
    return "BMES" if "M" in prefixes else "BIOES" if prefixes & {"E", "S"} else "IOB2"


def unknown_prefix(tags: Tags) -> str | None:
    """Return the first tag that is neither O nor part of an entity, None for none."""
    return next((tag for tag in tags if tag != "O" and not _has_prefix(tag)), None)


def repair_tags(tags: Tags, scheme: TagScheme = "IOB2") -> list[str]:
    """Convert tags to a scheme without changing the entities.

    O I-PER I-LOC becomes O B-PER B-LOC in IOB2.
    """
    repaired = ["O"] * len(tags)
    for type, start, end in get_entities(tags):
        first, inner, last, single = SCHEME_PREFIXES[scheme]
        prefixes = [first, *[inner] * (end - start - 2), last] if end - start > 1 else [single]
        suffix = "" if type == OUTSIDE.type else f"-{type}"  # a bare B has no type
        repaired[start:end] = [prefix + suffix for prefix in prefixes]
    return repaired


def split_tag(tag: str) -> Tag:
    """Split a tag: B-PER gives B and PER."""
    prefix, _, type = tag.partition("-")
    if tag != "O" and not _has_prefix(tag):
        raise UserError(
            f"tag {tag!r} is not O and does not start with one of {', '.join(TAG_PREFIXES)} and a "
            "hyphen: entities are written like B-PER, I-PER"
        )
    return Tag(SAME_PREFIX.get(prefix, prefix), type or "_")


def _has_prefix(tag: str) -> bool:
    return tag[:1] in tuple(TAG_PREFIXES) and tag[1:2] in ("", "-")
