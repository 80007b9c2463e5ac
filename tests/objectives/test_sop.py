"""Sentence order: the picture, who sees whom, neighbours that are swapped, runs that are hidden."""

from typing import Any

import numpy as np
import pytest

from kinfolk.batch import IGNORE_INDEX
from kinfolk.data.pieces import Loose, Piece
from kinfolk.errors import UserError
from kinfolk.objectives.sop import IN_ORDER, SOP, SWAPPED, runs, stretches
from kinfolk.rng import Stream, generator

TENS = range(20, 80, 10)  # the first token of each document; no two share one


def sop(specials: Any, **settings: Any) -> SOP:
    return SOP(specials=specials, vocab=80, **settings)


def tens() -> Loose:
    """Six documents of ten tokens in sentences of three, four and three."""
    return Loose.of(
        [[[t, t + 1, t + 2], [t + 3, t + 4, t + 5, t + 6], [t + 7, t + 8, t + 9]] for t in TENS]
    )


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


def test_the_picture_holds(specials: Any, ids: Any) -> None:
    text = Loose.of([[ids("the cat"), ids("sat down")]])
    example = sop(specials).example(Piece(text, 0, 0, 4), Rigged(2, 0.3, 3))  # type: ignore[arg-type]
    assert example.ids.tolist() == ids("[C] sat down [S] the [M] [S]")
    assert example.segments.tolist() == [0, 0, 0, 0, 1, 1, 1]
    assert example.labels.tolist() == ids(". . . . . cat .")
    assert example.next == SWAPPED == 1
    example = sop(specials).example(Piece(text, 0, 0, 4), Rigged(2, 0.7, 1))  # type: ignore[arg-type]
    assert example.ids.tolist() == ids("[C] the [M] [S] sat down [S]")
    assert example.next == IN_ORDER == 0


def test_the_picture_of_runs_holds() -> None:
    class Sizes:
        def choice(self, *_: object, **__: object) -> object:
            return np.array([1, 2, 1, 3, 1, 1, 1])

    found = runs(np.ones(7, np.bool_), 3, Sizes())  # type: ignore[arg-type]
    assert found.astype(int).tolist() == [1, 1, 0, 1, 1, 0, 0]


def test_sight_is_the_whole_pair(specials: Any, ids: Any) -> None:
    text = Loose.of([[ids("the"), ids("cat")], [ids("sat"), ids("down")]])
    way = sop(specials, length=12)
    swaps = (0.7, 0.3)
    pairs = [way.example(Piece(text, d, 0, 2), Rigged(1, swaps[d], 0)) for d in (0, 1)]  # type: ignore[arg-type]
    batch = way.collate([pairs])
    one = [[1] * 5 + [0] * 7] * 5 + [[0] * 5 + [1] * 5 + [0] * 2] * 5 + [[0] * 10 + [1] * 2] * 2
    assert batch.inputs.attention_mask.dense()[0].int().tolist() == one
    assert batch.inputs.input_ids[0].tolist() == ids(
        "[C] [M] [S] cat [S] [C] [M] [S] sat [S] <p> <p>"
    )
    assert batch.targets.next.tolist() == [0, 1]
    assert batch.targets.firsts.tolist() == [0, 5]
    assert batch.targets.tokens.labels.tolist() == ids("the down")
    assert batch.counts == {"tokens": 2, "pairs": 2}


def drawn(specials: Any, count: int = 2000) -> list[tuple[int, Any]]:
    way, text = sop(specials, length=32, rate=0.01), tens()
    pieces = way.pieces(text)
    return [
        (i % 6, way.example(pieces[i % 6], generator(0, Stream.EXAMPLE, 0, i)))
        for i in range(count)
    ]


def sides(example: Any) -> tuple[list[int], list[int]]:
    ids = np.where(example.labels == IGNORE_INDEX, example.ids, example.labels)
    ordinary = ids >= 20
    return tuple(ids[ordinary & (example.segments == s)].tolist() for s in (0, 1))  # type: ignore[return-value]


def test_half_of_the_pairs_are_swapped(specials: Any) -> None:
    verdicts = np.array([example.next for _, example in drawn(specials)])
    # Four standard deviations of a fair coin.
    assert abs((verdicts == SWAPPED).mean() - 0.5) < 4 * 0.5 / np.sqrt(len(verdicts))


def test_both_sides_are_one_stretch_split_where_a_sentence_ends(specials: Any) -> None:
    cuts = set()
    for document, example in drawn(specials, 300):
        first, second = sides(example)[:: -1 if example.next == SWAPPED else 1]
        assert first + second == list(range(TENS[document], TENS[document] + 10))
        cuts.add(len(first))
    assert cuts == {3, 7}


def test_a_single_sentence_is_learned_and_its_order_not_asked_for(specials: Any) -> None:
    way = sop(specials, rate=0.01, length=16)
    text = Loose.of([[[20, 21, 22, 23]], [[30, 31], [32, 33]]])
    pieces = way.pieces(text)
    for number in range(20):
        one, two = (way.example(pieces[i], generator(0, Stream.EXAMPLE, 0, number)) for i in (0, 1))
        assert sides(one) == ([20, 21], [22, 23])
        assert (one.next, two.next in (IN_ORDER, SWAPPED)) == (IGNORE_INDEX, True)
        batch = way.collate([[one, two]])
        assert batch.targets.next.tolist() == [IGNORE_INDEX, two.next]
        assert batch.counts["pairs"] == 1


def test_stretches_begin_and_end_with_sentences() -> None:
    def lengths(longest: int, *documents: list[int]) -> list[tuple[int, int, int]]:
        return list(stretches(Loose.of([[[9] * n for n in d] for d in documents]), longest))

    assert lengths(10, [3, 4, 3], [], [5, 6]) == [(0, 0, 10), (2, 0, 5), (2, 5, 11)]
    # Too long a sentence is cut, and the rest of it stands alone.
    assert lengths(4, [1, 9, 2]) == [(0, 0, 1), (0, 1, 5), (0, 5, 9), (0, 9, 10), (0, 10, 12)]
    assert lengths(4, [4, 4]) == [(0, 0, 4), (0, 4, 8)]


def test_a_token_alone_is_let_go(specials: Any) -> None:
    pieces = sop(specials, length=8).pieces(Loose.of([[[20]], [[30, 31]], []]))
    assert [piece.ids.tolist() for piece in pieces] == [[30, 31]]


def test_a_run_of_n_is_drawn_with_a_chance_of_one_in_n() -> None:
    found = runs(np.ones(30_000, np.bool_), 3, generator(0, Stream.EXAMPLE, 0, 0))
    sizes = np.diff(np.flatnonzero(found))
    assert set(sizes.tolist()) == {1, 2, 3}
    shares = np.bincount(sizes)[1:] / len(sizes)
    expected = np.array([6, 3, 2]) / 11  # 1, 1/2 and 1/3, made to add up
    assert np.abs(shares - expected).max() < 4 * 0.5 / np.sqrt(len(sizes))


def test_runs_are_hidden_whole_and_end_with_their_side(specials: Any) -> None:
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

    way = sop(specials, length=32, rate=0.34)  # six of eighteen
    text = Loose.of([[list(range(20, 29)), list(range(30, 39))]])
    (piece,) = way.pieces(text)
    for number in range(50):
        example = way.example(piece, Threes(number))  # type: ignore[arg-type]
        hidden = example.labels[example.labels != IGNORE_INDEX]
        assert len(hidden) == 6
        runs_of = {int(i) // 10 * 10 + int(i) % 10 // 3 for i in hidden}
        assert len(runs_of) == 2


def test_whole_words_make_the_runs_where_they_are_wanted(specials: Any) -> None:
    text = Loose.of(
        [[[20, 21, 22, 23], [24, 25, 26, 27]]],
        words=[True, False, True, False, True, False, True, False],
    )
    way = sop(specials, whole=True, rate=0.25, longest=1)
    (piece,) = way.pieces(text)
    for number in range(50):
        labels = way.example(piece, generator(0, Stream.EXAMPLE, 0, number)).labels
        hidden = labels[labels != IGNORE_INDEX]
        assert len(hidden) == 2 and hidden.min() % 2 == 0 and hidden.max() == hidden.min() + 1


def test_the_share_of_hidden_tokens_is_kept(specials: Any) -> None:
    way = sop(specials, length=103, rate=0.15)
    (piece,) = way.pieces(Loose.of([[list(range(20, 70)), list(range(20, 70))]]))
    counts = [
        (way.example(piece, generator(0, Stream.EXAMPLE, 0, i)).labels != IGNORE_INDEX).sum()
        for i in range(50)
    ]
    assert set(counts) == {15}


def test_runs_of_nothing_are_refused(specials: Any) -> None:
    with pytest.raises(UserError, match="at least 1"):
        sop(specials, longest=0)
