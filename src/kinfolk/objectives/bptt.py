"""Truncated BPTT of varying length, with activation penalties (Merity et al., 2018).

text       the  cat  sat  down
input_ids  <s>  the | cat  sat | down
labels     the  cat | sat  down | </s>
attention  each token sees the past of its document, through the state of the row before

The lengths of rows vary from batch to batch, so that documents are not cut at the same tokens in
every epoch.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor

from kinfolk.batch import Batch, Loss, TokenTargets
from kinfolk.config import config, field
from kinfolk.data.chunks import IntArray, Rng
from kinfolk.data.examples import Collated, Example
from kinfolk.nn.language_model import LanguageModel
from kinfolk.objectives.recurrent_clm import RecurrentCLM
from kinfolk.packed_texts import WholeRows

# Section 5: the mean length is halved with a probability of 0.05, the deviation is 5 tokens.
FULL_PROBABILITY, LENGTH_STD, MIN_LENGTH = 0.95, 5.0, 5
USUAL_DEVIATION = 15  # three deviations: 19 of 20 batches, in 31 lengths


@config("bptt")
class BPTT(RecurrentCLM):
    """Predict the next token; penalize large activations (AR) and their changes (TAR)."""

    variable_length: bool = field(
        default=True, help="draw the length of each batch of rows around max_length"
    )
    ar_weight: float = field(
        default=2.0, ge=0, le=1e6, help="weight of the squared activations (AR, alpha)"
    )
    tar_weight: float = field(
        default=1.0, ge=0, le=1e6, help="weight of their squared changes in time (TAR, beta)"
    )

    loss_name = "bptt"

    @property
    def row_length(self) -> int | None:
        """The length of the rows of every batch; None where batches differ."""
        return None if self.variable_length else self.max_length

    @property
    def usual_lengths(self) -> range | None:
        """The lengths that the rows of most batches have where batches differ, else None.

        They depend on the objective alone: a resumed run has the same.
        """
        if not self.variable_length:
            return None
        first = max(MIN_LENGTH, self.max_length - USUAL_DEVIATION)
        return range(first, max(first, self.max_length + USUAL_DEVIATION) + 1)

    def segment_lengths(self, total: int, rng: Rng) -> IntArray:
        """Draw lengths that add up to `total`."""
        # Deviation: the paper multiplies the learning rate of a batch by its length over the mean;
        # the steps of AdamW do not depend on the scale of the loss.
        if not self.variable_length:
            return super().segment_lengths(total, rng)
        size = 2 * -(-total // self.max_length)  # twice the expected number, and more if needed
        lengths = np.zeros(0, np.int64)
        while lengths.sum() < total:
            full = rng.random(size) < FULL_PROBABILITY
            drawn = rng.normal(np.where(full, self.max_length, self.max_length / 2), LENGTH_STD)
            lengths = np.append(lengths, np.maximum(drawn.astype(np.int64), MIN_LENGTH))
        ends = np.minimum(lengths.cumsum(), total)
        return np.diff(np.unique(ends), prepend=0)

    def make_batch(
        self, collated: Collated, labels: Tensor, examples: Sequence[Example], /
    ) -> Batch[Any]:
        """Add targets, and count the activations and their changes."""
        batch = super().make_batch(collated, labels, examples)
        ids = collated.inputs.attention_mask.document_ids
        parts = {"ar": int((ids >= 0).sum()), "tar": int(same_text(ids).sum())}
        return Batch(batch.inputs, batch.targets, {**batch.counts, **parts})

    def loss(self, model: LanguageModel, batch: Batch[TokenTargets], /) -> Loss:
        """Return the summed -log p(next token), in training with the penalties, and the memory."""
        output, likelihood = self.likelihood(model, batch)
        if not model.training:
            return likelihood
        assert output.undropped is not None, "the network returns no activations"
        # Means over features, summed over tokens; padding is 0.
        sums = {**likelihood.sums, "ar": output.hidden.float().square().mean(-1).sum()}
        change = output.undropped[:, 1:].float() - output.undropped[:, :-1].float()
        changes, attention_mask = change.square().mean(-1), batch.inputs.attention_mask
        if not isinstance(attention_mask.texts, WholeRows):
            changes = changes * same_text(attention_mask.document_ids)
        sums["tar"] = changes.sum()
        weights = {"ar": self.ar_weight, "tar": self.tar_weight}
        return Loss(sums, weights, likelihood.memory)

    def for_evaluation(self) -> RecurrentCLM:
        """Return the objective without penalties, in rows of one length."""
        return RecurrentCLM(**self.common_fields)


def same_text(document_ids: Tensor) -> Tensor:
    """Return which tokens continue the text of the token before: (rows, length - 1)."""
    return (document_ids[:, 1:] == document_ids[:, :-1]) & (document_ids[:, 1:] >= 0)
