"""Replaced-token detection (Clark et al., 2020): find what a generator wrote into a text.

text        the  cat  sat  down
ids    [C]  the  [M]  sat  [M]  [S]
labels  .    .   cat   .   down  .
given  [C]  the  dog  sat  down [S]
wrong   0    0    1    0    0    0
sight  everyone sees everyone

The generator reads `ids` and learns `labels` by likelihood. What it draws is `given` to the
discriminator, which learns what is `wrong`; a token drawn as it was is not. No gradient flows
through the draw. The random numbers of the draw come with the example, so what is drawn depends
on nothing but the text, the seed, the epoch and the weights.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from kinfolk.config import config, field
from kinfolk.data.packing import lay
from kinfolk.data.pieces import Ids, Piece, Rng
from kinfolk.nn.losses import chunks
from kinfolk.objectives.mlm import MLM, Masked, OneByOne
from kinfolk.sight import PADDING
from kinfolk.types import IGNORED, Batch, Detects, Inputs, Labels, Loss, Tree

GRAINS = 2**24  # of a random number: what float32 can tell apart between 0 and 1


@dataclass(frozen=True)
class Holes(Masked):
    """Tokens, some of them hidden, what those were, and a random number for each."""

    draws: Ids  # from 0 to GRAINS - 1


@dataclass(frozen=True, eq=False)
class Drawn(Tree):
    """The hidden tokens, and the random numbers that decide what the generator puts there."""

    tokens: Labels
    draws: Tensor  # (predictions,), from 0 to 1


@config("rtd")
class RTD(MLM):
    """Predict hidden tokens with a small network, and find its mistakes with a large one."""

    weight: float = field(
        default=50.0, ge=0, help="weight of the discriminator's loss (section 3.2, appendix A)"
    )

    def example(self, piece: Piece, rng: Rng, /) -> Holes:
        """Frame the piece and hide some of it, all behind [MASK] (section 3.1)."""
        masked = super().example(piece, rng)
        hidden = masked.labels != IGNORED
        ids = np.where(hidden, self.specials.need("mask"), self.frame(piece.ids))
        return Holes(ids, masked.labels, np.where(hidden, rng.integers(GRAINS, size=len(ids)), 0))

    def collate(self, rows: Sequence[Sequence[Holes]], /) -> Batch[Drawn]:  # type: ignore[override]
        """Lay texts side by side; every token of them is a detection."""
        found = super().collate(rows)
        draws = lay([[e.draws for e in row] for row in rows], self.length, 0).flatten()
        assert found.targets.at is not None
        draws = (draws[found.targets.at].float() + 0.5) / GRAINS
        tokens = int((found.inputs.sight.document != PADDING).sum())
        counts = {**found.counts, "detections": tokens}
        return Batch(found.inputs, Drawn(found.targets, draws), counts)

    def loss(self, model: Detects, batch: Batch[Drawn], /) -> Loss:  # type: ignore[override]
        """Sum -log p(hidden token) and -log p(verdict on each token)."""
        labels = batch.targets.tokens
        hidden = labels.select(model.guess(batch.inputs).hidden)
        tokens = model.predict(hidden).nll(labels.ids)
        scores, wrong = self.detections(model, batch, hidden)
        text = (batch.inputs.sight.document != PADDING).to(scores.dtype)
        detections = F.binary_cross_entropy_with_logits(
            scores, wrong.to(scores.dtype), weight=text, reduction="sum"
        )
        return Loss({"tokens": tokens, "detections": detections}, {"detections": self.weight})

    def detections(
        self, model: Detects, batch: Batch[Drawn], hidden: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Score every token by how likely it was replaced, and tell which were: (batch, length).

        `hidden` is what the generator made of the hidden tokens.
        """
        drawn = draw(model, hidden, batch.targets.draws)
        given, wrong = fill(batch.inputs, batch.targets.tokens, drawn)
        scores = model.detect(model(given).hidden)
        return scores.to(torch.promote_types(scores.dtype, torch.float32)), wrong

    def exam(self) -> "ByGenerator":
        """Predict every token from all the others, with the generator."""
        return ByGenerator(specials=self.specials, vocab=self.vocab, length=self.length)


@torch.no_grad()
def draw(model: Detects, hidden: Tensor, draws: Tensor) -> Tensor:
    """Draw a token for each hidden state, by where its random number falls: (predictions,)."""
    size = chunks(len(hidden), model.config.vocab, hidden.is_cuda)
    found = []
    for part, numbers in zip(torch.split(hidden, size), torch.split(draws, size), strict=True):
        logits = model.predict(part).logits()
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        shares = logits.softmax(-1).cumsum(-1)
        found.append((shares < numbers[:, None] * shares[:, -1:]).sum(-1))
    return torch.cat(found)


def fill(inputs: Inputs, labels: Labels, drawn: Tensor) -> tuple[Inputs, Tensor]:
    """Put what was drawn where it was asked for, and tell which tokens are not the text's own."""
    assert labels.at is not None
    asked, ids = labels.ids != IGNORED, inputs.ids.flatten()
    # An empty prediction stands at slot 0, which is a [CLS], and leaves it as it is.
    given = ids.scatter(0, labels.at, torch.where(asked, drawn, ids[labels.at]))
    wrong = torch.zeros_like(ids, dtype=torch.bool)
    wrong = wrong.scatter(0, labels.at, asked & (drawn != labels.ids))
    shape = inputs.ids.shape
    return replace(inputs, ids=given.view(shape)), wrong.view(shape)


@config("rtd_pll")
class ByGenerator(OneByOne):
    """Pseudo-likelihood of the generator: the discriminator predicts no tokens."""

    def loss(self, model: Detects, batch: Batch[Labels], /) -> Loss:  # type: ignore[override]
        """Sum -log p(hidden token)."""
        hidden = batch.targets.select(model.guess(batch.inputs).hidden)
        return Loss({"tokens": model.predict(hidden).nll(batch.targets.ids)})
