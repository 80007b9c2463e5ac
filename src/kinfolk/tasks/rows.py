"""Rows of labelled files: one frozen dataclass for each kind of task.

`number` is the line or record of the file. A label, tags or a target that the file does not give
is None.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, TypeAlias

from kinfolk.errors import UserError
from kinfolk.metrics.extractive import greedy_oracle
from kinfolk.text.segment import split_sentences

MAX_ORACLE_SENTENCES = 3  # of a summary (Liu and Lapata 2019)
WordRange: TypeAlias = tuple[int, int]  # first word, and the one after the last


class Row(ABC):
    """Interface of rows for formulations and reports."""

    number: int

    @property
    @abstractmethod
    def text(self) -> str:
        """The text that a report shows."""

    @property
    @abstractmethod
    def texts_and_labels(self) -> tuple[str, ...]:
        """The main text, then all others that a tokenizer for these rows should know."""

    @property
    def fields(self) -> dict[str, str]:
        """The fields that a pattern may name."""
        raise UserError(
            f"{type(self).__name__} rows have no fields for a pattern: remove --pattern"
        )


@dataclass(frozen=True)
class LabelledText(Row):
    """A text or a pair of texts with a class or a number."""

    texts: tuple[str, ...]
    label: str | float | None
    number: int

    is_span: ClassVar[bool] = False  # True: the texts are words of longer sentences

    @property
    def text(self) -> str:
        """The texts with a separator between them."""
        return " ‖ ".join(self.texts)

    @property
    def texts_and_labels(self) -> tuple[str, ...]:
        """The texts, then the label where it is a string."""
        label = (self.label,) if isinstance(self.label, str) else ()
        return " ".join(self.texts), *label

    @property
    def fields(self) -> dict[str, str]:
        """The first text under two names, and the second."""
        first, second = self.texts[0], self.texts[1] if len(self.texts) > 1 else ""
        return {"text": first, "text1": first, "text2": second}


@dataclass(frozen=True)
class MultipleChoiceRow(Row):
    """A context and options; the label is the index of the correct option.

    A question stands between the context and each option and is never truncated with the context.
    """

    context: str
    options: tuple[str, ...]
    label: int | None
    number: int
    question: str = ""

    @property
    def text(self) -> str:
        """The context and the question."""
        return f"{self.context} {self.question}".strip()

    @property
    def texts_and_labels(self) -> tuple[str, ...]:
        """The context, the question and the options."""
        return self.context, self.question, *self.options

    @property
    def fields(self) -> dict[str, str]:
        """The context, the question and the numbered options."""
        options = " ".join(f"({number}) {text}" for number, text in enumerate(self.options, 1))
        return {"text": self.context, "question": self.question, "options": options}


@dataclass(frozen=True)
class TaggedSentence(Row):
    """Words with a tag each; for semantic roles, those of the predicate at an index."""

    words: tuple[str, ...]
    tags: tuple[str, ...] | None
    number: int
    predicate: int | None = None  # index of the predicate among the words

    @property
    def text(self) -> str:
        """The sentence."""
        return detokenize(self.words)

    @property
    def texts_and_labels(self) -> tuple[str, ...]:
        """The words."""
        return (" ".join(self.words),)

    @property
    def fields(self) -> dict[str, str]:
        """The sentence."""
        return {"text": self.text}


@dataclass(frozen=True)
class QuestionRow(Row):
    """A question about a context; each answer with the character of the context it starts at.

    An answer that the context does not contain starts at -1: it counts as correct, but has no span.
    A question with no answers is unanswerable, or its answers are unknown.
    """

    id: str
    context: str
    question: str
    answers: tuple[tuple[str, int], ...]
    answerable: bool
    number: int

    @property
    def text(self) -> str:
        """The question and the context."""
        return f"{self.question} ‖ {self.context}"

    @property
    def texts_and_labels(self) -> tuple[str, ...]:
        """The context and the question."""
        return self.context, self.question

    @property
    def fields(self) -> dict[str, str]:
        """The context and the question."""
        return {"text": self.context, "question": self.question}


@dataclass(frozen=True)
class SourceTarget(Row):
    """A text and the text to generate for it; other references are as correct."""

    source: str
    target: str | None
    number: int
    other_references: tuple[str, ...] = ()

    @property
    def references(self) -> tuple[str, ...]:
        """Every correct target."""
        return () if self.target is None else (self.target, *self.other_references)

    @property
    def text(self) -> str:
        """The source, or the target where there is none."""
        return self.source or self.target or ""

    @property
    def texts_and_labels(self) -> tuple[str, ...]:
        """The source and the target."""
        return self.source, *(() if self.target is None else (self.target,))

    @property
    def fields(self) -> dict[str, str]:
        """The source."""
        return {"text": self.source}


@dataclass(frozen=True)
class Article(SourceTarget):
    """A text whose summary is made of sentences of its own; the target is a summary by a person."""

    @cached_property
    def sentences(self) -> tuple[str, ...]:
        """The sentences of the text."""
        return tuple(split_sentences(self.source))

    @cached_property
    def oracle(self) -> tuple[int, ...]:
        """The indices of the sentences that a greedy search by ROUGE chooses."""
        return greedy_oracle(self.sentences, self.references, MAX_ORACLE_SENTENCES)


@dataclass(frozen=True)
class CompletionRow(Row):
    """A text and its next word, optionally one of given options; `suffix` follows the word."""

    context: str
    target: str | None
    options: tuple[str, ...] | None
    number: int
    suffix: str = ""

    @property
    def text(self) -> str:
        """The text before the word."""
        return self.context

    @property
    def texts_and_labels(self) -> tuple[str, ...]:
        """The context, the options and the target."""
        return self.context, *(self.options or ()), self.target or ""

    @property
    def fields(self) -> dict[str, str]:
        """The texts before and after the word."""
        return {"text": self.context, "after": self.suffix}


@dataclass(frozen=True)
class CorefDocument(Row):
    """A document and its clusters of coreferent spans, in words of the document.

    Mentions that are given include those in no cluster; where none are given, they are predicted.
    """

    id: str
    sentences: tuple[tuple[str, ...], ...]
    clusters: tuple[tuple[WordRange, ...], ...] | None
    number: int
    mentions: tuple[WordRange, ...] | None = None
    speakers: tuple[tuple[str, ...], ...] | None = None  # the speaker of each word

    @property
    def words(self) -> tuple[str, ...]:
        """The words of all sentences."""
        return tuple(word for sentence in self.sentences for word in sentence)

    @property
    def text(self) -> str:
        """The document."""
        return detokenize(self.words)

    @property
    def texts_and_labels(self) -> tuple[str, ...]:
        """The words."""
        return (" ".join(self.words),)


def detokenize(words: Sequence[str]) -> str:
    """Join words with spaces, but none beside a Chinese character."""
    text = ""
    for word in words:
        text += word if not text else space_between(text, word) + word
    return text


def space_between(before: str, after: str) -> str:
    """Return the separator of two words: a space, but nothing beside a Chinese character."""
    if not before or not after or before[-1].isspace():
        return ""
    return "" if is_cjk(before[-1]) or is_cjk(after[0]) else " "


def is_cjk(character: str) -> bool:
    """Return whether a character is written without spaces around it."""
    return "\u2e80" <= character <= "\u9fff" or "\uf900" <= character <= "\uffef"
