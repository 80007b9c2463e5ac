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
from kinfolk.tasks.examples import Example, Page, Reading
from kinfolk.tasks.framing import around, encoded, framed
from kinfolk.tasks.rows import Asked
from kinfolk.tasks.task import Answer
from kinfolk.tasks.ways.way import Key, Reply, Way, by_group, log_softmax_by, read_off
from kinfolk.text.tokenizer import Tokenizer

QUESTION = 64  # tokens of a question that are read (the published code)
LONGEST = 30  # tokens of an answer


@dataclass(frozen=True)
class Window:
    """A stretch of a context: the characters of each of its tokens."""

    spans: tuple[tuple[int, int], ...]


@config("span_head")
class Ends(Way):
    """Score every token of a context as the start and the end of the answer."""

    frame: str = "bert"  # of FRAMES
    step: int = 0  # tokens from window to window; 0 is half the room
    refuses: bool = False  # to answer, where nothing in the context is as likely as no answer

    name: ClassVar[str] = "head"
    solves: ClassVar[tuple[str, ...]] = ("span",)
    head: ClassVar[str | None] = "span"

    def lessons(self, row: Asked, tokenizer: Tokenizer, /) -> list[Example]:
        """Read the context in windows; of those without the answer, the right one is none."""
        (question,) = encoded(tokenizer, (row.question,))
        room = self.length - around(self.frame, 2)
        question = question[: min(QUESTION, room // 2)]
        room -= len(question)
        ids, spans = tokenizer.offsets(row.context)
        wanted = self.wanted(row)
        if wanted is None and row.answers:  # none of them is in the context: nothing to learn
            return []
        return [
            self.window(
                question, ids[at : at + room], tuple(spans[at : at + room]), wanted, tokenizer
            )
            for at in windows(len(ids), room, self.step or max(1, room // 2))
        ]

    def wanted(self, row: Asked) -> tuple[int, int] | None:
        """Return the characters of the answer; (-1, -1) where there is none, None if unknown."""
        if not row.possible:
            return -1, -1
        found = [(start, start + len(text)) for text, start in row.answers if start >= 0]
        return found[0] if found else None

    def window(
        self,
        question: Sequence[int],
        ids: Sequence[int],
        spans: tuple[tuple[int, int], ...],
        wanted: tuple[int, int] | None,
        tokenizer: Tokenizer,
    ) -> Example:
        """Frame a question and a stretch of its context."""
        whole = framed(self.frame, tokenizer.specials, (question, ids))
        slots = np.concatenate([[whole.summary], whole.starts[1] + np.arange(len(ids))])
        reading = Reading(
            ids=whole.ids,
            time=np.zeros_like(whole.ids),
            segments=whole.segments,
            slots=slots,
        )
        target = None if wanted is None else covering(spans, wanted)
        return Example(readings=(reading,), target=target, about=Window(spans))

    def key(self, examples: Sequence[Example], readings: Sequence[Reading], page: Page) -> Key:
        """Read the states of each window's context, and that of its first token."""
        counts = torch.tensor([len(r.slots) for r in readings])
        group = torch.repeat_interleave(torch.arange(len(examples)), counts)
        first = counts.cumsum(0) - counts
        known = [
            e.target if e.target is not None else (IGNORE_INDEX, IGNORE_INDEX) for e in examples
        ]
        target = torch.tensor(known)
        target = torch.where(target == IGNORE_INDEX, target, first[:, None] + target)
        return Key(page.slots(readings), group, target, torch.ones(len(examples)))

    def loss(self, model: Any, batch: Batch[Key], /) -> Loss:
        """Sum -log p(start) and -log p(end), by half."""
        key, scores = batch.targets, read_off(model, batch)
        logs = [log_softmax_by(scores[:, i], key.group, len(key.target)) for i in range(2)]
        right = [logs[i].index_select(0, key.target[:, i]) for i in range(2)]
        return Loss({"labels": -(right[0] + right[1]).sum() / 2})

    def reply(self, model: Any, batch: Batch[Key], /) -> list[Reply]:
        """Return the scores of each window: (1 + tokens, 2)."""
        return by_group(read_off(model, batch), batch.targets.group)

    def answer(self, row: Any, examples: Sequence[Example], replies: Sequence[Reply], /) -> Answer:
        """Return the text of the best span over all windows; "" where no answer is better."""
        best, nothing = (-np.inf, ""), np.inf
        found = [
            (spans(reply), example.about.spans, reply[0].sum())
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
        if self.refuses and gap > 0:
            best = nothing, ""
        top = max(best[0], nothing)  # all are counted against the best of them
        total = sum(float(np.exp(s[np.isfinite(s)] - top).sum()) for s, _, _ in found)
        total += float(np.exp(nothing - top))
        return Answer(best[1], (gap,), float(np.exp(best[0] - top)) / total)


def windows(size: int, room: int, step: int) -> list[int]:
    """Say where the windows over a context start; the last one ends where it does."""
    if size <= room:
        return [0]
    starts = list(range(0, size - room, min(step, room)))
    return [*starts, size - room]


def covering(spans: Sequence[tuple[int, int]], wanted: tuple[int, int]) -> tuple[int, int]:
    """Return the first and the last token of a span of characters, counted from 1; 0 is none."""
    start, stop = wanted
    inside = [i for i, (a, b) in enumerate(spans, 1) if a < stop and b > start]
    whole = bool(inside) and spans[0][0] <= start and spans[-1][1] >= stop
    return (inside[0], inside[-1]) if whole and start >= 0 else (0, 0)


def spans(reply: Reply) -> Reply:
    """Score every span by its first token and its length: (tokens, LONGEST), -inf past the end."""
    starts, ends = reply[1:, 0], reply[1:, 1]
    padded = np.concatenate([ends, np.full(LONGEST, -np.inf)])
    after = np.lib.stride_tricks.sliding_window_view(padded, LONGEST)[: len(starts)]
    return np.asarray(starts[:, None] + after)
