"""What a captured step needs to know before there is a device."""

from dataclasses import replace
from typing import Any, Literal

import pytest
import torch

from kinfolk.attention_mask import AttentionMask
from kinfolk.batch import Batch, Inputs, Loss, SegmentMemory, TokenTargets, tree_map
from kinfolk.tensor_tree import lay_out, tensor_leaves, write_buffer
from kinfolk.training.capture import (
    MAX_GRAPHS,
    GraphedForwardBackward,
    batch_key,
    copied_tensors,
    graph_key,
    loss_scales,
    scaled_gradients,
    with_own_storage,
)
from kinfolk.training.config import TrainConfig
from support.contracts import equal


def batch(rows: int = 2, at: bool = True) -> Batch[TokenTargets]:
    ids = torch.zeros(rows, 4, dtype=torch.long)
    inputs = Inputs(input_ids=ids, attention_mask=AttentionMask.causal(ids), position_ids=ids)
    return Batch(inputs, TokenTargets(ids[0], ids[0] if at else None), {"tokens": rows})


def test_one_graph_serves_batches_of_one_shape() -> None:
    one, other = batch(), batch()
    assert graph_key(one.inputs) == graph_key(other.inputs)
    assert graph_key(one.inputs) != graph_key(batch(rows=3).inputs)
    assert graph_key(one.targets) != graph_key(batch(at=False).targets)
    wider = replace(one.inputs, input_ids=one.inputs.input_ids.int())
    assert graph_key(one.inputs) != graph_key(wider)
    plain = replace(
        one.inputs, attention_mask=AttentionMask.causal(one.inputs.input_ids, unpacked=True)
    )
    assert graph_key(one.inputs) != graph_key(plain), "another kernel reads it"


def test_shapes_beyond_the_limit_are_not_recorded() -> None:
    """Each graph keeps gradients of the whole network: their number is bounded."""
    captured = GraphedForwardBackward(lambda batch: Loss({}), [])
    recorded: Any = object()
    for rows in range(1, MAX_GRAPHS + 1):
        assert captured.accepts(batch(rows))
        captured.graphs[batch_key(batch(rows))] = recorded
    assert captured.accepts(batch(1))
    assert not captured.accepts(batch(MAX_GRAPHS + 1))


def test_of_varying_lengths_those_of_the_recipe_are_recorded() -> None:
    """Whatever was recorded before: a resumed run replays what the run before it replayed."""
    captured = GraphedForwardBackward(lambda batch: Loss({}), [], range(4, 40))
    recorded: Any = object()
    assert captured.accepts(batch())  # 4 tokens
    for number in range(MAX_GRAPHS):
        captured.graphs[number] = recorded
    assert captured.accepts(batch())
    captured = GraphedForwardBackward(lambda batch: Loss({}), [], range(5, 40))
    assert not captured.accepts(batch())


def test_of_static_batches_all_are_recorded_and_no_others() -> None:
    """Whatever was recorded before, and however many: their gradients take memory once."""
    one, other, recorded = batch(2), batch(3), object()
    captured = GraphedForwardBackward(lambda batch: Loss({}), [], static=[one])
    captured.graphs = dict.fromkeys(range(MAX_GRAPHS), recorded)  # type: ignore[arg-type]
    assert captured.accepts(one) and not captured.accepts(other)
    first, second = (captured.copy_gradients([torch.ones(2)])[0] for _ in range(2))
    assert first is second


def test_graphs_of_varying_lengths_write_the_same_gradients() -> None:
    """Their memory does not grow with the number of lengths."""
    captured = GraphedForwardBackward(lambda batch: Loss({}), [], range(4, 40))
    one = captured.copy_gradients([torch.ones(2), None])
    other = captured.copy_gradients([torch.full((2,), 3.0), torch.ones(3)])
    assert one[0] is other[0] and one[1] is None and other[1] is not None
    assert one[0] is not None and one[0].tolist() == [3, 3]
    alone, own = GraphedForwardBackward(lambda batch: Loss({}), []), torch.ones(2)
    assert alone.copy_gradients([own])[0] is own, "one shape needs no copy"


@pytest.mark.parametrize(
    ("setting", "small", "large"),
    [("auto", True, False), ("yes", True, True), ("no", False, False)],
)
def test_small_steps_are_replayed_unless_told_otherwise(
    setting: Literal["auto", "yes", "no"], small: bool, large: bool
) -> None:
    train = TrainConfig(cuda_graph=setting, batch_size=32)
    assert train.replays(110_000_000, 512) == small  # BERT base
    assert train.replays(124_000_000, 1024) == large  # GPT-2
    parts = TrainConfig(cuda_graph=setting, batch_size=32, gradient_accumulation=4)
    assert parts.replays(124_000_000, 1024) == small, "micro-batches are what is replayed"


def test_every_tensor_of_a_batch_is_copied() -> None:
    found = list(tensor_leaves(batch()))
    assert len(found) == 7  # ids, three of the sight, places, and two of the labels
    assert len(list(tensor_leaves(batch(at=False)))) == 6


def in_one_buffer(one: Batch[TokenTargets]) -> Batch[TokenTargets]:
    layout, tensors, size = lay_out(one)
    buffer = torch.empty(size, dtype=torch.uint8)
    write_buffer(tensors, buffer)
    return Batch.in_buffer(layout, buffer, one.counts)


def test_of_a_batch_in_one_buffer_the_buffer_is_copied_and_its_memory() -> None:
    ids = torch.zeros(2, 3, dtype=torch.int32)
    memory = SegmentMemory(torch.ones(1, 2, 3, 5), ids, ids)
    first = in_one_buffer(batch()).with_memory(memory)
    static = first.to("cpu", copy=True)  # as a graph is recorded for it
    assert [t.nbytes for t in copied_tensors(static)] == [120, 24, 24, len(static.buffer)]  # type: ignore[arg-type]
    changed = batch()
    changed.inputs.input_ids.add_(7)
    other = in_one_buffer(changed).with_memory(tree_map(memory, lambda t: t * 3 + 1))
    for target, source in zip(copied_tensors(static), copied_tensors(other), strict=True):
        target.copy_(source)
    assert equal(static, other) and not equal(static, first)


def test_batches_that_lie_otherwise_in_a_buffer_have_graphs_of_their_own() -> None:
    """Equal shapes: in one of them two tensors are the same, and the others come earlier."""
    one, other = batch(), batch()
    mask = one.inputs.attention_mask
    apart = replace(mask, query_order=mask.query_order.clone())
    other = replace(other, inputs=replace(other.inputs, attention_mask=apart))
    assert batch_key(one) == batch_key(other)
    assert batch_key(in_one_buffer(one)) != batch_key(in_one_buffer(other))
    assert batch_key(in_one_buffer(one)) == batch_key(in_one_buffer(batch()))


def test_shares_are_the_derivative_of_the_mean() -> None:
    sums = {"tokens": torch.tensor(7.0), "pairs": torch.tensor(3.0), "none": torch.tensor(1.0)}
    for total in sums.values():
        total.requires_grad_()
    counts = {"tokens": 5, "pairs": 2, "none": 0}
    loss = Loss(sums, {"pairs": 50.0})
    derived = torch.autograd.grad(loss.mean(counts), list(sums.values()))
    assert loss_scales(loss, counts) == pytest.approx([x.item() for x in derived])


def test_a_sum_that_is_only_logged_has_no_gradient() -> None:
    """Label smoothing gives two sums: the plain one is for the log alone."""
    weight, unused = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    total = (weight * torch.tensor([1.0, 2.0])).sum()
    loss = Loss({"tokens": total.detach(), "smoothing": total - total.detach()})
    found = scaled_gradients(loss, torch.tensor([7.0, 0.5]), [weight, unused])
    assert found[0].tolist() == [0.5, 1.0]  # type: ignore[union-attr]
    assert found[1] is None


def test_gradients_lie_apart() -> None:
    """Two parameters that are added have one gradient; clipping it twice would halve it twice."""
    one = torch.ones(3)
    found = with_own_storage([one, None, one, torch.ones(2, 2).T[:, :1], torch.ones(()).expand(4)])
    places = [g.untyped_storage().data_ptr() for g in found if g is not None]
    assert len(set(places)) == 4
    assert all(g is None or g.is_contiguous() for g in found)
    assert found[0] is one and found[1] is None and found[2] is not None
    assert torch.equal(found[2], one)


@pytest.mark.parametrize("alone", [True, False])
def test_gradients_are_added_to_those_there_are(alone: bool) -> None:
    parameters = [torch.zeros(2, requires_grad=True) for _ in range(2)]
    captured = GraphedForwardBackward(lambda batch: Loss({}), parameters)
    written = torch.ones(2)
    captured.accumulate_grads([written, None], alone=alone)
    assert (parameters[0].grad is written) == alone, "one that is written over must be copied"
    assert parameters[1].grad is None, "what is not used does not move"
    captured.accumulate_grads([torch.full((2,), 2.0), torch.ones(2)], alone=False)
    assert parameters[0].grad.tolist() == [3, 3]  # type: ignore[union-attr]
    assert parameters[1].grad.tolist() == [1, 1]  # type: ignore[union-attr]
