"""Differences between entrants as sentences, with their uncertainty.

An entrant is ahead of another only where the interval of their difference excludes 0.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass

from kinfolk.metrics.comparison import Difference, Interval, outlying_seeds
from kinfolk.metrics.metric import Metric
from kinfolk.metrics.text import BitsPerByte

BITS = "bits per byte"
DECIMALS = {"points": 1, BITS: 3}  # of the units, in sentences
MAX_DECIMALS = 5
# Baselines that know no text, and what to call them where a network is not above them.
FLOORS = {"majority": "the largest class", "mean": "the mean of all rows", "unigram": ""}
DIFFERENCE_ROUNDING = 1e-9  # differences below it are none
RESAMPLED_ROWS = {BITS: "held-out documents"}  # what an interval of one seed covers; else test rows


@dataclass(frozen=True)
class Verdicts:
    """What the scores of one table show, in sentences."""

    where: str
    unit: str
    intervals: Mapping[str, Interval]
    differences: Sequence[Difference]
    seeds: int  # planned
    _: KW_ONLY
    scale: float  # of values in sentences: 100 for the points of a fraction
    baselines: Collection[str] = ()
    fixed: Collection[str] = ()  # no seed changes these models
    lower_is_better: bool = False

    def sentences(self) -> list[str]:
        """Return what the differences show, the best entrants first, baselines last."""
        entrants = [
            d
            for d in self.differences
            if d.first not in self.baselines and d.second not in self.baselines
        ]
        sentences = ahead_sentences(self, entrants) + tie_sentences(self, entrants)
        if any(not d.shown for d in self.differences):
            sentences += outlying_sentences(self)
        for baseline in self.baselines:
            sentences += baseline_sentences(self, baseline, self.about(baseline))
        return sentences

    def headlines(self, trained_on: str = "") -> list[str]:
        """Return what decides whether any network fits: whether it is better than no network.

        That is the baseline that is ahead of all networks, the best one of several, and the largest
        class (or the unigram model) where no network is shown to be better. They are among the
        `sentences`, but for the last one, about networks at or below that class.
        """
        networks = [n for n in self.intervals if n not in self.baselines and n not in self.fixed]
        if not networks:
            return []
        sentences = best_baseline_sentences(self, networks)
        for floor in [name for name in self.baselines if name in FLOORS]:
            about = self.about(floor)
            if not any(d.shown and d.first in networks for d in about):
                ties = baseline_sentences(self, floor, about)
                sentences += [
                    s for s in ties if s.startswith("no difference") and s not in sentences
                ]
            sentences += floor_sentences(self, floor, networks, trained_on)
        return sentences

    def about(self, name: str) -> list[Difference]:
        """Return the differences between one entrant and others."""
        return [d for d in self.differences if name in (d.first, d.second)]

    def quality(self, name: str) -> float:
        """Return the mean score of an entrant, higher where it is better."""
        value = self.intervals[name].value
        return -value if self.lower_is_better else value

    def title(self, name: str) -> str:
        """Return the name of an entrant, and that it is a baseline."""
        return f"the baseline {name}" if name in self.baselines else name

    def numbers(self, *values: float) -> list[str]:
        """Format numbers alike, with enough decimals to tell each from 0."""
        return format_alike([self.scale * value for value in values], self.unit)

    def lead(self, d: Difference) -> str:
        """Return by how much the first entrant is better, with the interval."""
        value, low, high = self.numbers(*better_by(d))
        return f"{value} {self.unit} ({self.share(d)}95 % interval {low} to {high}"

    def reach(self, ties: Sequence[Difference]) -> str:
        """Return how large the differences of undecided pairs may be."""
        wide = [d for d in ties if d.too_few]
        if wide:
            which = "all 95 % intervals are"
            if len(wide) < len(ties):
                noun = "interval" if len(wide) == 1 else "intervals"
                verb = "is" if len(wide) == 1 else "are"
                which = f"the 95 % {noun} of {len(wide)} of {len(ties)} pairs {verb}"
            return f"{self.too_few(wide)}: {which} wider than the scale"
        largest = max(abs(bound) for d in ties for bound in (d.low, d.high))
        if largest < DIFFERENCE_ROUNDING:
            return self.same
        (most,) = self.numbers(largest)
        return f"all 95 % intervals include 0 and reach up to {most} {self.unit}"

    @property
    def same(self) -> str:
        """What is said of entrants whose predictions are alike."""
        return f"the same scores on all {RESAMPLED_ROWS.get(self.unit, 'test rows')}"

    def too_few(self, wide: Sequence[Difference]) -> str:
        """Return what there is too little of, where intervals are wider than the scale."""
        rows = RESAMPLED_ROWS.get(self.unit, "test rows")
        return f"too few {rows if all(d.too_few == 'rows' for d in wide) else 'seeds'} to tell"

    def share(self, d: Difference) -> str:
        """Return the difference of bits in percent of the second entrant's."""
        second = self.intervals.get(d.second)
        if self.unit != BITS or second is None or not second.value:
            return ""
        return f"{100 * better_by(d)[0] / second.value:.1f} %, "

    def runs(self, differences: Sequence[Difference]) -> str:
        """Return how many seeds the intervals cover, and which models no seed changes."""
        fixed = dict.fromkeys(self.title(name) for d in differences for name in d.fixed)
        unchanged = [f"no seed changes {join_words([*fixed], 'or')}"] if fixed else []
        seeds = min((d.seeds for d in differences if d.seeds), default=0)
        covered: list[str] = []
        if any(d.rows_only for d in differences):
            rows = RESAMPLED_ROWS.get(self.unit, "test rows")
            covered = [f"one seed: the interval covers {rows} only, not training"]
        elif seeds:
            planned = f" of {self.seeds}" if seeds < self.seeds else ""
            covered = [f"{seeds}{planned} {'seed' if seeds == self.seeds == 1 else 'seeds'}"]
        return "; ".join(covered + unchanged)


def format_alike(values: Sequence[float], unit: str) -> list[str]:
    """Format numbers of a unit alike, with enough decimals to tell each from 0."""
    decimals = DECIMALS.get(unit, 2)
    while decimals < MAX_DECIMALS and any(v and not round(v, decimals) for v in values):
        decimals += 1
    return [f"{round(v, decimals) + 0.0:.{decimals}f}".replace("-", "−") for v in values]


def unit_of(metric: Metric) -> tuple[str, float]:
    """Return the unit of a metric in sentences, and what its values are multiplied by."""
    if isinstance(metric, BitsPerByte):
        return BITS, 1.0
    if metric.lower_is_better:
        return metric.title or metric.name, 1.0
    return "points", 100 / metric.maximum


def outlying_sentences(verdicts: Verdicts) -> list[str]:
    """Return why intervals are wide, where the seeds of one entrant are much farther apart."""
    intervals = {n: i for n, i in verdicts.intervals.items() if n not in verdicts.baselines}
    found = outlying_seeds(intervals)
    if found is None:
        return []
    name, times = found
    low, high = verdicts.numbers(min(intervals[name].scores), max(intervals[name].scores))
    return [
        f"the seeds of {name} are {low} to {high} {verdicts.unit} on {verdicts.where}, {times:.0f} "
        "times as far apart as those of the others, which widens all intervals here: more seeds "
        f"make them narrower, and so would a comparison without {name}"
    ]


def best_baseline_sentences(verdicts: Verdicts, networks: Sequence[str]) -> list[str]:
    """Return by how much a baseline is ahead of all networks, of the best such baseline."""
    for name in sorted(verdicts.baselines, key=verdicts.quality, reverse=True):
        ahead = [d for d in verdicts.differences if d.first == name and d.shown]
        if {d.second for d in ahead} >= {*networks}:
            return ahead_sentences(verdicts, ahead)
    return []


def floor_sentences(
    verdicts: Verdicts, floor: str, networks: Sequence[str], trained_on: str
) -> list[str]:
    """Return which networks are not above a baseline that knows no text."""
    low = [name for name in networks if verdicts.quality(name) <= verdicts.quality(floor)]
    if not low or not FLOORS[floor]:
        return []
    *scores, least = verdicts.numbers(*(verdicts.intervals[n].value for n in (*low, floor)))
    listed = join_words([f"{name} ({score})" for name, score in zip(low, scores, strict=True)])
    where = f"{verdicts.where}{trained_on}"
    return [f"{listed} learned nothing on {where}: {FLOORS[floor]} has {least}"]


def ahead_sentences(verdicts: Verdicts, differences: Iterable[Difference]) -> list[str]:
    """Return who is ahead of whom; entrants that are ahead of the same others share a sentence."""
    leads: dict[str, list[Difference]] = {}
    for d in differences:
        if d.shown:
            leads.setdefault(d.first, []).append(d)
    shared: dict[frozenset[str], list[Difference]] = {}
    for group in leads.values():
        shared.setdefault(frozenset(d.second for d in group), []).extend(group)
    return [_ahead(verdicts, group) for group in shared.values()]


def _ahead(verdicts: Verdicts, group: Sequence[Difference]) -> str:
    leaders = list(dict.fromkeys(d.first for d in group))
    others = list(dict.fromkeys(verdicts.title(d.second) for d in group))
    ending = _after(verdicts.runs(group))
    named = join_words([verdicts.title(name) for name in leaders])
    start = f"{named} {'is' if len(leaders) == 1 else 'are'} ahead of"
    if len(group) == 1:
        return f"{start} {others[0]} on {verdicts.where} by {verdicts.lead(group[0])}{ending})"
    if len(group) == 2 and len(leaders) == 1:
        leads = [f"{name} by {verdicts.lead(d)})" for name, d in zip(others, group, strict=True)]
        return f"on {verdicts.where}, {start} {leads[0]} and of {leads[1]}{ending}"
    least, most = verdicts.numbers(*_extremes(better_by(d)[0] for d in group))
    closest = min(group, key=lambda d: better_by(d)[1])
    _, low, high = verdicts.numbers(*better_by(closest))
    by = least if least == most else f"{least} to {most}"
    return (
        f"{start} {join_words(others)} on {verdicts.where} by {by} {verdicts.unit} "
        f"(95 % interval of {verdicts.title(closest.first)} over {verdicts.title(closest.second)}, "
        f"the closest to 0: {low} to {high}{ending})"
    )


def tie_sentences(verdicts: Verdicts, differences: Sequence[Difference]) -> list[str]:
    """Return a sentence for each group of entrants with no difference shown between any two."""
    ties = {frozenset((d.first, d.second)): d for d in differences if not d.shown}
    return [_tie(verdicts, group, ties) for group in undecided_groups(differences)]


def _tie(
    verdicts: Verdicts, group: Sequence[str], ties: Mapping[frozenset[str], Difference]
) -> str:
    within = [d for pair, d in ties.items() if pair <= {*group}]
    names = join_words([verdicts.title(name) for name in group])
    between = f"no difference shown between {names} on {verdicts.where}"
    ending = _after(verdicts.runs(within))
    if all(abs(bound) < DIFFERENCE_ROUNDING for d in within for bound in (d.low, d.high)):
        return f"{between} ({verdicts.same}{ending})"
    if len(within) == 1:
        value, low, high = verdicts.numbers(*better_by(within[0]))
        known = f"95 % interval {low} to {high}"
        if within[0].too_few:
            known = f"{verdicts.too_few(within)}: the 95 % interval is wider than the scale"
        return f"{between} (difference {value} {verdicts.unit}, {known}{ending})"
    (largest,) = verdicts.numbers(max(better_by(d)[0] for d in within))
    return (
        f"{between} (differences of at most {largest} {verdicts.unit}, {verdicts.reach(within)}"
        f"{ending})"
    )


def undecided_groups(differences: Sequence[Difference]) -> list[list[str]]:
    """Return groups in which no two entrants differ, so that every such pair is in one of them."""
    ranked = list(dict.fromkeys(name for d in differences for name in (d.first, d.second)))
    left, groups = [frozenset((d.first, d.second)) for d in differences if not d.shown], []
    undecided = {*left}
    while left:
        group = sorted(left[0], key=ranked.index)
        for name in ranked:
            if name not in group and all(frozenset((name, g)) in undecided for g in group):
                group.append(name)
        group.sort(key=ranked.index)
        groups.append(group)
        left = [pair for pair in left if not pair <= {*group}]
    return groups


def baseline_sentences(
    verdicts: Verdicts, baseline: str, differences: Sequence[Difference]
) -> list[str]:
    """Return which entrants a baseline is ahead of, which equal it, and which are ahead of it."""
    sentences = ahead_sentences(verdicts, [d for d in differences if d.first == baseline])
    ties = [d for d in differences if not d.shown]
    if len(ties) > 1:
        names = join_words([d.second if d.first == baseline else d.first for d in ties], "or")
        sentences.append(
            f"no difference shown between {verdicts.title(baseline)} and {names} on "
            f"{verdicts.where} ({verdicts.reach(ties)}{_after(verdicts.runs(ties))})"
        )
    elif ties:
        sentences += tie_sentences(verdicts, ties)
    return sentences + ahead_sentences(verdicts, [d for d in differences if d.second == baseline])


def better_by(d: Difference) -> tuple[float, float, float]:
    """Return by how much the first entrant is better, with the interval, whatever the metric."""
    return (d.value, d.low, d.high) if d.value >= 0 else (-d.value, -d.high, -d.low)


def join_words(words: Sequence[str], conjunction: str = "and") -> str:
    """Return words as an enumeration: a, b and c."""
    if len(words) < 2:
        return "".join(words)
    return f"{', '.join(words[:-1])} {conjunction} {words[-1]}"


def _extremes(values: Iterable[float]) -> tuple[float, float]:
    known = list(values)
    return min(known), max(known)


def _after(text: str) -> str:
    return f", {text}" if text else ""
