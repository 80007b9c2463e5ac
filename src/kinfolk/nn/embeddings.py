"""Token embeddings and the logits tied to them, for one table or in clusters by frequency."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kinfolk.batch import IGNORE_INDEX, LazyLogits
from kinfolk.errors import UserError
from kinfolk.nn.layers import get_activation, linear_or_matvec
from kinfolk.nn.losses import linear_cross_entropy, smoothed_linear_cross_entropy

PAD_TO_MULTIPLE = 64  # matrix units need a vocabulary axis that is a multiple of this


class TokenEmbedding(nn.Embedding):
    """Token embeddings with rows up to a multiple of 64.

    The rows past the vocabulary are zero, and they are never read, predicted or saved.
    """

    def __init__(self, vocab_size: int, hidden_size: int) -> None:
        super().__init__(-(-vocab_size // PAD_TO_MULTIPLE) * PAD_TO_MULTIPLE, hidden_size)
        self.vocab_size = vocab_size

    @torch.no_grad()
    def set_rows(self, ids: npt.NDArray[np.int64], values: npt.NDArray[np.float32]) -> None:
        """Set the vectors of some tokens, such as those of a file of word vectors."""
        self.weight[torch.from_numpy(ids)] = torch.from_numpy(values)

    def lm_logits(self, hidden: Tensor, bias: Tensor | None = None) -> "LinearLogits":
        """Return the logits with the embeddings as output layer."""
        return LinearLogits(hidden, self.weight, bias, self.vocab_size)


@dataclass(frozen=True, eq=False)
class LinearLogits:
    """Logits of a linear layer, computed on demand and for a loss in chunks."""

    hidden: Tensor  # (..., hidden_size)
    weight: Tensor  # (padded vocabulary, hidden_size)
    bias: Tensor | None  # (vocabulary,)
    vocab_size: int

    def logits(self) -> Tensor:
        """Return the logits: (..., vocabulary)."""
        # With the padding rows, which matrix units need; they are cut off.
        scores = linear_or_matvec(self.hidden, self.weight)[..., : self.vocab_size]
        return scores if self.bias is None else scores + self.bias

    def nll(self, labels: Tensor) -> Tensor:
        """Return the summed negative log-likelihood of the labels, in nats."""
        return self.smoothed_nll(labels, 0.0)[0]

    def smoothed_nll(self, labels: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
        """Return the summed loss with label smoothing, and without it."""
        return smoothed_linear_cross_entropy(
            self.hidden, self.weight, self.bias, labels, self.vocab_size, smoothing
        )


@dataclass(frozen=True, eq=False)
class SampledLogits(LinearLogits):
    """Logits whose loss compares each label with some sampled ids (Bengio and Senecal, 2008).

    Ids are drawn from a Zipfian distribution, since they are sorted by frequency. Each counts as
    often as its probability is low, so that the sum over samples estimates that over all ids.
    `logits` has the scores of all ids, for evaluation.

    Deviation: TensorFlow's sampled softmax weights the label too. Its values are no likelihoods.
    """

    num_samples: int

    def nll(self, labels: Tensor) -> Tensor:
        """Return the summed loss of the labels among the samples, in nats."""
        kept = labels != IGNORE_INDEX
        hidden, labels = self.hidden[kept], labels[kept]
        # P(id) = log((id + 2) / (id + 1)) / log(vocabulary + 1), by inverting its distribution.
        uniform = torch.rand(self.num_samples, device=labels.device, dtype=torch.float64)
        samples = ((self.vocab_size + 1) ** uniform).long().sub(1).clamp(0, self.vocab_size - 1)
        same = samples == labels[:, None]  # a label that is drawn is no wrong answer
        probability = ((samples + 2) / (samples + 1)).log() / math.log(self.vocab_size + 1)
        # F.embedding and not weight[samples], whose gradient adds up in no fixed order where ids
        # repeat and the CPU has several threads; so does that of bias[samples].
        weights = F.embedding(samples, self.weight)
        scores = F.linear(hidden, weights) - (self.num_samples * probability).log()
        right = (hidden * F.embedding(labels, self.weight)).sum(-1)
        if self.bias is not None:
            scores = scores + self.bias.index_select(0, samples)
            right = right + self.bias.index_select(0, labels)
        together = torch.cat([right[:, None], scores.masked_fill(same, -torch.inf)], dim=1)
        return (together.float().logsumexp(1) - right).sum()


class AdaptiveEmbedding(nn.Module):
    """Embeddings in clusters of ids; those of cluster i are `div_val` ** i times smaller.

    As input (Baevski and Auli, 2018) the vectors are projected to the hidden size. As output (Grave
    et al., 2016) a first softmax chooses among the frequent ids and the clusters of rarer ones, and
    a second one inside the cluster. Both share the embeddings. Ids are assumed to be sorted by
    frequency, as trained vocabularies nearly are.

    A cluster ends before each of the `cutoffs`; cutoffs past the end of the vocabulary have no
    effect, so that a small vocabulary is one cluster with one softmax.
    """

    def __init__(
        self, vocab_size: int, hidden_size: int, *, cutoffs: Sequence[int] = (), div_val: int = 1
    ) -> None:
        super().__init__()
        bounds = [0, *(c for c in cutoffs if c < vocab_size), vocab_size]
        if any(low >= high for low, high in pairwise(bounds)):
            raise UserError(f"cutoffs={tuple(cutoffs)}: they must be positive and increasing")
        self.cutoff_ends = bounds
        widths = [hidden_size // div_val**i for i in range(len(bounds) - 1)]
        if not widths[-1]:
            raise UserError(
                f"div_val={div_val} with {len(widths)} clusters gives embeddings of size 0 "
                f"(hidden_size={hidden_size}): use fewer cutoffs or a smaller div_val"
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
        embedded: Tensor | None = None
        for cluster, (low, high) in enumerate(pairwise(self.cutoff_ends)):
            x = self.embeddings[cluster]((ids - low).clamp(0, high - low - 1))
            if self.projections:
                x = self.projections[cluster](x)
            embedded = x if embedded is None else torch.where((ids >= low)[..., None], x, embedded)
        assert embedded is not None
        return embedded

    def lm_logits(self, hidden: Tensor) -> LazyLogits:
        """Return the logits with the embeddings as output layer."""
        if self.cluster_head is None and self.output_projection is None:
            return LinearLogits(hidden, self.weight_of(0), self.bias, self.cutoff_ends[-1])
        return AdaptiveLogits(hidden, self)

    def weight_of(self, cluster: int) -> Tensor:
        """Return the embeddings of one cluster, with the padding rows."""
        table = self.embeddings[cluster]
        assert isinstance(table, TokenEmbedding)
        return table.weight


@dataclass(frozen=True, eq=False)
class AdaptiveLogits:
    """Logits over clusters and inside them, computed on demand."""

    hidden: Tensor  # (..., hidden_size)
    clusters: AdaptiveEmbedding

    def logits(self) -> Tensor:
        """Return the log-probabilities: (..., vocabulary)."""
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
        """Sum the loss of the labels of one cluster, given the cluster."""
        low, high = self.clusters.cutoff_ends[cluster : cluster + 2]
        hidden, weight, bias = self._inside(cluster)
        targets = torch.where((labels >= low) & (labels < high), labels - low, IGNORE_INDEX)
        # Few tokens are rare, so only theirs are computed. Compiled code and CUDA graphs compute
        # all, because their shapes must not depend on the tokens, and on the meta device there are
        # none.
        if not (
            torch.compiler.is_compiling()
            or targets.is_meta
            or (targets.is_cuda and torch.cuda.is_current_stream_capturing())
        ):
            at = torch.nonzero(targets != IGNORE_INDEX)[:, 0]
            hidden, targets = hidden[at], targets[at]
        return linear_cross_entropy(hidden, weight, bias, targets, len(bias))

    def _frequent(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return the hidden states, weight and bias for the frequent ids, then the clusters."""
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
        """Return the hidden states, weight and bias for the ids of a cluster of rarer ones."""
        c = self.clusters
        low, high = c.cutoff_ends[cluster : cluster + 2]
        hidden = self.hidden
        if c.projections:
            hidden = hidden @ c.projections.get_parameter(f"{cluster}.weight")
        return hidden, c.weight_of(cluster), c.bias[low:high]

    def _rare(self) -> range:
        return range(1, len(self.clusters.cutoff_ends) - 1)


class MaskedLMHead(nn.Module):
    """BERT's transformation of hidden states before the logits, and their bias."""

    def __init__(
        self,
        hidden_size: int,
        embedding_size: int,
        vocab_size: int,
        activation: str,
        layer_norm_eps: float,
    ) -> None:
        super().__init__()
        self.activation = get_activation(activation)
        self.dense = nn.Linear(hidden_size, embedding_size)
        self.norm = nn.LayerNorm(embedding_size, layer_norm_eps)
        self.bias = nn.Parameter(torch.zeros(vocab_size))

    def forward(self, hidden: Tensor) -> Tensor:
        return self.norm(self.activation(self.dense(hidden)))
