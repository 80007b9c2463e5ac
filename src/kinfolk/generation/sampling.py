"""How the next token is chosen from its scores: the best one, or one drawn by chance.

Scores are (rows, vocabulary), and what may not be chosen scores -inf. A draw takes one uniform
number, a function of the seed, the text and the token: who else is in the batch changes nothing.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from kinfolk.errors import UserError
from kinfolk.generation.logits_process import NEG_INF


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """What is left to chance: everything, unless told otherwise."""

    temperature: float = 1.0  # below 1 the likely grow likelier; 0 always takes the best
    top_k: int | None = None  # choose among so many
    top_p: float | None = None  # choose among the fewest that hold this share of the probability
    min_p: float | None = None  # choose among those at least this share as likely as the best
    typical_p: float | None = None  # choose among those of usual surprise that hold this share

    def __post_init__(self) -> None:
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise UserError(
                f"temperature {self.temperature} is not a number from 0 up: "
                "0 takes the best token, 1 draws as the model says"
            )
        if self.top_k is not None and self.top_k < 1:
            raise UserError(f"top_k {self.top_k} leaves no token to choose: use 1 or more")
        for name in ("top_p", "min_p", "typical_p"):
            share = getattr(self, name)
            if share is not None and not 0 < share <= 1:
                raise UserError(f"{name} {share} is no share: use more than 0 and at most 1")


GREEDY = Sampling(temperature=0.0)


def sample_ids(logits: Tensor, sampling: Sampling, chance: Tensor) -> Tensor:
    """Choose an id in each row, by a uniform number for each: (rows,)."""
    if sampling.temperature == 0:
        return logits.max(-1).indices  # on a CPU quicker than argmax
    logits = apply_filters(logits, sampling)
    # In double precision the last sum is above every chance, so no token of probability 0 is hit.
    sums = logits.double().softmax(-1).cumsum(-1)
    aim = chance.double()[:, None] * sums[:, -1:]
    return torch.searchsorted(sums, aim, right=True)[:, 0].clamp(max=logits.shape[1] - 1)


def apply_filters(logits: Tensor, sampling: Sampling) -> Tensor:
    """Temper the scores and leave out what is not to be drawn, one filter after the other."""
    logits = apply_temperature(logits, sampling.temperature)
    if sampling.top_k is not None:
        logits = top_k(logits, sampling.top_k)
    # A share of 1 is all there is, though the sum of many small numbers is not 1 to the last bit.
    if sampling.top_p is not None and sampling.top_p < 1:
        logits = top_p(logits, sampling.top_p)
    if sampling.min_p is not None:
        logits = min_p(logits, sampling.min_p)
    if sampling.typical_p is not None and sampling.typical_p < 1:
        logits = typical(logits, sampling.typical_p)
    return logits


def apply_temperature(logits: Tensor, temperature: float) -> Tensor:
    """Divide by a temperature above 0, from the best down, so that a tiny one overflows nothing."""
    return (logits - logits.amax(-1, keepdim=True)) / temperature


def top_k(logits: Tensor, k: int) -> Tensor:
    """Leave out all but the best k (Fan et al. 2018); what ties with the last of them stays."""
    least = logits.topk(min(k, logits.shape[1])).values[:, -1:]
    return logits.masked_fill(logits < least, NEG_INF)


def top_p(logits: Tensor, p: float) -> Tensor:
    """Leave out all but the fewest that together reach probability p (Holtzman et al. 2019)."""
    ordered, order = logits.sort(dim=-1, descending=True, stable=True)
    share = ordered.softmax(-1)
    better = share.cumsum(-1) - share  # how much stands before each: 0 before the best
    ordered = ordered.masked_fill(better >= p, NEG_INF)
    return torch.empty_like(logits).scatter(1, order, ordered)


def min_p(logits: Tensor, p: float) -> Tensor:
    """Leave out what is less than p times as likely as the best (Nguyen et al. 2024)."""
    return logits.masked_fill(logits < logits.amax(-1, keepdim=True) + math.log(p), NEG_INF)


def typical(logits: Tensor, p: float) -> Tensor:
    """Leave out all but those of about the expected surprise that reach p (Meister et al. 2022)."""
    logp = logits.log_softmax(-1)
    share = logp.exp()
    expected = -torch.where(share > 0, share * logp, 0.0).sum(-1, keepdim=True)
    far, order = (expected + logp).abs().sort(dim=-1, stable=True)
    share = share.gather(1, order)
    nearer = share.cumsum(-1) - share
    kept = (nearer < p) & far.isfinite()
    return logits.masked_fill(~torch.empty_like(kept).scatter(1, order, kept), NEG_INF)
