"""Entities in tags: precision, recall and F1 of each type, as seqeval counts them.

    tags      B-PER  I-PER   O   B-LOC
    entities  (PER, 0, 2)        (LOC, 3, 4)

Read without a scheme, tags that do not nest still mean something, as conlleval has it: an I-LOC
after an I-PER begins an entity. Read strictly, only what a scheme allows is an entity.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import NamedTuple

from kinfolk.errors import UserError
from kinfolk.metrics.classification import (
    PRF,
    average,
    check_lengths,
    precision_recall_f1,
    safe_divide,
)

EntityCounts = tuple[int, int, int]  # entities that match, that were said, that are true


class Tag(NamedTuple):
    """A tag in its two parts: I-PER is I and PER, a bare I has the type _."""

    prefix: str
    type: str


class Entity(NamedTuple):
    """A stretch of tokens, from `start` to before `stop`."""

    type: str
    start: int
    end: int


@dataclass(frozen=True)
class Scheme:
    """What two tags running mean, by seqeval's tables."""

    prefixes: str
    starts: Callable[[Tag, Tag], bool]  # an entity at the second
    continues: Callable[[Tag, Tag], bool]  # the entity of the first
    ends: Callable[[Tag, Tag], bool]  # the entity of the first, as the scheme wants it to end


OUTSIDE = Tag("O", "_")
SCHEMES = {
    "IOB2": Scheme(
        "IOB",
        starts=lambda before, tag: tag.prefix == "B",
        continues=lambda before, tag: before.prefix in "BI" and tag == ("I", before.type),
        ends=lambda before, tag: True,
    ),
    # An entity begins with B only where it follows another of its type.
    "IOB1": Scheme(
        "IOB",
        starts=lambda before, tag: (
            before.prefix in "BI" and tag.type == before.type
            if tag.prefix == "B"
            else tag.prefix == "I" and (before.prefix in "OB" or tag.type != before.type)
        ),
        continues=lambda before, tag: before.prefix in "BI" and tag == ("I", before.type),
        ends=lambda before, tag: (
            not (before.prefix == tag.prefix == "B" and before.type != tag.type)
        ),
    ),
    "BIOES": Scheme(
        "IOBES",
        starts=lambda before, tag: tag.prefix in "BS",
        continues=lambda before, tag: (
            before.prefix in "BI" and tag.prefix in "IE" and tag.type == before.type
        ),
        ends=lambda before, tag: before.prefix in "ES",
    ),
}


@dataclass(frozen=True)
class EntityScores:
    """Scores of entities that must match in type, start and stop; accuracy is of single tags."""

    accuracy: float
    micro: PRF  # over all entities: the one that is meant by entity F1
    macro: PRF  # the mean over types
    weighted: PRF  # the same, by how many entities of a type there are
    types: dict[str, PRF]


def entity_scores(
    said: Sequence[Sequence[str]], truth: Sequence[Sequence[str]], scheme: str | None = None
) -> EntityScores:
    """Score the tags of sentences; read by a scheme strictly, without one as conlleval does."""
    check_tag_lengths(said, truth)
    found, real = indexed_entities(said, scheme), indexed_entities(truth, scheme)
    sides = [Counter(one.type for _, one in side) for side in (found & real, found, real)]
    types = {
        type: precision_recall_f1(*(side[type] for side in sides))
        for type in sorted(sides[1] | sides[2])
    }
    each = list(types.values())
    right = [one == other for one, other in zip(chain(*said), chain(*truth), strict=True)]
    return EntityScores(
        accuracy=safe_divide(sum(right), len(right)),
        micro=precision_recall_f1(len(found & real), len(found), len(real)),
        macro=average(each),
        weighted=average(each, [one.support for one in each]),
        types=types,
    )


def entity_counts(
    said: Sequence[Sequence[str]], truth: Sequence[Sequence[str]], scheme: str | None = None
) -> list[EntityCounts]:
    """Count each sentence by itself, for `interval(pooled, tallies(said, truth))`."""
    check_tag_lengths(said, truth)
    pairs = (
        (set(get_entities(line, scheme)), set(get_entities(true, scheme)))
        for line, true in zip(said, truth, strict=True)
    )
    return [(len(found & real), len(found), len(real)) for found, real in pairs]


def micro_f1(rows: Sequence[EntityCounts]) -> float:
    """Return F1 over all entities of the sentences that were counted."""
    hits, said, true = (sum(column) for column in zip(*rows, strict=True))
    return precision_recall_f1(hits, said, true).f1


def check_tag_lengths(said: Sequence[Sequence[str]], truth: Sequence[Sequence[str]]) -> None:
    """Refuse sentences without as many tags on both sides."""
    check_lengths(said, truth, "sentences")
    for number, (line, true) in enumerate(zip(said, truth, strict=True), 1):
        if len(line) != len(true):
            raise UserError(
                f"sentence {number} has {len(line)} tags said and {len(true)} true: "
                "give one for each token"
            )


def indexed_entities(
    sentences: Sequence[Sequence[str]], scheme: str | None
) -> set[tuple[int, Entity]]:
    """Return all entities with the numbers of their sentences."""
    return {(n, one) for n, tags in enumerate(sentences) for one in get_entities(tags, scheme)}


def get_entities(tags: Sequence[str], scheme: str | None = None) -> list[Entity]:
    """Return the entities of a sentence; without a scheme every tag but O is part of one."""
    parts = [split_tag(tag) for tag in tags]
    return decode_conlleval(parts) if scheme is None else strict(parts, named(scheme))


def decode_conlleval(tags: Sequence[Tag]) -> list[Entity]:
    """Read tags as conlleval does."""
    found, start = [], None
    for place, (before, tag) in enumerate(pairwise([OUTSIDE, *tags, OUTSIDE])):
        begins = tag.prefix != "O" and (
            tag.prefix in "BS" or before.prefix in "OES" or tag.type != before.type
        )
        if start is not None and (begins or tag.prefix == "O"):
            found.append(Entity(before.type, start, place))
            start = None
        if begins:
            start = place
    return found


def strict(tags: Sequence[Tag], scheme: Scheme) -> list[Entity]:
    """Read tags as a scheme allows; what it does not is no entity."""
    if wrong := [tag for tag in tags if tag.prefix not in scheme.prefixes]:
        raise UserError(
            f"tag {wrong[0].prefix}-{wrong[0].type} is not of a scheme with "
            f"{', '.join(scheme.prefixes)}: name another, or none"
        )
    line, found, place = [OUTSIDE, *tags, OUTSIDE], [], 1
    while place < len(line) - 1:
        stop = place + 1
        if scheme.starts(line[place - 1], line[place]):
            while scheme.continues(line[stop - 1], line[stop]):
                stop += 1
            if scheme.ends(line[stop - 1], line[stop]):
                found.append(Entity(line[place].type, place - 1, stop - 1))
        place = stop
    return found


def repair_tags(tags: Sequence[str], scheme: str = "IOB2") -> tuple[list[str], int]:
    """Write tags so that they nest, and count those that changed; what they mean does not.

    O I-PER I-LOC becomes O B-PER B-LOC by IOB2.
    """
    parts = [split_tag(tag) for tag in tags]
    mended = encode_tags(decode_conlleval(parts), len(tags), scheme)
    return mended, sum(split_tag(new) != old for new, old in zip(mended, parts, strict=True))


def encode_tags(found: Sequence[Entity], length: int, scheme: str = "IOB2") -> list[str]:
    """Write entities that do not overlap as the tags of a sentence."""
    named(scheme)
    tags, last = ["O"] * length, Entity("", 0, 0)
    for one in sorted(found, key=lambda entity: entity.start):
        size = one.end - one.start
        kinds = ["I"] * size
        if scheme != "IOB1" or (last.type, last.end) == (one.type, one.start):
            kinds[0] = "B"
        if scheme == "BIOES":
            kinds[-1] = "E" if size > 1 else "S"
        # A type that was not written is not written here either.
        tail = "" if one.type == OUTSIDE.type else f"-{one.type}"
        tags[one.start : one.end] = [kind + tail for kind in kinds]
        last = one
    return tags


def split_tag(tag: str) -> Tag:
    """Part a tag: B-PER gives B and PER."""
    kind, _, type = tag.partition("-")
    if tag != "O" and kind not in ("B", "I", "E", "S"):
        raise UserError(
            f"tag {tag!r} is not O and does not start with B-, I-, E- or S-: "
            "entities are written like B-PER, I-PER"
        )
    return Tag(kind, type or "_")


def named(scheme: str) -> Scheme:
    """Find a scheme by its name."""
    if scheme not in SCHEMES:
        raise UserError(f"there is no scheme {scheme!r}: choose among {', '.join(SCHEMES)}")
    return SCHEMES[scheme]
