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
from kinfolk.data.examples import Collated, Example
from kinfolk.tasks.examples import Instance, pack_examples
from kinfolk.tasks.rows import (
    CompletionRow,
    CorefDocument,
    LabelledText,
    MultipleChoiceRow,
    QuestionRow,
    SourceTarget,
    TaggedSentence,
)
from kinfolk.tasks.task import Prediction, Task
from kinfolk.text.tokenizer import Tokenizer

RawScores = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class TaskTargets(TensorTree):
    """What is read off a batch, and what is right."""

    read_at: Tensor  # (read,): the slots that are scored, through the flattened rows
    instance_ids: Tensor  # (read,): which example each belongs to
    target: Tensor  # as the way counts it
    weight: Tensor  # of each target
    teacher_probs: Tensor | None = None  # what a teacher thinks, beside the target
    tokens: TokenTargets | None = None  # that are predicted
    reading: Tensor | None = None  # which reading each predicted token belongs to
    instance_of_example: Tensor | None = None  # which example each reading belongs to


@dataclass(frozen=True, kw_only=True)
class Formulation(ABC):
    """How one kind of network solves one kind of task.

    A way is a frozen value that is saved with the model, so that whoever opens it asks as it was
    taught. It learns from `lessons` and is asked `questions`; both are examples.
    """

    task: Task
    max_length: int = 128  # the most tokens of a reading
    pad_id: int = 0

    name: ClassVar[str]
    tasks: ClassVar[tuple[str, ...]]  # the kinds of task
    head: ClassVar[str | None] = None  # the head its network needs

    @abstractmethod
    def training_instances(self, row: Any, tokenizer: Tokenizer, /) -> list[Instance]:
        """Turn a labelled row into what is learned from it."""

    def inference_instances(self, row: Any, tokenizer: Tokenizer, /) -> list[Instance]:
        """Turn a row into what is asked about it; its label plays no part."""
        return self.training_instances(without_label(row), tokenizer)

    @abstractmethod
    def targets(
        self, examples: Sequence[Instance], readings: Sequence[Example], page: Collated
    ) -> TaskTargets:
        """Say what is read off, and what is right."""

    def make_batch(self, examples: Sequence[Instance], /) -> Batch[TaskTargets]:
        """Pack examples into rows."""
        readings = [reading for example in examples for reading in example.examples]
        page = pack_examples(readings, self.pad_id)
        key = self.targets(examples, readings, page)
        return Batch(page.inputs, key, self.counts(examples, key))

    def counts(self, examples: Sequence[Instance], key: TaskTargets) -> dict[str, int]:
        """Say what each part of the loss is summed over, and how many tokens are read."""
        return {"label": len(key.target), "tokens": sum(e.tokens for e in examples)}

    @abstractmethod
    def loss(self, model: Any, batch: Batch[TaskTargets], /) -> Loss:
        """Sum what the model got wrong."""

    @abstractmethod
    def logits(self, model: Any, batch: Batch[TaskTargets], /) -> list[RawScores]:
        """Return the numbers that the model gives each example."""

    def generates(self, row: Any, /) -> bool:
        """Say whether the answer to a row is written, and not read off: then it can be `heard`."""
        return False

    @abstractmethod
    def decode(
        self, row: Any, examples: Sequence[Instance], replies: Sequence[RawScores], /
    ) -> Prediction:
        """Turn the replies to all questions about a row into an answer."""


def without_label(row: Any) -> Any:
    """Return a row without what is right: it may be a label that nobody knows."""
    match row:
        case LabelledText() | MultipleChoiceRow():
            return replace(row, label=None)
        case TaggedSentence():
            return replace(row, tags=None)
        case QuestionRow():
            return replace(row, answers=(), answerable=True)
        case SourceTarget() | CompletionRow():
            return replace(row, target=None)
        case CorefDocument():
            return replace(row, clusters=None)
    raise AssertionError(f"{type(row).__name__} is no row")


def logits_at(model: Any, batch: Batch[TaskTargets]) -> Tensor:
    """Score every state that is read: (read, labels)."""
    hidden = model(batch.inputs).hidden.flatten(0, 1).index_select(0, batch.targets.read_at)
    return model.logits(hidden).float()


def weighted_cross_entropy(
    scores: Tensor, key: TaskTargets, *, teaching: float, heat: float
) -> Tensor:
    """Return -log p(label) of each target, a share of it as a teacher sees it, by its weight."""
    plain = F.cross_entropy(scores, key.target, reduction="none", ignore_index=IGNORE_INDEX)
    if key.teacher_probs is not None:
        soft = -(key.teacher_probs * F.log_softmax(scores / heat, -1)).sum(-1)
        # A gradient through heated scores is smaller by the heat squared (Hinton et al. 2015).
        plain = (1 - teaching) * plain + teaching * heat**2 * soft
    return key.weight * plain


def stack_soft_targets(examples: Sequence[Instance]) -> Tensor | None:
    """Lay a teacher's opinions one under another, where there are any."""
    if not examples or examples[0].teacher_probs is None:
        return None
    parts = [np.atleast_2d(example.teacher_probs) for example in examples]
    return torch.from_numpy(np.concatenate(parts)).float()


def instance_index(examples: Sequence[Instance]) -> Tensor:
    """Return the number of the example that each reading belongs to."""
    counts = torch.tensor([len(e.examples) for e in examples])
    return torch.repeat_interleave(torch.arange(len(examples)), counts)


def split_by_instance(values: Tensor, group: Tensor) -> list[RawScores]:
    """Part values, in the order of their groups, into one array for each group."""
    sizes = torch.bincount(group).tolist()
    return [part.double().cpu().numpy() for part in torch.split(values, sizes)]


def segment_log_softmax(scores: Tensor, group: Tensor, groups: int) -> Tensor:
    """Return log-probabilities among the scores of each group, (scores,) of (scores,).

    So options and the words of a text need no padding: each group is as large as it is.
    """
    scores = scores.float()
    top = scores.new_full((groups,), -torch.inf).scatter_reduce(0, group, scores.detach(), "amax")
    apart = scores - top[group]
    mass = scores.new_zeros(groups).index_add(0, group, apart.exp())
    return apart - mass.log()[group]


def softmax(scores: RawScores) -> RawScores:
    """Return probabilities along the last axis."""
    raised = np.exp(scores - scores.max(-1, keepdims=True))
    return np.asarray(raised / raised.sum(-1, keepdims=True))
