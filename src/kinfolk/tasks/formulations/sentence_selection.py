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
al. 2022).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from kinfolk.batch import Batch, Loss
from kinfolk.config import config, field
from kinfolk.data.examples import Collated, Example
from kinfolk.errors import UserError
from kinfolk.metrics.diversity import ngrams
from kinfolk.metrics.extractive import greedy_oracle
from kinfolk.metrics.text import MIXED_WORDS, rouge_pattern
from kinfolk.tasks.extractive_summarization import ExtractiveSummarization
from kinfolk.tasks.formulations.base import (
    Formulation,
    Instance,
    RawScores,
    TaskTargets,
    read_hidden,
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


@dataclass(frozen=True, eq=False, kw_only=True)
class SentenceTargets(TaskTargets):
    """The document of each sentence is its `instance_ids`; a target is from 0 to 1."""

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
    label_weights: tuple[float, ...] = field(
        default=(), ge=0, help="weight of each label set, the original one first; empty for equal"
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
        sets = 1 + len(self.dictionary)
        weights = self.label_weights or (1.0,) * sets
        if len(weights) != sets or not sum(weights):
            raise UserError(
                f"--label-weights {','.join(f'{weight:g}' for weight in weights)}: give {sets} "
                f"number{'s' * (sets > 1)}, of the original labels and of each --dictionary, which "
                "are not all 0"
            )
        if self.replace_words and not self.dictionary:
            raise UserError("--replace-words needs a --dictionary: give one, or remove it")
        return replace(
            fitted,
            dictionary=tuple(str(Path(path).resolve()) for path in self.dictionary),
            label_weights=tuple(round(weight / sum(weights), 6) for weight in weights),
        )

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
        versions = [replace_article(row, path) for path in self.dictionary]
        labels = self.labels(row, versions)
        instances = [self.encode(row.sentences, labels, tokenizer)]
        if self.replace_words:
            instances += [self.encode(sentences, labels, tokenizer) for sentences, _ in versions]
        return instances

    def labels(
        self, row: Article, versions: Sequence[tuple[tuple[str, ...], tuple[str, ...]]]
    ) -> list[float]:
        """Return the weighted mean of the label sets: the original one and those of versions."""
        oracles = [row.oracle] + [
            greedy_oracle(sentences, references, MAX_ORACLE_SENTENCES, MIXED_WORDS)
            for sentences, references in versions
        ]
        labels = np.zeros(len(row.sentences))
        for weight, oracle in zip(self.label_weights or (1.0,), oracles, strict=True):
            labels[list(oracle)] += weight
        return [float(label) for label in labels]

    def encode(
        self, sentences: Sequence[str], labels: Sequence[float] | None, tokenizer: Tokenizer
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
        labels = [label for i in instances for label in (i.target or [0.0] * len(i.metadata))]
        owners = torch.arange(len(sizes)).repeat_interleave(sizes)
        return SentenceTargets(
            read_at=collated.read_positions(examples),
            instance_ids=documents,
            target=torch.tensor(labels, dtype=torch.float32),
            weight=torch.ones(len(labels)),
            example_ids=owners if self.mean_pooling else None,
            position_ids=torch.arange(len(sizes)) - (counts.cumsum(0) - counts)[documents],
        )

    def scores(self, model: Any, batch: Batch[Any]) -> Tensor:
        """Return the logit of every sentence: (sentences,)."""
        targets = batch.targets
        vectors = read_hidden(model(batch.inputs).hidden, targets)
        if targets.example_ids is not None:
            vectors = segment_mean(vectors, targets.example_ids, len(targets.target))
        return model.sentence_scores(vectors, targets.instance_ids, targets.position_ids).float()

    def loss(self, model: Any, batch: Batch[Any], /) -> Loss:
        """Sum the binary cross-entropy of every sentence."""
        nll = F.binary_cross_entropy_with_logits(
            self.scores(model, batch), batch.targets.target, reduction="sum"
        )
        return Loss({"label": nll})

    def logits(self, model: Any, batch: Batch[Any], /) -> list[RawScores]:
        """Return the scores of the sentences of each document: (sentences,)."""
        return split_by_instance(self.scores(model, batch), batch.targets.instance_ids)

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
