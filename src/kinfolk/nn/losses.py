"""Cross-entropy over a vocabulary without holding all logits.

Logits take more memory than anything else in a small language model: 32 rows of 1,024 tokens by
50,257 words are 6.6 GB in float32, and their gradient as much again. Here the hidden states are
processed in chunks, and the gradient of each chunk is computed while its logits are in memory.
"""

from typing import Any

import torch
from torch import Tensor

from kinfolk.batch import IGNORE_INDEX
from kinfolk.nn.cpu_products import has_wide_vectors, linear, suits_onednn
from kinfolk.nn.layers import HAS_TRITON

if HAS_TRITON:
    from kinfolk.nn import training_kernels

CHUNK_LOGITS = 2**24  # logits held at a time on the CPU: 64 MB in float32, about a cache
CHUNK_LOGITS_CUDA = 2**28
NEW_LOGITS = 2**22  # logits that are new memory: what the C library keeps when it is freed


def linear_cross_entropy(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, vocab_size: int
) -> Tensor:
    """Sum -log p(label) over hidden states (n, hidden_size), without labels of IGNORE_INDEX.

    Rows of `weight` from `vocab_size` on are padding and have no effect.
    """
    return smoothed_linear_cross_entropy(hidden, weight, bias, labels, vocab_size, 0.0)[0]


def smoothed_linear_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    labels: Tensor,
    vocab_size: int,
    smoothing: float,
) -> tuple[Tensor, Tensor]:
    """Return the sum with label smoothing (Szegedy et al. 2015, section 7), and without it.

    The second has no gradient.
    """
    if hidden.is_cuda and torch.is_autocast_enabled("cuda"):
        dtype = torch.get_autocast_dtype("cuda")
        hidden, weight = hidden.to(dtype), weight.to(dtype)
    requires_grad = any(t is not None and t.requires_grad for t in (hidden, weight, bias))
    needs_grad = torch.is_grad_enabled() and requires_grad
    found: Tensor = _CrossEntropy.apply(
        hidden, weight, bias, labels, vocab_size, smoothing, needs_grad
    )  # type: ignore[no-untyped-call]
    return (found[0], found[1].detach()) if smoothing else (found, found.detach())


def chunk_rows(rows: int, vocab_size: int, cuda: bool) -> int:
    """Return how many rows are processed at a time."""
    return max(1, min(rows, (CHUNK_LOGITS_CUDA if cuda else CHUNK_LOGITS) // vocab_size))


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        labels: Tensor,
        vocab_size: int,
        smoothing: float,
        needs_grad: bool,
    ) -> Tensor:
        rows, padded = hidden.shape[0], weight.shape[0]
        size = chunk_rows(rows, padded, hidden.is_cuda)
        exact = torch.float64 if hidden.dtype == torch.float64 else torch.float32  # of sums
        missing = 0 if bias is None else padded - len(bias)
        ctx.dtype, ctx.missing, ctx.smoothed = weight.dtype, missing, bool(smoothing)
        if rows and needs_grad and suits_onednn(hidden, weight) and has_wide_vectors():
            sums, *gradients = _gradients_by_onednn(
                hidden, weight, bias, labels, vocab_size, smoothing
            )
            ctx.save_for_backward(*gradients)
            return torch.stack(sums) if smoothing else sums[0]
        totals: list[Tensor] = []  # of the loss, and of that without smoothing
        d_hidden: list[Tensor] = []
        d_weight = d_bias = None
        # Every chunk has its logits where those of the first were: new memory costs the system a
        # page fault for each 4 KB, a tenth of the time of GPT-2's loss on a CPU.
        memory = hidden.new_empty(size, padded) if size < rows and _in_place(hidden) else None
        for start in range(0, rows, size):
            part, targets = hidden, labels
            if size < rows:
                part, targets = hidden[start : start + size], labels[start : start + size]
            if memory is None:
                scores = part @ weight.T
            else:
                scores = torch.mm(part, weight.T, out=memory[: len(part)])
            if HAS_TRITON and training_kernels.can_cross_entropy(scores):
                error, *nll = training_kernels.triton_cross_entropy(
                    scores, bias, targets, vocab_size, smoothing, needs_grad
                )
                sums = [kind.sum() for kind in (nll if smoothing else nll[:1])]
            else:
                error, sums = _error_and_sums(
                    scores.to(exact), bias, targets, vocab_size, smoothing, needs_grad
                )
            totals = [a + b for a, b in zip(totals, sums, strict=True)] if totals else sums
            if not needs_grad:
                continue
            if bias is not None:
                d_part_bias = error.sum(0, dtype=exact)
                d_bias = d_part_bias if d_bias is None else d_bias + d_part_bias
            error = error.to(part.dtype)
            d_hidden.append(error @ weight)
            d_weight = _add_product(d_weight, error.T, part, exact)
        if not totals:  # no rows
            totals = [hidden.new_zeros((), dtype=exact)] * (2 if smoothing else 1)
            d_weight = torch.zeros_like(weight, dtype=exact)
            d_bias = None if bias is None else hidden.new_zeros(padded, dtype=exact)
        if needs_grad:
            joined = d_hidden[0] if len(d_hidden) == 1 else torch.cat([hidden[:0], *d_hidden])
            ctx.save_for_backward(joined, d_weight, d_bias)
        return torch.stack(totals) if smoothing else totals[0]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        d_hidden, d_weight, d_bias = ctx.saved_tensors
        if ctx.smoothed:
            gradient = gradient[0]
        if d_bias is not None and ctx.missing:
            d_bias = d_bias[: -ctx.missing]
        return (
            (d_hidden * gradient).to(d_hidden.dtype),
            (d_weight * gradient).to(ctx.dtype),
            None if d_bias is None else d_bias * gradient,
            None,
            None,
            None,
            None,
        )


def _gradients_by_onednn(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    labels: Tensor,
    vocab_size: int,
    smoothing: float,
) -> tuple[list[Tensor], Tensor, Tensor, Tensor | None]:
    """Return the sums of the loss of each kind, and the gradients of states, weight and bias.

    oneDNN writes to new memory: products of few rows, whose memory the process keeps, go into a
    chunk of many, from which the gradient of the weight is computed.
    """
    rows, padded = len(hidden), len(weight)
    size, few = chunk_rows(rows, padded, False), max(1, NEW_LOGITS // padded)
    errors = hidden.new_empty(size, padded)
    totals: list[Tensor] = []
    d_hidden = torch.empty_like(hidden)
    d_weight, d_bias = None, None if bias is None else torch.zeros_like(errors[0])
    for start in range(0, rows, size):
        chunk = hidden[start : start + size]
        for first in range(start, start + len(chunk), few):
            part = slice(first, min(first + few, start + len(chunk)))
            error, sums = _error_and_sums(
                linear(hidden[part], weight), bias, labels[part], vocab_size, smoothing, True
            )
            totals = [a + b for a, b in zip(totals, sums, strict=True)] if totals else sums
            d_hidden[part] = linear(error, weight.T)
            errors[part.start - start : part.stop - start] = error
            if d_bias is not None:
                d_bias += error.sum(0)
        product = linear(chunk.T, errors[: len(chunk)].T)
        d_weight = product if d_weight is None else d_weight.add_(product)
    assert d_weight is not None
    return totals, d_hidden, d_weight.T.contiguous(), d_bias


def _error_and_sums(
    scores: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    vocab_size: int,
    smoothing: float,
    needs_grad: bool,
) -> tuple[Tensor, list[Tensor]]:
    """Return the gradient of logits, in their memory, and the sums of the loss of each kind."""
    if bias is not None:
        scores[:, : len(bias)] += bias
    if vocab_size < scores.shape[1]:
        scores[:, vocab_size:].fill_(float("-inf"))
    counted = targets != IGNORE_INDEX
    label = targets.clamp(min=0)[:, None]
    scores -= scores.amax(-1, keepdim=True)
    chosen = scores.gather(1, label)[:, 0]
    kinds = [chosen]
    if smoothing:
        mean = scores[:, :vocab_size].mean(-1)
        kinds = [(1 - smoothing) * chosen + smoothing * mean, chosen]
    scores.exp_()
    mass = scores.sum(-1)
    log_mass = mass.log()
    sums = [((log_mass - kind) * counted).sum() for kind in kinds]
    if needs_grad:
        # d nll / d scores = softmax - one_hot(label), and 0 where a label is ignored
        weights = counted.to(scores.dtype)[:, None]
        scores *= (counted / mass)[:, None]
        scores.scatter_add_(1, label, (smoothing - 1) * weights)
        if smoothing:
            scores[:, :vocab_size] -= smoothing / vocab_size * weights
    return scores, sums


def frozen_logprobs(hidden: Tensor, weight: Tensor, labels: Tensor, vocab_size: int) -> Tensor:
    """Return log p(label) of each hidden state (n, hidden_size), under a weight that is frozen.

    Rows of `weight` from `vocab_size` on are padding and have no effect.
    """
    if hidden.is_cuda and torch.is_autocast_enabled("cuda"):
        dtype = torch.get_autocast_dtype("cuda")
        hidden, weight = hidden.to(dtype), weight.to(dtype)
    needs_grad = torch.is_grad_enabled() and hidden.requires_grad
    return _FrozenLogprobs.apply(hidden, weight.detach(), labels, vocab_size, needs_grad)  # type: ignore[no-untyped-call]


class _FrozenLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, labels: Tensor, vocab_size: int, needs_grad: bool
    ) -> Tensor:
        size = chunk_rows(len(hidden), len(weight), hidden.is_cuda)
        exact = torch.promote_types(hidden.dtype, torch.float32)
        found = [hidden.new_zeros(0, dtype=exact)]
        d_hidden = [hidden[:0]]
        for start in range(0, len(hidden), size):
            part = hidden[start : start + size]
            label = labels[start : start + size, None]
            scores = (part @ weight.T).to(exact)
            scores[:, vocab_size:] = float("-inf")
            scores -= scores.amax(-1, keepdim=True)
            chosen = scores.gather(1, label)
            mass = scores.exp_().sum(-1, keepdim=True)
            found.append((chosen - mass.log())[:, 0])
            if needs_grad:  # d log p / d scores = one_hot(label) - softmax
                error = scores.div_(-mass).scatter_add_(1, label, torch.ones_like(mass))
                d_hidden.append(error.to(part.dtype) @ weight)
        if needs_grad:
            ctx.save_for_backward(torch.cat(d_hidden))
        return torch.cat(found)

    @staticmethod
    def backward(ctx: Any, gradients: Tensor) -> Any:
        (d_hidden,) = ctx.saved_tensors
        return (d_hidden * gradients[:, None]).to(d_hidden.dtype), None, None, None, None


def _in_place(tensor: Tensor) -> bool:
    """Return whether results go into memory that is there: on CUDA torch keeps what was freed.

    Compiled code manages its own, and autocast leaves operations alone that are told where to.
    """
    return not (torch.compiler.is_compiling() or tensor.is_cuda or torch.is_autocast_enabled("cpu"))


def _add_product(total: Tensor | None, a: Tensor, b: Tensor, exact: torch.dtype) -> Tensor:
    """Add a product in place, except in compiled code: torch 2.11 would save the first `total`."""
    if total is None:
        return (a @ b).to(exact)
    if torch.compiler.is_compiling():
        return total + a @ b
    return total.addmm_(a, b) if a.dtype == exact and _in_place(a) else total.add_(a @ b)
