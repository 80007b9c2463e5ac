"""Differences between entrants as sentences, with their uncertainty.

An entrant is ahead of another only where the interval of their difference excludes 0.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

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
class _Wording:
    """How the numbers of one table are written."""

    where: str
    unit: str
    scale: float
    means: Mapping[str, float]
    seeds: int  # planned
    baselines: Collection[str]

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
        if self.unit != BITS or not self.means.get(d.second):
            return ""
        return f"{100 * better_by(d)[0] / self.means[d.second]:.1f} %, "

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


def verdict_sentences(
    where: str,
    unit: str,
    intervals: Mapping[str, Interval],
    differences: Sequence[Difference],
    seeds: int,
    *,
    baselines: Collection[str] = (),
    scale: float | None = None,
) -> list[str]:
    """Return what the differences of one table show, the best entrants first, baselines last.

    Values are multiplied by `scale`: by default 100 where the unit is points, of a fraction.
    """
    factor = (100.0 if unit == "points" else 1.0) if scale is None else scale
    means = {name: interval.value for name, interval in intervals.items()}
    wording = _Wording(where, unit, factor, means, seeds, baselines)
    entrants = [d for d in differences if d.first not in baselines and d.second not in baselines]
    sentences = ahead_sentences(wording, entrants) + tie_sentences(wording, entrants)
    if any(not d.shown for d in differences):
        sentences += outlying_sentences(
            wording, {name: i for name, i in intervals.items() if name not in baselines}
        )
    for baseline in baselines:
        sentences += baseline_sentences(
            wording, baseline, [d for d in differences if baseline in (d.first, d.second)]
        )
    return sentences


def outlying_sentences(wording: _Wording, intervals: Mapping[str, Interval]) -> list[str]:
    """Return why intervals are wide, where the seeds of one entrant are much farther apart."""
    found = outlying_seeds(intervals)
    if found is None:
        return []
    name, times = found
    low, high = wording.numbers(min(intervals[name].scores), max(intervals[name].scores))
    return [
        f"the seeds of {name} are {low} to {high} {wording.unit} on {wording.where}, {times:.0f} "
        "times as far apart as those of the others, which widens all intervals here: more seeds "
        f"make them narrower, and so would a comparison without {name}"
    ]


def headline_sentences(
    where: str,
    unit: str,
    intervals: Mapping[str, Interval],
    differences: Sequence[Difference],
    seeds: int,
    *,
    baselines: Collection[str] = (),
    fixed: Collection[str] = (),
    scale: float = 1.0,
    lower_is_better: bool = False,
    trained_on: str = "",
) -> list[str]:
    """Return what decides whether any network fits: whether it is better than no network.

    That is the baseline that is ahead of all networks, the best one of several, and the largest
    class (or the unigram model) where no network is shown to be better. The sentences are among
    those of `verdict_sentences`, but for the last one, about networks at or below that class.
    """
    means = {name: interval.value for name, interval in intervals.items()}
    wording = _Wording(where, unit, scale, means, seeds, baselines)
    networks = {name for name in intervals if name not in baselines and name not in fixed}
    sign = -1 if lower_is_better else 1
    sentences: list[str] = []
    if not networks:
        return []
    for name in sorted(baselines, key=lambda name: -sign * means[name]):
        ahead = [d for d in differences if d.first == name and d.shown]
        if {d.second for d in ahead} >= networks:
            sentences += ahead_sentences(wording, ahead)
            break
    for name in [name for name in baselines if name in FLOORS]:
        about = [d for d in differences if name in (d.first, d.second)]
        if not any(d.shown and d.first in networks for d in about):
            ties = baseline_sentences(wording, name, about)
            sentences += [s for s in ties if s.startswith("no difference") and s not in sentences]
        low = [n for n in intervals if n in networks and sign * (means[n] - means[name]) <= 0]
        if low and FLOORS[name]:
            scores = wording.numbers(*(means[n] for n in low), means[name])
            listed = join_words([f"{n} ({s})" for n, s in zip(low, scores, strict=False)])
            sentences.append(
                f"{listed} learned nothing on {where}{trained_on}: {FLOORS[name]} has {scores[-1]}"
            )
    return sentences


def ahead_sentences(wording: _Wording, differences: Iterable[Difference]) -> list[str]:
    """Return who is ahead of whom; entrants that are ahead of the same others share a sentence."""
    leads: dict[str, list[Difference]] = {}
    for d in differences:
        if d.shown:
            leads.setdefault(d.first, []).append(d)
    shared: dict[frozenset[str], list[Difference]] = {}
    for group in leads.values():
        shared.setdefault(frozenset(d.second for d in group), []).extend(group)
    return [_ahead(wording, group) for group in shared.values()]


def _ahead(wording: _Wording, group: Sequence[Difference]) -> str:
    leaders = list(dict.fromkeys(d.first for d in group))
    others = list(dict.fromkeys(wording.title(d.second) for d in group))
    ending = _after(wording.runs(group))
    named = join_words([wording.title(name) for name in leaders])
    start = f"{named} {'is' if len(leaders) == 1 else 'are'} ahead of"
    if len(group) == 1:
        return f"{start} {others[0]} on {wording.where} by {wording.lead(group[0])}{ending})"
    if len(group) == 2 and len(leaders) == 1:
        leads = [f"{name} by {wording.lead(d)})" for name, d in zip(others, group, strict=True)]
        return f"on {wording.where}, {start} {leads[0]} and of {leads[1]}{ending}"
    least, most = wording.numbers(*_extremes(better_by(d)[0] for d in group))
    closest = min(group, key=lambda d: better_by(d)[1])
    _, low, high = wording.numbers(*better_by(closest))
    by = least if least == most else f"{least} to {most}"
    return (
        f"{start} {join_words(others)} on {wording.where} by {by} {wording.unit} "
        f"(95 % interval of {wording.title(closest.first)} over {wording.title(closest.second)}, "
        f"the closest to 0: {low} to {high}{ending})"
    )


def tie_sentences(wording: _Wording, differences: Sequence[Difference]) -> list[str]:
    """Return a sentence for each group of entrants with no difference shown between any two."""
    ties = {frozenset((d.first, d.second)): d for d in differences if not d.shown}
    return [_tie(wording, group, ties) for group in undecided_groups(differences)]


def _tie(wording: _Wording, group: Sequence[str], ties: Mapping[frozenset[str], Difference]) -> str:
    within = [d for pair, d in ties.items() if pair <= {*group}]
    names = join_words([wording.title(name) for name in group])
    between = f"no difference shown between {names} on {wording.where}"
    ending = _after(wording.runs(within))
    if all(abs(bound) < DIFFERENCE_ROUNDING for d in within for bound in (d.low, d.high)):
        return f"{between} ({wording.same}{ending})"
    if len(within) == 1:
        value, low, high = wording.numbers(*better_by(within[0]))
        known = f"95 % interval {low} to {high}"
        if within[0].too_few:
            known = f"{wording.too_few(within)}: the 95 % interval is wider than the scale"
        return f"{between} (difference {value} {wording.unit}, {known}{ending})"
    (largest,) = wording.numbers(max(better_by(d)[0] for d in within))
    return (
        f"{between} (differences of at most {largest} {wording.unit}, {wording.reach(within)}"
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
    wording: _Wording, baseline: str, differences: Sequence[Difference]
) -> list[str]:
    """Return which entrants a baseline is ahead of, which equal it, and which are ahead of it."""
    sentences = ahead_sentences(wording, [d for d in differences if d.first == baseline])
    ties = [d for d in differences if not d.shown]
    if len(ties) > 1:
        names = join_words([d.second if d.first == baseline else d.first for d in ties], "or")
        sentences.append(
            f"no difference shown between {wording.title(baseline)} and {names} on {wording.where} "
            f"({wording.reach(ties)}{_after(wording.runs(ties))})"
        )
    elif ties:
        sentences += tie_sentences(wording, ties)
    return sentences + ahead_sentences(wording, [d for d in differences if d.second == baseline])


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
