"""Blank infilling: the picture, the paper's figure, who sees whom, and the paper's shares."""

import dataclasses
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kinfolk.batch import IGNORE_INDEX
from kinfolk.data.chunks import InMemoryDocuments
from kinfolk.errors import UserError
from kinfolk.objectives.blank_infilling import BlankInfilling
from kinfolk.rng import Stream, generator
from kinfolk.text.tokenizer import SpecialTokens, glm_tokens

SPECIALS = SpecialTokens(pad=0, unk=1, bos=2, eos=3, cls=4, sep=5, mask=6, sentinels=(7, 8, 9))
MASK, SENTENCE, TAIL, START, END = 6, 7, 8, 2, 3


def blanks(**settings: Any) -> BlankInfilling:
    given: dict[str, Any] = {"special_tokens": SPECIALS, "vocab_size": 2000, "max_length": 32}
    return BlankInfilling(**(given | settings))


def text(*sentences: int) -> InMemoryDocuments:
    """Return one document with sentences of these lengths, of tokens from 100 up."""
    ids = iter(range(100, 100 + sum(sentences)))
    return InMemoryDocuments.from_lists([[[next(ids) for _ in range(size)] for size in sentences]])


def test_the_picture_holds(ids: Any) -> None:
    found = blanks().corrupt(np.array(ids("the cat sat down on mat")), [(4, 6), (2, 3)], MASK)
    assert found.input_ids.tolist() == ids("the cat [M] down [M] <s> on mat <s> sat")
    assert found.labels.tolist() == ids(". . . . . on mat </s> sat </s>")
    assert found.position_ids.tolist() == [0, 1, 2, 3, 4, 4, 4, 4, 2, 2]
    assert found.block_position_ids.tolist() == [0, 0, 0, 0, 0, 1, 2, 3, 1, 2]
    assert found.order.tolist() == [0, 0, 0, 0, 0, 1, 2, 3, 4, 5]


def test_the_figure_of_the_paper_comes_out() -> None:
    """Du et al. 2021, figure 2: x1 ... x6 lose [x3] and [x5, x6], which is written first.

    Its positions count from 1, ours from 0.
    """
    x1, x2, x3, x4, x5, x6 = range(101, 107)
    found = blanks().corrupt(np.array([x1, x2, x3, x4, x5, x6]), [(4, 6), (2, 3)], MASK)
    assert found.input_ids.tolist() == [x1, x2, MASK, x4, MASK, START, x5, x6, START, x3]
    assert found.labels.tolist() == [IGNORE_INDEX] * 5 + [x5, x6, END, x3, END]
    assert (found.position_ids + 1).tolist() == [1, 2, 3, 4, 5, 5, 5, 5, 3, 3]
    assert found.block_position_ids.tolist() == [0, 0, 0, 0, 0, 1, 2, 3, 1, 2]
    batch = blanks(max_length=10).collate([[found]])
    assert batch.inputs.attention_mask.dense()[0].int().tolist() == [
        [1, 1, 1, 1, 1, 0, 0, 0, 0, 0],
        [1, 1, 1, 1, 1, 0, 0, 0, 0, 0],
        [1, 1, 1, 1, 1, 0, 0, 0, 0, 0],
        [1, 1, 1, 1, 1, 0, 0, 0, 0, 0],
        [1, 1, 1, 1, 1, 0, 0, 0, 0, 0],
        [1, 1, 1, 1, 1, 1, 0, 0, 0, 0],
        [1, 1, 1, 1, 1, 1, 1, 0, 0, 0],
        [1, 1, 1, 1, 1, 1, 1, 1, 0, 0],
        [1, 1, 1, 1, 1, 1, 1, 1, 1, 0],
        [1, 1, 1, 1, 1, 1, 1, 1, 1, 1],
    ]


def test_sight_of_two_texts_in_a_row() -> None:
    way = blanks(max_length=8)
    first = way.corrupt(np.array([101, 102]), [(1, 2)], MASK)
    second = way.corrupt(np.array([103]), [(0, 1)], TAIL, end=False)
    batch = way.collate([[first, second]])
    inputs = batch.inputs
    assert inputs.block_position_ids is not None and batch.targets.positions is not None
    assert inputs.input_ids[0].tolist() == [101, MASK, START, 102, TAIL, START, 103, 0]
    assert inputs.position_ids[0].tolist() == [0, 1, 1, 1, 0, 0, 0, 0]
    assert inputs.block_position_ids[0].tolist() == [0, 0, 1, 2, 0, 1, 2, 0]
    assert inputs.attention_mask.dense()[0].int().tolist() == [
        [1, 1, 0, 0, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 0, 0, 0],
        [1, 1, 1, 0, 0, 0, 0, 0],
        [1, 1, 1, 1, 0, 0, 0, 0],
        [0, 0, 0, 0, 1, 0, 0, 0],
        [0, 0, 0, 0, 1, 1, 0, 0],
        [0, 0, 0, 0, 1, 1, 1, 0],
        [0, 0, 0, 0, 0, 0, 0, 1],
    ]
    assert batch.counts == {"blanks": 3}
    assert batch.targets.labels.tolist() == [
        102,
        END,
        103,
        IGNORE_INDEX,
    ]  # a multiple of two: a quarter
    assert batch.targets.positions.tolist() == [2, 3, 5, 0]


def test_the_text_never_sees_what_fills_its_blanks() -> None:
    way = blanks(max_length=64, mask_rate=0.4)
    for number, chunk in enumerate(way.chunks(text(9, 8, 20, 11))):
        for epoch in range(20):
            inputs = way.collate(
                [[way.example(chunk, generator(0, Stream.EXAMPLE, epoch, number))]]
            ).inputs
            assert inputs.block_position_ids is not None
            table = inputs.attention_mask.dense()[0]
            reads, writes = (x & (inputs.attention_mask.document_ids[0] == 0) for x in (
                inputs.block_position_ids[0] == 0, inputs.block_position_ids[0] > 0
            ))  # fmt: skip
            assert reads.any() and writes.any()
            assert not table[reads][:, writes].any()
            assert table[reads][:, reads].all() and table[writes][:, reads].all()


@given(
    tokens=st.integers(1, 200),
    rate=st.floats(0.05, 0.95),
    span=st.floats(1, 9),
    seed=st.integers(0, 99),
)
@settings(max_examples=150)
def test_short_spans_hide_their_share_and_stand_apart(
    tokens: int, rate: float, span: float, seed: int
) -> None:
    way = blanks(mask_rate=rate, mean_span_length=span, sentence_mask_prob=0.0, gmask_prob=0.0)
    spans = way.draw_spans(tokens, generator(seed, Stream.EXAMPLE, 0, 0))
    assert spans[0][0] >= 0 and spans[-1][1] <= tokens and len(spans) <= way.max_spans(tokens)
    assert all(start < stop for start, stop in spans)
    assert all(a[1] < b[0] for a, b in pairwise(spans))
    assert sum(stop - start for start, stop in spans) == max(1, round(rate * tokens))


def test_short_spans_have_the_lengths_of_the_paper() -> None:
    """Section 2.1.1: Poisson's distribution with a mean of 3, and spans of no token left out."""
    way = blanks(max_length=512)
    spans = [
        one
        for i in range(300)
        for one in way.draw_spans(way.max_tokens, generator(0, Stream.EXAMPLE, 0, i))
    ]
    lengths = np.array([stop - start for start, stop in spans])
    assert lengths.mean() == pytest.approx(3 / (1 - np.exp(-3)), abs=0.1)
    share = np.bincount(lengths)[1:7] / len(lengths)
    poisson = [np.exp(-3) * 3**k / np.prod(range(1, k + 1)) for k in range(1, 7)]
    # The last span of a text is cut short where the share is reached: a few more of one token.
    assert share == pytest.approx(np.array(poisson) / (1 - np.exp(-3)), abs=0.025)
    places = np.array([start for start, _ in spans]) / way.max_tokens
    assert np.histogram(places, 4, (0, 1))[0] / len(places) == pytest.approx(0.25, abs=0.02)


def test_sentences_are_hidden_whole_and_one_stays() -> None:
    way = blanks(max_length=64, sentence_mask_prob=1.0, gmask_prob=0.0)
    sizes = [9, 8, 3, 20, 7]
    bounds = np.cumsum([0, *sizes]).tolist()
    chunk = way.chunks(text(*sizes))[0]
    seen = set()
    for epoch in range(200):
        found = way.example(chunk, generator(0, Stream.EXAMPLE, epoch, 0))
        spans = np.split(found.input_ids, np.flatnonzero(found.input_ids == START))[1:]
        hidden = [(int(s[1]) - 100, int(s[-1]) - 99) for s in spans]
        assert all(one in list(pairwise(bounds)) for one in hidden)
        total = sum(stop - start for start, stop in hidden)
        assert total >= 7 and total - max(b - a for a, b in hidden) < 7  # 15 % of 47, no more
        assert (found.input_ids == SENTENCE).sum() == len(hidden) < 5
        seen |= set(hidden)
    assert len(seen) == 5


def test_a_text_of_one_sentence_loses_short_spans() -> None:
    way = blanks(sentence_mask_prob=1.0, gmask_prob=0.0)
    found = way.example(way.chunks(text(20))[0], generator(0, Stream.EXAMPLE, 0, 0))
    assert MASK in found.input_ids and SENTENCE not in found.input_ids


def test_a_tail_is_half_of_the_text_or_more_and_ends_only_with_it() -> None:
    way = blanks(max_length=26, sentence_mask_prob=0.0, gmask_prob=1.0)
    chunks = way.chunks(text(44))
    assert [len(chunk.ids) for chunk in chunks] == [22, 22]
    lengths = []
    for epoch in range(300):
        for chunk, ends in zip(chunks, (IGNORE_INDEX, END), strict=True):
            found = way.example(chunk, generator(0, Stream.EXAMPLE, epoch, chunk.start))
            kept = int((found.order == 0).sum()) - 1
            assert found.input_ids.tolist() == [
                *chunk.ids[:kept], TAIL, START, *chunk.ids[kept:]
            ]  # fmt: skip
            assert found.labels.tolist() == [IGNORE_INDEX] * (kept + 1) + [*chunk.ids[kept:], ends]
            lengths.append(22 - kept)
    assert (min(lengths), max(lengths)) == (12, 22)
    assert np.mean(lengths) == pytest.approx(17.0, abs=0.4)


def test_the_three_ways_come_in_their_shares_and_spans_in_any_order() -> None:
    way = blanks(max_length=128)
    chunk = way.chunks(text(*[10] * 9))[0]
    found = [way.example(chunk, generator(0, Stream.EXAMPLE, 0, i)) for i in range(1500)]
    shares = [np.mean([mask in one.input_ids for one in found]) for mask in (MASK, SENTENCE, TAIL)]
    assert shares == pytest.approx([0.5, 0.3, 0.2], abs=0.04)
    firsts = [
        one.position_ids[one.block_position_ids == 1] for one in found if MASK in one.input_ids
    ]
    several = [places for places in firsts if len(places) > 1]
    assert np.mean([p[0] < p[1] for p in several]) == pytest.approx(0.5, abs=0.05)


def test_the_longest_text_just_fits() -> None:
    for length in range(8, 200):
        for way in (blanks(max_length=length), blanks(max_length=length).for_evaluation()):
            size = way.max_tokens
            assert size + 2 * way.max_spans(size) <= length < size + 1 + 2 * way.max_spans(size + 1)


def test_the_exam_hides_every_seventh_span_in_turn() -> None:
    exam = blanks().for_evaluation()
    chunks = exam.chunks(text(23))
    assert exam.num_passes == len(chunks) == 7
    first = exam.example(chunks[0], generator(0, Stream.EXAMPLE, 0, 0))
    assert first.input_ids.tolist() == [
        MASK, *range(103, 121), MASK, START, 100, 101, 102, START, 121, 122
    ]  # fmt: skip
    assert first.labels[20:].tolist() == [100, 101, 102, IGNORE_INDEX, 121, 122, IGNORE_INDEX]
    assert first.position_ids[20:].tolist() == [0, 0, 0, 0, 19, 19, 19]


def test_marks_are_found_among_what_a_tokenizer_has() -> None:
    ours = glm_tokens(SPECIALS)
    assert (ours.masks, ours.start, ours.end) == ((MASK, SENTENCE, TAIL), START, END)
    none = SpecialTokens(pad=0, unk=1, bos=None, eos=None, cls=None, sep=None, mask=None)
    t5 = glm_tokens(dataclasses.replace(none, eos=3, sentinels=(9, 8, 7, 6)))
    assert (t5.masks, t5.start, t5.end) == ((9, 8, 7), 3, 3)
    bert = glm_tokens(dataclasses.replace(none, cls=4, sep=5, mask=6))
    assert (bert.masks, bert.start, bert.end) == ((6, 6, 6), 4, 5)
    few = glm_tokens(dataclasses.replace(none, eos=3, mask=6, sentinels=(9,)))
    assert few.masks == (6, 9, 9)
    with pytest.raises(UserError, match="'mask'"):
        glm_tokens(dataclasses.replace(none, eos=3))
    with pytest.raises(UserError, match="'eos'"):
        blanks(special_tokens=dataclasses.replace(none, mask=6))


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"mask_rate": 0.0}, "objective.mask_rate=0.0: it must be above 0 and less than 1"),
        ({"mask_rate": 1.0}, "objective.mask_rate=1.0: it must be above 0 and less than 1"),
        ({"mean_span_length": 0.5}, "objective.mean_span_length=0.5: it must be at least 1"),
        (
            {"sentence_mask_prob": 0.6, "gmask_prob": 0.5},
            "objective.gmask_prob=0.5 sum to more than 1",
        ),
        ({"gmask_prob": -0.1}, "objective.gmask_prob=-0.1: it must be from 0 to 1"),
    ],
)
def test_a_share_or_length_that_cannot_be_is_refused(wrong: Any, said: str) -> None:
    with pytest.raises(UserError, match=said):
        blanks(**wrong)
