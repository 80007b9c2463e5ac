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

from kinfolk.batch import IGNORE_INDEX, LazyLogits
from kinfolk.errors import UserError
from kinfolk.nn.embeddings import LinearLogits, TokenEmbedding
from kinfolk.nn.losses import linear_cross_entropy


class AdaptiveEmbedding(nn.Module):
    """A vector for each id, read in both directions; cluster i is `div_val` ** i times narrower.

    Clusters end before each of the `cutoffs`; those past the vocabulary's end fall away, so that a
    small vocabulary is one cluster and one softmax.
    """

    def __init__(
        self, vocab_size: int, hidden_size: int, *, cutoffs: Sequence[int] = (), div_val: int = 1
    ) -> None:
        super().__init__()
        bounds = [0, *(c for c in cutoffs if c < vocab_size), vocab_size]
        if any(low >= high for low, high in pairwise(bounds)):
            raise UserError(f"the cutoffs {tuple(cutoffs)} do not rise from above 0: let them")
        self.cutoff_ends = bounds
        widths = [hidden_size // div_val**i for i in range(len(bounds) - 1)]
        if not widths[-1]:
            raise UserError(
                f"{len(widths)} clusters, each {div_val} times narrower, leave the last no width "
                f"of {hidden_size}: use fewer cutoffs or a smaller div_val"
            )
        self.embeddings = nn.ModuleList(
            TokenEmbedding(high - low, narrow)
            for (low, high), narrow in zip(pairwise(bounds), widths, strict=True)
        )
        projected = [nn.Linear(narrow, hidden_size, bias=False) for narrow in widths]
        self.projections = nn.ModuleList(projected if div_val > 1 else [])
        # The released code ties every projection of the output to that of the input but the first.
        self.output_projection = (
            nn.Linear(hidden_size, hidden_size, bias=False) if div_val > 1 else None
        )
        self.cluster_head = nn.Linear(hidden_size, len(widths) - 1) if len(widths) > 1 else None
        self.bias = nn.Parameter(torch.zeros(vocab_size))

    def forward(self, ids: Tensor) -> Tensor:
        found: Tensor | None = None
        for cluster, (low, high) in enumerate(pairwise(self.cutoff_ends)):
            x = self.embeddings[cluster]((ids - low).clamp(0, high - low - 1))
            if self.projections:
                x = self.projections[cluster](x)
            found = x if found is None else torch.where((ids >= low)[..., None], x, found)
        assert found is not None
        return found

    def lm_logits(self, hidden: Tensor) -> LazyLogits:
        """Score every id by its cluster, and by its vector's product with the hidden state."""
        if self.cluster_head is None and self.output_projection is None:
            return LinearLogits(hidden, self.weight_of(0), self.bias, self.cutoff_ends[-1])
        return AdaptiveLogits(hidden, self)

    def all_projections(self) -> list[nn.Module]:
        """Return the matrices between the vectors of a cluster and the network."""
        return [
            *self.projections,
            *([] if self.output_projection is None else [self.output_projection]),
        ]

    def weight_of(self, cluster: int) -> Tensor:
        """Return the vectors of one cluster, with the rows that only align it."""
        table = self.embeddings[cluster]
        assert isinstance(table, TokenEmbedding)
        return table.weight


@dataclass(frozen=True, eq=False)
class AdaptiveLogits:
    """Scores over clusters and inside them, computed when asked for."""

    hidden: Tensor  # (..., width)
    clusters: AdaptiveEmbedding

    def logits(self) -> Tensor:
        """Return the logarithms of the probabilities: (..., vocabulary)."""
        first, frequent = F.linear(*self._frequent()).log_softmax(-1), self.clusters.cutoff_ends[1]
        parts = [first[..., :frequent]]
        for cluster in self._rare():
            hidden, weight, bias = self._inside(cluster)
            inside = F.linear(hidden, weight[: len(bias)], bias).log_softmax(-1)
            parts.append(inside + first[..., frequent + cluster - 1, None])
        return torch.cat(parts, dim=-1)

    def nll(self, labels: Tensor) -> Tensor:
        """Return the summed negative log-likelihood of the labels, in nats."""
        bounds, first = self.clusters.cutoff_ends, labels
        for cluster in self._rare():
            first = torch.where(labels >= bounds[cluster], bounds[1] + cluster - 1, first)
        hidden, weight, bias = self._frequent()
        total = linear_cross_entropy(hidden, weight, bias, first, len(bias))
        for cluster in self._rare():
            total = total + self._within(cluster, labels)
        return total

    def _within(self, cluster: int, labels: Tensor) -> Tensor:
        """Sum over the labels of one cluster, given that it is the right one."""
        low, high = self.clusters.cutoff_ends[cluster : cluster + 2]
        hidden, weight, bias = self._inside(cluster)
        wants = torch.where((labels >= low) & (labels < high), labels - low, IGNORE_INDEX)
        # Few tokens are rare: the others need no scores here. A compiled learner scores them all
        # the same, because its shapes must not depend on what the tokens are.
        if not torch.compiler.is_compiling():
            at = torch.nonzero(wants != IGNORE_INDEX)[:, 0]
            hidden, wants = hidden[at], wants[at]
        return linear_cross_entropy(hidden, weight, bias, wants, len(bias))

    def _frequent(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return what scores the frequent ids and, after them, the clusters of rare ones."""
        c = self.clusters
        hidden = self.hidden if c.output_projection is None else c.output_projection(self.hidden)
        size = c.cutoff_ends[1]
        weight, bias = c.weight_of(0)[:size], c.bias[:size]
        if c.cluster_head is None:
            return hidden, weight, bias
        return (
            hidden,
            torch.cat([weight, c.cluster_head.weight]),
            torch.cat([bias, c.cluster_head.bias]),
        )

    def _inside(self, cluster: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return what scores the ids of one cluster of rare ones."""
        c = self.clusters
        low, high = c.cutoff_ends[cluster : cluster + 2]
        hidden = self.hidden
        if c.projections:
            hidden = hidden @ c.projections.get_parameter(f"{cluster}.weight")
        return hidden, c.weight_of(cluster), c.bias[low:high]

    def _rare(self) -> range:
        return range(1, len(self.clusters.cutoff_ends) - 1)
