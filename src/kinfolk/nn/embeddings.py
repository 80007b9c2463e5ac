"""The table between ids and vectors, read in one direction or both."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from kinfolk.nn.linear import linear_or_matvec
from kinfolk.nn.losses import linear_cross_entropy, smoothed_linear_cross_entropy

PAD_TO_MULTIPLE = 64  # matrix units want the vocabulary's axis to be a multiple of this


class TokenEmbedding(nn.Embedding):
    """A vector for each id.

    The table is longer inside than the vocabulary, up to a multiple of 64 rows. The rows past
    the end stay zero, are never read, never predicted, and never saved.
    """

    def __init__(self, vocab_size: int, hidden_size: int) -> None:
        super().__init__(-(-vocab_size // PAD_TO_MULTIPLE) * PAD_TO_MULTIPLE, hidden_size)
        self.vocab_size = vocab_size

    def lm_logits(self, hidden: Tensor, bias: Tensor | None = None) -> "LinearLogits":
        """Score every id by its vector's product with the hidden state."""
        return LinearLogits(hidden, self.weight, bias, self.vocab_size)


@dataclass(frozen=True, eq=False)
class LinearLogits:
    """Scores over the vocabulary, computed when asked for, and never all at once for a loss."""

    hidden: Tensor  # (..., width)
    weight: Tensor  # (padded vocabulary, width)
    bias: Tensor | None  # (vocabulary,)
    vocab_size: int

    def logits(self) -> Tensor:
        """Return the scores: (..., vocabulary)."""
        # All rows: matrix units want as many. Those past the vocabulary score nothing.
        scores = linear_or_matvec(self.hidden, self.weight)[..., : self.vocab_size]
        return scores if self.bias is None else scores + self.bias

    def nll(self, labels: Tensor) -> Tensor:
        """Return the summed negative log-likelihood of the labels, in nats."""
        return linear_cross_entropy(self.hidden, self.weight, self.bias, labels, self.vocab_size)

    def smoothed_nll(self, labels: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
        """Return the same with a share of each label spread over the vocabulary, and the plain."""
        return smoothed_linear_cross_entropy(
            self.hidden, self.weight, self.bias, labels, self.vocab_size, smoothing
        )


@torch.no_grad()
def init_weights_(model: nn.Module, *, std: float, embedding_std: float | None = None) -> None:
    """Draw matrices and tables from a normal distribution; biases start at zero, norms at one."""
    for module in model.modules():
        if isinstance(module, nn.Linear):
            module.weight.normal_(0.0, std)
        if isinstance(module, nn.Embedding):
            module.weight.normal_(0.0, std if embedding_std is None else embedding_std)
        if isinstance(module, nn.Linear) and module.bias is not None:
            module.bias.zero_()
        if isinstance(module, TokenEmbedding):
            module.weight[module.vocab_size :] = 0.0
