"""A head on the token that stands for the whole text (Devlin et al., 2018): [CLS], or the last.

text       a fine film
ids   [C]  a fine film [S]
read   *                        the hidden state at * is scored: one number for each class

Options are read one by one, each behind what is asked about it, and their scores compete.
"""

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from kinfolk.batch import IGNORE_INDEX, Batch, Loss
from kinfolk.config import config
from kinfolk.tasks.examples import Collated, Example, Instance
from kinfolk.tasks.framing import (
    apply_template,
    encode_plain,
    num_special_tokens,
    truncate_longest_first,
)
from kinfolk.tasks.rows import LabelledText, MultipleChoiceRow
from kinfolk.tasks.task import Prediction
from kinfolk.tasks.ways.way import (
    Formulation,
    RawScores,
    TaskTargets,
    instance_index,
    logits_at,
    segment_log_softmax,
    softmax,
    split_by_instance,
    stack_soft_targets,
    weighted_cross_entropy,
)
from kinfolk.text.tokenizer import Tokenizer


@config("sequence_head")
class SequenceHead(Formulation):
    """Score the state of one token a text."""

    frame: str | None = "bert"  # of FRAMES; None for a decoder
    class_weights: tuple[float, ...] = ()  # of the classes, 1 on average over the training set
    distillation_weight: float = (
        0.0  # the share of the loss that is a teacher's (Hinton et al. 2015)
    )
    temperature: float = 2.0  # of the teacher's and the student's scores, where they are compared

    name: ClassVar[str] = "head"
    tasks: ClassVar[tuple[str, ...]] = ("classify", "regress", "choose")

    @property
    def head(self) -> str:  # type: ignore[override]
        """One score for each class, or one for each option."""
        return "choice" if self.task.kind == "choose" else "text"

    def training_instances(
        self, row: LabelledText | MultipleChoiceRow, tokenizer: Tokenizer, /
    ) -> list[Instance]:
        """Frame the texts of a row, or each of its options."""
        target = self.target(row)
        if isinstance(row, MultipleChoiceRow):
            asked = [self.encode_option(row, option, tokenizer) for option in row.options]
        else:
            asked = [self.encode_texts(encode_plain(tokenizer, row.texts), tokenizer)]
        readings, cut = zip(*asked, strict=True)
        return [Instance(examples=readings, target=target, truncated_tokens=sum(cut))]

    def target(self, row: LabelledText | MultipleChoiceRow) -> float | int | None:
        """Return what is right as a number."""
        if isinstance(row, MultipleChoiceRow):
            return row.label
        if row.label is None:
            return None
        return (
            float(row.label) if self.task.kind == "regress" else self.task.label_id(str(row.label))
        )

    def encode_texts(
        self, texts: Sequence[Sequence[int]], tokenizer: Tokenizer
    ) -> tuple[Example, int]:
        """Read one text or two, cut to the room there is."""
        kept, cut = truncate_longest_first(
            texts, self.max_length - self.num_special_tokens(len(texts))
        )
        return self.example(kept, tokenizer), cut

    def encode_option(
        self, row: MultipleChoiceRow, option: str, tokenizer: Tokenizer
    ) -> tuple[Example, int]:
        """Read an option behind its context, of which the start is cut where there is no room."""
        last = f"{row.question} {option}" if row.question else option
        context, said = encode_plain(tokenizer, (row.context, last))
        room = max(1, self.max_length - self.num_special_tokens(2) - len(said))
        kept, cut = truncate_longest_first(
            [context[-room:], said], self.max_length - self.num_special_tokens(2)
        )
        return self.example(kept, tokenizer), cut + max(0, len(context) - room)

    def num_special_tokens(self, texts: int) -> int:
        """Say how many slots stand around so many texts."""
        assert self.frame is not None, "decoders have a margin of their own"
        return num_special_tokens(self.frame, texts)

    def example(self, texts: Sequence[Sequence[int]], tokenizer: Tokenizer) -> Example:
        """Frame texts that fit."""
        assert self.frame is not None, "decoders are read in another way"
        inside = apply_template(self.frame, tokenizer.special_tokens, texts)
        return Example(
            ids=inside.ids,
            order=np.zeros_like(inside.ids),
            token_type_ids=inside.token_type_ids,
            read_at=np.array([inside.cls_index]),
        )

    def targets(
        self, examples: Sequence[Instance], readings: Sequence[Example], page: Collated
    ) -> TaskTargets:
        """Read one state a reading."""
        group = instance_index(examples)
        kind = torch.float32 if self.task.kind == "regress" else torch.int64
        blank = float("nan") if kind == torch.float32 else IGNORE_INDEX
        target = torch.tensor(
            [blank if e.target is None else e.target for e in examples], dtype=kind
        )
        if self.task.kind == "choose":  # the slot of the right option among all
            first = torch.bincount(group).cumsum(0) - torch.bincount(group)
            target = torch.where(target == IGNORE_INDEX, IGNORE_INDEX, first + target)
        weight = torch.ones(len(examples))
        if self.class_weights and self.task.kind == "classify":
            weight = torch.tensor(self.class_weights)[target.clamp(min=0)]
        return TaskTargets(
            page.read_at(readings), group, target, weight, stack_soft_targets(examples)
        )

    def loss(self, model: Any, batch: Batch[TaskTargets], /) -> Loss:
        """Sum -log p(class), or the squared distance from a number."""
        return Loss({"labels": self.loss_sum(logits_at(model, batch), batch.targets)})

    def loss_sum(self, scores: Tensor, key: TaskTargets) -> Tensor:
        """Sum what is wrong with scores."""
        if self.task.kind == "regress":
            wanted = (
                key.target
                if key.teacher_probs is None
                else self.mix_targets(key.target, key.teacher_probs[:, 0])
            )
            return ((scores[:, 0] - wanted) ** 2).sum()
        if self.task.kind == "choose":
            logs = segment_log_softmax(scores[:, 0], key.instance_ids, len(key.target))
            plain = -logs.index_select(0, key.target)
            if key.teacher_probs is None:
                return plain.sum()
            logs = segment_log_softmax(
                scores[:, 0] / self.temperature, key.instance_ids, len(key.target)
            )
            return (1 - self.distillation_weight) * plain.sum() - self.soft_loss_weight * (
                key.teacher_probs[:, 0] * logs
            ).sum()
        return weighted_cross_entropy(
            scores, key, teaching=self.distillation_weight, heat=self.temperature
        ).sum()

    @property
    def soft_loss_weight(self) -> float:
        """The teacher's share; a gradient through heated scores is smaller by the heat squared."""
        return self.distillation_weight * self.temperature**2

    def mix_targets(self, target: Tensor, soft: Tensor) -> Tensor:
        """Return a number between what is right and what a teacher says."""
        return (1 - self.distillation_weight) * target + self.distillation_weight * soft

    def logits(self, model: Any, batch: Batch[TaskTargets], /) -> list[RawScores]:
        """Return the scores of each example: (classes,) or (options,)."""
        parts = split_by_instance(logits_at(model, batch), batch.targets.instance_ids)
        return [part[:, 0] if self.task.kind == "choose" else part[0] for part in parts]

    def decode(
        self, row: Any, examples: Sequence[Instance], replies: Sequence[RawScores], /
    ) -> Prediction:
        """Name the class, the number or the option with the highest score."""
        (reply,) = replies
        if self.task.kind == "regress":
            return Prediction(float(reply[0]))
        shares = softmax(reply)
        best = int(shares.argmax())
        value = best if self.task.kind == "choose" else self.task.labels[best]
        return Prediction(value, tuple(shares.tolist()), float(shares[best]))

    def soft_labels(self, reply: RawScores) -> RawScores:
        """Turn a teacher's reply into what a student learns from: (classes,) or (options, 1)."""
        if self.task.kind == "regress":
            return reply
        soft = softmax(reply / self.temperature)
        return soft[:, None] if self.task.kind == "choose" else soft
