"""Next-sentence prediction (Devlin et al., 2018): MLM over two texts that may not belong together.

text                  the  cat  |  sat  down
input_ids       [C]   the  [M] [S] sat  down [S]
token_type_ids   0     0    0   0   1    1    1
labels           .     .   cat  .   .    .    .
sequence_label   0 (the second follows; 1 where it was drawn from another document)
attention       every token attends to every token

A chunk of a single sentence is cut in its middle: its masked tokens are predicted, and it has no
sequence label, because a cut inside a sentence would give away that the second part follows.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from kinfolk.batch import IGNORE_INDEX, Batch, Loss, TensorTree, TokenTargets
from kinfolk.config import config
from kinfolk.data.chunks import BoolArray, Chunk, ChunkIndex, Rng, TokenizedDocuments
from kinfolk.data.examples import Collated, Example, pad_rows
from kinfolk.errors import UserError
from kinfolk.nn.language_model import LanguageModel
from kinfolk.objectives.mlm import MLM

IS_NEXT, NOT_NEXT = 0, 1


@dataclass(frozen=True, eq=False)
class PairTargets(TensorTree):
    """The masked tokens, and the label of each pair."""

    tokens: TokenTargets
    sequence_labels: Tensor  # (pairs,), IGNORE_INDEX where there is no pair
    cls_positions: Tensor  # (pairs,): [CLS] of each pair in the flattened rows


@config("nsp")
class NSP(MLM):
    """MLM, and whether the second text of a pair follows the first."""

    pair_loss_name: ClassVar[str] = "nsp"

    def chunks(self, documents: TokenizedDocuments, /) -> ChunkIndex:
        """Cut documents into chunks that fit a row with [CLS] and two [SEP]."""
        if np.count_nonzero(np.diff(documents.starts)) < 2:
            raise UserError(
                "next-sentence prediction draws its negatives from other documents, and the corpus "
                "has one document: use more text, or --objective mlm"
            )
        chunks = self.split(documents, special_tokens=3)
        pairs = chunks.stop - chunks.start >= 2  # a token on each side
        return chunks.with_repeats(pairs.astype(np.int64))

    def example(self, chunk: Chunk, rng: Rng, /) -> Example:
        """Split at a sentence end, half the time replace the second text, and mask tokens."""
        ends = chunk.sentences.cumsum()[:-1]
        middle = int(rng.choice(ends)) if len(ends) else len(chunk.ids) // 2
        first, second = chunk.split(middle)
        negative = rng.random() < 0.5 and len(ends) > 0
        if negative:
            second = chunk.random_other_chunk(rng, len(second.ids))
        label = IGNORE_INDEX if not len(ends) else NOT_NEXT if negative else IS_NEXT
        return self.pair(first, second, label, rng, self.word_starts(first, second))

    def pair(
        self, first: Chunk, second: Chunk, label: int, rng: Rng, word_starts: BoolArray | None
    ) -> Example:
        """Mask some tokens of a pair."""
        ids = self.add_special_tokens(first.ids, second.ids)
        token_type_ids = np.zeros(len(ids), np.int64)
        token_type_ids[len(first.ids) + 2 :] = 1
        return self.mask(ids, rng, word_starts, token_type_ids=token_type_ids, sequence_label=label)

    def make_batch(
        self, collated: Collated, labels: Tensor, examples: Sequence[Example], /
    ) -> Batch[PairTargets]:
        """Add the masked tokens and the labels of the pairs."""
        batch = super().make_batch(collated, labels, examples)
        sequence_labels = np.array([e.sequence_label for e in examples])
        # One shape from step to step: space for twice as many pairs as rows, or that doubled.
        size = 2 * len(labels)
        while size < len(examples):
            size *= 2
        targets = PairTargets(
            batch.targets,
            pad_rows([[sequence_labels]], size, IGNORE_INDEX)[0],
            pad_rows([[collated.offsets]], size, 0)[0],
        )
        pairs = int((sequence_labels != IGNORE_INDEX).sum())
        return Batch(batch.inputs, targets, {**batch.counts, self.pair_loss_name: pairs})

    def loss(self, model: LanguageModel, batch: Batch[PairTargets], /) -> Loss:
        """Return the summed -log p(masked token) and -log p(label of the pair)."""
        targets = batch.targets
        masked = targets.tokens.positions
        assert masked is not None
        positions = torch.cat([masked, targets.cls_positions])
        hidden, first = model.read_lm(batch.inputs, positions).split(
            [len(masked), len(targets.cls_positions)]
        )
        logits = model.seq_relationship_logits(first)
        pairs = F.cross_entropy(
            logits.float(), targets.sequence_labels, ignore_index=IGNORE_INDEX, reduction="sum"
        )
        tokens = model.lm_logits(hidden).nll(targets.tokens.labels)
        return Loss({self.loss_name: tokens, self.pair_loss_name: pairs})
