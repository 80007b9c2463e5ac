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
from kinfolk.data.chunks import (
    Chunk,
    ChunkIndex,
    IntArray,
    Rng,
    TokenizedDocuments,
    split_documents,
)
from kinfolk.data.examples import document_and_position_ids, firsts, pad_rows, select_targets
from kinfolk.errors import UserError
from kinfolk.objectives.mlm import MLM, mask_tokens

IS_NEXT, NOT_NEXT = 0, 1


@dataclass(frozen=True)
class SentencePair:
    """Two texts with some tokens hidden, and whether the second follows; IGNORED if not asked."""

    ids: IntArray
    labels: IntArray
    token_type_ids: IntArray
    label: int


@dataclass(frozen=True, eq=False)
class PairTargets(TensorTree):
    """The hidden tokens, and the verdict on each pair."""

    tokens: TokenTargets
    sequence_labels: Tensor  # (pairs,), IGNORED where a slot is empty
    cls_positions: Tensor  # (pairs,): where each pair starts, through the flattened rows


@config("nsp")
class NSP(MLM):
    """MLM, and whether the second text of a pair follows the first."""

    def chunks(self, documents: TokenizedDocuments, /) -> ChunkIndex:
        """Cut documents into stretches that fit between [CLS] and two [SEP]."""
        if np.count_nonzero(np.diff(documents.starts)) < 2:
            raise UserError(
                "next-sentence prediction draws strangers from other documents, and the corpus has "
                "one document: use more text, or learn by `mlm` alone"
            )
        self.require_word_starts(documents)
        document, start, stop = split_documents(documents, self.max_length - 3)
        sizes = (stop - start)[:, None] + 3
        kept = stop - start >= 2  # a pair needs a token on each side
        parts = (document[kept], start[kept], stop[kept], np.zeros_like(start[kept]))
        return ChunkIndex(documents, *parts, sizes[kept])

    def example(self, chunk: Chunk, rng: Rng, /) -> SentencePair:  # type: ignore[override]
        """Split at a sentence end, half the time put a stranger second, and hide some tokens."""
        ends = np.cumsum(chunk.sentences)[:-1]
        middle = int(rng.choice(ends)) if len(ends) else len(chunk.ids) // 2
        first, second = chunk.split(middle)
        stranger = rng.random() < 0.5 and len(ends) > 0
        if stranger:
            second = chunk.random_other_chunk(rng, len(second.ids))
        ids = np.concatenate([self.frame(first.ids), second.ids, [self.special_tokens.sep]])
        segments = np.repeat([0, 1], [len(first.ids) + 2, len(second.ids) + 1])
        words = self.words(first, second)
        masked = mask_tokens(
            ids, self.mask_rate, self.special_tokens, self.replacement_ids, rng, words
        )
        verdict = IGNORE_INDEX if not len(ends) else NOT_NEXT if stranger else IS_NEXT
        return SentencePair(masked.ids, masked.labels, segments, verdict)

    def collate(self, rows: Sequence[Sequence[SentencePair]], /) -> Batch[PairTargets]:  # type: ignore[override]
        """Lay pairs side by side."""
        sizes = [[len(e.ids) for e in row] for row in rows]
        document, position_ids = document_and_position_ids(sizes, self.max_length)
        inputs = Inputs(
            input_ids=pad_rows(
                [[e.ids for e in row] for row in rows], self.max_length, self.special_tokens.pad
            ),
            attention_mask=AttentionMask.bidirectional(document),
            position_ids=position_ids,
            token_type_ids=pad_rows(
                [[e.token_type_ids for e in row] for row in rows], self.max_length, 0
            ),
        )
        labels = pad_rows([[e.labels for e in row] for row in rows], self.max_length, IGNORE_INDEX)
        tokens, count = select_targets(labels)
        verdicts = np.array([e.label for row in rows for e in row])
        # One shape from step to step: slots for twice as many pairs as rows, or that doubled.
        slots = 2 * len(rows)
        while slots < len(verdicts):
            slots *= 2
        empty = slots - len(verdicts)
        targets = PairTargets(
            tokens,
            torch.from_numpy(np.pad(verdicts, (0, empty), constant_values=IGNORE_INDEX)),
            torch.from_numpy(np.pad(firsts(sizes, self.max_length), (0, empty))),
        )
        asked = int((verdicts != IGNORE_INDEX).sum())
        return Batch(inputs, targets, {"tokens": count, "pairs": asked})

    def loss(self, model: SentencePairModel, batch: Batch[PairTargets], /) -> Loss:  # type: ignore[override]
        """Sum -log p(hidden token) and -log p(verdict)."""
        hidden, targets = model(batch.inputs).hidden, batch.targets
        scores = model.seq_relationship_logits(
            hidden.flatten(0, 1).index_select(0, targets.cls_positions)
        )
        pairs = F.cross_entropy(
            scores.float(), targets.sequence_labels, ignore_index=IGNORE_INDEX, reduction="sum"
        )
        tokens = model.lm_logits(targets.tokens.gather(hidden)).nll(targets.tokens.labels)
        return Loss({"tokens": tokens, "pairs": pairs})
