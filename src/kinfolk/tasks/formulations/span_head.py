"""Two scores a token (Devlin et al., 2018, 4.2): where an answer starts and where it ends.

context       it was written in 1843 .
ids   [C]  when was it written ? [S]  it was written in 1843 . [S]
read   *                              *   *     *    *   *   *

The state of [CLS] stands for no answer. A context longer than a reading is read in windows that
overlap; the best answer of all windows counts.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch

from kinfolk.batch import IGNORE_INDEX, Batch, Loss
from kinfolk.config import config
from kinfolk.data.examples import Collated, Example
from kinfolk.tasks.examples import Instance
from kinfolk.tasks.formulations.base import (
    Formulation,
    RawScores,
    TaskTargets,
    logits_at,
    segment_log_softmax,
    split_by_instance,
)
from kinfolk.tasks.formulations.sequences import apply_template, encode_plain, num_special_tokens
from kinfolk.tasks.rows import QuestionRow
from kinfolk.tasks.task import Prediction
from kinfolk.text.tokenizer import Tokenizer

MAX_QUESTION_LENGTH = 64  # tokens of a question that are read (the published code)
MAX_ANSWER_LENGTH = 30  # tokens of an answer


@dataclass(frozen=True)
class ContextWindow:
    """A stretch of a context: the characters of each of its tokens."""

    spans: tuple[tuple[int, int], ...]


@config("span_head")
class SpanHead(Formulation):
    """Score every token of a context as the start and the end of the answer."""

    frame: str = "bert"  # of FRAMES
    stride: int = 0  # tokens from window to window; 0 is half the room
    allow_no_answer: bool = (
        False  # to answer, where nothing in the context is as likely as no answer
    )

    name: ClassVar[str] = "head"
    tasks: ClassVar[tuple[str, ...]] = ("span",)
    head: ClassVar[str | None] = "span"

    def training_instances(self, row: QuestionRow, tokenizer: Tokenizer, /) -> list[Instance]:
        """Read the context in windows; of those without the answer, the right one is none."""
        (question,) = encode_plain(tokenizer, (row.question,))
        room = self.max_length - num_special_tokens(self.frame, 2)
        question = question[: min(MAX_QUESTION_LENGTH, room // 2)]
        room -= len(question)
        ids, spans = tokenizer.offsets(row.context)
        wanted = self.answer_span(row)
        if wanted is None and row.answers:  # none of them is in the context: nothing to learn
            return []
        return [
            self.encode_window(
                question, ids[at : at + room], tuple(spans[at : at + room]), wanted, tokenizer
            )
            for at in window_starts(len(ids), room, self.stride or max(1, room // 2))
        ]

    def answer_span(self, row: QuestionRow) -> tuple[int, int] | None:
        """Return the characters of the answer; (-1, -1) where there is none, None if unknown."""
        if not row.answerable:
            return -1, -1
        found = [(start, start + len(text)) for text, start in row.answers if start >= 0]
        return found[0] if found else None

    def encode_window(
        self,
        question: Sequence[int],
        ids: Sequence[int],
        spans: tuple[tuple[int, int], ...],
        wanted: tuple[int, int] | None,
        tokenizer: Tokenizer,
    ) -> Instance:
        """Frame a question and a stretch of its context."""
        whole = apply_template(self.frame, tokenizer.special_tokens, (question, ids))
        slots = np.concatenate([[whole.cls_index], whole.offsets[1] + np.arange(len(ids))])
        reading = Example(
            input_ids=whole.ids,
            order=np.zeros_like(whole.ids),
            token_type_ids=whole.token_type_ids,
            read_positions=slots,
        )
        target = None if wanted is None else char_to_token_span(spans, wanted)
        return Instance(examples=(reading,), target=target, metadata=ContextWindow(spans))

    def targets(
        self, examples: Sequence[Instance], readings: Sequence[Example], page: Collated
    ) -> TaskTargets:
        """Read the states of each window's context, and that of its first token."""
        counts = torch.tensor([len(r.read_positions) for r in readings])
        group = torch.repeat_interleave(torch.arange(len(examples)), counts)
        first = counts.cumsum(0) - counts
        known = [
            e.target if e.target is not None else (IGNORE_INDEX, IGNORE_INDEX) for e in examples
        ]
        target = torch.tensor(known)
        target = torch.where(target == IGNORE_INDEX, target, first[:, None] + target)
        return TaskTargets(page.read_positions(readings), group, target, torch.ones(len(examples)))

    def loss(self, model: Any, batch: Batch[TaskTargets], /) -> Loss:
        """Sum -log p(start) and -log p(end), by half."""
        key, scores = batch.targets, logits_at(model, batch)
        logs = [
            segment_log_softmax(scores[:, i], key.instance_ids, len(key.target)) for i in range(2)
        ]
        right = [logs[i].index_select(0, key.target[:, i]) for i in range(2)]
        return Loss({"label": -(right[0] + right[1]).sum() / 2})

    def logits(self, model: Any, batch: Batch[TaskTargets], /) -> list[RawScores]:
        """Return the scores of each window: (1 + tokens, 2)."""
        return split_by_instance(logits_at(model, batch), batch.targets.instance_ids)

    def decode(
        self, row: Any, examples: Sequence[Instance], replies: Sequence[RawScores], /
    ) -> Prediction:
        """Return the text of the best span over all windows; "" where no answer is better."""
        best, nothing = (-np.inf, ""), np.inf
        found = [
            (span_scores(reply), example.metadata.spans, reply[0].sum())
            for example, reply in zip(examples, replies, strict=True)
        ]
        for scores, where, none in found:
            nothing = min(nothing, float(none))
            if not len(where):  # a context without a token
                continue
            start, size = np.unravel_index(int(scores.argmax()), scores.shape)
            if scores[start, size] > best[0]:
                first, last = where[int(start)][0], where[int(start) + int(size)][1]
                best = float(scores[start, size]), row.context[first:last].strip()
        gap = nothing - best[0]  # how much better no answer would be
        if self.allow_no_answer and gap > 0:
            best = nothing, ""
        top = max(best[0], nothing)  # all are counted against the best of them
        total = sum(float(np.exp(s[np.isfinite(s)] - top).sum()) for s, _, _ in found)
        total += float(np.exp(nothing - top))
        return Prediction(best[1], (gap,), float(np.exp(best[0] - top)) / total)


def window_starts(size: int, room: int, step: int) -> list[int]:
    """Say where the windows over a context start; the last one ends where it does."""
    if size <= room:
        return [0]
    starts = list(range(0, size - room, min(step, room)))
    return [*starts, size - room]


def char_to_token_span(
    spans: Sequence[tuple[int, int]], wanted: tuple[int, int]
) -> tuple[int, int]:
    """Return the first and the last token of a span of characters, counted from 1; 0 is none."""
    start, stop = wanted
    inside = [i for i, (a, b) in enumerate(spans, 1) if a < stop and b > start]
    whole = bool(inside) and spans[0][0] <= start and spans[-1][1] >= stop
    return (inside[0], inside[-1]) if whole and start >= 0 else (0, 0)


def span_scores(reply: RawScores) -> RawScores:
    """Score every span by its first token and its length: (tokens, LONGEST), -inf past the end."""
    starts, ends = reply[1:, 0], reply[1:, 1]
    padded = np.concatenate([ends, np.full(MAX_ANSWER_LENGTH, -np.inf)])
    after = np.lib.stride_tricks.sliding_window_view(padded, MAX_ANSWER_LENGTH)[: len(starts)]
    return np.asarray(starts[:, None] + after)
