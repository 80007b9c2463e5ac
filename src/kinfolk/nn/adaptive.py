"""Tables for large vocabularies, in clusters: rare ids have shorter vectors and are asked for last.

As input (Baevski and Auli, 2018) an id's vector is widened to the stream. As output (Grave et al.,
2016) a first softmax chooses among the frequent ids and the clusters of rare ones, and a second one
inside the cluster. Both read the same tables. Ids are taken to be numbered by how frequent they
are, as trained vocabularies nearly are.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kinfolk.errors import UserError
from kinfolk.nn.losses import cross_entropy
from kinfolk.nn.table import Scores, Table
from kinfolk.types import IGNORED, Prediction


class Clusters(nn.Module):
    """A vector for each id, read in both directions; cluster i is `divisor` ** i times narrower.

    Clusters end before each of the `cutoffs`; those past the vocabulary's end fall away, so that a
    small vocabulary is one cluster and one softmax.
    """

    def __init__(
        self, vocab: int, width: int, *, cutoffs: Sequence[int] = (), divisor: int = 1
    ) -> None:
        super().__init__()
        bounds = [0, *(c for c in cutoffs if c < vocab), vocab]
        if any(low >= high for low, high in pairwise(bounds)):
            raise UserError(f"the cutoffs {tuple(cutoffs)} do not rise from above 0: let them")
        self.bounds = bounds
        widths = [width // divisor**i for i in range(len(bounds) - 1)]
        if not widths[-1]:
            raise UserError(
                f"{len(widths)} clusters, each {divisor} times narrower, leave the last no width "
                f"of {width}: use fewer cutoffs or a smaller divisor"
            )
        self.tables = nn.ModuleList(
            Table(high - low, narrow)
            for (low, high), narrow in zip(pairwise(bounds), widths, strict=True)
        )
        projected = [nn.Linear(narrow, width, bias=False) for narrow in widths]
        self.widen = nn.ModuleList(projected if divisor > 1 else [])
        # The released code ties every projection of the output to that of the input but the first.
        self.narrow = nn.Linear(width, width, bias=False) if divisor > 1 else None
        self.rare = nn.Linear(width, len(widths) - 1) if len(widths) > 1 else None
        self.bias = nn.Parameter(torch.zeros(vocab))

    def forward(self, ids: Tensor) -> Tensor:
        found: Tensor | None = None
        for cluster, (low, high) in enumerate(pairwise(self.bounds)):
            x = self.tables[cluster]((ids - low).clamp(0, high - low - 1))
            if self.widen:
                x = self.widen[cluster](x)
            found = x if found is None else torch.where((ids >= low)[..., None], x, found)
        assert found is not None
        return found

    def predict(self, hidden: Tensor) -> Prediction:
        """Score every id by its cluster, and by its vector's product with the hidden state."""
        if self.rare is None and self.narrow is None:
            return Scores(hidden, self.table(0), self.bias, self.bounds[-1])
        return Clustered(hidden, self)

    def projections(self) -> list[nn.Module]:
        """Return the matrices between the vectors of a cluster and the network."""
        return [*self.widen, *([] if self.narrow is None else [self.narrow])]

    def table(self, cluster: int) -> Tensor:
        """Return the vectors of one cluster, with the rows that only align it."""
        table = self.tables[cluster]
        assert isinstance(table, Table)
        return table.weight


@dataclass(frozen=True, eq=False)
class Clustered:
    """Scores over clusters and inside them, computed when asked for."""

    hidden: Tensor  # (..., width)
    clusters: Clusters

    def logits(self) -> Tensor:
        """Return the logarithms of the probabilities: (..., vocabulary)."""
        first, frequent = F.linear(*self._frequent()).log_softmax(-1), self.clusters.bounds[1]
        parts = [first[..., :frequent]]
        for cluster in self._rare():
            hidden, weight, bias = self._inside(cluster)
            inside = F.linear(hidden, weight[: len(bias)], bias).log_softmax(-1)
            parts.append(inside + first[..., frequent + cluster - 1, None])
        return torch.cat(parts, dim=-1)

    def nll(self, labels: Tensor) -> Tensor:
        """Return the summed negative log-likelihood of the labels, in nats."""
        bounds, first = self.clusters.bounds, labels
        for cluster in self._rare():
            first = torch.where(labels >= bounds[cluster], bounds[1] + cluster - 1, first)
        hidden, weight, bias = self._frequent()
        total = cross_entropy(hidden, weight, bias, first, len(bias))
        for cluster in self._rare():
            total = total + self._within(cluster, labels)
        return total

    def _within(self, cluster: int, labels: Tensor) -> Tensor:
        """Sum over the labels of one cluster, given that it is the right one."""
        low, high = self.clusters.bounds[cluster : cluster + 2]
        hidden, weight, bias = self._inside(cluster)
        wants = torch.where((labels >= low) & (labels < high), labels - low, IGNORED)
        # Few tokens are rare: the others need no scores here. A compiled learner scores them all
        # the same, because its shapes must not depend on what the tokens are.
        if not torch.compiler.is_compiling():
            at = torch.nonzero(wants != IGNORED)[:, 0]
            hidden, wants = hidden[at], wants[at]
        return cross_entropy(hidden, weight, bias, wants, len(bias))

    def _frequent(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return what scores the frequent ids and, after them, the clusters of rare ones."""
        c = self.clusters
        hidden = self.hidden if c.narrow is None else c.narrow(self.hidden)
        size = c.bounds[1]
        weight, bias = c.table(0)[:size], c.bias[:size]
        if c.rare is None:
            return hidden, weight, bias
        return hidden, torch.cat([weight, c.rare.weight]), torch.cat([bias, c.rare.bias])

    def _inside(self, cluster: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return what scores the ids of one cluster of rare ones."""
        c = self.clusters
        low, high = c.bounds[cluster : cluster + 2]
        hidden = self.hidden
        if c.widen:
            hidden = hidden @ c.widen.get_parameter(f"{cluster}.weight")
        return hidden, c.table(cluster), c.bias[low:high]

    def _rare(self) -> range:
        return range(1, len(self.clusters.bounds) - 1)
