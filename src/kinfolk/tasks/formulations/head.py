"""Classification heads on a pretrained network: on one token of a text, or on every word.

text         a fine film                    words      Anna  lives  in  Paris
ids    [CLS] a fine film [SEP]              ids  [CLS] An ##na lives in Paris [SEP]
read     *                                  read       *       *     *  *
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from kinfolk.batch import IGNORE_INDEX, Batch, Loss, gather_positions
from kinfolk.config import config, field
from kinfolk.data.examples import Collated, Example
from kinfolk.nn.task_heads import Head
from kinfolk.tasks.formulations.base import (
    Formulation,
    Instance,
    RawScores,
    TaskTargets,
    instance_index,
    logits_at,
    offset_targets,
    read_instance_index,
    segment_log_softmax,
    segment_mean,
    softmax,
    split_by_instance,
    stack_soft_targets,
)
from kinfolk.tasks.formulations.sequences import (
    apply_template,
    causal_special_tokens,
    encode_plain,
    encode_words,
    last_token_example,
    num_special_tokens,
    split_to_fit,
    truncate_longest_first,
    with_characters,
    words_example,
)
from kinfolk.tasks.rows import LabelledText, MultipleChoiceRow, TaggedSentence
from kinfolk.tasks.task import Prediction, TaskOutput
from kinfolk.text.characters import OpenVocabulary
from kinfolk.text.tokenizer import TemplateName, Tokenizer
from kinfolk.text.vectors import vectors_fingerprint


@dataclass(frozen=True, kw_only=True)
class LabelHead(Formulation):
    """Base of heads with one logit per label: class weights and distillation."""

    frame: TemplateName | None = field(
        default="bert", help="template of the special tokens; null for a decoder"
    )
    class_weights: tuple[float, ...] = field(
        default=(), ge=0, help="weight of each class, 1 on average over the training rows"
    )
    distillation_weight: float = field(
        default=0.0, ge=0, le=1, help="weight of the teacher in the loss (Hinton et al. 2015)"
    )
    temperature: float = field(
        default=2.0, gt=0, help="temperature of the teacher's and the student's logits"
    )
    max_characters: int | None = field(
        default=None, ge=3, help="characters of a token that the network reads; null for ids alone"
    )

    distills = True

    def fit(self, rows: Sequence[Any], tokenizer: Tokenizer, *, balanced: bool = False) -> Self:
        """Set the class weights."""
        return replace(self, class_weights=self.task.class_weights(rows)) if balanced else self

    def open(self, tokenizer: Tokenizer) -> Tokenizer:
        """Return a tokenizer that tells unknown words apart, if the network reads characters."""
        return tokenizer if self.max_characters is None else OpenVocabulary(tokenizer)

    def add_characters(self, instances: list[Instance], tokenizer: Tokenizer) -> list[Instance]:
        """Add the characters of tokens to instances that were made with `open`."""
        size = self.max_characters
        if size is None or not isinstance(tokenizer, OpenVocabulary):
            return instances
        return [
            replace(i, examples=tuple(with_characters(e, tokenizer, size) for e in i.examples))
            for i in instances
        ]

    def weights_of(self, target: Tensor) -> Tensor:
        """Return the weight of each target."""
        if not self.class_weights:
            return torch.ones(len(target))
        return torch.tensor(self.class_weights)[target.clamp(min=0)]

    def cross_entropy(self, logits: Tensor, targets: TaskTargets) -> Tensor:
        """Sum the weighted -log p(label) of each target, mixed with that of soft targets."""
        nll = F.cross_entropy(logits, targets.target, reduction="none", ignore_index=IGNORE_INDEX)
        if targets.teacher_probs is not None:
            weight, temperature = self.distillation_weight, self.temperature
            soft = -(targets.teacher_probs * F.log_softmax(logits / temperature, -1)).sum(-1)
            # The gradient of scaled logits is smaller by temperature squared (Hinton et al. 2015).
            nll = (1 - weight) * nll + weight * temperature**2 * soft
        return (targets.weight * nll).sum()

    def soft_labels(self, logits: RawScores, temperature: float) -> RawScores:
        """Return the probabilities at a temperature."""
        return softmax(logits / temperature)


@dataclass(frozen=True, kw_only=True)
class VectorHead(LabelHead):
    """Base of heads on a network with word vectors from a file."""

    static_shapes = False  # such networks are recurrent
    vectors: str = field(default="", help="file of word vectors; empty for none")

    def fit(self, rows: Sequence[Any], tokenizer: Tokenizer, *, balanced: bool = False) -> Self:
        """Set the class weights and the path of the word vectors."""
        fitted = super().fit(rows, tokenizer, balanced=balanced)
        return (
            replace(fitted, vectors=str(Path(self.vectors).resolve())) if self.vectors else fitted
        )

    def fingerprints(self) -> list[tuple[str, str]]:
        """Return the file of word vectors and its hash."""
        return [vectors_fingerprint(self.vectors)] if self.vectors else []


@config("sequence_head")
class SequenceHead(LabelHead):
    """A head on one vector per text: classes, a number, or a score per option."""

    mean_pooling: bool = False  # of the hidden states of all tokens; else one token is read

    name = "head"
    outputs: ClassVar[tuple[TaskOutput, ...]] = ("label", "number", "option")
    needs_template = True
    static_shapes = True

    @property
    def reads_all_tokens(self) -> bool:
        """Whether the hidden states of all tokens are read, not of one."""
        return self.mean_pooling

    @property
    def head(self) -> Head:
        """One logit per class, or one per option."""
        return "choice" if self.task.output == "option" else "text"

    def instances(
        self, row: Any, tokenizer: Tokenizer, /, *, labelled: bool = True
    ) -> list[Instance]:
        """Encode the texts of a row, or each of its options."""
        opened = self.open(tokenizer)
        examples, truncated = zip(*self.encode_row(row, opened), strict=True)
        target = self.target(row) if labelled else None
        instance = Instance(examples=examples, target=target, truncated_tokens=sum(truncated))
        return self.add_characters([instance], opened)

    def encode_row(self, row: Any, tokenizer: Tokenizer) -> list[tuple[Example, int]]:
        """Return the examples of a row, and how many tokens were truncated for each."""
        if self.task.output == "option":
            return [self.encode_option(row, option, tokenizer) for option in row.options]
        return [self.encode_texts(encode_plain(tokenizer, row.texts), tokenizer)]

    def target(self, row: Any) -> float | int | None:
        """Return the reference as a number."""
        if self.task.output == "number":
            return None if row.label is None else float(row.label)
        return self.task.option_index(row)

    def encode_texts(
        self, texts: Sequence[Sequence[int]], tokenizer: Tokenizer
    ) -> tuple[Example, int]:
        """Return the example of one text or two, and how many tokens were truncated."""
        room = self.max_length - self.num_special_tokens(len(texts))
        kept, truncated = truncate_longest_first(texts, room)
        return self.example(kept, tokenizer), truncated

    def encode_option(
        self, row: MultipleChoiceRow, option: str, tokenizer: Tokenizer
    ) -> tuple[Example, int]:
        """Return the example of an option after its context, whose start is truncated first."""
        second = f"{row.question} {option}" if row.question else option
        context, answer = encode_plain(tokenizer, (row.context, second))
        room = max(1, self.max_length - self.num_special_tokens(2) - len(answer))
        example, truncated = self.encode_texts([context[-room:], answer], tokenizer)
        return example, truncated + max(0, len(context) - room)

    def num_special_tokens(self, texts: int) -> int:
        """Return the number of special tokens around this many texts."""
        assert self.frame is not None, "overridden for decoders"
        return num_special_tokens(self.frame, texts)

    def example(self, texts: Sequence[Sequence[int]], tokenizer: Tokenizer) -> Example:
        """Return the example of texts that fit."""
        assert self.frame is not None, "overridden for decoders"
        templated = apply_template(self.frame, tokenizer.special_tokens, texts)
        everything = np.arange(len(templated.ids))
        return templated.example(
            everything if self.reads_all_tokens else everything[[templated.cls_index]]
        )

    def targets(
        self, instances: Sequence[Instance], examples: Sequence[Example], collated: Collated
    ) -> TaskTargets:
        """Score one vector per example."""
        index = instance_index(instances)
        number = self.task.output == "number"
        unknown = float("nan") if number else IGNORE_INDEX
        target = torch.tensor(
            [unknown if i.target is None else i.target for i in instances],
            dtype=torch.float32 if number else torch.int64,
        )
        if self.task.output == "option":
            target = offset_targets(target, index)
        classes = self.task.output == "label"
        weight = self.weights_of(target) if classes else torch.ones(len(target))
        soft = stack_soft_targets(instances)
        read_at, owners = collated.read_positions(examples), None
        if self.reads_all_tokens:
            sizes = torch.tensor([len(example.read_positions) for example in examples])
            owners = torch.repeat_interleave(torch.arange(len(examples)), sizes)
        return TaskTargets(read_at, index, target, weight, soft, example_ids=owners)

    def loss(self, model: Any, batch: Batch[TaskTargets], /) -> Loss:
        """Sum -log p(class or option), or the squared error of a number."""
        return Loss({"label": self.loss_sum(self.scores(model, batch), batch.targets)})

    def scores(self, model: Any, batch: Batch[TaskTargets]) -> Tensor:
        """Return the scores of each text or option: (examples, classes)."""
        states = model.read(batch.inputs, batch.targets.read_at)
        return self.pooled_logits(model, states, batch.targets)

    def pooled_logits(self, model: Any, states: Tensor, targets: TaskTargets) -> Tensor:
        """Return the logits of each text or option from what is read: (examples, classes)."""
        if targets.example_ids is not None:
            states = segment_mean(states, targets.example_ids, len(targets.instance_ids))
        return model.logits(states).float()

    def loss_sum(self, logits: Tensor, targets: TaskTargets) -> Tensor:
        """Return the summed loss of logits."""
        weight, soft = self.distillation_weight, targets.teacher_probs
        if self.task.output == "number":
            target = targets.target
            if soft is not None:
                target = (1 - weight) * target + weight * soft[:, 0]
            return (targets.weight * (logits[:, 0] - target) ** 2).sum()
        if self.task.output == "option":
            segments = targets.instance_ids, len(targets.target)
            nll = targets.weight * -segment_log_softmax(logits[:, 0], *segments).index_select(
                0, targets.target.clamp(min=0)
            )
            if soft is None:
                return nll.sum()
            scaled = segment_log_softmax(logits[:, 0] / self.temperature, *segments)
            scale = weight * self.temperature**2  # as in cross_entropy
            return (1 - weight) * nll.sum() - scale * (soft[:, 0] * scaled).sum()
        return self.cross_entropy(logits, targets)

    def logits(self, model: Any, batch: Batch[TaskTargets], /) -> list[RawScores]:
        """Return the scores of each instance: (classes,) or (options,)."""
        scores = self.scores(model, batch)
        if self.task.output == "option":
            return [part[:, 0] for part in split_by_instance(scores, batch.targets.instance_ids)]
        return [*scores.double().cpu().numpy()]

    def decode(
        self, row: Any, instances: Sequence[Instance], logits: Sequence[RawScores], /
    ) -> Prediction:
        """Return the class or option with the highest score, or the number."""
        (scores,) = logits
        if self.task.output == "number":
            return Prediction(float(scores[0]))
        return self.best_option(row, scores)

    def soft_labels(self, logits: RawScores, temperature: float) -> RawScores:
        """Return the teacher's number, or probabilities: (classes,) or (options, 1)."""
        if self.task.output == "number":
            return logits
        soft = super().soft_labels(logits, temperature)
        return soft[:, None] if self.task.output == "option" else soft


@config("transformed")
class CausalHead(SequenceHead):
    """A head on the last token, with an auxiliary LM loss (Radford et al. 2018, section 3.3)."""

    lm_loss_weight: float = 0.5
    both_orders: bool = False  # read a pair in both orders and add the hidden states

    name = "transformed"
    needs_template = False

    def fit(self, rows: Sequence[Any], tokenizer: Tokenizer, *, balanced: bool = False) -> Self:
        """Set the class weights, and read pairs of a similarity task in both orders."""
        both_orders = self.both_orders or (self.task.output == "number" and self.task.is_pair)
        return replace(super().fit(rows, tokenizer, balanced=balanced), both_orders=both_orders)

    def encode_row(self, row: Any, tokenizer: Tokenizer) -> list[tuple[Example, int]]:
        """Return the examples of a row: its options, or its texts in one order or both."""
        encoded = super().encode_row(row, tokenizer)
        if not (self.both_orders and isinstance(row, LabelledText) and len(row.texts) == 2):
            return encoded
        texts = encode_plain(tokenizer, row.texts[::-1])
        return [*encoded, (self.encode_texts(texts, tokenizer)[0], 0)]  # the same tokens are cut

    def num_special_tokens(self, texts: int) -> int:
        """Return the number of special tokens: a start, delimiters, and the token that is read."""
        return 1 + texts

    def example(self, texts: Sequence[Sequence[int]], tokenizer: Tokenizer) -> Example:
        """Return start, texts with delimiters between them, and the token that is read."""
        start, delimiter, extract = causal_special_tokens(tokenizer.special_tokens)
        rest = (i for text in texts[1:] for i in (delimiter, *text))
        ids = np.array([start, *texts[0], *rest, extract], np.int64)
        # The text is predicted, but not the token that is read, which is always the same.
        labels = np.append(ids[1:-1], [IGNORE_INDEX, IGNORE_INDEX]) if self.lm_loss_weight else None
        return last_token_example(ids, labels)

    def targets(
        self, instances: Sequence[Instance], examples: Sequence[Example], collated: Collated
    ) -> TaskTargets:
        """Score one hidden state per example, and predict its tokens."""
        targets = super().targets(instances, examples, collated)
        if not self.lm_loss_weight:
            return targets
        return replace(targets, tokens=collated.token_targets(examples)[0])

    def counts(self, instances: Sequence[Instance], targets: TaskTargets) -> dict[str, int]:
        """Add the number of predicted tokens."""
        predicted = {} if targets.tokens is None else {"lm_auxiliary": len(targets.tokens.labels)}
        return super().counts(instances, targets) | predicted

    def loss(self, model: Any, batch: Batch[TaskTargets], /) -> Loss:
        """Sum -log p(class), and -log p(token) at a lower weight."""
        targets = batch.targets
        if targets.tokens is None:
            return super().loss(model, batch)
        hidden = model(batch.inputs).hidden
        states = gather_positions(hidden, targets.read_at)
        sums = {"label": self.loss_sum(self.pooled_logits(model, states, targets), targets)}
        lm_logits = model.lm_logits(targets.tokens.gather(hidden))
        sums["lm_auxiliary"] = lm_logits.nll(targets.tokens.labels)
        return Loss(sums, {"lm_auxiliary": self.lm_loss_weight})

    def pooled_logits(self, model: Any, states: Tensor, targets: TaskTargets) -> Tensor:
        """Return the logits of last tokens; hidden states of both orders are added."""
        if self.both_orders and self.task.output != "option":
            total = states.new_zeros(len(targets.target), states.shape[1])
            states = total.index_add(0, targets.instance_ids, states)
        return model.logits(states).float()


@config("bare")
class BareCausalHead(CausalHead):
    """A head on the last token of texts without special tokens, as in transformers."""

    lm_loss_weight: float = 0.0

    name = "bare"

    def example(self, texts: Sequence[Sequence[int]], tokenizer: Tokenizer) -> Example:
        """Return the texts one after the other."""
        return last_token_example(np.array([id for text in texts for id in text], np.int64))


@config("token_head")
class TokenHead(LabelHead):
    """A head on one subword token of every word: the first, or in a decoder the last."""

    causal: bool = False  # the network is a decoder

    name = "head"
    outputs = ("tags",)
    head = "tokens"
    static_shapes = True

    def instances(
        self, row: TaggedSentence, tokenizer: Tokenizer, /, *, labelled: bool = True
    ) -> list[Instance]:
        """Encode the words, split into as many instances as are needed."""
        opened = self.open(tokenizer)
        words = encode_words(opened, row.words)
        predicate = None if row.predicate is None else words[row.predicate]
        texts = 1 if predicate is None else 2
        room = self.max_length - self.num_special_tokens(texts)
        if predicate is not None:
            predicate = predicate[: room // 2]  # leaves room for the words
            room -= len(predicate)
        tags = None
        if labelled and row.tags is not None:
            tags = [self.task.label_id(tag) for tag in row.tags]
        instances = []
        for start, end in split_to_fit([len(word) for word in words], room):
            kept = [word[:room] for word in words[start:end]]  # a single word may exceed the room
            example = self.example(kept, predicate, tokenizer)
            target = None if tags is None else tags[start:end]
            sizes = tuple(len(word) for word in kept)
            instances.append(Instance(examples=(example,), target=target, metadata=sizes))
        return self.add_characters(instances, opened)

    def num_special_tokens(self, texts: int) -> int:
        """Return the number of special tokens around this many texts."""
        return num_special_tokens(self.frame, texts)

    def example(
        self, words: Sequence[Sequence[int]], predicate: Sequence[int] | None, tokenizer: Tokenizer
    ) -> Example:
        """Return the example of words that fit."""
        return words_example(
            words,
            predicate,
            tokenizer.special_tokens,
            template=self.frame,
            causal=self.causal,
        )

    def targets(
        self, instances: Sequence[Instance], examples: Sequence[Example], collated: Collated
    ) -> TaskTargets:
        """Score one hidden state per word."""
        index = read_instance_index(instances)
        target = torch.full((len(index),), IGNORE_INDEX)
        if instances[0].target is not None:
            target = torch.tensor([tag for instance in instances for tag in instance.target])
        positions, soft = collated.read_positions(examples), stack_soft_targets(instances)
        return TaskTargets(positions, index, target, self.weights_of(target), soft)

    def loss(self, model: Any, batch: Batch[TaskTargets], /) -> Loss:
        """Sum -log p(tag)."""
        return Loss({"label": self.cross_entropy(logits_at(model, batch), batch.targets)})

    def logits(self, model: Any, batch: Batch[TaskTargets], /) -> list[RawScores]:
        """Return the scores of the words of each instance: (words, tags)."""
        return split_by_instance(logits_at(model, batch), batch.targets.instance_ids)

    def decode(
        self, row: Any, instances: Sequence[Instance], logits: Sequence[RawScores], /
    ) -> Prediction:
        """Return the most probable tag of every word."""
        if not logits:
            return Prediction(())
        probabilities = softmax(np.concatenate(list(logits)))
        tags = tuple(self.task.labels[int(tag)] for tag in probabilities.argmax(-1))
        best = probabilities.max(-1)
        return Prediction(tags, tuple(best.tolist()), float(best.min()))
