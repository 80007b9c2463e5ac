"""The coreference head (Lee et al., 2017): scores of spans as mentions and with antecedents.

The score of an antecedent is the sum of both mention scores and of a pair score. The score of no
antecedent is 0.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

HIDDEN_SIZE, FEATURE_SIZE = 150, 20  # Lee et al. 2017, section 7.1
BUCKETS = (1, 2, 3, 4, 5, 8, 16, 32, 64)  # first length or distance of each bucket


@dataclass(frozen=True, eq=False, kw_only=True)
class CandidateSpans:
    """Spans of words that may be mentions, by document, from left to right."""

    first: Tensor  # (spans,): index of the first word among all words
    last: Tensor  # (spans,): index of the last word
    document: Tensor  # (spans,): index of the document
    speaker: Tensor  # (spans,): id of the speaker, -1 where unknown
    max_mentions: Tensor  # (documents,): number of spans that are kept as mentions


@dataclass(frozen=True, eq=False)
class CoreferenceScores:
    """The mentions and their scores with the antecedents before them, the nearest first."""

    mention_indices: Tensor  # (mentions,): their indices among the spans
    antecedents: Tensor  # (mentions, antecedents): indices among the mentions, -1 for none
    scores: Tensor  # (mentions, 1 + antecedents): of no antecedent, 0, then of each
    mention_scores: Tensor  # (spans,): of all spans


class CoreferenceHead(nn.Module):
    """Score spans as mentions, keep the best of each document, and score pairs of them."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.attend = nn.Linear(width, 1, bias=False)
        self.lengths = nn.Embedding(len(BUCKETS), FEATURE_SIZE)
        # Deviation: spans are projected to a small size before they are paired: pairs are many.
        self.span = nn.Linear(3 * width + FEATURE_SIZE, HIDDEN_SIZE)
        self.mention = scorer(HIDDEN_SIZE, dropout)
        self.distances = nn.Embedding(len(BUCKETS), FEATURE_SIZE)
        self.speakers = nn.Embedding(3, FEATURE_SIZE)  # unknown, the same, another
        self.pair = scorer(3 * HIDDEN_SIZE + 2 * FEATURE_SIZE, dropout)
        init_xavier_(self)

    def forward(self, words: Tensor, spans: CandidateSpans, most: int) -> CoreferenceScores:
        """Score spans from hidden states of words, (words, width), each with `most` antecedents."""
        vectors = self.vectors(self.dropout(words.float()), spans.first, spans.last)
        mention_scores = self.mention(vectors)[:, 0].float()
        kept = prune_mentions(mention_scores.detach(), spans.document, spans.max_mentions)
        before = nearest_antecedents(spans.document[kept], most)
        later, step = torch.nonzero(before >= 0, as_tuple=True)
        anaphor, antecedent = kept[later], kept[before[later, step]]
        speakers = compare_speakers(spans.speaker[anaphor], spans.speaker[antecedent])
        # F.embedding and not vectors[anaphor], whose gradient adds up in no fixed order where spans
        # repeat and the CPU has several threads.
        later_spans, earlier_spans = (F.embedding(i, vectors) for i in (anaphor, antecedent))
        pairs = self.pairs(later_spans, earlier_spans, step + 1, speakers)
        scores = mention_scores.new_full((len(kept), 1 + most), -torch.inf)
        scores[:, 0] = 0.0
        mentions = mention_scores.index_select(0, anaphor)
        mentions = mentions + mention_scores.index_select(0, antecedent)
        scores[later, step + 1] = mentions + pairs.float()
        return CoreferenceScores(kept, before, scores, mention_scores)

    def vectors(self, words: Tensor, first: Tensor, last: Tensor) -> Tensor:
        """Represent each span by its ends, the weighted mean of its words, and its length."""
        length = last - first + 1
        indices = first[:, None] + torch.arange(int(length.max()), device=first.device)
        outside = indices > last[:, None]
        indices = indices.minimum(last[:, None])
        weight = F.embedding(indices, self.attend(words).float())[..., 0]
        weight = weight.masked_fill(outside, -torch.inf)
        mean = F.embedding_bag(
            indices, words, mode="sum", per_sample_weights=weight.softmax(-1).to(words.dtype)
        )
        feature = self.lengths(bucket(length))
        ends = (F.embedding(i, words) for i in (first, last))
        return self.span(torch.cat([*ends, mean, feature], -1))

    def pairs(self, later: Tensor, earlier: Tensor, distance: Tensor, speakers: Tensor) -> Tensor:
        """Score pairs of spans: (pairs,)."""
        features = [self.distances(bucket(distance)), self.speakers(speakers)]
        both = torch.cat([later, earlier, later * earlier, *features], -1)
        return self.pair(both)[:, 0]


def scorer(width: int, dropout: float) -> nn.Sequential:
    """Return a network with two hidden layers and one score."""
    return nn.Sequential(
        nn.Linear(width, HIDDEN_SIZE),
        nn.ReLU(),
        nn.Dropout(dropout),
        nn.Linear(HIDDEN_SIZE, HIDDEN_SIZE),
        nn.ReLU(),
        nn.Dropout(dropout),
        nn.Linear(HIDDEN_SIZE, 1),
    )


def init_xavier_(model: nn.Module) -> None:
    """Draw matrices by their sizes (Glorot and Bengio, 2010), as in the published code."""
    for weight in model.parameters():
        if weight.dim() > 1:
            nn.init.xavier_uniform_(weight)
        else:
            nn.init.zeros_(weight)


def prune_mentions(mention_scores: Tensor, document: Tensor, max_mentions: Tensor) -> Tensor:
    """Return the spans with the highest scores, up to the maximum of each document."""
    order = mention_scores.argsort(descending=True, stable=True)
    order = order[document[order].argsort(stable=True)]
    sizes = torch.bincount(document, minlength=len(max_mentions))
    starts = sizes.cumsum(0) - sizes
    rank = torch.arange(len(order), device=order.device) - starts[document]
    return order[rank < max_mentions[document]].sort().values


def nearest_antecedents(document: Tensor, most: int) -> Tensor:
    """Return the mentions before each in its document, the nearest first: (mentions, most)."""
    indices = torch.arange(len(document), device=document.device)[:, None]
    before = indices - torch.arange(1, most + 1, device=document.device)
    own = document[before.clamp(min=0)] == document[:, None]
    return torch.where(own & (before >= 0), before, -1)


def compare_speakers(one: Tensor, other: Tensor) -> Tensor:
    """Return 1 for the same speaker, 2 for another, 0 if either is unknown."""
    return torch.where((one < 0) | (other < 0), 0, torch.where(one == other, 1, 2))


def bucket(size: Tensor) -> Tensor:
    """Return the bucket of each length or distance, from 1."""
    return torch.bucketize(size, torch.tensor(BUCKETS[1:], device=size.device), right=True)
