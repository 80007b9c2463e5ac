"""Exact match and F1: golden values of the scripts of SQuAD 1.1, 2.0 and CMRC 2018."""

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinfolk.errors import UserError
from kinfolk.metrics.squad import (
    ExactMatch,
    NoAnswerThreshold,
    SpanF1,
    best_threshold,
    cmrc_tokenize,
    longest_common_substring,
    normalize_answer,
)

SAID = ["the Beatles", "1969", "", "in London, England", "blue"]
ANSWERS = [["Beatles", "The Beatles!"], ["1970", "in 1969"], [], ["London"], []]
NULL_SCORES = [0.1, 0.2, 0.9, 0.3, 0.6]
f1, exact = SpanF1(), ExactMatch()


def answered(said: list[str], null_scores: list[float], threshold: float) -> list[str]:
    """Return the predictions, empty where the null score is above the threshold."""
    pairs = zip(said, null_scores, strict=True)
    return ["" if score > threshold else text for text, score in pairs]


def test_an_answer_is_compared_by_its_words() -> None:
    assert normalize_answer("The  U.S. Army, an  ANT's.") == "us army ants"
    assert normalize_answer("a theatre") == "theatre"
    assert normalize_answer("the a an !") == ""


def test_squad_takes_the_answer_that_fits_best() -> None:
    said, answers = SAID[:2] + SAID[3:4], ANSWERS[:2] + ANSWERS[3:4]
    # 1 of 1 word; 1 of 1 predicted and of 2 wanted; 1 of 3 predicted and of 1 wanted
    assert f1(said, answers) == pytest.approx((1 + 2 / 3 + 1 / 2) / 3)
    assert exact(said, answers) == pytest.approx(1 / 3)


def test_a_word_counts_as_often_as_it_is_wanted() -> None:
    assert f1(["york york york"], [["new york"]]) == pytest.approx(2 * 1 / 3 * 1 / 2 / (5 / 6))


def test_squad_2_wants_nothing_where_there_is_no_answer() -> None:
    assert 100 * exact(SAID, ANSWERS) == pytest.approx(40)
    assert 100 * f1(SAID, ANSWERS) == pytest.approx(63.33333333333333)
    values = f1.values(SAID, ANSWERS)
    assert 100 * sum(values[i] for i in (0, 1, 3)) / 3 == pytest.approx(72.22222222222221)
    assert [values[2], values[4]] == [1, 0]


def test_a_null_score_above_the_threshold_removes_an_answer() -> None:
    silent = answered(SAID, NULL_SCORES, 0.5)
    assert 100 * exact(silent, ANSWERS) == pytest.approx(60)
    assert 100 * f1(silent, ANSWERS) == pytest.approx(83.33333333333333)
    best_exact, best_f1 = (best_threshold(m, SAID, ANSWERS, NULL_SCORES) for m in (exact, f1))
    assert (best_exact.score, best_exact.threshold) == pytest.approx((0.6, 0.1))
    assert (best_f1.score, best_f1.threshold) == pytest.approx((0.8333333333333333, 0.3))
    # The best threshold gives what it promises.
    assert f1(answered(SAID, NULL_SCORES, 0.3), ANSWERS) == best_f1.score


def test_to_answer_nothing_may_be_best() -> None:
    assert best_threshold(f1, ["x", "y"], [[], []], [0.4, 0.2]) == NoAnswerThreshold(1.0, 0.0)
    found = best_threshold(f1, ["x", "y"], [[], []], [-3.0, 2.0])
    assert found.score == 1
    assert f1(answered(["x", "y"], [-3.0, 2.0], found.threshold), [[], []]) == 1


@given(
    st.lists(
        st.tuples(st.sampled_from(["", "x", "y"]), st.booleans(), st.floats(0.01, 1)), min_size=1
    )
)
def test_the_best_threshold_is_the_best_of_all(rows: list[tuple[str, bool, float]]) -> None:
    said, has, drawn = (list(column) for column in zip(*rows, strict=True))
    null_scores = [score + place for place, score in enumerate(drawn)]  # no two are equal
    answers = [["x"] if real else [] for real in has]
    best = best_threshold(exact, said, answers, null_scores)
    every = [exact(answered(said, null_scores, t), answers) for t in [0.0, *null_scores]]
    assert best.score == pytest.approx(max(every))
    assert exact(answered(said, null_scores, best.threshold), answers) == pytest.approx(best.score)


@pytest.mark.parametrize(
    ("answers", "said", "f1", "exact"),
    [
        (["光荣和ω-force"], "光荣和ω-Force", 1, 1),
        (["2008年8月8日", "八月八日"], "在2008年8月", 0.7272727272727272, 0),
        (["《三国演义》"], "三国演义。", 1, 1),
        (["NBA季后赛"], "季前赛 NBA", 0.25, 0),
        (["北京"], "上海", 0, 0),
        (["约翰·史密斯的 iPhone 6"], "史密斯的 iPhone", 0.7692307692307693, 0),
        (["等等…"], "等等", 0.8, 0),  # the one mark that the script fails to leave out
    ],
)
def test_golden_values_of_cmrc(answers: list[str], said: str, f1: float, exact: int) -> None:
    assert SpanF1(chinese=True)([said], [answers]) == pytest.approx(f1, abs=1e-12)
    assert ExactMatch(chinese=True)([said], [answers]) == exact


def test_chinese_is_parted_by_characters_and_the_rest_by_words() -> None:
    assert cmrc_tokenize("在2008年，NBA（美国）3.5% men's a-b") == (
        ["在", "2008", "年", "nba", "美", "国", "3.5", "%", "men", "'s", "ab"]
    )
    assert cmrc_tokenize("1,000—2,000人 (u.s. o'clock) end.") == (
        ["1,000", "—", "2,000", "人", "(", "u.s.", "o'clock", ")", "end", "."]
    )


@given(st.text("ab", max_size=8), st.text("ab", max_size=8))
def test_a_stretch_is_a_common_substring(one: str, other: str) -> None:
    size = longest_common_substring(list(one), list(other))
    inside = [one[start : start + n] for n in range(len(one) + 1) for start in range(len(one))]
    assert size == max((len(part) for part in inside if part in other), default=0)


def test_what_cannot_be_scored_is_a_sentence() -> None:
    with pytest.raises(UserError, match="got 1 answers for 2 references"):
        f1(["a"], [["a"], ["b"]])
    with pytest.raises(UserError, match="no answers to score"):
        SpanF1(chinese=True)([], [])
    with pytest.raises(UserError, match="got 1 null scores for 2 references"):
        best_threshold(f1, ["a", "b"], [["a"], []], [0.5])


@pytest.mark.real
def test_every_answer_of_cmrc_is_its_own_best(real: Path) -> None:
    packed = (real / "cmrc2018" / "cmrc2018_trial.json.gz").read_bytes()
    data = json.loads(gzip.decompress(packed))["data"]
    asked = [q for text in data for part in text["paragraphs"] for q in part["qas"]]
    answers = [[answer["text"] for answer in one["answers"]] for one in asked]
    said = [some[-1] for some in answers]
    assert ExactMatch(chinese=True)(said, answers) == 1
    assert SpanF1(chinese=True)(said, answers) == pytest.approx(1)
