"""Spans that mean one thing, each ranked against those before it (Lee et al., 2017).

words    ann met bob . she smiled
ids  [C] ann met bob . she smiled [S]
read      *   *   *  *  *    *
spans    [ann]  [bob]  [she]        "she" refers to none, to bob or to ann: 0 + two scores

As Joshi et al. (2019), a document is read in stretches of whole sentences; a word is read by its
first piece. Where no mentions are given, every short span of a sentence may be one, and the best
are kept.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import ceil
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from kinfolk.batch import Batch, Loss
from kinfolk.config import config
from kinfolk.data.examples import Collated, Example
from kinfolk.errors import UserError
from kinfolk.tasks.examples import Instance
from kinfolk.tasks.formulations.base import (
    Formulation,
    RawScores,
    TaskTargets,
    instance_index,
    split_by_instance,
)
from kinfolk.tasks.formulations.head import TokenHead, encode_words, split_to_fit
from kinfolk.tasks.formulations.sequences import num_special_tokens
from kinfolk.tasks.rows import CorefDocument, Span
from kinfolk.tasks.task import Prediction
from kinfolk.text.tokenizer import Tokenizer

UNKNOWN_SPEAKERS = ("", "-")  # who speaks, where a file says nothing


@dataclass(frozen=True)
class CandidateSpans:
    """The spans of a document that may be mentions, from left to right."""

    spans: tuple[Span, ...]
    speakers: tuple[int, ...]  # who says each, -1 where nobody knows
    predicted: bool  # by us, and not given
    max_mentions: int  # how many are kept


@dataclass(frozen=True, eq=False, kw_only=True)
class CoreferenceTargets(TaskTargets):
    """Spans of all documents; right is the number of each one's cluster, 0 where it is in none."""

    first: Tensor  # (spans,): its first word, among all words that are read
    last: Tensor  # (spans,)
    document: Tensor  # (spans,): which example it belongs to
    speaker: Tensor  # (spans,)
    max_mentions: Tensor  # (examples,): how many spans are kept


@config("coreference_head")
class CoreferenceHead(Formulation):
    """Score every span with each of those before it, and with none."""

    frame: str | None = "bert"  # of FRAMES; None for a decoder
    causal: bool = False  # a decoder sees the words before only
    max_span_length: int = 10  # words of a span, where mentions are not given (Lee et al. 2017)
    spans_per_word: float = (
        0.4  # spans that are kept for each word, where mentions are not given (the same)
    )
    max_antecedents: int = 50  # the most that a mention is ranked against (Lee et al. 2018)
    mention_loss_weight: float = (
        1.0  # the weight of telling mentions, where not given, from other spans
    )

    name: ClassVar[str] = "head"
    tasks: ClassVar[tuple[str, ...]] = ("coref",)
    head: ClassVar[str | None] = "coref"

    def __post_init__(self) -> None:
        if self.max_span_length < 1 or self.max_antecedents < 1 or not self.spans_per_word > 0:
            raise UserError(
                f"max_span_length={self.max_span_length}, max_antecedents={self.max_antecedents} "
                f"and spans_per_word={self.spans_per_word} must be above 0: "
                "without spans to rank there are no clusters"
            )

    def training_instances(self, row: CorefDocument, tokenizer: Tokenizer, /) -> list[Instance]:
        """Read a document whole, in as many stretches as it takes; no spans are no example."""
        about = self.candidate_spans(row)
        if not about.spans:
            return []
        chunks = encode_words(tokenizer, row.words)
        room = self.max_length - (num_special_tokens(self.frame, 1) if self.frame else 1)
        readings = tuple(
            self.words.example(chunks[start:stop], None, tokenizer, room)
            for start, stop in split_document(row.sentences, chunks, room)
        )
        cut = sum(max(0, len(chunk) - room) for chunk in chunks)
        return [
            Instance(
                examples=readings,
                target=cluster_ids(row, about),
                truncated_tokens=cut,
                metadata=about,
            )
        ]

    @property
    def words(self) -> TokenHead:
        """How words are read: as those that are tagged."""
        return TokenHead(
            task=self.task,
            max_length=self.max_length,
            pad_id=self.pad_id,
            frame=self.frame,
            causal=self.causal,
        )

    def candidate_spans(self, row: CorefDocument) -> CandidateSpans:
        """Return the mentions that are given, or all spans of a sentence that are not too long."""
        if row.mentions is not None:
            spans = sorted(set(row.mentions))
        else:
            spans = [
                (first, stop)
                for start, end in sentence_bounds(row.sentences)
                for first in range(start, end)
                for stop in range(first + 1, min(first + self.max_span_length, end) + 1)
            ]
        found = row.mentions is None
        room = min(len(spans), ceil(self.spans_per_word * len(row.words))) if found else len(spans)
        names = [name for sentence in row.speakers or () for name in sentence]
        numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
        numbers |= dict.fromkeys(UNKNOWN_SPEAKERS, -1)
        speakers = tuple(numbers[names[first]] if names else -1 for first, _ in spans)
        return CandidateSpans(tuple(spans), speakers, found, room)

    def targets(
        self, examples: Sequence[Instance], readings: Sequence[Example], page: Collated
    ) -> CoreferenceTargets:
        """Read one state a word, and say where spans begin and end among those."""
        counts = torch.tensor([len(r.read_positions) for r in readings])
        group = instance_index(examples).repeat_interleave(counts)
        words = torch.bincount(group)
        spans = [torch.tensor(e.metadata.spans) for e in examples]
        sizes = torch.tensor([len(some) for some in spans])
        document = torch.arange(len(examples)).repeat_interleave(sizes)
        ends = torch.cat(spans) + (words.cumsum(0) - words)[document, None]
        return CoreferenceTargets(
            read_at=page.read_positions(readings),
            instance_ids=group,
            target=torch.tensor([home for e in examples for home in e.target]),
            weight=torch.tensor([float(e.metadata.predicted) for e in examples])[document],
            first=ends[:, 0],
            last=ends[:, 1] - 1,
            document=document,
            speaker=torch.tensor([who for e in examples for who in e.metadata.speakers]),
            max_mentions=torch.tensor([e.metadata.max_mentions for e in examples]),
        )

    def counts(self, examples: Sequence[Instance], key: Any) -> dict[str, int]:
        """Count the spans that are kept, whichever these are, and those that were not given."""
        kept, told = int(key.max_mentions.sum()), int(key.weight.sum())
        return {"label": kept, "mentions": told, "tokens": sum(e.tokens for e in examples)}

    def score_antecedents(self, model: Any, batch: Batch[Any]) -> Any:
        """Score the mentions with those before them."""
        hidden = model(batch.inputs).hidden.flatten(0, 1).index_select(0, batch.targets.read_at)
        return model.antecedent_scores(hidden, batch.targets, self.max_antecedents)

    def loss(self, model: Any, batch: Batch[Any], /) -> Loss:
        """Sum -log p(any right antecedent); where there is none, to have none is right.

        Ranking alone teaches nothing about a span that is not kept, and on little text some would
        never be: so mentions are told from other spans, too (Zhang et al. 2018).
        """
        found, key = self.score_antecedents(model, batch), batch.targets
        home = key.target[found.mention_indices]
        same = (
            (home[found.antecedents] == home[:, None])
            & (found.antecedents >= 0)
            & (home > 0)[:, None]
        )
        wrong = torch.cat([same.any(1, keepdim=True), ~same], 1)
        right = found.scores.masked_fill(wrong, -torch.inf)
        nats = found.scores.logsumexp(1) - right.logsumexp(1)
        told = F.binary_cross_entropy_with_logits(
            found.mention_scores, (key.target > 0).float(), key.weight, reduction="sum"
        )
        return Loss({"label": nats.sum(), "mentions": told}, {"mentions": self.mention_loss_weight})

    def logits(self, model: Any, batch: Batch[Any], /) -> list[RawScores]:
        """Return for each span the number of its antecedent, -1 for none, and how likely it is."""
        found, key = self.score_antecedents(model, batch), batch.targets
        share, choice = found.scores.softmax(1).max(1)
        indices = torch.arange(len(choice), device=choice.device)
        starts = torch.searchsorted(key.document, key.document)  # the first span of its document
        chosen = found.mention_indices[indices - choice]
        chosen = torch.where(choice > 0, chosen - starts[chosen], -1)
        said = torch.stack([-torch.ones(len(starts)), torch.ones(len(starts))], 1).to(share)
        said[found.mention_indices] = torch.stack([chosen.to(share), share], 1)
        return split_by_instance(said, key.document)

    def decode(
        self, row: Any, examples: Sequence[Instance], replies: Sequence[RawScores], /
    ) -> Prediction:
        """Join what refers to each other; what stands alone is in no cluster."""
        if not replies:
            return Prediction(())
        spans = examples[0].metadata.spans
        home: dict[int, list[Span]] = {}
        for place, before in enumerate(replies[0][:, 0].astype(int)):
            if before >= 0:
                own = home.setdefault(before, [spans[before]])
                own.append(spans[place])
                home[place] = own
        unlike = {id(group): tuple(group) for group in home.values()}
        return Prediction(tuple(unlike.values()), probability=float(replies[0][:, 1].min()))


def sentence_bounds(sentences: Sequence[Sequence[str]]) -> list[Span]:
    """Say where sentences begin and end among the words of a document."""
    return list(pairwise(accumulate(map(len, sentences), initial=0)))


def split_document(
    sentences: Sequence[Sequence[str]], chunks: Sequence[Sequence[int]], room: int
) -> list[Span]:
    """Part words into stretches that fit, of whole sentences unless one is longer than the room."""
    where = [span for span in sentence_bounds(sentences) if span[0] < span[1]]
    found = []
    for start, stop in split_to_fit([sum(map(len, chunks[a:b])) for a, b in where], room):
        first, last = where[start][0], where[stop - 1][1]
        inside = split_to_fit([len(chunk) for chunk in chunks[first:last]], room)
        found += [(first + a, first + b) for a, b in inside]
    return found


def cluster_ids(row: CorefDocument, about: CandidateSpans) -> list[int]:
    """Number the clusters of a document from 1, and return that of each span, 0 for none."""
    clusters = enumerate(row.clusters or (), 1)
    known = {span: number for number, cluster in clusters for span in cluster}
    return [known.get(span, 0) for span in about.spans]
