"""Holes in a text: a token, a span, a sentence or all the rest in the place of each mask."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kinfolk.errors import UserError
from kinfolk.generation.decoding import Method
from kinfolk.generation.filling import fill_blanks, fill_masks, fill_spans
from kinfolk.generation.sampling import GREEDY
from kinfolk.generation.texts import spoken, unspoken
from kinfolk.nn.language_model import LanguageModel
from kinfolk.text.marks import marks
from kinfolk.text.tokenizer import Tokenizer

HOLE = "[MASK]"  # in every text, whatever the tokenizer calls it
BLANK = re.compile(r"\[[sg]?MASK\]")  # for a few words, a sentence, or all the rest (GLM)

# These put a space between any two words when they decode, so that their spaces say nothing.
SPACED = ("wordpiece", "word", "word-bpe")


@dataclass(frozen=True)
class Hole:
    """What a hole was filled with, and the best choices for it with their probabilities."""

    text: str
    choices: list[tuple[str, float]]  # best first; none where the model wrote a span


@dataclass(frozen=True)
class Filled:
    """A text without holes, and what stands in each."""

    text: str
    holes: list[Hole]


def fill_text(
    model: LanguageModel,
    tokenizer: Tokenizer,
    text: str,
    *,
    top: int = 5,  # choices for each hole, of encoders
    tokens: int = 128,  # for all holes together, of those who write; and so are the next two
    method: Method = GREEDY,
    seed: int = 0,
) -> Filled:
    """Fill every [MASK] of a text: "It was [MASK]." may give "It was good.".

    Who fills blanks also knows [sMASK], for a sentence, and [gMASK], for all the rest.
    """
    text = text if tokenizer.specials.mask is None else text.replace(mark(tokenizer), HOLE)
    if model.decoding == "infilling":
        return with_blanks(model, tokenizer, text, tokens=tokens, method=method, seed=seed)
    if HOLE not in text:
        raise UserError(f"there is nothing to fill: put {HOLE} in the text where a word is missing")
    if model.decoding == "encoder-decoder":
        return with_spans(model, tokenizer, text, tokens=tokens, method=method, seed=seed)
    return with_words(model, tokenizer, text, top=top)


def with_words(model: LanguageModel, tokenizer: Tokenizer, text: str, *, top: int) -> Filled:
    """Put the best token into each hole."""
    specials = tokenizer.specials
    if specials.mask is None:
        raise UserError(
            "this tokenizer has no mask token: fill with the one the model learned with"
        )
    ids = tokenizer.encode(text.replace(HOLE, mark(tokenizer)), specials=False)
    frame = (*ids, specials.sep, specials.cls)  # XLNet's
    if model.decoding != "two-stream":
        frame = (specials.cls, *ids, specials.sep)
    ids = [id for id in frame if id is not None]
    found = fill_masks(model, ids, specials.mask, top=top, banned=unspoken(model, tokenizer))
    at = [place for place, id in enumerate(ids) if id == specials.mask]
    holes = []
    for place, choices in zip(at, found, strict=True):
        # Each choice is spelled as it reads after what stands before it by now.
        words = [(word(tokenizer, ids[:place], [id]), share) for id, share in choices]
        holes.append(Hole(words[0][0], words))
        ids[place] = choices[0][0]
    return close(text, holes)


def with_spans(
    model: LanguageModel,
    tokenizer: Tokenizer,
    text: str,
    *,
    tokens: int,
    method: Method,
    seed: int,
) -> Filled:
    """Let the decoder write into each hole as many tokens as it likes."""
    specials, count = tokenizer.specials, text.count(HOLE)
    if specials.eos is None:
        raise UserError("this tokenizer has no end token: fill with the one the model learned with")
    if count > len(specials.sentinels):
        raise UserError(
            f"the text has {count} holes and the tokenizer {len(specials.sentinels)} sentinels: "
            "fill fewer at a time"
        )
    if written := [id for id in tokenizer.encode(text) if id in specials.sentinels]:
        raise UserError(f"the text holds {tokenizer.token(written[0])}: write {HOLE} for a hole")
    source = [*punched(tokenizer, text), specials.eos]
    spans = fill_spans(
        model,
        source,
        sentinels=specials.sentinels,
        start=specials.pad,
        eos=specials.eos,
        tokens=tokens,
        method=method,
        seed=seed,
        banned=unspoken(model, tokenizer) - {specials.eos, *specials.sentinels},
    )
    holes = []
    for sentinel, span in zip(specials.sentinels[:count], spans, strict=True):
        place = source.index(sentinel)
        holes.append(Hole(word(tokenizer, source[:place], span), []))
        source[place : place + 1] = span
    return close(text, holes)


def with_blanks(
    model: LanguageModel,
    tokenizer: Tokenizer,
    text: str,
    *,
    tokens: int,
    method: Method,
    seed: int,
) -> Filled:
    """Let the model write into each blank as many tokens as it likes."""
    named = BLANK.findall(text)
    if not named:
        raise UserError(f"there is nothing to fill: put {HOLE} in the text where words are missing")
    text = BLANK.sub(HOLE, text)
    if written := [id for id in tokenizer.encode(text) if id in tokenizer.specials.sentinels]:
        raise UserError(f"the text holds {tokenizer.token(written[0])}: write {HOLE} for a hole")
    known = marks(tokenizer.specials)
    masks = dict(zip((HOLE, "[sMASK]", "[gMASK]"), known.masks, strict=True))
    ids = punched(tokenizer, text, [masks[name] for name in named])
    places = [place for place, id in enumerate(ids) if id in known.masks]
    spans = fill_blanks(
        model,
        ids,
        known,
        tokens=tokens,
        method=method,
        seed=seed,
        banned=unspoken(model, tokenizer) - {known.end},
    )
    holes, grown = list[Hole](), 0
    for place, span in zip(places, spans, strict=True):
        place += grown  # the blanks filled by now are longer than their masks
        holes.append(Hole(word(tokenizer, ids[:place], span), []))
        ids[place : place + 1] = span
        grown += len(span) - 1
    return close(text, holes)


def punched(tokenizer: Tokenizer, text: str, masks: Iterable[int] | None = None) -> list[int]:
    """Return the ids of a text with a mark for each hole: a sentinel, unless told otherwise."""
    sentinels = iter(tokenizer.specials.sentinels if masks is None else masks)
    if tokenizer.specials.mask is None:
        before, *others = text.split(HOLE)
        joined = (f"{tokenizer.token(next(sentinels))}{other}" for other in others)
        return tokenizer.encode("".join([before, *joined]), specials=False)
    # By way of the mask token, which may take the space before it along, as a word would.
    ids = tokenizer.encode(text.replace(HOLE, mark(tokenizer)), specials=False)
    return [next(sentinels) if id == tokenizer.specials.mask else id for id in ids]


def close(text: str, holes: Sequence[Hole]) -> Filled:
    """Put words into the holes of a text and leave the rest of it as it is."""
    closed, *others = text.split(HOLE)
    for hole, other in zip(holes, others, strict=True):
        spaced = not closed or closed[-1].isspace()
        closed += hole.text.lstrip() if spaced and not hole.text.isspace() else hole.text
        closed += other
    return Filled(closed, list(holes))


def word(tokenizer: Tokenizer, before: Sequence[int], ids: Sequence[int]) -> str:
    """Return what fills a hole, with a space before it only where the tokens say so."""
    text = spoken(tokenizer, before, ids)
    return text.strip() if tokenizer.kind in SPACED else text


def mark(tokenizer: Tokenizer) -> str:
    """Return what the tokenizer calls its mask."""
    assert tokenizer.specials.mask is not None
    return tokenizer.token(tokenizer.specials.mask)
