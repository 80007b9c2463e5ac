"""Coreference by mention ranking: each span is ranked against those before it (Lee et al., 2017).

words    ann met bob . she smiled
ids  [C] ann met bob . she smiled [S]
read      *   *   *  *  *    *
spans    [ann]  [bob]  [she]        "she" refers to none, to bob or to ann: 0 + two scores

As in Joshi et al. (2019), a document is split into parts of whole sentences; a word is read by its
first token. Where no mentions are given, every short span of a sentence is a candidate, and the
best are kept.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import ceil
from typing import Any

import torch
import torch.nn.functional as F

from kinfolk.batch import Batch, Loss
from kinfolk.config import config, field
from kinfolk.data.examples import Collated, Example
from kinfolk.nn.coreference import CandidateSpans
from kinfolk.tasks.formulations.base import (
    Formulation,
    Instance,
    RawScores,
    TaskTargets,
    read_instance_index,
    split_by_instance,
)
from kinfolk.tasks.formulations.sequences import (
    encode_words,
    num_special_tokens,
    split_to_fit,
    words_example,
)
from kinfolk.tasks.rows import CorefDocument, WordRange
from kinfolk.tasks.task import Prediction
from kinfolk.text.tokenizer import TemplateName, Tokenizer

UNKNOWN_SPEAKERS = ("", "-")  # values of files without speaker names


@dataclass(frozen=True)
class DocumentSpans:
    """The candidate mentions of a document, from left to right."""

    spans: tuple[WordRange, ...]
    speakers: tuple[int, ...]  # of each, -1 where unknown
    predicted: bool  # mentions are not given
    max_mentions: int  # that are kept


@dataclass(frozen=True, eq=False, kw_only=True)
class CoreferenceTargets(CandidateSpans, TaskTargets):
    """Spans of all documents; the target is the number of the cluster, 0 for none."""


@config("coreference_head")
class MentionRanking(Formulation):
    """A head that scores every span with each of those before it, and with none."""

    frame: TemplateName | None = field(
        default="bert", help="template of the special tokens; null for a decoder"
    )
    causal: bool = False  # the network is a decoder
    # The next two, where mentions are not given, as Lee et al. 2017.
    max_span_length: int = field(default=10, ge=1, le=2**10, help="words of a span")
    spans_per_word: float = field(default=0.4, gt=0, le=2**10, help="spans that are kept")
    max_antecedents: int = field(  # Lee et al. 2018
        default=50, ge=1, le=2**16, help="spans that a mention is ranked against"
    )
    mention_loss_weight: float = field(
        default=1.0, ge=0, help="weight of finding mentions, where these are not given"
    )

    name = "head"
    outputs = ("clusters",)
    head = "coref"

    def instances(
        self, row: CorefDocument, tokenizer: Tokenizer, /, *, labelled: bool = True
    ) -> list[Instance]:
        """Encode a document in as many parts as it needs; one without spans has no instance."""
        candidates = self.candidate_spans(row)
        if not candidates.spans:
            return []
        words = encode_words(tokenizer, row.words)
        room = self.max_length - num_special_tokens(self.frame, 1)
        examples = tuple(
            words_example(
                [word[:room] for word in words[start:end]],  # a single word may exceed the room
                None,
                tokenizer.special_tokens,
                template=self.frame,
                causal=self.causal,
            )
            for start, end in split_document(row.sentences, words, room)
        )
        return [
            Instance(
                examples=examples,
                target=cluster_ids(row.clusters if labelled else None, candidates.spans),
                truncated_tokens=sum(max(0, len(word) - room) for word in words),
                metadata=candidates,
            )
        ]

    def candidate_spans(self, row: CorefDocument) -> DocumentSpans:
        """Return the given mentions, or all spans of a sentence up to a length."""
        if row.mentions is not None:
            spans = sorted(set(row.mentions))
        else:
            spans = [
                (first, stop)
                for start, end in sentence_bounds(row.sentences)
                for first in range(start, end)
                for stop in range(first + 1, min(first + self.max_span_length, end) + 1)
            ]
        predicted, max_mentions = row.mentions is None, len(spans)
        if predicted:
            max_mentions = min(max_mentions, ceil(self.spans_per_word * len(row.words)))
        names = [name for sentence in row.speakers or () for name in sentence]
        numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
        numbers |= dict.fromkeys(UNKNOWN_SPEAKERS, -1)
        speakers = tuple(numbers[names[first]] if names else -1 for first, _ in spans)
        return DocumentSpans(tuple(spans), speakers, predicted, max_mentions)

    def targets(
        self, instances: Sequence[Instance], examples: Sequence[Example], collated: Collated
    ) -> CoreferenceTargets:
        """Read one hidden state per word; spans are indices among these."""
        index = read_instance_index(instances)
        words = torch.bincount(index)
        spans = [torch.tensor(i.metadata.spans) for i in instances]
        sizes = torch.tensor(list(map(len, spans)))
        document = torch.arange(len(instances)).repeat_interleave(sizes)
        ends = torch.cat(spans) + (words.cumsum(0) - words)[document, None]
        return CoreferenceTargets(
            read_at=collated.read_positions(examples),
            instance_ids=index,
            target=torch.tensor([cluster for i in instances for cluster in i.target]),
            weight=torch.tensor([float(i.metadata.predicted) for i in instances])[document],
            first=ends[:, 0],
            last=ends[:, 1] - 1,
            document=document,
            speaker=torch.tensor([s for i in instances for s in i.metadata.speakers]),
            max_mentions=torch.tensor([i.metadata.max_mentions for i in instances]),
        )

    def counts(self, instances: Sequence[Instance], targets: Any) -> dict[str, int]:
        """Count the spans that are kept, and those that are classified as mentions."""
        kept, classified = int(targets.max_mentions.sum()), int(targets.weight.sum())
        tokens = sum(instance.tokens for instance in instances)
        return {"label": kept, "mentions": classified, "tokens": tokens}

    def score_antecedents(self, model: Any, batch: Batch[Any]) -> Any:
        """Return the scores of mentions with those before them."""
        hidden = model.read(batch.inputs, batch.targets.read_at)
        return model.antecedent_scores(hidden, batch.targets, self.max_antecedents)

    def loss(self, model: Any, batch: Batch[Any], /) -> Loss:
        """Sum -log p(any correct antecedent), "none" for the first mention of a cluster.

        Ranking gives no gradient to spans that are not kept, so spans are also classified as
        mentions (Zhang et al. 2018).
        """
        scored, targets = self.score_antecedents(model, batch), batch.targets
        cluster = targets.target[scored.mention_indices]
        same = (
            (cluster[scored.antecedents] == cluster[:, None])
            & (scored.antecedents >= 0)
            & (cluster > 0)[:, None]
        )
        wrong = torch.cat([same.any(1, keepdim=True), ~same], 1)
        correct = scored.scores.masked_fill(wrong, -torch.inf)
        nll = scored.scores.logsumexp(1) - correct.logsumexp(1)
        mentions = F.binary_cross_entropy_with_logits(
            scored.mention_scores, (targets.target > 0).float(), targets.weight, reduction="sum"
        )
        return Loss(
            {"label": nll.sum(), "mentions": mentions}, {"mentions": self.mention_loss_weight}
        )

    def logits(self, model: Any, batch: Batch[Any], /) -> list[RawScores]:
        """Return for each span the index of its antecedent, -1 for none, and its probability."""
        scored, targets = self.score_antecedents(model, batch), batch.targets
        probability, choice = scored.scores.softmax(1).max(1)
        indices = torch.arange(len(choice), device=choice.device)
        document = targets.document
        starts = torch.searchsorted(document, document)  # the first span of the document
        chosen = scored.mention_indices[indices - choice]
        chosen = torch.where(choice > 0, chosen - starts[chosen], -1)
        values = torch.stack([-torch.ones(len(starts)), torch.ones(len(starts))], 1).to(probability)
        values[scored.mention_indices] = torch.stack([chosen.to(probability), probability], 1)
        return split_by_instance(values, document)

    def decode(
        self, row: Any, instances: Sequence[Instance], logits: Sequence[RawScores], /
    ) -> Prediction:
        """Return the clusters of spans linked to their antecedents, without singletons."""
        if not logits:
            return Prediction(())
        spans = instances[0].metadata.spans
        cluster_of: dict[int, list[WordRange]] = {}
        for index, antecedent in enumerate(logits[0][:, 0].astype(int)):
            if antecedent >= 0:
                cluster = cluster_of.setdefault(antecedent, [spans[antecedent]])
                cluster.append(spans[index])
                cluster_of[index] = cluster
        clusters = {id(cluster): tuple(cluster) for cluster in cluster_of.values()}
        return Prediction(tuple(clusters.values()), probability=float(logits[0][:, 1].min()))


def sentence_bounds(sentences: Sequence[Sequence[str]]) -> list[WordRange]:
    """Return the first word of each sentence, and the one after its last."""
    return list(pairwise(accumulate(map(len, sentences), initial=0)))


def split_document(
    sentences: Sequence[Sequence[str]], words: Sequence[Sequence[int]], room: int
) -> list[WordRange]:
    """Split the tokens of words into parts that fit, at sentence ends where possible."""
    bounds = [span for span in sentence_bounds(sentences) if span[0] < span[1]]
    parts = []
    for start, stop in split_to_fit([sum(map(len, words[a:b])) for a, b in bounds], room):
        first, last = bounds[start][0], bounds[stop - 1][1]
        inside = split_to_fit([len(word) for word in words[first:last]], room)
        parts += [(first + a, first + b) for a, b in inside]
    return parts


def cluster_ids(
    clusters: Sequence[Sequence[WordRange]] | None, spans: Sequence[WordRange]
) -> list[int]:
    """Return the number of the cluster of each span, from 1, 0 for none."""
    numbered = enumerate(clusters or (), 1)
    known = {span: number for number, cluster in numbered for span in cluster}
    return [known.get(span, 0) for span in spans]
