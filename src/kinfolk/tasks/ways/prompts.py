"""Answers without learning (Brown et al., 2020): some solved rows in the prompt, or none.

prompt    a dull play . -> bad | a fine film . ->
options   good | bad
score     log p(option | prompt), a token of it, so that long options have a chance
"""

from typing import Any, ClassVar

from kinfolk.batch import Batch, Loss
from kinfolk.config import config
from kinfolk.errors import UserError
from kinfolk.tasks.examples import Example
from kinfolk.tasks.rows import Choice, Completion, Labelled, Written
from kinfolk.tasks.speech import HOLE, around_hole, glue
from kinfolk.tasks.task import Answer
from kinfolk.tasks.ways.likely import Likely
from kinfolk.tasks.ways.way import Key, blind
from kinfolk.text.tokenizer import Tokenizer

PATTERNS = {
    "classify": "{text} {text2} -> {answer}",
    "choose": "{text} {question} {answer}",
    "write": "{text} -> {answer}",
}


@config("prompt")
class Prompts(Likely):
    """Let options compete behind a prompt; nothing is learned."""

    pattern: str = ""
    words: tuple[str, ...] = ()  # what is said for each class; none says their names
    shots: tuple[str, ...] = ()  # solved rows that stand before
    between: str = "\n"  # solved rows
    averaged: bool = True
    tokens: int = 64  # the most that is written, where there are no options

    name: ClassVar[str] = "prompt"
    solves: ClassVar[tuple[str, ...]] = ("classify", "choose", "complete", "write")

    def lessons(self, row: Any, tokenizer: Tokenizer, /) -> list[Example]:
        """Say that there are none."""
        raise UserError(
            "a prompt learns nothing: give the solved rows with --shots, or learn by another --way"
        )

    def questions(self, row: Any, tokenizer: Tokenizer, /) -> list[Example]:
        """Read a row once for each option."""
        return [] if self.writes(row) else [self.weighed(blind(row), tokenizer)]

    def asked(self, row: Any) -> tuple[str, str]:
        """Put the row behind those that are solved."""
        if isinstance(row, Completion):
            before, after = row.context, row.after
        else:
            before, after = around_hole(self.pattern or PATTERNS[self.task.kind], row)
        return self.between.join([*self.shots, before.rstrip()]), after

    def solved(self, row: Any) -> str:
        """Write a labelled row out with its answer, to stand before others."""
        before, after = replaced(self.pattern or PATTERNS[self.task.kind], row)
        said = self.right(row)
        return f"{before.rstrip()}{glue(before.rstrip(), said)}{said}{after}"

    def right(self, row: Any) -> str:
        """Return the right answer of a labelled row as it is said."""
        match row:
            case Choice(label=int(label), options=options):
                return options[label]
            case Labelled(label=label) if label is not None:
                place = self.task.place(str(label))
                return (self.words or self.task.labels)[place]
            case Written(target=str(target)) | Completion(target=str(target)):
                return target
        raise UserError(f"row {row.number} has no label: it cannot stand before others as solved")

    def options(self, row: Any) -> tuple[str, ...] | None:
        """Return the words of the classes, or the options of the row."""
        if isinstance(row, Choice | Completion):
            return row.options
        return None if isinstance(row, Written) else self.words or self.task.labels

    def writes(self, row: Any) -> bool:
        """Say whether the answer to a row is written, and not chosen."""
        return self.options(row) is None

    def loss(self, model: Any, batch: Batch[Key], /) -> Loss:
        """Say that there is none."""
        raise UserError("a prompt learns nothing: choose another --way to fine-tune")

    def heard(self, row: Any, text: str) -> Answer:
        """Turn what was written into an answer: its first line."""
        return Answer(text.strip().split("\n")[0].strip())


def replaced(pattern: str, row: Any) -> tuple[str, str]:
    """Fill a pattern in for a row that is shown whole."""
    if isinstance(row, Completion):
        return row.context, row.after
    return around_hole(pattern if HOLE in pattern else pattern + HOLE, row)
