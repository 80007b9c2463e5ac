"""Contrastive search (Su et al., 2022): the likely token that is least like what was said.

Each of the likeliest tokens is tried out, and judged by its probability less the likeness of its
hidden state to that of any token before. So a text does not fall back into itself.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from kinfolk.errors import UserError
from kinfolk.generation.decode import Decoder, GenerationRequest, TokenStep
from kinfolk.generation.logits_process import NEG_INF


@dataclass(frozen=True, kw_only=True)
class ContrastiveSearch:
    """How many tokens are tried, and how much likeness costs."""

    top_k: int = 4
    penalty_alpha: float = 0.6  # the paper's alpha: 0 is greedy, 1 cares for likeness alone

    def __post_init__(self) -> None:
        if self.top_k < 1:
            raise UserError(f"top_k {self.top_k} leaves no token to choose: use 1 or more")
        if not 0 <= self.penalty_alpha <= 1:
            raise UserError(f"a penalty of {self.penalty_alpha} is no share: use 0 to 1")


def contrastive_search(
    writer: Decoder, request: GenerationRequest, method: ContrastiveSearch
) -> Iterator[list[TokenStep]]:
    """Go on with every prompt, a token for each live text at a time."""
    check(writer, request)
    live = [(prompt, 0) for prompt in range(len(request.prompts))]
    text = writer.inputs.attention_mask.document_ids == 0
    logits = writer.next_logits()
    assert writer.hidden is not None
    if not writer.hidden.is_floating_point():
        raise UserError("this model has no states that contrastive search could compare: sample")
    past = F.normalize(writer.hidden.float(), dim=-1).masked_fill(~text[:, :, None], NEG_INF)
    tried = min(method.top_k, logits.shape[1])
    for token in range(max(writer.max_new_tokens)):
        ruled = writer.logits_processor(logits, writer.said)
        shares, ids = ruled.softmax(-1).topk(tried)  # (texts, tried)
        before = logits.log_softmax(-1).gather(1, ids)
        writer.repeat_rows(logits, tried)
        writer.append(ids.flatten())
        logits = writer.next_logits()
        new = F.normalize(writer.hidden[:, -1].float(), dim=-1).view(*ids.shape, -1)
        worth = (1 - method.penalty_alpha) * shares - method.penalty_alpha * max_cosine_similarity(
            new, past
        )
        best = worth.masked_fill(shares == 0, NEG_INF).argmax(1)
        texts = torch.arange(len(live), device=best.device)
        chosen = texts * tried + best
        writer.select_rows(chosen.tolist())
        logits, new = logits[chosen], new[texts, best]
        steps = writer.to_steps(live, ids[texts, best], before[texts, best], request)
        yield steps
        past = torch.cat([past, new[:, None]], dim=1)
        kept = writer.active_rows(live, steps, token + 1)
        if not kept:
            return
        if len(kept) < len(live):
            writer.select_rows(kept)
            logits, past, live = logits[kept], past[kept], [live[row] for row in kept]


def max_cosine_similarity(new: Tensor, past: Tensor) -> Tensor:
    """Return the cosine of each new state with the past one most like it: (texts, tried)."""
    seen = past.isfinite().all(2)  # not the padding
    cosines = new @ past.masked_fill(~seen[:, :, None], 0.0).transpose(1, 2)
    return cosines.masked_fill(~seen[:, None], NEG_INF).amax(2)


def check(writer: Decoder, request: GenerationRequest) -> None:
    """Complain about a search that cannot be."""
    if request.num_return_sequences > 1:
        raise UserError(
            f"contrastive search finds one text, not {request.num_return_sequences}: "
            "sample, or use beams"
        )
    if writer.inputs.target_positions is not None:
        raise UserError("this model's states are guesses, which contrastive search cannot compare")
