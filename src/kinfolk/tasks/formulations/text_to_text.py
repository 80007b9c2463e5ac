"""Text to text (Raffel et al., 2020): every answer is a text, also a number or tags.

read      stsb sentence1: a plane lands . sentence2: an airplane is landing .
write     4.6

Where a row has options, the most likely one is predicted; else the answer is generated.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Self

from kinfolk.batch import IGNORE_INDEX, Batch, Loss
from kinfolk.config import config, field
from kinfolk.data.chunks import InMemoryDocuments
from kinfolk.generation.config import GenerationConfig
from kinfolk.objectives.clm import CLM
from kinfolk.rng import Stream, generator
from kinfolk.tasks.formulations.base import Instance, RawScores, TaskTargets
from kinfolk.tasks.formulations.scoring import OptionScoring
from kinfolk.tasks.formulations.sequences import NUM_LAYOUT_TOKENS, build_example
from kinfolk.tasks.task import Prediction
from kinfolk.text.tokenizer import Tokenizer

ROUND_TO = 0.2  # the step of numbers from 0 to 5 (section 2.4)
NUM_STEPS = 25  # of other ranges of numbers, at least: as many as STS-B's
NUMBER_TOKENS = 8  # of a generated number, at most
LENGTH_SAMPLE_ROWS = 1000  # read to choose the maximum length of outputs


@config("text")
class TextToText(OptionScoring):
    """Read the prefix of the task and the texts of a row, and generate the answer."""

    score_eos: bool = True
    max_new_tokens: int = field(default=64, ge=1, le=2**24, help="tokens of an output")
    num_beams: int = field(default=1, ge=1, le=2**12, help="beams of beam search")
    grain: float = field(default=ROUND_TO, gt=0, help="step that numbers are rounded to")
    default_number: float = 0.0  # mean of the training rows, for outputs without one

    name = "text"
    static_shapes = True
    outputs = (
        "label", "number", "option", "tags", "span", "text", "word", "likelihood",
    )  # fmt: skip

    def fit(self, rows: Sequence[Any], tokenizer: Tokenizer, *, balanced: bool = False) -> Self:
        """Set the step and the mean of numbers, or the length of generated texts."""
        fitted = super().fit(rows, tokenizer, balanced=balanced)
        if self.task.output == "number":
            numbers = [float(row.label) for row in rows]
            return replace(
                fitted,
                default_number=sum(numbers) / len(numbers),
                grain=rounding_step(numbers),
                max_new_tokens=NUMBER_TOKENS,
            )
        if self.task.output in ("text", "tags", "span"):
            texts = [self.task.target_text(row) or "" for row in rows[:LENGTH_SAMPLE_ROWS]]
            longest = max(len(tokenizer.target.offsets(text)[0]) for text in texts)
            limit = max(self.max_new_tokens, min(self.max_length, longest + 1))
            return replace(fitted, max_new_tokens=limit)
        return fitted

    def generates(self, row: Any) -> bool:
        """Return whether the answer is generated, because there are no options."""
        return self.task.output != "likelihood" and self.options(row) is None

    def generation_config(self) -> GenerationConfig:
        """Return the settings of beam search or greedy decoding."""
        return replace(super().generation_config(), num_beams=self.num_beams)

    def prompt(self, row: Any) -> tuple[str, str]:
        """Return the prefix and the texts of a row, each under its name."""
        return self.task.prompt(row)

    def append_separator(self, before: list[int], tokenizer: Tokenizer) -> list[int]:
        """Append a separator between the prompt and the answer of a decoder."""
        if self.layout != "decoder" or self.task.output in ("word", "likelihood"):
            return before
        special_tokens = tokenizer.special_tokens
        separator = special_tokens.sep
        return [*before, special_tokens.require("eos") if separator is None else separator]

    def truncate_prompt(self, opening: list[int], room: int) -> list[int]:
        """Truncate the end, which keeps the prefix; before a next word, truncate the start."""
        if self.task.output == "word" or len(opening) <= room:
            return opening[-room:]
        separator = opening[-1:] if self.layout == "decoder" else []
        return [*opening[: room - len(separator)], *separator]

    def target_text(self, row: Any) -> str | None:
        """Return the reference as text; a number is rounded."""
        if self.task.output != "number" or row.label is None:
            return self.task.target_text(row)
        decimals = max(0, math.ceil(-math.log10(self.grain)))
        return f"{round(row.label / self.grain) * self.grain:.{decimals}f}"

    def instances(
        self, row: Any, tokenizer: Tokenizer, /, *, labelled: bool = True
    ) -> list[Instance]:
        """Encode a row with its reference; for predictions, with each option.

        Rows without options have a likelihood of the reference where the kind scores it.
        """
        if not labelled and self.options(row) is not None:
            return [self.score_options(row, tokenizer, labelled=False)]
        if not labelled and self.task.output not in ("word", "likelihood"):
            return []
        answer = self.target_text(row)
        if answer is None:
            return []
        if self.task.output == "likelihood":
            scored = not labelled and self.layout == "decoder"
            return (self.clm_windows if scored else self.rolling_windows)(answer, tokenizer)
        end = self.task.output != "word" or self.layout != "decoder"
        example, truncated = self.encode_with_answer(row, answer, tokenizer, end=end)
        return [Instance(examples=(example,), truncated_tokens=truncated)]

    def rolling_windows(self, text: str, tokenizer: Tokenizer) -> list[Instance]:
        """Encode a text in as many windows as it needs: every token once, without an end."""
        ids, room = tokenizer.offsets(text)[0], self.max_length - NUM_LAYOUT_TOKENS
        windows = [ids[start : start + room] for start in range(0, len(ids), room)]
        examples = [
            build_example(self.layout, tokenizer.special_tokens, (), window, end=False)
            for window in windows
        ]
        return [Instance(examples=(example,)) for example in examples]

    def clm_windows(self, text: str, tokenizer: Tokenizer) -> list[Instance]:
        """Encode a text as `evaluate --text` does: with its end, and a token before each window."""
        objective = CLM(
            max_length=self.max_length,
            special_tokens=tokenizer.special_tokens,
            vocab_size=tokenizer.vocab_size,
        )
        chunks = objective.chunks(InMemoryDocuments.from_lists([[tokenizer.offsets(text)[0]]]))
        rng = generator(0, Stream.ORDER)  # unused by CLM
        return [Instance(examples=(objective.example(chunk, rng),)) for chunk in chunks]

    def counts(self, instances: Sequence[Instance], targets: TaskTargets) -> dict[str, int]:
        """Count the predicted tokens."""
        assert targets.tokens is not None
        return {"tokens": len(targets.tokens.labels)}

    def loss(self, model: Any, batch: Batch[TaskTargets], /) -> Loss:
        """Sum -log p(token of the answer)."""
        tokens = batch.targets.tokens
        assert tokens is not None
        hidden = model.read(batch.inputs, tokens.positions)
        return Loss({"tokens": model.lm_logits(hidden).nll(tokens.labels)})

    def parse_output(self, row: Any, text: str) -> Prediction:
        """Return the prediction from a generated text."""
        text = text.strip()
        if self.task.output == "number":
            return Prediction(parse_number(text, self.default_number))
        return Prediction(self.task.parse_text(row, text))

    def decode(
        self, row: Any, instances: Sequence[Instance], logits: Sequence[RawScores], /
    ) -> Prediction:
        """Return the most likely option; without options, the likelihood of the reference."""
        if self.options(row) is not None:
            return super().decode(row, instances, logits)
        labels = [e.labels for i in instances for e in i.examples if e.labels is not None]
        tokens = sum(int((some != IGNORE_INDEX).sum()) for some in labels)
        return Prediction("", nll=-sum(float(scores[0]) for scores in logits), tokens=tokens)


def parse_number(text: str, default: float) -> float:
    """Parse a finite number; return the default for any other text."""
    try:
        number = float(text)
    except ValueError:
        return default
    return number if math.isfinite(number) else default


def rounding_step(numbers: Sequence[float]) -> float:
    """Return the step that numbers are rounded to: 0.2 from 0 to 5, else 1, 2 or 5 times 10^n."""
    low, high = min(numbers), max(numbers)
    if (low >= 0 and 1 < high <= 5) or low == high:
        return ROUND_TO
    size = (high - low) / NUM_STEPS
    power = 10.0 ** math.floor(math.log10(size))
    return max(step for step in (power, 2 * power, 5 * power) if step <= size * (1 + 1e-9))
