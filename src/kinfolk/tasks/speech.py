"""Texts that are said: what a network reads, and the tokens that it is to say, in each family.

decoder    <s> a fine film  ->  great </s>          ids and labels a step apart
encoder-   source  a fine film </s>
  decoder  ids  <p> great       labels  great </s>
blanks     a fine film [M]  <s> great  ->  great </e>   at the place of its mask
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from kinfolk.batch import IGNORE_INDEX
from kinfolk.data.scripts import language
from kinfolk.errors import UserError
from kinfolk.tasks.examples import Reading
from kinfolk.tasks.rows import Asked, Choice, Completion, Labelled, Tagged, Written
from kinfolk.text.marks import marks
from kinfolk.text.tokenizer import Specials, Tokenizer

Speaks = Literal["decoder", "encoder-decoder", "blanks"]
HOLE = "{answer}"


def reading(
    speaks: Speaks,
    specials: Specials,
    before: Sequence[int],
    said: Sequence[int],
    after: Sequence[int] = (),
    *,
    end: bool = True,
    hole: bool = False,
) -> Reading:
    """Lay out what is read and what is said; `end` says the end, too.

    A decoder says what comes after as well, since it cannot read it. A `hole` is filled where it
    stands; else what is said follows the text.
    """
    if speaks == "encoder-decoder":
        return answered(specials, before, said, after, end=end, hole=hole)
    if speaks == "blanks":
        return filled(specials, before, said, after, end=end, hole=hole)
    opening = specials.need("eos") if specials.bos is None else specials.bos
    closing = [specials.need("eos")] if end else []
    line = np.array([opening, *before, *said, *after, *closing], np.int64)
    labels = line[1:].copy()
    labels[: len(before)] = IGNORE_INDEX
    return Reading(ids=line[:-1], time=np.arange(len(line) - 1), labels=labels)


def answered(
    specials: Specials,
    before: Sequence[int],
    said: Sequence[int],
    after: Sequence[int],
    *,
    end: bool,
    hole: bool,
) -> Reading:
    """Let an encoder read, and a decoder say."""
    eos = specials.need("eos")
    mark = list(specials.sentinels[:1]) if hole else []
    source = np.array([*before, *mark, *after, eos], np.int64)
    ids = np.array([specials.pad, *mark, *said], np.int64)
    labels = np.append(ids[1:], eos if end else IGNORE_INDEX)
    labels[: len(mark)] = IGNORE_INDEX
    return Reading(ids=ids, time=np.arange(len(ids)), source=source, labels=labels)


def filled(
    specials: Specials,
    before: Sequence[int],
    said: Sequence[int],
    after: Sequence[int],
    *,
    end: bool,
    hole: bool,
) -> Reading:
    """Let a network read both ways, and fill a blank at the place of its mask."""
    known = marks(specials)
    text = [*before, known.mask if hole else known.tail, *after]
    size = len(said) + 1
    ids = np.array([*text, known.start, *said], np.int64)
    ahead = np.zeros(len(text), np.int64)
    labels = [*[IGNORE_INDEX] * len(text), *said, known.end if end else IGNORE_INDEX]
    return Reading(
        ids=ids,
        time=np.append(ahead, np.arange(1, size + 1)),
        places=np.append(np.arange(len(text)), np.full(size, len(before))),
        within=np.append(ahead, np.arange(1, size + 1)),
        labels=np.array(labels, np.int64),
    )


def around(speaks: Speaks) -> int:
    """Say how many slots are taken by what is neither read nor said, at most."""
    return {"decoder": 2, "encoder-decoder": 2, "blanks": 2}[speaks]


def fields(row: Any) -> dict[str, str]:
    """Return what a pattern may name of a row."""
    match row:
        case Labelled(texts=texts):
            return {
                "text": texts[0],
                "text1": texts[0],
                "text2": texts[1] if len(texts) > 1 else "",
            }
        case Choice(context=context, question=question, options=options):
            listed = " ".join(f"({number}) {option}" for number, option in enumerate(options, 1))
            return {"text": context, "question": question, "options": listed}
        case Completion(context=context, after=after):
            return {"text": context, "after": after}
        case Asked(context=context, question=question):
            return {"text": context, "question": question}
        case Written(source=source):
            return {"text": source}
        case Tagged(words=words):
            return {"text": joined(words)}
    raise UserError(f"a {type(row).__name__.lower()} row has no text to put into a pattern")


def around_hole(pattern: str, row: Any) -> tuple[str, str]:
    """Fill a pattern in, and part it at its hole."""
    known: Mapping[str, str] = fields(row)
    before, hole, after = pattern.partition(HOLE)
    if not hole:
        raise UserError(f"the pattern {pattern!r} has no {HOLE}: say where the answer stands")
    try:
        return before.format(**known), after.format(**known)
    except (KeyError, IndexError, ValueError):
        names = ", ".join(f"{{{name}}}" for name in known)
        raise UserError(
            f"the pattern {pattern!r} names what these rows do not have: use {names} and {HOLE}"
        ) from None


def joined(words: Sequence[str]) -> str:
    """Join words as they are written: with spaces, but none between Chinese characters."""
    text = ""
    for word in words:
        text += word if not text else glue(text, word) + word
    return text


def glue(before: str, after: str) -> str:
    """Return what stands between two words: a space, but nothing beside a Chinese character."""
    if not before or not after or before[-1].isspace():
        return ""
    return "" if chinese(before[-1]) or chinese(after[0]) else " "


def chinese(character: str) -> bool:
    """Say whether a character is written without spaces around it."""
    return "\u2e80" <= character <= "\u9fff" or "\uf900" <= character <= "\uffef"


def mostly_chinese(texts: Sequence[str]) -> bool:
    """Say whether texts are Chinese, by a sample of them."""
    return language(" ".join(texts[:50])) == "Chinese"


def after_text(tokenizer: Tokenizer, before: str, said: str) -> list[int]:
    """Return the ids of a text as it follows another."""
    return tokenizer.offsets(glue(before, said) + said)[0]
