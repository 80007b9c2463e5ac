"""LSTM layers over packed rows: each text by itself, or continued from the row before."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from kinfolk.attention_mask import EMPTY_SLOT_ID, PADDING_ID, AttentionMask
from kinfolk.batch import Inputs, KVCache, SegmentMemory
from kinfolk.nn import recurrent
from kinfolk.nn.recurrent import (
    Recurrence,
    empty_lstm_memory,
    layer_weights,
    lstm,
    weights_in_blocks,
)
from kinfolk.packed_texts import PackedTexts, WholeRows

SIZE = 6
PACKED = torch.tensor([[0, 0, 0, 1, 1, -1, -1], [4] * 7, [-1, -1, 7, 7, 7, 8, 8], [-1] * 7])


def inputs(document_ids: Tensor, *, unpacked: bool = False) -> Inputs:
    ids = torch.zeros_like(document_ids)
    mask = AttentionMask.causal(document_ids, unpacked=unpacked)
    return Inputs(input_ids=ids, attention_mask=mask, position_ids=ids)


def stack(projected: int = 0) -> list[nn.LSTM]:
    torch.manual_seed(3)
    return [
        nn.LSTM(SIZE, 5, proj_size=projected).double(),
        nn.LSTM(projected or 5, 8, proj_size=projected).double(),
    ]


def vectors(*shape: int) -> Tensor:
    draws = torch.Generator().manual_seed(1)
    return torch.randn(*shape, SIZE, generator=draws, dtype=torch.double)


def run(layers: Sequence[nn.LSTM], x: Tensor, given: Inputs) -> tuple[Tensor, SegmentMemory | None]:
    recurrence = Recurrence(given, layers)
    x = recurrence.flatten(x)
    for layer in layers:
        x = recurrence.run(layer, x)
    output = recurrence.output(recurrence.unflatten(x))
    assert output.cache is given.cache
    return output.hidden, output.memory


def alone(layers: Sequence[nn.LSTM], x: Tensor) -> Tensor:
    """Run torch's layers on one text: (length, size)."""
    for layer in layers:
        x = layer(x)[0]
    return x


@pytest.mark.parametrize("projected", [0, 3])
def test_every_text_of_a_packed_row_is_read_alone(projected: int) -> None:
    layers, x = stack(projected), vectors(4, 7)
    hidden, memory = run(layers, x, inputs(PACKED))
    assert memory is None
    for row, ids in enumerate(PACKED):
        for number in set(ids.tolist()) - {PADDING_ID}:
            own = ids == number
            torch.testing.assert_close(hidden[row, own], alone(layers, x[row, own]))
    assert not hidden[PACKED == PADDING_ID].any()


def test_both_directions_of_a_layer_stay_in_their_text() -> None:
    torch.manual_seed(0)
    layer, x = nn.LSTM(SIZE, 4, bidirectional=True).double(), vectors(4, 7)
    for ids, rows in ((PACKED, x), (torch.zeros(2, 7, dtype=torch.long), x[:2])):
        recurrence = Recurrence(inputs(ids))
        hidden = recurrence.unflatten(recurrence.run(layer, recurrence.flatten(rows)))
        own = ids[0] == 0
        torch.testing.assert_close(hidden[0, own], layer(rows[0, own])[0])


def test_rows_of_one_text_are_not_packed() -> None:
    whole = torch.arange(3)[:, None].expand(3, 7)
    assert isinstance(AttentionMask.causal(whole).find_texts(), WholeRows)
    assert isinstance(AttentionMask.causal(PACKED).find_texts(), PackedTexts)
    layers, x = stack(), vectors(3, 7)
    hidden, _ = run(layers, x, inputs(whole))
    torch.testing.assert_close(hidden[1], alone(layers, x[1]))
    assert torch.equal(run(layers, x, inputs(whole, unpacked=True))[0], hidden)


def streams(x: Tensor, document_ids: Tensor, cuts: Sequence[int], layers: list[nn.LSTM]) -> Tensor:
    """Read rows in segments, with the memory of the segment before."""
    memory: SegmentMemory | None = empty_lstm_memory(layers, len(x))
    parts, start = [], 0
    for stop in cuts:
        given = replace(inputs(document_ids[:, start:stop]), memory=memory)
        hidden, memory = run(layers, x[:, start:stop], given)
        assert memory is not None and not memory.hidden.requires_grad
        parts.append(hidden)
        start = stop
    return torch.cat(parts, dim=1)


@pytest.mark.parametrize("projected", [0, 3])
@pytest.mark.parametrize("cuts", [(1, 2, 3, 4, 5, 6, 7), (3, 4, 7), (2, 7)])
def test_a_document_continues_in_the_next_row_and_no_state_crosses_documents(
    cuts: Sequence[int], projected: int
) -> None:
    layers, x = stack(projected), vectors(4, 7)
    ids = PACKED.clone()
    ids[3] = torch.tensor([5, 5, 6, 6, 6, 6, 9])
    whole, _ = run(layers, x, inputs(ids))
    torch.testing.assert_close(streams(x, ids, cuts, layers), whole)


def test_runs_of_whole_rows_equal_packed_texts() -> None:
    """What CPUs run, and what accelerators run."""
    layer, texts = nn.LSTM(SIZE, 5).double(), PackedTexts.of(PACKED)
    draws = torch.Generator().manual_seed(2)
    state = tuple(
        torch.randn(1, texts.num_texts, 5, generator=draws, dtype=torch.double) for _ in range(2)
    )
    x = texts.flatten(vectors(4, 7)).requires_grad_()
    ours = lstm(layer, x, (state[0], state[1]), texts, layer_weights(layer))
    packed, theirs = layer(PackedSequence(x, texts.batch_sizes), state)
    for found, expected in zip(ours, (packed.data, *theirs), strict=True):
        torch.testing.assert_close(found, expected)
    grads = [torch.autograd.grad(part.square().sum(), x)[0] for part in (ours[0], packed.data)]
    torch.testing.assert_close(*grads)


@pytest.mark.parametrize("dtype", [torch.double, torch.bfloat16])
def test_states_are_in_one_block_of_memory(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype
) -> None:
    """cuDNN refuses others."""
    layers, states = stack(), list[Tensor]()

    def record(layer: nn.LSTM, x: Tensor, state: Any, *rest: Any) -> Any:
        states.extend(state)
        return lstm(layer, x, state, *rest)

    monkeypatch.setattr(recurrent, "lstm", record)
    monkeypatch.setattr(recurrent, "lstm_dtype", lambda layer, device: dtype)
    for ids in (PACKED, torch.zeros(4, 7, dtype=torch.long)):
        given = replace(inputs(ids), memory=empty_lstm_memory(layers, 4))
        run(layers, vectors(4, 7), given)
    assert len(states) == 8
    assert all(part.is_contiguous() and part.dtype == dtype for part in states)


def test_copied_weights_of_a_layer_lie_one_after_the_other() -> None:
    """As cuDNN reads them; the gradients are those of a copy of each weight."""
    layers = stack()
    groups = weights_in_blocks([layer_weights(layer) for layer in layers], torch.bfloat16)
    for layer, copies in zip(layers, groups, strict=True):
        block, end = copies[0].untyped_storage().data_ptr(), 0
        for weight, copy in zip(layer_weights(layer), copies, strict=True):
            assert torch.equal(copy, weight.bfloat16())
            assert copy.untyped_storage().data_ptr() == block and copy.storage_offset() == end
            end += copy.numel()
    weights = [weight for layer in layers for weight in layer_weights(layer)]
    copies = [copy for group in groups for copy in group]
    seeds = [torch.randn_like(copy) for copy in copies]
    found = torch.autograd.grad(copies, weights, seeds)
    for gradient, seed in zip(found, seeds, strict=True):
        assert torch.equal(gradient, seed.double())


def test_frozen_layers_get_no_gradient_from_copied_weights(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    layers = stack()
    layers[0].requires_grad_(False)
    monkeypatch.setattr(recurrent, "lstm_dtype", lambda layer, device: torch.bfloat16)
    given = replace(inputs(PACKED), memory=empty_lstm_memory(layers, 4))
    hidden, _ = run(layers, vectors(4, 7), given)
    hidden.sum().backward()
    assert all(weight.grad is None for weight in layers[0].parameters())
    assert all(weight.grad is not None for weight in layers[1].parameters())


def test_an_empty_memory_is_no_document() -> None:
    memory = empty_lstm_memory(stack(3), 2)
    assert memory.hidden.shape == (1, 2, 1, 3 + 5 + 3 + 8)
    assert memory.document_ids.tolist() == [[EMPTY_SLOT_ID]] * 2


def test_a_cached_step_continues_each_row_and_rows_can_be_reordered() -> None:
    layers, x = stack(), vectors(2, 7)
    ids = torch.tensor([[0] * 7, [-1, -1, 0, 0, 0, 0, 0]])  # the shorter prompt is padded
    whole, _ = run(layers, x, inputs(ids))
    cache, parts = KVCache(7), []
    for start, stop in [(0, 4), (4, 5), (5, 7)]:
        given = replace(inputs(ids[:, start:stop]), cache=cache).append_to_cache()
        parts.append(run(layers, x[:, start:stop], given)[0])
    torch.testing.assert_close(torch.cat(parts, dim=1), whole)
    states = cache.extra[0]
    cache.reorder(torch.tensor([1, 1, 0]))
    assert torch.equal(cache.extra[0], states[[1, 1, 0]])


def test_locked_dropout_drops_the_same_features_of_all_tokens_of_a_text() -> None:
    for ids in (PACKED, torch.zeros(2, 7, dtype=torch.long)):
        recurrence = Recurrence(inputs(ids))
        ones = recurrence.flatten(torch.ones(*ids.shape, 50))
        torch.manual_seed(0)
        dropped = recurrence.unflatten(recurrence.locked_dropout(ones, 0.4, training=True))
        assert recurrence.locked_dropout(ones, 0.4, training=False) is ones
        masks = []
        for row, numbers in enumerate(ids):
            for number in set(numbers.tolist()) - {PADDING_ID}:
                own = dropped[row, numbers == number]
                assert torch.equal(own, own[:1].expand_as(own))
                masks.append(own[0])
        values = torch.stack(masks)
        torch.testing.assert_close(values.unique(), torch.tensor([0, 1 / 0.6]))
        assert 0.5 < (values > 0).float().mean() < 0.7
        assert not torch.equal(masks[0], masks[1])


def test_dropped_recurrent_weights_are_the_same_for_all_tokens() -> None:
    layer, x = stack()[0], vectors(2, 7)
    recurrence = Recurrence(inputs(torch.zeros(2, 7, dtype=torch.long)))
    torch.manual_seed(5)
    found = recurrence.unflatten(recurrence.run(layer, recurrence.flatten(x), weight_dropout=0.5))
    torch.manual_seed(5)
    dropped = nn.functional.dropout(layer.weight_hh_l0, 0.5)
    assert 0.3 < (dropped == 0).double().mean() < 0.7
    found.sum().backward()
    assert layer.weight_hh_l0.grad is not None
    assert not layer.weight_hh_l0.grad[dropped == 0].any()
    plain = nn.LSTM(SIZE, 5).double()
    plain.load_state_dict({**layer.state_dict(), "weight_hh_l0": dropped.detach()})
    torch.testing.assert_close(found, plain(x.transpose(0, 1))[0].transpose(0, 1))
    kept = recurrence.run(layer.eval(), recurrence.flatten(x), weight_dropout=0.5)
    torch.testing.assert_close(kept, layer(x.transpose(0, 1))[0])


def test_layers_run_in_their_own_precision_under_autocast() -> None:
    layer, x = nn.LSTM(SIZE, 4), vectors(2, 3).to(torch.bfloat16)
    recurrence = Recurrence(inputs(torch.zeros(2, 3, dtype=torch.long)))
    with torch.autocast("cpu", torch.bfloat16):
        assert recurrence.run(layer, recurrence.flatten(x)).dtype == torch.float32


@pytest.mark.parametrize("size", [64, 256])
def test_gradients_of_a_bfloat16_lstm_are_those_of_float32(size: int) -> None:
    state = torch.get_rng_state()
    error = recurrent.bfloat16_error(torch.device("cpu"), size)
    assert 0.001 < error < recurrent.MAX_ERROR
    assert torch.equal(torch.get_rng_state(), state), "dropout must not depend on the check"
    with torch.inference_mode():
        assert recurrent.bfloat16_error(torch.device("cpu"), size) == error


def test_a_bfloat16_lstm_that_is_inexact_or_refused_is_not_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    exact, cpu = recurrent.bfloat16_is_exact.__wrapped__, torch.device("cpu")
    assert not exact(cpu), "cuDNN takes no tensors of a CPU"
    monkeypatch.setattr(torch, "cudnn_is_acceptable", lambda x: x.dtype == torch.bfloat16)
    for error, expected in ((0.01, True), (0.1, False), (float("nan"), False)):
        monkeypatch.setattr(recurrent, "bfloat16_error", lambda device, size, error=error: error)
        assert exact(cpu) == expected

    def refuse(device: torch.device, size: int) -> float:
        raise RuntimeError("CUDNN_STATUS_NOT_SUPPORTED")

    monkeypatch.setattr(recurrent, "bfloat16_error", refuse)
    assert not exact(cpu)


@pytest.mark.parametrize("ids", [PACKED, torch.zeros(4, 7, dtype=torch.long)])
def test_a_layer_in_bfloat16_has_output_states_and_gradients_in_float32(
    ids: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What cuDNN runs under autocast, where it has bfloat16."""
    layers, x = [layer.float() for layer in stack()], vectors(4, 7).float()
    given = replace(inputs(ids), memory=empty_lstm_memory(layers, 4))
    found = []
    for dtype in (torch.float32, torch.bfloat16):
        monkeypatch.setattr(recurrent, "lstm_dtype", lambda layer, device, dtype=dtype: dtype)
        hidden, memory = run(layers, x, given)
        assert hidden.dtype == torch.float32 and memory is not None
        hidden.square().sum().backward()
        grads = [p.grad for layer in layers for p in layer.parameters() if p.grad is not None]
        found.append([hidden.detach(), memory.hidden, *grads])
        for layer in layers:
            layer.zero_grad(set_to_none=True)
    assert len(found[0]) == 10
    for exact, rounded in zip(*found, strict=True):
        assert rounded.dtype == torch.float32
        assert 0 < (rounded - exact).norm() < 0.02 * exact.norm()


@pytest.mark.parametrize(("exact", "expected"), [(True, torch.bfloat16), (False, torch.float32)])
def test_layers_run_in_bfloat16_where_cudnn_has_it(
    exact: bool, expected: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recurrent, "bfloat16_is_exact", lambda device: exact)
    layer, cuda = nn.LSTM(SIZE, 4), torch.device("cuda")
    assert recurrent.lstm_dtype(layer, cuda) == torch.float32, "without autocast"
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda device: True)
    monkeypatch.setattr(torch, "get_autocast_dtype", lambda device: torch.bfloat16)
    assert recurrent.lstm_dtype(layer, cuda) == expected
    assert recurrent.lstm_dtype(layer, torch.device("cpu")) == torch.float32
    monkeypatch.setattr(torch, "get_autocast_dtype", lambda device: torch.float16)
    assert recurrent.lstm_dtype(layer, cuda) == torch.float32, "small gradients would be lost"
