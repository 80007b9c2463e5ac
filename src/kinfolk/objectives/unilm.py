"""UniLM's mixture (Dong et al., 2019): hidden words, each text seen in one of four ways.

text        the  cat  |  sat  down
ids    [C]  the  [M] [S] sat  [M] [S]
segments 0   0    0   0   1    1   1
labels   .   .   cat  .   .   down .
sight  both ways       0 0 0 0 0 0 0   everyone sees everyone
       to the right    0 1 2 3 4 5 6   each token sees itself and what stands before
       to the left     6 5 4 3 2 1 0   each token sees itself and what stands behind
       from one to one 0 0 0 0 1 2 3   the first half all of itself; the second it, and the past

The numbers are birth and clock.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from kinfolk.attention_mask import AttentionMask
from kinfolk.batch import Batch, TokenTargets
from kinfolk.config import config
from kinfolk.data.chunks import (
    Chunk,
    ChunkIndex,
    IntArray,
    Rng,
    TokenizedDocuments,
    split_documents,
)
from kinfolk.data.examples import pad_rows
from kinfolk.objectives.mlm import MLM, Masked, MLMScorer, mask_tokens

ATTENTION_MODES = ("both", "right", "left", "across")
ATTENTION_MODE_PROBS = (1 / 3, 1 / 6, 1 / 6, 1 / 3)  # section 2.4


@dataclass(frozen=True)
class Seen(Masked):
    """Two halves of a text with some tokens hidden, and when each token is seen."""

    token_type_ids: IntArray
    order: IntArray


@config("unilm")
class UniLM(MLM):
    """Predict hidden tokens from both sides, from one of them, or from another text.

    Deviation: the paper hides pairs and triples of tokens too, tells the ways apart by segments
    of their own, which BERT has not, and predicts next sentences where it looks both ways.
    """

    def chunks(self, documents: TokenizedDocuments, /) -> ChunkIndex:
        """Cut documents into stretches that fit with [CLS] and two [SEP]."""
        self.require_word_starts(documents)
        document, start, stop = split_documents(documents, self.max_length - 3)
        sizes = (stop - start)[:, None] + 3
        return ChunkIndex(documents, document, start, stop, np.zeros_like(start), sizes)

    def example(self, chunk: Chunk, rng: Rng, /) -> Seen:
        """Halve the piece somewhere, choose a way to see it, and hide some of it."""
        middle = int(rng.integers(1, max(2, len(chunk.ids))))
        way = str(rng.choice(ATTENTION_MODES, p=ATTENTION_MODE_PROBS))
        halves = chunk.split(middle)
        ids, segments = self.split_in_two(chunk.ids, middle)
        found = mask_tokens(
            ids, self.mask_rate, self.special_tokens, self.replacement_ids, rng, self.words(*halves)
        )
        return Seen(found.ids, found.labels, segments, attention_order(way, segments))

    def split_in_two(self, ids: IntArray, middle: int) -> tuple[IntArray, IntArray]:
        """Put [CLS] before two halves and [SEP] behind each; also tell them apart."""
        sep = self.special_tokens.require("sep")
        first, second = np.append(ids[:middle], sep), np.append(ids[middle:], sep)
        framed = np.concatenate([[self.special_tokens.cls], first, second])
        return framed, np.repeat([0, 1], [len(first) + 1, len(second)])

    def collate(self, rows: Sequence[Sequence[Masked]], /) -> Batch[TokenTargets]:
        """Lay texts side by side, each in its own sight."""
        batch = super().collate(rows)
        seen = [[e for e in row if isinstance(e, Seen)] for row in rows]
        document = batch.inputs.attention_mask.document_ids
        time = pad_rows([[e.order for e in row] for row in seen], self.max_length, 0).to(
            document.dtype
        )
        segments = pad_rows([[e.token_type_ids for e in row] for row in seen], self.max_length, 0)
        inputs = replace(
            batch.inputs,
            attention_mask=AttentionMask(document, time, time),
            token_type_ids=segments,
        )
        return Batch(inputs, batch.targets, batch.counts)

    def for_evaluation(self) -> MLMScorer:
        """Predict every token from all the others."""
        return MLMScorer(
            special_tokens=self.special_tokens,
            vocab_size=self.vocab_size,
            max_length=self.max_length,
        )


def attention_order(way: str, segments: IntArray) -> IntArray:
    """Return the birth and clock of each token, by the way its text is seen."""
    slots = np.arange(len(segments))
    return {
        "both": np.zeros_like(slots),
        "right": slots,
        "left": slots[::-1],
        "across": np.cumsum(segments),
    }[way]
