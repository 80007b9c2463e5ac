"""A head on every word: the token that is read, long sentences, roles, losses, packing."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from kinfolk.errors import UserError
from kinfolk.tasks.formulations.base import Instance
from kinfolk.tasks.formulations.head import TokenHead
from kinfolk.tasks.formulations.sequences import encode_words
from kinfolk.tasks.instances import predict_rows
from kinfolk.tasks.rows import TaggedSentence
from support.task_rows import (
    LENGTH,
    NAMES,
    TAGS,
    alone,
    apart,
    cases,
    rows,
    same,
    solving,
    task,
    tokenizer,
)

EVERY = [name for name, _, formulation in cases("head") if formulation is TokenHead]
every = pytest.mark.parametrize("name", EVERY)
ROW = TaggedSentence(("red", "Wolfgang", "cat"), ("O", "B-X", "I-X"), 1)


def test_every_member_that_reads_can_tag() -> None:
    assert {"bert", "albert", "roberta", "electra", "xlnet", "gpt2", "glm", "bilstm"} <= {*EVERY}


def test_the_first_piece_of_a_word_is_read() -> None:
    words = TokenHead(task=task("tag"), max_length=LENGTH)
    (example,) = words.instances(ROW, tokenizer())
    (reading,) = example.examples
    chunks = encode_words(tokenizer(), ROW.words)
    assert len(chunks[1]) > 2
    starts = [1, 1 + len(chunks[0]), 1 + len(chunks[0]) + len(chunks[1])]
    assert reading.read_positions.tolist() == starts
    assert reading.input_ids[starts].tolist() == [chunk[0] for chunk in chunks]
    assert example.target == [0, 1, 2]


def test_a_decoder_is_read_where_it_has_read_the_word() -> None:
    words = TokenHead(task=task("tag"), max_length=LENGTH, frame=None, causal=True)
    (example,) = words.instances(ROW, tokenizer())
    (reading,) = example.examples
    chunks = encode_words(tokenizer(), ROW.words)
    assert reading.input_ids[reading.read_positions].tolist() == [chunk[-1] for chunk in chunks]
    assert reading.input_ids.tolist() == [
        tokenizer().special_tokens.bos,
        *(i for p in chunks for i in p),
    ]
    assert reading.order.tolist() == [*range(len(reading.input_ids))]


@pytest.mark.parametrize("frame", ["bert", "xlnet", None])
def test_roles_are_asked_about_a_verb(frame: str | None) -> None:
    words = TokenHead(task=task("tag"), max_length=LENGTH, frame=frame, causal=frame is None)
    one, two = (
        words.instances(replace(ROW, predicate=place), tokenizer())[0].examples[0]
        for place in (0, 2)
    )
    assert one.input_ids.tolist() != two.input_ids.tolist()
    assert len(one.read_positions) == len(two.read_positions) == 3
    chunks = encode_words(tokenizer(), ROW.words)
    wanted = -1 if frame is None else 0
    for reading in (one, two):
        assert reading.input_ids[reading.read_positions].tolist() == [
            chunk[wanted] for chunk in chunks
        ]


def test_a_long_sentence_is_read_in_several_and_no_word_is_lost() -> None:
    words = TokenHead(task=task("tag"), max_length=16)
    some = TaggedSentence(NAMES * 4, tuple(TAGS[i % 3] for i in range(20)), 1)
    examples = words.instances(some, tokenizer())
    assert len(examples) > 2
    assert [tag for e in examples for tag in e.target] == [i % 3 for i in range(20)]
    read = [int(i) for e in examples for r in e.examples for i in r.input_ids[r.read_positions]]
    assert read == [chunk[0] for chunk in encode_words(tokenizer(), some.words)]
    assert all(len(r.input_ids) <= 16 for e in examples for r in e.examples)
    formulation, model = solving("bert", "tag", TokenHead)
    (answer,) = predict_rows(replace(formulation, max_length=16), model, [some], tokenizer())
    assert len(answer.value) == len(answer.probabilities) == 20


def test_a_word_that_is_longer_than_all_the_room_is_still_tagged() -> None:
    formulation, model = solving("bert", "tag", TokenHead)
    some = TaggedSentence(("cat", "W" * 90, "dog"), None, 1)
    (answer,) = predict_rows(formulation, model, [some], tokenizer())
    assert len(answer.value) == 3


def scores(model: Any, example: Instance) -> Tensor:
    """Score the words of an example by itself: (words, tags)."""
    (reading,) = example.examples
    return model.logits(model(alone(reading)).hidden[0, torch.from_numpy(reading.read_positions)])  # type: ignore[no-any-return]


@every
@torch.no_grad()
def test_packing_changes_no_loss(name: str) -> None:
    formulation, model = solving(name, "tag", TokenHead)
    examples = [e for row in rows("tag") for e in formulation.instances(row, tokenizer())]
    batch = formulation.make_batch(examples)
    wanted = torch.zeros(())
    for example in examples:
        logs = scores(model, example).log_softmax(-1)
        wanted -= sum(logs[place, tag] for place, tag in enumerate(example.target))
    found = formulation.loss(model, batch).sums["label"]
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
    assert batch.counts["label"] == sum(len(row.words) for row in rows("tag"))


@every
def test_no_answer_depends_on_who_else_is_asked(name: str) -> None:
    same(*solving(name, "tag", TokenHead), rows("tag"))


@every
def test_neighbours_have_no_gradient(name: str) -> None:
    formulation, model = solving(name, "tag", TokenHead)
    apart(
        formulation,
        model,
        [e for row in rows("tag") for e in formulation.instances(row, tokenizer())],
    )


@torch.no_grad()
def test_tags_are_weighed_and_a_teacher_has_its_share() -> None:
    share, heat, weights = 0.4, 1.5, (0.5, 2.0, 3.0)
    formulation, model = solving(
        "bert", "tag", TokenHead, class_weights=weights, distillation_weight=share, temperature=heat
    )
    assert isinstance(formulation, TokenHead)
    torch.manual_seed(1)
    plain = [e for row in rows("tag") for e in formulation.instances(row, tokenizer())]
    teachers = [torch.randn(len(e.target), len(TAGS)) * 3 for e in plain]
    examples = [
        replace(
            e,
            teacher_probs=formulation.soft_labels(
                teacher.double().numpy(), formulation.temperature
            ),
        )
        for e, teacher in zip(plain, teachers, strict=True)
    ]
    wanted = torch.zeros(())
    for example, teacher in zip(examples, teachers, strict=True):
        own = scores(model, example)
        soft = -((teacher / heat).softmax(-1) * (own / heat).log_softmax(-1)).sum(-1)
        for place, tag in enumerate(example.target):
            hard = -own[place].log_softmax(-1)[tag]
            wanted += weights[tag] * ((1 - share) * hard + share * heat**2 * soft[place])
    found = formulation.loss(model, formulation.make_batch(examples)).sums["label"]
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)


def test_a_tag_that_training_had_not_is_named_and_can_be_asked_about() -> None:
    formulation, model = solving("bert", "tag", TokenHead)
    row = replace(ROW, tags=("O", "B-Y", "O"))
    with pytest.raises(UserError, match="'B-Y' does not occur in the training rows"):
        formulation.instances(row, tokenizer())
    (answer,) = predict_rows(formulation, model, [row], tokenizer())
    assert len(answer.value) == 3 and {*answer.value} <= {*TAGS}


@pytest.mark.parametrize("frame", ["bert", None])
@pytest.mark.parametrize("predicate", [None, 1])
def test_no_sequence_is_longer_than_the_length(frame: str | None, predicate: int | None) -> None:
    words = TokenHead(task=task("tag"), max_length=8, frame=frame)
    long = ("red", "Wolfgang" * 4, "cat", "a", "Wolfgang", "cat")
    row = TaggedSentence(long, ("O",) * len(long), 1, predicate)
    examples = words.instances(row, tokenizer())
    assert all(len(reading.input_ids) <= 8 for one in examples for reading in one.examples)
    assert sum(len(one.examples[0].read_positions) for one in examples) == len(long)
