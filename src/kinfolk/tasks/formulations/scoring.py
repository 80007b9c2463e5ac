"""Options scored by their likelihood: as completions, in a cloze pattern, after a prompt."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from kinfolk.batch import IGNORE_INDEX, Batch, Loss
from kinfolk.config import config
from kinfolk.data.examples import Collated, Example
from kinfolk.errors import UserError
from kinfolk.tasks.examples import Instance
from kinfolk.tasks.formulations.base import (
    Formulation,
    RawScores,
    TaskTargets,
    instance_index,
    segment_log_softmax,
    softmax,
    split_by_instance,
    without_label,
)
from kinfolk.tasks.formulations.sequences import (
    ANSWER_FIELD,
    SequenceLayout,
    build_example,
    encode_continuation,
    fill_pattern,
    num_layout_tokens,
    space_between,
)
from kinfolk.tasks.rows import CompletionRow, LabelledText, MultipleChoiceRow, SourceTarget
from kinfolk.tasks.task import Prediction
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
        room = self.max_length - num_layout_tokens(self.layout)
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
        tokens, reading = page.token_targets(readings)
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


CLOZE_PATTERNS = {"classify": "{text} {text2} {answer}", "choose": "{text} {question} {answer}"}


@config("cloze")
class Cloze(OptionScoring):
    """Let options compete for the blank of a pattern."""

    pattern: str = ""
    verbalizer: tuple[str, ...] = ()  # what is said for each class; none says their names
    infill: bool = True

    name: ClassVar[str] = "cloze"
    tasks: ClassVar[tuple[str, ...]] = ("classify", "choose", "complete")

    def __post_init__(self) -> None:
        if self.verbalizer and len(self.verbalizer) != len(self.task.labels):
            raise UserError(
                f"{len(self.verbalizer)} words were given for {len(self.task.labels)} classes: "
                "give one "
                f"for each of {', '.join(self.task.labels)}"
            )

    def training_instances(self, row: Any, tokenizer: Tokenizer, /) -> list[Instance]:
        """Read a row once for each option."""
        return [self.score_options(row, tokenizer)]

    def prompt(self, row: Any) -> tuple[str, str]:
        """Fill the pattern in."""
        if isinstance(row, CompletionRow):
            return row.context, row.suffix
        before, after = fill_pattern(self.pattern or CLOZE_PATTERNS[self.task.kind], row)
        return before.rstrip(), after  # the option brings the space before it along

    def options(self, row: Any) -> tuple[str, ...] | None:
        """Return the words of the classes, or the options of the row."""
        if isinstance(row, CompletionRow) and row.options is None:
            raise UserError(
                f"row {row.number} has no options to choose from: complete it by --way text"
            )
        if isinstance(row, MultipleChoiceRow | CompletionRow):
            return row.options
        return self.verbalizer or self.task.labels

    def loss(self, model: Any, batch: Batch[TaskTargets], /) -> Loss:
        """Sum -log p(right option) among the options."""
        key = batch.targets
        assert key.instance_of_example is not None
        logs = segment_log_softmax(
            self.sequence_logprobs(model, batch), key.instance_of_example, len(key.target)
        )
        return Loss({"label": -logs.index_select(0, key.target).sum()})


PROMPT_PATTERNS = {
    "classify": "{text} {text2} -> {answer}",
    "choose": "{text} {question} {answer}",
    "write": "{text} -> {answer}",
}


@config("prompt")
class Prompt(OptionScoring):
    """Let options compete behind a prompt; nothing is learned."""

    pattern: str = ""
    verbalizer: tuple[str, ...] = ()  # what is said for each class; none says their names
    examples: tuple[str, ...] = ()  # solved rows that stand before
    fewshot_delimiter: str = "\n"  # solved rows
    length_normalized: bool = True
    max_new_tokens: int = 64  # the most that is written, where there are no options

    name: ClassVar[str] = "prompt"
    tasks: ClassVar[tuple[str, ...]] = ("classify", "choose", "complete", "write")

    def training_instances(self, row: Any, tokenizer: Tokenizer, /) -> list[Instance]:
        """Say that there are none."""
        raise UserError(
            "a prompt learns nothing: give the solved rows with --shots, or learn by another --way"
        )

    def inference_instances(self, row: Any, tokenizer: Tokenizer, /) -> list[Instance]:
        """Read a row once for each option."""
        return [] if self.generates(row) else [self.score_options(without_label(row), tokenizer)]

    def prompt(self, row: Any) -> tuple[str, str]:
        """Put the row behind those that are solved."""
        if isinstance(row, CompletionRow):
            before, after = row.context, row.suffix
        else:
            before, after = fill_pattern(self.pattern or PROMPT_PATTERNS[self.task.kind], row)
        return self.fewshot_delimiter.join([*self.examples, before.rstrip()]), after

    def format_example(self, row: Any) -> str:
        """Write a labelled row out with its answer, to stand before others."""
        before, after = fill_fields(self.pattern or PROMPT_PATTERNS[self.task.kind], row)
        said = self.label_word(row)
        return f"{before.rstrip()}{space_between(before.rstrip(), said)}{said}{after}"

    def label_word(self, row: Any) -> str:
        """Return the right answer of a labelled row as it is said."""
        match row:
            case MultipleChoiceRow(label=int(label), options=options):
                return options[label]
            case LabelledText(label=label) if label is not None:
                place = self.task.label_id(str(label))
                return (self.verbalizer or self.task.labels)[place]
            case SourceTarget(target=str(target)) | CompletionRow(target=str(target)):
                return target
        raise UserError(f"row {row.number} has no label: it cannot stand before others as solved")

    def options(self, row: Any) -> tuple[str, ...] | None:
        """Return the words of the classes, or the options of the row."""
        if isinstance(row, MultipleChoiceRow | CompletionRow):
            return row.options
        return None if isinstance(row, SourceTarget) else self.verbalizer or self.task.labels

    def generates(self, row: Any) -> bool:
        """Say whether the answer to a row is written, and not chosen."""
        return self.options(row) is None

    def loss(self, model: Any, batch: Batch[TaskTargets], /) -> Loss:
        """Say that there is none."""
        raise UserError("a prompt learns nothing: choose another --way to fine-tune")

    def parse_output(self, row: Any, text: str) -> Prediction:
        """Turn what was written into an answer: its first line."""
        return Prediction(text.strip().split("\n")[0].strip())


def fill_fields(pattern: str, row: Any) -> tuple[str, str]:
    """Fill a pattern in for a row that is shown whole."""
    if isinstance(row, CompletionRow):
        return row.context, row.suffix
    return fill_pattern(pattern if ANSWER_FIELD in pattern else pattern + ANSWER_FIELD, row)
