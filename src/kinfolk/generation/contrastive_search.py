"""Contrastive search (Su et al. 2022): a likely token whose hidden state differs from the others.

Each of the k most likely tokens is tried. Its score is its probability minus the largest cosine
similarity of its hidden state to that of any token before, weighted by `penalty_alpha`.
"""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from kinfolk.errors import UserError
from kinfolk.generation.decode import Decoder, TokenStep
from kinfolk.generation.logits_process import NEG_INF

TOP_K = 4  # unless top_k is set


def contrastive_search(decoder: Decoder) -> Iterator[list[TokenStep]]:
    """Yield the next token of every unfinished output, step by step."""
    config = decoder.config
    assert config.penalty_alpha is not None
    alpha = config.penalty_alpha
    rows = [(prompt, 0) for prompt in range(len(decoder.request.prompts))]
    is_text = decoder.inputs.attention_mask.document_ids == 0
    two_stream = decoder.inputs.target_positions is not None
    logits = decoder.next_logits()
    assert decoder.hidden is not None
    if two_stream or not decoder.hidden.is_floating_point():
        raise UserError("contrastive search is not supported by this model: sample instead")
    past_hidden = F.normalize(decoder.hidden.float(), dim=-1)
    past_hidden = past_hidden.masked_fill(~is_text[:, :, None], NEG_INF)
    top_k = min(TOP_K if config.top_k is None else config.top_k, logits.shape[1])
    for token in range(max(decoder.max_new_tokens)):
        processed = decoder.logits_processor(logits, decoder.history)
        probs, ids = processed.softmax(-1).topk(top_k)  # (rows, top_k)
        logprobs = logits.log_softmax(-1).gather(1, ids)
        decoder.repeat_rows(logits, top_k)
        decoder.append(ids.flatten())
        logits = decoder.next_logits()
        hidden = F.normalize(decoder.hidden[:, -1].float(), dim=-1).view(*ids.shape, -1)
        score = (1 - alpha) * probs - alpha * max_cosine_similarity(hidden, past_hidden)
        best = score.masked_fill(probs == 0, NEG_INF).argmax(1)
        index = torch.arange(len(rows), device=best.device)
        chosen = index * top_k + best
        decoder.select_rows(chosen.tolist())
        logits, hidden = logits[chosen], hidden[index, best]
        steps = decoder.to_steps(rows, ids[index, best].tolist(), logprobs[index, best].tolist())
        yield steps
        past_hidden = torch.cat([past_hidden, hidden[:, None]], dim=1)
        active = decoder.active_rows(rows, steps, token + 1)
        if not active:
            return
        if len(active) < len(rows):
            decoder.select_rows(active)
            logits, past_hidden = logits[active], past_hidden[active]
            rows = [rows[row] for row in active]


def max_cosine_similarity(hidden: Tensor, past_hidden: Tensor) -> Tensor:
    """Return the largest cosine of each new state with a past one: (rows, top_k)."""
    is_text = past_hidden.isfinite().all(2)  # not the padding
    past = past_hidden.masked_fill(~is_text[:, :, None], 0.0)
    cosines = hidden @ past.transpose(1, 2)
    return cosines.masked_fill(~is_text[:, None], NEG_INF).amax(2)
