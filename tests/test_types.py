"""What travels between the parts: it moves as a whole, keeps its shapes and adds up."""

import copy
from dataclasses import replace

import pytest
import torch

from kinfolk.errors import UserError
from kinfolk.sight import Sight
from kinfolk.state import Cache
from kinfolk.types import IGNORED, Batch, Inputs, Labels, Loss, State, each

IDS = torch.arange(6).view(2, 3)


def inputs(**more: object) -> Inputs:
    document = torch.zeros_like(IDS)
    given = {"ids": IDS, "sight": Sight.causal(document), "places": IDS} | more
    return Inputs(**given)  # type: ignore[arg-type]


def test_every_tensor_of_a_batch_moves() -> None:
    source = inputs(segments=torch.zeros_like(IDS))
    batch = Batch(inputs(source=source), Labels(IDS.flatten(), IDS.flatten()), {"tokens": 6})
    moved = batch.to("meta")
    found = []
    each(moved, lambda t: found.append(t.device.type) or t)
    # ids, places, document, birth, clock of both streams, segments of one, labels twice
    assert found == ["meta"] * 13
    assert moved.counts == {"tokens": 6}


def test_a_change_leaves_the_old_tree_as_it_was() -> None:
    old = inputs()
    new = each(old, lambda t: t + 1)
    assert torch.equal(old.ids, IDS) and torch.equal(new.ids, IDS + 1)
    assert torch.equal(new.sight.clock, old.sight.clock + 1)


@pytest.mark.parametrize("field", ["places", "segments"])
def test_shapes_are_compared_at_the_door(field: str) -> None:
    with pytest.raises(UserError, match=rf"{field} has shape \(2, 2\), ids have \(2, 3\)"):
        inputs(**{field: torch.zeros(2, 2, dtype=torch.long)})


def test_a_sight_of_another_shape_is_refused() -> None:
    with pytest.raises(UserError, match=r"sight has shape \(2, 4\)"):
        inputs(sight=Sight.full(torch.zeros(2, 4, dtype=torch.long)))


def test_whole_texts_are_wrapped_plainly() -> None:
    wrapped = Inputs.of(IDS, causal=True)
    assert wrapped.sight.plain == "causal"
    assert wrapped.places.tolist() == [[0, 1, 2], [0, 1, 2]]
    assert torch.equal(wrapped.sight.table()[0], torch.ones(3, 3).tril() > 0)
    assert Inputs.of(IDS, causal=False).sight.plain == "full"


def test_labels_pick_the_states_that_predict() -> None:
    hidden = torch.arange(12.0).view(2, 3, 2)
    labels = Labels(torch.tensor([7, 8, IGNORED]), torch.tensor([4, 1, 0]))
    assert labels.select(hidden).tolist() == [[8.0, 9.0], [2.0, 3.0], [0.0, 1.0]]
    assert Labels(torch.zeros(6)).select(hidden).tolist() == hidden.view(6, 2).tolist()


def test_a_loss_divides_each_part_by_its_own_count() -> None:
    parts = {"tokens": torch.tensor(12.0), "pairs": torch.tensor(3.0)}
    counts = {"tokens": 6, "pairs": 2}
    assert Loss(parts).mean(counts).item() == 12 / 6 + 3 / 2
    assert Loss(parts, {"pairs": 10.0}).mean(counts).item() == 12 / 6 + 10 * 3 / 2


def test_nothing_predicted_is_no_loss() -> None:
    assert Loss({"tokens": torch.tensor(0.0)}).mean({"tokens": 0}).item() == 0.0


def test_a_cache_gives_back_all_it_was_given_in_order() -> None:
    draws = torch.randn(2, 3, 5, 4)
    cache = Cache(8)
    cache.extend(draws[:, :, :2], -draws[:, :, :2])
    keys, values = cache.extend(draws[:, :, 2:], -draws[:, :, 2:])
    assert torch.equal(keys, draws) and torch.equal(values, -draws)
    cache.reorder(torch.tensor([1, 1]))
    keys, _ = cache.extend(draws[:, :, :1], draws[:, :, :1])
    assert torch.equal(keys[:, :, :5], draws[[1, 1]])


def test_a_state_remembers_who_was_born_when() -> None:
    state = State(4)
    state.extend(Sight.causal(torch.tensor([[0, 0]])))
    new = Sight.causal(torch.tensor([[0]]), start=2)
    seen = state.extend(new)
    assert seen.document.tolist() == [[0, 0, 0]] and seen.birth.tolist() == [[0, 1, 2]]
    assert new.table(seen).tolist() == [[[True, True, True]]]
    with pytest.raises(UserError, match="5 tokens do not fit a state of 4"):
        state.extend(Sight.causal(torch.tensor([[0, 0]]), start=3))


def test_a_state_follows_its_rows() -> None:
    state = State(2)
    state.extend(Sight.full(torch.tensor([[0], [1]])))
    state.cache(0).extend(torch.tensor([[[[1.0]]], [[[2.0]]]]), torch.zeros(2, 1, 1, 1))
    state.source = torch.tensor([[1.0], [2.0]])
    state.crossed[0] = (torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0]))
    state.reorder(torch.tensor([1, 0]))
    seen = state.extend(Sight.full(torch.tensor([[7], [7]])))
    assert seen.document.tolist() == [[1, 7], [0, 7]]
    assert state.source.tolist() == [[2.0], [1.0]]
    assert state.crossed[0][0].tolist() == [2.0, 1.0]
    assert state.crossed[0][1].tolist() == [4.0, 3.0]
    keys, _ = state.cache(0).extend(torch.zeros(2, 1, 1, 1), torch.zeros(2, 1, 1, 1))
    assert keys[:, 0, 0, 0].tolist() == [2.0, 1.0]


def test_inputs_see_what_their_state_has_seen() -> None:
    query, key = torch.randn(1, 1, 3, 2), torch.randn(1, 1, 3, 2)
    ids = torch.zeros(1, 3, dtype=torch.long)
    whole = Inputs.of(ids, causal=True).visible()(query, key, key, scale=None, dropout=0.0)
    state, parts = State(3), []
    for i in range(3):
        one = Inputs(
            ids=ids[:, :1],
            sight=Sight.causal(ids[:, :1], start=i),
            places=ids[:, :1] + i,
            state=state,
        )
        one = one.append_to_cache()
        visible, past = one.visible(), key[:, :, : i + 1]
        parts.append(visible(query[:, :, i : i + 1], past, past, scale=None, dropout=0.0))
    torch.testing.assert_close(torch.cat(parts, 2), whole)


def test_asking_what_is_seen_changes_no_cache() -> None:
    state, ids = State(9), torch.zeros(1, 3, dtype=torch.long)
    for step in range(2):
        inputs = replace(Inputs.of(ids, causal=True), state=state).append_to_cache()
        for _ in range(2):
            inputs.visible()
            seen = inputs.seen()
            assert state.filled == seen.document.shape[1] == 3 * (step + 1)
            assert inputs.seen() is seen
    with pytest.raises(AssertionError):
        inputs.append_to_cache()
    with pytest.raises(AssertionError, match="appended to its cache first"):
        replace(inputs, key_mask=None).visible()


def test_inputs_can_be_copied() -> None:
    assert torch.equal(copy.deepcopy(inputs()).ids, IDS)
