"""One frozen value for each kind of labelled example; `number` is its line or record in the file.

What a file does not say is None: a label, tags or a target to be predicted.
"""

from dataclasses import dataclass
from typing import TypeAlias

Span: TypeAlias = tuple[int, int]  # first word, and the one after the last


@dataclass(frozen=True)
class LabelledText:
    """A text or a pair of texts, and its class or its number: classify and regress."""

    texts: tuple[str, ...]
    label: str | float | None
    number: int


@dataclass(frozen=True)
class MultipleChoiceRow:
    """A context and what may follow it; the label is the place of the right option, from 0.

    A question stands between the context and each option, and is never cut with the context.
    """

    context: str
    options: tuple[str, ...]
    label: int | None
    number: int
    question: str = ""


@dataclass(frozen=True)
class TaggedSentence:
    """Words, and a tag for each; for roles, those of the predicate at a place."""

    words: tuple[str, ...]
    tags: tuple[str, ...] | None
    number: int
    predicate: int | None = None  # the place of the verb among the words, from 0


@dataclass(frozen=True)
class QuestionRow:
    """A question about a context; each answer with the character of the context it begins at.

    An answer that the context does not hold begins at -1: it counts as right, and no span is it.
    No answer is possible where `possible` is false; without answers and possible, they are unknown.
    """

    id: str
    context: str
    question: str
    answers: tuple[tuple[str, int], ...]
    answerable: bool
    number: int


@dataclass(frozen=True)
class SourceTarget:
    """A text, and what is to be written about it; other targets that are as good come after."""

    source: str
    target: str | None
    number: int
    other_references: tuple[str, ...] = ()

    @property
    def references(self) -> tuple[str, ...]:
        """Every target that is right."""
        return () if self.target is None else (self.target, *self.other_references)


@dataclass(frozen=True)
class CompletionRow:
    """A text and the word that goes on with it, perhaps one of some options; `after` follows it."""

    context: str
    target: str | None
    options: tuple[str, ...] | None
    number: int
    suffix: str = ""


@dataclass(frozen=True)
class CorefDocument:
    """A document and the groups of spans that mean one thing, over its words counted through.

    Where mentions are given, those in no cluster are among them, too; else they are to be found.
    """

    id: str
    sentences: tuple[tuple[str, ...], ...]
    clusters: tuple[tuple[Span, ...], ...] | None
    number: int
    mentions: tuple[Span, ...] | None = None
    speakers: tuple[tuple[str, ...], ...] | None = None  # who says each word

    @property
    def words(self) -> tuple[str, ...]:
        """All words, through the sentences."""
        return tuple(word for sentence in self.sentences for word in sentence)


Row: TypeAlias = (
    LabelledText
    | MultipleChoiceRow
    | TaggedSentence
    | QuestionRow
    | SourceTarget
    | CompletionRow
    | CorefDocument
)
