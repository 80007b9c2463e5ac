"""What changing neurons does to the probability of answers, with intervals."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import product
from typing import Any, Literal

import numpy as np

from kinfolk.metrics.bootstrap import (
    CONFIDENCE_LEVEL,
    confidence_interval,
    paired_difference,
    percentiles,
)
from kinfolk.metrics.metric import MeanMetric, with_counts

# The prompts that neurons were found on, other prompts of the same fact, and other facts.
Group = Literal["prompts", "other prompts", "other facts"]
GROUPS: tuple[Group, ...] = ("prompts", "other prompts", "other facts")
Operation = Literal["suppress", "amplify"]
Bounds = tuple[float, float]


@dataclass(frozen=True)
class EffectRow:
    """The probability of one answer, before and after neurons of one fact are changed."""

    group: Group
    operation: Operation
    prompt: str
    answer: str
    before: float
    after: float
    random: tuple[float, ...]  # after the same change of random neurons, for each draw

    def to_json(self) -> dict[str, Any]:
        """Return all values by their names."""
        return asdict(self)


@dataclass(frozen=True)
class NeuronEffect:
    """The mean change of a probability over facts, by knowledge neurons and by random ones."""

    group: Group
    operation: Operation
    facts: int
    before: float  # mean probability
    change: float  # of the mean probability, by the knowledge neurons
    random_change: float
    difference: float  # change - random_change
    change_interval: Bounds | None  # 95 %; None where there is one row
    random_interval: Bounds
    difference_interval: Bounds
    p: float
    over: Literal["facts", "prompts", "draws"]  # what the intervals are over


@dataclass(frozen=True)
class MeanChange(MeanMetric):
    """The mean difference of probabilities after and before a change."""

    name: str = "change"

    minimum = -1.0
    things = "probabilities"

    def values(self, predictions: Sequence[float], references: Sequence[float], /) -> list[float]:
        """Return after minus before."""
        return [after - before for after, before in zip(predictions, references, strict=True)]


def summarize_effects(facts: Sequence[Sequence[EffectRow]]) -> tuple[NeuronEffect, ...]:
    """Return the mean effects over facts, each with its interval; of one fact, over its prompts."""
    found = []
    for group, operation in product(GROUPS, ("suppress", "amplify")):
        chosen = [
            [row for row in rows if (row.group, row.operation) == (group, operation)]
            for rows in facts
        ]
        if chosen := [rows for rows in chosen if rows]:
            found.append(_summarize(chosen))
    return tuple(found)


def _summarize(facts: Sequence[Sequence[EffectRow]]) -> NeuronEffect:
    """Summarize the rows of one group and operation."""
    over: Literal["facts", "prompts", "draws"] = "facts"
    units = facts
    if len(facts) == 1:
        over, units = ("prompts", [[row] for row in facts[0]])
    before = np.array([np.mean([row.before for row in rows]) for rows in units])
    after = np.array([np.mean([row.after for row in rows]) for rows in units])
    drawn = np.array([np.mean([row.random for row in rows], axis=0) for rows in units])
    random = drawn.mean(1)
    first = facts[0][0]
    effect = partial(
        NeuronEffect,
        group=first.group,
        operation=first.operation,
        facts=len(facts),
        before=float(before.mean()),
        change=float((after - before).mean()),
        random_change=float((random - before).mean()),
        difference=float((after - random).mean()),
    )
    if len(units) == 1:
        by_draw = drawn[0]
        beyond = int((np.abs(by_draw - before[0]) >= abs(after[0] - before[0])).sum())
        return effect(
            change_interval=None,
            random_interval=percentiles(by_draw - before[0], CONFIDENCE_LEVEL),
            difference_interval=percentiles(after[0] - by_draw, CONFIDENCE_LEVEL),
            p=(1 + beyond) / (1 + len(by_draw)),
            over="draws",
        )
    metric = MeanChange()
    own, other = with_counts(after - before), with_counts(random - before)
    change, by_chance = confidence_interval(metric, own), confidence_interval(metric, other)
    compared = paired_difference(metric, own, other)
    return effect(
        change_interval=(change.low, change.high),
        random_interval=(by_chance.low, by_chance.high),
        difference_interval=(compared.low, compared.high),
        p=compared.p,
        over=over,
    )
