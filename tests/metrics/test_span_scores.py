"""Answers: golden values from the logic of the official scripts of SQuAD 1.1, 2.0 and CMRC 2018."""

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinfolk.errors import UserError
from kinfolk.metrics.squad import (
    NoAnswerThreshold,
    cmrc2018,
    cmrc_tokenize,
    longest_common_substring,
    normalize_answer,
    squad_v1,
    squad_v2,
)

SAID = ["the Beatles", "1969", "", "in London, England", "blue"]
ANSWERS = [["Beatles", "The Beatles!"], ["1970", "in 1969"], [], ["London"], []]
DOUBTS = [0.1, 0.2, 0.9, 0.3, 0.6]


def test_an_answer_is_compared_by_its_words() -> None:
    assert normalize_answer("The  U.S. Army, an  ANT's.") == "us army ants"
    assert normalize_answer("a theatre") == "theatre"
    assert normalize_answer("the a an !") == ""


def test_squad_takes_the_answer_that_fits_best() -> None:
    found = squad_v1(SAID[:2] + SAID[3:4], ANSWERS[:2] + ANSWERS[3:4])
    # 1 of 1 word; 1 of 1 said and of 2 wanted; 1 of 3 said and of 1 wanted
    assert found.f1 == pytest.approx((1 + 2 / 3 + 1 / 2) / 3)
    assert found.exact_match == pytest.approx(1 / 3) and found.questions == 3


def test_a_word_counts_as_often_as_it_is_wanted() -> None:
    assert squad_v1(["york york york"], [["new york"]]).f1 == pytest.approx(
        2 * 1 / 3 * 1 / 2 / (5 / 6)
    )


def test_squad_2_wants_nothing_where_there_is_no_answer() -> None:
    found = squad_v2(SAID, ANSWERS)
    assert found.has_answer is not None and found.no_answer is not None
    assert 100 * found.overall.exact_match == pytest.approx(40)
    assert 100 * found.overall.f1 == pytest.approx(63.33333333333333)
    assert 100 * found.has_answer.f1 == pytest.approx(72.22222222222221)
    assert (found.no_answer.exact_match, found.no_answer.f1, found.no_answer.questions) == (
        0.5,
        0.5,
        2,
    )
    assert found.best_exact is None and found.best_f1 is None


def test_doubt_above_the_threshold_takes_an_answer_back() -> None:
    found = squad_v2(SAID, ANSWERS, DOUBTS, threshold=0.5)
    assert found.no_answer is not None and found.no_answer.exact_match == 1
    assert 100 * found.overall.exact_match == pytest.approx(60)
    assert 100 * found.overall.f1 == pytest.approx(83.33333333333333)
    assert found.best_exact is not None and found.best_f1 is not None
    assert (found.best_exact.score, found.best_exact.threshold) == pytest.approx((0.6, 0.1))
    assert (found.best_f1.score, found.best_f1.threshold) == pytest.approx(
        (0.8333333333333333, 0.3)
    )
    # The best threshold gives what it promises.
    assert squad_v2(SAID, ANSWERS, DOUBTS, threshold=0.3).overall.f1 == found.best_f1.score


def test_to_answer_nothing_may_be_best() -> None:
    assert squad_v2(["x", "y"], [[], []], [0.4, 0.2]).best_f1 == NoAnswerThreshold(1.0, 0.0)
    found = squad_v2(["x", "y"], [[], []], [-3.0, 2.0])
    assert found.has_answer is None
    assert found.best_f1 is not None and found.best_f1.score == 1
    silent = squad_v2(["x", "y"], [[], []], [-3.0, 2.0], threshold=found.best_f1.threshold)
    assert silent.overall.f1 == 1


@given(
    st.lists(
        st.tuples(st.sampled_from(["", "x", "y"]), st.booleans(), st.floats(0.01, 1)), min_size=1
    )
)
def test_the_best_threshold_is_the_best_of_all(rows: list[tuple[str, bool, float]]) -> None:
    said, has, drawn = (list(column) for column in zip(*rows, strict=True))
    doubts = [doubt + place for place, doubt in enumerate(drawn)]  # no two are equal
    answers = [["x"] if real else [] for real in has]
    best = squad_v2(said, answers, doubts).best_exact
    every = [squad_v2(said, answers, doubts, limit).overall.exact_match for limit in [0.0, *doubts]]
    assert best is not None and best.score == pytest.approx(max(every))
    assert squad_v2(said, answers, doubts, best.threshold).overall.exact_match == pytest.approx(
        best.score
    )


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
    found = cmrc2018([said], [answers])
    assert found.f1 == pytest.approx(f1, abs=1e-12) and found.exact_match == exact


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
    with pytest.raises(UserError, match="1 answers cannot be scored against 2"):
        squad_v1(["a"], [["a"], ["b"]])
    with pytest.raises(UserError, match="there are no answers to score"):
        cmrc2018([], [])
    with pytest.raises(UserError, match="question 2 has no answer"):
        squad_v1(["a", "b"], [["a"], []])
    with pytest.raises(UserError, match="1 doubts cannot be scored against 2"):
        squad_v2(["a", "b"], [["a"], []], [0.5])


@pytest.mark.real
def test_every_answer_of_cmrc_is_its_own_best(real: Path) -> None:
    packed = (real / "cmrc2018" / "cmrc2018_trial.json.gz").read_bytes()
    data = json.loads(gzip.decompress(packed))["data"]
    asked = [q for text in data for part in text["paragraphs"] for q in part["qas"]]
    answers = [[answer["text"] for answer in one["answers"]] for one in asked]
    found = cmrc2018([some[-1] for some in answers], answers)
    assert found.exact_match == 1 and found.f1 == pytest.approx(1) and found.questions == len(asked)
