"""Answers that are written: rows go through the decoder, and texts come back."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from kinfolk.generation.beams import Beam
from kinfolk.generation.decoding import generate
from kinfolk.generation.sampling import GREEDY
from kinfolk.generation.texts import framed, request, spoken
from kinfolk.tasks.speech import around
from kinfolk.tasks.task import Answer
from kinfolk.text.tokenizer import Tokenizer

TEXTS = 32  # written at a time


def heard(way: Any, model: Any, rows: Sequence[Any], tokenizer: Tokenizer) -> list[Answer]:
    """Let a model write the answer to every row, those of like length together."""
    asked = [prompted(way, model, row, tokenizer) for row in rows]
    method: Any = Beam(size=way.beams) if getattr(way, "beams", 1) > 1 else GREEDY
    found: list[Answer | None] = [None] * len(rows)
    order = sorted(range(len(rows)), key=lambda i: -len(asked[i].source or asked[i].prompt))
    for start in range(0, len(order), TEXTS):
        some = order[start : start + TEXTS]
        wish = replace(request([asked[i] for i in some], tokens=way.tokens), weighed=False)
        for place, text in zip(some, generate(model, wish, method), strict=True):
            said = spoken(tokenizer, asked[place].prompt, text.ids)
            found[place] = way.heard(rows[place], said)
    return [answer for answer in found if answer is not None]


def prompted(way: Any, model: Any, row: Any, tokenizer: Tokenizer) -> Any:
    """Frame what is read before an answer, cut as in training, and to leave room to write."""
    ids = way.opened(tokenizer.offsets(way.asked(row)[0])[0], tokenizer)
    room = way.length - around(way.speaks)
    if model.config.max_length is not None and model.decoding != "encoder-decoder":
        room = min(room, model.config.max_length - way.tokens - around(way.speaks))
    return framed(model, tokenizer, way.shortened(ids, max(1, room)))
