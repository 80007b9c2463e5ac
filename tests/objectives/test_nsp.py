"""Next sentences: the picture, who sees whom, and strangers that really are."""

from typing import Any

import numpy as np
import pytest

from kinfolk.batch import IGNORE_INDEX
from kinfolk.data.chunks import Chunk, InMemoryDocuments
from kinfolk.data.datasets import PackedDataset
from kinfolk.errors import UserError
from kinfolk.objectives.nsp import IS_NEXT, NOT_NEXT, NSP
from kinfolk.rng import Stream, generator
from support.sentence_pairs import TENS, drawn, sides, tens


def nsp(special_tokens: Any, **settings: Any) -> NSP:
    return NSP(special_tokens=special_tokens, vocab_size=80, **settings)


def sparse(special_tokens: Any) -> NSP:
    """Mask one token of each pair."""
    return nsp(special_tokens, max_length=32, mask_rate=0.01)


class Rigged:
    """Random numbers for one pair: where to split, whom to take, what to hide."""

    def __init__(self, middle: int, stranger: float, hidden: int) -> None:
        self.choices, self.dice = (
            [np.int64(middle), np.array([hidden]), np.array([], int)],
            [stranger, np.array([0.5])],
        )

    def choice(self, *_: object, **__: object) -> object:
        return self.choices.pop(0)

    def random(self, *_: object) -> object:
        return self.dice.pop(0)


def test_the_picture_holds(special_tokens: Any, ids: Any) -> None:
    text = InMemoryDocuments.from_lists([[ids("the cat"), ids("sat down")], [[30]]])
    example = nsp(special_tokens).example(Chunk(text, 0, 0, 4), Rigged(2, 0.7, 2))  # type: ignore[arg-type]
    assert example.input_ids.tolist() == ids("[C] the [M] [S] sat down [S]")
    assert example.token_type_ids.tolist() == [0, 0, 0, 0, 1, 1, 1]
    assert example.labels.tolist() == ids(". . cat . . . .")
    assert example.sequence_label == IS_NEXT == 0


def test_sight_is_the_whole_pair(special_tokens: Any, ids: Any) -> None:
    text = InMemoryDocuments.from_lists([[ids("the"), ids("cat")], [ids("sat"), ids("down")]])
    way = nsp(special_tokens, max_length=12)
    pairs = [way.example(Chunk(text, d, 0, 2), Rigged(1, 0.7, 1)) for d in (0, 1)]  # type: ignore[arg-type]
    batch = way.collate([pairs])
    one = [[1] * 5 + [0] * 7] * 5 + [[0] * 5 + [1] * 5 + [0] * 2] * 5 + [[0] * 10 + [1] * 2] * 2
    assert batch.inputs.attention_mask.dense()[0].int().tolist() == one
    assert batch.inputs.input_ids[0].tolist() == ids(
        "[C] [M] [S] cat [S] [C] [M] [S] down [S] <p> <p>"
    )
    assert batch.inputs.token_type_ids is not None
    assert batch.inputs.token_type_ids[0].tolist() == [0, 0, 0, 1, 1, 0, 0, 0, 1, 1, 0, 0]
    assert batch.inputs.position_ids[0].tolist() == [0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 0, 0]
    assert batch.targets.sequence_labels.tolist() == [0, 0]
    assert batch.targets.cls_positions.tolist() == [0, 5]
    assert batch.targets.tokens.labels.tolist() == ids("the sat")
    assert batch.counts == {"mlm": 2, "nsp": 2}


def test_half_of_the_pairs_are_strangers(special_tokens: Any) -> None:
    verdicts = np.array([example.sequence_label for _, example in drawn(sparse(special_tokens))])
    # Four standard deviations of a fair coin.
    assert abs((verdicts == NOT_NEXT).mean() - 0.5) < 4 * 0.5 / np.sqrt(len(verdicts))


def test_a_stranger_comes_from_another_document_and_starts_a_sentence(special_tokens: Any) -> None:
    seen: set[int] = set()
    for document, example in drawn(sparse(special_tokens)):
        first, second = sides(example)
        own = TENS[document]
        assert first == list(range(own, own + len(first))) and second
        home = second[0] // 10 * 10
        assert second == list(range(second[0], second[0] + len(second)))
        if example.sequence_label == NOT_NEXT:
            assert home != own and home in TENS
            assert second[0] - home in (0, 3, 7)
            seen.add((home - own) // 10)
        else:
            assert second[0] == first[-1] + 1 and second[-1] == own + 9
    assert seen == {*range(-5, 0), *range(1, 6)}  # every other document from every one


def test_pairs_are_split_where_a_sentence_ends(special_tokens: Any) -> None:
    cuts = {len(sides(example)[0]) for _, example in drawn(sparse(special_tokens), 300)}
    assert cuts == {3, 7}


def test_segments_count_the_marks_with_their_texts(special_tokens: Any) -> None:
    for _, example in drawn(sparse(special_tokens), 50):
        first, second = sides(example)
        assert example.token_type_ids.tolist() == [0] * (len(first) + 2) + [1] * (len(second) + 1)
        assert example.input_ids[0] == special_tokens.cls
        assert example.input_ids[len(first) + 1] == example.input_ids[-1] == special_tokens.sep


def test_one_sentence_is_split_in_its_middle_and_no_verdict_asked_for(special_tokens: Any) -> None:
    way = nsp(special_tokens, mask_rate=0.01)
    text = InMemoryDocuments.from_lists([[list(range(20, 26))], [[40, 41]]])
    examples = [
        way.example(way.chunks(text)[0], generator(0, Stream.EXAMPLE, 0, i)) for i in range(20)
    ]
    for example in examples:
        assert sides(example) == ([20, 21, 22], [23, 24, 25])
        assert example.sequence_label == IGNORE_INDEX
    batch = way.collate([examples])
    assert batch.counts["nsp"] == 0
    assert (batch.targets.sequence_labels == IGNORE_INDEX).all()


def test_documents_are_as_likely_as_they_are_long(special_tokens: Any) -> None:
    text = InMemoryDocuments.from_lists([[[20, 21]], [[30]], [list(range(40, 49))]])
    chunk = Chunk(text, 0, 0, 2)
    homes = [
        int(chunk.random_other_chunk(generator(0, Stream.EXAMPLE, 0, i), 1).ids[0]) // 40
        for i in range(2000)
    ]
    assert abs(np.mean(homes) - 0.9) < 4 * np.sqrt(0.9 * 0.1 / 2000)


def test_strangers_skip_empty_documents(special_tokens: Any) -> None:
    text = InMemoryDocuments.from_lists([[], [[20, 21]], [], [[30, 31]], []])
    chunk = Chunk(text, 1, 0, 2)
    drawn = {
        tuple(chunk.random_other_chunk(generator(0, Stream.EXAMPLE, 0, i), 2).ids.tolist())
        for i in range(50)
    }
    assert drawn == {(30, 31)}


def test_whole_words_are_hidden_in_both_texts(special_tokens: Any) -> None:
    """Words of two and three tokens by turns, in pairs of friends and of strangers."""
    sentences = [[list(range(t, t + 5)), list(range(t + 5, t + 10))] for t in TENS]
    text = InMemoryDocuments.from_lists(sentences, words=[True, False, True, False, False] * 12)
    way = nsp(special_tokens, max_length=32, mask_rate=0.3, whole_word_masking=True)
    chunks, verdicts = way.chunks(text), set()
    for index in range(300):
        example = way.example(chunks[index % 6], generator(0, Stream.EXAMPLE, 0, index))
        hidden = {int(i) for i in example.labels if i != IGNORE_INDEX}
        verdicts.add(example.sequence_label)
        for first in range(20, 80, 5):
            for word in ({first, first + 1}, {first + 2, first + 3, first + 4}):
                assert not word & hidden or word <= hidden
        assert 2 <= len(hidden) <= 3
    assert verdicts == {IS_NEXT, NOT_NEXT}


def test_one_document_has_no_strangers(special_tokens: Any) -> None:
    with pytest.raises(UserError, match="one document"):
        nsp(special_tokens).chunks(InMemoryDocuments.from_lists([[[20, 21], [22]]]))


def test_one_document_among_empty_ones_has_no_strangers_either(special_tokens: Any) -> None:
    with pytest.raises(UserError, match="one document"):
        nsp(special_tokens).chunks(InMemoryDocuments.from_lists([[[20, 21], [22]], [], []]))


def test_slots_for_verdicts_are_as_many_in_every_batch(special_tokens: Any) -> None:
    feed = PackedDataset(nsp(special_tokens, max_length=16), tens(), batch_size=2)
    shapes = {tuple(feed[i].targets.sequence_labels.shape) for i in range(6)}
    assert shapes == {(4,)}
