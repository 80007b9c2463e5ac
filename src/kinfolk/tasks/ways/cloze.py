"""Classes as words that fill a blank (Du et al., 2021, 2.3; Schick and Schuetze, 2020).

text      a fine film . It was [M] .
options   good | bad
score     log p(option | text), and the options compete
"""

from typing import Any, ClassVar

from kinfolk.batch import Batch, Loss
from kinfolk.config import config
from kinfolk.errors import UserError
from kinfolk.tasks.examples import Example
from kinfolk.tasks.rows import Choice, Completion
from kinfolk.tasks.speech import around_hole
from kinfolk.tasks.ways.likely import Likely
from kinfolk.tasks.ways.way import Key, log_softmax_by
from kinfolk.text.tokenizer import Tokenizer

PATTERNS = {"classify": "{text} {text2} {answer}", "choose": "{text} {question} {answer}"}


@config("cloze")
class Cloze(Likely):
    """Let options compete for the blank of a pattern."""

    pattern: str = ""
    words: tuple[str, ...] = ()  # what is said for each class; none says their names
    hole: bool = True

    name: ClassVar[str] = "cloze"
    solves: ClassVar[tuple[str, ...]] = ("classify", "choose", "complete")

    def __post_init__(self) -> None:
        if self.words and len(self.words) != len(self.task.labels):
            raise UserError(
                f"{len(self.words)} words were given for {len(self.task.labels)} classes: give one "
                f"for each of {', '.join(self.task.labels)}"
            )

    def lessons(self, row: Any, tokenizer: Tokenizer, /) -> list[Example]:
        """Read a row once for each option."""
        return [self.weighed(row, tokenizer)]

    def asked(self, row: Any) -> tuple[str, str]:
        """Fill the pattern in."""
        if isinstance(row, Completion):
            return row.context, row.after
        before, after = around_hole(self.pattern or PATTERNS[self.task.kind], row)
        return before.rstrip(), after  # the option brings the space before it along

    def options(self, row: Any) -> tuple[str, ...] | None:
        """Return the words of the classes, or the options of the row."""
        if isinstance(row, Completion) and row.options is None:
            raise UserError(
                f"row {row.number} has no options to choose from: complete it by --way text"
            )
        if isinstance(row, Choice | Completion):
            return row.options
        return self.words or self.task.labels

    def loss(self, model: Any, batch: Batch[Key], /) -> Loss:
        """Sum -log p(right option) among the options."""
        key = batch.targets
        assert key.member is not None
        logs = log_softmax_by(self.logs(model, batch), key.member, len(key.target))
        return Loss({"labels": -logs.index_select(0, key.target).sum()})
