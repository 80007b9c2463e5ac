"""What stands around a text and between two, in each family, and what is cut where room ends."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kinfolk.data.pieces import Ids
from kinfolk.errors import UserError
from kinfolk.text.tokenizer import FRAMES, Specials, Tokenizer

PART = re.compile(r"(\$[AB]|\{\w+\})(?::(\d))?")


@dataclass(frozen=True)
class Framed:
    """Texts in their frame."""

    ids: Ids
    segments: Ids
    starts: tuple[int, ...]  # the slot where each text begins
    summary: int  # the slot that stands for the whole


def parts(frame: str, texts: int) -> list[tuple[str, int]]:
    """Take a frame apart: tokens by their role, texts as `$A` and `$B`, each with its segment."""
    return [
        (name.strip("{}"), int(kind or 0)) for name, kind in PART.findall(FRAMES[frame][texts - 1])
    ]


def around(frame: str, texts: int) -> int:
    """Say how many slots a frame takes besides the texts."""
    return sum(not name.startswith("$") for name, _ in parts(frame, texts))


def framed(frame: str, specials: Specials, texts: Sequence[Sequence[int]]) -> Framed:
    """Put one text or two into a frame: `[CLS] a [SEP] b [SEP]`."""
    ids: list[int] = []
    segments: list[int] = []
    starts = []
    summary = 0
    for name, kind in parts(frame, len(texts)):
        piece = texts["AB".index(name[1])] if name.startswith("$") else [specials.need(name)]
        if name.startswith("$"):
            starts.append(len(ids))
        if name == "cls":
            summary = len(ids)
        ids += piece
        segments += [kind] * len(piece)
    return Framed(np.array(ids, np.int64), np.array(segments, np.int64), tuple(starts), summary)


def fitting(texts: Sequence[Sequence[int]], room: int) -> tuple[list[list[int]], int]:
    """Cut texts to the room there is, the longest first; say how many tokens that costs.

    Two that are both too long have half of it each; a token that is left over is the longer one's,
    as Hugging Face's tokenizers have it.
    """
    over = sum(map(len, texts)) - room
    if room < len(texts):
        raise UserError(
            f"a row of {room} tokens has no room for {len(texts)} texts: choose a larger --length"
        )
    if over <= 0:
        return [list(text) for text in texts], 0
    sizes = [room]
    if len(texts) == 2:
        least = min(*map(len, texts), room // 2)
        sizes = [least, room - least]
        if len(texts[0]) > len(texts[1]):
            sizes.reverse()
    return [list(text[:size]) for text, size in zip(texts, sizes, strict=True)], over


def encoded(tokenizer: Tokenizer, texts: Sequence[str]) -> list[list[int]]:
    """Return the ids of texts, without a frame, and plain: a `[MASK]` in them is six letters."""
    return [tokenizer.offsets(text)[0] for text in texts]
