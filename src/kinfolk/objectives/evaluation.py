"""Evaluation on held-out documents: likelihood and the scores of the pretraining tasks."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from kinfolk.attention_mask import PADDING_ID
from kinfolk.batch import IGNORE_INDEX, Batch, Inputs, with_texts
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


@dataclass(frozen=True, eq=False)
class DocumentLikelihoods:
    """The likelihood of each document under a model."""

    nats: NDArray[np.float64]  # (documents,): summed over the tokens that were scored
    tokens: NDArray[np.int64]  # (documents,): how many those are


def score_each_document(
    model: nn.Module,
    objective: Objective,
    documents: TokenizedDocuments,
    *,
    rows: int = 32,
    progress: BatchProgress = no_progress,
) -> DocumentLikelihoods:
    """Score each document by an objective that predicts every token once; ELMo's from the left.

    The sums are those of `score_documents`, up to rounding.
    """
    dataset = evaluation_dataset(objective, documents, rows=rows)
    count, memory = len(documents.starts) - 1, None
    nats, tokens = np.zeros(count), np.zeros(count, np.int64)
    for number, batch in enumerate(_batches(model, dataset, progress)):
        owners = dataset.label_documents(number)
        by_document = _ByDocument(model, owners)
        memory = objective.loss(by_document, batch.with_memory(memory)).memory
        for document, total in by_document.nats.items():
            nats[document] += total
        tokens += np.bincount(owners, minlength=count)
    return DocumentLikelihoods(nats, tokens)


class _ByDocument:
    """A model that sums the first likelihood of a batch by document.

    `owners` is the document of each label that is not ignored, in the order of the labels.
    """

    def __init__(self, model: Any, owners: NDArray[np.int64]) -> None:
        self.model, self.owners, self.nats = model, owners, dict[int, float]()

    def __call__(self, inputs: Inputs) -> Any:
        return self.model(inputs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    def lm_logits(self, hidden: Tensor) -> "_LogitsByDocument":
        """Return logits whose likelihood is summed by document."""
        return _LogitsByDocument(self, hidden)


@dataclass(frozen=True, eq=False)
class _LogitsByDocument:
    by_document: _ByDocument
    hidden: Tensor  # (predictions, hidden_size)

    def nll(self, labels: Tensor) -> Tensor:
        """Return the summed negative log-likelihood of the labels, in nats."""
        view = self.by_document
        if view.nats:  # the second likelihood of a batch is that from right to left
            return view.model.lm_logits(self.hidden).nll(labels)
        kept = (labels != IGNORE_INDEX).nonzero()[:, 0]
        assert len(kept) == len(view.owners)
        total = self.hidden.new_zeros((), dtype=torch.float64)
        for document in np.unique(view.owners).tolist():
            own = kept[torch.from_numpy(np.flatnonzero(view.owners == document)).to(kept.device)]
            nll = view.model.lm_logits(self.hidden[own]).nll(labels[own])
            view.nats[document] = float(nll)
            total = total + nll
        return total


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
        hidden = model.read_lm(batch.inputs, batch.targets.tokens.positions)
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
        targets = batch.targets
        logits = model.seq_relationship_logits(model.read_lm(batch.inputs, targets.cls_positions))
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
