"""A head on a pretrained network: on the whole sequence or on every token."""

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from kinfolk.batch import IGNORE_INDEX, Batch, Loss
from kinfolk.config import config
from kinfolk.data.examples import Collated, Example
from kinfolk.tasks.examples import Instance
from kinfolk.tasks.formulations.base import (
    Formulation,
    RawScores,
    TaskTargets,
    instance_index,
    logits_at,
    segment_log_softmax,
    softmax,
    split_by_instance,
    stack_soft_targets,
    weighted_cross_entropy,
)
from kinfolk.tasks.formulations.sequences import (
    apply_template,
    encode_plain,
    num_special_tokens,
    space_between,
    truncate_longest_first,
)
from kinfolk.tasks.rows import LabelledText, MultipleChoiceRow, TaggedSentence
from kinfolk.tasks.task import Prediction
from kinfolk.text.tokenizer import SpecialTokens, Tokenizer


@config("sequence_head")
class SequenceHead(Formulation):
    """Score the state of one token a text."""

    frame: str | None = "bert"  # of FRAMES; None for a decoder
    class_weights: tuple[float, ...] = ()  # of the classes, 1 on average over the training set
    distillation_weight: float = (
        0.0  # the share of the loss that is a teacher's (Hinton et al. 2015)
    )
    temperature: float = 2.0  # of the teacher's and the student's scores, where they are compared

    name: ClassVar[str] = "head"
    tasks: ClassVar[tuple[str, ...]] = ("classify", "regress", "choose")

    @property
    def head(self) -> str:  # type: ignore[override]
        """One score for each class, or one for each option."""
        return "choice" if self.task.kind == "choose" else "text"

    def training_instances(
        self, row: LabelledText | MultipleChoiceRow, tokenizer: Tokenizer, /
    ) -> list[Instance]:
        """Frame the texts of a row, or each of its options."""
        target = self.target(row)
        if isinstance(row, MultipleChoiceRow):
            asked = [self.encode_option(row, option, tokenizer) for option in row.options]
        else:
            asked = [self.encode_texts(encode_plain(tokenizer, row.texts), tokenizer)]
        readings, cut = zip(*asked, strict=True)
        return [Instance(examples=readings, target=target, truncated_tokens=sum(cut))]

    def target(self, row: LabelledText | MultipleChoiceRow) -> float | int | None:
        """Return what is right as a number."""
        if isinstance(row, MultipleChoiceRow):
            return row.label
        if row.label is None:
            return None
        return (
            float(row.label) if self.task.kind == "regress" else self.task.label_id(str(row.label))
        )

    def encode_texts(
        self, texts: Sequence[Sequence[int]], tokenizer: Tokenizer
    ) -> tuple[Example, int]:
        """Read one text or two, cut to the room there is."""
        kept, cut = truncate_longest_first(
            texts, self.max_length - self.num_special_tokens(len(texts))
        )
        return self.example(kept, tokenizer), cut

    def encode_option(
        self, row: MultipleChoiceRow, option: str, tokenizer: Tokenizer
    ) -> tuple[Example, int]:
        """Read an option behind its context, of which the start is cut where there is no room."""
        last = f"{row.question} {option}" if row.question else option
        context, said = encode_plain(tokenizer, (row.context, last))
        room = max(1, self.max_length - self.num_special_tokens(2) - len(said))
        kept, cut = truncate_longest_first(
            [context[-room:], said], self.max_length - self.num_special_tokens(2)
        )
        return self.example(kept, tokenizer), cut + max(0, len(context) - room)

    def num_special_tokens(self, texts: int) -> int:
        """Say how many slots stand around so many texts."""
        assert self.frame is not None, "decoders have a margin of their own"
        return num_special_tokens(self.frame, texts)

    def example(self, texts: Sequence[Sequence[int]], tokenizer: Tokenizer) -> Example:
        """Frame texts that fit."""
        assert self.frame is not None, "decoders are read in another way"
        inside = apply_template(self.frame, tokenizer.special_tokens, texts)
        return Example(
            input_ids=inside.ids,
            order=np.zeros_like(inside.ids),
            token_type_ids=inside.token_type_ids,
            read_positions=np.array([inside.cls_index]),
        )

    def targets(
        self, examples: Sequence[Instance], readings: Sequence[Example], page: Collated
    ) -> TaskTargets:
        """Read one state a reading."""
        group = instance_index(examples)
        kind = torch.float32 if self.task.kind == "regress" else torch.int64
        blank = float("nan") if kind == torch.float32 else IGNORE_INDEX
        target = torch.tensor(
            [blank if e.target is None else e.target for e in examples], dtype=kind
        )
        if self.task.kind == "choose":  # the slot of the right option among all
            first = torch.bincount(group).cumsum(0) - torch.bincount(group)
            target = torch.where(target == IGNORE_INDEX, IGNORE_INDEX, first + target)
        weight = torch.ones(len(examples))
        if self.class_weights and self.task.kind == "classify":
            weight = torch.tensor(self.class_weights)[target.clamp(min=0)]
        return TaskTargets(
            page.read_positions(readings), group, target, weight, stack_soft_targets(examples)
        )

    def loss(self, model: Any, batch: Batch[TaskTargets], /) -> Loss:
        """Sum -log p(class), or the squared distance from a number."""
        return Loss({"label": self.loss_sum(logits_at(model, batch), batch.targets)})

    def loss_sum(self, scores: Tensor, key: TaskTargets) -> Tensor:
        """Sum what is wrong with scores."""
        if self.task.kind == "regress":
            wanted = (
                key.target
                if key.teacher_probs is None
                else self.mix_targets(key.target, key.teacher_probs[:, 0])
            )
            return ((scores[:, 0] - wanted) ** 2).sum()
        if self.task.kind == "choose":
            logs = segment_log_softmax(scores[:, 0], key.instance_ids, len(key.target))
            plain = -logs.index_select(0, key.target)
            if key.teacher_probs is None:
                return plain.sum()
            logs = segment_log_softmax(
                scores[:, 0] / self.temperature, key.instance_ids, len(key.target)
            )
            return (1 - self.distillation_weight) * plain.sum() - self.soft_loss_weight * (
                key.teacher_probs[:, 0] * logs
            ).sum()
        return weighted_cross_entropy(
            scores, key, teaching=self.distillation_weight, heat=self.temperature
        ).sum()

    @property
    def soft_loss_weight(self) -> float:
        """The teacher's share; a gradient through heated scores is smaller by the heat squared."""
        return self.distillation_weight * self.temperature**2

    def mix_targets(self, target: Tensor, soft: Tensor) -> Tensor:
        """Return a number between what is right and what a teacher says."""
        return (1 - self.distillation_weight) * target + self.distillation_weight * soft

    def logits(self, model: Any, batch: Batch[TaskTargets], /) -> list[RawScores]:
        """Return the scores of each example: (classes,) or (options,)."""
        parts = split_by_instance(logits_at(model, batch), batch.targets.instance_ids)
        return [part[:, 0] if self.task.kind == "choose" else part[0] for part in parts]

    def decode(
        self, row: Any, examples: Sequence[Instance], replies: Sequence[RawScores], /
    ) -> Prediction:
        """Name the class, the number or the option with the highest score."""
        (reply,) = replies
        if self.task.kind == "regress":
            return Prediction(float(reply[0]))
        shares = softmax(reply)
        best = int(shares.argmax())
        value = best if self.task.kind == "choose" else self.task.labels[best]
        return Prediction(value, tuple(shares.tolist()), float(shares[best]))

    def soft_labels(self, reply: RawScores) -> RawScores:
        """Turn a teacher's reply into what a student learns from: (classes,) or (options, 1)."""
        if self.task.kind == "regress":
            return reply
        soft = softmax(reply / self.temperature)
        return soft[:, None] if self.task.kind == "choose" else soft


@config("transformed")
class CausalHead(SequenceHead):
    """Score the state of a line's last token, and go on predicting all of them."""

    lm_loss_weight: float = 0.5  # the weight of predicting the line itself
    both_orders: bool = False  # orders of a pair

    name: ClassVar[str] = "transformed"

    def training_instances(
        self, row: LabelledText | MultipleChoiceRow, tokenizer: Tokenizer, /
    ) -> list[Instance]:
        """Write the row as a line, or as one for each order or option."""
        if isinstance(row, MultipleChoiceRow) or not (self.both_orders and len(row.texts) == 2):
            return super().training_instances(row, tokenizer)
        texts = encode_plain(tokenizer, row.texts)
        asked = [self.encode_texts(order, tokenizer) for order in (texts, texts[::-1])]
        readings = tuple(reading for reading, _ in asked)
        return [Instance(examples=readings, target=self.target(row), truncated_tokens=asked[0][1])]

    def num_special_tokens(self, texts: int) -> int:
        """A start, a delimiter between two, and the token that is read."""
        return 1 + texts

    def example(self, texts: Sequence[Sequence[int]], tokenizer: Tokenizer) -> Example:
        """Put a start before, delimiters between, and behind all the token that is read."""
        start, delimiter, extract = causal_special_tokens(tokenizer.special_tokens)
        line = [start, *texts[0], *(i for text in texts[1:] for i in (delimiter, *text)), extract]
        ids = np.array(line, np.int64)
        # What is predicted is the text: not the token that is read, which always stands there.
        labels = np.append(ids[1:-1], [IGNORE_INDEX, IGNORE_INDEX]) if self.lm_loss_weight else None
        return Example(
            input_ids=ids,
            order=np.arange(len(ids)),
            labels=labels,
            read_positions=np.array([len(ids) - 1]),
        )

    def targets(
        self, examples: Sequence[Instance], readings: Sequence[Example], page: Collated
    ) -> TaskTargets:
        """Read one state a line, and predict its tokens."""
        key = super().targets(examples, readings, page)
        tokens = page.token_targets(readings)[0] if self.lm_loss_weight else None
        return TaskTargets(
            key.read_at, key.instance_ids, key.target, key.weight, key.teacher_probs, tokens
        )

    def counts(self, examples: Sequence[Instance], key: TaskTargets) -> dict[str, int]:
        """Count the tokens that are predicted, too."""
        predicted = {} if key.tokens is None else {"lm_auxiliary": len(key.tokens.labels)}
        return super().counts(examples, key) | predicted

    def loss(self, model: Any, batch: Batch[TaskTargets], /) -> Loss:
        """Sum -log p(class), and -log p(token) at a lower weight."""
        hidden = model(batch.inputs).hidden
        sums = {
            "label": self.loss_sum(self.pooled_logits(model, hidden, batch.targets), batch.targets)
        }
        tokens = batch.targets.tokens
        if tokens is None:
            return Loss(sums)
        sums["lm_auxiliary"] = model.lm_logits(tokens.gather(hidden)).nll(tokens.labels)
        return Loss(sums, {"lm_auxiliary": self.lm_loss_weight})

    def pooled_logits(self, model: Any, hidden: Tensor, key: TaskTargets) -> Tensor:
        """Score the last token of each line; those of both orders are one."""
        states = hidden.flatten(0, 1).index_select(0, key.read_at)
        if self.both_orders and self.task.kind != "choose":
            added = states.new_zeros(len(key.target), states.shape[1])
            states = added.index_add(0, key.instance_ids, states)
        return model.logits(states).float()

    def logits(self, model: Any, batch: Batch[TaskTargets], /) -> list[RawScores]:
        """Return the scores of each example: (classes,) or (options,)."""
        scores = self.pooled_logits(model, model(batch.inputs).hidden, batch.targets)
        if self.task.kind == "choose":
            return [part[:, 0] for part in split_by_instance(scores, batch.targets.instance_ids)]
        return [*scores.double().cpu().numpy()]


@config("bare")
class BareCausalHead(CausalHead):
    """Read a text as it is, with nothing around it, as transformers' own classes do."""

    lm_loss_weight: float = 0.0

    name: ClassVar[str] = "bare"

    def example(self, texts: Sequence[Sequence[int]], tokenizer: Tokenizer) -> Example:
        """Put texts one behind the other."""
        ids = np.array([id for text in texts for id in text], np.int64)
        return Example(
            input_ids=ids, order=np.arange(len(ids)), read_positions=np.array([len(ids) - 1])
        )


def causal_special_tokens(special_tokens: SpecialTokens) -> tuple[int, int, int]:
    """Return the start, the delimiter and the token that is read, of those a tokenizer has.

    One with <|endoftext|> alone, as GPT-2's, has it in all three places.
    """
    last = special_tokens.require("eos")
    start = last if special_tokens.bos is None else special_tokens.bos
    delimiter = last if special_tokens.sep is None else special_tokens.sep
    return start, delimiter, last if special_tokens.cls is None else special_tokens.cls


@config("token_head")
class TokenHead(Formulation):
    """Score one piece of every word."""

    frame: str | None = "bert"  # of FRAMES; None for a decoder
    causal: bool = False  # a decoder sees the words before only
    class_weights: tuple[float, ...] = ()  # of the tags
    distillation_weight: float = 0.0  # the share of the loss that is a teacher's
    temperature: float = 2.0

    name: ClassVar[str] = "head"
    tasks: ClassVar[tuple[str, ...]] = ("tag",)
    head: ClassVar[str | None] = "tokens"

    def training_instances(self, row: TaggedSentence, tokenizer: Tokenizer, /) -> list[Instance]:
        """Read the words, in as many stretches as it takes."""
        chunks = encode_words(tokenizer, row.words)
        verb = None if row.predicate is None else chunks[row.predicate]
        texts = 1 if verb is None else 2
        room = self.max_length - (num_special_tokens(self.frame, texts) if self.frame else texts)
        if verb is not None:
            verb = verb[: room // 2]  # a long one leaves room for words
            room -= len(verb)
        marks = None if row.tags is None else [self.task.label_id(tag) for tag in row.tags]
        examples = []
        for start, stop in split_to_fit([len(p) for p in chunks], room):
            reading = self.example(chunks[start:stop], verb, tokenizer, room)
            target = None if marks is None else marks[start:stop]
            examples.append(Instance(examples=(reading,), target=target))
        return examples

    def example(
        self,
        chunks: Sequence[Sequence[int]],
        verb: Sequence[int] | None,
        tokenizer: Tokenizer,
        room: int,
    ) -> Example:
        """Frame the pieces of some words, and the verb whose roles are asked for."""
        kept = [chunk[:room] for chunk in chunks]  # one word may be longer than all the room
        inside = [id for chunk in kept for id in chunk]
        indices = np.cumsum([0, *(len(chunk) for chunk in kept)])[:-1]
        if self.frame is None:
            start, delimiter, _ = causal_special_tokens(tokenizer.special_tokens)
            ahead = [start] if verb is None else [start, *verb, delimiter]
            ids = np.array([*ahead, *inside], np.int64)
            time = np.arange(len(ids)) if self.causal else np.zeros_like(ids)
            if self.causal:
                indices = np.cumsum([len(chunk) for chunk in kept]) - 1
            return Example(input_ids=ids, order=time, read_positions=indices + len(ahead))
        texts = [inside] if verb is None else [inside, verb]
        whole = apply_template(self.frame, tokenizer.special_tokens, texts)
        return Example(
            input_ids=whole.ids,
            order=np.zeros_like(whole.ids),
            token_type_ids=whole.token_type_ids,
            read_positions=indices + whole.offsets[0],
        )

    def targets(
        self, examples: Sequence[Instance], readings: Sequence[Example], page: Collated
    ) -> TaskTargets:
        """Read one state a word."""
        counts = torch.tensor([len(r.read_positions) for r in readings])
        group = torch.repeat_interleave(torch.arange(len(examples)), counts)
        target = torch.full((len(group),), IGNORE_INDEX)
        if examples[0].target is not None:
            target = torch.tensor([tag for e in examples for tag in e.target])
        weight = torch.ones(len(target))
        if self.class_weights:
            weight = torch.tensor(self.class_weights)[target.clamp(min=0)]
        return TaskTargets(
            page.read_positions(readings), group, target, weight, stack_soft_targets(examples)
        )

    def loss(self, model: Any, batch: Batch[TaskTargets], /) -> Loss:
        """Sum -log p(tag)."""
        finetune_config = {"teaching": self.distillation_weight, "heat": self.temperature}
        wrong = weighted_cross_entropy(logits_at(model, batch), batch.targets, **finetune_config)
        return Loss({"label": wrong.sum()})

    def logits(self, model: Any, batch: Batch[TaskTargets], /) -> list[RawScores]:
        """Return the scores of the words of each example: (words, tags)."""
        return split_by_instance(logits_at(model, batch), batch.targets.instance_ids)

    def decode(
        self, row: Any, examples: Sequence[Instance], replies: Sequence[RawScores], /
    ) -> Prediction:
        """Name the tag of every word."""
        if not replies:
            return Prediction(())
        shares = softmax(np.concatenate(list(replies)))
        best = shares.argmax(-1)
        tags = tuple(self.task.labels[int(tag)] for tag in best)
        sure = shares.max(-1)
        return Prediction(tags, tuple(sure.tolist()), float(sure.min()))

    def soft_labels(self, reply: RawScores) -> RawScores:
        """Turn a teacher's reply into what a student learns from."""
        return softmax(reply / self.temperature)


def encode_words(tokenizer: Tokenizer, words: Sequence[str]) -> list[list[int]]:
    """Return the pieces of each word, as they are in a running text; a word has one at least."""
    empty = tokenizer.special_tokens.unk
    empty = tokenizer.special_tokens.pad if empty is None else empty
    chunks = []
    before = ""
    for word in words:
        chunks.append(tokenizer.offsets(space_between(before, word) + word)[0] or [empty])
        before = word
    return chunks


def split_to_fit(sizes: Sequence[int], room: int) -> list[tuple[int, int]]:
    """Part words into stretches that fit: first word, and the one after the last."""
    found, start, used = [], 0, 0
    for place, size in enumerate(sizes):
        if place > start and used + size > room:
            found.append((start, place))
            start, used = place, 0
        used += min(size, room)
    return [*found, (start, len(sizes))] if sizes else []
