"""Networks in int8, to write with on a CPU: a quarter of the memory is read for each token."""

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
from kinfolk.nn.losses import chunk_rows

ONLY = "a network in int8 only reads and writes"


def quantize_int8(model: nn.Module) -> nn.Module:
    """Put the matrices of a network into int8, in place and for good, and return it.

    What predicts from a table of tokens becomes int8 too. Look-ups, norms and attention stay as
    they are. The network then neither learns nor is saved.
    """
    for name, weight in model.named_parameters():
        if weight.device.type != "cpu" or weight.dtype != torch.float32:
            raise UserError(
                f"{name} is {weight.dtype} on {weight.device}: int8 is made from float32 on the CPU"
            )
    if load_kernel() is None:
        warnings.warn(
            "no C compiler (cc, gcc or clang) built the int8 kernel: torch's own is used, "
            "which is slower",
            stacklevel=2,
        )
    model.eval().requires_grad_(False)
    done: dict[nn.Module, nn.Module] = {}  # a part that stands in several places stays one
    return _lowered(model, done)


def _lowered(module: nn.Module, done: dict[nn.Module, nn.Module]) -> nn.Module:
    if module not in done:
        done[module] = small = _small(module)
        for name, part in small._modules.items():
            # The matrices that widen rare ids' vectors are also read the other way round.
            if part is not None and not (
                isinstance(small, AdaptiveEmbedding) and part is small.projections
            ):
                small._modules[name] = _lowered(part, done)
    return done[module]


def _small(module: nn.Module) -> nn.Module:
    if isinstance(module, nn.Linear):
        return Int8Linear(module)
    if isinstance(module, TokenEmbedding):
        return Int8TokenEmbedding(module)
    return Int8AdaptiveEmbedding(module) if isinstance(module, AdaptiveEmbedding) else module


class Int8Module(nn.Module):
    """A part in int8: it refuses to learn and to be saved."""

    def train(self, mode: bool = True) -> Self:
        """Stay as it is, and refuse to learn."""
        if mode:
            raise UserError(f"{ONLY}: train the one it was made from")
        return super().train(mode)

    def _save_to_state_dict(self, *_: Any) -> NoReturn:
        raise UserError(f"{ONLY}: save the one it was made from")


class Int8Linear(Int8Module):
    """A matrix and its bias."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.training = False
        self.matrix = int8_matrix(linear.weight)
        self.bias = linear.bias

    def forward(self, x: Tensor) -> Tensor:
        return self.matrix(x, self.bias)


class Int8TokenEmbedding(Int8Module, TokenEmbedding):
    """A table that is read in float32 and predicts in int8."""

    def __init__(self, table: TokenEmbedding) -> None:
        with torch.device("meta"):
            super().__init__(table.vocab_size, table.embedding_dim)
        self.training = False
        self.weight = table.weight
        self.matrix: Int8Matrix | None = None

    def lm_logits(self, hidden: Tensor, bias: Tensor | None = None) -> LinearLogits:
        """Score every id; the first time, make the matrix: not every table predicts."""
        if self.matrix is None:
            self.matrix = int8_matrix(self.weight[: self.vocab_size])
        return Int8LinearLogits(hidden, self.weight, bias, self.vocab_size, self.matrix)


class Int8AdaptiveEmbedding(Int8Module, AdaptiveEmbedding):
    """Tables in clusters that are read in float32 and predict in int8."""

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
        """Score every id by its cluster, and by its vector's product with the hidden state."""
        if self.cluster_head is None and self.output_projection is None:
            return self.score(0, hidden)
        return Int8AdaptiveLogits(hidden, self)

    def score(self, cluster: int, hidden: Tensor) -> LinearLogits:
        """Score the ids of one cluster."""
        table, (low, high) = self.embeddings[cluster], self.cutoff_ends[cluster : cluster + 2]
        assert isinstance(table, Int8TokenEmbedding)
        return table.lm_logits(hidden, self.bias[low:high])


@dataclass(frozen=True, eq=False)
class Int8LinearLogits(LinearLogits):
    """Scores by a matrix in int8."""

    matrix: Int8Matrix

    def logits(self) -> Tensor:
        """Return the scores: (..., vocabulary)."""
        return self.matrix(self.hidden, self.bias)

    def nll(self, labels: Tensor) -> Tensor:
        """Return the summed negative log-likelihood of the labels, in nats."""
        return self.smoothed_nll(labels, 0.0)[1]

    def smoothed_nll(self, labels: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
        """Return the same with a share of each label spread over the vocabulary, and the plain."""
        sums = self.hidden.new_zeros(2)
        for rows, wants in logit_chunks(self.hidden, labels, self.vocab_size):
            logits = self.matrix(rows, self.bias)
            for i, share in enumerate((smoothing, 0.0)):
                sums[i] += cross_entropy(logits, wants, share)
        return sums[0], sums[1]


@dataclass(frozen=True, eq=False)
class Int8AdaptiveLogits(AdaptiveLogits):
    """Scores over clusters and inside them, by matrices in int8."""

    clusters: Int8AdaptiveEmbedding

    def logits(self) -> Tensor:
        """Return the logarithms of the probabilities: (..., vocabulary)."""
        c, frequent = self.clusters, self.clusters.cutoff_ends[1]
        hidden = self.hidden if c.output_projection is None else c.output_projection(self.hidden)
        first = c.score(0, hidden).logits()
        if c.cluster_head is not None:
            first = torch.cat([first, c.cluster_head(hidden)], dim=-1)
        first = first.log_softmax(-1)
        found = [first[..., :frequent]]
        for cluster in self._rare():
            inside = c.score(cluster, self._inside(cluster)[0]).logits()
            found.append(inside.log_softmax(-1) + first[..., frequent + cluster - 1, None])
        return torch.cat(found, dim=-1)

    def nll(self, labels: Tensor) -> Tensor:
        """Return the summed negative log-likelihood of the labels, in nats."""
        total = self.hidden.new_zeros(())
        for rows, wants in logit_chunks(self.hidden, labels, self.clusters.cutoff_ends[-1]):
            total += cross_entropy(Int8AdaptiveLogits(rows, self.clusters).logits(), wants)
        return total


def logit_chunks(hidden: Tensor, labels: Tensor, vocab: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Cut hidden states, (n, width), and their labels so that few logits are held at a time."""
    size = chunk_rows(len(hidden), vocab, cuda=False)
    return zip(torch.split(hidden, size), torch.split(labels, size), strict=True)


def cross_entropy(logits: Tensor, labels: Tensor, smoothing: float = 0.0) -> Tensor:
    """Sum over the labels, leaving out those that are IGNORED."""
    return F.cross_entropy(
        logits, labels, ignore_index=IGNORE_INDEX, reduction="sum", label_smoothing=smoothing
    )
