"""Lessons: batch number n of a fine-tuning run, and the answers to all questions about some rows.

As in pretraining, which examples a batch holds is a function of the seed and its number, so the
state of the data is one integer. A batch has just as many examples as was asked for, packed anew.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from kinfolk.batch import Batch
from kinfolk.data.chunks import IntArray
from kinfolk.data.datasets import MixtureSchedule
from kinfolk.errors import UserError
from kinfolk.rng import Stream, corpus_seed, generator
from kinfolk.tasks.examples import Instance
from kinfolk.tasks.formulations.base import Formulation, RawScores
from kinfolk.tasks.task import Prediction
from kinfolk.text.tokenizer import Tokenizer

TOKENS_PER_BATCH = 4096  # in a batch of questions, about
ROWS_PER_CHUNK = 512  # asked at a time, so that memory does not grow with a file


class TaskBatches(Dataset[Batch[Any]]):
    """A run's batches by number, of one set of examples or several; every epoch has its order."""

    def __init__(
        self,
        way: Formulation,
        sets: Sequence[Sequence[Instance]],
        *,
        batch: int,  # examples
        seed: int = 0,
        weights: Sequence[float] = (1.0,),  # of the sets, against each other
    ) -> None:
        if not all(sets):
            raise UserError("there is nothing to learn from: a training file has no labelled rows")
        self.way, self.sets, self.batch, self.seed = way, sets, batch, seed
        self.schedule = MixtureSchedule.from_weights(weights)
        self._orders: dict[int, tuple[int, IntArray]] = {}

    def __getitem__(self, number: int) -> Batch[Any]:
        """Return batch `number` of the run, which may lie in any epoch."""
        positions = range(number * self.batch, (number + 1) * self.batch)
        return self.way.make_batch([self.example_at(position) for position in positions])

    def example_at(self, position: int) -> Instance:
        """Return the example at one position of the run."""
        number, place = self.schedule.locate(position)
        examples = self.sets[number]
        epoch, place = divmod(place, len(examples))
        return examples[int(self.order(number, epoch)[place])]

    def order(self, number: int, epoch: int) -> IntArray:
        """Return the order of a set's examples in one epoch."""
        known = self._orders.get(number)
        if known is None or known[0] != epoch:
            chance = generator(corpus_seed(self.seed, number), Stream.ORDER, epoch)
            known = epoch, chance.permutation(len(self.sets[number]))
            self._orders[number] = known
        return known[1]


def mixing_weights(sizes: Sequence[int], temperature: float, most: int = 2**20) -> list[float]:
    """Return how often each set is drawn: by its size, tempered (Raffel et al. 2020, 3.5.2).

    A temperature of 1 mixes by size and a high one alike; sets count as `most` examples at most.
    """
    sized = [min(size, most) ** (1 / temperature) for size in sizes]
    return [round(size / sum(sized), 6) for size in sized]


def predict_rows(
    way: Formulation,
    model: Any,
    rows: Sequence[Any],
    tokenizer: Tokenizer,
    *,
    tokens: int = TOKENS_PER_BATCH,
    watch: Callable[[int], None] = lambda done: None,
) -> list[Prediction]:
    """Ask a model about rows, in their order; how they share batches changes no answer."""
    found: list[Prediction] = []
    for start in range(0, len(rows), ROWS_PER_CHUNK):
        some = rows[start : start + ROWS_PER_CHUNK]
        asked = [way.instances(row, tokenizer, labelled=False) for row in some]
        replies = iter(
            forward_instances(way, model, [e for examples in asked for e in examples], tokens)
        )
        written = [row for row in some if way.generates(row)]
        texts = iter(way.generate(model, written, tokenizer) if written else ())
        for row, examples in zip(some, asked, strict=True):
            own = [next(replies) for _ in examples]
            known = way.decode(row, examples, own) if own or not way.generates(row) else None
            if way.generates(row):
                said = next(texts)
                if known is not None:  # how likely the right answer was
                    said = replace(said, nll=known.nll, tokens=known.tokens)
                known = said
            assert known is not None
            found.append(known)
        watch(len(found))
    return found


@torch.no_grad()
def forward_instances(
    way: Formulation, model: Any, examples: Sequence[Instance], tokens: int
) -> list[RawScores]:
    """Return the reply to each example, those of like size asked together."""
    device = next(model.parameters()).device
    was = model.training
    model.eval()
    replies: list[RawScores] = [np.zeros(0)] * len(examples)
    for group in length_buckets([example.tokens for example in examples], tokens):
        batch = way.make_batch([examples[i] for i in group]).to(device)
        for place, reply in zip(group, way.logits(model, batch), strict=True):
            replies[place] = reply
    model.train(was)
    return replies


def length_buckets(sizes: Sequence[int], most: int) -> Iterator[list[int]]:
    """Group numbers by size, longest first, up to so many tokens in a group."""
    group: list[int] = []
    used = 0
    for place in sorted(range(len(sizes)), key=lambda i: -sizes[i]):
        if group and used + sizes[place] > most:
            yield group
            group, used = [], 0
        group.append(place)
        used += sizes[place]
    if group:
        yield group
