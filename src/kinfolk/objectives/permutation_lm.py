"""Permutation language modelling (Yang et al., 2019): predict the last tokens of a drawn order.

text    the  cat  sat  down
ids     the  cat  sat  down  [S]  [C]
order    0    2    0    1     0    0
labels   .   cat   .   down   .    .
sight   a token sees the context (order 0) and the tokens of its order and before
        a guess, which stands where there is a label, sees those before its own alone
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from kinfolk.attention_mask import AttentionMask
from kinfolk.batch import IGNORE_INDEX, Batch, Inputs, Loss, PredictsTokens, TokenTargets
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
from kinfolk.data.examples import document_and_position_ids, pad_rows
from kinfolk.text.tokenizer import SpecialTokens

LONGEST = 5  # tokens in a span (section 3.1)
CLS_TOKEN_TYPE = 2  # the segment of [CLS], which is neither of a pair's two (the released code)


@dataclass(frozen=True)
class Permuted:
    """Tokens, their order (0 in the context), and what is predicted."""

    ids: IntArray
    order: IntArray
    labels: IntArray

    @property
    def token_type_ids(self) -> IntArray:
        """0 for the text, and another for the [CLS] that closes it."""
        return np.append(np.zeros(len(self.ids) - 1, np.int64), CLS_TOKEN_TYPE)


def sample_spans(length: int, goal: int, share: int, rng: Rng) -> BoolArray:
    """Draw `goal` of `length` tokens: spans, each in a context `share` times as long, then more.

    A span of n tokens is as likely as one of a single token over n (the released code).
    """
    # Deviation: spans are counted in tokens, not in words, whose beginnings few corpora know.
    chosen = np.zeros(length, np.bool_)
    odds = 1.0 / np.arange(1, LONGEST + 1)
    start = 0
    while (left := goal - chosen.sum()) > 0:
        size = min(int(rng.choice(LONGEST, p=odds / odds.sum())) + 1, left)
        before = int(rng.integers(share * size))
        first = start + before
        if first + size > length:
            break
        chosen[first : first + size] = True
        start += (share + 1) * size
    rest = rng.permutation(np.flatnonzero(~chosen))[: max(left, 0)]
    chosen[rest] = True
    return chosen


@config("permutation")
class PermutationLM:
    """Predict a share of the tokens one after the other, in any order, from all others."""

    special_tokens: SpecialTokens = field(help="ids of the special tokens")
    vocab_size: int = field(ge=1, help="number of token ids")
    max_length: int = field(default=512, ge=1, help="length of a row, in tokens")
    partial_prediction_k: int = field(
        default=6, ge=2, help="predict one token in this many (K in section 2.3)"
    )

    def __post_init__(self) -> None:
        for role in ("cls", "sep"):
            self.special_tokens.require(role)

    @property
    def row_lengths(self) -> tuple[int]:
        """One stream of `length` slots."""
        return (self.max_length,)

    def chunks(self, documents: TokenizedDocuments, /) -> ChunkIndex:
        """Cut documents into stretches that fit before [SEP] and [CLS]."""
        document, start, stop = split_documents(documents, self.max_length - 2)
        sizes = (stop - start)[:, None] + 2
        return ChunkIndex(documents, document, start, stop, np.zeros_like(start), sizes)

    def example(self, chunk: Chunk, rng: Rng, /) -> Permuted:
        """Choose what is predicted, and in which order."""
        ordinary = np.flatnonzero(~self.special_tokens.is_special(chunk.ids))
        goal = min(len(ordinary), max(1, (len(chunk.ids) + 2) // self.partial_prediction_k))
        chosen = ordinary[sample_spans(len(ordinary), goal, self.partial_prediction_k, rng)]
        return self.with_order(chunk.ids, rng.permutation(chosen))

    def with_order(self, ids: IntArray, chosen: IntArray) -> Permuted:
        """Frame a text, and predict the chosen tokens in the order given."""
        # Deviation: the released code draws a turn for [SEP] and [CLS] too. Here they are context,
        # so that there is always some.
        framed = np.concatenate([ids, [self.special_tokens.sep, self.special_tokens.cls]])
        order, labels = np.zeros_like(framed), np.full_like(framed, IGNORE_INDEX)
        order[chosen] = np.arange(1, len(chosen) + 1)
        labels[chosen] = framed[chosen]
        if not len(chosen):
            order[-1] = 1  # asked for in vain, so that no row goes without a question
        return Permuted(framed, order, labels)

    def collate(self, rows: Sequence[Sequence[Permuted]], /) -> Batch[TokenTargets]:
        """Lay texts side by side, and ask for what is predicted."""
        document, position_ids = document_and_position_ids(
            [[len(e.ids) for e in row] for row in rows], self.max_length
        )
        order = pad_rows([[e.order for e in row] for row in rows], self.max_length, 0)
        labels = pad_rows([[e.labels for e in row] for row in rows], self.max_length, IGNORE_INDEX)
        asked, empty = self.query_positions(order)
        time = order.to(document.dtype)
        inputs = Inputs(
            input_ids=pad_rows(
                [[e.ids for e in row] for row in rows], self.max_length, self.special_tokens.pad
            ),
            attention_mask=AttentionMask(document, time, time),
            position_ids=position_ids,
            token_type_ids=pad_rows(
                [[e.token_type_ids for e in row] for row in rows], self.max_length, 0
            ),
            target_positions=asked,
        )
        wanted = labels.gather(1, asked).masked_fill(empty, IGNORE_INDEX).flatten()
        return Batch(inputs, TokenTargets(wanted), {"tokens": int((wanted != IGNORE_INDEX).sum())})

    def query_positions(self, order: Tensor) -> tuple[Tensor, Tensor]:
        """Return the slots to guess, and which of them only fill up: two (rows, guesses).

        Each row has room for the share of it that is predicted, or that doubled: one shape from
        step to step. Empty room repeats the first question of its row.
        """
        counts = (order > 0).sum(1, keepdim=True)
        room = max(1, order.shape[1] // self.partial_prediction_k)
        while room < int(counts.max()):
            room *= 2
        found = torch.argsort((order == 0).int(), dim=1, stable=True)[:, :room]
        empty = torch.arange(room) >= counts
        return torch.where(empty, found[:, :1], found), empty

    def loss(self, model: PredictsTokens, batch: Batch[TokenTargets], /) -> Loss:
        """Sum -log p(token, guessed)."""
        hidden = batch.targets.gather(model(batch.inputs).hidden)
        return Loss({"tokens": model.lm_logits(hidden).nll(batch.targets.labels)})

    def for_evaluation(self) -> "PermutationLMScorer":
        """Predict every token from all the others."""
        return PermutationLMScorer(
            special_tokens=self.special_tokens,
            vocab_size=self.vocab_size,
            max_length=self.max_length,
            partial_prediction_k=self.partial_prediction_k,
        )


@config("permutation_pll")
class PermutationLMScorer(PermutationLM):
    """Pseudo-likelihood (Salazar et al., 2020): each token once, last in the order."""

    def chunks(self, documents: TokenizedDocuments, /) -> ChunkIndex:
        """Take every stretch as often as it has tokens."""
        whole = super().chunks(documents)
        return whole.with_repeats(whole.stop - whole.start)

    def example(self, chunk: Chunk, rng: Rng, /) -> Permuted:
        """Predict the token whose turn it is."""
        return self.with_order(chunk.ids, np.array([chunk.repeat]))
