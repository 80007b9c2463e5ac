"""A head on every word (Devlin et al., 2018, 5.3): its first piece is scored, for each tag.

words       Wolf ##gang lives in  Berlin
ids    [C]  Wolf ##gang lives in  Berlin [S]
read         *           *    *     *

A decoder has read a word at its last piece only: there it is scored, and a verb whose roles are
asked for stands before the words. A sentence that is longer than a reading is read in several, and
no word is lost.
"""

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import torch

from kinfolk.batch import IGNORE_INDEX, Batch, Loss
from kinfolk.config import config
from kinfolk.tasks.examples import Example, Page, Reading
from kinfolk.tasks.framing import around, framed
from kinfolk.tasks.rows import Tagged
from kinfolk.tasks.speech import glue
from kinfolk.tasks.task import Answer
from kinfolk.tasks.ways.transformed import line_marks
from kinfolk.tasks.ways.way import Key, Reply, Way, by_group, read_off, soften, softmax, surprise
from kinfolk.text.tokenizer import Tokenizer


@config("token_head")
class Words(Way):
    """Score one piece of every word."""

    frame: str | None = "bert"  # of FRAMES; None for a decoder
    causal: bool = False  # a decoder sees the words before only
    weights: tuple[float, ...] = ()  # of the tags
    teaching: float = 0.0  # the share of the loss that is a teacher's
    heat: float = 2.0

    name: ClassVar[str] = "head"
    solves: ClassVar[tuple[str, ...]] = ("tag",)
    head: ClassVar[str | None] = "tokens"

    def lessons(self, row: Tagged, tokenizer: Tokenizer, /) -> list[Example]:
        """Read the words, in as many stretches as it takes."""
        pieces = spelled(tokenizer, row.words)
        verb = None if row.predicate is None else pieces[row.predicate]
        texts = 1 if verb is None else 2
        room = self.length - (around(self.frame, texts) if self.frame else texts)
        if verb is not None:
            verb = verb[: room // 2]  # a long one leaves room for words
            room -= len(verb)
        marks = None if row.tags is None else [self.task.place(tag) for tag in row.tags]
        examples = []
        for start, stop in stretches([len(p) for p in pieces], room):
            reading = self.reading(pieces[start:stop], verb, tokenizer, room)
            target = None if marks is None else marks[start:stop]
            examples.append(Example(readings=(reading,), target=target))
        return examples

    def reading(
        self,
        pieces: Sequence[Sequence[int]],
        verb: Sequence[int] | None,
        tokenizer: Tokenizer,
        room: int,
    ) -> Reading:
        """Frame the pieces of some words, and the verb whose roles are asked for."""
        kept = [piece[:room] for piece in pieces]  # one word may be longer than all the room
        inside = [id for piece in kept for id in piece]
        places = np.cumsum([0, *(len(piece) for piece in kept)])[:-1]
        if self.frame is None:
            start, delimiter, _ = line_marks(tokenizer.specials)
            ahead = [start] if verb is None else [start, *verb, delimiter]
            ids = np.array([*ahead, *inside], np.int64)
            time = np.arange(len(ids)) if self.causal else np.zeros_like(ids)
            if self.causal:
                places = np.cumsum([len(piece) for piece in kept]) - 1
            return Reading(ids=ids, time=time, slots=places + len(ahead))
        texts = [inside] if verb is None else [inside, verb]
        whole = framed(self.frame, tokenizer.specials, texts)
        return Reading(
            ids=whole.ids,
            time=np.zeros_like(whole.ids),
            segments=whole.segments,
            slots=places + whole.starts[0],
        )

    def key(self, examples: Sequence[Example], readings: Sequence[Reading], page: Page) -> Key:
        """Read one state a word."""
        counts = torch.tensor([len(r.slots) for r in readings])
        group = torch.repeat_interleave(torch.arange(len(examples)), counts)
        target = torch.full((len(group),), IGNORE_INDEX)
        if examples[0].target is not None:
            target = torch.tensor([tag for e in examples for tag in e.target])
        weight = torch.ones(len(target))
        if self.weights:
            weight = torch.tensor(self.weights)[target.clamp(min=0)]
        return Key(page.slots(readings), group, target, weight, soften(examples))

    def loss(self, model: Any, batch: Batch[Key], /) -> Loss:
        """Sum -log p(tag)."""
        habits = {"teaching": self.teaching, "heat": self.heat}
        wrong = surprise(read_off(model, batch), batch.targets, **habits)
        return Loss({"labels": wrong.sum()})

    def reply(self, model: Any, batch: Batch[Key], /) -> list[Reply]:
        """Return the scores of the words of each example: (words, tags)."""
        return by_group(read_off(model, batch), batch.targets.group)

    def answer(self, row: Any, examples: Sequence[Example], replies: Sequence[Reply], /) -> Answer:
        """Name the tag of every word."""
        if not replies:
            return Answer(())
        shares = softmax(np.concatenate(list(replies)))
        best = shares.argmax(-1)
        tags = tuple(self.task.labels[int(tag)] for tag in best)
        sure = shares.max(-1)
        return Answer(tags, tuple(sure.tolist()), float(sure.min()))

    def opinion(self, reply: Reply) -> Reply:
        """Turn a teacher's reply into what a student learns from."""
        return softmax(reply / self.heat)


def spelled(tokenizer: Tokenizer, words: Sequence[str]) -> list[list[int]]:
    """Return the pieces of each word, as they are in a running text; a word has one at least."""
    empty = tokenizer.specials.unk
    empty = tokenizer.specials.pad if empty is None else empty
    pieces = []
    before = ""
    for word in words:
        pieces.append(tokenizer.offsets(glue(before, word) + word)[0] or [empty])
        before = word
    return pieces


def stretches(sizes: Sequence[int], room: int) -> list[tuple[int, int]]:
    """Part words into stretches that fit: first word, and the one after the last."""
    found, start, used = [], 0, 0
    for place, size in enumerate(sizes):
        if place > start and used + size > room:
            found.append((start, place))
            start, used = place, 0
        used += min(size, room)
    return [*found, (start, len(sizes))] if sizes else []
