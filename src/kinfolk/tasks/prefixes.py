"""Contrastive prefixes (Qian et al. 2022): one prefix per attribute, trained to tell texts apart.

With labels y the loss of a text x is

    lm_weight * -log p(x | y)  +  discriminative_weight * -log p(x | y) / sum over y' of p(x | y')

Without labels the attribute z is latent. An encoder gives q(z | x), and the prefixes give the
posterior p(z | x) = p(x | z) / sum over z' of p(x | z'), where all attributes are equally likely:

    lm_weight * -E[log p(x | z)]  +  kl_weight * KL(q(z | x) || uniform)
        +  contrastive_weight * E[max(margin - (p(z | x) - p(not z | x)), 0)^2]

Deviation: the expectations over q are exact, since every text is scored after every prefix; the
paper draws z by Gumbel-softmax.
Deviation: the last term has the signed difference, so that the prefix of z becomes the likelier
one; the paper has its absolute value.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from kinfolk.batch import IGNORE_INDEX, Batch, Loss, TensorTree, TokenTargets
from kinfolk.nn.prefixes import PrefixedModel
from kinfolk.tasks.formulations.base import Instance, pack_examples
from kinfolk.tasks.formulations.sequences import build_example
from kinfolk.tasks.prefix_config import PrefixConfig
from kinfolk.text.tokenizer import Tokenizer


@dataclass(frozen=True, eq=False)
class PrefixTargets(TensorTree):
    """The tokens of packed texts, the text of each, and the attributes of the texts."""

    tokens: TokenTargets
    text_ids: Tensor  # (predictions,)
    attributes: Tensor  # (texts,): IGNORE_INDEX without a label
    max_documents: int  # texts of the fullest row


def text_instance(
    text: str, attribute: int | None, tokenizer: Tokenizer, max_length: int
) -> Instance:
    """Return a text as a decoder reads it; the end of a text that is cut is not predicted.

    Spaces around it, which cells of tables may have, are not part of it.
    """
    ids = tokenizer.offsets(text.strip())[0]
    kept = ids[: max_length - 1]  # and the start token
    end = len(kept) == len(ids)
    example = build_example("decoder", tokenizer.special_tokens, [], kept, end=end)
    return Instance(examples=(example,), target=attribute, truncated_tokens=len(ids) - len(kept))


@dataclass(frozen=True)
class LabelledPrefixes:
    """The loss of texts whose attributes are known."""

    config: PrefixConfig
    pad_id: int

    parts: ClassVar[tuple[str, ...]] = ("lm", "discriminative")

    def make_batch(self, instances: Sequence[Instance], /) -> Batch[PrefixTargets]:
        """Pack texts into rows."""
        examples = [example for instance in instances for example in instance.examples]
        collated = pack_examples(examples, self.pad_id)
        tokens, text_ids = collated.token_targets(examples)
        rows = np.asarray(collated.offsets) // collated.inputs.input_ids.shape[1]
        attributes = [IGNORE_INDEX if i.target is None else i.target for i in instances]
        targets = PrefixTargets(
            tokens, text_ids, torch.tensor(attributes), int(np.bincount(rows).max())
        )
        counts = dict.fromkeys(self.parts, len(instances)) | {"lm": len(tokens.labels)}
        return Batch(collated.inputs, targets, counts)

    def scores(self, model: PrefixedModel, batch: Batch[PrefixTargets]) -> Tensor:
        """Return the log-likelihood of every text after each prefix: (attributes, texts)."""
        t = batch.targets
        return model.text_logprobs(
            batch.inputs, t.tokens, t.text_ids, len(t.attributes), t.max_documents
        )

    def loss(self, model: PrefixedModel, batch: Batch[PrefixTargets], /) -> Loss:
        """Return the summed losses of a batch."""
        return self.loss_of(self.scores(model, batch), model, batch)

    def loss_of(self, scores: Tensor, model: PrefixedModel, batch: Batch[PrefixTargets]) -> Loss:
        """Return the summed losses of texts with these log-likelihoods."""
        own = batch.targets.attributes[None]
        sums = {
            "lm": -scores.gather(0, own).sum(),
            "discriminative": -scores.log_softmax(0).gather(0, own).sum(),
        }
        c = self.config
        return Loss(sums, {"lm": c.lm_weight, "discriminative": c.discriminative_weight})


class LatentPrefixes(LabelledPrefixes):
    """The loss of texts without labels, whose attributes an encoder guesses."""

    parts = ("lm", "kl", "contrastive")

    def loss_of(self, scores: Tensor, model: PrefixedModel, batch: Batch[PrefixTargets]) -> Loss:
        """Return the summed losses of texts with these log-likelihoods."""
        c, t = self.config, batch.targets
        logits = model.attribute_logits(batch.inputs, t.tokens, t.text_ids, len(t.attributes))
        log_q = logits.log_softmax(1).T  # (attributes, texts)
        q, posterior = log_q.exp(), scores.softmax(0)
        gap = (c.margin - (2 * posterior - 1)).clamp(min=0)
        sums = {
            "lm": -(q * scores).sum(),
            "kl": (q * (log_q + np.log(len(q)))).sum(),
            "contrastive": (q * gap.square()).sum(),
        }
        weights = (c.lm_weight, c.kl_weight, c.contrastive_weight)
        return Loss(sums, dict(zip(self.parts, weights, strict=True)))
