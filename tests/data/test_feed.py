"""The feed: batch number n in one look-up, the same for everybody who asks."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from kinfolk.data.feed import Feed
from kinfolk.data.pieces import Documents, Loose, Piece, Pieces, Rng, cut
from kinfolk.errors import UserError
from kinfolk.rng import Stream, generator


class Echo:
    """An objective that says which piece it was given, and what it drew."""

    capacity = (4,)

    def pieces(self, documents: Documents, /) -> Pieces:
        document, start, stop = cut(documents, 4)
        return Pieces(documents, document, start, stop, start * 0, (stop - start)[:, None])

    def example(self, piece: Piece, rng: Rng, /) -> tuple[int, int, float]:
        return piece.document, piece.start, float(rng.random())

    def collate(self, rows: Sequence[Sequence[Any]], /) -> Any:
        return [list(row) for row in rows]


def text(documents: int = 7) -> Loose:
    return Loose.of([[[number] * (1 + number % 6)] for number in range(documents)])


def rows_of(feed: Feed, numbers: Sequence[int]) -> list[Any]:
    return [row for number in numbers for row in feed[number]]


@pytest.mark.parametrize("rows", [1, 2, 3, 50])
def test_an_epoch_shows_every_piece_once_whatever_the_batch(rows: int) -> None:
    feed = Feed(Echo(), text(), rows=rows)
    epoch = len(feed.packed)
    seen = rows_of(feed, range(3 * -(-epoch // rows)))
    for start in range(0, len(seen) - epoch + 1, epoch):
        pieces = [(d, s) for row in seen[start : start + epoch] for d, s, _ in row]
        assert sorted(pieces) == sorted((p.document, p.start) for p in feed.pieces)


def test_rows_do_not_depend_on_how_many_come_at_once() -> None:
    single = rows_of(Feed(Echo(), text(), rows=1), range(24))
    assert rows_of(Feed(Echo(), text(), rows=4), range(6)) == single


def test_any_batch_is_found_without_those_before() -> None:
    feed, far = Feed(Echo(), text(), rows=2), Feed(Echo(), text(), rows=2)
    assert [feed[n] for n in range(100)][99] == far[99]


def test_an_epoch_has_its_own_order_and_its_own_draws() -> None:
    feed = Feed(Echo(), text(20), rows=1)
    epoch = len(feed.packed)
    first, second = rows_of(feed, range(epoch)), rows_of(feed, range(epoch, 2 * epoch))
    places = [[[(d, s) for d, s, _ in row] for row in rows] for rows in (first, second)]
    assert places[0] != places[1]
    draws = [{x for row in rows for *_, x in row} for rows in (first, second)]
    assert len(draws[0]) == len(feed.pieces) and not draws[0] & draws[1]


def test_another_seed_is_another_order_and_other_draws() -> None:
    one, other = (rows_of(Feed(Echo(), text(20), rows=1, seed=s), range(10)) for s in (0, 1))
    assert [r[0][:2] for r in one] != [r[0][:2] for r in other]
    assert not {r[0][2] for r in one} & {r[0][2] for r in other}


def test_an_unshuffled_feed_stops_after_the_last_row() -> None:
    feed = Feed(Echo(), text(), rows=3, shuffled=False)
    sizes = [len(feed[number]) for number in range(len(feed))]
    assert sum(sizes) == len(feed.packed) and set(sizes[:-1]) <= {3} and 1 <= sizes[-1] <= 3


def test_draws_of_two_positions_share_nothing() -> None:
    firsts = {
        float(generator(seed, Stream.EXAMPLE, epoch, index).random())
        for seed in (0, 1, 2**62)
        for epoch in range(5)
        for index in range(50)
    }
    assert len(firsts) == 3 * 5 * 50
    assert (
        generator(1, Stream.EXAMPLE, 1, 3).random() == generator(1, Stream.EXAMPLE, 1, 3).random()
    )
    # A generator by counter: these numbers are the same on every machine and in every year.
    known = np.random.Generator(np.random.Philox(key=[1, (2 << 40) + 3]))
    assert generator(1, Stream.EXAMPLE, 1, 3).random() == known.random()


def test_no_text_is_refused() -> None:
    with pytest.raises(UserError, match="no text to learn from"):
        Feed(Echo(), Loose.of([[]]), rows=1)
