"""The examples that an objective makes of a text, with where each token of the text went.

Every token of the text is given an id of its own, above the vocabulary, before an objective makes
its examples. These ids show where each token went; the batch has the ids of the tokenizer.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from kinfolk.batch import Batch
from kinfolk.data.chunks import InMemoryDocuments, IntArray
from kinfolk.data.datasets import ContiguousDataset
from kinfolk.data.examples import Example
from kinfolk.errors import UserError
from kinfolk.objectives.blank_infilling import BlankInfilling, BlankKind
from kinfolk.objectives.nsp import NSP
from kinfolk.objectives.objective import Objective
from kinfolk.objectives.recurrent_clm import RecurrentCLM
from kinfolk.objectives.seq2seq import Seq2Seq
from kinfolk.objectives.sop import SOP
from kinfolk.rng import Stream, generator
from kinfolk.text.tokenizer import Tokenizer
from kinfolk.workflows.evaluate import encode_documents

OTHER_DOCUMENT = "The harbour was empty. No ship had come since spring."


@dataclass(frozen=True)
class InspectedText:
    """A text and its tokenizer: documents, each of sentences, and targets of pairs if given."""

    documents: tuple[str, ...]
    tokenizer: Tokenizer
    target: str | None = None  # of the pair that an encoder-decoder learns from

    @cached_property
    def encoded(self) -> InMemoryDocuments:
        """The documents as ids, with the ends of sentences."""
        found, _ = encode_documents(self.tokenizer, self.documents)
        assert isinstance(found, InMemoryDocuments)
        return found

    @cached_property
    def ids(self) -> IntArray:
        """The ids of all documents, one after the other."""
        return self.encoded.token_ids

    def for_objective(self, objective: Objective) -> tuple[InMemoryDocuments, list[str]]:
        """Return the documents that an objective reads, and what was added to the text."""
        if isinstance(objective, Seq2Seq):
            return self.pair()
        if isinstance(objective, NSP) and not isinstance(objective, SOP):
            return self.with_other_document()
        return self.encoded, []

    def pair(self) -> tuple[InMemoryDocuments, list[str]]:
        """Return one pair: the text and its target, or both halves of the text."""
        ids = self.ids.tolist()
        if self.target is not None:
            target = self.tokenizer.target.encode(self.target, add_special_tokens=False)
            return InMemoryDocuments.from_lists([[ids, target]]), []
        if len(ids) < 2:
            raise UserError(
                "the text has 1 token, and a pair has two sides: use a longer text, or --target"
            )
        middle = self.middle
        note = "The text has no target: its second half stands for one."
        return InMemoryDocuments.from_lists([[ids[:middle], ids[middle:]]]), [note]

    @property
    def middle(self) -> int:
        """The sentence end nearest to the middle of the text, or the middle itself."""
        count = len(self.ids)
        ends = [int(end) for end in self.encoded.ends if 0 < end < count]
        return min(ends, key=lambda end: abs(end - count / 2), default=count // 2)

    def with_other_document(self) -> tuple[InMemoryDocuments, list[str]]:
        """Return the documents, and another one where there is only one to draw from."""
        if len(self.documents) > 1:
            return self.encoded, []
        found, _ = encode_documents(self.tokenizer, [*self.documents, OTHER_DOCUMENT])
        assert isinstance(found, InMemoryDocuments)
        if len(self.encoded.ends) < 2:  # the text of a single sentence has no other second text
            return found, []
        note = (
            f'Second texts that do not follow are drawn from another document: "{OTHER_DOCUMENT}"'
        )
        return found, [note]


@dataclass(frozen=True, eq=False)
class Draw:
    """The examples of a text under an objective: one packed row, or rows that continue."""

    objective: Objective
    rows: tuple[tuple[Example, ...], ...]  # with the ids of the tokenizer
    marked: tuple[tuple[Example, ...], ...]  # with an id of its own for each token of the text
    ids: IntArray  # of the documents; those that a marked id stands for
    notes: tuple[str, ...] = ()
    blank_kinds: tuple[BlankKind, ...] = ()  # what GLM masks in each text

    @cached_property
    def batches(self) -> list[Batch[Any]]:
        """The batch of each row, in rows that hold the examples and little padding."""
        return [self.batch_of(row) for row in self.rows]

    def batch_of(self, row: Sequence[Example]) -> Batch[Any]:
        """Collate a row of examples in the shortest rows that hold it."""
        lengths = tuple(map(sum, zip(*(example.lengths for example in row), strict=True)))
        return row_objective(self.objective, lengths).collate([row])

    def source(self, ids: IntArray) -> list[int | None]:
        """Return the token of the documents that each marked id stands for."""
        first = self.objective.vocab_size
        return [int(i) - first if i >= first else None for i in ids]


def row_objective(objective: Objective, lengths: Sequence[int]) -> Objective:
    """Return the objective with the shortest rows that hold examples of these lengths."""
    fitted = replace(objective, max_length=lengths[0])
    while missing := max(n - has for n, has in zip(lengths, fitted.row_lengths, strict=True)):
        if missing < 0:
            break
        fitted = replace(fitted, max_length=fitted.max_length + missing)
    return fitted


def draw_examples(objective_type: type[Objective], text: InspectedText, seed: int = 0) -> Draw:
    """Make the examples of a text; another seed makes other random choices."""
    tokenizer = text.tokenizer.with_end_token(objective_type.required_tokens)
    objective = objective_type(
        special_tokens=tokenizer.special_tokens,
        vocab_size=tokenizer.vocab_size,
        max_length=whole_length(len(text.ids)),
    )
    documents, notes = text.for_objective(objective)
    ids = documents.token_ids
    special = objective.special_tokens.is_special(ids)
    kinds: tuple[BlankKind, ...] = ()
    own = np.where(special, ids, objective.vocab_size + np.arange(len(ids)))
    marked_documents = replace(documents, token_ids=own)
    if isinstance(objective, RecurrentCLM):
        rows = continued_rows(objective, marked_documents, seed)
    else:
        chunks = objective.chunks(marked_documents)
        # A document that was added is there to draw from, and not to be shown.
        own_chunks = np.flatnonzero(chunks.document < len(text.documents)).tolist()
        if not own_chunks:
            raise UserError("the text is too short for this objective: use a longer one")
        draws = (
            objective.example(chunks[i], generator(seed, Stream.EXAMPLE, 0, i)) for i in own_chunks
        )
        rows = (tuple(draws),)
        if isinstance(objective, BlankInfilling):
            kinds = tuple(
                objective.draw_kind(chunks[i], generator(seed, Stream.EXAMPLE, 0, i))
                for i in own_chunks
            )
    real = tuple(
        tuple(unmark(example, ids, objective.vocab_size) for example in row) for row in rows
    )
    return Draw(objective, real, rows, ids, tuple(notes), kinds)


def whole_length(tokens: int) -> int:
    """Return a row length that no document is cut for, with room for special tokens."""
    return 4 * tokens + 64


def continued_rows(
    objective: RecurrentCLM, documents: InMemoryDocuments, seed: int
) -> tuple[tuple[Example, ...], ...]:
    """Return rows of about half the text, each of which continues the one before."""
    total = len(documents.token_ids) + len(documents.starts) - 1
    halves = replace(objective, max_length=max(1, -(-total // 2)))
    dataset = ContiguousDataset(halves, documents, batch_size=1, seed=seed, shuffled=False)
    epoch = dataset.epoch(0)
    return tuple(tuple(dataset.row(epoch, 0, number)) for number in range(len(dataset)))


def unmark(example: Example, ids: IntArray, vocab_size: int) -> Example:
    """Return an example with the ids of the tokenizer."""

    def real(marked: IntArray) -> IntArray:
        inside = np.clip(marked - vocab_size, 0, len(ids) - 1)
        return np.where(marked >= vocab_size, ids[inside], marked)

    return replace(
        example,
        input_ids=real(example.input_ids),
        labels=None if example.labels is None else real(example.labels),
        encoder_input_ids=None
        if example.encoder_input_ids is None
        else real(example.encoder_input_ids),
        backward=None if example.backward is None else unmark(example.backward, ids, vocab_size),
    )
