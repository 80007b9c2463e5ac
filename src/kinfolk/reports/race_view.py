"""Scores of a race as its page shows them: ranked rows, who leads, differences of pairs.

Whether one entrant is ahead of another is decided in race.json (`shown`); nothing is decided here.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kinfolk.reports.charts import NUM_COLORS
from kinfolk.reports.page import digits_from_0, format_number

ALL = "all"
Json = Mapping[str, Any]


@dataclass(frozen=True)
class PageEntrant:
    """A name on the page: an entrant in its color, or a baseline in none."""

    name: str
    id: str
    color: int | None

    @property
    def style(self) -> str:
        return "baseline" if self.color is None else f"c{self.color}"


@dataclass(frozen=True)
class ScoreScale:
    """How the scores of one table are written."""

    metric: str
    unit: str
    factor: float = 1  # fractions are written as points
    digits: int = 1
    lower_is_better: bool = False

    def score(self, value: float | None) -> str:
        return format_number(None if value is None else self.factor * value, self.digits)

    def difference(self, value: float, digits: int | None = None) -> str:
        """Write a difference with its sign; one that rounds to zero has none."""
        text = format_number(abs(self.factor * value), self.digits if digits is None else digits)
        if not text.strip("0."):
            return text
        return f"{'+' if value > 0 else '−'}{text}"

    def differences(self, *values: float) -> list[str]:
        """Write differences alike, with enough digits to tell each from 0."""
        digits = digits_from_0([self.factor * value for value in values], self.digits)
        return [self.difference(value, digits) for value in values]

    def better(self, value: float) -> bool:
        """Whether a difference is in favor of the first of a pair."""
        return value < 0 if self.lower_is_better else value > 0

    @property
    def axis(self) -> str:
        direction = "lower" if self.lower_is_better else "higher"
        unit = self.unit if self.unit == self.metric else f"{self.metric}, {self.unit}"
        return f"{unit} ({direction} is better)"


@dataclass(frozen=True)
class ScoreRow:
    """The score of an entrant in one table; ends of the interval may be missing."""

    name: str
    mean: float
    low: float | None
    high: float | None
    spread: float | None
    seeds: tuple[float, ...]
    labels: str = ALL
    words: str = ""
    seconds: float | None = None
    baseline: bool = False
    fixed: bool = False  # no seed changes it
    lr: float | None = None  # of fine-tuning
    steps: float | None = None
    pooling: str = ""


@dataclass(frozen=True)
class Pair:
    """The difference between two entrants, first minus second."""

    first: str
    second: str
    value: float
    low: float
    high: float
    p: float | None
    shown: bool
    labels: str = ALL

    @property
    def reverse(self) -> "Pair":
        """The same difference, seen from the second entrant."""
        first, second = self.second, self.first
        return Pair(
            first, second, -self.value, -self.high, -self.low, self.p, self.shown, self.labels
        )


@dataclass(frozen=True)
class Lead:
    """The best entrants of one table: one, or several between which no difference was shown."""

    title: str
    scale: ScoreScale
    best: ScoreRow
    equals: tuple[str, ...]  # no difference from the best was shown
    behind: tuple[str, ...]  # shown to be behind the best


def race_entrants(race: Json) -> dict[str, PageEntrant]:
    """Return everything that was scored, by name: first the entrants, then the baselines."""
    listed = [one for one in race.get("entrants") or () if not one.get("left_out")]
    running = dict.fromkeys(one["name"] for one in listed if not one.get("baseline"))
    tables = [race.get("likelihood") or {}, *(race.get("tasks") or ()), *(race.get("probes") or ())]
    scored = [row["entrant"] for table in tables for row in table.get("rows") or ()]
    others = dict.fromkeys([*(one["name"] for one in listed), *scored])
    names = [*running, *(name for name in others if name not in running)]
    return {
        name: PageEntrant(name, f"e{index}", index % NUM_COLORS if name in running else None)
        for index, name in enumerate(names)
    }


def task_scale(task: Json) -> ScoreScale:
    """Return how the scores of a task are written."""
    lower, maximum = bool(task.get("lower_is_better")), finite(task.get("maximum"))
    metric = task.get("metric_title") or task["metric"]
    if lower or not maximum:
        return ScoreScale(metric, task.get("unit") or metric, digits=3, lower_is_better=lower)
    return ScoreScale(metric, task.get("unit") or "points", 100 / maximum)


def text_scale(likelihood: Json) -> ScoreScale:
    """Return how bits per byte are written."""
    return ScoreScale(likelihood["unit"], likelihood["unit"], digits=3, lower_is_better=True)


def score_rows(
    rows: Sequence[Json], scale: ScoreScale, labels: str | None = None
) -> list[ScoreRow]:
    """Return rows that have a score, those of one number of labels, best first."""
    settings = [row.get("settings") or {} for row in rows]
    found = [
        ScoreRow(
            name=row["entrant"],
            mean=row["mean"],
            low=finite(row.get("low")),
            high=finite(row.get("high")),
            spread=finite(row.get("spread")) if len(row.get("seeds") or ()) > 1 else None,
            seeds=tuple(row.get("seeds") or ()),
            labels=str(row.get("labels", ALL)),
            words=row.get("words", ""),
            seconds=finite(row.get("seconds")),
            baseline=bool(row.get("baseline")) or row.get("kind") == "baseline",
            fixed=bool(row.get("fixed")),
            lr=finite(chosen.get("lr")),
            steps=finite(chosen.get("steps")),
            pooling=chosen.get("pooling") or "",
        )
        for row, chosen in zip(rows, settings, strict=True)
        if finite(row.get("mean")) is not None
        and (labels is None or str(row.get("labels", ALL)) == labels)
    ]
    sign = 1 if scale.lower_is_better else -1
    return sorted(found, key=lambda row: (sign * row.mean, row.baseline))


def pairs(differences: Sequence[Json], labels: str | None = None) -> list[Pair]:
    """Return the differences of one number of labels."""
    return [
        Pair(
            first=one["first"],
            second=one["second"],
            value=one["value"],
            low=one["low"],
            high=one["high"],
            p=finite(one.get("p")),
            shown=bool(one["shown"]),
            labels=str(one.get("labels", ALL)),
        )
        for one in differences
        if finite(one.get("value")) is not None
        and (labels is None or str(one.get("labels", ALL)) == labels)
    ]


def pair_table(found: Sequence[Pair]) -> dict[tuple[str, str], Pair]:
    """Return each difference by its two names, in both orders."""
    table = {(pair.first, pair.second): pair for pair in found}
    return {(pair.second, pair.first): pair.reverse for pair in found} | table


def lead(
    title: str, scale: ScoreScale, rows: Sequence[ScoreRow], found: Sequence[Pair]
) -> Lead | None:
    """Return who leads a table; None where fewer than two were scored."""
    if len(rows) < 2:
        return None
    best, *others = rows
    table = pair_table(found)
    # Two baselines are not compared with each other.
    against = {
        row.name: table[best.name, row.name] for row in others if (best.name, row.name) in table
    }
    behind = [name for name, pair in against.items() if pair.shown and scale.better(pair.value)]
    equals = [name for name in against if name not in behind]
    return Lead(title, scale, best, tuple(equals), tuple(behind))


def label_counts(task: Json) -> list[str]:
    """Return the numbers of labels of a task in increasing order, all rows last."""
    found = dict.fromkeys(str(row.get("labels", ALL)) for row in task["rows"])
    return sorted(found, key=lambda text: label_number(text, task))


def label_number(text: str, task: Json) -> float:
    """Return how many labels a column stands for."""
    if text.isdigit():
        return int(text)
    return float(task.get("train") or math.inf)


def finite(value: Any) -> float | None:
    """Return a number that can be written or drawn, or None."""
    if isinstance(value, (int, float)) and math.isfinite(value):
        return float(value)
    return None
