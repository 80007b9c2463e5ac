"""Evaluation on held-out documents: likelihood and the scores of the pretraining tasks."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from kinfolk.attention_mask import PADDING_ID
from kinfolk.batch import Batch, with_texts
from kinfolk.data.chunks import TokenizedDocuments
from kinfolk.data.datasets import ContiguousDataset, PackedDataset, evaluation_dataset
from kinfolk.nn.language_model import reads_texts
from kinfolk.objectives.nsp import NSP
from kinfolk.objectives.objective import Objective
from kinfolk.objectives.rtd import RTD

BatchProgress = Callable[[int, int], None]  # receives the batches done, and their number


def no_progress(done: int, total: int) -> None:
    """Report nothing."""


@dataclass(frozen=True)
class LikelihoodScores:
    """The likelihood of a text under a model."""

    nats: float  # summed over the tokens
    tokens: int
    bytes: int  # of the text the tokens came from
    kind: str = ""  # of likelihood: left to right, or from the text around each token
    backward: "LikelihoodScores | None" = None  # right to left, of a bidirectional model
    sampled_from: int | None = None  # tokens of the text, where only some of them were scored

    @property
    def loss(self) -> float:
        """Nats per token."""
        return self.nats / self.tokens

    @property
    def perplexity(self) -> float:
        """exp(loss)."""
        return math.exp(self.loss)

    @property
    def bits_per_byte(self) -> float:
        """Bits per byte of the text: the same scale for every tokenizer."""
        return self.loss * (self.sampled_from or self.tokens) / math.log(2) / self.bytes


def score_documents(
    model: nn.Module,
    objective: Objective,
    documents: TokenizedDocuments,
    size: int,
    *,
    rows: int = 32,
    bfloat16: bool = False,
    progress: BatchProgress = no_progress,
) -> LikelihoodScores:
    """Score documents of `size` bytes by an objective that predicts every token once."""
    device = next(model.parameters()).device
    dataset = evaluation_dataset(objective, documents, rows=rows)
    names = [n for n in (objective.loss_name, objective.backward_loss_name) if n is not None]
    totals, tokens, memory = dict.fromkeys(names, 0.0), dict.fromkeys(names, 0), None
    with torch.autocast(device.type, torch.bfloat16, enabled=bfloat16):
        for batch in _batches(model, dataset, progress):
            loss = objective.loss(model, batch.with_memory(memory))
            memory = loss.memory
            for name in names:
                totals[name] += float(loss.sums[name])
                tokens[name] += batch.counts[name]
    forward, *backward = (LikelihoodScores(totals[n], tokens[n], size) for n in names)
    return replace(forward, backward=backward[0]) if backward else forward


@dataclass(frozen=True)
class DetectionScores:
    """The accuracy of replaced-token detection.

    `auc` is the area under the ROC curve: the probability that a replaced token scores higher than
    an original one. `base_rate` is the fraction of replaced tokens.
    """

    auc: float
    accuracy: float
    base_rate: float


def rtd_scores(
    model: Any,
    objective: RTD,
    documents: TokenizedDocuments,
    *,
    rows: int = 32,
    progress: BatchProgress = no_progress,
) -> DetectionScores:
    """Score a discriminator on documents, some tokens of which its generator replaces."""
    all_logits, all_replaced = [], []
    dataset = PackedDataset(objective, documents, batch_size=rows, shuffled=False)
    for batch in _batches(model, dataset, progress):
        hidden = batch.targets.tokens.gather(model.forward_lm(batch.inputs).hidden)
        batch_logits, is_replaced = objective.replaced_logits(model, batch, hidden)
        text = batch.inputs.attention_mask.document_ids != PADDING_ID
        all_logits.append(batch_logits[text].cpu().numpy())
        all_replaced.append(is_replaced[text].cpu().numpy())
    logits, replaced = np.concatenate(all_logits), np.concatenate(all_replaced)
    accuracy = float(((logits > 0) == replaced).mean())
    return DetectionScores(roc_auc(logits, replaced), accuracy, float(replaced.mean()))


def pair_accuracy(
    model: Any,
    objective: NSP,
    documents: TokenizedDocuments,
    *,
    rows: int = 32,
    progress: BatchProgress = no_progress,
) -> float | None:
    """Return the accuracy on sentence pairs, if there are any."""
    right = total = 0
    dataset = PackedDataset(objective, documents, batch_size=rows, shuffled=False)
    for batch in _batches(model, dataset, progress):
        hidden, targets = model(batch.inputs).hidden, batch.targets
        logits = model.seq_relationship_logits(
            hidden.flatten(0, 1).index_select(0, targets.cls_positions)
        )
        right += int((logits.argmax(-1) == targets.sequence_labels).sum())
        total += batch.counts[objective.pair_loss_name]
    return right / total if total else None


def roc_auc(scores: NDArray[np.floating[Any]], positive: NDArray[np.bool_]) -> float:
    """Return the area under the ROC curve, by ranks; equal scores share theirs.

    One half where all or none are positive.
    """
    count = int(positive.sum())
    if count in (0, len(positive)):
        return 0.5
    _, index, sizes = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(sizes) - (sizes - 1) / 2)[index]
    above = float(ranks[positive].sum()) - count * (count + 1) / 2
    return above / (count * (len(positive) - count))


def _batches(
    model: nn.Module, dataset: PackedDataset | ContiguousDataset, progress: BatchProgress
) -> Iterator[Batch[Any]]:
    """Yield all batches, with the model in evaluation mode meanwhile."""
    device, training = next(model.parameters()).device, model.training
    model.eval()
    with torch.inference_mode():
        for number in range(len(dataset)):
            batch = dataset[number]
            yield (with_texts(batch) if reads_texts(model) else batch).to(device)
            progress(number + 1, len(dataset))
    model.train(training)
