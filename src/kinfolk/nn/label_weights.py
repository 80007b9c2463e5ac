"""Learned weights of label sets, of each set and of each sentence (after Jia et al. 2022).

label sets       0 1        0 0        1 1        of three sentences, by two sets
weights        .7 .3      .6 .4      .8 .2       softmax(gains of the sets + network(sentence))
target            .3          0          1        of the extractor

A loss whose targets have gradients is lowest where they agree with whatever the extractor predicts:
few sentences are chosen, so that a set that chooses none would win. Two things prevent that. The
extractor and the weights learn from different documents, as in first-order DARTS (Liu et al. 2019),
so that memorized labels gain nothing. And the gain of a set is how much closer to its labels the
extractor is than the share of sentences that the set chooses: a constant prediction gains nothing,
and noise loses.

The network predicts gains by least squares, and the weights are a softmax of the predicted gains:
those that maximize the gain minus TEMPERATURE times their divergence from equal ones. Maximized by
its gradient they would stay with one set for all sentences once it is ahead.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kinfolk.nn.init import init_weights_

TEMPERATURE = 0.05  # sets whose gains differ by this much have weights that differ by a factor of e


class LabelWeights(nn.Module):
    """The gains of label sets, which start equal."""

    def __init__(self, hidden_size: int, label_sets: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(hidden_size)
        self.dense = nn.Linear(hidden_size, hidden_size)
        self.out_proj = nn.Linear(hidden_size, label_sets, bias=False)
        init_weights_(self, std=hidden_size**-0.5)
        nn.init.zeros_(self.out_proj.weight)
        self.set_bias = nn.Parameter(torch.zeros(label_sets))
        # Steps of Adam are as large for one number as for each of the many of `out_proj`.
        self.scale = hidden_size

    @property
    def of_sets(self) -> Tensor:
        """The predicted gains of the sets, of all sentences together: (sets,)."""
        return TEMPERATURE * self.scale * self.set_bias.float()

    def forward(self, sentences: Tensor) -> Tensor:
        """Return the predicted gains of each sentence, (sentences, sets).

        The vectors of sentences and the gains of sets get no gradient.
        """
        hidden = F.gelu(self.dense(self.norm(sentences.detach())))
        return self.of_sets.detach() + TEMPERATURE * self.out_proj(hidden).float()


def weights_of(gains: Tensor) -> Tensor:
    """Return the weights of label sets by their gains: (..., sets), which sum to 1."""
    return (gains / TEMPERATURE).softmax(-1)


def label_gains(probabilities: Tensor, labels: Tensor, rates: Tensor) -> Tensor:
    """Return how much closer to labels the probabilities are than the rates of their sets.

    Both distances are squares: (sentences,), (sentences, sets), (sets,) -> (sentences, sets).
    """
    return (rates - labels).square() - (probabilities[:, None] - labels).square()
