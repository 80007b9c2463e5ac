"""Options scored by their likelihood: as completions, in a cloze pattern, after a prompt."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kinfolk.batch import IGNORE_INDEX, Batch, Loss
from kinfolk.config import config, field
from kinfolk.data.examples import Collated, Example
from kinfolk.errors import UserError
from kinfolk.generation.config import GenerationConfig
from kinfolk.generation.generate import generate_batches
from kinfolk.generation.prompts import EncodedPrompt, build_prompt
from kinfolk.tasks.formulations.base import (
    Formulation,
    Instance,
    RawScores,
    TaskTargets,
    instance_index,
    offset_targets,
    segment_log_softmax,
    split_by_instance,
)
from kinfolk.tasks.formulations.sequences import (
    NUM_LAYOUT_TOKENS,
    SequenceLayout,
    build_example,
    encode_continuation,
    fill_pattern,
)
from kinfolk.tasks.rows import space_between
from kinfolk.tasks.task import Prediction
from kinfolk.text.tokenizer import Tokenizer

GENERATION_BATCH = 32  # prompts per batch


@dataclass(frozen=True, kw_only=True)
class OptionScoring(Formulation):
    """Insert each option for the answer and sum the log-likelihood of its tokens."""

    layout: SequenceLayout = "decoder"
    infill: bool = False  # the answer is inside the text, not after it
    length_normalized: bool = False  # divide by the number of tokens
    score_eos: bool = False  # include the end of the answer

    @abstractmethod
    def prompt(self, row: Any) -> tuple[str, str]:
        """Return the text before the answer, and the text after it."""

    def options(self, row: Any) -> tuple[str, ...] | None:
        """Return the texts of the options, None where the answer is a free text."""
        return self.task.options(row)

    def score_options(self, row: Any, tokenizer: Tokenizer, *, labelled: bool) -> Instance:
        """Return the instance of a row with one example for each option."""
        options = self.options(row)
        assert options is not None
        encoded = [self.encode_with_answer(row, option, tokenizer) for option in options]
        examples, truncated = zip(*encoded, strict=True)
        target = self.task.option_index(row) if labelled else None
        return Instance(examples=examples, target=target, truncated_tokens=max(truncated))

    def encode_with_answer(
        self, row: Any, answer: str, tokenizer: Tokenizer, *, end: bool | None = None
    ) -> tuple[Example, int]:
        """Return the example of a row with an answer, and how many tokens were truncated."""
        before, after = self.prompt(row)
        opening = self.append_separator(tokenizer.offsets(before)[0], tokenizer)
        answer_ids = encode_continuation(tokenizer, before, answer) or [self.pad_id]
        rest = tokenizer.offsets(after)[0] if after.strip() else []
        total = len(opening) + len(answer_ids) + len(rest)
        room = self.max_length - NUM_LAYOUT_TOKENS
        answer_ids = answer_ids[: max(1, room - 1)]
        if self.layout == "encoder-decoder":
            room += len(answer_ids)  # which the decoder reads
        rest = rest[: max(0, room - len(answer_ids) - 1)]
        kept = self.truncate_prompt(opening, max(1, room - len(answer_ids) - len(rest)))
        example = build_example(
            self.layout,
            tokenizer.special_tokens,
            kept,
            answer_ids,
            rest,
            end=self.score_eos if end is None else end,
            infill=self.infill,
        )
        return example, total - len(kept) - len(answer_ids) - len(rest)

    def append_separator(self, before: list[int], tokenizer: Tokenizer) -> list[int]:
        """Return the tokens before the answer and a separator, if the formulation has one."""
        return before

    def truncate_prompt(self, opening: list[int], room: int) -> list[int]:
        """Truncate the start of the tokens before the answer."""
        return opening[-room:]

    def targets(
        self, instances: Sequence[Instance], examples: Sequence[Example], collated: Collated
    ) -> TaskTargets:
        """Predict the tokens of every option."""
        index = instance_index(instances)
        tokens, example_ids = collated.token_targets(examples)
        target = torch.tensor([IGNORE_INDEX if i.target is None else i.target for i in instances])
        return TaskTargets(
            read_at=torch.zeros(0, dtype=torch.int64),
            instance_ids=index,
            target=offset_targets(target, index),
            weight=torch.ones(len(instances)),
            tokens=tokens,
            example_ids=example_ids,
        )

    def sequence_logprobs(self, model: Any, batch: Batch[TaskTargets]) -> Tensor:
        """Return the log-likelihood of the predicted tokens of every example."""
        targets = batch.targets
        assert targets.tokens is not None and targets.example_ids is not None
        hidden = model.read(batch.inputs, targets.tokens.positions)
        logits: Tensor = model.lm_logits(hidden).logits().float()
        labels = targets.tokens.labels.clamp(min=0)  # those of padding are ignored
        each: Tensor = logits.log_softmax(-1).gather(1, labels[:, None])[:, 0]
        examples = len(targets.instance_ids)
        total = each.new_zeros(examples).index_add(0, targets.example_ids, each)
        if not self.length_normalized:
            return total
        counts = each.new_zeros(examples).index_add(0, targets.example_ids, torch.ones_like(each))
        return total / counts.clamp(min=1)

    def logits(self, model: Any, batch: Batch[TaskTargets], /) -> list[RawScores]:
        """Return the log-likelihood of each option."""
        return split_by_instance(self.sequence_logprobs(model, batch), batch.targets.instance_ids)

    def decode(
        self, row: Any, instances: Sequence[Instance], logits: Sequence[RawScores], /
    ) -> Prediction:
        """Return the most likely option."""
        (scores,) = logits
        return self.best_option(row, scores)

    # Generation, for rows without options

    max_new_tokens = 64

    def generation_config(self) -> GenerationConfig:
        """Return the settings of generation."""
        return GenerationConfig(do_sample=False, max_new_tokens=self.max_new_tokens)

    def parse_output(self, row: Any, text: str) -> Prediction:
        """Return the prediction from a generated text."""
        raise NotImplementedError

    def generate(self, model: Any, rows: Sequence[Any], tokenizer: Tokenizer) -> list[Prediction]:
        """Generate the answers of rows, those with prompts of similar length together."""
        prompts = [self.generation_prompt(model, row, tokenizer) for row in rows]
        config = self.generation_config()
        outputs = generate_batches(model, tokenizer, prompts, config, batch_size=GENERATION_BATCH)
        return [
            self.parse_output(row, text.text) for row, (text,) in zip(rows, outputs, strict=True)
        ]

    def generation_prompt(self, model: Any, row: Any, tokenizer: Tokenizer) -> EncodedPrompt:
        """Encode the text before an answer, truncated as in training and to leave room for it."""
        ids = self.append_separator(tokenizer.offsets(self.prompt(row)[0])[0], tokenizer)
        room = self.max_length - NUM_LAYOUT_TOKENS
        if model.config.max_length is not None and model.decoding != "encoder-decoder":
            longest = model.config.max_length - self.max_new_tokens - NUM_LAYOUT_TOKENS
            room = min(room, longest)
        return build_prompt(model, tokenizer, self.truncate_prompt(ids, max(1, room)))


CLOZE_PATTERNS = {"label": "{text} {text2} {answer}", "option": "{text} {question} {answer}"}


@config("cloze")
class Cloze(OptionScoring):
    """Score options in the blank of a pattern (Schick & Schütze 2021)."""

    pattern: str = ""
    verbalizer: tuple[str, ...] = ()  # the word of each class; empty for the labels themselves
    infill: bool = True

    name = "cloze"
    needs_layout = True
    outputs = ("label", "option", "word")
    static_shapes = True

    def __post_init__(self) -> None:
        if self.verbalizer and len(self.verbalizer) != len(self.task.labels):
            raise UserError(
                f"--verbalizer has {len(self.verbalizer)} words for {len(self.task.labels)} "
                f"classes: give one for each of {', '.join(self.task.labels)}"
            )

    def instances(
        self, row: Any, tokenizer: Tokenizer, /, *, labelled: bool = True
    ) -> list[Instance]:
        """Encode a row with each option."""
        return [self.score_options(row, tokenizer, labelled=labelled)]

    def prompt(self, row: Any) -> tuple[str, str]:
        """Return the filled pattern before and after the answer."""
        if self.task.output == "word":
            return self.task.prompt(row)
        before, after = fill_pattern(self.pattern or CLOZE_PATTERNS[self.task.output], row)
        return before.rstrip(), after  # the space is encoded with the option

    def options(self, row: Any) -> tuple[str, ...] | None:
        """Return the words of the classes, or the options of the row."""
        options = self.verbalizer or self.task.options(row)
        if options is None:
            raise UserError(
                f"row {row.number} has no options, which cloze needs: use --formulation text"
            )
        return options

    def loss(self, model: Any, batch: Batch[TaskTargets], /) -> Loss:
        """Sum -log p(correct option) among the options."""
        targets = batch.targets
        logprobs = segment_log_softmax(
            self.sequence_logprobs(model, batch), targets.instance_ids, len(targets.target)
        )
        chosen = logprobs.index_select(0, targets.target.clamp(min=0))
        return Loss({"label": -(targets.weight * chosen).sum()})


PROMPT_PATTERNS = {
    "label": "{text} {text2} -> {answer}",
    "option": "{text} {question} {answer}",
    "text": "{text} -> {answer}",
}


@config("prompt")
class Prompt(OptionScoring):
    """Score options after a zero- or few-shot prompt (Brown et al. 2020), without training."""

    pattern: str = ""
    verbalizer: tuple[str, ...] = ()  # the word of each class; empty for the labels themselves
    examples: tuple[str, ...] = ()  # few-shot examples
    fewshot_delimiter: str = "\n"
    length_normalized: bool = True
    max_new_tokens: int = field(
        default=64, ge=1, le=2**24, help="tokens of an output, where there are no options"
    )

    name = "prompt"
    outputs = ("label", "option", "word", "text")
    trains = False

    def instances(
        self, row: Any, tokenizer: Tokenizer, /, *, labelled: bool = True
    ) -> list[Instance]:
        """Encode a row with each option."""
        if labelled:
            raise UserError(
                "the formulation 'prompt' is not trained: use it in kinfolk evaluate with "
                "--num-fewshot, or fine-tune with another --formulation"
            )
        if self.generates(row):
            return []
        return [self.score_options(row, tokenizer, labelled=False)]

    def prompt(self, row: Any) -> tuple[str, str]:
        """Return the few-shot examples with the row up to its answer, and the text after it."""
        before, after = self.fill(row)
        return self.fewshot_delimiter.join([*self.examples, before.rstrip()]), after

    def fill(self, row: Any) -> tuple[str, str]:
        """Return the texts before and after the answer of one row."""
        if self.task.output == "word":
            return self.task.prompt(row)
        return fill_pattern(self.pattern or PROMPT_PATTERNS[self.task.output], row)

    def format_example(self, row: Any) -> str:
        """Return a labelled row with its answer, as a few-shot example."""
        before, after = self.fill(row)
        answer = self.label_word(row)
        return f"{before.rstrip()}{space_between(before.rstrip(), answer)}{answer}{after}"

    def label_word(self, row: Any) -> str:
        """Return the reference of a row as it occurs in a prompt."""
        if self.task.reference(row) is None:
            raise UserError(
                f"row {row.number} has no label, which a few-shot example needs: remove it"
            )
        index = self.task.option_index(row) if self.verbalizer else None
        return self.task.target_text(row) or "" if index is None else self.verbalizer[index]

    def options(self, row: Any) -> tuple[str, ...] | None:
        """Return the words of the classes, or the options of the row."""
        return self.verbalizer or self.task.options(row)

    def generates(self, row: Any) -> bool:
        """Return whether the answer is generated, because there are no options."""
        return self.options(row) is None

    def loss(self, model: Any, batch: Batch[TaskTargets], /) -> Loss:
        """Refuse to train."""
        raise UserError(
            "the formulation 'prompt' is not trained: fine-tune with another --formulation"
        )

    def parse_output(self, row: Any, text: str) -> Prediction:
        """Return the first line of a generated text."""
        return Prediction(text.strip().split("\n")[0].strip())
