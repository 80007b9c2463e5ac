"""Lanes go on from batch to batch, and any batch is found in one look-up."""

import pickle
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from torch.utils.data import DataLoader

from kinfolk.data.chunks import (
    Chunk,
    ChunkIndex,
    InMemoryDocuments,
    IntArray,
    Rng,
    TokenizedDocuments,
    split_documents,
)
from kinfolk.data.datasets import (
    ContiguousDataset,
    PackedDataset,
    evaluation_dataset,
)
from kinfolk.data.examples import Example
from kinfolk.errors import UserError

LENGTH = 4


class Echo:
    """An objective that says which piece it was given: document, start, stop, and its number."""

    row_lengths = (LENGTH,)
    recurrent = True

    def segment_lengths(self, total: int, rng: Rng) -> IntArray:
        return np.full(-(-total // LENGTH), LENGTH)

    def chunks(self, documents: TokenizedDocuments, /) -> ChunkIndex:
        return split_documents(documents, LENGTH)

    def example(self, chunk: Chunk, rng: Rng, /) -> Example:
        return Example(input_ids=np.full(chunk.stop - chunk.start, chunk.document))

    def collate(self, rows: Sequence[Sequence[Example]], /) -> Any:
        return [[self.read(example) for example in row] for row in rows]

    def read(self, example: Example) -> tuple[int, int, int, int]:
        assert example.document_id is not None and example.position_ids is not None
        start, size = int(example.position_ids[0]), len(example.input_ids)
        assert example.position_ids.tolist() == list(range(start, start + size))
        assert example.order is example.position_ids
        return int(example.input_ids[0]), start, start + size, example.document_id


SIZES = (3, 9, 0, 1, 14, 2, 5)


def text(sizes: Sequence[int] = SIZES) -> InMemoryDocuments:
    return InMemoryDocuments.from_lists(
        [[[number] * size] if size else [] for number, size in enumerate(sizes)]
    )


def slots(row: Sequence[tuple[int, int, int, int]]) -> list[tuple[int, int]]:
    """Spell out the document and the place of every slot."""
    return [(document, place) for document, start, stop, _ in row for place in range(start, stop)]


def lane(feed: ContiguousDataset, number: int, epochs: int = 1) -> list[tuple[int, int]]:
    """Read one lane through whole epochs."""
    part, row = divmod(number, feed.batch_size)
    rows = [feed[n][row] for n in range(part, epochs * len(feed), feed.parts)]
    return [slot for row in rows for slot in slots(row)]


@pytest.mark.parametrize(("rows", "parts"), [(1, 1), (2, 1), (3, 2), (1, 4), (50, 1)])
def test_an_epoch_shows_every_token_and_every_end_once(rows: int, parts: int) -> None:
    feed = ContiguousDataset(Echo(), text(), batch_size=rows, parts=parts)
    for epoch in range(3):
        batches = [feed[epoch * len(feed) + n] for n in range(len(feed))]
        seen = Counter(slot for rows in batches for row in rows for slot in slots(row))
        expected = {(d, place) for d, size in enumerate(SIZES) if size for place in range(size + 1)}
        assert seen == Counter(expected)


@pytest.mark.parametrize(("rows", "parts"), [(1, 1), (2, 1), (3, 2)])
def test_a_row_goes_on_where_the_row_before_ended(rows: int, parts: int) -> None:
    feed = ContiguousDataset(Echo(), text(), batch_size=rows, parts=parts)
    order = [d for d in feed.epoch(0).order.tolist() if SIZES[d]]
    line = [(d, place) for d in order for place in range(SIZES[d] + 1)]
    assert [slot for n in range(rows * parts) for slot in lane(feed, n)] == line


def test_lanes_are_of_one_length_and_only_the_last_rows_have_room_left() -> None:
    feed = ContiguousDataset(Echo(), text(), batch_size=3)
    lengths = [len(lane(feed, n)) for n in range(3)]
    assert lengths == [14, 14, 12]  # 40 slots: 34 tokens and 6 ends
    for number in range(len(feed) - 1):
        assert [len(slots(row)) for row in feed[number]] == [LENGTH] * 3


def test_lanes_do_not_depend_on_the_parts_of_a_step() -> None:
    whole, parted = (
        ContiguousDataset(Echo(), text(), batch_size=4),
        ContiguousDataset(Echo(), text(), batch_size=2, parts=2),
    )
    assert len(parted) == 2 * len(whole)
    for number in range(2 * len(whole)):
        assert whole[number] == parted[2 * number] + parted[2 * number + 1]


def test_documents_keep_their_number_and_no_two_share_one() -> None:
    feed = ContiguousDataset(Echo(), text(), batch_size=2)
    names: dict[int, set[tuple[int, int]]] = {}
    for number in range(4 * len(feed)):
        for row in feed[number]:
            for document, _, _, name in row:
                names.setdefault(name, set()).add((number // len(feed), document))
    assert all(len(meant) == 1 for meant in names.values())
    assert len(names) == 4 * np.count_nonzero(SIZES)


def test_any_batch_is_found_without_those_before_and_by_any_worker() -> None:
    feed, numbers = ContiguousDataset(Echo(), text(), batch_size=2, seed=3), range(5, 30)
    alone = [ContiguousDataset(Echo(), text(), batch_size=2, seed=3)[n] for n in numbers]
    assert [feed[n] for n in reversed(numbers)] == alone[::-1]
    loader = DataLoader(feed, batch_size=None, sampler=numbers, num_workers=2, collate_fn=list)  # type: ignore[arg-type]
    assert list(loader) == alone
    assert [pickle.loads(pickle.dumps(feed))[n] for n in numbers] == alone


def test_an_epoch_has_its_own_order_and_so_has_a_seed() -> None:
    one, other = (ContiguousDataset(Echo(), text(), batch_size=1, seed=seed) for seed in (0, 1))
    orders = {tuple(one.epoch(n).order.tolist()) for n in range(5)}
    assert len(orders) == 5
    assert one.epoch(0).order.tolist() != other.epoch(0).order.tolist()


@pytest.mark.parametrize("rows", [1, 2, 3, 50])
def test_an_exam_has_whole_documents_in_its_lanes(rows: int) -> None:
    feed = evaluation_dataset(Echo(), text(), rows=rows)
    assert isinstance(feed, ContiguousDataset) and feed.batch_size == min(rows, 6)
    read = [lane(feed, n) for n in range(feed.batch_size)]
    assert all(lane for lane in read)
    for document, size in enumerate(SIZES):
        where = [n for n, slots in enumerate(read) for d, _ in slots if d == document]
        assert len(where) == (size + 1 if size else 0) and len(set(where)) <= 1
        assert [p for slots in read for d, p in slots if d == document] == list(range(len(where)))
    lengths = [len(slots) for slots in read]
    assert max(lengths) - min(lengths) <= 15


def test_an_exam_of_an_objective_that_does_not_join_is_packed() -> None:
    class Packs(Echo):
        recurrent = False

    assert isinstance(evaluation_dataset(Packs(), text(), rows=2), PackedDataset)


def test_no_text_is_refused() -> None:
    with pytest.raises(UserError, match="no tokens to train on"):
        ContiguousDataset(Echo(), InMemoryDocuments.from_lists([[]]), batch_size=1)
