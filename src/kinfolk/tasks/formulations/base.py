"""The interface of a formulation: rows become instances, batches, logits and predictions."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kinfolk.batch import IGNORE_INDEX, Batch, Loss, TensorTree, TokenTargets
from kinfolk.config import field
from kinfolk.data.chunks import IntArray
from kinfolk.data.examples import Collated, Example, collate
from kinfolk.data.packing import Packing, pack
from kinfolk.errors import UserError
from kinfolk.nn.task_heads import Head
from kinfolk.tasks.task import Prediction, Task, TaskOutput
from kinfolk.text.tokenizer import Tokenizer

RawScores = NDArray[np.float64]
PAD_TO_MULTIPLE_OF = 8  # the length of rows
ROW_LENGTH_FACTORS = (1.0, 1.5, 2.0)  # candidates for the length of rows over the longest example
SHORT_ROW = 256  # beyond this, the attention of a longer row costs more than packing saves
MIN_POSITION_RATIO = 0.97  # a longer row must take less than this fraction of the positions


@dataclass(frozen=True, kw_only=True)
class Instance:
    """One training or inference item of a task: one example, or one for each option."""

    examples: tuple[Example, ...]
    target: Any = None  # as the formulation encodes it; None where it is not known
    teacher_probs: Any = None  # soft targets of a teacher
    truncated_tokens: int = 0  # tokens of the row that were cut off
    metadata: Any = None  # what targets or decoding need

    @property
    def tokens(self) -> int:
        """The tokens of its examples."""
        return sum(sum(example.lengths) for example in self.examples)


@dataclass(frozen=True, eq=False)
class TaskTargets(TensorTree):
    """Which hidden states of a batch are scored, and the targets."""

    read_at: Tensor  # (read,): positions in the flattened rows
    instance_ids: Tensor  # the instance of each; without `read_at`, of each example
    target: Tensor  # as the formulation encodes it
    weight: Tensor  # of each target
    teacher_probs: Tensor | None = None  # soft targets
    tokens: TokenTargets | None = None  # tokens to predict
    example_ids: Tensor | None = None  # of these tokens, or of those read for a mean


@dataclass(frozen=True, kw_only=True)
class Formulation(ABC):
    """How a network solves a task: its inputs, targets, loss and predictions.

    A frozen value that is saved with the model, so that inference encodes rows as training did.
    """

    task: Task
    max_length: int = field(default=128, ge=1, le=2**24, help="tokens of an example")
    pad_id: int = field(default=0, ge=0, lt=2**26, help="id of the padding token")

    name: ClassVar[str]
    outputs: ClassVar[tuple[TaskOutput, ...]]  # supported types of prediction
    needs_template: ClassVar[bool] = False  # special tokens around a text
    needs_layout: ClassVar[bool] = False  # of a prompt and its answer
    trains: ClassVar[bool] = True  # False for prompts
    distills: ClassVar[bool] = False  # has soft labels
    # Shapes inside its loss follow from those of a batch, and padding of the targets adds nothing
    # to it: steps can be replayed as CUDA graphs (tasks/static_shapes.py).
    static_shapes: ClassVar[bool] = False

    @property
    def head(self) -> Head | None:
        """The head that the network needs."""
        return None

    def fit(self, rows: Sequence[Any], tokenizer: Tokenizer, *, balanced: bool = False) -> Self:
        """Return the formulation with the fields that depend on the training rows."""
        if balanced:
            raise UserError(
                f"--class-weights does not apply to the formulation {self.name!r}: remove it"
            )
        return self

    def prepare(self, model: Any, tokenizer: Tokenizer) -> list[str]:
        """Set what a new network takes from files; return messages about it."""
        return []

    def fingerprints(self) -> list[tuple[str, str]]:
        """Return the files that a run is made from besides its labelled ones, with their hashes."""
        return []

    @abstractmethod
    def instances(
        self, row: Any, tokenizer: Tokenizer, /, *, labelled: bool = True
    ) -> list[Instance]:
        """Return the instances of a row: for the loss, or, without its label, for predictions."""

    @abstractmethod
    def targets(
        self, instances: Sequence[Instance], examples: Sequence[Example], collated: Collated
    ) -> TaskTargets:
        """Return the scored positions of a batch and their targets."""

    def make_batch(self, instances: Sequence[Instance], /) -> Batch[TaskTargets]:
        """Pack the examples of instances into rows."""
        examples = [example for instance in instances for example in instance.examples]
        collated = pack_examples(examples, self.pad_id)
        targets = self.targets(instances, examples, collated)
        return Batch(collated.inputs, targets, self.counts(instances, targets))

    def counts(self, instances: Sequence[Instance], targets: TaskTargets) -> dict[str, int]:
        """Return the number of targets of each part of the loss, and of tokens."""
        return {"label": len(targets.target), "tokens": sum(i.tokens for i in instances)}

    @abstractmethod
    def loss(self, model: Any, batch: Batch[TaskTargets], /) -> Loss:
        """Return the summed loss."""

    @abstractmethod
    def logits(self, model: Any, batch: Batch[TaskTargets], /) -> list[RawScores]:
        """Return the scores of each instance."""

    @abstractmethod
    def decode(
        self, row: Any, instances: Sequence[Instance], logits: Sequence[RawScores], /
    ) -> Prediction:
        """Return the prediction from the logits of all instances of a row."""

    def best_option(self, row: Any, scores: RawScores) -> Prediction:
        """Return the class or option with the highest score, and the probabilities of all."""
        probabilities = softmax(scores)
        best = int(probabilities.argmax())
        value = self.task.option_value(row, best)
        return Prediction(value, tuple(probabilities.tolist()), float(probabilities[best]))

    def generates(self, row: Any, /) -> bool:
        """Return whether the prediction for a row is generated text."""
        return False

    def generate(self, model: Any, rows: Sequence[Any], tokenizer: Tokenizer) -> list[Prediction]:
        """Return the predictions for rows whose predictions are generated text."""
        raise NotImplementedError

    def soft_labels(self, logits: RawScores, temperature: float) -> RawScores:
        """Return the targets of a student."""
        raise NotImplementedError


def pack_examples(examples: Sequence[Example], pad_id: int) -> Collated:
    """Pack examples into rows as long as the longest of them, or longer where that saves space."""
    sizes = np.array([example.lengths for example in examples], np.int64)
    return collate_packed(examples, *choose_row_length(sizes), pad_id)


def collate_packed(
    examples: Sequence[Example],
    packing: Packing,
    row_lengths: Sequence[int],
    pad_id: int,
    *,
    num_rows: int = 0,
) -> Collated:
    """Collate examples into their rows; rows of padding fill up to `num_rows`."""
    rows = [[examples[i] for i in packing[row]] for row in range(len(packing))]
    rows += [[] for _ in range(len(rows), num_rows)]
    collated = collate(rows, row_lengths, pad_id)
    offsets = np.empty(len(examples), np.int64)
    offsets[packing.chunks] = collated.offsets
    return Collated(collated.inputs, offsets)


def round_up(number: int, multiple: int) -> int:
    """Round up to a multiple."""
    return -(-number // multiple) * multiple


def choose_row_length(sizes: IntArray) -> tuple[Packing, list[int]]:
    """Choose the length of rows that leaves few positions empty, preferring shorter rows."""
    longest = sizes.max(0)
    best: tuple[Packing, list[int]] | None = None
    fewest = np.inf
    for factor in ROW_LENGTH_FACTORS if longest.max() <= SHORT_ROW else ROW_LENGTH_FACTORS[:1]:
        row_lengths = [round_up(int(factor * size), PAD_TO_MULTIPLE_OF) for size in longest]
        packing = pack(sizes, row_lengths)
        positions = len(packing) * sum(row_lengths)
        if positions < MIN_POSITION_RATIO * fewest:
            best, fewest = (packing, row_lengths), positions
    assert best is not None
    return best


def logits_at(model: Any, batch: Batch[TaskTargets]) -> Tensor:
    """Return the logits of every hidden state that is scored: (read, labels)."""
    return model.logits(model.read(batch.inputs, batch.targets.read_at)).float()


def stack_soft_targets(instances: Sequence[Instance]) -> Tensor | None:
    """Return the stacked soft targets of instances, None without a teacher."""
    if not instances or instances[0].teacher_probs is None:
        return None
    parts = [np.atleast_2d(instance.teacher_probs) for instance in instances]
    return torch.from_numpy(np.concatenate(parts)).float()


def instance_index(instances: Sequence[Instance]) -> Tensor:
    """Return the index of the instance of each example."""
    counts = torch.tensor([len(instance.examples) for instance in instances])
    return torch.repeat_interleave(torch.arange(len(instances)), counts)


def read_instance_index(instances: Sequence[Instance]) -> Tensor:
    """Return the index of the instance of each hidden state that is read."""
    counts = torch.tensor(
        [sum(len(e.read_positions) for e in instance.examples) for instance in instances]
    )
    return torch.repeat_interleave(torch.arange(len(instances)), counts)


def offset_targets(target: Tensor, index: Tensor) -> Tensor:
    """Convert targets within instances to indices among all instances: (..., instances)."""
    counts = torch.bincount(index)
    return torch.where(target == IGNORE_INDEX, target, counts.cumsum(0) - counts + target)


def split_by_instance(values: Tensor, index: Tensor) -> list[RawScores]:
    """Split values, which are in the order of their instances, into an array for each."""
    sizes = torch.bincount(index.cpu()).tolist()  # one copy of each, not one for each instance
    return [part.numpy() for part in torch.split(values.double().cpu(), sizes)]


def segment_log_softmax(scores: Tensor, index: Tensor, segments: int) -> Tensor:
    """Return log-probabilities within each segment, without padding: (scores,) -> (scores,)."""
    scores = scores.float()
    maximum = scores.new_full((segments,), -torch.inf)
    maximum = maximum.scatter_reduce(0, index, scores.detach(), "amax")
    shifted = scores - maximum[index]
    total = scores.new_zeros(segments).index_add(0, index, shifted.exp())
    return shifted - total.log().index_select(0, index)  # [index] would add up in no fixed order


def segment_mean(values: Tensor, index: Tensor, segments: int) -> Tensor:
    """Return the mean of the values of each segment: (values, size) -> (segments, size).

    That of a segment without values, which only padding has, is 0.
    """
    total = values.new_zeros(segments, values.shape[1]).index_add(0, index, values)
    counts = values.new_zeros(segments).index_add(0, index, values.new_ones(len(values)))
    return total / counts.clamp(min=1)[:, None]


def softmax(scores: RawScores) -> RawScores:
    """Return probabilities along the last axis."""
    exponentials = np.exp(scores - scores.max(-1, keepdims=True))
    return np.asarray(exponentials / exponentials.sum(-1, keepdims=True))
