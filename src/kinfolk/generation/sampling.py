"""The choice of the next token from its logits: the most likely one, or one drawn at random.

Logits are (rows, vocabulary); a token that is excluded has -inf. A draw uses one uniform number,
which is a function of the seed, the sequence and the token: the rest of the batch has no influence.
"""

import math

import torch
from torch import Tensor

from kinfolk.generation.config import GenerationConfig
from kinfolk.generation.logits_process import NEG_INF


def sample_next_ids(logits: Tensor, config: GenerationConfig, uniform: Tensor) -> Tensor:
    """Choose a token in each row by a uniform number for each: (rows,)."""
    if config.is_greedy:
        return logits.max(-1).indices  # faster than argmax on a CPU
    logits = apply_filters(logits, config)
    # In double precision the last sum exceeds every number drawn: no token of probability 0 is hit.
    sums = logits.double().softmax(-1).cumsum(-1)
    target = uniform.double()[:, None] * sums[:, -1:]
    return torch.searchsorted(sums, target, right=True)[:, 0].clamp(max=logits.shape[1] - 1)


def apply_filters(logits: Tensor, config: GenerationConfig) -> Tensor:
    """Apply temperature, top-k, top-p, min-p and typical sampling, in this order."""
    logits = apply_temperature(logits, config.temperature)
    if config.top_k is not None:
        logits = top_k(logits, config.top_k)
    # A total of 1 keeps everything, though a sum of many small numbers may miss 1 by rounding.
    if config.top_p is not None and config.top_p < 1:
        logits = top_p(logits, config.top_p)
    if config.min_p is not None:
        logits = min_p(logits, config.min_p)
    if config.typical_p is not None and config.typical_p < 1:
        logits = typical(logits, config.typical_p)
    return logits


def apply_temperature(logits: Tensor, temperature: float) -> Tensor:
    """Divide by a temperature above 0; the maximum is subtracted first, so nothing overflows."""
    return (logits - logits.amax(-1, keepdim=True)) / temperature


def top_k(logits: Tensor, k: int) -> Tensor:
    """Keep the k most likely tokens (Fan et al. 2018) and ties with the last of them."""
    least = logits.topk(min(k, logits.shape[1])).values[:, -1:]
    return logits.masked_fill(logits < least, NEG_INF)


def top_p(logits: Tensor, p: float) -> Tensor:
    """Keep the fewest tokens that together reach probability p (Holtzman et al. 2019)."""
    ordered, order = logits.sort(dim=-1, descending=True, stable=True)
    probs = ordered.softmax(-1)
    before = probs.cumsum(-1) - probs  # total probability of more likely tokens
    ordered = ordered.masked_fill(before >= p, NEG_INF)
    return torch.empty_like(logits).scatter(1, order, ordered)


def min_p(logits: Tensor, p: float) -> Tensor:
    """Drop tokens less than p times as likely as the best (Nguyen et al. 2024)."""
    return logits.masked_fill(logits < logits.amax(-1, keepdim=True) + math.log(p), NEG_INF)


def typical(logits: Tensor, p: float) -> Tensor:
    """Keep the tokens of closest to expected surprisal that reach p (Meister et al. 2022)."""
    logprobs = logits.log_softmax(-1)
    probs = logprobs.exp()
    entropy = -torch.where(probs > 0, probs * logprobs, 0.0).sum(-1, keepdim=True)
    distance, order = (entropy + logprobs).abs().sort(dim=-1, stable=True)
    probs = probs.gather(1, order)
    before = probs.cumsum(-1) - probs
    kept = (before < p) & distance.isfinite()
    return logits.masked_fill(~torch.empty_like(kept).scatter(1, order, kept), NEG_INF)
