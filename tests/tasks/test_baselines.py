"""Baselines of labelled rows: what they predict, and when a score is called a constant's."""

import random
from typing import Any

import pytest

from kinfolk.tasks import baselines
from kinfolk.tasks.baselines import baseline_messages, fit_baselines, limit_rows
from kinfolk.tasks.rows import (
    Article,
    CompletionRow,
    LabelledText,
    MultipleChoiceRow,
    QuestionRow,
    SourceTarget,
    TaggedSentence,
)
from kinfolk.tasks.task import Prediction, Task, task_class
from support.learnable import opinion


def texts(count: int, seed: int = 0) -> list[LabelledText]:
    """Return opinions, two of three good."""
    chance, rows = random.Random(seed), []
    for number in range(count):
        good = number % 3 > 0
        rows.append(LabelledText((opinion(chance, good),), "good" if good else "bad", number))
    return rows


def task_of(kind: str, rows: list[Any]) -> Task:
    return task_class(kind).from_rows(rows)


def test_words_tell_opinions_apart_and_the_majority_is_two_thirds() -> None:
    train, dev = texts(120), texts(60, seed=1)
    scores = fit_baselines(task_of("classify", train), train, dev).scores
    assert scores["majority"]["accuracy"] == pytest.approx(2 / 3)
    assert scores["majority"]["matthews"] == 0
    assert scores["tfidf"]["accuracy"] > 0.95


def test_a_number_is_predicted_from_words() -> None:
    def rows(count: int, seed: int) -> list[LabelledText]:
        return [
            LabelledText(row.texts * 2, 2.0 if row.label == "good" else 0.5, row.number)
            for row in texts(count, seed)
        ]

    train, dev = rows(120, 0), rows(40, 1)
    scores = fit_baselines(task_of("regress", train), train, dev).scores
    assert scores["mean"]["pearson"] == 0
    assert scores["tfidf"]["pearson"] > 0.8


def test_a_word_has_its_most_frequent_tag() -> None:
    train = [
        TaggedSentence(("may", "is", "a", "month"), ("N", "V", "D", "N"), 1),
        TaggedSentence(("he", "may", "go"), ("P", "V", "V"), 2),
        TaggedSentence(("you", "may", "stay"), ("P", "V", "V"), 3),
    ]
    dev = [TaggedSentence(("may", "a", "zebra"), ("V", "D", "V"), 1)]
    scores = fit_baselines(task_of("tag", train), train, dev).scores
    assert scores["word_tag"]["accuracy"] == 1  # an unknown word has the most frequent tag, V
    assert scores["majority"]["accuracy"] == pytest.approx(2 / 3)


def test_options_words_and_texts_have_a_constant_or_a_copy() -> None:
    choices = [MultipleChoiceRow("x", ("a", "b", "c"), label, 1) for label in (2, 2, 0)]
    dev: list[Any] = [*choices, MultipleChoiceRow("x", ("a", "b"), 1, 1)]
    scores = fit_baselines(task_of("choose", choices), choices, dev).scores
    assert scores == {"majority": {"accuracy": 0.75}}  # the last option where there are two
    words = [CompletionRow("the", word, None, 1) for word in ("cat", "cat", "dog")]
    assert fit_baselines(task_of("complete", words), words, words).scores == {
        "majority": {"accuracy": pytest.approx(2 / 3)}
    }
    pairs = [SourceTarget("a b c d e", "a b c d e", 1)]
    assert fit_baselines(task_of("write", pairs), pairs, pairs).scores["copy"]["bleu"] > 99.9


def test_other_kinds_and_runs_without_dev_rows_have_no_baseline() -> None:
    questions = [QuestionRow("1", "a b", "who", (("a", 0),), True, 1)]
    task = task_of("span", questions)
    assert fit_baselines(task, questions, questions).scores == {}
    train = texts(12)
    assert fit_baselines(task_of("classify", train), train, []).scores == {}
    assert baseline_messages(task, baselines.TaskBaselines(), questions, {"f1": 0.0}) == []


def test_long_files_are_drawn_from_and_this_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    train, dev = texts(120), texts(30, seed=1)
    task = task_of("classify", train)
    monkeypatch.setattr(baselines, "MAX_CLASS_SCORES", 100)
    drawn = limit_rows(task, train)
    assert len(drawn) == 50 and [row.number for row in drawn] == sorted({r.number for r in drawn})
    found = fit_baselines(task, train, dev)
    messages = baseline_messages(task, found, dev, {"accuracy": 1.0})
    assert messages == ["baselines are fitted on 50 of 120 training rows, to take seconds"]


@pytest.mark.parametrize(("accuracy", "warned"), [(0.60, True), (0.78, True), (0.80, False)])
def test_two_standard_errors_above_the_majority_are_learning(accuracy: float, warned: bool) -> None:
    train, dev = texts(120), texts(60, seed=1)  # 2/3, standard error 0.0609
    task = task_of("classify", train)
    found = fit_baselines(task, train, dev)
    messages = baseline_messages(task, found, dev, {"accuracy": accuracy})
    assert [text.startswith("warning: dev accuracy") for text in messages[:-1]] == [True] * warned
    assert "TF-IDF" in messages[-1] and "higher dev accuracy" in messages[-1]
    if warned:
        assert "majority: 0.6667, standard error 0.0609 on 60 dev rows" in messages[0]
        assert "--epochs" in messages[0] and "--lr" in messages[0]


def test_a_correlation_near_zero_is_warned_about() -> None:
    rows = [LabelledText((f"text {n}",), float(n), n) for n in range(100)]
    task = task_of("regress", rows)
    found = fit_baselines(task, rows, rows)
    first = [baseline_messages(task, found, rows, {"pearson": score})[0] for score in (0.19, 0.21)]
    assert first[0].startswith("warning: dev pearson 0.1900 is within two standard errors")
    assert not first[1].startswith("warning")


def test_sentences_are_compared_with_the_first_with_random_ones_and_with_the_oracle() -> None:
    row = Article("It rained. A bird sang. Then came night. The king slept.", "The king slept.", 1)
    task = Task(kind="extract", num_sentences=1)
    scores = fit_baselines(task, [row], [row] * 40).scores
    assert [*scores] == ["random", "lead3", "lead", "oracle"]
    assert scores["oracle"]["rouge1"] == 1
    assert scores["lead"]["rouge1"] == scores["lead3"]["rouge1"] == 0
    assert 0.05 < scores["random"]["rouge1"] < 0.6  # one of four
    found = baselines.fit_baselines(task, [row], [row])
    assert baseline_messages(task, found, [row], {"rouge1": 0.5}) == []  # not that of the oracle
    compared = baselines.compare_untrained(task, [row] * 9, [Prediction("The king slept.")] * 9)
    by_name = {one.name: one for one in compared}
    assert by_name["lead3"].difference.score == by_name["oracle"].scores["rougeL"].low == 1
    notes = baselines.comparison_notes(task, compared)
    assert len(notes) == 3
    assert notes[1] == "ROUGE-1 minus that of LEAD-3 (0.0000): +1.0000 [95% CI +1.0000, +1.0000]"
    assert baselines.compare_untrained(task_of("classify", texts(9)), texts(9), []) == ()
