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

from kinfolk.attention_mask import PADDING_ID
from kinfolk.batch import (
    IGNORE_INDEX,
    Batch,
    DiscriminatorModel,
    Inputs,
    Loss,
    TensorTree,
    TokenTargets,
)
from kinfolk.config import config, field
from kinfolk.data.chunks import Chunk, IntArray, Rng
from kinfolk.data.examples import pad_rows
from kinfolk.nn.losses import chunk_rows
from kinfolk.objectives.mlm import MLM, Masked, MLMScorer

UNIFORM_LEVELS = 2**24  # of a random number: what float32 can tell apart between 0 and 1


@dataclass(frozen=True)
class MaskedPositions(Masked):
    """Tokens, some of them hidden, what those were, and a random number for each."""

    draws: IntArray  # from 0 to GRAINS - 1


@dataclass(frozen=True, eq=False)
class RTDTargets(TensorTree):
    """The hidden tokens, and the random numbers that decide what the generator puts there."""

    tokens: TokenTargets
    draws: Tensor  # (predictions,), from 0 to 1


@config("rtd")
class RTD(MLM):
    """Predict hidden tokens with a small network, and find its mistakes with a large one."""

    discriminator_weight: float = field(
        default=50.0, ge=0, help="weight of the discriminator's loss (section 3.2, appendix A)"
    )

    def example(self, chunk: Chunk, rng: Rng, /) -> MaskedPositions:
        """Frame the piece and hide some of it, all behind [MASK] (section 3.1)."""
        masked = super().example(chunk, rng)
        hidden = masked.labels != IGNORE_INDEX
        ids = np.where(hidden, self.special_tokens.require("mask"), self.frame(chunk.ids))
        return MaskedPositions(
            ids, masked.labels, np.where(hidden, rng.integers(UNIFORM_LEVELS, size=len(ids)), 0)
        )

    def collate(self, rows: Sequence[Sequence[MaskedPositions]], /) -> Batch[RTDTargets]:  # type: ignore[override]
        """Lay texts side by side; every token of them is a detection."""
        found = super().collate(rows)
        draws = pad_rows([[e.draws for e in row] for row in rows], self.max_length, 0).flatten()
        assert found.targets.positions is not None
        draws = (draws[found.targets.positions].float() + 0.5) / UNIFORM_LEVELS
        tokens = int((found.inputs.attention_mask.document_ids != PADDING_ID).sum())
        counts = {**found.counts, "detections": tokens}
        return Batch(found.inputs, RTDTargets(found.targets, draws), counts)

    def loss(self, model: DiscriminatorModel, batch: Batch[RTDTargets], /) -> Loss:  # type: ignore[override]
        """Sum -log p(hidden token) and -log p(verdict on each token)."""
        labels = batch.targets.tokens
        hidden = labels.gather(model.forward_lm(batch.inputs).hidden)
        tokens = model.lm_logits(hidden).nll(labels.labels)
        scores, wrong = self.replaced_logits(model, batch, hidden)
        text = (batch.inputs.attention_mask.document_ids != PADDING_ID).to(scores.dtype)
        detections = F.binary_cross_entropy_with_logits(
            scores, wrong.to(scores.dtype), weight=text, reduction="sum"
        )
        return Loss(
            {"tokens": tokens, "detections": detections}, {"detections": self.discriminator_weight}
        )

    def replaced_logits(
        self, model: DiscriminatorModel, batch: Batch[RTDTargets], hidden: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Score every token by how likely it was replaced, and tell which were: (batch, length).

        `hidden` is what the generator made of the hidden tokens.
        """
        drawn = draw(model, hidden, batch.targets.draws)
        given, wrong = replace_tokens(batch.inputs, batch.targets.tokens, drawn)
        scores = model.discriminator_logits(model(given).hidden)
        return scores.to(torch.promote_types(scores.dtype, torch.float32)), wrong

    def for_evaluation(self) -> "GeneratorScorer":
        """Predict every token from all the others, with the generator."""
        return GeneratorScorer(
            special_tokens=self.special_tokens,
            vocab_size=self.vocab_size,
            max_length=self.max_length,
        )


@torch.no_grad()
def draw(model: DiscriminatorModel, hidden: Tensor, draws: Tensor) -> Tensor:
    """Draw a token for each hidden state, by where its random number falls: (predictions,)."""
    size = chunk_rows(len(hidden), model.config.vocab_size, hidden.is_cuda)
    found = []
    for part, numbers in zip(torch.split(hidden, size), torch.split(draws, size), strict=True):
        logits = model.lm_logits(part).logits()
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        shares = logits.softmax(-1).cumsum(-1)
        found.append((shares < numbers[:, None] * shares[:, -1:]).sum(-1))
    return torch.cat(found)


def replace_tokens(inputs: Inputs, labels: TokenTargets, drawn: Tensor) -> tuple[Inputs, Tensor]:
    """Put what was drawn where it was asked for, and tell which tokens are not the text's own."""
    assert labels.positions is not None
    asked, ids = labels.labels != IGNORE_INDEX, inputs.input_ids.flatten()
    # An empty prediction stands at slot 0, which is a [CLS], and leaves it as it is.
    given = ids.scatter(0, labels.positions, torch.where(asked, drawn, ids[labels.positions]))
    wrong = torch.zeros_like(ids, dtype=torch.bool)
    wrong = wrong.scatter(0, labels.positions, asked & (drawn != labels.labels))
    shape = inputs.input_ids.shape
    return replace(inputs, input_ids=given.view(shape)), wrong.view(shape)


@config("rtd_pll")
class GeneratorScorer(MLMScorer):
    """Pseudo-likelihood of the generator: the discriminator predicts no tokens."""

    def loss(self, model: DiscriminatorModel, batch: Batch[TokenTargets], /) -> Loss:  # type: ignore[override]
        """Sum -log p(hidden token)."""
        hidden = batch.targets.gather(model.forward_lm(batch.inputs).hidden)
        return Loss({"tokens": model.lm_logits(hidden).nll(batch.targets.labels)})
