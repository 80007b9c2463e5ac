"""Permutation language modelling (Yang et al., 2019): predict the last tokens of a random order.

text            the  cat  sat  down
input_ids       the  cat  sat  down  [S]  [C]
order            0    2    0    1     0    0
labels           .   cat   .   down   .    .
token_type_ids   0    0    0    0     0    2
attention       a token attends to the context (order 0) and to tokens of its own or a lower order;
                a prediction, where there is a label, to those of a lower order only
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from kinfolk.batch import IGNORE_INDEX, Batch, TokenTargets
from kinfolk.config import config, field
from kinfolk.data.chunks import (
    BoolArray,
    Chunk,
    ChunkIndex,
    IntArray,
    Rng,
    TokenizedDocuments,
    split_documents,
)
from kinfolk.data.examples import Collated, Example
from kinfolk.objectives.objective import Objective, max_predictions_field

MAX_SPAN = 5  # tokens (section 3.1)
_ODDS = 1.0 / np.arange(1, MAX_SPAN + 1)
SPAN_PROBS = tuple((_ODDS / _ODDS.sum()).tolist())  # of spans of 1, 2, 3 ... tokens
CLS_TOKEN_TYPE = 2  # of [CLS], which is in neither text of a pair (the released code)


def sample_spans(length: int, count: int, k: int, rng: Rng) -> BoolArray:
    """Choose `count` of `length` tokens: spans, each in a context `k` times as long, then others.

    The probability of a span of n tokens is in proportion to 1/n (the released code).
    """
    # Deviation: spans are counted in tokens, not in words, which few corpora mark.
    chosen = np.zeros(length, np.bool_)
    start, left = 0, count
    while left > 0:
        size = min(int(rng.choice(MAX_SPAN, p=SPAN_PROBS)) + 1, left)
        before = int(rng.integers(k * size))
        first = start + before
        if first + size > length:
            break
        chosen[first : first + size] = True
        start += (k + 1) * size
        left -= size
    rest = rng.permutation((~chosen).nonzero()[0])[:left]
    chosen[rest] = True
    return chosen


@config("permutation")
class PermutationLM(Objective):
    """Predict a fraction of the tokens one by one, in a random order, from all others."""

    partial_prediction_k: int = field(
        default=6, ge=2, le=2**24, help="predict one token in this many (K in section 2.3)"
    )

    loss_name = "permutation"
    required_tokens = ("cls", "sep")

    def chunks(self, documents: TokenizedDocuments, /) -> ChunkIndex:
        """Cut documents into chunks that fit a row with [SEP] and [CLS]."""
        chunks = split_documents(documents, self.max_length - 2)
        return replace(chunks, sizes=chunks.sizes + 2)

    def example(self, chunk: Chunk, rng: Rng, /) -> Example:
        """Choose the tokens that are predicted, and their order."""
        (ordinary,) = (~self.special_tokens.is_special(chunk.ids)).nonzero()
        count = min(len(ordinary), max(1, (len(chunk.ids) + 2) // self.partial_prediction_k))
        chosen = ordinary[sample_spans(len(ordinary), count, self.partial_prediction_k, rng)]
        return self.with_order(chunk.ids, rng.permutation(chosen))

    @cached_property
    def ending(self) -> IntArray:
        """The special tokens after a text."""
        return np.array([self.special_tokens.sep, self.special_tokens.cls])

    def with_order(self, ids: IntArray, predicted: IntArray) -> Example:
        """Add the special tokens to a text, and predict some tokens in the order given."""
        # Deviation: the released code draws an order for [SEP] and [CLS] too. Here they are
        # context, so that there is always some.
        ids = np.concatenate([ids, self.ending])
        order, token_type_ids, labels = np.zeros((3, len(ids)), np.int64)
        labels.fill(IGNORE_INDEX)
        order[predicted] = np.arange(1, len(predicted) + 1)
        labels[predicted] = ids[predicted]
        if not len(predicted):
            order[-1] = 1  # a query without a label, so that every row has one
        token_type_ids[-1] = CLS_TOKEN_TYPE
        return Example(input_ids=ids, labels=labels, order=order, token_type_ids=token_type_ids)

    def make_batch(
        self, collated: Collated, labels: Tensor, examples: Sequence[Example], /
    ) -> Batch[TokenTargets]:
        """Add the positions that are predicted and their labels."""
        order = collated.lay_out([e.order for e in examples if e.order is not None])
        positions, empty = self.query_positions(order.view_as(labels))
        inputs = replace(collated.inputs, target_positions=positions)
        wanted = labels.gather(1, positions).masked_fill(empty, IGNORE_INDEX).flatten()
        counts = {self.loss_name: int((wanted != IGNORE_INDEX).sum())}
        return Batch(inputs, TokenTargets(wanted), counts)

    def query_positions(self, order: Tensor) -> tuple[Tensor, Tensor]:
        """Return the positions that are predicted, and which of them are filling: (rows, queries).

        Each row has space for the expected number of predictions, or a power of two times that, so
        that shapes are static. Filling repeats the first query of its row.
        """
        counts = (order > 0).sum(1, keepdim=True)
        queries = max(1, order.shape[1] // self.partial_prediction_k)
        while queries < int(counts.max()):
            queries *= 2
        _, columns = order.nonzero(as_tuple=True)
        empty = torch.arange(queries) >= counts
        positions = order.new_zeros(len(order), queries)
        positions[~empty] = columns  # both row by row
        return torch.where(empty, positions[:, :1], positions), empty

    def for_evaluation(self) -> "PermutationLMScorer":
        """Predict every token from all the others."""
        return PermutationLMScorer(
            **self.common_fields, partial_prediction_k=self.partial_prediction_k
        )


@config("permutation_pll")
class PermutationLMScorer(PermutationLM):
    """Pseudo-likelihood (Salazar et al., 2020): each token once, last in the order."""

    max_predictions: int | None = max_predictions_field()

    def chunks(self, documents: TokenizedDocuments, /) -> ChunkIndex:
        """Take every chunk once per token."""
        chunks = super().chunks(documents)
        return chunks.with_repeats(chunks.stop - chunks.start, self.max_predictions)

    def example(self, chunk: Chunk, rng: Rng, /) -> Example:
        """Predict one token."""
        return self.with_order(chunk.ids, np.array([chunk.repeat]))
