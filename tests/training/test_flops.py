"""FLOPs are counted for every product of matrices, whichever kernel computes it."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.utils.rnn import pack_sequence

from kinfolk.nn import losses
from kinfolk.nn.losses import linear_cross_entropy
from kinfolk.training.flops import FlopCounter, cudnn_lstm, cudnn_lstm_backward

LENGTH, ROWS, SIZE, HIDDEN = 6, 3, 5, 8
LSTM = 2 * LENGTH * ROWS * 4 * HIDDEN * (SIZE + HIDDEN)  # forward, by hand


def flops(compute: Callable[[], Tensor]) -> int:
    """Count forward and backward."""
    with FlopCounter() as counter:
        compute().sum().backward()
    return counter.total


def test_a_linear_layer_has_three_products() -> None:
    layer, x = nn.Linear(4, 7), torch.randn(10, 4, requires_grad=True)
    assert flops(lambda: layer(x)) == 3 * 2 * 10 * 4 * 7


@pytest.mark.parametrize("masked", [False, True])
def test_attention_counts_the_same_with_and_without_a_fused_kernel(masked: bool) -> None:
    q, k, v = (
        torch.randn(2, 4, length, 16, requires_grad=True) for length in (LENGTH, 2 * LENGTH, 12)
    )
    mask = torch.zeros(2, 1, LENGTH, 2 * LENGTH) if masked else None
    counts = []
    for backend in (SDPBackend.MATH, SDPBackend.FLASH_ATTENTION):
        with sdpa_kernel(backend):
            counts.append(flops(lambda: F.scaled_dot_product_attention(q, k, v, attn_mask=mask)))
    by_hand = 6 * 2 * (2 * 4) * LENGTH * (2 * LENGTH) * 16  # two products, four in the backward
    assert counts == [by_hand, by_hand]


@pytest.mark.parametrize("chunk", [1, 3, 100])
def test_the_loss_over_a_vocabulary_counts_the_same_in_chunks(
    chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(losses, "CHUNK_LOGITS", 16 * chunk)
    hidden, weight = torch.randn(7, 5, requires_grad=True), torch.randn(16, 5, requires_grad=True)
    labels = torch.arange(7)
    found = flops(lambda: linear_cross_entropy(hidden, weight, None, labels, 16))
    assert found == 3 * 2 * 7 * 5 * 16


@pytest.mark.parametrize("bidirectional", [False, True])
def test_an_lstm_layer_agrees_with_a_count_by_hand(bidirectional: bool) -> None:
    layer = nn.LSTM(SIZE, HIDDEN, bidirectional=bidirectional)
    x = torch.randn(LENGTH, ROWS, SIZE, requires_grad=True)
    assert flops(lambda: layer(x)[0]) == (2 if bidirectional else 1) * 3 * LSTM


def test_an_lstm_layer_counts_alike_without_its_fast_kernel() -> None:
    layer = nn.LSTM(SIZE, HIDDEN).double()  # oneDNN has float32 alone
    x = torch.randn(LENGTH, ROWS, SIZE, requires_grad=True, dtype=torch.float64)
    slow = flops(lambda: layer(x)[0])
    # The state before the first token has no gradient.
    assert 3 * LSTM - slow == 2 * ROWS * 4 * HIDDEN * HIDDEN


def test_a_packed_lstm_counts_its_tokens_and_not_padding() -> None:
    layer = nn.LSTM(SIZE, HIDDEN, proj_size=4)
    texts = [torch.randn(length, SIZE) for length in (7, 3, 2)]
    with FlopCounter() as counter, torch.no_grad():
        layer(pack_sequence(texts))
    assert counter.total == 2 * 12 * (4 * HIDDEN * (SIZE + 4) + HIDDEN * 4)


def test_the_formula_of_cudnn_agrees_with_a_count_by_hand() -> None:
    weights = [(4 * HIDDEN, SIZE), (4 * HIDDEN, HIDDEN), (4 * HIDDEN,), (4 * HIDDEN,)]
    for shape in ((LENGTH, ROWS, SIZE), (LENGTH * ROWS, SIZE)):
        assert cudnn_lstm(shape, weights, 4, None) == LSTM
        assert cudnn_lstm_backward(shape, weights, 4, None) == 2 * LSTM


@pytest.mark.parametrize("chunk", [64, 2**24])
def test_a_chunked_loss_counts_three_products(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(losses, "CHUNK_LOGITS", chunk)
    hidden = torch.randn(20, HIDDEN, requires_grad=True)
    weight, labels = torch.randn(32, HIDDEN, requires_grad=True), torch.arange(20)
    assert flops(lambda: linear_cross_entropy(hidden, weight, None, labels, 30)) == (
        3 * 2 * 20 * HIDDEN * 32
    )


def test_products_in_a_block_without_gradients_count_once() -> None:
    layer, x = nn.Linear(4, 7), torch.randn(10, 4, requires_grad=True)

    def sampled() -> Tensor:
        with torch.no_grad():
            first = layer(x.view(10, 4)).argmax(-1)
        return layer(x)[torch.arange(10), first]

    assert flops(sampled) == 4 * 2 * 10 * 4 * 7


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("layers", [1, 2])
def test_cudnn_counts_as_onednn(layers: int) -> None:
    layer, x = nn.LSTM(SIZE, HIDDEN, layers), torch.randn(LENGTH, ROWS, SIZE, requires_grad=True)
    on_cpu = flops(lambda: layer(x)[0])
    layer = layer.cuda()
    assert flops(lambda: layer(x.cuda())[0]) == on_cpu


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize(
    "backend",
    [
        SDPBackend.MATH,
        SDPBackend.FLASH_ATTENTION,
        SDPBackend.EFFICIENT_ATTENTION,
        SDPBackend.CUDNN_ATTENTION,
    ],
)
def test_every_attention_kernel_of_cuda_counts_the_same(backend: SDPBackend) -> None:
    q, k, v = (
        torch.randn(2, 4, 64, 32, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        for _ in range(3)
    )
    with sdpa_kernel(backend):
        counted = flops(lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True))
    assert counted == 6 * 2 * (2 * 4) * 64 * 64 * 32
