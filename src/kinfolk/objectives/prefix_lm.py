"""Prefix language modelling (Liu et al., 2018): bidirectional attention in a prefix, then causal.

text       the  cat  sat  down
input_ids  <s>  the  cat  sat  down
labels      .    .   sat  down </s>
order       0    0    0    1    2
attention  the prefix attends to all of itself; each later token to the prefix and to its past

The length of the prefix is random: from the first token alone, which is causal language modelling,
to all but the last. Raffel et al. (2020, section 3.2.1) gave it its name.
"""

import numpy as np

from kinfolk.batch import IGNORE_INDEX
from kinfolk.config import config
from kinfolk.data.chunks import Chunk, Rng
from kinfolk.data.examples import Example
from kinfolk.objectives.clm import CLM


@config("prefix")
class PrefixLM(CLM):
    """Predict the tokens after a prefix, and the end of each document."""

    loss_name = "prefix"

    def example(self, chunk: Chunk, rng: Rng, /) -> Example:
        """Draw the length of the prefix."""
        example = super().example(chunk, rng)
        return with_prefix(example, int(rng.integers(1, len(example.input_ids) + 1)))

    def for_evaluation(self) -> CLM:
        """Predict every token once: no prefix is longer than the first token."""
        return CLM(**self.common_fields)


def with_prefix(example: Example, prefix: int) -> Example:
    """Attend in both directions among the first tokens; the last of them predicts the next one."""
    assert example.labels is not None
    labels = example.labels.copy()
    labels[: prefix - 1] = IGNORE_INDEX
    order = np.maximum(np.arange(len(labels)) - prefix + 1, 0)
    return example.with_fields(labels=labels, order=order)
