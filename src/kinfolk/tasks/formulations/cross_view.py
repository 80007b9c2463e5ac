"""Cross-view training (Clark et al. 2018): labelled batches, and views of unlabelled ones.

On a labelled batch, the primary module of its task learns from the labels. On an unlabelled batch,
each auxiliary module learns the distribution that the primary module predicts, from its own view:

words                            Anna   lives   in   Paris
ids            [CLS]   An  ##na  lives  in   Paris   [SEP]
full             all states of the word's first token, with dropout
forward  ->                      *                            forward states up to "lives"
backward <-                      *                            backward states from "lives" on
future   ->             *                                     forward states before "lives"
past     <-                             *                     backward states after "lives"

loss on labelled text      sum of -log p(label)
loss on unlabelled text    sum of KL(p || p_view) over the views; p is fixed, without dropout
"""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from kinfolk.batch import Batch, Inputs, Loss, TensorTree
from kinfolk.config import config, field
from kinfolk.data.examples import Collated, Example
from kinfolk.errors import UserError
from kinfolk.nn.embeddings import TokenEmbedding
from kinfolk.nn.views import FULL, ModelWithViews, TaskViews, Unit
from kinfolk.tasks.formulations.base import (
    Instance,
    RawScores,
    TaskTargets,
    pack_examples,
    segment_mean,
    split_by_instance,
)
from kinfolk.tasks.formulations.head import SequenceHead, TokenHead, VectorHead
from kinfolk.text.tokenizer import Tokenizer
from kinfolk.text.vectors import read_vectors


@dataclass(frozen=True, eq=False)
class WordPositions(TensorTree):
    """The first and the last token of each word, in the flattened rows."""

    first: Tensor
    last: Tensor

    def states(self, hidden: Tensor) -> Tensor:
        """Return the hidden state of each word: (words, size)."""
        return hidden[self.first]

    def views(self, forward: Tensor, backward: Tensor) -> dict[str, Tensor]:
        """Return the part of the first layer that each view sees of each word."""
        # Every word has a token before it and one after it, special tokens at the ends.
        return {
            "forward": forward[self.last],
            "backward": backward[self.first],
            "future": forward[self.first - 1],
            "past": backward[self.last + 1],
        }


@dataclass(frozen=True, eq=False)
class TextPositions(TensorTree):
    """The tokens of each text, in the flattened rows."""

    tokens: Tensor
    text_ids: Tensor  # of each token
    texts: int

    def states(self, hidden: Tensor) -> Tensor:
        """Return the mean of the hidden states of each text: (texts, size)."""
        return segment_mean(hidden[self.tokens], self.text_ids, self.texts)

    def views(self, forward: Tensor, backward: Tensor) -> dict[str, Tensor]:
        """Return the part of the first layer that each view sees of each text."""
        sizes = torch.bincount(self.text_ids, minlength=self.texts)
        starts = sizes.cumsum(0) - sizes
        index = torch.arange(len(self.tokens), device=self.tokens.device) - starts[self.text_ids]
        half = (sizes // 2)[self.text_ids]
        return {
            "forward": self.states(forward),
            "backward": self.states(backward),
            "first_half": self._of(index < half).states(forward),
            "second_half": self._of(index >= half).states(backward),
        }

    def _of(self, kept: Tensor) -> "TextPositions":
        return TextPositions(self.tokens[kept], self.text_ids[kept], self.texts)


@dataclass(frozen=True, eq=False)
class LabelledViews(TaskTargets):
    """The labels of one task, and what they are about."""

    task_number: int = 0
    about: WordPositions | TextPositions | None = None


@dataclass(frozen=True, eq=False)
class UnlabelledViews(TensorTree):
    """What the tasks score in a batch of unlabelled text."""

    texts: TextPositions
    words: WordPositions | None  # where a task tags words

    def of(self, unit: Unit) -> WordPositions | TextPositions:
        """Return what a task scores."""
        if unit == "text":
            return self.texts
        assert self.words is not None
        return self.words


@dataclass(frozen=True, kw_only=True)
class CrossView(VectorHead):
    """Base of the formulations of cross-view training, one for each file that is trained on."""

    task_number: int = field(
        default=0, ge=0, lt=2**16, help="number of the task's modules in the network"
    )

    name = "cross_view"
    needs_template = True
    unit: ClassVar[Unit]  # that it scores

    @property
    def module_config(self) -> TaskViews:
        """The config of its prediction modules."""
        return TaskViews(unit=self.unit, labels=self.task.labels)

    def prepare(self, model: ModelWithViews, tokenizer: Tokenizer) -> list[str]:
        """Let the word embeddings start from the vectors of a file."""
        if not self.vectors:
            return []
        table = model.backbone.token_embeddings
        assert isinstance(table, TokenEmbedding)
        vectors = read_vectors(self.vectors, tokenizer)
        if vectors.values.shape[1] != table.embedding_dim:
            raise UserError(
                f"{self.vectors} has vectors of {vectors.values.shape[1]} numbers, but the word "
                f"embeddings of the network have {table.embedding_dim}: set "
                f"model.backbone.embedding_size={vectors.values.shape[1]}, or use other vectors"
            )
        table.set_rows(vectors.ids, vectors.values)
        return [f"{self.vectors}: {vectors.summary}"]

    @abstractmethod
    def about(
        self, instances: Sequence[Instance], examples: Sequence[Example], collated: Collated
    ) -> WordPositions | TextPositions:
        """Return what is scored in packed examples."""

    def with_about(
        self,
        targets: TaskTargets,
        instances: Sequence[Instance],
        examples: Sequence[Example],
        collated: Collated,
    ) -> LabelledViews:
        """Add what is scored to targets."""
        about = self.about(instances, examples, collated)
        return LabelledViews(**vars(targets), task_number=self.task_number, about=about)

    def loss(self, model: ModelWithViews, batch: Batch[Any], /) -> Loss:
        """Return the loss of a batch: labels of any task of the network, or unlabelled text."""
        if isinstance(batch.targets, UnlabelledViews):
            return unlabelled_loss(model, batch.inputs, batch.targets)
        logits = self.primary_logits(model, batch)
        return Loss({"label": self.cross_entropy(logits, batch.targets)})

    def primary_logits(self, model: ModelWithViews, batch: Batch[Any]) -> Tensor:
        """Return the scores of the primary module: (words or texts, labels)."""
        states = batch.targets.about.states(model(batch.inputs).hidden.flatten(0, 1))
        return model.primary_logits(states, batch.targets.task_number).float()


@config("cross_view_tags")
class CrossViewTags(CrossView, TokenHead):
    """Cross-view training of a tagger."""

    unit = "tokens"

    def fit(self, rows: Sequence[Any], tokenizer: Tokenizer, *, balanced: bool = False) -> Self:
        """Set the class weights; semantic roles are refused."""
        if any(row.predicate is not None for row in rows):
            raise UserError(
                "semantic roles depend on a predicate, which unlabelled text does not mark: use "
                "--formulation head"
            )
        return super().fit(rows, tokenizer, balanced=balanced)

    def targets(
        self, instances: Sequence[Instance], examples: Sequence[Example], collated: Collated
    ) -> LabelledViews:
        """Score every word."""
        targets = super().targets(instances, examples, collated)
        return self.with_about(targets, instances, examples, collated)

    def about(
        self, instances: Sequence[Instance], examples: Sequence[Example], collated: Collated
    ) -> WordPositions:
        """Return the words of packed examples."""
        first = collated.read_positions(examples)
        sizes = torch.tensor([size for instance in instances for size in instance.metadata])
        return WordPositions(first, first + sizes - 1)

    def logits(self, model: ModelWithViews, batch: Batch[TaskTargets], /) -> list[RawScores]:
        """Return the scores of the words of each instance: (words, tags)."""
        scores = self.primary_logits(model, batch)
        return split_by_instance(scores, batch.targets.instance_ids)


@config("cross_view_texts")
class CrossViewTexts(CrossView, SequenceHead):
    """Cross-view training of a classifier of texts."""

    mean_pooling: bool = field(default=True, help="score the mean over the tokens of a text")

    outputs = ("label",)
    unit = "text"

    def targets(
        self, instances: Sequence[Instance], examples: Sequence[Example], collated: Collated
    ) -> LabelledViews:
        """Score every text."""
        targets = super().targets(instances, examples, collated)
        return self.with_about(targets, instances, examples, collated)

    def about(
        self, instances: Sequence[Instance], examples: Sequence[Example], collated: Collated
    ) -> TextPositions:
        """Return the texts of packed examples."""
        return text_positions(examples, collated)

    def logits(self, model: ModelWithViews, batch: Batch[TaskTargets], /) -> list[RawScores]:
        """Return the scores of each text: (classes,)."""
        return [*self.primary_logits(model, batch).double().cpu().numpy()]


def text_positions(examples: Sequence[Example], collated: Collated) -> TextPositions:
    """Return all tokens of packed examples, each of which is one text."""
    sizes = [len(example.input_ids) for example in examples]
    pairs = zip(collated.offsets, sizes, strict=True)
    tokens = torch.from_numpy(np.concatenate([first + np.arange(size) for first, size in pairs]))
    ids = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    return TextPositions(tokens, ids, len(sizes))


@dataclass(frozen=True)
class UnlabelledBatches:
    """How instances of unlabelled text become a batch for all tasks of a network."""

    formulations: tuple[CrossView, ...]

    @property
    def reader(self) -> CrossView:
        """The formulation that encodes the text: one that tags words, if there is one."""
        tags = (each for each in self.formulations if each.unit == "tokens")
        return next(tags, self.formulations[0])

    def make_batch(self, instances: Sequence[Instance], /) -> Batch[UnlabelledViews]:
        """Pack the examples of instances; every view of every task has a sum of its own."""
        examples = [example for instance in instances for example in instance.examples]
        collated = pack_examples(examples, self.reader.pad_id)
        words = self.reader.about(instances, examples, collated)
        targets = UnlabelledViews(
            texts=text_positions(examples, collated),
            words=words if isinstance(words, WordPositions) else None,
        )
        counts = {"tokens": sum(instance.tokens for instance in instances)}
        for number, task in enumerate(self.formulations):
            about = targets.of(task.unit)
            scored = len(about.first) if isinstance(about, WordPositions) else about.texts
            counts |= {loss_name(view, number): scored for view in task.module_config.views}
        return Batch(collated.inputs, targets, counts)


def unlabelled_loss(model: ModelWithViews, inputs: Inputs, targets: UnlabelledViews) -> Loss:
    """Sum KL(p || p_view) for each view, where p is the fixed prediction of the primary module."""
    network = model.backbone
    with torch.no_grad():
        fixed = network.encode(inputs, dropout=0.0).hidden.flatten(0, 1)
    dropout = network.config.unlabelled_dropout
    hidden = network.encode(inputs, dropout=dropout).hidden.flatten(0, 1)
    sums = {}
    for number, task in enumerate(model.config.tasks):
        about = targets.of(task.unit)
        with torch.no_grad():
            logits = model.primary_logits(about.states(fixed), number)
            log_target = F.log_softmax(logits.float(), -1)
        views = {FULL: about.states(hidden), **about.views(*network.directions(hidden))}
        for view, states in views.items():
            log_q = F.log_softmax(model.view_logits(states, number, view).float(), -1)
            sums[loss_name(view, number)] = F.kl_div(
                log_q, log_target, reduction="sum", log_target=True
            )
    return Loss(sums)


def loss_name(view: str, task_number: int) -> str:
    """Return the name of a view's loss in the log: `forward`, of the second task `2_forward`."""
    return view if task_number == 0 else f"{task_number + 1}_{view}"
