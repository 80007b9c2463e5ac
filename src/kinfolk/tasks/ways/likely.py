"""Options by their likelihood: what every way shares that answers by what it would rather say."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kinfolk.batch import IGNORE_INDEX, Batch
from kinfolk.tasks.examples import Collated, Example, Instance
from kinfolk.tasks.rows import CompletionRow, MultipleChoiceRow
from kinfolk.tasks.speech import (
    SequenceLayout,
    build_example,
    encode_continuation,
    num_special_tokens,
)
from kinfolk.tasks.task import Prediction
from kinfolk.tasks.ways.way import (
    Formulation,
    RawScores,
    TaskTargets,
    instance_index,
    softmax,
    split_by_instance,
)
from kinfolk.text.tokenizer import Tokenizer


@dataclass(frozen=True, kw_only=True)
class OptionScoring(Formulation):
    """Say each option where the answer belongs, and add up how likely its tokens are."""

    layout: SequenceLayout = "decoder"
    infill: bool = False  # the answer stands inside the text, not behind it
    length_normalized: bool = (
        False  # a token's likelihood, not an option's: long ones have a chance
    )
    score_eos: bool = False  # an option says its end, too

    @abstractmethod
    def prompt(self, row: Any) -> tuple[str, str]:
        """Return the text before the answer, and the text after it."""

    @abstractmethod
    def options(self, row: Any) -> tuple[str, ...] | None:
        """Return the answers there are to choose from, where they are known."""

    def target(self, row: Any) -> int | None:
        """Return the place of the right option."""
        options = self.options(row)
        assert options is not None
        match row:
            case MultipleChoiceRow(label=label):
                return label
            case CompletionRow(target=said):
                return None if said is None else options.index(said)
        return None if row.label is None else self.task.label_id(str(row.label))

    def score_options(self, row: Any, tokenizer: Tokenizer) -> Instance:
        """Read a row once for each option."""
        options = self.options(row)
        assert options is not None
        said = [self.encode_with_answer(row, option, tokenizer) for option in options]
        readings, cut = zip(*said, strict=True)
        return Instance(examples=readings, target=self.target(row), truncated_tokens=max(cut))

    def encode_with_answer(
        self, row: Any, answer: str, tokenizer: Tokenizer, *, end: bool | None = None
    ) -> tuple[Example, int]:
        """Read a row with an answer in it; say how many of its tokens are cut."""
        before, after = self.prompt(row)
        opening = self.append_separator(tokenizer.offsets(before)[0], tokenizer)
        said = encode_continuation(tokenizer, before, answer) or [self.pad_id]
        rest = tokenizer.offsets(after)[0] if after.strip() else []
        whole = len(opening) + len(said) + len(rest)
        room = self.max_length - num_special_tokens(self.layout)
        said = said[: max(1, room - 1)]
        if self.layout == "encoder-decoder":
            room += len(said)  # which stand in a row of their own
        rest = rest[: max(0, room - len(said) - 1)]
        kept = self.truncate_prompt(opening, max(1, room - len(said) - len(rest)))
        laid = build_example(
            self.layout,
            tokenizer.special_tokens,
            kept,
            said,
            rest,
            end=self.score_eos if end is None else end,
            hole=self.infill,
        )
        return laid, whole - len(kept) - len(said) - len(rest)

    def append_separator(self, before: list[int], tokenizer: Tokenizer) -> list[int]:
        """Return what is read before the answer, with what divides the two."""
        return before

    def truncate_prompt(self, opening: list[int], room: int) -> list[int]:
        """Cut what is read before the answer to the room there is: its start goes."""
        return opening[-room:]

    def targets(
        self, examples: Sequence[Instance], readings: Sequence[Example], page: Collated
    ) -> TaskTargets:
        """Predict the tokens of every option."""
        member = instance_index(examples)
        tokens, reading = page.tokens(readings)
        target = torch.tensor([IGNORE_INDEX if e.target is None else e.target for e in examples])
        first = torch.bincount(member).cumsum(0) - torch.bincount(member)
        target = torch.where(target == IGNORE_INDEX, target, first + target)
        nothing = torch.zeros(0, dtype=torch.int64)
        weight = torch.ones(len(examples))
        return TaskTargets(nothing, nothing, target, weight, None, tokens, reading, member)

    def sequence_logprobs(self, model: Any, batch: Batch[TaskTargets]) -> Tensor:
        """Return log p of every reading, by its predicted tokens."""
        key = batch.targets
        assert (
            key.tokens is not None
            and key.reading is not None
            and key.instance_of_example is not None
        )
        hidden = key.tokens.gather(model(batch.inputs).hidden)
        scores: Tensor = model.lm_logits(hidden).logits().float()
        each: Tensor = scores.log_softmax(-1).gather(1, key.tokens.labels[:, None])[:, 0]
        total = each.new_zeros(len(key.instance_of_example)).index_add(0, key.reading, each)
        if not self.length_normalized:
            return total
        return total / torch.bincount(key.reading, minlength=len(key.instance_of_example)).clamp(
            min=1
        )

    def logits(self, model: Any, batch: Batch[TaskTargets], /) -> list[RawScores]:
        """Return log p of each option."""
        assert batch.targets.instance_of_example is not None
        return split_by_instance(
            self.sequence_logprobs(model, batch), batch.targets.instance_of_example
        )

    def decode(
        self, row: Any, examples: Sequence[Instance], replies: Sequence[RawScores], /
    ) -> Prediction:
        """Name the option that is likeliest."""
        (reply,) = replies
        shares = softmax(reply)
        best = int(np.argmax(shares))
        options = self.options(row)
        assert options is not None
        match row:
            case MultipleChoiceRow():
                value: Any = best
            case CompletionRow():
                value = options[best]
            case _:
                value = self.task.labels[best]
        return Prediction(value, tuple(shares.tolist()), float(shares[best]))
