"""How well a model predicts held-out documents: likelihood and the pretraining tasks' scores."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from kinfolk.attention_mask import PADDING_ID
from kinfolk.batch import Batch
from kinfolk.data.chunks import TokenizedDocuments
from kinfolk.data.datasets import PackedDataset, evaluation_dataset


@dataclass(frozen=True)
class LikelihoodScores:
    """What a model gave the tokens of a text."""

    nats: float  # summed over the tokens
    tokens: int
    bytes: int  # of the text the tokens came from

    @property
    def loss(self) -> float:
        """Nats a token."""
        return self.nats / self.tokens

    @property
    def perplexity(self) -> float:
        """Among how many tokens, all as likely, the model would have to choose."""
        return math.exp(self.loss)

    @property
    def bits_per_byte(self) -> float:
        """What the text would take up, compressed: the same scale for every tokenizer."""
        return self.nats / math.log(2) / self.bytes


def score_documents(
    model: nn.Module,
    exam: Any,
    documents: TokenizedDocuments,
    size: int,
    *,
    rows: int = 32,
    bfloat16: bool = False,
) -> LikelihoodScores:
    """Score documents of `size` bytes; `exam` is an objective that predicts every token once."""
    device = next(model.parameters()).device
    feed = evaluation_dataset(exam, documents, rows=rows)
    was, total, tokens, memory = model.training, 0.0, 0, None
    model.eval()
    with torch.inference_mode(), torch.autocast(device.type, torch.bfloat16, enabled=bfloat16):
        for number in range(feed.num_batches):
            batch = feed[number].to(device)
            loss = exam.loss(model, batch.with_memory(memory))
            total, memory = total + float(loss.sums["tokens"]), loss.memory
            tokens += batch.counts["tokens"]
    model.train(was)
    return LikelihoodScores(total, tokens, size)


@dataclass(frozen=True)
class DetectionScores:
    """How well replaced tokens are told from the others.

    `auc` is the area under the ROC curve: the chance that a replaced token scores higher than one
    that is not. To call every token original is right for all but the share that is `replaced`.
    """

    auc: float
    accuracy: float
    base_rate: float


def rtd_scores(
    model: Any, objective: Any, documents: TokenizedDocuments, *, rows: int = 32
) -> DetectionScores:
    """Score a detector on documents, some tokens of which its own generator replaces."""
    scores, wrong = [], []
    for batch in _asked(
        model, PackedDataset(objective, documents, batch_size=rows, shuffled=False)
    ):
        hidden = batch.targets.tokens.gather(model.forward_lm(batch.inputs).hidden)
        said, truth = objective.replaced_logits(model, batch, hidden)
        text = batch.inputs.attention_mask.document_ids != PADDING_ID
        scores.append(said[text].cpu().numpy())
        wrong.append(truth[text].cpu().numpy())
    said, truth = np.concatenate(scores), np.concatenate(wrong)
    accuracy = float(((said > 0) == truth).mean())
    return DetectionScores(roc_auc(said, truth), accuracy, float(truth.mean()))


def pair_accuracy(
    model: Any, objective: Any, documents: TokenizedDocuments, *, rows: int = 32
) -> float | None:
    """Return the share of pairs that are judged rightly, of which a coin gets half, if any."""
    right = total = 0
    for batch in _asked(
        model, PackedDataset(objective, documents, batch_size=rows, shuffled=False)
    ):
        hidden, targets = model(batch.inputs).hidden, batch.targets
        scores = model.seq_relationship_logits(
            hidden.flatten(0, 1).index_select(0, targets.cls_positions)
        )
        right += int((scores.argmax(-1) == targets.sequence_labels).sum())
        total += batch.counts["pairs"]
    return right / total if total else None


def roc_auc(scores: NDArray[np.floating[Any]], positive: NDArray[np.bool_]) -> float:
    """Return the area under the ROC curve, by ranks; equal scores share theirs.

    One half where all or none are positive: nothing can be told apart then.
    """
    count = int(positive.sum())
    if count in (0, len(positive)):
        return 0.5
    _, place, sizes = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(sizes) - (sizes - 1) / 2)[place]
    above = float(ranks[positive].sum()) - count * (count + 1) / 2
    return above / (count * (len(positive) - count))


def _asked(model: nn.Module, feed: PackedDataset) -> Iterator[Batch[Any]]:
    """Yield all batches to a model at rest, and leave it as it was."""
    device, was = next(model.parameters()).device, model.training
    model.eval()
    with torch.inference_mode():
        for number in range(feed.num_batches):
            yield feed[number].to(device)
    model.train(was)
