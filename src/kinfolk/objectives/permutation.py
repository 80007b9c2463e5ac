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
from kinfolk.data.packing import lay, number
from kinfolk.data.pieces import Documents, Flags, Ids, Piece, Pieces, Rng, cut
from kinfolk.text.tokenizer import Specials

LONGEST = 5  # tokens in a span (section 3.1)
CLOSING = 2  # the segment of [CLS], which is neither of a pair's two (the released code)


@dataclass(frozen=True)
class Permuted:
    """Tokens, their order (0 in the context), and what is predicted."""

    ids: Ids
    order: Ids
    labels: Ids

    @property
    def segments(self) -> Ids:
        """0 for the text, and another for the [CLS] that closes it."""
        return np.append(np.zeros(len(self.ids) - 1, np.int64), CLOSING)


def spans(length: int, goal: int, share: int, rng: Rng) -> Flags:
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
class Permutation:
    """Predict a share of the tokens one after the other, in any order, from all others."""

    specials: Specials = field(help="ids of the special tokens")
    vocab: int = field(ge=1, help="number of token ids")
    length: int = field(default=512, ge=1, help="length of a row, in tokens")
    share: int = field(default=6, ge=2, help="predict one token in this many (K in section 2.3)")

    def __post_init__(self) -> None:
        for role in ("cls", "sep"):
            self.specials.need(role)

    @property
    def capacity(self) -> tuple[int]:
        """One stream of `length` slots."""
        return (self.length,)

    def pieces(self, documents: Documents, /) -> Pieces:
        """Cut documents into stretches that fit before [SEP] and [CLS]."""
        document, start, stop = cut(documents, self.length - 2)
        sizes = (stop - start)[:, None] + 2
        return Pieces(documents, document, start, stop, np.zeros_like(start), sizes)

    def example(self, piece: Piece, rng: Rng, /) -> Permuted:
        """Choose what is predicted, and in which order."""
        ordinary = np.flatnonzero(~self.specials.among(piece.ids))
        goal = min(len(ordinary), max(1, (len(piece.ids) + 2) // self.share))
        chosen = ordinary[spans(len(ordinary), goal, self.share, rng)]
        return self.ordered(piece.ids, rng.permutation(chosen))

    def ordered(self, ids: Ids, chosen: Ids) -> Permuted:
        """Frame a text, and predict the chosen tokens in the order given."""
        # Deviation: the released code draws a turn for [SEP] and [CLS] too. Here they are context,
        # so that there is always some.
        framed = np.concatenate([ids, [self.specials.sep, self.specials.cls]])
        order, labels = np.zeros_like(framed), np.full_like(framed, IGNORE_INDEX)
        order[chosen] = np.arange(1, len(chosen) + 1)
        labels[chosen] = framed[chosen]
        if not len(chosen):
            order[-1] = 1  # asked for in vain, so that no row goes without a question
        return Permuted(framed, order, labels)

    def collate(self, rows: Sequence[Sequence[Permuted]], /) -> Batch[TokenTargets]:
        """Lay texts side by side, and ask for what is predicted."""
        document, places = number([[len(e.ids) for e in row] for row in rows], self.length)
        order = lay([[e.order for e in row] for row in rows], self.length, 0)
        labels = lay([[e.labels for e in row] for row in rows], self.length, IGNORE_INDEX)
        asked, empty = self.questions(order)
        time = order.to(document.dtype)
        inputs = Inputs(
            input_ids=lay([[e.ids for e in row] for row in rows], self.length, self.specials.pad),
            attention_mask=AttentionMask(document, time, time),
            position_ids=places,
            token_type_ids=lay([[e.segments for e in row] for row in rows], self.length, 0),
            target_positions=asked,
        )
        wanted = labels.gather(1, asked).masked_fill(empty, IGNORE_INDEX).flatten()
        return Batch(inputs, TokenTargets(wanted), {"tokens": int((wanted != IGNORE_INDEX).sum())})

    def questions(self, order: Tensor) -> tuple[Tensor, Tensor]:
        """Return the slots to guess, and which of them only fill up: two (rows, guesses).

        Each row has room for the share of it that is predicted, or that doubled: one shape from
        step to step. Empty room repeats the first question of its row.
        """
        counts = (order > 0).sum(1, keepdim=True)
        room = max(1, order.shape[1] // self.share)
        while room < int(counts.max()):
            room *= 2
        found = torch.argsort((order == 0).int(), dim=1, stable=True)[:, :room]
        empty = torch.arange(room) >= counts
        return torch.where(empty, found[:, :1], found), empty

    def loss(self, model: PredictsTokens, batch: Batch[TokenTargets], /) -> Loss:
        """Sum -log p(token, guessed)."""
        hidden = batch.targets.gather(model(batch.inputs).hidden)
        return Loss({"tokens": model.lm_logits(hidden).nll(batch.targets.labels)})

    def exam(self) -> "OneAtATime":
        """Predict every token from all the others."""
        return OneAtATime(
            specials=self.specials, vocab=self.vocab, length=self.length, share=self.share
        )


@config("permutation_pll")
class OneAtATime(Permutation):
    """Pseudo-likelihood (Salazar et al., 2020): each token once, last in the order."""

    def pieces(self, documents: Documents, /) -> Pieces:
        """Take every stretch as often as it has tokens."""
        whole = super().pieces(documents)
        return whole.turns(whole.stop - whole.start)

    def example(self, piece: Piece, rng: Rng, /) -> Permuted:
        """Predict the token whose turn it is."""
        return self.ordered(piece.ids, np.array([piece.turn]))
