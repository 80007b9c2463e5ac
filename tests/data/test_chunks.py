"""Pieces: stretches cut without chance, whose ends are where they should be."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kinfolk.data.chunks import Chunk, ChunkIndex, InMemoryDocuments, split_documents
from kinfolk.errors import UserError

TEXT = InMemoryDocuments.from_lists([[[10, 11], [12]], [], [[20, 21, 22]]])
SENTENCES = st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=6), max_size=5)


def test_loose_documents_keep_their_bounds() -> None:
    assert TEXT.starts.tolist() == [0, 3, 3, 6]
    assert TEXT.ids(1, 5).tolist() == [11, 12, 20, 21]
    assert TEXT.sentences(0, 3).tolist() == [2, 1]
    assert TEXT.sentences(1, 3).tolist() == [1, 1]
    assert TEXT.sentences(3, 5).tolist() == [2]


def test_a_piece_knows_what_it_holds_and_what_came_before() -> None:
    start, inside, end = Chunk(TEXT, 2, 0, 2), Chunk(TEXT, 2, 1, 3), Chunk(TEXT, 2, 2, 4)
    assert (
        start.ids.tolist() == [20, 21] and start.previous_token is None and not start.ends_document
    )
    assert (
        inside.ids.tolist() == [21, 22] and inside.previous_token == 20 and not inside.ends_document
    )
    assert end.ids.tolist() == [22] and end.previous_token == 21 and end.ends_document
    assert Chunk(TEXT, 0, 1, 3).sentences.tolist() == [1, 1]


def test_pieces_know_which_tokens_begin_a_word() -> None:
    words = [True, False, True, True, True, False]
    text = InMemoryDocuments.from_lists([[[10, 11], [12]], [], [[20, 21, 22]]], words=words)
    assert text.words(1, 4).tolist() == words[1:4]
    assert Chunk(text, 2, 1, 4).words.tolist() == [True, False]  # past the end there is none
    assert Chunk(text, 0, 0, 2).words.tolist() == [True, False]


def test_documents_without_words_say_so() -> None:
    with pytest.raises(UserError, match="whole-word masking needs word boundaries"):
        TEXT.words(0, 0)
    with pytest.raises(UserError, match="whole-word masking needs word boundaries"):
        _ = Chunk(TEXT, 0, 0, 2).words


def test_a_piece_is_split_in_two() -> None:
    first, second = Chunk(TEXT, 2, 1, 3).split(1)
    assert (first.ids.tolist(), second.ids.tolist()) == ([21], [22])
    assert second.previous_token == 21


def test_a_piece_may_hold_nothing_but_the_end() -> None:
    chunk = Chunk(TEXT, 2, 3, 4)
    assert chunk.ids.tolist() == [] and chunk.previous_token == 22 and chunk.ends_document


@given(st.lists(SENTENCES, min_size=1, max_size=8), st.integers(1, 9), st.integers(0, 1))
@settings(max_examples=100)
def test_every_slot_of_every_document_is_cut_exactly_once(
    documents: list[list[list[int]]], longest: int, extra: int
) -> None:
    text = InMemoryDocuments.from_lists(documents)
    chunks = split_documents(text, longest, extra=extra)
    document, start, stop = chunks.document, chunks.start, chunks.stop
    assert (chunks.sizes[:, 0] == stop - start).all() and not chunks.repeat.any()
    assert (stop > start).all() and (stop - start <= longest).all()
    for number, sentences in enumerate(documents):
        size = sum(map(len, sentences))
        own = document == number
        covered = [i for a, b in zip(start[own], stop[own], strict=True) for i in range(a, b)]
        assert covered == list(range(size + extra if size else 0))


def test_only_the_last_piece_of_a_document_is_short() -> None:
    chunks = split_documents(InMemoryDocuments.from_lists([[[0] * 10], [[0] * 4]]), 4)
    assert chunks.document.tolist() == [0, 0, 0, 1]
    assert (chunks.stop - chunks.start).tolist() == [4, 4, 2, 4]


def test_turns_are_numbered() -> None:
    parts = [np.array(x) for x in ([0, 2], [0, 1], [3, 3], [0, 0])]
    chunks = ChunkIndex(TEXT, *parts, np.array([[3], [2]])).with_repeats(np.array([2, 3]))
    assert [(p.document, p.start, p.stop, p.repeat) for p in chunks] == [
        (0, 0, 3, 0),
        (0, 0, 3, 1),
        (2, 1, 3, 0),
        (2, 1, 3, 1),
        (2, 1, 3, 2),
    ]
    assert chunks.sizes.tolist() == [[3], [3], [2], [2], [2]]


def test_some_of_the_turns_are_taken_at_equal_distances() -> None:
    chunks = split_documents(InMemoryDocuments.from_lists([[[0] * 10], [], [[0] * 6]]), 8)
    counts = chunks.stop - chunks.start
    every = [(p.document, p.start, p.repeat) for p in chunks.with_repeats(counts)]
    some = [(p.document, p.start, p.repeat) for p in chunks.with_repeats(counts, 5)]
    assert some == [every[i] for i in (0, 3, 6, 9, 12)]
    assert len(chunks.with_repeats(counts, 16)) == len(chunks.with_repeats(counts, 99)) == 16
    nothing = split_documents(InMemoryDocuments.from_lists([[]]), 8)
    assert len(nothing.with_repeats(nothing.stop - nothing.start, 5)) == 0


@pytest.mark.parametrize("longest", [1, 2, 3, 4])
def test_a_stretch_from_elsewhere_has_text_enough_where_there_is_any(longest: int) -> None:
    text = InMemoryDocuments.from_lists([[[10]], [[20, 21], [22, 23]]])
    found = {
        tuple(
            Chunk(text, 0, 0, 1).random_other_chunk(np.random.default_rng(i), longest).ids.tolist()
        )
        for i in range(40)
    }
    # Beginning where a sentence does, and with enough behind it.
    whole = (20, 21, 22, 23)
    expected = {whole[:longest]} | ({whole[2 : 2 + longest]} if longest <= 2 else set())
    assert found == expected
