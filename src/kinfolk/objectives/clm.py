"""Causal language modelling (Radford et al., 2018): predict each token from those before it.

text       the  cat  sat
input_ids  <s>  the  cat  sat
labels     the  cat  sat  </s>
attention  each token attends to itself and to the tokens before it
"""

import numpy as np

from kinfolk.config import config, field
from kinfolk.data.chunks import Chunk, ChunkIndex, Rng, TokenizedDocuments, split_documents
from kinfolk.data.examples import Example
from kinfolk.objectives.objective import Objective


@config("clm")
class CLM(Objective):
    """Predict the next token, and the end of each document."""

    max_length: int = field(default=1024, ge=1, le=2**24, help="length of a row, in tokens")

    loss_name = "clm"
    required_tokens = ("eos",)

    def chunks(self, documents: TokenizedDocuments, /) -> ChunkIndex:
        """Cut documents into chunks; the last of each document predicts its end too."""
        return split_documents(documents, self.max_length, extra=1)

    def example(self, chunk: Chunk, rng: Rng, /) -> Example:
        """Shift by one; a chunk from inside a document starts with the token before it."""
        first, eos = chunk.previous_token, self.special_tokens.require("eos")
        if first is None:
            first = eos if self.special_tokens.bos is None else self.special_tokens.bos
        labels = np.concatenate([chunk.ids, [eos]]) if chunk.ends_document else chunk.ids
        ids = np.concatenate([[first], labels[:-1]])
        return Example(input_ids=ids, labels=labels, order=np.arange(len(ids)))
