"""What a page says of answers is what they are: groups, shares, the worst of them."""

import pytest

from kinfolk.metrics.bootstrap import ConfidenceInterval
from kinfolk.reports.evaluation_page import confusion_heatmap, reliability_diagram
from kinfolk.tasks.error_analysis import (
    calibration_bins,
    expected_calibration_error,
    per_class_scores,
    scores_by_length,
    to_plain,
    worst_errors,
)
from kinfolk.tasks.rows import CorefDocument, LabelledText, TaggedSentence
from kinfolk.tasks.task import EvaluationResult, Prediction, Task, format_score, metric_title
from support.pages import chart_json

MOOD = Task(kind="classify", labels=("bad", "good"), positive_label="good")


def judged(said: list[tuple[str, str, float]], task: Task = MOOD) -> EvaluationResult:
    """Make a verdict of (right, said, sure); the texts grow longer."""
    rows = [LabelledText(("x" * (n + 1),), right, n + 1) for n, (right, _, _) in enumerate(said)]
    answers = [Prediction(value, (), sure) for _, value, sure in said]
    scores = task.evaluate(rows, answers)
    bounds = ConfidenceInterval(scores[task.main_metric], 0, 1)
    return EvaluationResult(task, rows, answers, scores, bounds, {})


def test_the_worst_are_wrong_and_most_sure() -> None:
    found = worst_errors(
        judged([("good", "bad", 0.6), ("good", "good", 0.99), ("bad", "good", 0.9)])
    )
    assert [(one.number, one.label, one.prediction, one.probability) for one in found] == [
        (3, "bad", "good", 0.9),
        (1, "good", "bad", 0.6),
    ]


def test_the_error_of_clusters_is_not_shown_as_a_probability() -> None:
    row = CorefDocument("1", (("Ann", "met", "her"),), (((0, 1), (2, 3)),), 1)
    task, answers = Task(kind="coref"), [Prediction((), probability=0.5)]
    bounds = ConfidenceInterval(0, 0, 1)
    (mistake,) = worst_errors(EvaluationResult(task, [row], answers, {}, bounds, {}))
    assert mistake.prediction == "0 clusters" and mistake.probability is None


def test_probabilities_are_held_against_what_is_right() -> None:
    verdict = judged([("good", "good", 0.9)] * 3 + [("bad", "good", 0.9)] + [("bad", "bad", 0.55)])
    low, high = calibration_bins(verdict)
    assert (low.low, low.count, low.accuracy) == (0.5, 1, 1.0)
    assert (high.count, high.accuracy) == (4, 0.75) and high.probability == pytest.approx(0.9)
    assert expected_calibration_error([low, high]) == pytest.approx((4 * 0.15 + 0.45) / 5)


def test_a_probability_of_one_is_in_the_last_group() -> None:
    (only,) = calibration_bins(judged([("good", "good", 1.0)]))
    assert (only.low, only.high) == (0.9, 1.0)


def test_short_and_long_texts_have_their_own_scores() -> None:
    verdict = judged([("good", "good", 0.9)] * 20 + [("good", "bad", 0.9)] * 20)
    short, long = scores_by_length(verdict)
    assert (short.low, short.high, short.rows, short.score) == (1, 20, 20, 1.0)
    assert (long.low, long.high, long.rows, long.score) == (21, 40, 20, 0.0)
    assert scores_by_length(judged([("good", "good", 0.9)] * 39)) == []


def test_tags_of_words_are_scored_by_themselves_and_entities_by_type() -> None:
    plain = Task(kind="tag", labels=("DET", "NOUN"))
    rows = [TaggedSentence(("a", "dog"), ("DET", "NOUN"), 1)]
    answers = [Prediction(("DET", "DET"), (0.9, 0.6), 0.6)]
    verdict = EvaluationResult(plain, rows, answers, {"f1": 0.5}, ConfidenceInterval(0.5, 0, 1), {})
    assert {name: one.recall for name, one in per_class_scores(verdict).items()} == {
        "DET": 1,
        "NOUN": 0,
    }
    (mistake,) = worst_errors(verdict)
    assert (mistake.label, mistake.prediction, mistake.probability) == ("dog NOUN", "dog DET", 0.6)
    named = Task(kind="tag", labels=("O", "B-PER"))
    rows = [TaggedSentence(("Ann", "sat"), ("B-PER", "O"), 1)]
    verdict = EvaluationResult(
        named, rows, [Prediction(("B-PER", "O"))], {}, ConfidenceInterval(1, 1, 1), {}
    )
    assert per_class_scores(verdict)["PER"].f1 == 1
    assert calibration_bins(verdict) == []  # no probabilities, no picture


def test_pictures_name_what_they_count() -> None:
    verdict = judged([("good", "<bad>", 0.6), ("good", "good", 0.99), ("bad", "good", 0.9)])
    values = to_plain(verdict)
    assert values["confusion"]["labels"] == ["bad", "good", "<bad>"]
    drawn = confusion_heatmap(values["confusion"])
    assert "<bad>" not in drawn
    data = chart_json(drawn)
    assert data["rows"] == data["columns"] == ["bad", "good", "<bad>"]
    assert data["counts"] == [[0, 1, 0], [0, 1, 1], [0, 0, 0]]
    bins = chart_json(reliability_diagram(values["calibration"]))["bins"]
    assert [
        (one["low"], one["value"], one["note"]) for one in bins if one["value"] is not None
    ] == [
        ("0.6", 0.0, "1"),
        ("0.9", 0.5, "2"),
    ]


def test_scores_are_written_as_they_are_read() -> None:
    scores = [("f1", 0.51239), ("bleu", 27.456), ("2_bleu", 1.0)]
    assert [format_score(*score) for score in scores] == ["0.5124", "27.46", "1.00"]
    assert format_score("perplexity", 12345.678) == "12,345.68"
    assert format_score("eval_loss", float("nan")) == "–"
    titles = [metric_title(name) for name in ("bleu", "2_macro_f1", "eval_loss", "1_accuracy")]
    assert titles == ["BLEU", "2 macro F1", "loss", "1 accuracy"]
