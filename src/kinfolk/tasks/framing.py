"""What stands around a text and between two, in each family, and what is cut where room ends."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kinfolk.data.chunks import IntArray
from kinfolk.errors import UserError
from kinfolk.text.tokenizer import TEMPLATES, SpecialTokens, Tokenizer

TEMPLATE_PART = re.compile(r"(\$[AB]|\{\w+\})(?::(\d))?")


@dataclass(frozen=True)
class TemplatedInput:
    """Texts in their frame."""

    ids: IntArray
    token_type_ids: IntArray
    offsets: tuple[int, ...]  # the slot where each text begins
    cls_index: int  # the slot that stands for the whole


def parse_template(frame: str, texts: int) -> list[tuple[str, int]]:
    """Take a frame apart: tokens by their role, texts as `$A` and `$B`, each with its segment."""
    return [
        (name.strip("{}"), int(kind or 0))
        for name, kind in TEMPLATE_PART.findall(TEMPLATES[frame][texts - 1])
    ]


def num_special_tokens(frame: str, texts: int) -> int:
    """Say how many slots a frame takes besides the texts."""
    return sum(not name.startswith("$") for name, _ in parse_template(frame, texts))


def apply_template(
    frame: str, special_tokens: SpecialTokens, texts: Sequence[Sequence[int]]
) -> TemplatedInput:
    """Put one text or two into a frame: `[CLS] a [SEP] b [SEP]`."""
    ids: list[int] = []
    segments: list[int] = []
    starts = []
    summary = 0
    for name, kind in parse_template(frame, len(texts)):
        chunk = (
            texts["AB".index(name[1])] if name.startswith("$") else [special_tokens.require(name)]
        )
        if name.startswith("$"):
            starts.append(len(ids))
        if name == "cls":
            summary = len(ids)
        ids += chunk
        segments += [kind] * len(chunk)
    return TemplatedInput(
        np.array(ids, np.int64), np.array(segments, np.int64), tuple(starts), summary
    )


def truncate_longest_first(
    texts: Sequence[Sequence[int]], room: int
) -> tuple[list[list[int]], int]:
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


def encode_plain(tokenizer: Tokenizer, texts: Sequence[str]) -> list[list[int]]:
    """Return the ids of texts, without a frame, and plain: a `[MASK]` in them is six letters."""
    return [tokenizer.offsets(text)[0] for text in texts]
