"""The feed: batch number n in one look-up, the same for everybody who asks."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from torch.utils.data import DataLoader

from kinfolk.data import datasets
from kinfolk.data.chunks import (
    Chunk,
    ChunkIndex,
    InMemoryDocuments,
    Rng,
    TokenizedDocuments,
    split_documents,
)
from kinfolk.data.datasets import PackedDataset
from kinfolk.errors import UserError
from kinfolk.rng import Stream, generator


class Echo:
    """An objective that says which piece it was given, and what it drew."""

    row_lengths = (4,)

    def chunks(self, documents: TokenizedDocuments, /) -> ChunkIndex:
        return split_documents(documents, 4)

    def example(self, chunk: Chunk, rng: Rng, /) -> tuple[int, int, float]:
        return chunk.document, chunk.start, float(rng.random())

    def example_epoch(self, epoch: int, /) -> int:
        return epoch

    def collate(self, rows: Sequence[Sequence[Any]], /) -> Any:
        return [list(row) for row in rows]


def text(documents: int = 7) -> InMemoryDocuments:
    return InMemoryDocuments.from_lists(
        [[[number] * (1 + number % 6)] for number in range(documents)]
    )


def rows_of(feed: PackedDataset, numbers: Sequence[int]) -> list[Any]:
    return [row for number in numbers for row in feed[number]]


def test_the_corpus_is_packed_once_and_not_by_every_worker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    other, feed = (PackedDataset(Echo(), text(), batch_size=2) for _ in range(2))
    alone = [other[number] for number in range(4)]

    def pack_again(*_: object) -> None:
        raise AssertionError("packed again")

    monkeypatch.setattr(datasets, "pack", pack_again)
    loader = DataLoader(feed, batch_size=None, sampler=range(4), num_workers=2, collate_fn=list)  # type: ignore[arg-type]
    assert list(loader) == alone


@pytest.mark.parametrize("rows", [1, 2, 3, 50])
def test_an_epoch_shows_every_piece_once_whatever_the_batch(rows: int) -> None:
    feed = PackedDataset(Echo(), text(), batch_size=rows)
    epoch = len(feed.packing)
    seen = rows_of(feed, range(3 * -(-epoch // rows)))
    for start in range(0, len(seen) - epoch + 1, epoch):
        chunks = [(d, s) for row in seen[start : start + epoch] for d, s, _ in row]
        assert sorted(chunks) == sorted((p.document, p.start) for p in feed.chunks)


def test_rows_do_not_depend_on_how_many_come_at_once() -> None:
    single = rows_of(PackedDataset(Echo(), text(), batch_size=1), range(24))
    assert rows_of(PackedDataset(Echo(), text(), batch_size=4), range(6)) == single


def test_any_batch_is_found_without_those_before() -> None:
    feed, far = (
        PackedDataset(Echo(), text(), batch_size=2),
        PackedDataset(Echo(), text(), batch_size=2),
    )
    assert [feed[n] for n in range(100)][99] == far[99]


def test_an_epoch_has_its_own_order_and_its_own_draws() -> None:
    feed = PackedDataset(Echo(), text(20), batch_size=1)
    epoch = len(feed.packing)
    first, second = rows_of(feed, range(epoch)), rows_of(feed, range(epoch, 2 * epoch))
    places = [[[(d, s) for d, s, _ in row] for row in rows] for rows in (first, second)]
    assert places[0] != places[1]
    draws = [{x for row in rows for *_, x in row} for rows in (first, second)]
    assert len(draws[0]) == len(feed.chunks) and not draws[0] & draws[1]


def test_another_seed_is_another_order_and_other_draws() -> None:
    one, other = (
        rows_of(PackedDataset(Echo(), text(20), batch_size=1, seed=s), range(10)) for s in (0, 1)
    )
    assert [r[0][:2] for r in one] != [r[0][:2] for r in other]
    assert not {r[0][2] for r in one} & {r[0][2] for r in other}


def test_an_unshuffled_feed_stops_after_the_last_row() -> None:
    feed = PackedDataset(Echo(), text(), batch_size=3, shuffled=False)
    sizes = [len(feed[number]) for number in range(len(feed))]
    assert sum(sizes) == len(feed.packing) and set(sizes[:-1]) <= {3} and 1 <= sizes[-1] <= 3


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
    with pytest.raises(UserError, match="no tokens to train on"):
        PackedDataset(Echo(), InMemoryDocuments.from_lists([[]]), batch_size=1)


def test_an_objective_that_repeats_an_epoch_repeats_its_random_numbers_in_another_order() -> None:
    class Repeated(Echo):
        def example_epoch(self, epoch: int, /) -> int:
            return 0

    def examples(objective: Echo) -> list[list[Any]]:
        feed = PackedDataset(objective, text(), batch_size=1)
        epochs = [range(n * len(feed), (n + 1) * len(feed)) for n in range(3)]
        return [[e for row in rows_of(feed, numbers) for e in row] for numbers in epochs]

    first, *others = examples(Repeated())
    assert first == examples(Echo())[0]
    for other in others:
        assert sorted(other) == sorted(first) and other != first
    assert sorted(examples(Echo())[1]) != sorted(first)
