"""Fill the holes of a text, in ids: a token or a span for each mask, or one for each sentinel.

encoders            [C]  it  was  [M]   .   [S]      the best tokens at [M]
encoder-decoders    it   was  <x>  .   </s>          <p>  <x>  very  good  <y>
infillers           it   was  [M]  .                 <s>  very  good  </s>
"""

from collections.abc import Collection, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from kinfolk.attention_mask import AttentionMask
from kinfolk.batch import Inputs
from kinfolk.errors import UserError
from kinfolk.generation.decoding import DecodingMethod, generate
from kinfolk.generation.layout import (
    check_prompts,
    device_of,
    eval_mode,
    source_inputs,
    tokens_left,
)
from kinfolk.generation.rules import Constraints, LogitsProcessor, suppress
from kinfolk.generation.sampling import GREEDY
from kinfolk.generation.writer import GenerationRequest
from kinfolk.nn.language_model import LanguageModel
from kinfolk.text.marks import GLMTokens


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
