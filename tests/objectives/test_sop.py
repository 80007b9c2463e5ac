"""Sentence order: the picture, who sees whom, neighbours that are swapped, runs that are hidden."""

from typing import Any

import numpy as np
import pytest

from kinfolk.batch import IGNORE_INDEX
from kinfolk.data.chunks import Chunk, InMemoryDocuments
from kinfolk.errors import UserError
from kinfolk.objectives.sop import IN_ORDER, SOP, SWAPPED, ngram_starts, sentence_chunks
from kinfolk.rng import Stream, generator
from support.sentence_pairs import TENS, drawn, sides


def sop(special_tokens: Any, **settings: Any) -> SOP:
    return SOP(special_tokens=special_tokens, vocab_size=80, **settings)


def sparse(special_tokens: Any) -> SOP:
    """Mask one token of each pair."""
    return sop(special_tokens, max_length=32, mask_rate=0.01)


class Rigged:
    """Random numbers for one pair: where to split, whether to swap, and which run to hide."""

    def __init__(self, middle: int, swap: float, run: int) -> None:
        self.middle, self.swap, self.run = middle, swap, run
        self.dice = [swap, np.array([0.5])]

    def choice(self, values: Any, size: int | None = None, **more: Any) -> object:
        if size is None:
            return np.int64(self.middle)
        return np.ones(size, np.int64) if "p" in more else np.array([], int)  # runs of one

    def random(self, *_: object) -> object:
        return self.dice.pop(0)

    def permutation(self, count: int) -> object:
        return np.array([self.run, *(i for i in range(count) if i != self.run)])


def test_the_picture_holds(special_tokens: Any, ids: Any) -> None:
    text = InMemoryDocuments.from_lists([[ids("the cat"), ids("sat down")]])
    example = sop(special_tokens).example(Chunk(text, 0, 0, 4), Rigged(2, 0.3, 3))  # type: ignore[arg-type]
    assert example.input_ids.tolist() == ids("[C] sat down [S] the [M] [S]")
    assert example.token_type_ids.tolist() == [0, 0, 0, 0, 1, 1, 1]
    assert example.labels.tolist() == ids(". . . . . cat .")
    assert example.sequence_label == SWAPPED == 1
    example = sop(special_tokens).example(Chunk(text, 0, 0, 4), Rigged(2, 0.7, 1))  # type: ignore[arg-type]
    assert example.input_ids.tolist() == ids("[C] the [M] [S] sat down [S]")
    assert example.sequence_label == IN_ORDER == 0


def test_the_picture_of_runs_holds() -> None:
    class Sizes:
        def choice(self, *_: object, **__: object) -> object:
            return np.array([1, 2, 1, 3, 1, 1, 1])

    found = ngram_starts(np.ones(7, np.bool_), 3, Sizes())  # type: ignore[arg-type]
    assert found.astype(int).tolist() == [1, 1, 0, 1, 1, 0, 0]


def test_sight_is_the_whole_pair(special_tokens: Any, ids: Any) -> None:
    text = InMemoryDocuments.from_lists([[ids("the"), ids("cat")], [ids("sat"), ids("down")]])
    way = sop(special_tokens, max_length=12)
    swaps = (0.7, 0.3)
    pairs = [way.example(Chunk(text, d, 0, 2), Rigged(1, swaps[d], 0)) for d in (0, 1)]  # type: ignore[arg-type]
    batch = way.collate([pairs])
    one = [[1] * 5 + [0] * 7] * 5 + [[0] * 5 + [1] * 5 + [0] * 2] * 5 + [[0] * 10 + [1] * 2] * 2
    assert batch.inputs.attention_mask.dense()[0].int().tolist() == one
    assert batch.inputs.input_ids[0].tolist() == ids(
        "[C] [M] [S] cat [S] [C] [M] [S] sat [S] <p> <p>"
    )
    assert batch.targets.sequence_labels.tolist() == [0, 1]
    assert batch.targets.cls_positions.tolist() == [0, 5]
    assert batch.targets.tokens.labels.tolist() == ids("the down")
    assert batch.counts == {"mlm": 2, "sop": 2}


def test_half_of_the_pairs_are_swapped(special_tokens: Any) -> None:
    verdicts = np.array([example.sequence_label for _, example in drawn(sparse(special_tokens))])
    # Four standard deviations of a fair coin.
    assert abs((verdicts == SWAPPED).mean() - 0.5) < 4 * 0.5 / np.sqrt(len(verdicts))


def test_both_sides_are_one_stretch_split_where_a_sentence_ends(special_tokens: Any) -> None:
    cuts = set()
    for document, example in drawn(sparse(special_tokens), 300):
        first, second = sides(example)[:: -1 if example.sequence_label == SWAPPED else 1]
        assert first + second == list(range(TENS[document], TENS[document] + 10))
        cuts.add(len(first))
    assert cuts == {3, 7}


def test_a_single_sentence_is_learned_and_its_order_not_asked_for(special_tokens: Any) -> None:
    way = sop(special_tokens, mask_rate=0.01, max_length=16)
    text = InMemoryDocuments.from_lists([[[20, 21, 22, 23]], [[30, 31], [32, 33]]])
    chunks = way.chunks(text)
    for number in range(20):
        one, two = (way.example(chunks[i], generator(0, Stream.EXAMPLE, 0, number)) for i in (0, 1))
        assert sides(one) == ([20, 21], [22, 23])
        assert (one.sequence_label, two.sequence_label in (IN_ORDER, SWAPPED)) == (
            IGNORE_INDEX,
            True,
        )
        batch = way.collate([[one, two]])
        assert batch.targets.sequence_labels.tolist() == [IGNORE_INDEX, two.sequence_label]
        assert batch.counts["sop"] == 1


def test_stretches_begin_and_end_with_sentences() -> None:
    def lengths(longest: int, *documents: list[int]) -> list[tuple[int, int, int]]:
        return list(
            sentence_chunks(
                InMemoryDocuments.from_lists([[[9] * n for n in d] for d in documents]), longest
            )
        )

    assert lengths(10, [3, 4, 3], [], [5, 6]) == [(0, 0, 10), (2, 0, 5), (2, 5, 11)]
    # Too long a sentence is cut, and the rest of it stands alone.
    assert lengths(4, [1, 9, 2]) == [(0, 0, 1), (0, 1, 5), (0, 5, 9), (0, 9, 10), (0, 10, 12)]
    assert lengths(4, [4, 4]) == [(0, 0, 4), (0, 4, 8)]


def test_a_token_alone_is_let_go(special_tokens: Any) -> None:
    chunks = sop(special_tokens, max_length=8).chunks(
        InMemoryDocuments.from_lists([[[20]], [[30, 31]], []])
    )
    assert [chunk.ids.tolist() for chunk in chunks] == [[30, 31]]


def test_a_run_of_n_is_drawn_with_a_chance_of_one_in_n() -> None:
    found = ngram_starts(np.ones(30_000, np.bool_), 3, generator(0, Stream.EXAMPLE, 0, 0))
    sizes = np.diff(np.flatnonzero(found))
    assert set(sizes.tolist()) == {1, 2, 3}
    shares = np.bincount(sizes)[1:] / len(sizes)
    expected = np.array([6, 3, 2]) / 11  # 1, 1/2 and 1/3, made to add up
    assert np.abs(shares - expected).max() < 4 * 0.5 / np.sqrt(len(sizes))


def test_runs_are_hidden_whole_and_end_with_their_side(special_tokens: Any) -> None:
    """Runs of three of nine tokens a side: what is hidden comes in threes."""

    class Threes:
        def __init__(self, number: int) -> None:
            self.rng = generator(0, Stream.EXAMPLE, 0, number)

        def choice(self, values: Any, size: Any = None, *, p: Any = None, **more: Any) -> Any:
            if p is not None:
                return np.full(size, 3)
            return self.rng.choice(values, size, **more)

        def __getattr__(self, name: str) -> Any:
            return getattr(self.rng, name)

    way = sop(special_tokens, max_length=32, mask_rate=0.34)  # six of eighteen
    text = InMemoryDocuments.from_lists([[list(range(20, 29)), list(range(30, 39))]])
    (chunk,) = way.chunks(text)
    for number in range(50):
        example = way.example(chunk, Threes(number))  # type: ignore[arg-type]
        hidden = example.labels[example.labels != IGNORE_INDEX]
        assert len(hidden) == 6
        runs_of = {int(i) // 10 * 10 + int(i) % 10 // 3 for i in hidden}
        assert len(runs_of) == 2


def test_whole_words_make_the_runs_where_they_are_wanted(special_tokens: Any) -> None:
    text = InMemoryDocuments.from_lists(
        [[[20, 21, 22, 23], [24, 25, 26, 27]]],
        words=[True, False, True, False, True, False, True, False],
    )
    way = sop(special_tokens, whole_word_masking=True, mask_rate=0.25, max_ngram=1)
    (chunk,) = way.chunks(text)
    for number in range(50):
        labels = way.example(chunk, generator(0, Stream.EXAMPLE, 0, number)).labels
        hidden = labels[labels != IGNORE_INDEX]
        assert len(hidden) == 2 and hidden.min() % 2 == 0 and hidden.max() == hidden.min() + 1


def test_the_share_of_hidden_tokens_is_kept(special_tokens: Any) -> None:
    way = sop(special_tokens, max_length=103, mask_rate=0.15)
    (chunk,) = way.chunks(
        InMemoryDocuments.from_lists([[list(range(20, 70)), list(range(20, 70))]])
    )
    counts = [
        (way.example(chunk, generator(0, Stream.EXAMPLE, 0, i)).labels != IGNORE_INDEX).sum()
        for i in range(50)
    ]
    assert set(counts) == {15}


def test_runs_of_nothing_are_refused(special_tokens: Any) -> None:
    with pytest.raises(UserError, match="at least 1"):
        sop(special_tokens, max_ngram=0)
