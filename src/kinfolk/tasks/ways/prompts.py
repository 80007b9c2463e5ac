"""Answers without learning (Brown et al., 2020): some solved rows in the prompt, or none.

prompt    a dull play . -> bad | a fine film . ->
options   good | bad
score     log p(option | prompt), a token of it, so that long options have a chance
"""

from typing import Any, ClassVar

from kinfolk.batch import Batch, Loss
from kinfolk.config import config
from kinfolk.errors import UserError
from kinfolk.tasks.examples import Instance
from kinfolk.tasks.rows import CompletionRow, LabelledText, MultipleChoiceRow, SourceTarget
from kinfolk.tasks.speech import ANSWER_FIELD, fill_pattern, space_between
from kinfolk.tasks.task import Prediction
from kinfolk.tasks.ways.likely import OptionScoring
from kinfolk.tasks.ways.way import TaskTargets, without_label
from kinfolk.text.tokenizer import Tokenizer

DEFAULT_PATTERNS = {
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
            before, after = fill_pattern(self.pattern or DEFAULT_PATTERNS[self.task.kind], row)
        return self.fewshot_delimiter.join([*self.examples, before.rstrip()]), after

    def format_example(self, row: Any) -> str:
        """Write a labelled row out with its answer, to stand before others."""
        before, after = fill_fields(self.pattern or DEFAULT_PATTERNS[self.task.kind], row)
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
