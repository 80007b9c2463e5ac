"""Span corruption: the picture, the paper's example, who sees whom, and the paper's shares."""

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kinfolk.batch import IGNORE_INDEX
from kinfolk.data.chunks import InMemoryDocuments
from kinfolk.errors import UserError
from kinfolk.objectives.span_corruption import SpanCorruption, random_partition
from kinfolk.rng import Stream, generator
from kinfolk.text.tokenizer import SpecialTokens
from support.loops import every_case

MANY = SpecialTokens(
    pad=0, unk=1, bos=2, eos=3, cls=4, sep=5, mask=6, sentinels=tuple(range(150, 50, -1))
)


def spans(special_tokens: Any, **settings: Any) -> SpanCorruption:
    return SpanCorruption(
        special_tokens=special_tokens, vocab_size=2000, **({"max_length": 32} | settings)
    )


def hidden(text: str) -> np.ndarray:
    return np.array([c == "1" for c in text])


def test_the_picture_holds(special_tokens: Any, ids: Any) -> None:
    holes = spans(special_tokens).corrupt(np.array(ids("the cat sat on the mat")), hidden("011001"))
    assert holes.encoder_input_ids.tolist() == ids("the <x> on the <y> </s>")
    assert holes.input_ids.tolist() == ids("<p> <x> cat sat <y> mat")
    assert holes.labels.tolist() == ids("<x> cat sat <y> mat </s>")


def test_an_example_is_drawn_as_text_and_spans_in_turn(
    special_tokens: Any, ids: Any, chunk: Any, chosen: Any
) -> None:
    way = spans(
        special_tokens, max_length=8, mask_rate=0.5, mean_span_length=1.5
    )  # of six tokens three, in two spans
    rng = chosen([[1], [2]])  # text of one and two tokens, spans of two and one
    holes = way.example(chunk(ids("the cat sat on the mat")), rng)
    assert holes.encoder_input_ids.tolist() == ids("the <x> on the <y> </s>")


def test_the_example_of_the_paper_comes_out(special_tokens: Any, ids: Any) -> None:
    """Raffel et al. 2020, figure 2; its last sentinel is Hugging Face's </s>."""
    text = np.array(ids("Thank you for inviting me to your party last week"))
    holes = spans(special_tokens).corrupt(text, hidden("0011000010"))
    assert holes.encoder_input_ids.tolist() == ids("Thank you <x> me to your party <y> week </s>")
    assert holes.labels.tolist() == ids("<x> for inviting <y> last </s>")


def test_sight_of_encoder_decoder_and_across(special_tokens: Any, ids: Any) -> None:
    way = spans(special_tokens, max_length=8)
    first = way.corrupt(np.array(ids("the cat")), hidden("01"))
    second = way.corrupt(np.array(ids("sat")), hidden("1"))
    batch = way.collate([[first, second]])
    inputs, source = batch.inputs, batch.inputs.encoder_inputs
    assert source is not None
    assert source.input_ids[0].tolist() == ids("the <x> </s> <x> </s> <p> <p> <p>")
    assert inputs.input_ids[0].tolist() == ids("<p> <x> cat <p> <x> sat <p> <p>")
    assert batch.targets.labels.tolist() == ids("<x> cat </s> <x> sat </s> . .")
    assert source.position_ids[0].tolist() == [0, 1, 2, 0, 1, 0, 0, 0]
    assert inputs.position_ids[0].tolist() == [0, 1, 2, 0, 1, 2, 0, 0]
    assert batch.counts == {"spans": 6}
    reading = [[1, 1, 1, 0, 0, 0, 0, 0]] * 3 + [[0, 0, 0, 1, 1, 0, 0, 0]] * 2
    assert source.attention_mask.dense()[0].int().tolist() == reading + [[0] * 5 + [1] * 3] * 3
    assert inputs.attention_mask.dense()[0].int().tolist() == [
        [1, 0, 0, 0, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 0, 0, 0],
        [1, 1, 1, 0, 0, 0, 0, 0],
        [0, 0, 0, 1, 0, 0, 0, 0],
        [0, 0, 0, 1, 1, 0, 0, 0],
        [0, 0, 0, 1, 1, 1, 0, 0],
        [0, 0, 0, 0, 0, 0, 1, 0],
        [0, 0, 0, 0, 0, 0, 1, 1],
    ]
    # What the decoder sees of the source is decided by document alone.
    across = (
        inputs.attention_mask.document_ids[0][:, None]
        == source.attention_mask.document_ids[0][None, :]
    )
    assert across.int().tolist() == (
        [[1, 1, 1, 0, 0, 0, 0, 0]] * 3
        + [[0, 0, 0, 1, 1, 0, 0, 0]] * 3
        + [[0, 0, 0, 0, 0, 1, 1, 1]] * 2
    )


def test_shares_and_lengths_are_those_of_the_paper() -> None:
    """Section 3.1.4: 15 % of the tokens, in spans of three on average."""
    way = spans(MANY, max_length=512)
    text = InMemoryDocuments.from_lists([[list(range(200, 200 + way.max_tokens))]])
    chunk = way.chunks(text)[0]
    lengths: list[int] = []
    for index in range(50):
        holes = way.example(chunk, generator(0, Stream.EXAMPLE, 0, index))
        gone = ~np.isin(chunk.ids, holes.encoder_input_ids)
        assert gone.mean() == pytest.approx(0.15, abs=0.001)
        edges = np.flatnonzero(np.diff(gone, prepend=False, append=False))
        lengths += (edges[1::2] - edges[::2]).tolist()
    assert np.mean(lengths) == pytest.approx(3.0, abs=0.05)
    # Each way to cut 85 tokens into 28 spans is as likely: few long spans, many of one token.
    assert np.bincount(lengths).argmax() == 1 and max(lengths) > 8


@given(
    tokens=st.integers(1, 300),
    rate=st.floats(0.05, 0.6),
    span=st.floats(1, 6),
    seed=st.integers(0, 99),
)
@settings(max_examples=150)
def test_sentinels_come_in_order_and_never_two_together(
    tokens: int, rate: float, span: float, seed: int
) -> None:
    way = SpanCorruption(
        special_tokens=MANY, vocab_size=2000, max_length=64, mask_rate=rate, mean_span_length=span
    )
    text = InMemoryDocuments.from_lists([[list(range(200, 200 + tokens))]])
    for number, chunk in enumerate(way.chunks(text)):
        holes = way.example(chunk, generator(seed, Stream.EXAMPLE, 0, number))
        gone, count = way.noise_counts(len(chunk.ids))
        for side in (holes.encoder_input_ids, holes.input_ids, holes.labels):
            there = side[np.isin(side, MANY.sentinels)]
            assert there.tolist() == list(MANY.sentinels[:count])
        at = np.flatnonzero(np.isin(holes.encoder_input_ids, MANY.sentinels))
        assert (np.diff(at) > 1).all()
        assert (~np.isin(chunk.ids, holes.encoder_input_ids)).sum() == gone
        assert (len(holes.encoder_input_ids), len(holes.input_ids)) == way.example_lengths(
            len(chunk.ids)
        )
        assert (
            holes.encoder_input_ids[-1] == holes.labels[-1] == MANY.eos
            and holes.input_ids[0] == MANY.pad
        )
        assert holes.input_ids[1:].tolist() == holes.labels[:-1].tolist()


def test_t5s_own_row_is_114_tokens_for_512() -> None:
    """Section 3.1.4's 512 tokens of input come from 568 of text, and leave 114 to write."""
    way = spans(MANY, max_length=512)
    assert way.max_tokens == 568
    assert way.example_lengths(568) == (512, 114)
    assert way.row_lengths == (512, 120)


def test_the_longest_text_just_fits() -> None:
    with every_case() as case:
        for length in range(8, 40):
            with case(length):
                way = spans(MANY, max_length=length)
                assert (
                    way.example_lengths(way.max_tokens)[0]
                    <= length
                    < way.example_lengths(way.max_tokens + 1)[0]
                )


def test_every_way_to_split_is_as_likely() -> None:
    found = [
        tuple(random_partition(5, 3, generator(0, Stream.EXAMPLE, 0, i)).tolist())
        for i in range(3000)
    ]
    ways = {(1, 1, 3), (1, 3, 1), (3, 1, 1), (1, 2, 2), (2, 1, 2), (2, 2, 1)}
    counts = np.array([found.count(way) for way in ways])
    assert counts.sum() == 3000
    assert ((counts - 500) ** 2 / 500).sum() < 25.7  # five degrees of freedom, 1 in 10,000


def test_the_exam_hides_every_seventh_span_in_turn(special_tokens: Any, ids: Any) -> None:
    exam = spans(special_tokens).for_evaluation()
    assert exam.num_passes == 7
    chunks = exam.chunks(InMemoryDocuments.from_lists([[list(range(20, 20 + 23))]]))
    assert len(chunks) == 7
    examples = [exam.example(chunk, generator(0, Stream.EXAMPLE, 0, 0)) for chunk in chunks]
    x, y = special_tokens.sentinels[:2]
    assert examples[0].encoder_input_ids.tolist() == [x, *range(23, 41), y, special_tokens.eos]
    assert examples[0].labels.tolist() == [
        IGNORE_INDEX, 20, 21, 22, IGNORE_INDEX, 41, 42, IGNORE_INDEX
    ]  # fmt: skip
    assert examples[6].encoder_input_ids.tolist() == [*range(20, 38), x, 41, 42, special_tokens.eos]


def test_too_long_a_row_for_the_sentinels_is_refused(special_tokens: Any) -> None:
    with pytest.raises(UserError, match="need 28 sentinels, and this tokenizer has 3"):
        spans(special_tokens, max_length=512)


@pytest.mark.parametrize(
    "wrong", [{"mask_rate": 0.0}, {"mask_rate": 1.0}, {"mean_span_length": 0.5}]
)
def test_a_share_or_length_that_cannot_be_is_refused(special_tokens: Any, wrong: Any) -> None:
    with pytest.raises(
        UserError,
        match=r"objective.(mask_rate|mean_span_length)=\S+: it must be (above 0|at least 1)",
    ):
        spans(special_tokens, **wrong)


def test_a_tokenizer_without_an_end_is_refused(special_tokens: Any) -> None:
    with pytest.raises(UserError, match="eos"):
        spans(dataclasses.replace(special_tokens, eos=None))
