"""FULL-SENTENCES: the picture, who sees whom, and where rows begin and end."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kinfolk.objectives.full_sentences as module
from kinfolk.batch import IGNORE_INDEX
from kinfolk.data.chunks import Chunk, InMemoryDocuments
from kinfolk.errors import UserError
from kinfolk.objectives.full_sentences import ConcatenatedDocuments, FullSentences
from kinfolk.rng import Stream, generator

RNG = np.random.default_rng(0)


def full(special_tokens: Any, **options: Any) -> FullSentences:
    return FullSentences(special_tokens=special_tokens, vocab_size=80, **options)


def texts(way: FullSentences, documents: InMemoryDocuments) -> list[list[int]]:
    """Return what stands in each piece before anything is hidden."""
    chunks = way.chunks(documents)
    found = [way.example(chunk, RNG) for chunk in chunks]
    return [np.where(e.labels == IGNORE_INDEX, e.input_ids, e.labels).tolist() for e in found]


def test_the_picture_holds(special_tokens: Any, ids: Any, chosen: Any) -> None:
    way = full(special_tokens)
    (chunk,) = way.chunks(InMemoryDocuments.from_lists([[ids("the cat")], [ids("sat down")]]))
    example = way.example(chunk, chosen([[2], []], [0.5]))
    assert example.input_ids.tolist() == ids("[C] the [M] [S] sat down [S]")
    assert example.labels.tolist() == ids(". . cat . . . .")


def test_sight_crosses_the_border_of_documents_and_not_that_of_rows_packed_together(
    special_tokens: Any, ids: Any, chosen: Any
) -> None:
    way = full(special_tokens, max_length=9)
    (first,) = way.chunks(InMemoryDocuments.from_lists([[ids("the cat")], [ids("sat")]]))
    (second,) = way.chunks(InMemoryDocuments.from_lists([[ids("mat")]]))
    batch = way.collate(
        [
            [way.example(first, chosen([[2], []], [0.5]))],
            [way.example(second, chosen([[1], []], [0.5]))] * 2,
        ]
    )
    assert batch.inputs.input_ids.tolist() == [
        ids("[C] the [M] [S] sat [S] <p> <p> <p>"),
        ids("[C] [M] [S] [C] [M] [S] <p> <p> <p>"),
    ]
    assert batch.inputs.attention_mask.dense().int().tolist() == [
        [[1, 1, 1, 1, 1, 1, 0, 0, 0]] * 6 + [[0, 0, 0, 0, 0, 0, 1, 1, 1]] * 3,
        [[1, 1, 1, 0, 0, 0, 0, 0, 0]] * 3
        + [[0, 0, 0, 1, 1, 1, 0, 0, 0]] * 3
        + [[0, 0, 0, 0, 0, 0, 1, 1, 1]] * 3,
    ]
    assert batch.inputs.position_ids[0].tolist() == [0, 1, 2, 3, 4, 5, 0, 0, 0]
    assert batch.inputs.token_type_ids is None


def test_rows_take_whole_sentences_and_run_on_into_the_next_document(
    special_tokens: Any, ids: Any
) -> None:
    documents = InMemoryDocuments.from_lists(
        [
            [ids("the cat sat"), ids("on the mat")],
            [ids("Thank you")],
            [ids("your party last week")],
        ]
    )
    # Eight slots are six tokens: two sentences; then a border takes one of them.
    assert texts(full(special_tokens, max_length=8), documents) == [
        ids("[C] the cat sat on the mat [S]"),
        ids("[C] Thank you [S]"),
        ids("[C] your party last week [S]"),
    ]
    assert texts(full(special_tokens, max_length=9), documents) == [
        ids("[C] the cat sat on the mat [S]"),
        ids("[C] Thank you [S] your party last week [S]"),
    ]
    assert texts(full(special_tokens, max_length=11), documents) == [
        ids("[C] the cat sat on the mat [S] Thank you [S]"),
        ids("[C] your party last week [S]"),
    ]


def test_a_sentence_longer_than_a_row_is_cut(special_tokens: Any) -> None:
    documents = InMemoryDocuments.from_lists([[[20, 21], list(range(30, 45))], [[50]]])
    assert texts(full(special_tokens, max_length=8), documents) == [
        [4, 20, 21, 5],
        [4, *range(30, 36), 5],
        [4, *range(36, 42), 5],
        [4, 42, 43, 44, 5, 50, 5],
    ]


def test_documents_without_text_leave_no_trace(special_tokens: Any) -> None:
    documents = InMemoryDocuments.from_lists([[], [[20, 21]], [], [], [[22]], []])
    assert texts(full(special_tokens), documents) == [[4, 20, 21, 5, 22, 5]]
    assert len(full(special_tokens).chunks(InMemoryDocuments.from_lists([[]]))) == 0


def greedy(documents: list[list[list[int]]], longest: int) -> list[list[int]]:
    """Fill rows a sentence at a time; -1 is a border."""
    rows: list[list[int]] = [[]]
    for document in documents:
        for nth, sentence in enumerate(document):
            border = [-1] if nth == 0 and rows[-1] else []
            if len(rows[-1]) + len(border) + len(sentence) <= longest:
                rows[-1] += border + sentence
                continue
            parts = [sentence[i : i + longest] for i in range(0, len(sentence), longest)]
            rows += parts if rows[-1] else parts[1:]
            rows[-len(parts)] = parts[0]
    return [row for row in rows if row]


SENTENCES = st.lists(st.integers(1, 14), min_size=1, max_size=5)


@given(st.lists(SENTENCES, min_size=1, max_size=12), st.integers(6, 12), st.integers(1, 60))
@settings(max_examples=150)
def test_rows_are_those_filled_a_sentence_at_a_time_however_far_one_looks_ahead(
    lengths: list[list[int]], longest: int, stretch: int
) -> None:
    numbers = iter(range(10_000))
    documents = [[[next(numbers) for _ in range(n)] for n in sizes] for sizes in lengths]
    joined = ConcatenatedDocuments(InMemoryDocuments.from_lists(documents))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "WINDOW_TOKENS", stretch)
        cuts = list(joined.sentence_rows(longest))
    found = []
    for start, stop, room in cuts:
        parts = [part.ids.tolist() for part in joined.parts(Chunk(joined, 0, start, stop))]
        row = [number for part in parts for number in [*part, -1]][:-1]
        assert len(row) == room <= longest
        found.append(row)
    assert found == greedy(documents, longest)


def test_whole_words_are_hidden_on_both_sides_of_a_border(special_tokens: Any) -> None:
    words = [True, False, False, True, True, False]
    documents = InMemoryDocuments.from_lists([[[20, 21, 22]], [[30, 31, 32]]], words=words)
    way = full(special_tokens, whole_word_masking=True, mask_rate=0.5)
    (chunk,) = way.chunks(documents)
    groups = [{20, 21, 22}, {30}, {31, 32}]
    hidden: set[int] = set()
    for index in range(60):
        example = way.example(chunk, generator(0, Stream.EXAMPLE, 0, index))
        labels = set(example.labels[example.labels != IGNORE_INDEX].tolist())
        assert all(group <= labels or not group & labels for group in groups)
        hidden |= labels
    assert hidden == {20, 21, 22, 30, 31, 32}
    with pytest.raises(UserError, match="words"):
        way.chunks(InMemoryDocuments.from_lists([[[20]]]))


def test_the_exam_stays_within_documents(special_tokens: Any, ids: Any) -> None:
    exam = full(special_tokens).for_evaluation()
    chunks = exam.chunks(InMemoryDocuments.from_lists([[ids("the cat")], [ids("sat")]]))
    assert [exam.example(chunk, RNG).input_ids.tolist() for chunk in chunks] == [
        ids("[C] [M] cat [S]"),
        ids("[C] the [M] [S]"),
        ids("[C] [M] [S]"),
    ]
