"""Int8 networks for generation on a CPU, which read a quarter of the memory per token."""

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NoReturn, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kinfolk.batch import IGNORE_INDEX, LazyLogits
from kinfolk.errors import UserError
from kinfolk.nn.embeddings import AdaptiveEmbedding, AdaptiveLogits, LinearLogits, TokenEmbedding
from kinfolk.nn.int8_matmul import Int8Matrix, int8_matrix, load_kernel
from kinfolk.nn.layers import SlicedLinear
from kinfolk.nn.losses import chunk_rows
from kinfolk.nn.meta import meta_device

ONLY = "a network in int8 is for inference only"


def quantize_int8(model: nn.Module) -> nn.Module:
    """Quantize the matrices of a network to int8, in place, and return it.

    The output layer becomes int8 too, tied or not. Look-ups of embeddings, norms and attention stay
    in float32. The network can then neither be trained nor saved.
    """
    for name, weight in model.named_parameters():
        if weight.device.type != "cpu" or weight.dtype != torch.float32:
            raise UserError(
                f"{name} is {weight.dtype} on {weight.device}: int8 needs float32 on the CPU"
            )
    if load_kernel() is None:
        warnings.warn(
            "no C compiler (cc, gcc or clang) could build the int8 kernel: using torch's, "
            "which is slower",
            stacklevel=2,
        )
    model.eval().requires_grad_(False)
    done: dict[nn.Module, nn.Module] = {}  # a shared module stays shared
    return _quantized(model, done)


def _quantized(module: nn.Module, done: dict[nn.Module, nn.Module]) -> nn.Module:
    if module not in done:
        done[module] = quantized = _int8_module(module)
        for name, part in quantized._modules.items():
            # The projections of rare ids are also used transposed.
            if part is not None and not (
                isinstance(quantized, AdaptiveEmbedding) and part is quantized.projections
            ):
                quantized._modules[name] = _quantized(part, done)
    return done[module]


def _int8_module(module: nn.Module) -> nn.Module:
    if isinstance(module, nn.Linear) and not isinstance(module, SlicedLinear):
        return Int8Linear(module)
    if isinstance(module, TokenEmbedding):
        return Int8TokenEmbedding(module)
    return Int8AdaptiveEmbedding(module) if isinstance(module, AdaptiveEmbedding) else module


class Int8Module(nn.Module):
    """A module in int8, which can neither be trained nor saved."""

    def train(self, mode: bool = True) -> Self:
        """Refuse training mode."""
        if mode:
            raise UserError(f"{ONLY}: train the float32 network")
        return super().train(mode)

    def _save_to_state_dict(self, *_: Any) -> NoReturn:
        raise UserError(f"{ONLY}: save the float32 network")


class Int8Linear(Int8Module):
    """A linear layer in int8."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.training = False
        self.matrix = int8_matrix(linear.weight)
        self.bias = linear.bias

    def forward(self, x: Tensor) -> Tensor:
        return self.matrix(x, self.bias)


class Int8TokenEmbedding(Int8Module, TokenEmbedding):
    """Embeddings with float32 look-ups and int8 logits."""

    def __init__(self, table: TokenEmbedding) -> None:
        with meta_device():
            super().__init__(table.vocab_size, table.embedding_dim)
        self.training = False
        self.weight = table.weight
        self.matrix: Int8Matrix | None = None

    def lm_logits(self, hidden: Tensor, bias: Tensor | None = None) -> LinearLogits:
        """Return the logits; the first call quantizes, as not all embeddings are output layers."""
        if self.matrix is None:
            self.matrix = int8_matrix(self.weight[: self.vocab_size])
        return Int8LinearLogits(hidden, self.weight, bias, self.vocab_size, self.matrix)


class Int8AdaptiveEmbedding(Int8Module, AdaptiveEmbedding):
    """Adaptive embeddings with float32 look-ups and int8 logits."""

    def __init__(self, clusters: AdaptiveEmbedding) -> None:
        nn.Module.__init__(self)
        self.training = False
        self.cutoff_ends, self.bias = clusters.cutoff_ends, clusters.bias
        self.embeddings, self.projections = clusters.embeddings, clusters.projections
        self.output_projection, self.cluster_head = (
            clusters.output_projection,
            clusters.cluster_head,
        )

    def lm_logits(self, hidden: Tensor) -> LazyLogits:
        """Return the logits with the embeddings as output layer."""
        if self.cluster_head is None and self.output_projection is None:
            return self.score(0, hidden)
        return Int8AdaptiveLogits(hidden, self)

    def score(self, cluster: int, hidden: Tensor) -> LinearLogits:
        """Return the logits of one cluster."""
        table, (low, high) = self.embeddings[cluster], self.cutoff_ends[cluster : cluster + 2]
        assert isinstance(table, Int8TokenEmbedding)
        return table.lm_logits(hidden, self.bias[low:high])


@dataclass(frozen=True, eq=False)
class Int8LinearLogits(LinearLogits):
    """Logits of a matrix in int8."""

    matrix: Int8Matrix

    def logits(self) -> Tensor:
        """Return the logits: (..., vocabulary)."""
        return self.matrix(self.hidden, self.bias)

    def smoothed_nll(self, labels: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
        """Return the summed loss with label smoothing, and without it."""
        sums = self.hidden.new_zeros(2)
        for rows, targets in logit_chunks(self.hidden, labels, self.vocab_size):
            logits = self.matrix(rows, self.bias)
            for i, label_smoothing in enumerate((smoothing, 0.0)):
                sums[i] += int8_cross_entropy(logits, targets, label_smoothing)
        return sums[0], sums[1]


@dataclass(frozen=True, eq=False)
class Int8AdaptiveLogits(AdaptiveLogits):
    """Logits over clusters and inside them, of matrices in int8."""

    clusters: Int8AdaptiveEmbedding

    def logits(self) -> Tensor:
        """Return the log-probabilities: (..., vocabulary)."""
        c, frequent = self.clusters, self.clusters.cutoff_ends[1]
        hidden = self.hidden if c.output_projection is None else c.output_projection(self.hidden)
        first = c.score(0, hidden).logits()
        if c.cluster_head is not None:
            first = torch.cat([first, c.cluster_head(hidden)], dim=-1)
        first = first.log_softmax(-1)
        parts = [first[..., :frequent]]
        for cluster in self._rare():
            inside = c.score(cluster, self._inside(cluster)[0]).logits()
            parts.append(inside.log_softmax(-1) + first[..., frequent + cluster - 1, None])
        return torch.cat(parts, dim=-1)

    def nll(self, labels: Tensor) -> Tensor:
        """Return the summed negative log-likelihood of the labels, in nats."""
        total = self.hidden.new_zeros(())
        for rows, targets in logit_chunks(self.hidden, labels, self.clusters.cutoff_ends[-1]):
            total += int8_cross_entropy(Int8AdaptiveLogits(rows, self.clusters).logits(), targets)
        return total


def logit_chunks(hidden: Tensor, labels: Tensor, vocab: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Split hidden states, (n, hidden_size), and labels so that few logits are held at a time."""
    size = chunk_rows(len(hidden), vocab, cuda=False)
    return zip(torch.split(hidden, size), torch.split(labels, size), strict=True)


def int8_cross_entropy(logits: Tensor, labels: Tensor, smoothing: float = 0.0) -> Tensor:
    """Sum the loss over labels that are not IGNORE_INDEX."""
    return F.cross_entropy(
        logits, labels, ignore_index=IGNORE_INDEX, reduction="sum", label_smoothing=smoothing
    )
