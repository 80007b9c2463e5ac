"""Causal language modelling (Radford et al., 2018): predict each token from those before it.

text      the  cat  sat
ids       <s>  the  cat  sat
labels    the  cat  sat  </s>
sight     each token sees itself and the past
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kinfolk.attention_mask import AttentionMask
from kinfolk.batch import IGNORE_INDEX, Batch, Inputs, Loss, PredictsTokens, TokenTargets
from kinfolk.config import config, field
from kinfolk.data.packing import lay, number
from kinfolk.data.pieces import Documents, Ids, Piece, Pieces, Rng, cut
from kinfolk.text.tokenizer import Specials


@dataclass(frozen=True)
class Line:
    """Tokens, and the token after each."""

    ids: Ids
    labels: Ids


@config("clm")
class CLM:
    """Predict the next token, and where a text ends."""

    specials: Specials = field(help="ids of the special tokens")
    vocab: int = field(ge=1, help="number of token ids")
    length: int = field(default=1024, ge=1, help="length of a row, in tokens")

    def __post_init__(self) -> None:
        self.specials.need("eos")

    @property
    def capacity(self) -> tuple[int]:
        """One stream of `length` slots."""
        return (self.length,)

    def pieces(self, documents: Documents, /) -> Pieces:
        """Cut documents into stretches; the end of each document is predicted too."""
        document, start, stop = cut(documents, self.length, extra=1)
        sizes = (stop - start)[:, None]
        return Pieces(documents, document, start, stop, np.zeros_like(start), sizes)

    def example(self, piece: Piece, rng: Rng, /) -> Line:
        """Shift by one; a stretch from inside a document starts with the token before it."""
        first, eos = piece.before, self.specials.need("eos")
        if first is None:
            first = eos if self.specials.bos is None else self.specials.bos
        labels = np.append(piece.ids, eos) if piece.last else piece.ids
        return Line(np.concatenate([[first], labels[:-1]]), labels)

    def collate(self, rows: Sequence[Sequence[Line]], /) -> Batch[TokenTargets]:
        """Lay lines side by side."""
        document, places = number([[len(e.ids) for e in row] for row in rows], self.length)
        ids = lay([[e.ids for e in row] for row in rows], self.length, self.specials.pad)
        labels = lay([[e.labels for e in row] for row in rows], self.length, IGNORE_INDEX)
        inputs = Inputs(
            input_ids=ids, attention_mask=AttentionMask.causal(document), position_ids=places
        )
        count = int((labels != IGNORE_INDEX).sum())
        return Batch(inputs, TokenTargets(labels.flatten()), {"tokens": count})

    def loss(self, model: PredictsTokens, batch: Batch[TokenTargets], /) -> Loss:
        """Sum -log p(next token)."""
        hidden = batch.targets.gather(model(batch.inputs).hidden)
        return Loss({"tokens": model.lm_logits(hidden).nll(batch.targets.labels)})

    def exam(self) -> "CLM":
        """Every token is predicted exactly once as it is."""
        return self
