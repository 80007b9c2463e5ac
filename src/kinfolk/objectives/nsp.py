"""Next-sentence prediction (Devlin et al., 2018): MLM over two texts that may be strangers.

text        the  cat  |  sat  down
ids    [C]  the  [M] [S] sat  down [S]
segments 0   0    0   0   1    1    1
labels   .   .   cat  .   .    .    .
next     0 (it follows; 1 where the second text was drawn from another document)
sight  everyone sees everyone

A stretch of a single sentence is no pair: its tokens are learned, and no verdict is asked for. Cut
amid a sentence, it would give away that it goes on.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from kinfolk.attention_mask import AttentionMask
from kinfolk.batch import (
    IGNORE_INDEX,
    Batch,
    Inputs,
    Loss,
    SentencePairModel,
    TensorTree,
    TokenTargets,
)
from kinfolk.config import config
from kinfolk.data.packing import firsts, lay, number, sparse
from kinfolk.data.pieces import Documents, Ids, Piece, Pieces, Rng, cut
from kinfolk.errors import UserError
from kinfolk.objectives.mlm import MLM, hide

FOLLOWS, STRANGER = 0, 1


@dataclass(frozen=True)
class Pair:
    """Two texts with some tokens hidden, and whether the second follows; IGNORED if not asked."""

    ids: Ids
    labels: Ids
    segments: Ids
    next: int


@dataclass(frozen=True, eq=False)
class PairLabels(TensorTree):
    """The hidden tokens, and the verdict on each pair."""

    tokens: TokenTargets
    next: Tensor  # (pairs,), IGNORED where a slot is empty
    firsts: Tensor  # (pairs,): where each pair starts, through the flattened rows


@config("nsp")
class NSP(MLM):
    """MLM, and whether the second text of a pair follows the first."""

    def pieces(self, documents: Documents, /) -> Pieces:
        """Cut documents into stretches that fit between [CLS] and two [SEP]."""
        if np.count_nonzero(np.diff(documents.starts)) < 2:
            raise UserError(
                "next-sentence prediction draws strangers from other documents, and the corpus has "
                "one document: use more text, or learn by `mlm` alone"
            )
        self.check(documents)
        document, start, stop = cut(documents, self.length - 3)
        sizes = (stop - start)[:, None] + 3
        kept = stop - start >= 2  # a pair needs a token on each side
        parts = (document[kept], start[kept], stop[kept], np.zeros_like(start[kept]))
        return Pieces(documents, *parts, sizes[kept])

    def example(self, piece: Piece, rng: Rng, /) -> Pair:  # type: ignore[override]
        """Split at a sentence end, half the time put a stranger second, and hide some tokens."""
        ends = np.cumsum(piece.sentences)[:-1]
        middle = int(rng.choice(ends)) if len(ends) else len(piece.ids) // 2
        first, second = piece.split(middle)
        stranger = rng.random() < 0.5 and len(ends) > 0
        if stranger:
            second = piece.elsewhere(rng, len(second.ids))
        ids = np.concatenate([self.frame(first.ids), second.ids, [self.specials.sep]])
        segments = np.repeat([0, 1], [len(first.ids) + 2, len(second.ids) + 1])
        words = self.words(first, second)
        masked = hide(ids, self.rate, self.specials, self.ordinary, rng, words)
        verdict = IGNORE_INDEX if not len(ends) else STRANGER if stranger else FOLLOWS
        return Pair(masked.ids, masked.labels, segments, verdict)

    def collate(self, rows: Sequence[Sequence[Pair]], /) -> Batch[PairLabels]:  # type: ignore[override]
        """Lay pairs side by side."""
        sizes = [[len(e.ids) for e in row] for row in rows]
        document, places = number(sizes, self.length)
        inputs = Inputs(
            input_ids=lay([[e.ids for e in row] for row in rows], self.length, self.specials.pad),
            attention_mask=AttentionMask.bidirectional(document),
            position_ids=places,
            token_type_ids=lay([[e.segments for e in row] for row in rows], self.length, 0),
        )
        labels = lay([[e.labels for e in row] for row in rows], self.length, IGNORE_INDEX)
        tokens, count = sparse(labels)
        verdicts = np.array([e.next for row in rows for e in row])
        # One shape from step to step: slots for twice as many pairs as rows, or that doubled.
        slots = 2 * len(rows)
        while slots < len(verdicts):
            slots *= 2
        empty = slots - len(verdicts)
        targets = PairLabels(
            tokens,
            torch.from_numpy(np.pad(verdicts, (0, empty), constant_values=IGNORE_INDEX)),
            torch.from_numpy(np.pad(firsts(sizes, self.length), (0, empty))),
        )
        asked = int((verdicts != IGNORE_INDEX).sum())
        return Batch(inputs, targets, {"tokens": count, "pairs": asked})

    def loss(self, model: SentencePairModel, batch: Batch[PairLabels], /) -> Loss:  # type: ignore[override]
        """Sum -log p(hidden token) and -log p(verdict)."""
        hidden, targets = model(batch.inputs).hidden, batch.targets
        scores = model.seq_relationship_logits(hidden.flatten(0, 1).index_select(0, targets.firsts))
        pairs = F.cross_entropy(
            scores.float(), targets.next, ignore_index=IGNORE_INDEX, reduction="sum"
        )
        tokens = model.lm_logits(targets.tokens.gather(hidden)).nll(targets.tokens.labels)
        return Loss({"tokens": tokens, "pairs": pairs})
