"""What travels between the parts: it moves as a whole, keeps its shapes and adds up."""

import copy
from dataclasses import replace

import pytest
import torch

from kinfolk.attention_mask import AttentionMask
from kinfolk.batch import IGNORE_INDEX, Batch, Inputs, KVCache, Loss, TokenTargets, tree_map
from kinfolk.errors import UserError
from kinfolk.kv_cache import LayerKVCache
from kinfolk.nn.attention import attention_backend

IDS = torch.arange(6).view(2, 3)


def inputs(**more: object) -> Inputs:
    document = torch.zeros_like(IDS)
    given = {
        "input_ids": IDS,
        "attention_mask": AttentionMask.causal(document),
        "position_ids": IDS,
    } | more
    return Inputs(**given)  # type: ignore[arg-type]


def test_every_tensor_of_a_batch_moves() -> None:
    source = inputs(token_type_ids=torch.zeros_like(IDS))
    batch = Batch(
        inputs(encoder_inputs=source), TokenTargets(IDS.flatten(), IDS.flatten()), {"tokens": 6}
    )
    moved = batch.to("meta")
    found = []
    tree_map(moved, lambda t: found.append(t.device.type) or t)
    # input_ids, position_ids, document_ids, key_order and query_order of both streams,
    # token_type_ids of one, labels and positions
    assert found == ["meta"] * 13
    assert moved.counts == {"tokens": 6}


def test_a_change_leaves_the_old_tree_as_it_was() -> None:
    old = inputs()
    new = tree_map(old, lambda t: t + 1)
    assert torch.equal(old.input_ids, IDS) and torch.equal(new.input_ids, IDS + 1)
    assert torch.equal(new.attention_mask.query_order, old.attention_mask.query_order + 1)


@pytest.mark.parametrize("field", ["position_ids", "token_type_ids"])
def test_shapes_are_compared_at_the_door(field: str) -> None:
    with pytest.raises(UserError, match=rf"{field} has shape \(2, 2\), input_ids have \(2, 3\)"):
        inputs(**{field: torch.zeros(2, 2, dtype=torch.long)})


def test_a_sight_of_another_shape_is_refused() -> None:
    with pytest.raises(UserError, match=r"the attention mask has shape \(2, 4\)"):
        inputs(attention_mask=AttentionMask.bidirectional(torch.zeros(2, 4, dtype=torch.long)))


def test_whole_texts_are_wrapped_plainly() -> None:
    wrapped = Inputs.from_ids(IDS, causal=True)
    assert wrapped.attention_mask.unpacked == "causal"
    assert wrapped.position_ids.tolist() == [[0, 1, 2], [0, 1, 2]]
    assert torch.equal(wrapped.attention_mask.dense()[0], torch.ones(3, 3).tril() > 0)
    assert Inputs.from_ids(IDS, causal=False).attention_mask.unpacked == "bidirectional"


def test_labels_pick_the_states_that_predict() -> None:
    hidden = torch.arange(12.0).view(2, 3, 2)
    labels = TokenTargets(torch.tensor([7, 8, IGNORE_INDEX]), torch.tensor([4, 1, 0]))
    assert labels.gather(hidden).tolist() == [[8.0, 9.0], [2.0, 3.0], [0.0, 1.0]]
    assert TokenTargets(torch.zeros(6)).gather(hidden).tolist() == hidden.view(6, 2).tolist()


def test_a_loss_divides_each_part_by_its_own_count() -> None:
    parts = {"tokens": torch.tensor(12.0), "pairs": torch.tensor(3.0)}
    counts = {"tokens": 6, "pairs": 2}
    assert Loss(parts).mean(counts).item() == 12 / 6 + 3 / 2
    assert Loss(parts, {"pairs": 10.0}).mean(counts).item() == 12 / 6 + 10 * 3 / 2


def test_the_parts_of_a_sum_keep_their_order() -> None:
    one = Loss({"pairs": torch.tensor(1.0), "label_smoothing": torch.tensor(2.0)})
    total = Loss({}) + one + one
    assert [(name, part.item()) for name, part in total.sums.items()] == [
        ("pairs", 2.0),
        ("label_smoothing", 4.0),
    ]


def test_nothing_predicted_is_no_loss() -> None:
    assert Loss({"tokens": torch.tensor(0.0)}).mean({"tokens": 0}).item() == 0.0


def test_a_cache_gives_back_all_it_was_given_in_order() -> None:
    draws = torch.randn(2, 3, 5, 4)
    cache = LayerKVCache(8)
    cache.update(draws[:, :, :2], -draws[:, :, :2])
    keys, values = cache.update(draws[:, :, 2:], -draws[:, :, 2:])
    assert torch.equal(keys, draws) and torch.equal(values, -draws)
    cache.reorder(torch.tensor([1, 1]))
    keys, _ = cache.update(draws[:, :, :1], draws[:, :, :1])
    assert torch.equal(keys[:, :, :5], draws[[1, 1]])


def test_a_state_remembers_who_was_born_when() -> None:
    state = KVCache(4)
    state.append_mask(AttentionMask.causal(torch.tensor([[0, 0]])))
    new = AttentionMask.causal(torch.tensor([[0]]), start=2)
    seen = state.append_mask(new)
    assert seen.document_ids.tolist() == [[0, 0, 0]] and seen.key_order.tolist() == [[0, 1, 2]]
    assert new.dense(seen).tolist() == [[[True, True, True]]]
    with pytest.raises(UserError, match="5 tokens exceed the cache's max_length=4"):
        state.append_mask(AttentionMask.causal(torch.tensor([[0, 0]]), start=3))


def test_a_state_follows_its_rows() -> None:
    state = KVCache(2)
    state.append_mask(AttentionMask.bidirectional(torch.tensor([[0], [1]])))
    state.layer(0).update(torch.tensor([[[[1.0]]], [[[2.0]]]]), torch.zeros(2, 1, 1, 1))
    state.encoder_output = torch.tensor([[1.0], [2.0]])
    state.cross_kv[0] = (torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0]))
    state.reorder(torch.tensor([1, 0]))
    seen = state.append_mask(AttentionMask.bidirectional(torch.tensor([[7], [7]])))
    assert seen.document_ids.tolist() == [[1, 7], [0, 7]]
    assert state.encoder_output.tolist() == [[2.0], [1.0]]
    assert state.cross_kv[0][0].tolist() == [2.0, 1.0]
    assert state.cross_kv[0][1].tolist() == [4.0, 3.0]
    keys, _ = state.layer(0).update(torch.zeros(2, 1, 1, 1), torch.zeros(2, 1, 1, 1))
    assert keys[:, 0, 0, 0].tolist() == [2.0, 1.0]


def test_inputs_see_what_their_state_has_seen() -> None:
    query, key = torch.randn(1, 1, 3, 2), torch.randn(1, 1, 3, 2)
    ids = torch.zeros(1, 3, dtype=torch.long)
    whole = attention_backend(Inputs.from_ids(ids, causal=True))(
        query, key, key, scale=None, dropout=0.0
    )
    state, parts = KVCache(3), []
    for i in range(3):
        one = Inputs(
            input_ids=ids[:, :1],
            attention_mask=AttentionMask.causal(ids[:, :1], start=i),
            position_ids=ids[:, :1] + i,
            cache=state,
        )
        one = one.append_to_cache()
        visible, past = attention_backend(one), key[:, :, : i + 1]
        parts.append(visible(query[:, :, i : i + 1], past, past, scale=None, dropout=0.0))
    torch.testing.assert_close(torch.cat(parts, 2), whole)


def test_asking_what_is_seen_changes_no_cache() -> None:
    state, ids = KVCache(9), torch.zeros(1, 3, dtype=torch.long)
    for step in range(2):
        inputs = replace(Inputs.from_ids(ids, causal=True), cache=state).append_to_cache()
        for _ in range(2):
            attention_backend(inputs)
            seen = inputs.full_key_mask()
            assert state.length == seen.document_ids.shape[1] == 3 * (step + 1)
            assert inputs.full_key_mask() is seen
    with pytest.raises(AssertionError):
        inputs.append_to_cache()
    with pytest.raises(AssertionError, match="append_to_cache"):
        attention_backend(replace(inputs, key_mask=None))


def test_inputs_can_be_copied() -> None:
    assert torch.equal(copy.deepcopy(inputs()).input_ids, IDS)
