"""Sequence to sequence (Sutskever et al., 2014): read one text of a pair and generate the other.

text       the  cat  sat  |  die  Katze  lag
encoder    the  cat  sat  </s>
input_ids  <p>  die  Katze  lag
labels     die  Katze  lag  </s>
attention  the encoder attends to all of its input; the decoder to its past and the encoder
"""

import warnings
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from torch import Tensor

from kinfolk.batch import Batch, Loss, TokenTargets
from kinfolk.config import config, field
from kinfolk.data.chunks import Chunk, ChunkIndex, Rng, TokenizedDocuments
from kinfolk.data.examples import Collated, Example
from kinfolk.data.parallel_text import pair_lengths
from kinfolk.errors import UserError
from kinfolk.nn.language_model import EncoderDecoder
from kinfolk.objectives.objective import Objective


@config("pairs")
class Seq2Seq(Objective):
    """Generate the second text of each pair from the first."""

    max_length: int = field(
        default=512, ge=1, le=2**24, help="length of a row of sources, and of a row of targets"
    )
    label_smoothing: float = field(
        default=0.1, ge=0, lt=1, help="label smoothing (Vaswani et al. 2017, section 5.4)"
    )

    loss_name = "pairs"
    required_tokens = ("eos",)

    @property
    def row_lengths(self) -> tuple[int, int]:
        """A row of the encoder, and one of the decoder."""
        return self.max_length, self.max_length

    def chunks(self, documents: TokenizedDocuments, /) -> ChunkIndex:
        """Take every pair that fits a row, and warn about the others."""
        sizes = pair_lengths(documents) + 1  # the end token of each text
        fits = (sizes <= self.max_length).all(1)
        chosen = np.flatnonzero(fits)
        if not len(chosen):
            raise UserError(
                f"no pair fits a row of {self.max_length} tokens: with "
                f"--length {sizes.max(initial=0)} all fit"
            )
        if len(chosen) < len(sizes):
            warnings.warn(
                f"{len(sizes) - len(chosen):,} of {len(sizes):,} pairs are left out: a side is "
                f"longer than the {self.max_length - 1} tokens that fit a row; "
                f"with --length {sizes.max()} all fit",
                stacklevel=2,
            )
        start, stop = np.zeros_like(chosen), np.diff(documents.starts)[chosen]
        return ChunkIndex(documents, chosen, start, stop, start, sizes[chosen])

    def example(self, chunk: Chunk, rng: Rng, /) -> Example:
        """Add the end tokens to a pair; nothing is random."""
        middle = chunk.sentences[0]
        eos = self.special_tokens.require("eos")
        # As T5's, the decoder starts with the padding token.
        starts, ends = np.array([self.special_tokens.pad]), np.array([eos])
        source, target = chunk.ids[:middle], chunk.ids[middle:]
        return Example(
            encoder_input_ids=np.concatenate([source, ends]),
            input_ids=np.concatenate([starts, target]),
            labels=np.concatenate([target, ends]),
            order=np.arange(len(target) + 1),
        )

    def make_batch(
        self, collated: Collated, labels: Tensor, examples: Sequence[Example], /
    ) -> Batch[TokenTargets]:
        """Add the targets; label smoothing is a part of the loss with the same count."""
        batch = super().make_batch(collated, labels, examples)
        if not self.label_smoothing:
            return batch
        return replace(
            batch, counts={**batch.counts, "label_smoothing": batch.counts[self.loss_name]}
        )

    def loss(self, model: EncoderDecoder, batch: Batch[TokenTargets], /) -> Loss:
        """Return the summed -log p(next token of the target), and what smoothing adds to it."""
        if not self.label_smoothing:
            return super().loss(model, batch)
        logits = model.lm_logits(batch.targets.gather(model(batch.inputs).hidden))
        smoothed, plain = logits.smoothed_nll(batch.targets.labels, self.label_smoothing)
        return Loss({self.loss_name: plain, "label_smoothing": smoothed - plain})

    def for_evaluation(self) -> "Seq2Seq":
        """Predict every token of every target once, without label smoothing."""
        return replace(self, label_smoothing=0.0)

    def with_max_length_for(self, documents: TokenizedDocuments) -> "Seq2Seq":
        """Return the objective with rows that every pair fits."""
        return replace(
            self, max_length=max(self.max_length, int(pair_lengths(documents).max()) + 1)
        )
