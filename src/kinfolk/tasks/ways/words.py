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
from kinfolk.tasks.examples import Collated, Example, Instance
from kinfolk.tasks.framing import apply_template, num_special_tokens
from kinfolk.tasks.rows import TaggedSentence
from kinfolk.tasks.speech import space_between
from kinfolk.tasks.task import Prediction
from kinfolk.tasks.ways.transformed import causal_special_tokens
from kinfolk.tasks.ways.way import (
    Formulation,
    RawScores,
    TaskTargets,
    logits_at,
    softmax,
    split_by_instance,
    stack_soft_targets,
    weighted_cross_entropy,
)
from kinfolk.text.tokenizer import Tokenizer


@config("token_head")
class TokenHead(Formulation):
    """Score one piece of every word."""

    frame: str | None = "bert"  # of FRAMES; None for a decoder
    causal: bool = False  # a decoder sees the words before only
    class_weights: tuple[float, ...] = ()  # of the tags
    distillation_weight: float = 0.0  # the share of the loss that is a teacher's
    temperature: float = 2.0

    name: ClassVar[str] = "head"
    tasks: ClassVar[tuple[str, ...]] = ("tag",)
    head: ClassVar[str | None] = "tokens"

    def training_instances(self, row: TaggedSentence, tokenizer: Tokenizer, /) -> list[Instance]:
        """Read the words, in as many stretches as it takes."""
        chunks = encode_words(tokenizer, row.words)
        verb = None if row.predicate is None else chunks[row.predicate]
        texts = 1 if verb is None else 2
        room = self.max_length - (num_special_tokens(self.frame, texts) if self.frame else texts)
        if verb is not None:
            verb = verb[: room // 2]  # a long one leaves room for words
            room -= len(verb)
        marks = None if row.tags is None else [self.task.label_id(tag) for tag in row.tags]
        examples = []
        for start, stop in split_to_fit([len(p) for p in chunks], room):
            reading = self.example(chunks[start:stop], verb, tokenizer, room)
            target = None if marks is None else marks[start:stop]
            examples.append(Instance(examples=(reading,), target=target))
        return examples

    def example(
        self,
        chunks: Sequence[Sequence[int]],
        verb: Sequence[int] | None,
        tokenizer: Tokenizer,
        room: int,
    ) -> Example:
        """Frame the pieces of some words, and the verb whose roles are asked for."""
        kept = [chunk[:room] for chunk in chunks]  # one word may be longer than all the room
        inside = [id for chunk in kept for id in chunk]
        indices = np.cumsum([0, *(len(chunk) for chunk in kept)])[:-1]
        if self.frame is None:
            start, delimiter, _ = causal_special_tokens(tokenizer.special_tokens)
            ahead = [start] if verb is None else [start, *verb, delimiter]
            ids = np.array([*ahead, *inside], np.int64)
            time = np.arange(len(ids)) if self.causal else np.zeros_like(ids)
            if self.causal:
                indices = np.cumsum([len(chunk) for chunk in kept]) - 1
            return Example(ids=ids, order=time, read_at=indices + len(ahead))
        texts = [inside] if verb is None else [inside, verb]
        whole = apply_template(self.frame, tokenizer.special_tokens, texts)
        return Example(
            ids=whole.ids,
            order=np.zeros_like(whole.ids),
            token_type_ids=whole.token_type_ids,
            read_at=indices + whole.offsets[0],
        )

    def targets(
        self, examples: Sequence[Instance], readings: Sequence[Example], page: Collated
    ) -> TaskTargets:
        """Read one state a word."""
        counts = torch.tensor([len(r.read_at) for r in readings])
        group = torch.repeat_interleave(torch.arange(len(examples)), counts)
        target = torch.full((len(group),), IGNORE_INDEX)
        if examples[0].target is not None:
            target = torch.tensor([tag for e in examples for tag in e.target])
        weight = torch.ones(len(target))
        if self.class_weights:
            weight = torch.tensor(self.class_weights)[target.clamp(min=0)]
        return TaskTargets(
            page.read_at(readings), group, target, weight, stack_soft_targets(examples)
        )

    def loss(self, model: Any, batch: Batch[TaskTargets], /) -> Loss:
        """Sum -log p(tag)."""
        finetune_config = {"teaching": self.distillation_weight, "heat": self.temperature}
        wrong = weighted_cross_entropy(logits_at(model, batch), batch.targets, **finetune_config)
        return Loss({"labels": wrong.sum()})

    def logits(self, model: Any, batch: Batch[TaskTargets], /) -> list[RawScores]:
        """Return the scores of the words of each example: (words, tags)."""
        return split_by_instance(logits_at(model, batch), batch.targets.instance_ids)

    def decode(
        self, row: Any, examples: Sequence[Instance], replies: Sequence[RawScores], /
    ) -> Prediction:
        """Name the tag of every word."""
        if not replies:
            return Prediction(())
        shares = softmax(np.concatenate(list(replies)))
        best = shares.argmax(-1)
        tags = tuple(self.task.labels[int(tag)] for tag in best)
        sure = shares.max(-1)
        return Prediction(tags, tuple(sure.tolist()), float(sure.min()))

    def soft_labels(self, reply: RawScores) -> RawScores:
        """Turn a teacher's reply into what a student learns from."""
        return softmax(reply / self.temperature)


def encode_words(tokenizer: Tokenizer, words: Sequence[str]) -> list[list[int]]:
    """Return the pieces of each word, as they are in a running text; a word has one at least."""
    empty = tokenizer.special_tokens.unk
    empty = tokenizer.special_tokens.pad if empty is None else empty
    chunks = []
    before = ""
    for word in words:
        chunks.append(tokenizer.offsets(space_between(before, word) + word)[0] or [empty])
        before = word
    return chunks


def split_to_fit(sizes: Sequence[int], room: int) -> list[tuple[int, int]]:
    """Part words into stretches that fit: first word, and the one after the last."""
    found, start, used = [], 0, 0
    for place, size in enumerate(sizes):
        if place > start and used + size > room:
            found.append((start, place))
            start, used = place, 0
        used += min(size, room)
    return [*found, (start, len(sizes))] if sizes else []
