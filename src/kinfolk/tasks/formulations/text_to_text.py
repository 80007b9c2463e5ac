"""Text to text (Raffel et al., 2020): every answer is a text, a number or a tag as any other.

read      stsb sentence1: a plane lands . sentence2: an airplane is landing .
write     4.6

Where the answers are known beforehand, the likeliest of them counts; else one is written.
"""

import math
from collections.abc import Sequence
from typing import Any, ClassVar

from kinfolk.batch import IGNORE_INDEX, Batch, Loss
from kinfolk.config import config
from kinfolk.tasks.examples import Instance
from kinfolk.tasks.formulations.base import RawScores, TaskTargets
from kinfolk.tasks.formulations.scoring import OptionScoring
from kinfolk.tasks.formulations.sequences import build_example, num_layout_tokens
from kinfolk.tasks.task import Output, Prediction
from kinfolk.text.tokenizer import Tokenizer

ROUND_TO = (
    0.2  # numbers from 0 to 5 are rounded to it, so that few texts stand for all (section 2.4)
)
GRAINS = 25  # that the range of other numbers has at least: as many as STS-B's


@config("text")
class TextToText(OptionScoring):
    """Read a task's prefix and the texts of a row, and write the answer."""

    score_eos: bool = True
    max_new_tokens: int = 64  # the most that is written
    num_beams: int = 1
    grain: float = ROUND_TO  # numbers are rounded to it
    default_number: float = 0.0  # of the numbers in training: the answer where none was written

    name: ClassVar[str] = "text"
    outputs: ClassVar[tuple[Output, ...]] = (
        "label", "number", "option", "tags", "span", "text", "word", "likelihood",
    )  # fmt: skip

    def generates(self, row: Any) -> bool:
        """Say whether the answer to a row is written, and not chosen."""
        return self.task.output != "likelihood" and self.options(row) is None

    def prompt(self, row: Any) -> tuple[str, str]:
        """Return the prefix and the texts of a row, each under its name."""
        return self.task.prompt(row)

    def append_separator(self, before: list[int], tokenizer: Tokenizer) -> list[int]:
        """End what is read: a decoder must see where its answer begins."""
        if self.layout != "decoder" or self.task.output in ("word", "likelihood"):
            return before
        special_tokens = tokenizer.special_tokens
        return [
            *before,
            special_tokens.require("eos") if special_tokens.sep is None else special_tokens.sep,
        ]

    def truncate_prompt(self, opening: list[int], room: int) -> list[int]:
        """Cut what is read: its end, so that the task stays; its start, where the end is asked."""
        if self.task.output == "word" or len(opening) <= room:
            return opening[-room:]
        mark = opening[-1:] if self.layout == "decoder" else []
        return [*opening[: room - len(mark)], *mark]

    def options(self, row: Any) -> tuple[str, ...] | None:
        """Return the answers there are to choose from, where they are known."""
        return self.task.options(row)

    def target_text(self, row: Any) -> str | None:
        """Return the right answer as a text, a number rounded to the grain."""
        if self.task.output != "number" or row.label is None:
            return self.task.target_text(row)
        decimals = max(0, math.ceil(-math.log10(self.grain)))
        return f"{round(row.label / self.grain) * self.grain:.{decimals}f}"

    def training_instances(self, row: Any, tokenizer: Tokenizer, /) -> list[Instance]:
        """Say the right answer."""
        answer = self.target_text(row)
        if answer is None:
            return []
        if self.task.output == "likelihood":
            return self.rolling_windows(answer, tokenizer)
        end = self.task.output != "word" or self.layout != "decoder"
        said, cut = self.encode_with_answer(row, answer, tokenizer, end=end)
        return [Instance(examples=(said,), truncated_tokens=cut)]

    def rolling_windows(self, text: str, tokenizer: Tokenizer) -> list[Instance]:
        """Say a text itself, in as many stretches as it takes: every token once, and no end."""
        ids, room = tokenizer.offsets(text)[0], self.max_length - num_layout_tokens(self.layout)
        parts = [ids[start : start + room] for start in range(0, len(ids), room)]
        laid = [
            build_example(self.layout, tokenizer.special_tokens, (), part, end=False)
            for part in parts
        ]
        return [Instance(examples=(one,)) for one in laid]

    def inference_instances(self, row: Any, tokenizer: Tokenizer, /) -> list[Instance]:
        """Say each answer there is, or, where they are not known, the right one to weigh it."""
        if self.options(row) is not None:
            return [self.score_options(row.without_label(), tokenizer)]
        return (
            self.training_instances(row, tokenizer)
            if self.task.output in ("word", "likelihood")
            else []
        )

    def counts(self, examples: Sequence[Instance], key: TaskTargets) -> dict[str, int]:
        """Count the tokens that are predicted."""
        assert key.tokens is not None
        return {"tokens": len(key.tokens.labels)}

    def loss(self, model: Any, batch: Batch[TaskTargets], /) -> Loss:
        """Sum -log p(token of the answer)."""
        tokens = batch.targets.tokens
        assert tokens is not None
        hidden = tokens.gather(model(batch.inputs).hidden)
        return Loss({"tokens": model.lm_logits(hidden).nll(tokens.labels)})

    def parse_output(self, row: Any, text: str) -> Prediction:
        """Turn what was written into an answer."""
        text = text.strip()
        if self.task.output == "number":
            return Prediction(parse_number(text, self.default_number))
        return Prediction(self.task.parse_text(row, text))

    def decode(
        self, row: Any, examples: Sequence[Instance], replies: Sequence[RawScores], /
    ) -> Prediction:
        """Name the likeliest answer; where none is known, say how likely the right one is."""
        if self.options(row) is not None:
            return super().decode(row, examples, replies)
        labels = [r.labels for e in examples for r in e.examples if r.labels is not None]
        tokens = sum(int((some != IGNORE_INDEX).sum()) for some in labels)
        return Prediction("", nll=-sum(float(reply[0]) for reply in replies), tokens=tokens)


def parse_number(text: str, otherwise: float) -> float:
    """Read a number, if one was written."""
    try:
        found = float(text)
    except ValueError:
        return otherwise
    return found if math.isfinite(found) else otherwise


def grain(numbers: Sequence[float]) -> float:
    """Return what numbers are rounded to: T5's 0.2 from 0 to 5, else 1, 2 or 5 times 10^n."""
    low, high = min(numbers), max(numbers)
    if (low >= 0 and 1 < high <= 5) or low == high:
        return ROUND_TO
    size = (high - low) / GRAINS
    power = 10.0 ** math.floor(math.log10(size))
    return max(step for step in (power, 2 * power, 5 * power) if step <= size * (1 + 1e-9))
