"""Replaced-token detection (Clark et al., 2020): find the tokens that a generator replaced.

text             the  cat  sat  down
input_ids  [C]   the  [M]  sat  [M]  [S]
labels      .     .   cat   .   down  .
sampled    [C]   the  dog  sat  down [S]
replaced    0     0    1    0    0    0
attention  every token attends to every token

The generator reads `input_ids` and is trained by the likelihood of `labels`. The discriminator
reads what the generator `sampled` and predicts what was `replaced`; a token that was sampled as it
was is not. No gradient flows through the sampling. The random numbers come with the example, so
the samples depend only on the text, the seed, the epoch and the weights.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from kinfolk.attention_mask import PADDING_ID
from kinfolk.batch import IGNORE_INDEX, Batch, Inputs, Loss, TensorTree, TokenTargets
from kinfolk.config import config, field
from kinfolk.data.chunks import Chunk, Rng
from kinfolk.data.examples import Collated, Example
from kinfolk.nn.language_model import LanguageModel
from kinfolk.nn.losses import chunk_rows
from kinfolk.objectives.mlm import MLM, MLMScorer

UNIFORM_LEVELS = 2**24  # of a random number: what float32 can tell apart between 0 and 1
IDS_PER_GROUP = 64  # in sampling


@dataclass(frozen=True, eq=False)
class RTDTargets(TensorTree):
    """The masked tokens, and the random numbers by which the generator samples."""

    tokens: TokenTargets
    uniforms: Tensor  # (predictions,), from 0 to 1


@config("rtd")
class RTD(MLM):
    """Predict masked tokens with a small network, and find its mistakes with a large one."""

    discriminator_weight: float = field(
        default=50.0,
        ge=0,
        le=1e6,
        help="weight of the discriminator's loss (section 3.2, appendix A)",
    )

    def example(self, chunk: Chunk, rng: Rng, /) -> Example:
        """Replace the chosen tokens by [MASK], all of them (section 3.1).

        BERT's split into masked, replaced and kept tokens is drawn and not used: without it, the
        random numbers that follow would be others.
        """
        text = self.add_special_tokens(chunk.ids)
        labels = self.mask(text, rng, self.word_starts(chunk)).labels
        predicted = labels != IGNORE_INDEX
        ids = np.where(predicted, self.special_tokens.require("mask"), text)
        uniforms = np.where(predicted, rng.integers(UNIFORM_LEVELS, size=len(ids)), 0)
        return Example(input_ids=ids, labels=labels, uniforms=uniforms)

    def make_batch(
        self, collated: Collated, labels: Tensor, examples: Sequence[Example], /
    ) -> Batch[RTDTargets]:
        """Add the masked tokens; the discriminator is trained on every token."""
        batch = super().make_batch(collated, labels, examples)
        uniforms = collated.lay_out([e.uniforms for e in examples if e.uniforms is not None])
        sampled = (uniforms[batch.targets.positions].float() + 0.5) / UNIFORM_LEVELS
        tokens = int((batch.inputs.attention_mask.document_ids != PADDING_ID).sum())
        counts = {**batch.counts, "rtd": tokens}
        return Batch(batch.inputs, RTDTargets(batch.targets, sampled), counts)

    def loss(self, model: LanguageModel, batch: Batch[RTDTargets], /) -> Loss:
        """Return the summed -log p(masked token) and -log p(replaced or not)."""
        targets = batch.targets.tokens
        hidden = model.read_lm(batch.inputs, targets.positions)
        tokens = model.lm_logits(hidden).nll(targets.labels)
        logits, replaced = self.replaced_logits(model, batch, hidden)
        text = (batch.inputs.attention_mask.document_ids != PADDING_ID).to(logits.dtype)
        detections = F.binary_cross_entropy_with_logits(
            logits, replaced.to(logits.dtype), weight=text, reduction="sum"
        )
        sums = {self.loss_name: tokens, "rtd": detections}
        return Loss(sums, {"rtd": self.discriminator_weight})

    def replaced_logits(
        self, model: LanguageModel, batch: Batch[RTDTargets], hidden: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the logit of every token, and which tokens were replaced: (batch, length).

        `hidden` holds the generator's hidden states of the masked tokens.
        """
        sampled = sample_tokens(model, hidden, batch.targets.uniforms)
        inputs, replaced = replace_tokens(batch.inputs, batch.targets.tokens, sampled)
        logits = model.discriminator_logits(model(inputs).hidden)
        return logits.to(torch.promote_types(logits.dtype, torch.float32)), replaced

    def for_evaluation(self) -> "GeneratorScorer":
        """Predict every token from all the others, with the generator."""
        return GeneratorScorer(**self.common_fields)


@torch.no_grad()
def sample_tokens(model: LanguageModel, hidden: Tensor, uniforms: Tensor) -> Tensor:
    """Sample a token for each hidden state by its uniform random number: (predictions,)."""
    size = chunk_rows(len(hidden), model.config.vocab_size, hidden.is_cuda)
    if not hidden.is_cuda:
        size = max(1, size // 4)  # what fits into a cache
    sampled = []
    for part, numbers in zip(torch.split(hidden, size), torch.split(uniforms, size), strict=True):
        logits = model.lm_logits(part).logits()
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        sampled.append(sample_ids(logits, numbers))
    return torch.cat(sampled)


def sample_ids(logits: Tensor, uniforms: Tensor) -> Tensor:
    """Return the id where the cumulative distribution reaches a number from 0 to 1: (rows,).

    First the group of ids is found, and then the id in it: summing up all ids one after the other
    takes three times as long.
    """
    vocab_size = logits.shape[-1]
    padded = F.pad(logits, (0, -vocab_size % IDS_PER_GROUP), value=-torch.inf)
    masses = (padded - padded.amax(-1, keepdim=True)).exp().view(len(padded), -1, IDS_PER_GROUP)
    groups = masses.sum(-1).cumsum(-1)
    wanted = uniforms[:, None] * groups[:, -1:]
    group = (groups < wanted).sum(-1, keepdim=True)
    within = masses.gather(1, group[:, :, None].expand(-1, 1, IDS_PER_GROUP))[:, 0].cumsum(-1)
    before = groups.gather(1, group) - within[:, -1:]
    # Rounding may leave the sum over a group just below what is wanted.
    place = (before + within < wanted).sum(-1).clamp(max=IDS_PER_GROUP - 1)
    return (group[:, 0] * IDS_PER_GROUP + place).clamp(max=vocab_size - 1)


def replace_tokens(inputs: Inputs, targets: TokenTargets, sampled: Tensor) -> tuple[Inputs, Tensor]:
    """Put sampled tokens where tokens were masked, and return which differ from the text."""
    assert targets.positions is not None
    predicted, ids = targets.labels != IGNORE_INDEX, inputs.input_ids.flatten()
    # An ignored prediction stands at position 0, which is a [CLS], and leaves it as it is.
    kept = torch.where(predicted, sampled, ids[targets.positions])
    replaced = torch.zeros_like(ids, dtype=torch.bool)
    replaced = replaced.scatter(0, targets.positions, predicted & (sampled != targets.labels))
    shape = inputs.input_ids.shape
    new_ids = ids.scatter(0, targets.positions, kept).view(shape)
    return replace(inputs, input_ids=new_ids), replaced.view(shape)


@config("rtd_pll")
class GeneratorScorer(MLMScorer):
    """Pseudo-likelihood of the generator: the discriminator predicts no tokens."""
