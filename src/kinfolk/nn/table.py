"""The table between ids and vectors, read in one direction or both."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from kinfolk.nn.linear import product
from kinfolk.nn.losses import cross_entropy, smoothed_cross_entropy

ALIGNMENT = 64  # matrix units want the vocabulary's axis to be a multiple of this


class Table(nn.Embedding):
    """A vector for each id.

    The table is longer inside than the vocabulary, up to a multiple of 64 rows. The rows past
    the end stay zero, are never read, never predicted, and never saved.
    """

    def __init__(self, vocab: int, width: int) -> None:
        super().__init__(-(-vocab // ALIGNMENT) * ALIGNMENT, width)
        self.vocab = vocab

    def predict(self, hidden: Tensor, bias: Tensor | None = None) -> "Scores":
        """Score every id by its vector's product with the hidden state."""
        return Scores(hidden, self.weight, bias, self.vocab)


@dataclass(frozen=True, eq=False)
class Scores:
    """Scores over the vocabulary, computed when asked for, and never all at once for a loss."""

    hidden: Tensor  # (..., width)
    weight: Tensor  # (padded vocabulary, width)
    bias: Tensor | None  # (vocabulary,)
    vocab: int

    def logits(self) -> Tensor:
        """Return the scores: (..., vocabulary)."""
        # All rows: matrix units want as many. Those past the vocabulary score nothing.
        scores = product(self.hidden, self.weight)[..., : self.vocab]
        return scores if self.bias is None else scores + self.bias

    def nll(self, labels: Tensor) -> Tensor:
        """Return the summed negative log-likelihood of the labels, in nats."""
        return cross_entropy(self.hidden, self.weight, self.bias, labels, self.vocab)

    def smoothed(self, labels: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
        """Return the same with a share of each label spread over the vocabulary, and the plain."""
        return smoothed_cross_entropy(
            self.hidden, self.weight, self.bias, labels, self.vocab, smoothing
        )


@torch.no_grad()
def initialise(model: nn.Module, *, std: float, tables: float | None = None) -> None:
    """Draw matrices and tables from a normal distribution; biases start at zero, norms at one."""
    for module in model.modules():
        if isinstance(module, nn.Linear):
            module.weight.normal_(0.0, std)
        if isinstance(module, nn.Embedding):
            module.weight.normal_(0.0, std if tables is None else tables)
        if isinstance(module, nn.Linear) and module.bias is not None:
            module.bias.zero_()
        if isinstance(module, Table):
            module.weight[module.vocab :] = 0.0
