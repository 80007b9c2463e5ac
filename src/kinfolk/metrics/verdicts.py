"""What a model judges besides tokens: pairs of texts, and which tokens were replaced."""

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
from kinfolk.data.feed import PackedDataset


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
