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
from kinfolk.tasks.examples import Example, Page, Reading
from kinfolk.tasks.framing import around, encoded, fitting, framed
from kinfolk.tasks.rows import Choice, Labelled
from kinfolk.tasks.task import Answer
from kinfolk.tasks.ways.way import (
    Key,
    Reply,
    Way,
    by_group,
    log_softmax_by,
    owners,
    read_off,
    soften,
    softmax,
    surprise,
)
from kinfolk.text.tokenizer import Tokenizer


@config("sequence_head")
class Whole(Way):
    """Score the state of one token a text."""

    frame: str | None = "bert"  # of FRAMES; None for a decoder
    weights: tuple[float, ...] = ()  # of the classes, 1 on average over the training set
    teaching: float = 0.0  # the share of the loss that is a teacher's (Hinton et al. 2015)
    heat: float = 2.0  # of the teacher's and the student's scores, where they are compared

    name: ClassVar[str] = "head"
    solves: ClassVar[tuple[str, ...]] = ("classify", "regress", "choose")

    @property
    def head(self) -> str:  # type: ignore[override]
        """One score for each class, or one for each option."""
        return "choice" if self.task.kind == "choose" else "text"

    def lessons(self, row: Labelled | Choice, tokenizer: Tokenizer, /) -> list[Example]:
        """Frame the texts of a row, or each of its options."""
        target = self.target(row)
        if isinstance(row, Choice):
            asked = [self.option(row, option, tokenizer) for option in row.options]
        else:
            asked = [self.whole(encoded(tokenizer, row.texts), tokenizer)]
        readings, cut = zip(*asked, strict=True)
        return [Example(readings=readings, target=target, cut=sum(cut))]

    def target(self, row: Labelled | Choice) -> float | int | None:
        """Return what is right as a number."""
        if isinstance(row, Choice):
            return row.label
        if row.label is None:
            return None
        return float(row.label) if self.task.kind == "regress" else self.task.place(str(row.label))

    def whole(self, texts: Sequence[Sequence[int]], tokenizer: Tokenizer) -> tuple[Reading, int]:
        """Read one text or two, cut to the room there is."""
        kept, cut = fitting(texts, self.length - self.margin(len(texts)))
        return self.reading(kept, tokenizer), cut

    def option(self, row: Choice, option: str, tokenizer: Tokenizer) -> tuple[Reading, int]:
        """Read an option behind its context, of which the start is cut where there is no room."""
        last = f"{row.question} {option}" if row.question else option
        context, said = encoded(tokenizer, (row.context, last))
        room = max(1, self.length - self.margin(2) - len(said))
        kept, cut = fitting([context[-room:], said], self.length - self.margin(2))
        return self.reading(kept, tokenizer), cut + max(0, len(context) - room)

    def margin(self, texts: int) -> int:
        """Say how many slots stand around so many texts."""
        assert self.frame is not None, "decoders have a margin of their own"
        return around(self.frame, texts)

    def reading(self, texts: Sequence[Sequence[int]], tokenizer: Tokenizer) -> Reading:
        """Frame texts that fit."""
        assert self.frame is not None, "decoders are read in another way"
        inside = framed(self.frame, tokenizer.specials, texts)
        return Reading(
            ids=inside.ids,
            time=np.zeros_like(inside.ids),
            segments=inside.segments,
            slots=np.array([inside.summary]),
        )

    def key(self, examples: Sequence[Example], readings: Sequence[Reading], page: Page) -> Key:
        """Read one state a reading."""
        group = owners(examples)
        kind = torch.float32 if self.task.kind == "regress" else torch.int64
        blank = float("nan") if kind == torch.float32 else IGNORE_INDEX
        target = torch.tensor(
            [blank if e.target is None else e.target for e in examples], dtype=kind
        )
        if self.task.kind == "choose":  # the slot of the right option among all
            first = torch.bincount(group).cumsum(0) - torch.bincount(group)
            target = torch.where(target == IGNORE_INDEX, IGNORE_INDEX, first + target)
        weight = torch.ones(len(examples))
        if self.weights and self.task.kind == "classify":
            weight = torch.tensor(self.weights)[target.clamp(min=0)]
        return Key(page.slots(readings), group, target, weight, soften(examples))

    def loss(self, model: Any, batch: Batch[Key], /) -> Loss:
        """Sum -log p(class), or the squared distance from a number."""
        return Loss({"labels": self.blame(read_off(model, batch), batch.targets)})

    def blame(self, scores: Tensor, key: Key) -> Tensor:
        """Sum what is wrong with scores."""
        if self.task.kind == "regress":
            wanted = key.target if key.soft is None else self.mixed(key.target, key.soft[:, 0])
            return ((scores[:, 0] - wanted) ** 2).sum()
        if self.task.kind == "choose":
            logs = log_softmax_by(scores[:, 0], key.group, len(key.target))
            plain = -logs.index_select(0, key.target)
            if key.soft is None:
                return plain.sum()
            logs = log_softmax_by(scores[:, 0] / self.heat, key.group, len(key.target))
            return (1 - self.teaching) * plain.sum() - self.share * (key.soft[:, 0] * logs).sum()
        return surprise(scores, key, teaching=self.teaching, heat=self.heat).sum()

    @property
    def share(self) -> float:
        """The teacher's share; a gradient through heated scores is smaller by the heat squared."""
        return self.teaching * self.heat**2

    def mixed(self, target: Tensor, soft: Tensor) -> Tensor:
        """Return a number between what is right and what a teacher says."""
        return (1 - self.teaching) * target + self.teaching * soft

    def reply(self, model: Any, batch: Batch[Key], /) -> list[Reply]:
        """Return the scores of each example: (classes,) or (options,)."""
        parts = by_group(read_off(model, batch), batch.targets.group)
        return [part[:, 0] if self.task.kind == "choose" else part[0] for part in parts]

    def answer(self, row: Any, examples: Sequence[Example], replies: Sequence[Reply], /) -> Answer:
        """Name the class, the number or the option with the highest score."""
        (reply,) = replies
        if self.task.kind == "regress":
            return Answer(float(reply[0]))
        shares = softmax(reply)
        best = int(shares.argmax())
        value = best if self.task.kind == "choose" else self.task.labels[best]
        return Answer(value, tuple(shares.tolist()), float(shares[best]))

    def opinion(self, reply: Reply) -> Reply:
        """Turn a teacher's reply into what a student learns from: (classes,) or (options, 1)."""
        if self.task.kind == "regress":
            return reply
        soft = softmax(reply / self.heat)
        return soft[:, None] if self.task.kind == "choose" else soft
