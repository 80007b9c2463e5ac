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
from kinfolk.data.chunks import (
    Chunk,
    ChunkIndex,
    IntArray,
    Rng,
    TokenizedDocuments,
    split_documents,
)
from kinfolk.data.examples import document_and_position_ids, pad_rows
from kinfolk.text.tokenizer import SpecialTokens


@dataclass(frozen=True)
class Line:
    """Tokens, and the token after each."""

    ids: IntArray
    labels: IntArray


@config("clm")
class CLM:
    """Predict the next token, and where a text ends."""

    special_tokens: SpecialTokens = field(help="ids of the special tokens")
    vocab_size: int = field(ge=1, help="number of token ids")
    max_length: int = field(default=1024, ge=1, help="length of a row, in tokens")

    def __post_init__(self) -> None:
        self.special_tokens.require("eos")

    @property
    def row_lengths(self) -> tuple[int]:
        """One stream of `length` slots."""
        return (self.max_length,)

    def chunks(self, documents: TokenizedDocuments, /) -> ChunkIndex:
        """Cut documents into stretches; the end of each document is predicted too."""
        document, start, stop = split_documents(documents, self.max_length, extra=1)
        sizes = (stop - start)[:, None]
        return ChunkIndex(documents, document, start, stop, np.zeros_like(start), sizes)

    def example(self, chunk: Chunk, rng: Rng, /) -> Line:
        """Shift by one; a stretch from inside a document starts with the token before it."""
        first, eos = chunk.previous_token, self.special_tokens.require("eos")
        if first is None:
            first = eos if self.special_tokens.bos is None else self.special_tokens.bos
        labels = np.append(chunk.ids, eos) if chunk.ends_document else chunk.ids
        return Line(np.concatenate([[first], labels[:-1]]), labels)

    def collate(self, rows: Sequence[Sequence[Line]], /) -> Batch[TokenTargets]:
        """Lay lines side by side."""
        document, position_ids = document_and_position_ids(
            [[len(e.ids) for e in row] for row in rows], self.max_length
        )
        ids = pad_rows(
            [[e.ids for e in row] for row in rows], self.max_length, self.special_tokens.pad
        )
        labels = pad_rows([[e.labels for e in row] for row in rows], self.max_length, IGNORE_INDEX)
        inputs = Inputs(
            input_ids=ids, attention_mask=AttentionMask.causal(document), position_ids=position_ids
        )
        count = int((labels != IGNORE_INDEX).sum())
        return Batch(inputs, TokenTargets(labels.flatten()), {"tokens": count})

    def loss(self, model: PredictsTokens, batch: Batch[TokenTargets], /) -> Loss:
        """Sum -log p(next token)."""
        hidden = batch.targets.gather(model(batch.inputs).hidden)
        return Loss({"tokens": model.lm_logits(hidden).nll(batch.targets.labels)})

    def for_evaluation(self) -> "CLM":
        """Every token is predicted exactly once as it is."""
        return self
