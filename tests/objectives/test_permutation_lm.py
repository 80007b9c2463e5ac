"""Permutation language modelling: the picture, who sees whom, and the spans that are drawn."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from kinfolk.batch import IGNORE_INDEX
from kinfolk.data.examples import Example
from kinfolk.errors import UserError
from kinfolk.objectives.permutation_lm import MAX_SPAN, PermutationLM, sample_spans
from kinfolk.rng import Stream, generator

RNG = np.random.default_rng(0)


class Chosen:
    """Random numbers that were chosen by the test: sizes less one, contexts, orders."""

    def __init__(self, sizes: list[int], before: list[int], orders: list[Sequence[int]]) -> None:
        self.sizes, self.before, self.orders = sizes, before, orders

    def choice(self, *_: object, **__: object) -> int:
        return self.sizes.pop(0)

    def integers(self, *_: object) -> int:
        return self.before.pop(0)

    def permutation(self, among: np.ndarray) -> np.ndarray:
        order = np.array(self.orders.pop(0), np.int64)
        assert sorted(order.tolist()) == among.tolist()
        return order


def way(special_tokens: Any, **settings: Any) -> PermutationLM:
    return PermutationLM(special_tokens=special_tokens, vocab_size=80, **settings)


def drawn(special_tokens: Any, ids: Any, chunk: Any, **settings: Any) -> Example:
    """Draw the example of the picture: a span that is "cat", then "down"; "down" comes first."""
    rng: Any = Chosen([0, 0], [1, 0], [[3, 0, 2], [3, 1]])
    return way(special_tokens, partial_prediction_k=3, **settings).example(
        chunk(ids("the cat sat down")), rng
    )


def test_the_picture_holds(special_tokens: Any, ids: Any, chunk: Any) -> None:
    example = drawn(special_tokens, ids, chunk)
    assert example.input_ids.tolist() == ids("the cat sat down [S] [C]")
    assert example.order.tolist() == [0, 2, 0, 1, 0, 0]
    assert example.labels.tolist() == ids(". cat . down . .")


def test_sight_is_the_context_and_what_came_before_in_the_order(
    special_tokens: Any, ids: Any, chunk: Any
) -> None:
    objective = way(special_tokens, partial_prediction_k=3, max_length=10)
    second = objective.example(chunk(ids("mat")), RNG)
    inputs = objective.collate([[drawn(special_tokens, ids, chunk), second]]).inputs
    assert inputs.input_ids[0].tolist() == ids("the cat sat down [S] [C] mat [S] [C] <p>")
    assert inputs.attention_mask.dense()[0].int().tolist() == [
        [1, 0, 1, 0, 1, 1, 0, 0, 0, 0],  # the
        [1, 1, 1, 1, 1, 1, 0, 0, 0, 0],  # cat, the second in the order
        [1, 0, 1, 0, 1, 1, 0, 0, 0, 0],  # sat
        [1, 0, 1, 1, 1, 1, 0, 0, 0, 0],  # down, the first
        [1, 0, 1, 0, 1, 1, 0, 0, 0, 0],
        [1, 0, 1, 0, 1, 1, 0, 0, 0, 0],
        [0, 0, 0, 0, 0, 0, 1, 1, 1, 0],  # mat
        [0, 0, 0, 0, 0, 0, 0, 1, 1, 0],
        [0, 0, 0, 0, 0, 0, 0, 1, 1, 0],
        [0, 0, 0, 0, 0, 0, 0, 0, 0, 1],
    ]
    assert inputs.target_positions is not None and inputs.target_positions.tolist() == [[1, 3, 6]]
    assert inputs.attention_mask.for_targets(inputs.target_positions).dense(inputs.attention_mask)[
        0
    ].int().tolist() == [
        [1, 0, 1, 1, 1, 1, 0, 0, 0, 0],  # a guess at cat: down is known
        [1, 0, 1, 0, 1, 1, 0, 0, 0, 0],  # a guess at down: cat is not
        [0, 0, 0, 0, 0, 0, 0, 1, 1, 0],
    ]
    assert inputs.position_ids[0].tolist() == [0, 1, 2, 3, 4, 5, 0, 1, 2, 0]
    assert inputs.token_type_ids is not None
    assert inputs.token_type_ids[0].tolist() == [0, 0, 0, 0, 0, 2, 0, 0, 2, 0]


def test_empty_questions_repeat_one_and_are_not_scored(
    special_tokens: Any, ids: Any, chunk: Any
) -> None:
    objective = way(special_tokens, partial_prediction_k=3, max_length=12)
    batch = objective.collate([[drawn(special_tokens, ids, chunk)]])
    assert batch.inputs.target_positions is not None and batch.inputs.target_positions.tolist() == [
        [1, 3, 1, 1]
    ]
    assert batch.targets.labels.tolist() == ids("cat down . .") and batch.targets.positions is None
    assert batch.counts == {"permutation": 2}


def test_no_guess_sees_its_own_token_nor_nothing(special_tokens: Any, chunk: Any) -> None:
    objective = way(special_tokens, max_length=64)
    texts = [chunk(range(20, 20 + n)) for n in (1, 2, 3, 17, 21)]
    for epoch in range(50):
        row = [
            objective.example(t, generator(0, Stream.EXAMPLE, epoch, i))
            for i, t in enumerate(texts)
        ]
        inputs = objective.collate([row]).inputs
        assert inputs.target_positions is not None
        seen = inputs.attention_mask.for_targets(inputs.target_positions).dense(
            inputs.attention_mask
        )
        assert not seen.gather(2, inputs.target_positions[..., None]).any()
        assert seen.any(2).all()


@pytest.mark.parametrize(
    ("tokens", "guessed"), [(1, 1), (9, 1), (10, 2), (15, 2), (16, 3), (126, 21), (510, 85)]
)
def test_a_sixth_of_the_framed_text_is_predicted_in_every_draw(
    special_tokens: Any, chunk: Any, tokens: int, guessed: int
) -> None:
    text = chunk(10 + np.arange(tokens) % 60)
    for index in range(10):
        example = way(special_tokens).example(text, generator(0, Stream.EXAMPLE, 0, index))
        assert (example.labels != IGNORE_INDEX).sum() == guessed
        assert sorted(example.order[example.order > 0]) == list(range(1, guessed + 1))


def test_rows_of_one_length_have_room_for_as_many_questions(
    special_tokens: Any, chunk: Any
) -> None:
    objective = way(special_tokens, max_length=48)
    shapes = set()
    for sizes in [(46,), (20, 24), (10, 10, 10, 8), (4, 4, 4, 4, 4, 4, 4, 4)]:
        row = [objective.example(chunk(range(20, 20 + n)), RNG) for n in sizes]
        asked = objective.collate([row]).inputs.target_positions
        assert asked is not None
        shapes.add(tuple(asked.shape))
    assert shapes == {(1, 8)}
    row = [objective.example(chunk([20]), RNG) for _ in range(16)]
    asked = objective.collate([row]).inputs.target_positions
    assert asked is not None and asked.shape == (1, 16)


def test_spans_are_as_long_as_the_released_code_draws_them() -> None:
    """By chi-square with four degrees of freedom at one in ten thousand."""
    counts = np.zeros(MAX_SPAN)
    for index in range(600):
        chosen = sample_spans(700, 20, 6, generator(3, Stream.EXAMPLE, 0, index)).astype(int)
        edges = np.flatnonzero(np.diff(chosen, prepend=0, append=0))
        # The first span of a text stands alone: no other is near, and the goal does not cut it.
        counts[edges[1] - edges[0] - 1] += 1
    odds = 1 / np.arange(1, MAX_SPAN + 1)
    expected = odds / odds.sum() * counts.sum()
    assert ((counts - expected) ** 2 / expected).sum() < 23.5


def test_every_order_of_the_chosen_is_as_likely(special_tokens: Any, chunk: Any) -> None:
    """By chi-square with five degrees of freedom at one in ten thousand."""
    text, found = chunk(range(20, 36)), dict[tuple[int, ...], int]()
    for index in range(1200):
        order = way(special_tokens).example(text, generator(4, Stream.EXAMPLE, 0, index)).order
        key = tuple(order[order > 0].tolist())
        found[key] = found.get(key, 0) + 1
    counts = np.array(list(found.values()))
    assert len(counts) == 6
    assert ((counts - 200) ** 2 / 200).sum() < 25.7


def test_specials_in_a_text_are_never_asked_for(special_tokens: Any, chunk: Any) -> None:
    text = chunk(
        [20, special_tokens.unk, 21, special_tokens.sentinels[0], 22, 23, special_tokens.unk]
    )
    touched: set[int] = set()
    for index in range(100):
        example = way(special_tokens, partial_prediction_k=3).example(
            text, generator(0, Stream.EXAMPLE, 0, index)
        )
        touched |= set(np.flatnonzero(example.order).tolist())
    assert touched == {0, 2, 4, 5}


def test_a_text_of_specials_alone_predicts_nothing_and_asks_in_vain(
    special_tokens: Any, chunk: Any
) -> None:
    objective = way(special_tokens, max_length=12)
    batch = objective.collate([[objective.example(chunk([special_tokens.unk] * 3), RNG)]])
    assert (batch.targets.labels == IGNORE_INDEX).all() and batch.counts == {"permutation": 0}
    inputs = batch.inputs
    assert inputs.target_positions is not None
    assert (
        inputs.attention_mask.for_targets(inputs.target_positions)
        .dense(inputs.attention_mask)
        .any(2)
        .all()
    )


def test_the_exam_asks_for_each_token_from_all_others(
    special_tokens: Any, ids: Any, chunk: Any
) -> None:
    exam = way(special_tokens, max_length=12).for_evaluation()
    chunks = exam.chunks(chunk(ids("the cat sat")).documents)
    examples = [exam.example(p, RNG) for p in chunks]
    assert [e.input_ids.tolist() for e in examples] == [ids("the cat sat [S] [C]")] * 3
    assert [e.order.tolist() for e in examples] == [
        [1, 0, 0, 0, 0],
        [0, 1, 0, 0, 0],
        [0, 0, 1, 0, 0],
    ]
    inputs = exam.collate([[examples[1]]]).inputs
    assert inputs.target_positions is not None
    seen = inputs.attention_mask.for_targets(inputs.target_positions).dense(inputs.attention_mask)
    assert torch.equal(seen[0, 0].int(), torch.tensor([1, 0, 1, 1, 1, *[0] * 7]).int())


@pytest.mark.parametrize("role", ["cls", "sep"])
def test_a_tokenizer_that_lacks_a_token_is_refused(special_tokens: Any, role: str) -> None:
    with pytest.raises(UserError, match=role):
        way(dataclasses.replace(special_tokens, **{role: None}))


@pytest.mark.parametrize("share", [1, 0, -6])
def test_a_share_that_leaves_no_context_is_refused(special_tokens: Any, share: int) -> None:
    with pytest.raises(
        UserError, match=rf"objective.partial_prediction_k={share}: it must be at least 2"
    ):
        way(special_tokens, partial_prediction_k=share)
