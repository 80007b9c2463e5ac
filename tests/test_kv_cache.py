"""What a model carries to its next call: slots in order, rows in any order, and all of it moves."""

import pytest
import torch
from torch import Tensor

from kinfolk.attention_mask import EMPTY_SLOT_ID, PADDING_ID, AttentionMask
from kinfolk.errors import UserError
from kinfolk.kv_cache import KVCache, LayerKVCache


def keys(rows: int, length: int, start: int = 0) -> Tensor:
    """Number the slots of each row: row 2, slot 5 holds 205."""
    slots = torch.arange(start, start + length)
    return (100 * torch.arange(rows)[:, None] + slots)[:, None, :, None].double()


def filled(rows: int = 3, length: int = 4, capacity: int = 8) -> KVCache:
    """Return a state with two layers, a source, and something carried, all numbered by row."""
    state = KVCache(capacity)
    document = torch.zeros(rows, length, dtype=torch.long)
    document[-1, 0] = PADDING_ID
    time = torch.arange(length).expand(rows, -1)
    state.append_mask(AttentionMask(document, time, time))
    for layer in range(2):
        state.layer(layer).update(keys(rows, length), -keys(rows, length))
        state.cross_kv[layer] = keys(rows, 2), -keys(rows, 2)
    state.extra[7] = torch.arange(rows)[:, None]
    state.encoder_output = keys(rows, 2)[:, 0]
    return state


def numbers(cache: LayerKVCache) -> list[list[int]]:
    assert cache.keys is not None and cache.values is not None
    assert torch.equal(cache.keys, -cache.values)
    return cache.keys[:, 0, : cache.length, 0].long().tolist()


@pytest.mark.parametrize("rows", [[2, 0, 1], [1, 1, 1], [2], [0, 2], [1, 0, 2, 2, 1], [0, 1, 2]])
def test_everything_follows_its_row(rows: list[int]) -> None:
    state = filled()
    state.reorder(torch.tensor(rows))
    expected = [[100 * row + slot for slot in range(4)] for row in rows]
    assert all(numbers(state.layer(layer)) == expected for layer in range(2))
    for layer in range(2):
        kept, values = state.cross_kv[layer]
        assert kept[:, 0, 0, 0].tolist() == [100 * row for row in rows]
        assert torch.equal(kept, -values)
    assert state.extra[7][:, 0].tolist() == rows
    assert state.encoder_output is not None and state.encoder_output[:, 0, 0].tolist() == [
        100 * r for r in rows
    ]
    # What comes next stands behind the row it belongs to, and the row is still its own text.
    more = torch.zeros(len(rows), 1, dtype=torch.long)
    seen = state.append_mask(AttentionMask(more, more + 4, more + 4))
    assert seen.document_ids[:, 0].tolist() == [PADDING_ID if row == 2 else 0 for row in rows]
    assert seen.key_order.tolist() == [[0, 1, 2, 3, 4]] * len(rows)
    state.layer(0).update(keys(len(rows), 1, 4), -keys(len(rows), 1, 4))
    assert [line[-1] for line in numbers(state.layer(0))] == [100 * n + 4 for n in range(len(rows))]
    assert [line[:-1] for line in numbers(state.layer(0))] == expected


def test_rows_that_cross_twice_are_where_they_were() -> None:
    state = filled()
    for _ in range(2):
        state.reorder(torch.tensor([1, 0, 2]))
    assert numbers(state.layer(0)) == numbers(filled().layer(0))


def test_an_empty_state_can_be_put_in_order_too() -> None:
    state = KVCache(3)
    state.layer(0)
    state.reorder(torch.tensor([1, 0]))
    assert state.length == 0 and state.layer(0).keys is None


@pytest.mark.parametrize("last", [1, 3, 4, 9])
def test_a_memory_keeps_the_last_and_goes_on_behind_them(last: int) -> None:
    state = filled()
    state.keep_last(last)
    kept = list(range(max(4 - last, 0), 4))
    assert state.length == len(kept)
    assert numbers(state.layer(1)) == [[100 * row + slot for slot in kept] for row in range(3)]
    more = torch.zeros(3, 1, dtype=torch.long)
    seen = state.append_mask(AttentionMask(more, more + 4, more + 4))
    assert seen.key_order.tolist() == [[*kept, 4]] * 3
    assert seen.document_ids[2].tolist() == [*(0 if slot else PADDING_ID for slot in kept), 0]
    found, _ = state.layer(1).update(keys(3, 1, 4), -keys(3, 1, 4))
    assert found[1, 0, :, 0].tolist() == [*(100 + slot for slot in kept), 104]


def test_what_only_asked_is_forgotten() -> None:
    state = filled()
    state.drop_last(1)
    assert state.length == 3 and numbers(state.layer(0))[1] == [100, 101, 102]
    more = torch.zeros(3, 2, dtype=torch.long)
    time = torch.tensor([3, 4]).expand(3, -1)
    assert (
        state.append_mask(AttentionMask(more, time, time)).key_order.tolist()
        == [[0, 1, 2, 3, 4]] * 3
    )
    found, _ = state.layer(0).update(keys(3, 2, 50), -keys(3, 2, 50))
    assert found[1, 0, :, 0].tolist() == [100, 101, 102, 150, 151]


def test_a_state_that_is_full_says_so() -> None:
    state = filled(capacity=5)
    two = torch.zeros(3, 2, dtype=torch.long)
    with pytest.raises(UserError, match="6 tokens exceed the cache's max_length=5"):
        state.append_mask(AttentionMask(two, two, two))
    assert state.length == 4


def test_plain_rows_stay_plain_until_one_is_not() -> None:
    ids = torch.zeros(2, 3, dtype=torch.long)
    state = KVCache(9)
    assert state.append_mask(AttentionMask.causal(ids, unpacked=True)).unpacked == "causal"
    one = AttentionMask.causal(ids[:, :1], start=3, unpacked=True)
    assert state.append_mask(one).unpacked == "causal"
    assert state.append_mask(AttentionMask.causal(ids[:, :1], start=4)).unpacked is None
    assert (
        state.append_mask(AttentionMask.causal(ids[:, :1], start=5, unpacked=True)).unpacked is None
    )


def test_a_pinned_state_hands_out_every_slot_and_nobody_sees_the_empty_ones() -> None:
    state = filled(capacity=7)
    state.drop_last(1)  # a slot that was written, and is empty again
    state.make_static()
    assert state.write_index is not None
    for token in range(2):
        new = torch.zeros(3, 1, dtype=torch.long)
        query = AttentionMask(new, new + 3 + token, new + 3 + token)
        seen = state.append_mask(query)
        found, values = state.layer(0).update(keys(3, 1, 60 + token), -keys(3, 1, 60 + token))
        assert seen.document_ids.shape == (3, 7) and found.shape == (3, 1, 7, 1)
        assert torch.equal(found, -values)
        table = query.dense(seen)[:, 0]
        assert table.tolist() == [
            [n < 4 + token and (r < 2 or n > 0) for n in range(7)] for r in range(3)
        ]
        assert found[1, 0, : 4 + token, 0].tolist() == [100, 101, 102, 160, 161][: 4 + token]
        assert seen.document_ids[:, 4 + token :].unique().tolist() == [EMPTY_SLOT_ID]
        assert int(state.last_index()) == 3 + token
        state.write_index += 1
