"""Token sequences of labelled rows: special-token templates, truncation, prompts and answers."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from kinfolk.batch import IGNORE_INDEX
from kinfolk.data.chunks import IntArray
from kinfolk.data.examples import Example
from kinfolk.errors import UserError
from kinfolk.tasks.rows import Row, space_between
from kinfolk.text.tokenizer import TEMPLATES, SpecialTokens, Tokenizer, glm_tokens

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


SequenceLayout = Literal["decoder", "encoder-decoder", "blanks"]
ANSWER_FIELD = "{answer}"


def build_example(
    speaks: SequenceLayout,
    special_tokens: SpecialTokens,
    before: Sequence[int],
    said: Sequence[int],
    after: Sequence[int] = (),
    *,
    end: bool = True,
    hole: bool = False,
) -> Example:
    """Lay out what is read and what is said; `end` says the end, too.

    A decoder says what comes after as well, since it cannot read it. A `hole` is filled where it
    stands; else what is said follows the text.
    """
    if speaks == "encoder-decoder":
        return seq2seq_example(special_tokens, before, said, after, end=end, hole=hole)
    if speaks == "blanks":
        return infill_example(special_tokens, before, said, after, end=end, hole=hole)
    opening = special_tokens.require("eos") if special_tokens.bos is None else special_tokens.bos
    closing = [special_tokens.require("eos")] if end else []
    line = np.array([opening, *before, *said, *after, *closing], np.int64)
    labels = line[1:].copy()
    labels[: len(before)] = IGNORE_INDEX
    return Example(input_ids=line[:-1], order=np.arange(len(line) - 1), labels=labels)


def seq2seq_example(
    special_tokens: SpecialTokens,
    before: Sequence[int],
    said: Sequence[int],
    after: Sequence[int],
    *,
    end: bool,
    hole: bool,
) -> Example:
    """Let an encoder read, and a decoder say."""
    eos = special_tokens.require("eos")
    mark = list(special_tokens.sentinels[:1]) if hole else []
    source = np.array([*before, *mark, *after, eos], np.int64)
    ids = np.array([special_tokens.pad, *mark, *said], np.int64)
    labels = np.append(ids[1:], eos if end else IGNORE_INDEX)
    labels[: len(mark)] = IGNORE_INDEX
    return Example(
        input_ids=ids, order=np.arange(len(ids)), encoder_input_ids=source, labels=labels
    )


def infill_example(
    special_tokens: SpecialTokens,
    before: Sequence[int],
    said: Sequence[int],
    after: Sequence[int],
    *,
    end: bool,
    hole: bool,
) -> Example:
    """Let a network read both ways, and fill a blank at the place of its mask."""
    known = glm_tokens(special_tokens)
    text = [*before, known.mask if hole else known.gmask, *after]
    size = len(said) + 1
    ids = np.array([*text, known.start, *said], np.int64)
    ahead = np.zeros(len(text), np.int64)
    labels = [*[IGNORE_INDEX] * len(text), *said, known.end if end else IGNORE_INDEX]
    return Example(
        input_ids=ids,
        order=np.append(ahead, np.arange(1, size + 1)),
        position_ids=np.append(np.arange(len(text)), np.full(size, len(before))),
        block_position_ids=np.append(ahead, np.arange(1, size + 1)),
        labels=np.array(labels, np.int64),
    )


def num_layout_tokens(speaks: SequenceLayout) -> int:
    """Say how many slots are taken by what is neither read nor said, at most."""
    return {"decoder": 2, "encoder-decoder": 2, "blanks": 2}[speaks]


def fill_pattern(pattern: str, row: Row) -> tuple[str, str]:
    """Fill the fields of a pattern, and split it at the answer."""
    known = row.fields
    before, separator, after = pattern.partition(ANSWER_FIELD)
    if not separator:
        raise UserError(f"the pattern {pattern!r} has no {ANSWER_FIELD}: add one for the answer")
    try:
        return before.format(**known), after.format(**known)
    except (KeyError, IndexError, ValueError):
        names = ", ".join(f"{{{name}}}" for name in known)
        raise UserError(
            f"the pattern {pattern!r} names what these rows do not have: "
            f"use {names} and {ANSWER_FIELD}"
        ) from None


def encode_continuation(tokenizer: Tokenizer, before: str, said: str) -> list[int]:
    """Return the ids of a text as it follows another."""
    return tokenizer.offsets(space_between(before, said) + said)[0]
