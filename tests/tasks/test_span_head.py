"""The span head: windows, targets, no answer, losses, packing."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from kinfolk.tasks.formulations.base import Instance
from kinfolk.tasks.formulations.span_head import (
    MAX_ANSWER_LENGTH,
    SpanHead,
    span_scores,
)
from kinfolk.tasks.instances import predict_rows
from kinfolk.tasks.rows import QuestionRow
from kinfolk.tasks.task import Prediction
from kinfolk.text import train_tokenizer
from kinfolk.text.tokenizer import TEMPLATES
from support.runs import text
from support.task_rows import LENGTH, alone, apart, cases, rows, same, solving, task, tokenizer

EVERY = [name for name, _, formulation in cases("head") if formulation is SpanHead]
every = pytest.mark.parametrize("name", EVERY)
CONTEXT = "old king song blue red bird garden house river cat"  # a token each


def asked(answer: str | None, context: str = CONTEXT, possible: bool = True) -> QuestionRow:
    found = () if answer is None else ((answer, context.find(answer)),)
    return QuestionRow("1", context, "who saw it", found, possible, 1)


def test_the_context_is_read_and_the_first_token_stands_for_no_answer() -> None:
    ends = SpanHead(task=task("span"), max_length=64)
    (example,) = ends.instances(asked("red bird"), tokenizer())
    (reading,) = example.examples
    ids, where = tokenizer().offsets(CONTEXT)
    assert reading.read_positions[0] == 0
    assert reading.input_ids[reading.read_positions[1:]].tolist() == ids
    first, last = example.target
    assert CONTEXT[where[first - 1][0] : where[last - 1][1]] == "red bird"
    assert ends.instances(asked(None, possible=False), tokenizer())[0].target == (0, 0)


def test_windows_overlap_and_those_without_the_answer_want_none() -> None:
    ends = SpanHead(task=task("span"), max_length=16)
    long = " ".join(["cat"] * 20 + ["king"] + ["dog"] * 9)
    examples = ends.instances(asked("king", long), tokenizer())
    assert len(examples) > 2 and all(len(e.examples[0].input_ids) <= 16 for e in examples)
    right = [e for e in examples if e.target != (0, 0)]
    assert right and len(right) < len(examples)
    king = tokenizer().offsets("king")[0]
    for example in right:
        first, last = example.target
        (reading,) = example.examples
        assert reading.input_ids[reading.read_positions[first : last + 1]].tolist() == king
    covered = {span for e in examples for span in e.metadata}
    assert covered == {*tokenizer().offsets(long)[1]}


def test_an_answer_that_its_context_does_not_hold_teaches_nothing() -> None:
    ends = SpanHead(task=task("span"), max_length=64)
    assert ends.instances(asked("a queen"), tokenizer()) == []  # not "there is no answer"
    other = replace(asked("a queen"), answers=(("a queen", -1), ("king", CONTEXT.find("king"))))
    (example,) = ends.instances(other, tokenizer())
    assert example.target == ends.instances(asked("king"), tokenizer())[0].target
    assert len(ends.instances(asked("a queen"), tokenizer(), labelled=False)) == 1
    whole = [asked("a queen"), asked("king")]
    assert not any(
        one.truncated_tokens for row in whole for one in ends.instances(row, tokenizer())
    )


@pytest.mark.parametrize("frame", [frame for frame in TEMPLATES if frame != "t5"])
def test_the_shortest_length_there_is_leaves_room_for_a_context(frame: str) -> None:
    ends = SpanHead(task=task("span"), max_length=8, frame=frame)
    long = asked("red bird", question_of(20))
    assert all(len(r.input_ids) <= 8 for e in ends.instances(long, tokenizer()) for r in e.examples)


def question_of(words: int) -> str:
    return " ".join(["red bird"] * words)


def reply(size: int, **scores: tuple[float, float]) -> Any:
    """Return the scores of a window, zero but for those named: t3=(start, end)."""
    found = np.zeros((1 + size, 2))
    for name, both in scores.items():
        found[int(name[1:])] = both
    return found


def window(context: str, first: int, last: int) -> Instance:
    where = tokenizer().offsets(context)[1][first:last]
    return Instance(examples=(), metadata=tuple(where))


def test_the_best_span_of_all_windows_is_the_answer() -> None:
    ends = SpanHead(task=task("span"))
    row = asked(None)
    examples = [window(CONTEXT, 0, 6), window(CONTEXT, 4, 10)]
    one, two = reply(6, t3=(5.0, 5.0)), reply(6, t2=(7.0, 0.0), t3=(0.0, 6.0), t1=(0.0, 9.0))
    found = ends.decode(row, examples, [one, two])
    words = CONTEXT.split()
    assert found.value == " ".join(words[5:7])  # an end before its start is none
    assert found.null_score_diff == 0.0 - 13.0
    top = np.exp(13.0)
    every = sum(np.exp(s[np.isfinite(s)]).sum() for s in (span_scores(one), span_scores(two))) + 1
    assert found.probability == pytest.approx(top / every)


def test_it_refuses_where_no_answer_is_better_in_every_window() -> None:
    ends = SpanHead(task=task("span"), allow_no_answer=True)
    row = asked(None)
    examples = [window(CONTEXT, 0, 6), window(CONTEXT, 4, 10)]
    unsure = [reply(6, t0=(4.0, 4.0), t3=(3.0, 3.0)), reply(6, t0=(5.0, 5.0))]
    assert ends.decode(row, examples, unsure).value == ""
    assert ends.decode(row, examples, unsure).null_score_diff == 2.0
    sure = [unsure[0], reply(6, t0=(1.0, 1.0))]  # the least of the windows counts
    assert ends.decode(row, examples, sure).value == CONTEXT.split()[2]
    assert (
        replace(ends, allow_no_answer=False).decode(row, examples, unsure).value
        == CONTEXT.split()[2]
    )


@pytest.mark.parametrize(("threshold", "value"), [(-1.0, ""), (1.9, ""), (2.0, "song")])
def test_no_answer_must_score_higher_than_a_span_by_the_threshold(
    threshold: float, value: str
) -> None:
    ends = SpanHead(task=task("span"), allow_no_answer=True, null_score_diff_threshold=threshold)
    examples = [window(CONTEXT, 0, 6), window(CONTEXT, 4, 10)]
    unsure = [reply(6, t0=(4.0, 4.0), t3=(3.0, 3.0)), reply(6, t0=(5.0, 5.0))]
    found = ends.decode(asked(None), examples, unsure)
    assert (found.value, found.best_span, found.null_score_diff) == (value, "song", 2.0)


def test_the_best_threshold_for_rows_is_found() -> None:
    rows = [asked("song"), asked(None, possible=False), asked("cat")]
    predictions = [
        Prediction("", best_span="song", null_score_diff=1.5),  # is above 0, and wrongly so
        Prediction("", best_span="bird", null_score_diff=3.0),
        Prediction("cat", best_span="cat", null_score_diff=-2.0),
    ]
    assert task("span").evaluate(rows, predictions)["f1"] == pytest.approx(2 / 3)
    found = task("span").diagnostics(rows, predictions)
    assert found == {"best_f1": 1.0, "best_null_score_diff_threshold": 1.5}
    assert task("span").diagnostics(rows[::2], predictions[::2]) == {}  # all have an answer


def test_spans_are_no_longer_than_an_answer_may_be() -> None:
    found = span_scores(reply(40, t1=(3.0, 0.0), t40=(0.0, 5.0)))
    assert found.shape == (40, MAX_ANSWER_LENGTH)
    assert found[0].max() == 3.0 and found[40 - MAX_ANSWER_LENGTH].max() == 5.0
    assert np.isneginf(found[39, 1:]).all()


def test_a_context_without_a_token_has_no_answer() -> None:
    formulation, model = solving("bert", "span", SpanHead, allow_no_answer=False)
    (answer,) = predict_rows(formulation, model, [asked(None, " ")], tokenizer())
    assert answer.value == ""


def test_an_answer_begins_with_no_space() -> None:
    known = train_tokenizer(
        [text()], kind="bpe", vocab_size=420
    )  # a space belongs to the word behind it
    ends = SpanHead(task=task("span"))
    row = asked(None, "The cat saw the garden")
    where = tuple(known.offsets(row.context)[1])
    place = next(i for i, span in enumerate(where, 1) if row.context[slice(*span)] == " the")
    scores = {f"t{place}": (9.0, 9.0)}
    found = ends.decode(row, [Instance(examples=(), metadata=where)], [reply(len(where), **scores)])
    assert found.value == "the"


def scores(model: Any, example: Instance) -> Tensor:
    """Score the tokens of a window by itself: (1 + tokens, 2)."""
    (reading,) = example.examples
    return model.logits(model(alone(reading)).hidden[0, torch.from_numpy(reading.read_positions)])  # type: ignore[no-any-return]


@every
@torch.no_grad()
def test_packing_changes_no_loss(name: str) -> None:
    formulation, model = solving(name, "span", SpanHead)
    examples = [e for row in rows("span") for e in formulation.instances(row, tokenizer())]
    assert len(examples) > len(rows("span")), "no context is longer than a window"
    wanted = torch.zeros(())
    for example in examples:
        logs = scores(model, example).log_softmax(0)
        wanted -= (logs[example.target[0], 0] + logs[example.target[1], 1]) / 2
    batch = formulation.make_batch(examples)
    found = formulation.loss(model, batch).sums["label"]
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
    assert batch.counts["label"] == len(examples)
    assert max(len(e.examples[0].input_ids) for e in examples) <= LENGTH


@every
def test_no_answer_depends_on_who_else_is_asked(name: str) -> None:
    same(*solving(name, "span", SpanHead, allow_no_answer=True), rows("span"))


@every
def test_neighbours_have_no_gradient(name: str) -> None:
    formulation, model = solving(name, "span", SpanHead)
    apart(
        formulation,
        model,
        [e for row in rows("span") for e in formulation.instances(row, tokenizer())],
    )
