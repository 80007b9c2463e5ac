"""A mixture: rows in shares, each corpus in its own order, and any batch in one look-up."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from data.test_datasets import Echo
from kinfolk.batch import IGNORE_INDEX
from kinfolk.data.chunks import Chunk, InMemoryDocuments, Rng
from kinfolk.data.datasets import MAX_ROUND, MixtureDataset, MixtureSchedule, PackedDataset
from kinfolk.objectives.nsp import NOT_NEXT, NSP
from kinfolk.rng import corpus_seed
from kinfolk.text.tokenizer import SpecialTokens


class Told(Echo):
    """An objective whose examples say which tokens they hold."""

    def example(self, chunk: Chunk, rng: Rng, /) -> Any:
        return int(chunk.ids[0]), float(rng.random())


def corpora(count: int = 2) -> list[InMemoryDocuments]:
    """Return corpora of 7, 8, 9 ... documents, the tokens of each from another hundred."""
    return [
        InMemoryDocuments.from_lists([[[100 * c + d] * (1 + d % 6)] for d in range(7 + c)])
        for c in range(1, count + 1)
    ]


def feeds(count: int = 2, rows: int = 1, seed: int = 0) -> list[PackedDataset]:
    return [
        PackedDataset(Told(), text, batch_size=rows, seed=corpus_seed(seed, number))
        for number, text in enumerate(corpora(count))
    ]


def rows_of(feed: Any, numbers: Sequence[int]) -> list[Any]:
    return [row for number in numbers for row in feed[number]]


@pytest.mark.parametrize(
    ("weights", "counts"),
    [
        ([0.7, 0.3], (7, 3)),
        ([1.0, 1.0, 1.0], (1, 1, 1)),
        ([1, 2], (1, 2)),
        ([0.1, 0.2, 0.3], (1, 2, 3)),
        ([35, 15], (7, 3)),
        ([0.125, 1e-3], (125, 1)),
        ([3.0], (1,)),
    ],
)
def test_a_round_is_as_short_as_its_shares_allow(weights: list[float], counts: Any) -> None:
    assert MixtureSchedule.from_weights(weights).counts == counts


def test_seven_and_three_take_turns() -> None:
    assert MixtureSchedule.from_weights([0.7, 0.3]).corpus_of_slot.tolist() == [
        0,
        0,
        1,
        0,
        0,
        1,
        0,
        0,
        0,
        1,
    ]


counts = st.lists(st.integers(1, 60), min_size=1, max_size=7)


@settings(max_examples=80)
@given(counts)
def test_every_prefix_holds_each_corpus_within_one_row_of_its_share(counts: list[int]) -> None:
    turns = MixtureSchedule(tuple(counts))
    done = [0] * len(counts)
    for position in range(2 * turns.round_size + 3):
        corpus, row = turns.locate(position)
        assert row == done[corpus]
        assert turns.slot_of(corpus, row) == position
        done[corpus] += 1
        for number, count in enumerate(counts):
            # In whole numbers: |done - share * rows| < 1.
            assert abs(done[number] * turns.round_size - count * (position + 1)) < turns.round_size


def test_odd_weights_are_rounded_to_a_round_of_bounded_length() -> None:
    turns = MixtureSchedule.from_weights([0.123456789, 1 / 3, 1e-12])
    assert turns.round_size <= MAX_ROUND + 3
    assert turns.counts[2] == 1
    share = 0.123456789 / (0.123456789 + 1 / 3)
    assert abs(turns.counts[0] / turns.round_size - share) < 1 / MAX_ROUND


def test_each_corpus_shows_its_own_rows_in_its_own_order() -> None:
    single = feeds(3)
    mixture = MixtureDataset(feeds(3), [0.5, 0.3, 0.2])
    seen = rows_of(mixture, range(400))
    for number, feed in enumerate(single, start=1):
        own = [row for row in seen if row[0][0] // 100 == number]
        assert len(own) == [200, 120, 80][number - 1]
        assert own == rows_of(feed, range(len(own)))  # several epochs of each


def test_any_batch_is_found_without_those_before_and_rows_come_any_number_at_once() -> None:
    single = rows_of(MixtureDataset(feeds(), [0.7, 0.3]), range(200))
    assert rows_of(MixtureDataset(feeds(rows=4), [0.7, 0.3]), range(50)) == single
    assert MixtureDataset(feeds(rows=4), [0.7, 0.3])[49] == single[-4:]


def test_workers_change_nothing() -> None:
    mixture = MixtureDataset(feeds(rows=3), [0.7, 0.3])
    loaders = [
        DataLoader(mixture, batch_size=None, sampler=range(5, 25), num_workers=workers)
        for workers in (0, 2)
    ]
    alone, shared = (list(loader) for loader in loaders)
    assert alone == shared
    firsts = [[row[0][0] for row in batch] for batch in alone]
    assert firsts == [[row[0][0] for row in mixture[number]] for number in range(5, 25)]


def test_corpora_draw_apart_and_the_first_as_if_alone() -> None:
    assert corpus_seed(5, 0) == 5
    seeds = {corpus_seed(seed, corpus) for seed in range(20) for corpus in range(20)}
    assert len(seeds) == 400 and all(0 <= seed < 2**63 for seed in seeds)
    draws = [{x for row in rows_of(f, range(30)) for _, x in row} for f in feeds()]
    assert not draws[0] & draws[1]


def test_the_batches_end_with_the_first_corpus_that_does() -> None:
    parts = feeds(rows=2)
    mixture = MixtureDataset(parts, [0.9, 0.1])
    seen = [row[0][0] // 100 for row in rows_of(mixture, range(len(mixture)))]
    short = len(parts[0].packing)
    assert seen.count(1) >= short and seen[:-2].count(1) < short
    assert seen.count(2) <= len(parts[1].packing)


def test_another_text_to_follow_comes_from_the_same_corpus() -> None:
    special_tokens = SpecialTokens(pad=0, unk=1, bos=2, eos=2, cls=3, sep=4, mask=5)
    way = NSP(special_tokens=special_tokens, vocab_size=400, max_length=16)
    texts = [
        InMemoryDocuments.from_lists([[[base + d] * 5] * 6 for d in range(9)])
        for base in (100, 200)
    ]
    mixture = MixtureDataset(
        [PackedDataset(way, text, batch_size=1, seed=s) for s, text in enumerate(texts)], [1, 1]
    )
    strangers = 0
    for number in range(60):
        corpus, row = mixture.schedule.locate(number)
        for pair in mixture.datasets[corpus].sequence(row):
            strangers += pair.sequence_label == NOT_NEXT
            text = np.where(pair.labels == IGNORE_INDEX, pair.input_ids, pair.labels)
            assert {i // 100 for i in text.tolist() if i >= 100} == {corpus + 1}
    assert strangers > 10
