"""A head with two scores per token: start and end of the answer (Devlin et al., 2018, 4.2).

context       it was written in 1843 .
ids   [C]  when was it written ? [S]  it was written in 1843 . [S]
read   *                              *   *     *    *   *   *

The hidden state of [CLS] stands for no answer. A context longer than `max_length` is split into
windows that overlap; the best answer of all windows is predicted.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from kinfolk.batch import IGNORE_INDEX, Batch, Loss
from kinfolk.config import config, field
from kinfolk.data.examples import Collated, Example
from kinfolk.tasks.formulations.base import (
    Formulation,
    Instance,
    RawScores,
    TaskTargets,
    logits_at,
    offset_targets,
    read_instance_index,
    segment_log_softmax,
    split_by_instance,
)
from kinfolk.tasks.formulations.sequences import apply_template, encode_plain, num_special_tokens
from kinfolk.tasks.rows import QuestionRow
from kinfolk.tasks.task import Prediction
from kinfolk.text.tokenizer import TemplateName, Tokenizer

MAX_QUESTION_LENGTH = 64  # tokens (the published code)
MAX_ANSWER_LENGTH = 30  # tokens


@config("span_head")
class SpanHead(Formulation):
    """A head with two logits per token."""

    frame: TemplateName | None = field(
        default="bert", help="template of the special tokens; null for a decoder"
    )
    stride: int = field(
        default=0, ge=0, le=2**24, help="tokens from window to window; 0 is half a window"
    )
    allow_no_answer: bool = False  # some training rows have no answer
    null_score_diff_threshold: float = field(
        default=0.0,
        help="predict no answer where its score exceeds the best span's by more than this",
    )

    name = "head"
    outputs = ("span",)
    needs_template = True
    head = "span"
    static_shapes = True

    def fit(self, rows: Sequence[Any], tokenizer: Tokenizer, *, balanced: bool = False) -> Self:
        """Allow the prediction of no answer if a training row has no answer."""
        allowed = any(not row.answerable for row in rows)
        return replace(super().fit(rows, tokenizer, balanced=balanced), allow_no_answer=allowed)

    def instances(
        self, row: QuestionRow, tokenizer: Tokenizer, /, *, labelled: bool = True
    ) -> list[Instance]:
        """Encode the windows of the context; the target of those without the answer is [CLS]."""
        (question,) = encode_plain(tokenizer, (row.question,))
        room = self.max_length - num_special_tokens(self.frame, 2)
        question = question[: min(MAX_QUESTION_LENGTH, room // 2)]
        room -= len(question)
        ids, spans = tokenizer.offsets(row.context)
        answer = self.answer_span(row) if labelled else None
        if labelled and answer is None and row.answers:  # none of them is in the context
            return []
        return [
            self.encode_window(
                question, ids[at : at + room], tuple(spans[at : at + room]), answer, tokenizer
            )
            for at in window_starts(len(ids), room, self.stride or max(1, room // 2))
        ]

    def answer_span(self, row: QuestionRow) -> tuple[int, int] | None:
        """Return the characters of the answer; (-1, -1) for no answer, None where it is unknown."""
        if not row.answerable:
            return -1, -1
        known = [(start, start + len(text)) for text, start in row.answers if start >= 0]
        return known[0] if known else None

    def encode_window(
        self,
        question: Sequence[int],
        ids: Sequence[int],
        spans: tuple[tuple[int, int], ...],
        answer: tuple[int, int] | None,
        tokenizer: Tokenizer,
    ) -> Instance:
        """Return the instance of a question and a window of its context."""
        assert self.frame is not None, "it needs a template"
        sequence = apply_template(self.frame, tokenizer.special_tokens, (question, ids))
        positions = np.concatenate(
            [[sequence.cls_index], sequence.offsets[1] + np.arange(len(ids))]
        )
        target = None if answer is None else char_to_token_span(spans, answer)
        return Instance(examples=(sequence.example(positions),), target=target, metadata=spans)

    def targets(
        self, instances: Sequence[Instance], examples: Sequence[Example], collated: Collated
    ) -> TaskTargets:
        """Score the context and the first token of each window."""
        index, unknown = read_instance_index(instances), (IGNORE_INDEX, IGNORE_INDEX)
        known = torch.tensor([unknown if i.target is None else i.target for i in instances])
        target = offset_targets(known.T, index).T
        weight = torch.ones(len(instances))
        return TaskTargets(collated.read_positions(examples), index, target, weight)

    def loss(self, model: Any, batch: Batch[TaskTargets], /) -> Loss:
        """Sum the mean of -log p(start) and -log p(end)."""
        targets, logits = batch.targets, self.scores(model, batch)
        start, end = (
            segment_log_softmax(
                logits[:, i], targets.instance_ids, len(targets.target)
            ).index_select(0, targets.target[:, i].clamp(min=0))
            for i in range(2)
        )
        return Loss({"label": -(targets.weight * (start + end)).sum() / 2})

    def logits(self, model: Any, batch: Batch[TaskTargets], /) -> list[RawScores]:
        """Return the scores of each window: (1 + tokens, 2)."""
        return split_by_instance(self.scores(model, batch), batch.targets.instance_ids)

    def scores(self, model: Any, batch: Batch[TaskTargets]) -> Tensor:
        """Return the scores of no answer and of each token, of all windows: (scored, 2)."""
        return logits_at(model, batch)

    def decode(
        self, row: Any, instances: Sequence[Instance], logits: Sequence[RawScores], /
    ) -> Prediction:
        """Return the text of the best span over all windows; "" where no answer is better."""
        best, text, null_score = -np.inf, "", np.inf
        windows = [
            (span_scores(scores), instance.metadata, scores[0].sum())
            for instance, scores in zip(instances, logits, strict=True)
        ]
        for scores, spans, cls_score in windows:
            null_score = min(null_score, float(cls_score))
            if not len(spans):  # a context without a token
                continue
            start, size = np.unravel_index(int(scores.argmax()), scores.shape)
            if scores[start, size] > best:
                first, last = spans[int(start)][0], spans[int(start) + int(size)][1]
                best, text = float(scores[start, size]), row.context[first:last].strip()
        null_score_diff = null_score - best
        span = text
        if self.allow_no_answer and null_score_diff > self.null_score_diff_threshold:
            best, text = null_score, ""
        top = max(best, null_score)  # subtracted before exp, which would overflow
        total = sum(float(np.exp(s[np.isfinite(s)] - top).sum()) for s, _, _ in windows)
        total += float(np.exp(null_score - top))
        probability = float(np.exp(best - top)) / total
        return Prediction(
            text, probability=probability, best_span=span, null_score_diff=float(null_score_diff)
        )


def window_starts(size: int, room: int, step: int) -> list[int]:
    """Return the first token of each window; the last window ends with the context."""
    if size <= room:
        return [0]
    starts = list(range(0, size - room, min(step, room)))
    return [*starts, size - room]


def char_to_token_span(
    spans: Sequence[tuple[int, int]], answer: tuple[int, int]
) -> tuple[int, int]:
    """Return the first and the last token of a span of characters, counted from 1; 0 for none."""
    start, stop = answer
    inside = [i for i, (a, b) in enumerate(spans, 1) if a < stop and b > start]
    complete = bool(inside) and spans[0][0] <= start and spans[-1][1] >= stop
    return (inside[0], inside[-1]) if complete and start >= 0 else (0, 0)


def span_scores(logits: RawScores) -> RawScores:
    """Return the score of every span by first token and length: (tokens, MAX_ANSWER_LENGTH)."""
    starts, ends = logits[1:, 0], logits[1:, 1]
    padded = np.concatenate([ends, np.full(MAX_ANSWER_LENGTH, -np.inf)])
    after = np.lib.stride_tricks.sliding_window_view(padded, MAX_ANSWER_LENGTH)[: len(starts)]
    return np.asarray(starts[:, None] + after)
