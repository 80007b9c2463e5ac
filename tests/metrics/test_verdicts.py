"""Sentences about differences: planted entrants that are better or equal, and the wording."""

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
import pytest

from kinfolk.metrics.classification import Accuracy
from kinfolk.metrics.comparison import (
    BITS_PER_BYTE,
    Difference,
    Interval,
    compare_all,
    outlying_seeds,
    summarize,
)
from kinfolk.metrics.metric import Metric, Statistics, with_counts
from kinfolk.metrics.text import BLEU, Perplexity
from kinfolk.metrics.verdicts import (
    Verdicts,
    undecided_groups,
    unit_of,
)

ROWS = 500


def planted(advantage: float, rng: np.random.Generator, difficulty: Sequence[float]) -> Statistics:
    """Return the rows that a model gets right, whose seed is worth as much as a third of a row."""
    noise = rng.normal(0, 0.5, ROWS) + rng.normal(0, 0.05)
    return with_counts((np.asarray(difficulty) + noise + advantage > 0).astype(float))


def race(
    advantages: dict[str, float], seeds: int = 3, seed: int = 0
) -> dict[str, list[Statistics]]:
    rng = np.random.default_rng(seed)
    difficulty = rng.normal(size=ROWS).tolist()
    return {
        name: [planted(advantage, rng, difficulty) for _ in range(seeds)]
        for name, advantage in advantages.items()
    }


def points(where: str, intervals: Any, differences: Any, **more: Any) -> Verdicts:
    """Return the verdicts of a table of fractions, of three seeds."""
    return Verdicts(where, "points", intervals, differences, 3, scale=100, **more)


def sentences(
    metric: Metric, table: dict[str, list[Statistics]], where: str = "triage.tsv", seeds: int = 3
) -> list[str]:
    intervals = {name: summarize(metric, rows) for name, rows in table.items()}
    unit, scale = unit_of(metric)
    differences = compare_all(metric, table)
    return Verdicts(where, unit, intervals, differences, seeds, scale=scale).sentences()


def test_an_entrant_that_is_better_by_construction_is_ahead_and_an_equal_one_is_not() -> None:
    table = race({"plain": 0.3, "better": 1.0, "equal": 0.3})  # each seed of each is another draw
    scores = {name: [Accuracy().aggregate(rows) for rows in table[name]] for name in table}
    assert np.mean(scores["plain"]) != np.mean(scores["equal"])
    found = sentences(Accuracy(), table)
    assert len(found) == 2
    assert found[0].startswith("on triage.tsv, better is ahead of ")
    assert " plain by " in found[0] and " equal by " in found[0]
    assert re.match("no difference shown between (plain and equal|equal and plain) on ", found[1])


def test_entrants_that_predict_alike_are_said_to() -> None:
    rows = race({"a": 0.4})["a"][0]
    alike = {name: [rows, rows, rows] for name in "abc"}
    found = sentences(Accuracy(), alike)
    start = "no difference shown between a, b and c on triage.tsv"
    assert found == [f"{start} (the same scores on all test rows, 3 seeds)"]
    intervals = {name: summarize(Accuracy(), rows) for name, rows in alike.items()}
    differences = compare_all(Accuracy(), alike)
    beside = points("t", intervals, differences, baselines=["c"]).sentences()
    assert "the baseline c and a or b on t (the same scores on all test rows" in beside[-1]


@pytest.mark.parametrize("seed", range(5))
def test_no_difference_is_shown_between_entrants_that_are_equal_by_construction(seed: int) -> None:
    found = sentences(Accuracy(), race(dict.fromkeys(["a", "b", "c", "d"], 0.4), seed=seed))
    (sentence,) = found
    assert sentence.startswith("no difference shown between ")
    assert all(name in sentence for name in "abcd")


def test_a_better_model_of_text_is_ahead_in_bits_per_byte() -> None:
    rng = np.random.default_rng(0)
    sizes = rng.integers(200, 4000, 100).astype(float)
    common = rng.normal(0, 0.3, 100)

    def model(bits: float) -> list[Statistics]:
        costs = [bits + common + rng.normal(0, 0.02, 100) + rng.normal(0, 0.01) for _ in range(3)]
        return [np.stack([np.log(2) * sizes * cost, sizes], 1) for cost in costs]

    table = {"plain": model(2.2), "better": model(2.0), "equal": model(2.2)}
    first, last = sentences(BITS_PER_BYTE, table, "the held-out text")
    assert first.startswith("on the held-out text, better is ahead of ")
    assert " bits per byte (9." in first or " bits per byte (8." in first
    assert " %, 95 % interval 0.1" in first
    assert last.startswith("no difference shown between ")
    assert "plain" in last and "equal" in last


def difference(
    first: str, second: str, value: float, half: float, *, seeds: int = 3, rows_only: bool = False
) -> Difference:
    return Difference(
        first=first,
        second=second,
        value=value,
        low=value - half,
        high=value + half,
        p=0.01 if abs(value) > half else 0.5,
        shown=abs(value) > half,
        seeds=seeds,
        rows_only=rows_only,
    )


def written(*differences: Difference, unit: str = "points", **options: object) -> list[str]:
    intervals = {"b": Interval(2.0, 1.9, 2.1, (2.0,))}
    given: Any = {"scale": 100 if unit == "points" else 1} | options
    verdicts = Verdicts("triage.tsv", unit, intervals, differences, 3, **given)
    return verdicts.sentences()


@pytest.mark.parametrize(
    ("found", "options", "sentence"),
    [
        (
            difference("a", "b", 0.021, 0.012),
            {},
            "a is ahead of b on triage.tsv by 2.1 points (95 % interval 0.9 to 3.3, 3 seeds)",
        ),
        (
            difference("a", "b", 0.003, 0.011),
            {},
            "no difference shown between a and b on triage.tsv (difference 0.3 points, "
            "95 % interval −0.8 to 1.4, 3 seeds)",
        ),
        (
            difference("a", "b", 0.021, 0.012, seeds=1, rows_only=True),
            {},
            "a is ahead of b on triage.tsv by 2.1 points (95 % interval 0.9 to 3.3, "
            "one seed: the interval covers test rows only, not training)",
        ),
        (
            difference("a", "b", 0.021, 0.012, seeds=2),
            {},
            "a is ahead of b on triage.tsv by 2.1 points (95 % interval 0.9 to 3.3, 2 of 3 seeds)",
        ),
        (
            difference("a", "b", 0.021, 0.012, seeds=0),
            {},
            "a is ahead of b on triage.tsv by 2.1 points (95 % interval 0.9 to 3.3)",
        ),
        (
            replace(difference("a", "b", 0.021, 0.012), fixed=("a",)),
            {},
            "a is ahead of b on triage.tsv by 2.1 points (95 % interval 0.9 to 3.3, 3 seeds; no "
            "seed changes a)",
        ),
        (
            replace(difference("a", "b", 0.021, 0.012, seeds=0), fixed=("a", "b")),
            {"baselines": ["b"]},
            "a is ahead of the baseline b on triage.tsv by 2.1 points (95 % interval 0.9 to 3.3, "
            "no seed changes a or the baseline b)",
        ),
        (
            replace(difference("a", "b", 0.021, 0.012, seeds=1, rows_only=True), fixed=("b",)),
            {},
            "a is ahead of b on triage.tsv by 2.1 points (95 % interval 0.9 to 3.3, one seed: the "
            "interval covers test rows only, not training; no seed changes b)",
        ),
        (
            replace(difference("a", "b", 0.021, 0.9, seeds=2), too_few="seeds"),
            {},
            "no difference shown between a and b on triage.tsv (difference 2.1 points, too few "
            "seeds to tell: the 95 % interval is wider than the scale, 2 of 3 seeds)",
        ),
        (
            replace(difference("a", "b", 0.021, 0.9, seeds=0), too_few="rows"),
            {},
            "no difference shown between a and b on triage.tsv (difference 2.1 points, too few "
            "test rows to tell: the 95 % interval is wider than the scale)",
        ),
        (
            difference("a", "b", -0.1, 0.04, seeds=1, rows_only=True),
            {"unit": "bits per byte"},
            "a is ahead of b on triage.tsv by 0.100 bits per byte (5.0 %, 95 % interval 0.060 to "
            "0.140, one seed: the interval covers held-out documents only, not training)",
        ),
        (
            difference("a", "b", -0.1, 0.04),
            {"unit": "bits per byte"},
            "a is ahead of b on triage.tsv by 0.100 bits per byte (5.0 %, 95 % interval 0.060 to "
            "0.140, 3 seeds)",
        ),
        (
            difference("a", "b", 2.1, 1.2),
            {"scale": 1.0},
            "a is ahead of b on triage.tsv by 2.1 points (95 % interval 0.9 to 3.3, 3 seeds)",
        ),
        (
            difference("a", "b", 0.021, 0.02097),
            {},
            "a is ahead of b on triage.tsv by 2.100 points (95 % interval 0.003 to 4.197, 3 seeds)",
        ),
        (
            difference("a", "b", 0.021, 0.012),
            {"baselines": ["b"]},
            "a is ahead of the baseline b on triage.tsv by 2.1 points (95 % interval 0.9 to 3.3, "
            "3 seeds)",
        ),
        (
            difference("b", "a", 0.021, 0.012),
            {"baselines": ["b"]},
            "the baseline b is ahead of a on triage.tsv by 2.1 points (95 % interval 0.9 to 3.3, "
            "3 seeds)",
        ),
    ],
)
def test_a_pair_is_one_sentence(
    found: Difference, options: dict[str, object], sentence: str
) -> None:
    assert written(found, **options) == [sentence]


def table_of(names: str, shown: Sequence[str], **options: object) -> list[Difference]:
    return [
        difference(a, b, 0.05 if a + b in shown else 0.01, 0.02, **options)  # type: ignore[arg-type]
        for a, b in combinations(names, 2)
    ]


def test_many_equal_pairs_are_one_sentence_with_what_they_leave_open() -> None:
    assert written(*table_of("abcd", [])) == [
        "no difference shown between a, b, c and d on triage.tsv (differences of at most 1.0 "
        "points, all 95 % intervals include 0 and reach up to 3.0 points, 3 seeds)"
    ]


def test_intervals_wider_than_the_scale_are_said_to_tell_nothing() -> None:
    pairs = table_of("abc", [])
    wide = [replace(d, too_few="seeds") for d in pairs]
    start = "no difference shown between a, b and c on triage.tsv (differences of at most 1.0 "
    assert written(*wide) == [
        f"{start}points, too few seeds to tell: all 95 % intervals are wider than the scale, "
        "3 seeds)"
    ]
    assert written(wide[0], *pairs[1:]) == [
        f"{start}points, too few seeds to tell: the 95 % interval of 1 of 3 pairs is wider than "
        "the scale, 3 seeds)"
    ]


def test_entrants_ahead_of_the_same_others_share_a_sentence() -> None:
    assert written(*table_of("abcd", ["ac", "ad", "bc", "bd"])) == [
        "a and b are ahead of c and d on triage.tsv by 5.0 points (95 % interval of a over "
        "c, the closest to 0: 3.0 to 7.0, 3 seeds)",
        "no difference shown between a and b on triage.tsv (difference 1.0 points, 95 % interval "
        "−1.0 to 3.0, 3 seeds)",
        "no difference shown between c and d on triage.tsv (difference 1.0 points, 95 % interval "
        "−1.0 to 3.0, 3 seeds)",
    ]


def test_every_undecided_pair_is_in_a_group_and_no_group_has_a_decided_one() -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        pairs = ["".join(pair) for pair in combinations("abcdef", 2)]
        shown = [pair for pair in pairs if rng.random() < 0.4]
        groups = undecided_groups(table_of("abcdef", shown))
        inside = {"".join(pair) for group in groups for pair in combinations(group, 2)}
        assert inside == {*pairs} - {*shown}


def test_a_baseline_is_named_where_it_beats_or_equals_entrants() -> None:
    found = written(*table_of("tab", ["ta"]), baselines=["t"])
    assert found == [
        "no difference shown between a and b on triage.tsv (difference 1.0 points, 95 % interval "
        "−1.0 to 3.0, 3 seeds)",
        "the baseline t is ahead of a on triage.tsv by 5.0 points (95 % interval 3.0 to 7.0, "
        "3 seeds)",
        "no difference shown between the baseline t and b on triage.tsv (difference 1.0 points, "
        "95 % interval −1.0 to 3.0, 3 seeds)",
    ]
    found = written(*table_of("tabc", []), baselines=["t"])
    assert found[1] == (
        "no difference shown between the baseline t and a, b or c on triage.tsv (all 95 % "
        "intervals include 0 and reach up to 3.0 points, 3 seeds)"
    )


def test_no_winner_is_named_where_an_interval_includes_0() -> None:
    rng = np.random.default_rng(1)
    for effect in rng.uniform(0, 0.5, 20).tolist():
        table = race({"a": effect, "b": 0.0, "c": 0.0}, seed=int(1e6 * effect))
        differences = compare_all(replace(Accuracy(), max_resamples=100), table)
        ahead = [s for s in points("t", {}, differences).sentences() if "ahead" in s]
        winners = {d.first for d in differences if d.low > 0}
        assert {s.removeprefix("on t, ").split(" ")[0] for s in ahead} <= winners
        assert bool(ahead) == bool(winners)


def test_a_baseline_that_is_ahead_of_all_networks_is_the_headline() -> None:
    """It was the third of 22 sentences, after who is not ahead of whom."""
    intervals = {
        "bert": Interval(0.536, 0.5, 0.6, (0.536,)),
        "gpt2": Interval(0.506, 0.4, 0.6, (0.506,)),
        "majority": Interval(0.51, 0.4, 0.6, (0.51,)),
        "TF-IDF": Interval(0.667, 0.6, 0.7, (0.667,)),
    }
    differences = [
        difference("TF-IDF", "bert", 0.131, 0.1),
        difference("TF-IDF", "gpt2", 0.161, 0.1),
        difference("bert", "majority", 0.026, 0.1),
        difference("majority", "gpt2", 0.004, 0.1),
        difference("bert", "gpt2", 0.03, 0.1),
    ]
    baselines = ("majority", "TF-IDF")
    verdicts = points("t.tsv", intervals, differences, baselines=baselines)
    first, tie, nothing = verdicts.headlines(trained_on=" with 1,000 rows")
    assert first.startswith("on t.tsv, the baseline TF-IDF is ahead of bert by ")
    assert tie.startswith("no difference shown between the baseline majority and bert or gpt2")
    assert nothing == (
        "gpt2 (50.6) learned nothing on t.tsv with 1,000 rows: the largest class has 51.0"
    )
    assert {first, tie} <= {*verdicts.sentences()}
    differences[0] = difference("TF-IDF", "bert", 0.131, 0.2)  # not ahead of all
    differences[2] = difference("bert", "majority", 0.026, 0.02)  # one network is better
    found = points("t.tsv", intervals, differences, baselines=baselines).headlines()
    assert found == ["gpt2 (50.6) learned nothing on t.tsv: the largest class has 51.0"]
    known = points("t.tsv", intervals, differences, baselines=baselines, fixed=("bert", "gpt2"))
    assert not known.headlines()


def test_units_of_metrics() -> None:
    assert unit_of(Accuracy()) == ("points", 100)
    assert unit_of(BLEU) == ("points", 1)
    assert unit_of(BITS_PER_BYTE) == ("bits per byte", 1)
    assert unit_of(Perplexity()) == ("perplexity", 1)


def interval(*scores: float) -> Interval:
    return Interval(float(np.mean(scores)), 0.0, 1.0, scores)


def test_an_entrant_whose_seeds_collapse_is_named_where_nothing_is_shown() -> None:
    steady = [(0.69, 0.70, 0.705), (0.68, 0.69, 0.695), (0.70, 0.71, 0.70), (0.64, 0.63, 0.65)]
    intervals = {f"e{n}": interval(*scores) for n, scores in enumerate(steady)}
    intervals |= {"bad": interval(0.52, 0.64, 0.635), "tfidf": interval(0.79)}
    pairs = [Difference("e0", "bad", 0.1, -0.3, 0.5, 1.0, False, 3, False)]
    told = points("sst2", intervals, pairs, baselines=["tfidf"]).sentences()
    (sentence,) = [s for s in told if s.startswith("the seeds of ")]
    assert sentence.startswith("the seeds of bad are 52.0 to 64.0 points on sst2, 9 times as far")
    assert sentence.endswith("and so would a comparison without bad")
    # Not where all is shown, nor where seeds vary alike, nor with two entrants.
    shown = [replace(pairs[0], shown=True, low=0.05)]
    for others, differences in (
        (intervals, shown),
        (intervals | {"bad": interval(0.63, 0.64, 0.65)}, pairs),
        ({name: intervals[name] for name in ("e0", "bad")}, pairs),
    ):
        told = points("sst2", others, differences).sentences()
        assert not any(s.startswith("the seeds of ") for s in told)


def test_few_tables_of_equal_variance_have_an_outlying_one() -> None:
    rng = np.random.default_rng(0)
    tables = [{str(n): interval(*rng.normal(size=3)) for n in range(6)} for _ in range(2000)]
    assert sum(outlying_seeds(table) is not None for table in tables) < 0.015 * len(tables)
