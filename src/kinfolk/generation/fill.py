"""Fill [MASK] in a text: tokens of encoders and n-grams, sentinels of T5, blanks of GLM."""

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from kinfolk.attention_mask import AttentionMask
from kinfolk.batch import Inputs
from kinfolk.errors import UserError
from kinfolk.generation.config import GenerationConfig
from kinfolk.generation.decode import GenerationRequest
from kinfolk.generation.generate import generate_sequences
from kinfolk.generation.logits_process import Constraints, LogitsProcessor, suppress
from kinfolk.generation.prompts import (
    check_prompts,
    decode_after,
    device_of,
    eval_mode,
    non_text_ids,
    source_inputs,
    tokens_left,
)
from kinfolk.nn.language_model import LanguageModel
from kinfolk.text.tokenizer import GLMTokens, Tokenizer, glm_tokens

MASK = "[MASK]"  # in every text, whatever the tokenizer calls it
MASK_PATTERN = re.compile(r"\[[sg]?MASK\]")  # GLM: a short span, a sentence, the rest of the text
NO_MASK = f"the text contains no {MASK}: put it where words are missing"
FILL_CONFIG = GenerationConfig(do_sample=False, max_new_tokens=128)  # tokens of all spans together

# Their decoder puts a space between any two words, so that a leading space is redundant.
ALWAYS_SPACED_KINDS = ("wordpiece", "word", "word-bpe")


@dataclass(frozen=True)
class MaskFill:
    """The fill of a mask, and the best candidates with their probabilities."""

    text: str
    candidates: list[tuple[str, float]]  # best first; none where the model generates a span


@dataclass(frozen=True)
class FillResult:
    """The text with its masks filled, and the fill of each."""

    text: str
    masks: list[MaskFill]


def fill_text(
    model: LanguageModel,
    tokenizer: Tokenizer,
    text: str,
    config: GenerationConfig = FILL_CONFIG,
    *,
    candidates: int = 5,
) -> FillResult:
    """Fill every [MASK] of a text: "It was [MASK]." may give "It was good.".

    Encoders and n-gram models predict one token for each mask and return candidates; the others
    generate spans by the config. GLM also has [sMASK] for a sentence and [gMASK] for the rest of
    the text.
    """
    if tokenizer.special_tokens.mask is not None:
        text = text.replace(mask_token(tokenizer), MASK)
    if model.decoding == "infilling":
        return _fill_blanks(model, tokenizer, text, config)
    if MASK not in text:
        raise UserError(NO_MASK)
    if model.decoding == "encoder-decoder":
        return _fill_spans(model, tokenizer, text, config)
    if model.decoding == "causal" and model.can_fill:
        return _fill_completions(model, tokenizer, text, candidates)
    return _fill_tokens(model, tokenizer, text, candidates)


@torch.inference_mode()
def fill_masks(
    model: LanguageModel,
    ids: Sequence[int],
    mask: int,
    *,
    candidates: int = 5,
    suppress_ids: Collection[int] = (),
) -> list[list[tuple[int, float]]]:
    """Return the best ids for each mask, with the probabilities the model gives them."""
    if mask not in ids:
        raise UserError(f"the text contains no mask (id {mask})")
    if candidates < 1:
        raise UserError(f"candidates={candidates}: it must be at least 1")
    model.check_lm_head()
    check_prompts(model, [ids], "text")
    if model.architecture != "encoder":  # a decoder does not attend to the tokens after a mask
        raise UserError("decoder models cannot fill masks: use generate")
    inputs = source_inputs([ids]).to(device_of(model))
    with eval_mode(model):
        is_mask = inputs.input_ids == mask
        if model.decoding == "two-stream":  # XLNet: masks are hidden, and each is predicted
            inputs = query_inputs(inputs, is_mask)
        output = model.forward_lm(inputs)
        hidden = output.hidden[is_mask] if inputs.target_positions is None else output.hidden[0]
        logits = model.lm_logits(hidden).logits().float()
    vocab_size = logits.shape[1]
    suppressed = LogitsProcessor(
        FILL_CONFIG, Constraints(suppress_ids=suppress_ids), (), vocab_size, logits.device
    ).suppressed
    probs = logits.softmax(-1)
    best = suppress(logits, suppressed).topk(min(candidates, vocab_size - len(suppressed))).indices
    rows = zip(best.tolist(), probs.gather(1, best).tolist(), strict=True)
    return [list(zip(*row, strict=True)) for row in rows]


def query_inputs(inputs: Inputs, is_mask: Tensor) -> Inputs:
    """Predict the masks of one text, each from all unmasked tokens."""
    order = is_mask.to(inputs.attention_mask.key_order.dtype)
    token_type_ids = torch.zeros_like(inputs.input_ids)
    token_type_ids[:, -1] = 2  # XLNet's type of the closing [CLS]
    return replace(
        inputs,
        attention_mask=AttentionMask(inputs.attention_mask.document_ids, order, order),
        token_type_ids=token_type_ids,
        target_positions=is_mask.nonzero()[None, :, 1],
    )


def fill_sentinels(
    model: LanguageModel,
    source: Sequence[int],
    *,
    sentinels: Sequence[int],  # all of the tokenizer's, in order
    start: int,  # the first id of the decoder
    eos: int,
    config: GenerationConfig = FILL_CONFIG,
    suppress_ids: Collection[int] = (),
) -> list[list[int]]:
    """Return the span generated for each sentinel of the source; empty where one is skipped."""
    present = [id for id in sentinels if id in source]
    if not present:
        raise UserError("the source contains no sentinel")
    # As in T5's own targets, the sentinel after the last may end the output.
    after = sentinels[sentinels.index(present[-1]) + 1 :][:1]
    request = GenerationRequest(
        prompts=[[start]],
        config=config,
        eos_ids={eos, *after},
        encoder_ids=[source],
        constraints=Constraints(suppress_ids=suppress_ids),
    )
    (output,) = generate_sequences(model, request)
    return split_at_sentinels(output.ids, present, sentinels)


def fill_blanks(
    model: LanguageModel,
    ids: Sequence[int],
    glm: GLMTokens,
    *,
    config: GenerationConfig = FILL_CONFIG,
    suppress_ids: Collection[int] = (),
) -> list[list[int]]:
    """Return the span generated for each mask, in order; later spans attend to earlier ones."""
    positions = [position for position, id in enumerate(ids) if id in glm.masks]
    if not positions:
        raise UserError("the text contains no mask")
    check_prompts(model, [ids], "text")
    left = tokens_left(model, len(ids) + len(positions), config.max_new_tokens)
    prompt, blanks, spans = list(ids), list[tuple[int, int]](), list[list[int]]()
    for index, position in enumerate(positions):
        limit = left // (len(positions) - index)
        if limit < 1:
            raise UserError(
                f"{left} tokens are too few for {len(positions)} blanks: raise max_new_tokens"
            )
        request = GenerationRequest(
            prompts=[[*prompt, glm.start]],
            config=config,
            max_new_tokens=[limit],
            eos_ids={glm.end},
            prompt_indices=[index],
            blanks=[[*blanks, (position, 1)]],
            constraints=Constraints(suppress_ids=suppress_ids),
        )
        (output,) = generate_sequences(model, request)
        spans.append(output.ids)
        prompt += [glm.start, *output.ids]
        blanks.append((position, len(output.ids) + 1))
        left -= len(output.ids)
    return spans


def split_at_sentinels(
    ids: Sequence[int], present: Sequence[int], sentinels: Collection[int]
) -> list[list[int]]:
    """Split an output at the sentinels of its source; one out of order only ends a span."""
    spans: list[list[int]] = [[] for _ in present]
    reached, span = -1, None
    for id in ids:
        if id in sentinels:
            index = present.index(id) if id in present else -1
            span = index if index > reached else None
            reached = max(reached, index)
        elif span is not None:
            spans[span].append(id)
    return spans


def _fill_tokens(
    model: LanguageModel, tokenizer: Tokenizer, text: str, candidates: int
) -> FillResult:
    """Put the best token into each mask."""
    special_tokens = tokenizer.special_tokens
    if special_tokens.mask is None:
        raise UserError("the tokenizer has no mask token: use the one the model was trained with")
    ids = tokenizer.encode(text.replace(MASK, mask_token(tokenizer)), add_special_tokens=False)
    template = (*ids, special_tokens.sep, special_tokens.cls)  # XLNet's
    if model.decoding != "two-stream":
        template = (special_tokens.cls, *ids, special_tokens.sep)
    ids = [id for id in template if id is not None]
    suppress_ids = non_text_ids(model, tokenizer)
    best = fill_masks(
        model, ids, special_tokens.mask, candidates=candidates, suppress_ids=suppress_ids
    )
    positions = [position for position, id in enumerate(ids) if id == special_tokens.mask]
    fills = []
    for position, choices in zip(positions, best, strict=True):
        # Each candidate is decoded after the tokens before it, with earlier masks filled.
        words = [(_decode_fill(tokenizer, ids[:position], [id]), prob) for id, prob in choices]
        fills.append(MaskFill(words[0][0], words))
        ids[position] = choices[0][0]
    return _insert_fills(text, fills)


@torch.inference_mode()
def _fill_completions(
    model: LanguageModel, tokenizer: Tokenizer, text: str, candidates: int
) -> FillResult:
    """Put the token that makes the text most probable into each mask, from the left."""
    if candidates < 1:
        raise UserError(f"candidates={candidates}: it must be at least 1")
    special_tokens = tokenizer.special_tokens
    start = special_tokens.eos if special_tokens.bos is None else special_tokens.bos
    ids, positions = [] if start is None else [start], list[int]()
    parts = text.split(MASK)
    for number, part in enumerate(parts):
        if number + 1 < len(parts) and tokenizer.kind == "bpe":
            part = part.rstrip(" ")  # tokens of byte-level BPE have the space before them
        ids += tokenizer.encode(part, add_special_tokens=False)
        if number + 1 < len(parts):
            positions.append(len(ids))
            ids.append(special_tokens.pad)
    banned = torch.tensor(sorted(non_text_ids(model, tokenizer)), dtype=torch.int64)
    fills = []
    for position, stop in zip(positions, [*positions[1:], len(ids)], strict=True):
        scores = model.fill_logits(torch.tensor(ids[:stop]), position).index_fill(
            0, banned, -torch.inf
        )
        best = scores.log_softmax(-1).topk(min(candidates, len(scores) - len(banned)))
        pairs = zip(best.indices.tolist(), best.values.exp().tolist(), strict=True)
        words = [(_decode_fill(tokenizer, ids[:position], [id]), prob) for id, prob in pairs]
        fills.append(MaskFill(words[0][0], words))
        ids[position] = int(best.indices[0])
    return _insert_fills(text, fills)


def _fill_spans(
    model: LanguageModel, tokenizer: Tokenizer, text: str, config: GenerationConfig
) -> FillResult:
    """Put a span generated by an encoder-decoder into each mask."""
    special_tokens, count = tokenizer.special_tokens, text.count(MASK)
    if special_tokens.eos is None:
        raise UserError(
            "the tokenizer has no end-of-text token: use the one the model was trained with"
        )
    if count > len(special_tokens.sentinels):
        raise UserError(
            f"the text has {count} masks, and the tokenizer has {len(special_tokens.sentinels)} "
            "sentinel tokens: fill fewer at a time"
        )
    _refuse_sentinels(tokenizer, text)
    source = [*_encode_with_masks(tokenizer, text), special_tokens.eos]
    spans = fill_sentinels(
        model,
        source,
        sentinels=special_tokens.sentinels,
        start=special_tokens.pad,
        eos=special_tokens.eos,
        config=config,
        suppress_ids=non_text_ids(model, tokenizer)
        - {special_tokens.eos, *special_tokens.sentinels},
    )
    positions = [source.index(sentinel) for sentinel in special_tokens.sentinels[:count]]
    return _fill_positions(tokenizer, text, source, positions, spans)


def _fill_blanks(
    model: LanguageModel, tokenizer: Tokenizer, text: str, config: GenerationConfig
) -> FillResult:
    """Put a span generated by GLM into each mask."""
    names = MASK_PATTERN.findall(text)
    if not names:
        raise UserError(NO_MASK)
    text = MASK_PATTERN.sub(MASK, text)
    _refuse_sentinels(tokenizer, text)
    glm = glm_tokens(tokenizer.special_tokens)
    masks = dict(zip((MASK, "[sMASK]", "[gMASK]"), glm.masks, strict=True))
    ids = _encode_with_masks(tokenizer, text, [masks[name] for name in names])
    suppress_ids = non_text_ids(model, tokenizer) - {glm.end}
    spans = fill_blanks(model, ids, glm, config=config, suppress_ids=suppress_ids)
    positions = [position for position, id in enumerate(ids) if id in glm.masks]
    return _fill_positions(tokenizer, text, ids, positions, spans)


def _refuse_sentinels(tokenizer: Tokenizer, text: str) -> None:
    """Refuse a text that contains a sentinel token."""
    if sentinels := set(tokenizer.encode(text)) & set(tokenizer.special_tokens.sentinels):
        name = tokenizer.id_to_token(min(sentinels))
        raise UserError(f"the text contains the special token {name}: use {MASK}")


def _fill_positions(
    tokenizer: Tokenizer,
    text: str,
    ids: list[int],
    positions: Sequence[int],
    spans: Sequence[Sequence[int]],
) -> FillResult:
    """Decode each span after the tokens before it, with earlier masks filled."""
    fills, shift = list[MaskFill](), 0
    for position, span in zip(positions, spans, strict=True):
        position += shift
        fills.append(MaskFill(_decode_fill(tokenizer, ids[:position], span), []))
        ids[position : position + 1] = span
        shift += len(span) - 1
    return _insert_fills(text, fills)


def _encode_with_masks(
    tokenizer: Tokenizer, text: str, masks: Iterable[int] | None = None
) -> list[int]:
    """Return the ids of a text with an id for each mask: a sentinel, unless others are given."""
    replacements = iter(tokenizer.special_tokens.sentinels if masks is None else masks)
    if tokenizer.special_tokens.mask is None:
        before, *others = text.split(MASK)
        joined = (f"{tokenizer.id_to_token(next(replacements))}{other}" for other in others)
        return tokenizer.encode("".join([before, *joined]), add_special_tokens=False)
    # By way of the mask token, which may include the space before it, as a word would.
    ids = tokenizer.encode(text.replace(MASK, mask_token(tokenizer)), add_special_tokens=False)
    return [next(replacements) if id == tokenizer.special_tokens.mask else id for id in ids]


def _insert_fills(text: str, fills: Sequence[MaskFill]) -> FillResult:
    """Put the fills into the masks of a text and leave the rest of it as it is."""
    filled, *others = text.split(MASK)
    for fill, other in zip(fills, others, strict=True):
        spaced = not filled or filled[-1].isspace()
        filled += fill.text.lstrip() if spaced and not fill.text.isspace() else fill.text
        filled += other
    return FillResult(filled, list(fills))


def _decode_fill(tokenizer: Tokenizer, before: Sequence[int], ids: Sequence[int]) -> str:
    """Return the text of a fill, with a space before it only where its tokens have one."""
    text = decode_after(tokenizer, before, ids)
    return text.strip() if tokenizer.kind in ALWAYS_SPACED_KINDS else text


def mask_token(tokenizer: Tokenizer) -> str:
    """Return the tokenizer's name of its mask."""
    assert tokenizer.special_tokens.mask is not None
    return tokenizer.id_to_token(tokenizer.special_tokens.mask)
