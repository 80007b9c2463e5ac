"""Pairs of texts (Sutskever et al., 2014): read one and write the other.

text      the  cat  sat  |  die  Katze  lag
source    the  cat  sat  </s>
ids       <p>  die  Katze  lag
labels    die  Katze  lag  </s>
sight     the encoder sees all of the source; the decoder the past, and all of the source
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from torch import Tensor

from kinfolk.attention_mask import AttentionMask
from kinfolk.batch import IGNORE_INDEX, Batch, Inputs, LazyLogits, Loss, Model, TokenTargets
from kinfolk.config import config, field
from kinfolk.data.chunks import Chunk, ChunkIndex, IntArray, Rng, TokenizedDocuments
from kinfolk.data.examples import document_and_position_ids, pad_rows
from kinfolk.data.parallel_text import pair_lengths
from kinfolk.errors import UserError
from kinfolk.text.tokenizer import SpecialTokens


class Smooths(LazyLogits, Protocol):
    """Scores that also know the loss of labels that are not quite sure."""

    def smoothed_nll(self, labels: Tensor, smoothing: float, /) -> tuple[Tensor, Tensor]:
        """Return the summed loss with a share of each label spread, and the plain one."""
        ...


class Writes(Model, Protocol):
    """A model that predicts tokens by such scores."""

    def lm_logits(self, hidden: Tensor, /) -> Smooths:
        """Turn hidden states into scores over the vocabulary."""
        ...


@dataclass(frozen=True)
class Translation:
    """What is read, and what is written about it, a step apart."""

    source: IntArray
    ids: IntArray
    labels: IntArray


@config("pairs")
class Seq2Seq:
    """Write the second text of each pair from the first."""

    special_tokens: SpecialTokens = field(help="ids of the special tokens")
    vocab_size: int = field(ge=1, help="number of token ids")
    max_length: int = field(
        default=512, ge=1, help="length of a row of sources, and of a row of targets"
    )
    label_smoothing: float = field(
        default=0.1, ge=0, lt=1, help="label smoothing (Vaswani et al. 2017, section 5.4)"
    )

    def __post_init__(self) -> None:
        self.special_tokens.require("eos")

    @property
    def row_lengths(self) -> tuple[int, int]:
        """A row of sources, and one of targets."""
        return self.max_length, self.max_length

    def chunks(self, documents: TokenizedDocuments, /) -> ChunkIndex:
        """Take every pair that fits a row, and say how many do not."""
        sizes = pair_lengths(documents) + 1  # the end of each side
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
        start = np.zeros_like(chosen)
        whole = np.diff(documents.starts)[chosen]
        return ChunkIndex(documents, chosen, start, whole, start, sizes[chosen])

    def example(self, chunk: Chunk, rng: Rng, /) -> Translation:
        """Frame a pair; nothing is drawn."""
        source, target = np.split(chunk.ids, chunk.sentences[:1])
        eos = self.special_tokens.require("eos")
        # As T5's, the decoder starts with the padding token.
        ids = np.concatenate([[self.special_tokens.pad], target])
        return Translation(np.append(source, eos), ids, np.append(target, eos))

    def collate(self, rows: Sequence[Sequence[Translation]], /) -> Batch[TokenTargets]:
        """Lay sources side by side, and their targets likewise."""
        pad = self.special_tokens.pad
        document, position_ids = document_and_position_ids(
            [[len(e.source) for e in row] for row in rows], self.max_length
        )
        source = Inputs(
            input_ids=pad_rows([[e.source for e in row] for row in rows], self.max_length, pad),
            attention_mask=AttentionMask.bidirectional(document),
            position_ids=position_ids,
        )
        document, position_ids = document_and_position_ids(
            [[len(e.ids) for e in row] for row in rows], self.max_length
        )
        inputs = Inputs(
            input_ids=pad_rows([[e.ids for e in row] for row in rows], self.max_length, pad),
            attention_mask=AttentionMask.causal(document),
            position_ids=position_ids,
            encoder_inputs=source,
        )
        labels = pad_rows([[e.labels for e in row] for row in rows], self.max_length, IGNORE_INDEX)
        count = int((labels != IGNORE_INDEX).sum())
        names = ("tokens", "smoothing") if self.label_smoothing else ("tokens",)
        return Batch(inputs, TokenTargets(labels.flatten()), dict.fromkeys(names, count))

    def loss(self, model: Writes, batch: Batch[TokenTargets], /) -> Loss:
        """Sum -log p(next token of the target), and what smoothing adds to it.

        The first part is what any model is scored by; the second has the gradient of both.
        """
        said = model.lm_logits(batch.targets.gather(model(batch.inputs).hidden))
        if not self.label_smoothing:
            return Loss({"tokens": said.nll(batch.targets.labels)})
        smoothed, plain = said.smoothed_nll(batch.targets.labels, self.label_smoothing)
        return Loss({"tokens": plain, "smoothing": smoothed - plain})

    def for_evaluation(self) -> "Seq2Seq":
        """Predict every token of every target once, by its plain likelihood."""
        return replace(self, label_smoothing=0.0)

    def with_max_length_for(self, documents: TokenizedDocuments) -> "Seq2Seq":
        """Return the same with rows that every pair fits."""
        return replace(
            self, max_length=max(self.max_length, int(pair_lengths(documents).max()) + 1)
        )
