"""What every way shares: rows become examples, examples batches, and replies answers."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from kinfolk.batch import IGNORE_INDEX, Batch, Loss, TensorTree, TokenTargets
from kinfolk.tasks.examples import Example, Page, Reading, lay_out
from kinfolk.tasks.rows import Asked, Choice, Completion, Labelled, Mentioned, Tagged, Written
from kinfolk.tasks.task import Answer, Task
from kinfolk.text.tokenizer import Tokenizer

Reply = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Key(TensorTree):
    """What is read off a batch, and what is right."""

    slots: Tensor  # (read,): the slots that are scored, through the flattened rows
    group: Tensor  # (read,): which example each belongs to
    target: Tensor  # as the way counts it
    weight: Tensor  # of each target
    soft: Tensor | None = None  # what a teacher thinks, beside the target
    tokens: TokenTargets | None = None  # that are predicted
    reading: Tensor | None = None  # which reading each predicted token belongs to
    member: Tensor | None = None  # which example each reading belongs to


@dataclass(frozen=True, kw_only=True)
class Way(ABC):
    """How one kind of network solves one kind of task.

    A way is a frozen value that is saved with the model, so that whoever opens it asks as it was
    taught. It learns from `lessons` and is asked `questions`; both are examples.
    """

    task: Task
    length: int = 128  # the most tokens of a reading
    pad: int = 0

    name: ClassVar[str]
    solves: ClassVar[tuple[str, ...]]  # the kinds of task
    head: ClassVar[str | None] = None  # the head its network needs

    @abstractmethod
    def lessons(self, row: Any, tokenizer: Tokenizer, /) -> list[Example]:
        """Turn a labelled row into what is learned from it."""

    def questions(self, row: Any, tokenizer: Tokenizer, /) -> list[Example]:
        """Turn a row into what is asked about it; its label plays no part."""
        return self.lessons(blind(row), tokenizer)

    @abstractmethod
    def key(self, examples: Sequence[Example], readings: Sequence[Reading], page: Page) -> Key:
        """Say what is read off, and what is right."""

    def collate(self, examples: Sequence[Example], /) -> Batch[Key]:
        """Pack examples into rows."""
        readings = [reading for example in examples for reading in example.readings]
        page = lay_out(readings, self.pad)
        key = self.key(examples, readings, page)
        return Batch(page.inputs, key, self.counts(examples, key))

    def counts(self, examples: Sequence[Example], key: Key) -> dict[str, int]:
        """Say what each part of the loss is summed over, and how many tokens are read."""
        return {"labels": len(key.target), "tokens": sum(e.tokens for e in examples)}

    @abstractmethod
    def loss(self, model: Any, batch: Batch[Key], /) -> Loss:
        """Sum what the model got wrong."""

    @abstractmethod
    def reply(self, model: Any, batch: Batch[Key], /) -> list[Reply]:
        """Return the numbers that the model gives each example."""

    def writes(self, row: Any, /) -> bool:
        """Say whether the answer to a row is written, and not read off: then it can be `heard`."""
        return False

    @abstractmethod
    def answer(self, row: Any, examples: Sequence[Example], replies: Sequence[Reply], /) -> Answer:
        """Turn the replies to all questions about a row into an answer."""


def blind(row: Any) -> Any:
    """Return a row without what is right: it may be a label that nobody knows."""
    match row:
        case Labelled() | Choice():
            return replace(row, label=None)
        case Tagged():
            return replace(row, tags=None)
        case Asked():
            return replace(row, answers=(), possible=True)
        case Written() | Completion():
            return replace(row, target=None)
        case Mentioned():
            return replace(row, clusters=None)
    raise AssertionError(f"{type(row).__name__} is no row")


def read_off(model: Any, batch: Batch[Key]) -> Tensor:
    """Score every state that is read: (read, labels)."""
    hidden = model(batch.inputs).hidden.flatten(0, 1).index_select(0, batch.targets.slots)
    return model.logits(hidden).float()


def surprise(scores: Tensor, key: Key, *, teaching: float, heat: float) -> Tensor:
    """Return -log p(label) of each target, a share of it as a teacher sees it, by its weight."""
    plain = F.cross_entropy(scores, key.target, reduction="none", ignore_index=IGNORE_INDEX)
    if key.soft is not None:
        soft = -(key.soft * F.log_softmax(scores / heat, -1)).sum(-1)
        # A gradient through heated scores is smaller by the heat squared (Hinton et al. 2015).
        plain = (1 - teaching) * plain + teaching * heat**2 * soft
    return key.weight * plain


def soften(examples: Sequence[Example]) -> Tensor | None:
    """Lay a teacher's opinions one under another, where there are any."""
    if not examples or examples[0].soft is None:
        return None
    parts = [np.atleast_2d(example.soft) for example in examples]
    return torch.from_numpy(np.concatenate(parts)).float()


def owners(examples: Sequence[Example]) -> Tensor:
    """Return the number of the example that each reading belongs to."""
    counts = torch.tensor([len(e.readings) for e in examples])
    return torch.repeat_interleave(torch.arange(len(examples)), counts)


def by_group(values: Tensor, group: Tensor) -> list[Reply]:
    """Part values, in the order of their groups, into one array for each group."""
    sizes = torch.bincount(group).tolist()
    return [part.double().cpu().numpy() for part in torch.split(values, sizes)]


def log_softmax_by(scores: Tensor, group: Tensor, groups: int) -> Tensor:
    """Return log-probabilities among the scores of each group, (scores,) of (scores,).

    So options and the words of a text need no padding: each group is as large as it is.
    """
    scores = scores.float()
    top = scores.new_full((groups,), -torch.inf).scatter_reduce(0, group, scores.detach(), "amax")
    apart = scores - top[group]
    mass = scores.new_zeros(groups).index_add(0, group, apart.exp())
    return apart - mass.log()[group]


def softmax(scores: Reply) -> Reply:
    """Return probabilities along the last axis."""
    raised = np.exp(scores - scores.max(-1, keepdims=True))
    return np.asarray(raised / raised.sum(-1, keepdims=True))
