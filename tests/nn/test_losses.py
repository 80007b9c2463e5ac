"""The chunked cross-entropy says what the whole one says, and never holds all logits."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from kinfolk.batch import IGNORE_INDEX
from kinfolk.nn import losses
from kinfolk.nn.losses import chunk_rows, linear_cross_entropy, smoothed_linear_cross_entropy

ROWS, WIDTH, VOCAB, PADDED = 7, 5, 11, 16


def drawn(dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    draws = torch.Generator().manual_seed(3)
    hidden, weight, bias = (
        torch.randn(shape, generator=draws, dtype=torch.float64).to(dtype).requires_grad_()
        for shape in ((ROWS, WIDTH), (PADDED, WIDTH), (VOCAB,))
    )
    labels = torch.randint(VOCAB, (ROWS,), generator=draws)
    labels[[1, 4]] = IGNORE_INDEX
    return hidden, weight, bias, labels


def whole(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, smoothing: float = 0.0
) -> Tensor:
    logits = F.linear(hidden, weight[:VOCAB], bias)
    return F.cross_entropy(
        logits, labels, ignore_index=IGNORE_INDEX, reduction="sum", label_smoothing=smoothing
    )


@pytest.fixture(params=[1, 2, 3, ROWS, 100])
def rows(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Score so many rows at a time."""
    monkeypatch.setattr(losses, "CHUNK_LOGITS", request.param * PADDED)
    yield request.param


@pytest.mark.parametrize(
    ("dtype", "within"), [(torch.float32, 1e-5), (torch.float64, 1e-10)], ids=["float32", "float64"]
)
@pytest.mark.parametrize("biased", [True, False], ids=["biased", "unbiased"])
def test_it_equals_the_whole_one_in_value_and_gradients(
    rows: int, dtype: torch.dtype, within: float, biased: bool
) -> None:
    hidden, weight, bias, labels = drawn(dtype)
    leaves = (hidden, weight, bias) if biased else (hidden, weight)
    given = bias if biased else None
    ours = linear_cross_entropy(hidden, weight, given, labels, VOCAB)
    theirs = whole(hidden, weight, given, labels)
    torch.testing.assert_close(ours, theirs, rtol=within, atol=0)
    for mine, other in zip(
        torch.autograd.grad(3 * ours, leaves), torch.autograd.grad(3 * theirs, leaves), strict=True
    ):
        torch.testing.assert_close(mine, other, rtol=within, atol=within)


def test_gradients_pass_the_numerical_check() -> None:
    hidden, weight, bias, labels = drawn(torch.float64)
    assert torch.autograd.gradcheck(
        lambda h, w, b: linear_cross_entropy(h, w, b, labels, VOCAB), (hidden, weight, bias)
    )


@pytest.mark.parametrize("biased", [True, False], ids=["biased", "unbiased"])
@pytest.mark.parametrize("smoothing", [0.1, 0.7])
def test_smoothed_labels_equal_torchs_in_value_and_gradients(
    rows: int, smoothing: float, biased: bool
) -> None:
    hidden, weight, bias, labels = drawn(torch.float64)
    leaves = (hidden, weight, bias) if biased else (hidden, weight)
    given = bias if biased else None
    ours, plain = smoothed_linear_cross_entropy(hidden, weight, given, labels, VOCAB, smoothing)
    theirs = whole(hidden, weight, given, labels, smoothing)
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=0)
    torch.testing.assert_close(plain, whole(hidden, weight, given, labels).detach())
    assert not plain.requires_grad
    for mine, other in zip(
        torch.autograd.grad(3 * ours + plain, leaves),
        torch.autograd.grad(3 * theirs, leaves),
        strict=True,
    ):
        torch.testing.assert_close(mine, other, rtol=1e-10, atol=1e-10)
        assert not mine[VOCAB:].any()  # what the table has past the vocabulary


def test_padding_of_the_vocabulary_takes_no_part() -> None:
    hidden, weight, bias, labels = drawn(torch.float64)
    before = linear_cross_entropy(hidden, weight, bias, labels, VOCAB)
    with torch.no_grad():
        weight[VOCAB:] = 100.0
    after = linear_cross_entropy(hidden, weight, bias, labels, VOCAB)
    assert before.item() == after.item()
    (gradient,) = torch.autograd.grad(after, weight)
    assert not gradient[VOCAB:].any()


def test_only_ignored_labels_are_no_loss_and_no_gradient() -> None:
    hidden, weight, bias, labels = drawn(torch.float32)
    loss = linear_cross_entropy(hidden, weight, bias, torch.full_like(labels, IGNORE_INDEX), VOCAB)
    assert loss.item() == 0
    assert not any(g.any() for g in torch.autograd.grad(loss, (hidden, weight, bias)))


def test_no_rows_are_no_loss() -> None:
    hidden, weight, bias, labels = drawn(torch.float32)
    loss = linear_cross_entropy(hidden[:0], weight, bias, labels[:0], VOCAB)
    loss.backward()
    assert loss.item() == 0 and not weight.grad.any()  # type: ignore[union-attr]


def test_it_needs_no_gradient() -> None:
    hidden, weight, bias, labels = drawn(torch.float32)
    with torch.inference_mode():
        loss = linear_cross_entropy(hidden, weight, bias, labels, VOCAB)
    torch.testing.assert_close(loss, whole(hidden, weight, bias, labels).detach())


@pytest.mark.parametrize("learnt", [0, 1, 2], ids=["hidden", "weight", "bias"])
def test_each_can_learn_while_the_others_are_frozen(learnt: int) -> None:
    *leaves, labels = drawn(torch.float64)
    given = [t if i == learnt else t.detach() for i, t in enumerate(leaves)]
    ours = torch.autograd.grad(linear_cross_entropy(*given, labels, VOCAB), leaves[learnt])
    theirs = torch.autograd.grad(whole(*given, labels), leaves[learnt])
    torch.testing.assert_close(ours, theirs)


def test_half_precision_is_summed_in_single() -> None:
    hidden, weight, bias, labels = drawn(torch.float32)
    half, table = hidden.detach().bfloat16().requires_grad_(), weight.detach().bfloat16()
    loss = linear_cross_entropy(half, table, bias, labels, VOCAB)
    loss.backward()
    assert loss.dtype == torch.float32 and half.grad is not None
    assert half.grad.dtype == torch.bfloat16
    torch.testing.assert_close(loss, whole(hidden, weight, bias, labels), rtol=2e-2, atol=0)


class Largest(TorchDispatchMode):
    """Watch every tensor that any operation makes, and keep the largest number of elements."""

    elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, tuple | list) else (out,):
            if isinstance(tensor, Tensor):
                self.elements = max(self.elements, tensor.numel())
        return out


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_no_more_than_a_chunk_of_logits_is_ever_held(
    smoothing: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, width, vocab = 64, 4, 128
    hidden = torch.randn(rows, width, requires_grad=True)
    weight = torch.randn(vocab, width, requires_grad=True)
    labels = torch.randint(vocab, (rows,))
    monkeypatch.setattr(losses, "CHUNK_LOGITS", 8 * vocab)
    with Largest() as watch:
        smoothed_linear_cross_entropy(hidden, weight, None, labels, vocab, smoothing)[0].backward()
    assert watch.elements == 8 * vocab  # and not 64 * vocab
    with Largest() as watch:
        F.cross_entropy(hidden @ weight.T, labels).backward()
    assert watch.elements == rows * vocab  # the watch does see them where they are


@pytest.mark.parametrize(("rows", "vocab"), [(0, 10), (5, 10), (10**6, 50257), (4, 2**25)])
def test_a_chunk_is_at_least_one_row_and_at_most_all(rows: int, vocab: int) -> None:
    size = chunk_rows(rows, vocab, False)
    assert 1 <= size <= max(rows, 1)
    assert size == 1 or size * vocab <= losses.CHUNK_LOGITS


@pytest.mark.parametrize("chunk", [2**24, 40])
def test_log_probabilities_under_a_frozen_weight_equal_a_softmax(
    chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(losses, "CHUNK_LOGITS", chunk)
    draws = torch.Generator().manual_seed(0)
    hidden, weight = (torch.randn(n, 6, generator=draws).double() for n in (7, 12))
    labels, scale = torch.tensor([0, 3, 9, 9, 1, 2, 5]), torch.arange(7.0).double()
    found, expected = (hidden.clone().requires_grad_() for _ in range(2))
    logprobs = losses.frozen_logprobs(found, weight, labels, 10)
    plain = (expected @ weight[:10].T).log_softmax(-1)[range(7), labels]
    assert torch.allclose(logprobs, plain)
    (scale @ logprobs).backward()
    (scale @ plain).backward()
    assert found.grad is not None and expected.grad is not None
    assert torch.allclose(found.grad, expected.grad)
    with torch.no_grad():
        assert torch.equal(losses.frozen_logprobs(hidden, weight, labels, 10), logprobs)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's own, while it compiles
@pytest.mark.filterwarnings("ignore:TensorFloat32")  # float32 is meant to be exact here
@pytest.mark.filterwarnings(r"ignore:\s*Online softmax")  # what the compiler does without
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("biased", [True, False], ids=["biased", "unbiased"])
@pytest.mark.parametrize(
    ("dtype", "within"),
    [(torch.float32, 1e-4), (torch.bfloat16, 2e-2)],
    ids=["float32", "bfloat16"],
)
def test_the_kernel_on_cuda_equals_float64(
    dtype: torch.dtype, within: float, biased: bool, smoothing: float, compiled: bool
) -> None:
    draws = torch.Generator().manual_seed(5)
    rows, width, vocab, padded = 300, 64, 9_001, 9_024
    exact = [
        torch.randn(shape, generator=draws, dtype=torch.float64)
        for shape in ((rows, width), (padded, width), (vocab,))
    ]
    labels = torch.randint(vocab, (rows,), generator=draws)
    labels[[1, 4, 299]] = IGNORE_INDEX
    near = [t.to(dtype) for t in exact]  # both sides read the same rounded values
    reference = [t.double().requires_grad_() for t in near]
    ours = [t.cuda().requires_grad_() for t in near]
    loss = smoothed_linear_cross_entropy
    if compiled:
        torch.compiler.reset()
        loss = torch.compile(loss)

    def found(leaves: list[Tensor], targets: Tensor, compute: Any) -> list[Tensor]:
        bias = leaves[2] if biased else None
        total, plain = compute(leaves[0], leaves[1], bias, targets, vocab, smoothing)
        leaves = leaves if biased else leaves[:2]
        return [total.detach(), plain, *torch.autograd.grad(total, leaves)]

    theirs = found(reference, labels, smoothed_linear_cross_entropy)
    for a, b in zip(found(ours, labels.cuda(), loss), theirs, strict=True):
        assert (a.double().cpu() - b).norm() <= within * b.norm()
