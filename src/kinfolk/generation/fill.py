"""Fill blanks in a text: masked tokens, T5's sentinels, GLM's blanks."""

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from kinfolk.attention_mask import AttentionMask
from kinfolk.batch import Inputs
from kinfolk.errors import UserError
from kinfolk.generation.decode import GenerationRequest
from kinfolk.generation.inputs import (
    check_prompts,
    device_of,
    eval_mode,
    source_inputs,
    tokens_left,
)
from kinfolk.generation.logits_process import Constraints, LogitsProcessor, suppress
from kinfolk.generation.methods import DecodingMethod, generate
from kinfolk.generation.prompts import decode_after, non_text_ids
from kinfolk.generation.sampling import GREEDY
from kinfolk.nn.language_model import LanguageModel
from kinfolk.text.tokenizer import GLMTokens, Tokenizer, glm_tokens


@torch.inference_mode()
def fill_masks(
    model: LanguageModel,
    ids: Sequence[int],
    mask: int,
    *,
    top: int = 5,
    banned: Collection[int] = (),
) -> list[list[tuple[int, float]]]:
    """Return the best ids at each mask, with the probabilities the model gives them."""
    if mask not in ids:
        raise UserError(f"there is nothing to fill: the text holds no mask (id {mask})")
    if top < 1:
        raise UserError(f"top {top} leaves no token to choose: use 1 or more")
    check_prompts(model, [ids], "text")
    if model.architecture != "encoder":  # it has learned to see only the past of a token
        raise UserError("this model writes from left to right: it can go on with a text, not fill")
    inputs = source_inputs([ids]).to(device_of(model))
    with eval_mode(model):
        hole = inputs.input_ids == mask
        if model.decoding == "two-stream":  # nobody sees a hole, and each is asked for
            inputs = _query_inputs(inputs, hole)
        output = model.forward_lm(inputs)
        hidden = output.hidden[hole] if inputs.target_positions is None else output.hidden[0]
        logits = model.lm_logits(hidden).logits().float()
    unsaid = LogitsProcessor(
        Constraints(suppress_ids=banned), (), logits.shape[1], logits.device
    ).banned
    shares = logits.softmax(-1)
    best = suppress(logits, unsaid).topk(min(top, logits.shape[1] - len(unsaid))).indices
    found = zip(best.tolist(), shares.gather(1, best).tolist(), strict=True)
    return [list(zip(choices, share, strict=True)) for choices, share in found]


def _query_inputs(inputs: Inputs, hole: Tensor) -> Inputs:
    """Ask for the holes of one text, each from all that is no hole."""
    time = hole.to(inputs.attention_mask.key_order.dtype)
    segments = torch.zeros_like(inputs.input_ids)
    segments[:, -1] = 2  # the closing [CLS] is of neither text
    return replace(
        inputs,
        attention_mask=AttentionMask(inputs.attention_mask.document_ids, time, time),
        token_type_ids=segments,
        target_positions=hole.nonzero()[None, :, 1],
    )


def fill_sentinels(
    model: LanguageModel,
    source: Sequence[int],
    *,
    sentinels: Sequence[int],  # all there are, in their order
    start: int,  # what the decoder starts with
    eos: int,
    tokens: int = 128,  # for all holes together
    method: DecodingMethod = GREEDY,
    seed: int = 0,
    banned: Collection[int] = (),
) -> list[list[int]]:
    """Return what the model writes for each sentinel in the source; nothing where it skips one."""
    holes = [id for id in sentinels if id in source]
    if not holes:
        raise UserError("there is nothing to fill: the source holds no sentinel")
    # As T5's own targets do, a model may close with the sentinel after the last hole.
    after = sentinels[sentinels.index(holes[-1]) + 1 :][:1]
    request = GenerationRequest(
        prompts=[[start]],
        max_new_tokens=tokens,
        eos_ids={eos, *after},
        seed=seed,
        encoder_ids=[source],
        constraints=Constraints(suppress_ids=banned),
    )
    (written,) = generate(model, request, method)
    return split_at_sentinels(written.ids, holes, sentinels)


def fill_blanks(
    model: LanguageModel,
    ids: Sequence[int],
    marks: GLMTokens,
    *,
    tokens: int = 128,  # for all blanks together
    method: DecodingMethod = GREEDY,
    seed: int = 0,
    banned: Collection[int] = (),
) -> list[list[int]]:
    """Return what the model writes for each mask, one after the other, seeing those before."""
    indices = [place for place, id in enumerate(ids) if id in marks.masks]
    if not indices:
        raise UserError("there is nothing to fill: the text holds no mask")
    check_prompts(model, [ids], "text")
    left = tokens_left(model, len(ids) + len(indices), tokens, None)
    prompt, blanks, spans = list(ids), list[tuple[int, int]](), list[list[int]]()
    for number, place in enumerate(indices):
        share = left // (len(indices) - number)
        if share < 1:
            raise UserError(f"{left} tokens are too few for {len(indices)} blanks: allow for more")
        request = GenerationRequest(
            prompts=[[*prompt, marks.start]],
            max_new_tokens=share,
            eos_ids={marks.end},
            seed=seed,
            first=number,
            blanks=[[*blanks, (place, 1)]],
            constraints=Constraints(suppress_ids=banned),
        )
        (written,) = generate(model, request, method)
        spans.append(written.ids)
        prompt += [marks.start, *written.ids]
        blanks.append((place, len(written.ids) + 1))
        left -= len(written.ids)
    return spans


def split_at_sentinels(
    ids: Sequence[int], holes: Sequence[int], sentinels: Collection[int]
) -> list[list[int]]:
    """Split what was written at the holes' sentinels; one that is out of order ends a hole."""
    parts: list[list[int]] = [[] for _ in holes]
    reached, hole = -1, None
    for id in ids:
        if id in sentinels:
            number = holes.index(id) if id in holes else -1
            hole = number if number > reached else None
            reached = max(reached, number)
        elif hole is not None:
            parts[hole].append(id)
    return parts


MASK = "[MASK]"  # in every text, whatever the tokenizer calls it
MASK_PATTERN = re.compile(r"\[[sg]?MASK\]")  # for a few words, a sentence, or all the rest (GLM)

# These put a space between any two words when they decode, so that their spaces say nothing.
ALWAYS_SPACED_KINDS = ("wordpiece", "word", "word-bpe")


@dataclass(frozen=True)
class MaskFill:
    """What a hole was filled with, and the best choices for it with their probabilities."""

    text: str
    candidates: list[tuple[str, float]]  # best first; none where the model wrote a span


@dataclass(frozen=True)
class FillResult:
    """A text without holes, and what stands in each."""

    text: str
    masks: list[MaskFill]


def fill(
    model: LanguageModel,
    tokenizer: Tokenizer,
    text: str,
    *,
    top: int = 5,  # choices for each hole, of encoders
    tokens: int = 128,  # for all holes together, of those who write; and so are the next two
    method: DecodingMethod = GREEDY,
    seed: int = 0,
) -> FillResult:
    """Fill every [MASK] of a text: "It was [MASK]." may give "It was good.".

    Who fills blanks also knows [sMASK], for a sentence, and [gMASK], for all the rest.
    """
    text = (
        text if tokenizer.special_tokens.mask is None else text.replace(mask_token(tokenizer), MASK)
    )
    if model.decoding == "infilling":
        return _fill_blanks(model, tokenizer, text, tokens=tokens, method=method, seed=seed)
    if MASK not in text:
        raise UserError(f"there is nothing to fill: put {MASK} in the text where a word is missing")
    if model.decoding == "encoder-decoder":
        return _fill_spans(model, tokenizer, text, tokens=tokens, method=method, seed=seed)
    return _fill_tokens(model, tokenizer, text, top=top)


def _fill_tokens(model: LanguageModel, tokenizer: Tokenizer, text: str, *, top: int) -> FillResult:
    """Put the best token into each hole."""
    special_tokens = tokenizer.special_tokens
    if special_tokens.mask is None:
        raise UserError(
            "this tokenizer has no mask token: fill with the one the model learned with"
        )
    ids = tokenizer.encode(text.replace(MASK, mask_token(tokenizer)), add_special_tokens=False)
    frame = (*ids, special_tokens.sep, special_tokens.cls)  # XLNet's
    if model.decoding != "two-stream":
        frame = (special_tokens.cls, *ids, special_tokens.sep)
    ids = [id for id in frame if id is not None]
    found = fill_masks(
        model, ids, special_tokens.mask, top=top, banned=non_text_ids(model, tokenizer)
    )
    at = [place for place, id in enumerate(ids) if id == special_tokens.mask]
    holes = []
    for place, choices in zip(at, found, strict=True):
        # Each choice is spelled as it reads after what stands before it by now.
        words = [(_decode_fill(tokenizer, ids[:place], [id]), share) for id, share in choices]
        holes.append(MaskFill(words[0][0], words))
        ids[place] = choices[0][0]
    return _insert_fills(text, holes)


def _fill_spans(
    model: LanguageModel,
    tokenizer: Tokenizer,
    text: str,
    *,
    tokens: int,
    method: DecodingMethod,
    seed: int,
) -> FillResult:
    """Let the decoder write into each hole as many tokens as it likes."""
    special_tokens, count = tokenizer.special_tokens, text.count(MASK)
    if special_tokens.eos is None:
        raise UserError("this tokenizer has no end token: fill with the one the model learned with")
    if count > len(special_tokens.sentinels):
        raise UserError(
            f"the text has {count} holes and the tokenizer {len(special_tokens.sentinels)} "
            "sentinels: "
            "fill fewer at a time"
        )
    if written := [id for id in tokenizer.encode(text) if id in special_tokens.sentinels]:
        raise UserError(
            f"the text holds {tokenizer.id_to_token(written[0])}: write {MASK} for a hole"
        )
    source = [*_encode_with_masks(tokenizer, text), special_tokens.eos]
    spans = fill_sentinels(
        model,
        source,
        sentinels=special_tokens.sentinels,
        start=special_tokens.pad,
        eos=special_tokens.eos,
        tokens=tokens,
        method=method,
        seed=seed,
        banned=non_text_ids(model, tokenizer) - {special_tokens.eos, *special_tokens.sentinels},
    )
    holes = []
    for sentinel, span in zip(special_tokens.sentinels[:count], spans, strict=True):
        place = source.index(sentinel)
        holes.append(MaskFill(_decode_fill(tokenizer, source[:place], span), []))
        source[place : place + 1] = span
    return _insert_fills(text, holes)


def _fill_blanks(
    model: LanguageModel,
    tokenizer: Tokenizer,
    text: str,
    *,
    tokens: int,
    method: DecodingMethod,
    seed: int,
) -> FillResult:
    """Let the model write into each blank as many tokens as it likes."""
    named = MASK_PATTERN.findall(text)
    if not named:
        raise UserError(f"there is nothing to fill: put {MASK} in the text where words are missing")
    text = MASK_PATTERN.sub(MASK, text)
    if written := [id for id in tokenizer.encode(text) if id in tokenizer.special_tokens.sentinels]:
        raise UserError(
            f"the text holds {tokenizer.id_to_token(written[0])}: write {MASK} for a hole"
        )
    known = glm_tokens(tokenizer.special_tokens)
    masks = dict(zip((MASK, "[sMASK]", "[gMASK]"), known.masks, strict=True))
    ids = _encode_with_masks(tokenizer, text, [masks[name] for name in named])
    indices = [place for place, id in enumerate(ids) if id in known.masks]
    spans = fill_blanks(
        model,
        ids,
        known,
        tokens=tokens,
        method=method,
        seed=seed,
        banned=non_text_ids(model, tokenizer) - {known.end},
    )
    holes, grown = list[MaskFill](), 0
    for place, span in zip(indices, spans, strict=True):
        place += grown  # the blanks filled by now are longer than their masks
        holes.append(MaskFill(_decode_fill(tokenizer, ids[:place], span), []))
        ids[place : place + 1] = span
        grown += len(span) - 1
    return _insert_fills(text, holes)


def _encode_with_masks(
    tokenizer: Tokenizer, text: str, masks: Iterable[int] | None = None
) -> list[int]:
    """Return the ids of a text with a mark for each hole: a sentinel, unless told otherwise."""
    sentinels = iter(tokenizer.special_tokens.sentinels if masks is None else masks)
    if tokenizer.special_tokens.mask is None:
        before, *others = text.split(MASK)
        joined = (f"{tokenizer.id_to_token(next(sentinels))}{other}" for other in others)
        return tokenizer.encode("".join([before, *joined]), add_special_tokens=False)
    # By way of the mask token, which may take the space before it along, as a word would.
    ids = tokenizer.encode(text.replace(MASK, mask_token(tokenizer)), add_special_tokens=False)
    return [next(sentinels) if id == tokenizer.special_tokens.mask else id for id in ids]


def _insert_fills(text: str, holes: Sequence[MaskFill]) -> FillResult:
    """Put words into the holes of a text and leave the rest of it as it is."""
    closed, *others = text.split(MASK)
    for hole, other in zip(holes, others, strict=True):
        spaced = not closed or closed[-1].isspace()
        closed += hole.text.lstrip() if spaced and not hole.text.isspace() else hole.text
        closed += other
    return FillResult(closed, list(holes))


def _decode_fill(tokenizer: Tokenizer, before: Sequence[int], ids: Sequence[int]) -> str:
    """Return what fills a hole, with a space before it only where the tokens say so."""
    text = decode_after(tokenizer, before, ids)
    return text.strip() if tokenizer.kind in ALWAYS_SPACED_KINDS else text


def mask_token(tokenizer: Tokenizer) -> str:
    """Return what the tokenizer calls its mask."""
    assert tokenizer.special_tokens.mask is not None
    return tokenizer.id_to_token(tokenizer.special_tokens.mask)
