"""UniLM's mixture (Dong et al., 2019): MLM under one of four attention patterns.

text                  the  cat  |  sat  down
input_ids       [C]   the  [M] [S] sat  [M] [S]
token_type_ids   0     0    0   0   1    1   1
labels           .     .   cat  .   .   down .
attention       order
  both           0     0    0   0   0    0   0   every token attends to every token
  right          0     1    2   3   4    5   6   each token attends to itself and its past
  left           6     5    4   3   2    1   0   each token attends to itself and its future
  across         0     0    0   0   1    2   3   the first text attends to itself, the second to it
                                                 and to its own past
"""

import numpy as np

from kinfolk.config import config
from kinfolk.data.chunks import Chunk, ChunkIndex, IntArray, Rng, TokenizedDocuments
from kinfolk.data.examples import Example
from kinfolk.objectives.mlm import MLM

ATTENTION_MODES = ("both", "right", "left", "across")
ATTENTION_MODE_PROBS = (1 / 3, 1 / 6, 1 / 6, 1 / 3)  # section 2.4


@config("unilm")
class UniLM(MLM):
    """Predict masked tokens from both sides, from one of them, or from another text.

    Deviation: the paper masks pairs and triples of tokens too, has token types for each pattern,
    which BERT has not, and predicts next sentences under the bidirectional pattern.
    """

    loss_name = "unilm"

    def chunks(self, documents: TokenizedDocuments, /) -> ChunkIndex:
        """Cut documents into chunks that fit a row with [CLS] and two [SEP]."""
        return self.split(documents, special_tokens=3)

    def example(self, chunk: Chunk, rng: Rng, /) -> Example:
        """Split the chunk at random, choose an attention pattern, and mask some tokens."""
        middle = int(rng.integers(1, max(2, len(chunk.ids))))
        mode = rng.choice(ATTENTION_MODES, p=ATTENTION_MODE_PROBS)
        first, second = chunk.ids[:middle], chunk.ids[middle:]
        ids = self.add_special_tokens(first, second)
        token_type_ids = np.zeros(len(ids), np.int64)
        token_type_ids[len(first) + 2 :] = 1
        return self.mask(
            ids,
            rng,
            self.word_starts(*chunk.split(middle)),
            token_type_ids=token_type_ids,
            order=attention_order(mode, token_type_ids),
        )


def attention_order(mode: str, token_type_ids: IntArray) -> IntArray:
    """Return the order of each token under an attention pattern."""
    if mode == "across":
        return token_type_ids.cumsum()
    positions = np.arange(len(token_type_ids))
    return {"both": 0 * positions, "right": positions, "left": positions[::-1]}[mode]
