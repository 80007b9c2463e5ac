"""Intervals over seeds and rows: coverage, false differences and power by simulation."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import pytest

from kinfolk.errors import UserError
from kinfolk.metrics.classification import (
    Accuracy,
    BinaryF1,
    MacroF1,
    MatthewsCorrelation,
    Pearson,
    Spearman,
)
from kinfolk.metrics.comparison import (
    BITS_PER_BYTE,
    Difference,
    compare_all,
    document_statistics,
    summarize,
)
from kinfolk.metrics.metric import Metric, Statistics, with_counts
from kinfolk.metrics.text import BLEU

TABLES = 100  # simulated ones of each kind, and ten times as many where time allows
ACCURACY = replace(Accuracy(), max_resamples=100)
BITS = replace(BITS_PER_BYTE, max_resamples=100)
Table = Mapping[str, Sequence[Statistics]]


@dataclass(frozen=True)
class Race:
    """How simulated scores vary, in standard deviations of the latent score of a row."""

    entrants: int = 4
    seeds: int = 3
    rows: int = 150
    between_seeds: tuple[float, ...] = (0.2,)  # of each entrant, or the same of all
    between_entrants: float = 0.4  # which rows an entrant finds hard, whatever the seed
    within: float = 0.4  # a row under one seed

    def latent(self, rng: np.random.Generator) -> list[np.ndarray]:
        """Return a score of each seed and row, with an expectation of 0, for each entrant."""
        spreads = (self.between_seeds * self.entrants)[: self.entrants]
        difficulty = rng.normal(size=self.rows)
        return [
            difficulty
            + rng.normal(0, self.between_entrants, self.rows)
            + rng.normal(0, spread, (self.seeds, 1))
            + rng.normal(0, self.within, (self.seeds, self.rows))
            for spread in spreads
        ]

    def correct(self, rng: np.random.Generator, best: float = 0.0) -> dict[str, list[Statistics]]:
        """Return right and wrong predictions; half are right, of the first entrant more."""
        table = {}
        for number, scores in enumerate(self.latent(rng)):
            right = scores + (best if number == 0 else 0.0) > 0
            table[f"entrant {number}"] = [with_counts(row.astype(float)) for row in right]
        return table

    def bits(self, rng: np.random.Generator) -> dict[str, list[Statistics]]:
        """Return nats and bytes of documents of very different lengths."""
        sizes = rng.lognormal(6, 1, self.rows)
        return {
            f"entrant {number}": [
                np.stack([np.log(2) * sizes * (2 + 0.1 * row), sizes], 1) for row in scores
            ]
            for number, scores in enumerate(self.latent(rng))
        }


RACES = {
    "3 seeds": Race(),
    "5 seeds": Race(seeds=5),
    "seeds vary most": Race(between_seeds=(0.5,), between_entrants=0.1),
    "one seed": Race(seeds=1, between_seeds=(0.0,)),
    "one entrant varies": Race(between_seeds=(0.5, 0.05, 0.05, 0.05)),
    "rows vary most": Race(between_seeds=(0.0,)),
    "two entrants": Race(entrants=2),
    "eight entrants": Race(entrants=8),
    "few rows": Race(rows=30, between_seeds=(0.1,), between_entrants=0.1),
    "one of five seeds varies": Race(seeds=5, between_seeds=(0.5, 0.05, 0.05, 0.05)),
}
QUICK = list(RACES)[:4]  # the rates of the others are closer to the bounds


def simulate(race: Race, tables: int, seed: int = 0) -> tuple[float, float]:
    """Return how many tables of equal entrants show a difference, and the coverage of intervals."""
    rng, shown, covered = np.random.default_rng(seed), list[bool](), list[bool]()
    for _ in range(tables):
        table = race.correct(rng)
        shown.append(any(d.shown for d in compare_all(ACCURACY, table)))
        intervals = (summarize(ACCURACY, seeds) for seeds in table.values())
        covered += [interval.low <= 0.5 <= interval.high for interval in intervals]
    return float(np.mean(shown)), float(np.mean(covered))


@pytest.mark.parametrize("name", QUICK)
def test_equal_entrants_seldom_differ_and_intervals_cover_the_expectation(name: str) -> None:
    shown, covered = simulate(RACES[name], TABLES)
    assert shown <= 0.05
    assert covered >= 0.93


@pytest.mark.slow
@pytest.mark.parametrize("name", RACES)
def test_so_it_is_in_many_tables(name: str) -> None:
    shown, covered = simulate(RACES[name], 10 * TABLES, seed=1)
    assert shown <= 0.05
    assert covered >= 0.93


@pytest.mark.parametrize("name", ["3 seeds", "5 seeds"])
def test_intervals_of_bits_per_byte_cover_the_expectation(name: str) -> None:
    rng, race = np.random.default_rng(0), replace(RACES[name], entrants=3)
    covered, shown = list[bool](), list[bool]()
    for _ in range(TABLES):
        table = race.bits(rng)
        intervals = [summarize(BITS, seeds) for seeds in table.values()]
        covered += [interval.low <= 2 <= interval.high for interval in intervals]
        shown.append(any(d.shown for d in compare_all(BITS, table)))
    assert np.mean(covered) >= 0.93
    assert np.mean(shown) <= 0.05


def test_seeds_alone_would_cover_too_little() -> None:
    """The reason for the quantiles: a bootstrap over three seeds misses one time in three."""
    rng, race = np.random.default_rng(0), RACES["seeds vary most"]
    missed = []
    for _ in range(TABLES):
        for seeds in race.correct(rng).values():
            scores = np.array([ACCURACY.aggregate(rows) for rows in seeds])
            drawn = scores[rng.integers(3, size=(200, 3))].mean(1)
            low, high = np.quantile(drawn, [0.025, 0.975])
            missed.append(not low <= 0.5 <= high)
    assert np.mean(missed) > 0.2


@pytest.mark.parametrize(("seeds", "power"), [(3, 0.8), (5, 0.95)])
def test_a_real_difference_is_found(seeds: int, power: float) -> None:
    race = Race(seeds=seeds, rows=400)
    rng, found = np.random.default_rng(seeds), list[Difference]()
    for _ in range(30):
        table = race.correct(rng, best=1.0)
        found += [d for d in compare_all(ACCURACY, table) if "entrant 0" in (d.first, d.second)]
    assert {d.first for d in found if d.shown} == {"entrant 0"}
    assert np.mean([d.shown for d in found]) > power


def test_a_shown_difference_has_an_interval_without_0_and_a_p_value_below_5_percent() -> None:
    rng = np.random.default_rng(0)
    found = [
        d
        for effect in np.linspace(0, 1.5, 30)
        for d in compare_all(ACCURACY, Race().correct(rng, effect))
    ]
    assert 0.1 < np.mean([d.shown for d in found]) < 0.9
    for d in found:
        assert d.shown == (d.low > 0 or d.high < 0) == (d.p < 0.05)
        assert d.low <= d.value <= d.high


def test_pairs_are_in_the_order_of_the_scores_whatever_is_better() -> None:
    rng = np.random.default_rng(1)
    for metric, table, sign in (
        (ACCURACY, Race().correct(rng), 1),
        (BITS, Race().bits(rng), -1),
    ):
        values = {name: summarize(metric, seeds).value for name, seeds in table.items()}
        differences = compare_all(metric, table)
        assert all(sign * d.value >= 0 for d in differences)
        ranked = list(dict.fromkeys(d.first for d in differences))
        assert all(sign * (values[a] - values[b]) >= 0 for a, b in pairwise(ranked))


def test_the_same_predictions_have_no_difference_under_another_name() -> None:
    table = dict(Race(entrants=2).correct(np.random.default_rng(3), best=3.0))
    table["twin"] = table["entrant 0"][::-1]  # the same models, seeds in another order
    differences = {(d.first, d.second): d for d in compare_all(ACCURACY, table)}
    twin = differences[("entrant 0", "twin")]
    assert not twin.shown and twin.p == 1
    assert twin.value == pytest.approx(0)
    assert all(d.shown for pair, d in differences.items() if "entrant 1" in pair)


def test_rows_are_paired() -> None:
    """A small advantage on rows of very different difficulty is seen on the same rows only."""
    rng = np.random.default_rng(5)
    difficulty = rng.normal(size=400)
    table = {
        "better": [with_counts((difficulty + 0.15 > 0).astype(float))] * 3,
        "worse": [with_counts((difficulty > 0).astype(float))] * 3,
    }
    (paired,) = compare_all(ACCURACY, table)
    assert paired.shown and paired.first == "better"
    single = [summarize(ACCURACY, seeds) for seeds in table.values()]
    assert single[0].low < single[1].high


def test_more_seeds_narrow_an_interval_that_seeds_widen() -> None:
    rng, race = np.random.default_rng(2), Race(seeds=10, between_seeds=(0.6,), rows=400)
    (seeds,) = replace(race, entrants=1).correct(rng).values()
    widths = [
        interval.high - interval.low
        for count in (2, 3, 5, 10)
        for interval in [summarize(ACCURACY, seeds[:count])]
    ]
    assert widths == sorted(widths, reverse=True)


def test_one_seed_covers_rows_only_and_says_so() -> None:
    rng = np.random.default_rng(2)
    alone = compare_all(ACCURACY, Race(seeds=1).correct(rng))
    assert all(d.rows_only and d.seeds == 1 for d in alone)
    several = compare_all(ACCURACY, Race(seeds=3).correct(rng))
    assert not any(d.rows_only for d in several)
    assert {d.seeds for d in several} == {3}


def test_an_entrant_with_one_seed_borrows_the_variance_of_the_others() -> None:
    table = dict(Race(between_seeds=(0.2,)).correct(np.random.default_rng(2)))
    full = {frozenset((d.first, d.second)): d for d in compare_all(ACCURACY, table)}
    table["entrant 0"] = table["entrant 0"][:1]
    for d in compare_all(ACCURACY, table):
        if "entrant 0" in (d.first, d.second):
            whole = full[frozenset((d.first, d.second))]
            assert d.high - d.low > whole.high - whole.low
            assert d.seeds == 1 and not d.rows_only


def test_a_model_that_no_seed_changes_has_no_variance_between_seeds() -> None:
    table = dict(Race(between_seeds=(1.0,)).correct(np.random.default_rng(4)))
    table["counts"] = table["entrant 0"][:1]
    wide, narrow = (
        next(
            d for d in compare_all(ACCURACY, table, fixed=fixed) if "counts" in (d.first, d.second)
        )
        for fixed in ((), ("counts",))
    )
    assert narrow.high - narrow.low < wide.high - wide.low
    assert narrow.seeds == 3


def test_seeds_of_a_baseline_say_nothing_about_entrants() -> None:
    table = Race(entrants=4, between_seeds=(0.05, 0.05, 0.05, 3.0)).correct(
        np.random.default_rng(1)
    )
    noisy = "entrant 3"
    calm = {name: seeds for name, seeds in table.items() if name != noisy}
    own = {frozenset((d.first, d.second)): d for d in compare_all(ACCURACY, calm)}
    found = {
        frozenset((d.first, d.second)): d for d in compare_all(ACCURACY, table, baselines=[noisy])
    }
    pooled = {frozenset((d.first, d.second)): d for d in compare_all(ACCURACY, table)}

    def width(d: Difference) -> float:
        return d.high - d.low

    for pair, alone in own.items():  # twice as many pairs, and the same seeds
        assert width(alone) < width(found[pair]) < 2 * width(alone)
        assert width(pooled[pair]) > 2 * width(alone)
    with_baseline = [d for pair, d in found.items() if noisy in pair]
    assert min(map(width, with_baseline)) > 2 * max(map(width, own.values()))


def test_seeds_of_a_baseline_do_not_stand_in_for_those_of_entrants() -> None:
    """The entrants have one seed: how another would train is not known."""
    table = Race(entrants=3).correct(np.random.default_rng(2))
    table = {name: seeds if name == "entrant 2" else seeds[:1] for name, seeds in table.items()}
    assert all(d.rows_only for d in compare_all(ACCURACY, table, baselines=["entrant 2"]))
    fixed = {"entrant 0", "entrant 1"}
    found = compare_all(ACCURACY, table, fixed=fixed, baselines=["entrant 2"])
    assert not any(d.rows_only for d in found)
    assert all(fixed.intersection((d.first, d.second)) == {*d.fixed} for d in found)


def test_two_baselines_are_not_compared_and_cost_no_power() -> None:
    table = Race(entrants=5).correct(np.random.default_rng(4))
    baselines = ["entrant 3", "entrant 4"]
    every = {
        frozenset((d.first, d.second)): d for d in compare_all(ACCURACY, table, fixed=baselines)
    }
    some = {
        frozenset((d.first, d.second)): d
        for d in compare_all(ACCURACY, table, fixed=baselines, baselines=baselines)
    }
    assert every.keys() - some.keys() == {frozenset(baselines)}
    assert all(d.high - d.low < every[pair].high - every[pair].low for pair, d in some.items())


REFERENCES = np.random.default_rng(7).choice(["a", "b", "c"], 300).tolist()
NUMBERS = np.random.default_rng(7).normal(size=300)


def noisy_labels(accuracy: float, rng: np.random.Generator) -> list[str]:
    kept = rng.random(300) < accuracy
    return [r if keep else "a" for r, keep in zip(REFERENCES, kept, strict=True)]


@pytest.mark.parametrize(
    "metric",
    [
        BinaryF1(positive_label="b"),
        MacroF1(),
        MatthewsCorrelation(),
        replace(Pearson(), max_resamples=200),
        replace(Spearman(), max_resamples=200),
        BLEU,
    ],
    ids=lambda metric: metric.name,
)
def test_scores_that_are_no_means_are_compared(metric: Metric) -> None:
    """A good and a bad system differ, and two good ones do not."""
    rng = np.random.default_rng(0)

    def system(quality: float) -> list[Statistics]:
        if isinstance(metric, Pearson):
            noise = rng.normal(size=(3, 300)) / quality
            return [metric.statistics(NUMBERS + row, NUMBERS) for row in noise]
        texts = [noisy_labels(quality, rng) for _ in range(3)]
        if metric is BLEU:
            whole = [f"the {r} cat sat on the {r} mat" for r in REFERENCES]
            written = [[f"the {r} cat sat on the {r} mat" for r in labels] for labels in texts]
            return [metric.statistics(labels, whole) for labels in written]
        return [metric.statistics(labels, REFERENCES) for labels in texts]

    table = {"good": system(0.85), "as good": system(0.85), "bad": system(0.6)}
    shown = {frozenset((d.first, d.second)): d.shown for d in compare_all(metric, table)}
    assert not shown[frozenset(("good", "as good"))]
    assert shown[frozenset(("good", "bad"))] and shown[frozenset(("as good", "bad"))]
    interval = summarize(metric, table["good"])
    scores = [metric.aggregate(rows) for rows in table["good"]]
    assert interval.value == pytest.approx(np.mean(scores))
    assert interval.spread == pytest.approx(np.std(scores, ddof=1))
    assert metric.minimum <= interval.low < interval.value < interval.high <= metric.maximum


@pytest.mark.parametrize("metric", [MacroF1(), MatthewsCorrelation(), Accuracy(), Spearman(), BLEU])
def test_resampled_scores_are_those_of_the_rows_drawn(metric: Metric) -> None:
    rng = np.random.default_rng(0)
    if isinstance(metric, Spearman):
        statistics = metric.statistics(NUMBERS + rng.normal(size=300), NUMBERS)
    else:
        statistics = metric.statistics(noisy_labels(0.7, rng), REFERENCES)
    drawn = rng.integers(300, size=(3, 300))
    counts = np.stack([np.bincount(rows, minlength=300) for rows in drawn])
    expected = [metric.aggregate(statistics[rows]) for rows in drawn]
    assert metric.resampled_scores(statistics, counts) == pytest.approx(expected)


def test_classes_that_only_some_seeds_predict_are_compared() -> None:
    rng, metric = np.random.default_rng(0), MacroF1()
    texts = [noisy_labels(0.8, rng) for _ in range(4)]
    texts[1] = ["z", *texts[1][1:]]
    arrays = [metric.statistics(labels, REFERENCES) for labels in texts]
    assert arrays[0].shape != arrays[1].shape
    (difference,) = compare_all(metric, {"a": arrays[:2], "b": arrays[2:]})
    assert np.isfinite([difference.low, difference.high, difference.p]).all()


def test_an_advantage_on_few_rows_is_not_shown() -> None:
    """Six of 300 rows differ, all in one direction: a sign test has p = 0.03, before correction."""
    right = np.zeros(300)
    right[:150] = 1
    more = right.copy()
    more[150:156] = 1
    table = {"a": [with_counts(more)], "b": [with_counts(right)], "c": [with_counts(right)]}
    assert not any(d.shown for d in compare_all(ACCURACY, table))


def test_one_row_shows_nothing() -> None:
    table = {"a": [np.array([[1.0, 1.0]])] * 3, "b": [np.array([[0.0, 1.0]])] * 3}
    (difference,) = compare_all(ACCURACY, table)
    assert not difference.shown
    assert np.isfinite([difference.low, difference.high]).all()


def test_a_perfect_score_on_few_rows_is_not_certain() -> None:
    few, many = (summarize(ACCURACY, [with_counts([1.0] * rows)] * 3) for rows in (20, 2000))
    assert 0.8 < few.low < 0.95 < 0.99 < many.low < many.high == few.high == 1.0


def test_documents_of_zero_bytes_are_allowed() -> None:
    rows = document_statistics([(10.0, 5.0), (0.0, 0.0), (12.0, 7.0)])
    assert summarize(BITS, [rows, rows]).value == pytest.approx(22 / np.log(2) / 12)


def test_different_rows_are_refused() -> None:
    short, long = with_counts([1.0, 0.0]), with_counts([1.0, 0.0, 1.0])
    with pytest.raises(UserError, match="2 and 3 rows cannot be compared"):
        compare_all(ACCURACY, {"a": [short], "b": [long]})
    with pytest.raises(UserError, match="no rows"):
        compare_all(ACCURACY, {"a": [short[:0]], "b": [short[:0]]})


# The scale of the metric


def right_on(*shares: float, rows: int = 100) -> list[Statistics]:
    """Return a seed for each share of rows that are right."""
    return [with_counts([float(n < round(share * rows)) for n in range(rows)]) for share in shares]


def documents_of(*bits: float, count: int = 50) -> list[Statistics]:
    """Return a seed for each number of bits per byte, of documents that differ a little."""
    return [
        document_statistics(
            [(np.log(2) * 100 * b * (1 + 0.01 * (n % 3)), 100) for n in range(count)]
        )
        for b in bits
    ]


def test_intervals_end_where_the_scale_does_and_two_seeds_that_disagree_tell_nothing() -> None:
    """Sentences said that intervals reached up to 1903.8 points."""
    table = {"a": right_on(0.9, 0.3), "b": right_on(0.4, 0.7), "c": right_on(0.2, 0.8)}
    for d in compare_all(ACCURACY, table):
        assert (d.low, d.high) == (-1.0, 1.0)
        assert (d.too_few, d.shown) == ("seeds", False)
    for seeds in table.values():
        single = summarize(ACCURACY, seeds)
        assert (single.low, single.high) == (0.0, 1.0)
    (d,) = compare_all(replace(Pearson(), max_resamples=100), correlated())
    assert (d.low, d.high) == (-2.0, 2.0)


def correlated() -> dict[str, list[Statistics]]:
    rng = np.random.default_rng(0)
    truth = rng.normal(size=40)
    return {
        name: [
            Pearson().statistics((sign * truth + rng.normal(size=40)).tolist(), truth.tolist())
            for sign in signs
        ]
        for name, signs in (("a", (3, -3)), ("b", (-3, 3)))
    }


def test_no_entrant_is_ahead_by_more_bits_than_the_other_has() -> None:
    (d,) = compare_all(BITS, {"a": documents_of(1.0, 3.0), "b": documents_of(2.9, 1.2)})
    means = {"a": 2.0 * 1.0098, "b": 2.05 * 1.0098}
    assert (d.first, d.too_few, d.shown) == ("a", "seeds", False)
    assert d.low == pytest.approx(-means["b"], rel=1e-4)
    assert d.high == pytest.approx(means["a"], rel=1e-4)
    assert summarize(BITS, documents_of(1.0, 3.0)).low == 0.0


def test_few_rows_are_told_from_few_seeds() -> None:
    """Three rows, on which all seeds agree."""
    table = {"a": right_on(1 / 3, 1 / 3, 1 / 3, rows=3), "b": right_on(2 / 3, 2 / 3, 2 / 3, rows=3)}
    (d,) = compare_all(ACCURACY, table)
    assert (d.too_few, d.shown) == ("rows", False)


# The interval of the difference decides, not the overlap of two single ones


def overlap(table: Table, metric: Metric) -> bool:
    """Return whether the intervals of the first two scores overlap."""
    first, second = [summarize(metric, seeds) for seeds in table.values()][:2]
    return max(first.low, second.low) <= min(first.high, second.high)


def test_a_winner_is_named_where_single_intervals_overlap_and_the_rows_are_shared() -> None:
    """One model is better on every document; how hard documents are moves both scores."""
    rng = np.random.default_rng(0)
    difficulty = rng.uniform(1, 3, 100)

    def model(bits: float) -> list[Statistics]:
        seeds = [difficulty + bits + rng.normal(0, 0.002) for _ in range(3)]
        return [document_statistics([(np.log(2) * b * 100, 100) for b in seed]) for seed in seeds]

    table = {"better": model(0.0), "worse": model(0.1)}
    assert overlap(table, BITS)
    (d,) = compare_all(BITS, table)
    assert d.shown and d.first == "better" and d.high < 0


def test_no_winner_is_named_where_single_intervals_are_apart_and_seeds_agree_by_chance() -> None:
    """Other entrants of the table show how much seeds vary."""
    table = {
        "a": right_on(0.801, 0.8, 0.802, rows=2000),
        "b": right_on(0.7, 0.702, 0.701, rows=2000),
        "c": right_on(0.5, 0.9, 0.7, rows=2000),
    }
    assert not overlap(table, ACCURACY)
    found = {(d.first, d.second): d for d in compare_all(ACCURACY, table)}
    assert not found["a", "b"].shown
    (alone,) = compare_all(ACCURACY, {name: table[name] for name in "ab"})
    assert alone.shown


def test_an_interval_inside_the_scale_is_not_changed() -> None:
    table = {"a": right_on(0.8, 0.82, 0.81), "b": right_on(0.7, 0.71, 0.72)}
    (d,) = compare_all(ACCURACY, table)
    assert d.too_few == "" and d.shown
    assert d.value - d.low == pytest.approx(d.high - d.value)
