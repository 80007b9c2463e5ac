"""Extractive summarization with a head that scores every sentence (Liu and Lapata, 2019).

text         Ann ran .         Bob sat .
ids    [CLS] Ann ran . [SEP] [CLS] Bob sat . [SEP]
types    0    0   0  0   0     1    1   1  1   1
read     *                     *

Each sentence is read at its [CLS], or as the mean of its tokens. A long document is split into
windows of whole sentences, whose scores depend on each other by the head. The sentences with the
highest scores are the summary, in the order of the text.

A label is 1 for the sentences of the oracle. With dictionaries there are more label sets, the
oracles of the word-replaced article and summary, and a label is their weighted mean (after Jia et
al. 2022). Learned weights (nn/label_weights.py) learn from a fifth of the documents, and the
extractor from the others.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from kinfolk.batch import Batch, Loss
from kinfolk.config import config, field
from kinfolk.data.examples import Collated, Example
from kinfolk.errors import UserError
from kinfolk.metrics.diversity import ngrams
from kinfolk.metrics.extractive import greedy_oracle
from kinfolk.metrics.text import MIXED_WORDS, rouge_pattern
from kinfolk.nn.label_weights import label_gains, weights_of
from kinfolk.rng import text_uniform
from kinfolk.tasks.extractive_summarization import ExtractiveSummarization
from kinfolk.tasks.formulations.base import (
    Formulation,
    Instance,
    RawScores,
    TaskTargets,
    segment_mean,
    split_by_instance,
)
from kinfolk.tasks.formulations.sequences import (
    apply_template,
    encode_plain,
    num_special_tokens,
    parse_template,
    split_to_fit,
)
from kinfolk.tasks.rows import MAX_ORACLE_SENTENCES, Article
from kinfolk.tasks.task import Prediction
from kinfolk.tasks.word_replacement import dictionary_fingerprint, read_dictionary, replace_article
from kinfolk.text.tokenizer import SpecialTokens, TemplateName, Tokenizer

LEARNED_WEIGHTS_SHARE = 0.2  # of the documents, from which the weights of label sets are learned
RATE_ROWS = 1000  # from which the shares of chosen sentences are taken, where they are learned


@dataclass(frozen=True)
class LabelSets:
    """The labels of a document by every set, for learned weights."""

    labels: Sequence[Sequence[float]]  # of each sentence
    searched: bool  # the weights learn from them, not the extractor


@dataclass(frozen=True, eq=False, kw_only=True)
class SentenceTargets(TaskTargets):
    """The document of each sentence is its `instance_ids`; a target is from 0 to 1.

    With learned weights of label sets a target is (sets,), and `weight` is 0 in the documents that
    the weights learn from.
    """

    position_ids: Tensor  # (sentences,): position in the document


@config("sentence_selection")
class SentenceSelection(Formulation):
    """A head with one score per sentence."""

    frame: TemplateName | None = field(
        default="bert", help="template of the special tokens; null for a decoder"
    )
    mean_pooling: bool = field(
        default=False, help="read the mean of the tokens of a sentence, not its [CLS]"
    )
    trigram_blocking: bool = field(
        default=False, help="leave out sentences with a trigram of the summary (Paulus et al. 2018)"
    )
    dictionary: tuple[str, ...] = field(
        default=(), help="bilingual dictionaries, each of which makes one more label set"
    )
    label_weights: tuple[float, ...] | Literal["learned"] = field(
        default=(),
        ge=0,
        help="weight of each label set, the original one first; empty for equal; learned",
    )
    label_rates: tuple[float, ...] = field(
        default=(), ge=0, le=1, help="share of sentences that each label set chooses, if learned"
    )
    replace_words: bool = field(
        default=False, help="also train on the articles in the words of the dictionaries"
    )

    name = "head"
    outputs = ("sentences",)
    needs_template = True
    head = "sentences"

    def fit(self, rows: Sequence[Any], tokenizer: Tokenizer, *, balanced: bool = False) -> Self:
        """Check the dictionaries and make their paths absolute; scale the weights to a sum of 1."""
        fitted = super().fit(rows, tokenizer, balanced=balanced)
        for path in self.dictionary:
            read_dictionary(path)
        if self.replace_words and not self.dictionary:
            raise UserError("--replace-words needs a --dictionary: give one, or remove it")
        fitted = replace(
            fitted, dictionary=tuple(str(Path(path).resolve()) for path in self.dictionary)
        )
        if isinstance(self.label_weights, str):
            return replace(fitted, label_rates=fitted.measure_rates(rows))
        sets = 1 + len(self.dictionary)
        weights = self.label_weights or (1.0,) * sets
        if len(weights) != sets or not sum(weights):
            raise UserError(
                f"--label-weights {','.join(f'{weight:g}' for weight in weights)}: give {sets} "
                f"number{'s' * (sets > 1)}, of the original labels and of each --dictionary, which "
                "are not all 0"
            )
        return replace(
            fitted, label_weights=tuple(round(weight / sum(weights), 6) for weight in weights)
        )

    @property
    def learned_sets(self) -> int:
        """The number of label sets whose weights are learned: all or none."""
        return 1 + len(self.dictionary) if isinstance(self.label_weights, str) else 0

    def measure_rates(self, rows: Sequence[Article]) -> tuple[float, ...]:
        """Return the share of sentences that each label set chooses in the first rows."""
        if not self.dictionary:
            raise UserError(
                "--label-weights learned needs a --dictionary, which makes a second label set"
            )
        known = [row for row in rows if row.target is not None and len(row.sentences) > 1]
        if len({is_searched(row) for row in known}) < 2:
            raise UserError(
                f"--label-weights learned: {len(known)} article{'s' * (len(known) != 1)} to learn "
                "from cannot be divided between the weights and the extractor; give more articles, "
                "or numbers"
            )
        known = known[:RATE_ROWS]
        labels = [label for row in known for label in self.label_sets(row, self.versions(row))]
        return tuple(round(float(rate), 6) for rate in np.mean(labels, 0))

    def fingerprints(self) -> list[tuple[str, str]]:
        """Return the dictionaries and their hashes."""
        return [dictionary_fingerprint(path) for path in self.dictionary]

    def instances(
        self, row: Article, tokenizer: Tokenizer, /, *, labelled: bool = True
    ) -> list[Instance]:
        """Encode an article; one without a choice has no label, one without text no instance."""
        if not labelled:
            return [self.encode(row.sentences, None, tokenizer)] if row.sentences else []
        if len(row.sentences) < 2 or row.target is None:
            return []
        versions = self.versions(row)
        labels = self.labels(row, versions)
        instances = [self.encode(row.sentences, labels, tokenizer)]
        if self.replace_words:
            instances += [self.encode(sentences, labels, tokenizer) for sentences, _ in versions]
        return instances

    def versions(self, row: Article) -> list[tuple[tuple[str, ...], tuple[str, ...]]]:
        """Return the sentences and the summaries of an article in the words of each dictionary."""
        return [replace_article(row, path) for path in self.dictionary]

    def label_sets(
        self, row: Article, versions: Sequence[tuple[tuple[str, ...], tuple[str, ...]]]
    ) -> NDArray[np.float64]:
        """Return the labels by the original set and by those of versions: (sentences, sets)."""
        oracles = [row.oracle] + [
            greedy_oracle(sentences, references, MAX_ORACLE_SENTENCES, MIXED_WORDS)
            for sentences, references in versions
        ]
        labels = np.zeros((len(row.sentences), len(oracles)))
        for number, oracle in enumerate(oracles):
            labels[list(oracle), number] = 1
        return labels

    def labels(
        self, row: Article, versions: Sequence[tuple[tuple[str, ...], tuple[str, ...]]]
    ) -> list[float] | LabelSets:
        """Return the weighted mean of the label sets; the sets where weights are learned."""
        sets = self.label_sets(row, versions)
        if isinstance(self.label_weights, str):
            return LabelSets(sets.tolist(), is_searched(row))
        labels = np.zeros(len(sets))
        for number, weight in enumerate(self.label_weights or (1.0,)):
            labels += weight * sets[:, number]
        return [float(label) for label in labels]

    def encode(
        self,
        sentences: Sequence[str],
        labels: Sequence[float] | LabelSets | None,
        tokenizer: Tokenizer,
    ) -> Instance:
        """Return the instance of a document, in as many windows as it needs."""
        assert self.frame is not None, "it needs a template"
        added = num_special_tokens(self.frame, 1)
        room = self.max_length - added
        encoded = encode_plain(tokenizer, sentences)
        kept = [ids[:room] for ids in encoded]
        windows = split_to_fit([len(ids) + added for ids in kept], self.max_length)
        return Instance(
            examples=tuple(
                self.window(kept[start:end], tokenizer.special_tokens) for start, end in windows
            ),
            target=labels,
            truncated_tokens=sum(map(len, encoded)) - sum(map(len, kept)),
            metadata=[self.read_size(len(ids) + added) for ids in kept],
        )

    def read_size(self, tokens: int) -> int:
        """Return the number of hidden states that are read of a sentence."""
        return tokens if self.mean_pooling else 1

    def window(self, sentences: Sequence[Sequence[int]], special_tokens: SpecialTokens) -> Example:
        """Return the example of sentences, each between its own special tokens."""
        assert self.frame is not None, "it needs a template"
        odd = max(kind for name, kind in parse_template(self.frame, 2) if name == "$B")
        ids, types, read, length = [], [], [], 0
        for number, sentence in enumerate(sentences):
            part = apply_template(self.frame, special_tokens, [sentence])
            ids.append(part.ids)
            kinds, segment = part.token_type_ids, odd * (number % 2)  # interval segments
            types.append(np.where(kinds == 0, segment, kinds))
            own = np.arange(len(part.ids)) if self.mean_pooling else np.array([part.cls_index])
            read.append(own + length)
            length += len(part.ids)
        return Example(
            input_ids=np.concatenate(ids),
            order=np.zeros(length, np.int64),
            token_type_ids=np.concatenate(types),
            read_positions=np.concatenate(read),
        )

    def targets(
        self, instances: Sequence[Instance], examples: Sequence[Example], collated: Collated
    ) -> SentenceTargets:
        """Score one vector per sentence."""
        counts = torch.tensor([len(instance.metadata) for instance in instances])
        documents = torch.arange(len(instances)).repeat_interleave(counts)
        sizes = torch.tensor([size for instance in instances for size in instance.metadata])
        labels, weights = label_rows(instances)
        owners = torch.arange(len(sizes)).repeat_interleave(sizes)
        return SentenceTargets(
            read_at=collated.read_positions(examples),
            instance_ids=documents,
            target=torch.tensor(labels, dtype=torch.float32),
            weight=torch.tensor(weights),
            example_ids=owners if self.mean_pooling else None,
            position_ids=torch.arange(len(sizes)) - (counts.cumsum(0) - counts)[documents],
        )

    def counts(self, instances: Sequence[Instance], targets: TaskTargets) -> dict[str, int]:
        """Divide the sentences between the extractor and learned weights."""
        counts = super().counts(instances, targets)
        if not self.learned_sets:
            return counts
        extracted = int(targets.weight.sum())
        return counts | {"label": extracted, "label_weights": counts["label"] - extracted}

    def vectors(self, model: Any, batch: Batch[Any]) -> Tensor:
        """Return the vector of every sentence: (sentences, size)."""
        targets = batch.targets
        vectors = model.read(batch.inputs, targets.read_at)
        if targets.example_ids is not None:
            vectors = segment_mean(vectors, targets.example_ids, len(targets.target))
        return vectors

    def scores(self, model: Any, batch: Batch[Any], vectors: Tensor | None = None) -> Tensor:
        """Return the logit of every sentence, whose vectors may be known: (sentences,)."""
        vectors = self.vectors(model, batch) if vectors is None else vectors
        documents, positions = batch.targets.instance_ids, batch.targets.position_ids
        return model.sentence_scores(vectors, documents, positions).float()

    def loss(self, model: Any, batch: Batch[Any], /) -> Loss:
        """Sum the binary cross-entropy of every sentence, and the loss of learned weights."""
        targets, vectors = batch.targets, self.vectors(model, batch)
        scores = self.scores(model, batch, vectors)
        if not self.learned_sets:
            nll = F.binary_cross_entropy_with_logits(scores, targets.target, reduction="sum")
            return Loss({"label": nll})
        predicted = model.label_weights(vectors)
        target = (weights_of(predicted).detach() * targets.target).sum(-1)
        nll = F.binary_cross_entropy_with_logits(scores, target, targets.weight, reduction="sum")
        rates = targets.target.new_tensor(self.label_rates)
        gains = label_gains(scores.detach().sigmoid(), targets.target, rates)
        errors = (predicted - gains).square() + (model.label_weights.of_sets - gains).square()
        return Loss({"label": nll, "label_weights": ((1 - targets.weight) @ errors).sum()})

    def logits(self, model: Any, batch: Batch[Any], /) -> list[RawScores]:
        """Return the scores of the sentences of each document: (sentences,)."""
        return split_by_instance(self.scores(model, batch), batch.targets.instance_ids)

    def sentence_weights(self, model: Any, batch: Batch[Any]) -> Tensor:
        """Return the learned weights of the label sets of every sentence: (sentences, sets)."""
        return weights_of(model.label_weights(self.vectors(model, batch)))

    def decode(
        self, row: Article, instances: Sequence[Instance], logits: Sequence[RawScores], /
    ) -> Prediction:
        """Return the sentences with the highest scores in the order of the text."""
        if not logits:
            return Prediction("")
        assert isinstance(self.task, ExtractiveSummarization)
        (scores,) = logits
        ranked = np.argsort(-scores, kind="stable").tolist()
        chosen = select_sentences(
            row.sentences, ranked, self.task.summary_size, trigram_blocking=self.trigram_blocking
        )
        probabilities = 1 / (1 + np.exp(-scores))
        summary = self.task.summary(row, chosen)
        return Prediction(summary, tuple(probabilities.tolist()), sentences=chosen)


def is_searched(row: Article) -> bool:
    """Return whether the weights of label sets learn from an article, not the extractor."""
    return text_uniform(row.source) < LEARNED_WEIGHTS_SHARE


def label_rows(instances: Sequence[Instance]) -> tuple[list[Any], list[float]]:
    """Return the label of every sentence, or its labels by each set, and its weight."""
    labels: list[Any] = []
    weights: list[float] = []
    for instance in instances:
        own = instance.target
        sets = own if isinstance(own, LabelSets) else LabelSets(own or [], searched=False)
        labels += sets.labels or [0.0] * len(instance.metadata)
        weights += [float(not sets.searched)] * len(instance.metadata)
    return labels, weights


def select_sentences(
    sentences: Sequence[str], ranked: Sequence[int], count: int, *, trigram_blocking: bool
) -> tuple[int, ...]:
    """Return the first `count` of ranked sentences, increasing, without those with a trigram of the
    ones before where that is asked for.
    """
    if not trigram_blocking:
        return tuple(sorted(ranked[:count]))
    pattern = rouge_pattern([" ".join(sentences)])
    chosen: list[int] = []
    known: set[tuple[str, ...]] = set()
    for index in ranked:
        trigrams = {*ngrams(pattern.findall(sentences[index].lower()), 3)}
        if len(chosen) < count and not trigrams & known:
            chosen.append(index)
            known |= trigrams
    return tuple(sorted(chosen))
