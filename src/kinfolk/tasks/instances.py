"""Batches of instances: batch n of a fine-tuning run, and batched predictions.

As in pretraining, the instances of a batch are a function of the seed and its number, so that the
state of the data is one integer. A batch has exactly the requested number of instances.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
import torch
from torch.utils.data import Dataset

from kinfolk.batch import Batch
from kinfolk.data.chunks import IntArray
from kinfolk.data.datasets import MixtureSchedule
from kinfolk.errors import UserError
from kinfolk.rng import Stream, corpus_seed, generator
from kinfolk.tasks.formulations.base import Formulation, Instance, RawScores
from kinfolk.tasks.task import Prediction
from kinfolk.text.tokenizer import Tokenizer

TOKENS_PER_BATCH = 4096  # approximately, in prediction
MAX_SET_SIZE = 2**20  # rows, in the weights of a mixture
ROWS_PER_CHUNK = 512  # predicted at a time, so that memory does not grow with a file


class MakesBatches(Protocol):
    """A formulation, or what else makes a batch of instances."""

    def make_batch(self, instances: Sequence[Instance], /) -> Batch[Any]:
        """Pack the examples of instances into rows."""
        ...


class TaskBatches(Dataset[Batch[Any]]):
    """The batches of a run by number, of one set of instances or several."""

    def __init__(
        self,
        formulation: MakesBatches,
        sets: Sequence[Sequence[Instance]],
        *,
        batch: int,  # instances
        seed: int = 0,
        weights: Sequence[float] = (1.0,),  # of the sets in the mixture
        shares: int = 1,  # of a batch, one for each process
    ) -> None:
        if not all(sets):
            raise UserError("a training file has no labelled rows: training needs at least one")
        self.formulation, self.sets, self.batch, self.seed = formulation, sets, batch, seed
        self.shares, self.schedule = shares, MixtureSchedule.from_weights(weights)
        self._orders: dict[int, tuple[int, IntArray]] = {}

    def __getitem__(self, number: int) -> Batch[Any]:
        """Return share `number` of the run, which may lie in any epoch; of one share, batch n.

        The shares of a batch follow each other; each is packed into rows of its own.
        """
        return self.formulation.make_batch(self.instances(number))

    def instances(self, number: int) -> list[Instance]:
        """Return the instances of share `number` of the run."""
        number, share = divmod(number, self.shares)
        first, last = (self.batch * index // self.shares for index in (share, share + 1))
        positions = range(number * self.batch + first, number * self.batch + last)
        return [self.instance_at(p) for p in positions]

    def instance_at(self, position: int) -> Instance:
        """Return the instance at one position of the run."""
        number, index = self.schedule.locate(position)
        instances = self.sets[number]
        epoch, index = divmod(index, len(instances))
        return instances[int(self.order(number, epoch)[index])]

    def order(self, number: int, epoch: int) -> IntArray:
        """Return the order of the instances of a set in one epoch."""
        known = self._orders.get(number)
        if known is None or known[0] != epoch:
            rng = generator(corpus_seed(self.seed, number), Stream.ORDER, epoch)
            known = epoch, rng.permutation(len(self.sets[number]))
            self._orders[number] = known
        return known[1]


class LazyInstances(Sequence[Instance]):
    """The instances of rows, encoded when they are read: one for each row."""

    def __init__(self, formulation: Formulation, rows: Sequence[Any], tokenizer: Tokenizer) -> None:
        self.formulation, self.rows, self.tokenizer = formulation, rows, tokenizer

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: Any) -> Any:
        """Return the instance of a row; of a long one, of its first part."""
        return self.formulation.instances(self.rows[index], self.tokenizer, labelled=False)[0]


class AlternatingBatches(Dataset[Batch[Any]]):
    """Batches of labelled rows, each of one task, in turn with batches of unlabelled text.

    Steps count from 0: even ones are labelled. Every micro-batch of a step is of the same kind.
    """

    def __init__(
        self,
        labelled: Sequence[TaskBatches],
        unlabelled: TaskBatches | None,  # None: all batches are labelled
        *,
        weights: Sequence[float],  # of the tasks in the mixture
        micro_batches: int,  # of a step
        shares: int = 1,  # of a micro-batch, as of the batches given
    ) -> None:
        self.labelled, self.unlabelled, self.micro_batches = labelled, unlabelled, micro_batches
        self.shares, self.schedule = shares, MixtureSchedule.from_weights(weights)

    @property
    def batch(self) -> int:
        """The number of instances in a batch."""
        return self.labelled[0].batch

    def __getitem__(self, number: int) -> Batch[Any]:
        """Return share `number` of the run, of one share micro-batch n."""
        number, share = divmod(number, self.shares)
        if self.unlabelled is None:
            return self.labelled_batch(number, share)
        step, part = divmod(number, self.micro_batches)
        index = step // 2 * self.micro_batches + part
        if step % 2:
            return self.unlabelled[index * self.shares + share]
        return self.labelled_batch(index, share)

    def labelled_batch(self, number: int, share: int) -> Batch[Any]:
        """Return a share of labelled batch `number`."""
        task, index = self.schedule.locate(number)
        return self.labelled[task][index * self.shares + share]


def mixing_weights(sizes: Sequence[int], temperature: float) -> list[float]:
    """Return the weight of each set by its size and a temperature (Raffel et al. 2020, 3.5.2).

    A temperature of 1 mixes by size, a high one equally; a set counts as at most MAX_SET_SIZE rows.
    """
    sized = [min(size, MAX_SET_SIZE) ** (1 / temperature) for size in sizes]
    return [round(size / sum(sized), 6) for size in sized]


def predict_rows(
    formulation: Formulation,
    model: Any,
    rows: Sequence[Any],
    tokenizer: Tokenizer,
    *,
    tokens: int = TOKENS_PER_BATCH,
    encoded: Sequence[Sequence[Instance]] | None = None,  # the instances of each row, if known
    watch: Callable[[int], None] = lambda done: None,
) -> list[Prediction]:
    """Return the predictions of a model for rows; batching changes no prediction."""
    predictions: list[Prediction] = []
    for start in range(0, len(rows), ROWS_PER_CHUNK):
        chunk = rows[start : start + ROWS_PER_CHUNK]
        if encoded is None:
            instances = [formulation.instances(row, tokenizer, labelled=False) for row in chunk]
        else:
            instances = [[*group] for group in encoded[start : start + ROWS_PER_CHUNK]]
        flat = [instance for group in instances for instance in group]
        logits = iter(forward_instances(formulation, model, flat, tokens))
        generated = [row for row in chunk if formulation.generates(row)]
        texts = iter(formulation.generate(model, generated, tokenizer) if generated else ())
        for row, group in zip(chunk, instances, strict=True):
            scores = [next(logits) for _ in group]
            if not formulation.generates(row):
                predictions.append(formulation.decode(row, group, scores))
                continue
            prediction = next(texts)
            if scores:  # the likelihood of the reference
                scored = formulation.decode(row, group, scores)
                prediction = replace(prediction, nll=scored.nll, tokens=scored.tokens)
            predictions.append(prediction)
        watch(len(predictions))
    return predictions


@torch.no_grad()
def forward_instances(
    formulation: Formulation, model: Any, instances: Sequence[Instance], tokens: int
) -> list[RawScores]:
    """Return the logits of each instance; instances of similar size share a batch."""
    device = next(model.parameters()).device
    training = model.training
    model.eval()
    logits: list[RawScores] = [np.zeros(0)] * len(instances)
    for group in length_buckets([instance.tokens for instance in instances], tokens):
        batch = formulation.make_batch([instances[i] for i in group]).to(device)
        for index, scores in zip(group, formulation.logits(model, batch), strict=True):
            logits[index] = scores
    model.train(training)
    return logits


def length_buckets(sizes: Sequence[int], max_tokens: int) -> Iterator[list[int]]:
    """Yield groups of indices, longest first, with at most `max_tokens` in a group."""
    group: list[int] = []
    used = 0
    for index in sorted(range(len(sizes)), key=lambda i: -sizes[i]):
        if group and used + sizes[index] > max_tokens:
            yield group
            group, used = [], 0
        group.append(index)
        used += sizes[index]
    if group:
        yield group
