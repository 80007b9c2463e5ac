"""Classes as words that fill a blank (Du et al., 2021, 2.3; Schick and Schuetze, 2020).

text      a fine film . It was [M] .
options   good | bad
score     log p(option | text), and the options compete
"""

from typing import Any, ClassVar

from kinfolk.batch import Batch, Loss
from kinfolk.config import config
from kinfolk.errors import UserError
from kinfolk.tasks.examples import Instance
from kinfolk.tasks.rows import CompletionRow, MultipleChoiceRow
from kinfolk.tasks.speech import fill_pattern
from kinfolk.tasks.ways.likely import OptionScoring
from kinfolk.tasks.ways.way import TaskTargets, segment_log_softmax
from kinfolk.text.tokenizer import Tokenizer

DEFAULT_PATTERNS = {"classify": "{text} {text2} {answer}", "choose": "{text} {question} {answer}"}


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
        before, after = fill_pattern(self.pattern or DEFAULT_PATTERNS[self.task.kind], row)
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
        return Loss({"labels": -logs.index_select(0, key.target).sum()})
