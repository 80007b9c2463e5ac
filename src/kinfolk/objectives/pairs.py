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
from kinfolk.data.packing import lay, number
from kinfolk.data.pairs import sides
from kinfolk.data.pieces import Documents, Ids, Piece, Pieces, Rng
from kinfolk.errors import UserError
from kinfolk.text.tokenizer import Specials


class Smooths(LazyLogits, Protocol):
    """Scores that also know the loss of labels that are not quite sure."""

    def smoothed(self, labels: Tensor, smoothing: float, /) -> tuple[Tensor, Tensor]:
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

    source: Ids
    ids: Ids
    labels: Ids


@config("pairs")
class Pairs:
    """Write the second text of each pair from the first."""

    specials: Specials = field(help="ids of the special tokens")
    vocab: int = field(ge=1, help="number of token ids")
    length: int = field(
        default=512, ge=1, help="length of a row of sources, and of a row of targets"
    )
    smoothing: float = field(
        default=0.1, ge=0, lt=1, help="label smoothing (Vaswani et al. 2017, section 5.4)"
    )

    def __post_init__(self) -> None:
        self.specials.need("eos")

    @property
    def capacity(self) -> tuple[int, int]:
        """A row of sources, and one of targets."""
        return self.length, self.length

    def pieces(self, documents: Documents, /) -> Pieces:
        """Take every pair that fits a row, and say how many do not."""
        sizes = sides(documents) + 1  # the end of each side
        fits = (sizes <= self.length).all(1)
        chosen = np.flatnonzero(fits)
        if not len(chosen):
            raise UserError(
                f"no pair fits a row of {self.length} tokens: with --length {sizes.max(initial=0)} "
                "all fit"
            )
        if len(chosen) < len(sizes):
            warnings.warn(
                f"{len(sizes) - len(chosen):,} of {len(sizes):,} pairs are left out: a side is "
                f"longer than the {self.length - 1} tokens that fit a row; "
                f"with --length {sizes.max()} all fit",
                stacklevel=2,
            )
        start = np.zeros_like(chosen)
        whole = np.diff(documents.starts)[chosen]
        return Pieces(documents, chosen, start, whole, start, sizes[chosen])

    def example(self, piece: Piece, rng: Rng, /) -> Translation:
        """Frame a pair; nothing is drawn."""
        source, target = np.split(piece.ids, piece.sentences[:1])
        eos = self.specials.need("eos")
        # As T5's, the decoder starts with the padding token.
        ids = np.concatenate([[self.specials.pad], target])
        return Translation(np.append(source, eos), ids, np.append(target, eos))

    def collate(self, rows: Sequence[Sequence[Translation]], /) -> Batch[TokenTargets]:
        """Lay sources side by side, and their targets likewise."""
        pad = self.specials.pad
        document, places = number([[len(e.source) for e in row] for row in rows], self.length)
        source = Inputs(
            input_ids=lay([[e.source for e in row] for row in rows], self.length, pad),
            attention_mask=AttentionMask.bidirectional(document),
            position_ids=places,
        )
        document, places = number([[len(e.ids) for e in row] for row in rows], self.length)
        inputs = Inputs(
            input_ids=lay([[e.ids for e in row] for row in rows], self.length, pad),
            attention_mask=AttentionMask.causal(document),
            position_ids=places,
            encoder_inputs=source,
        )
        labels = lay([[e.labels for e in row] for row in rows], self.length, IGNORE_INDEX)
        count = int((labels != IGNORE_INDEX).sum())
        names = ("tokens", "smoothing") if self.smoothing else ("tokens",)
        return Batch(inputs, TokenTargets(labels.flatten()), dict.fromkeys(names, count))

    def loss(self, model: Writes, batch: Batch[TokenTargets], /) -> Loss:
        """Sum -log p(next token of the target), and what smoothing adds to it.

        The first part is what any model is scored by; the second has the gradient of both.
        """
        said = model.lm_logits(batch.targets.gather(model(batch.inputs).hidden))
        if not self.smoothing:
            return Loss({"tokens": said.nll(batch.targets.labels)})
        smoothed, plain = said.smoothed(batch.targets.labels, self.smoothing)
        return Loss({"tokens": plain, "smoothing": smoothed - plain})

    def exam(self) -> "Pairs":
        """Predict every token of every target once, by its plain likelihood."""
        return replace(self, smoothing=0.0)

    def holding(self, documents: Documents) -> "Pairs":
        """Return the same with rows that every pair fits."""
        return replace(self, length=max(self.length, int(sides(documents).max()) + 1))
