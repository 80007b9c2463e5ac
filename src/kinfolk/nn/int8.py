"""Networks in int8, to write with on a CPU: a quarter of the memory is read for each token."""

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NoReturn, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kinfolk.errors import UserError
from kinfolk.nn.adaptive import Clustered, Clusters
from kinfolk.nn.losses import chunks
from kinfolk.nn.matrix import Matrix, kernel, matrix
from kinfolk.nn.table import Scores, Table
from kinfolk.types import IGNORED, Prediction

ONLY = "a network in int8 only reads and writes"


def lower(model: nn.Module) -> nn.Module:
    """Put the matrices of a network into int8, in place and for good, and return it.

    What predicts from a table of tokens becomes int8 too. Look-ups, norms and attention stay as
    they are. The network then neither learns nor is saved.
    """
    for name, weight in model.named_parameters():
        if weight.device.type != "cpu" or weight.dtype != torch.float32:
            raise UserError(
                f"{name} is {weight.dtype} on {weight.device}: int8 is made from float32 on the CPU"
            )
    if kernel() is None:
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
            if part is not None and not (isinstance(small, Clusters) and part is small.widen):
                small._modules[name] = _lowered(part, done)
    return done[module]


def _small(module: nn.Module) -> nn.Module:
    if isinstance(module, nn.Linear):
        return SmallLinear(module)
    if isinstance(module, Table):
        return SmallTable(module)
    return SmallClusters(module) if isinstance(module, Clusters) else module


class Small(nn.Module):
    """A part in int8: it refuses to learn and to be saved."""

    def train(self, mode: bool = True) -> Self:
        """Stay as it is, and refuse to learn."""
        if mode:
            raise UserError(f"{ONLY}: train the one it was made from")
        return super().train(mode)

    def _save_to_state_dict(self, *_: Any) -> NoReturn:
        raise UserError(f"{ONLY}: save the one it was made from")


class SmallLinear(Small):
    """A matrix and its bias."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.training = False
        self.matrix = matrix(linear.weight)
        self.bias = linear.bias

    def forward(self, x: Tensor) -> Tensor:
        return self.matrix(x, self.bias)


class SmallTable(Small, Table):
    """A table that is read in float32 and predicts in int8."""

    def __init__(self, table: Table) -> None:
        with torch.device("meta"):
            super().__init__(table.vocab, table.embedding_dim)
        self.training = False
        self.weight = table.weight
        self.matrix: Matrix | None = None

    def predict(self, hidden: Tensor, bias: Tensor | None = None) -> Scores:
        """Score every id; the first time, make the matrix: not every table predicts."""
        if self.matrix is None:
            self.matrix = matrix(self.weight[: self.vocab])
        return SmallScores(hidden, self.weight, bias, self.vocab, self.matrix)


class SmallClusters(Small, Clusters):
    """Tables in clusters that are read in float32 and predict in int8."""

    def __init__(self, clusters: Clusters) -> None:
        nn.Module.__init__(self)
        self.training = False
        self.bounds, self.bias = clusters.bounds, clusters.bias
        self.tables, self.widen = clusters.tables, clusters.widen
        self.narrow, self.rare = clusters.narrow, clusters.rare

    def predict(self, hidden: Tensor) -> Prediction:
        """Score every id by its cluster, and by its vector's product with the hidden state."""
        if self.rare is None and self.narrow is None:
            return self.score(0, hidden)
        return SmallClustered(hidden, self)

    def score(self, cluster: int, hidden: Tensor) -> Scores:
        """Score the ids of one cluster."""
        table, (low, high) = self.tables[cluster], self.bounds[cluster : cluster + 2]
        assert isinstance(table, SmallTable)
        return table.predict(hidden, self.bias[low:high])


@dataclass(frozen=True, eq=False)
class SmallScores(Scores):
    """Scores by a matrix in int8."""

    matrix: Matrix

    def logits(self) -> Tensor:
        """Return the scores: (..., vocabulary)."""
        return self.matrix(self.hidden, self.bias)

    def nll(self, labels: Tensor) -> Tensor:
        """Return the summed negative log-likelihood of the labels, in nats."""
        return self.smoothed(labels, 0.0)[1]

    def smoothed(self, labels: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
        """Return the same with a share of each label spread over the vocabulary, and the plain."""
        sums = self.hidden.new_zeros(2)
        for rows, wants in parts(self.hidden, labels, self.vocab):
            logits = self.matrix(rows, self.bias)
            for i, share in enumerate((smoothing, 0.0)):
                sums[i] += cross_entropy(logits, wants, share)
        return sums[0], sums[1]


@dataclass(frozen=True, eq=False)
class SmallClustered(Clustered):
    """Scores over clusters and inside them, by matrices in int8."""

    clusters: SmallClusters

    def logits(self) -> Tensor:
        """Return the logarithms of the probabilities: (..., vocabulary)."""
        c, frequent = self.clusters, self.clusters.bounds[1]
        hidden = self.hidden if c.narrow is None else c.narrow(self.hidden)
        first = c.score(0, hidden).logits()
        if c.rare is not None:
            first = torch.cat([first, c.rare(hidden)], dim=-1)
        first = first.log_softmax(-1)
        found = [first[..., :frequent]]
        for cluster in self._rare():
            inside = c.score(cluster, self._inside(cluster)[0]).logits()
            found.append(inside.log_softmax(-1) + first[..., frequent + cluster - 1, None])
        return torch.cat(found, dim=-1)

    def nll(self, labels: Tensor) -> Tensor:
        """Return the summed negative log-likelihood of the labels, in nats."""
        total = self.hidden.new_zeros(())
        for rows, wants in parts(self.hidden, labels, self.clusters.bounds[-1]):
            total += cross_entropy(SmallClustered(rows, self.clusters).logits(), wants)
        return total


def parts(hidden: Tensor, labels: Tensor, vocab: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Cut hidden states, (n, width), and their labels so that few logits are held at a time."""
    size = chunks(len(hidden), vocab, cuda=False)
    return zip(torch.split(hidden, size), torch.split(labels, size), strict=True)


def cross_entropy(logits: Tensor, labels: Tensor, smoothing: float = 0.0) -> Tensor:
    """Sum over the labels, leaving out those that are IGNORED."""
    return F.cross_entropy(
        logits, labels, ignore_index=IGNORED, reduction="sum", label_smoothing=smoothing
    )
