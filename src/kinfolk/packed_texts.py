"""The order in which recurrent layers read the texts of packed rows.

It is found on the host, from the document ids of a batch: cuDNN needs the number of texts at each
step there, and reading ids back from an accelerator would make the host wait in every step.
"""

from dataclasses import dataclass
from functools import cached_property
from itertools import groupby

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True, eq=False)
class WholeRows:
    """Rows of one text each, without padding: layers read (length, rows, size)."""

    batch_sizes: None = None  # of a PackedSequence: there is none
    runs: None = None  # of steps: there is one

    def flatten(self, x: Tensor) -> Tensor:
        """Return the vectors of rows, (rows, length, size), as layers read them."""
        return x.transpose(0, 1)

    def unflatten(self, x: Tensor) -> Tensor:
        """Return the vectors to their rows."""
        return x.transpose(0, 1)

    def dropout_mask(self, x: Tensor, rate: float) -> Tensor:
        """Draw what is dropped from each text, the same for all its tokens."""
        return F.dropout(x.new_ones(1, *x.shape[1:], dtype=mask_dtype(x)), rate)

    def initial_states(self, row_states: Tensor) -> Tensor:
        """Return the state that each text starts from, by those before its row."""
        return row_states

    def final_states(self, text_states: Tensor) -> Tensor:
        """Return the state at the end of each row."""
        return text_states


@dataclass(frozen=True, eq=False)
class PackedTexts:
    """The texts of packed rows as `PackedSequence` orders them: all first tokens, all second ones.

    Longer texts come first, so that a step is a prefix of the step before.
    """

    positions: Tensor  # (tokens,): position of each token in the flattened rows; no padding
    text_ids: Tensor  # (tokens,): number of each token's text, the longest 0
    first_rows: Tensor  # the rows that begin with a text,
    first_texts: Tensor  # and its number
    last_rows: Tensor  # the rows that end with a text,
    last_texts: Tensor  # and its number
    # The number of texts at each step: not a tensor, since it stays on the host.
    step_sizes: tuple[int, ...]
    shape: tuple[int, int]  # rows and their length

    @classmethod
    def of(cls, document_ids: Tensor, device: torch.device | None = None) -> "PackedTexts":
        """Find the texts by their document ids, (rows, length), each a run of equal ids.

        `device` is that of the vectors, where the ids are not on it.
        """
        # On the CPU, which needs the lengths: one wait for an accelerator instead of many.
        ids, device = document_ids.cpu(), device or document_ids.device
        before = F.pad(ids, (1, 0), value=-1)[:, :-1]
        starts_text = ids != before
        starts_text[:, 0] = True  # the same id in the next row is another text
        positions = torch.nonzero(ids.flatten() >= 0)[:, 0]
        run = starts_text.flatten().cumsum(0)[positions]
        _, text, lengths = torch.unique_consecutive(run, return_inverse=True, return_counts=True)
        starts = lengths.cumsum(0) - lengths
        offset = torch.arange(len(positions)) - starts[text]
        rank = torch.argsort(torch.argsort(lengths, descending=True, stable=True))
        order = torch.argsort(offset * len(lengths) + rank[text])
        number = torch.full((ids.numel(),), -1).index_copy(0, positions, rank[text]).view_as(ids)
        (first_rows, first_texts), (last_rows, last_texts) = map(
            _texts_of_rows, (number[:, 0], number[:, -1])
        )
        return cls(
            positions=positions[order].to(device),
            text_ids=rank[text][order].to(device),
            first_rows=first_rows.to(device),
            first_texts=first_texts.to(device),
            last_rows=last_rows.to(device),
            last_texts=last_texts.to(device),
            step_sizes=tuple(torch.bincount(offset).tolist()),
            shape=(len(ids), ids.shape[1]),
        )

    def flatten(self, x: Tensor) -> Tensor:
        """Return the vectors of rows, (rows, length, size), as layers read them."""
        return x.flatten(0, 1).index_select(0, self.positions)

    def unflatten(self, x: Tensor) -> Tensor:
        """Return the vectors to their rows; those of padding are zero."""
        rows, length = self.shape
        flat = x.new_zeros(rows * length, x.shape[1]).index_copy_(0, self.positions, x)
        return flat.view(rows, length, -1)

    def dropout_mask(self, x: Tensor, rate: float) -> Tensor:
        """Draw what is dropped from each text, the same for all its tokens."""
        ones = x.new_ones(self.num_texts, x.shape[1], dtype=mask_dtype(x))
        return F.dropout(ones, rate).index_select(0, self.text_ids)

    def initial_states(self, row_states: Tensor) -> Tensor:
        """Return the state that each text starts from, by those before its row."""
        if len(self.first_rows) < self.shape[0]:
            row_states = row_states.index_select(1, self.first_rows)
        return row_states.new_zeros(
            len(row_states), self.num_texts, row_states.shape[2]
        ).index_copy_(1, self.first_texts, row_states)

    def final_states(self, text_states: Tensor) -> Tensor:
        """Return the state at the end of each row; zero where it ends in padding."""
        last = text_states.index_select(1, self.last_texts)
        if len(self.last_rows) == self.shape[0]:
            return last
        return text_states.new_zeros(
            len(text_states), self.shape[0], text_states.shape[2]
        ).index_copy_(1, self.last_rows, last)

    @property
    def num_tokens(self) -> int:
        """The number of tokens in all texts."""
        return len(self.positions)

    @property
    def num_texts(self) -> int:
        """The number of texts in all rows."""
        return self.step_sizes[0] if self.step_sizes else 0

    @cached_property
    def batch_sizes(self) -> Tensor:
        """The number of texts at each step, as a `PackedSequence` has it: on the CPU."""
        return torch.tensor(self.step_sizes, dtype=torch.long)

    @cached_property
    def runs(self) -> list[tuple[int, int]]:
        """The runs of steps with as many texts: the number of texts, and of steps."""
        return [(size, len([*steps])) for size, steps in groupby(self.step_sizes)]

    def add_max_pool(self, flat: Tensor) -> Tensor:
        """Add the maximum over each text to its first token."""
        texts = self.num_texts
        pooled = flat.new_zeros(texts, flat.shape[1])
        index = self.text_ids[:, None].expand_as(flat)
        pooled = pooled.scatter_reduce(0, index, flat, "amax", include_self=False)
        # The first step is the first token of every text, in the order of their ids.
        return torch.cat([flat[:texts] + pooled, flat[texts:]])


def mask_dtype(x: Tensor) -> torch.dtype:
    """Return the type of a dropout mask: at least float32, in which 1 / (1 - rate) is exact."""
    return x.dtype if x.dtype.itemsize >= torch.float32.itemsize else torch.float32


def _texts_of_rows(numbers: Tensor) -> tuple[Tensor, Tensor]:
    """Return the rows that have a text, and its number."""
    rows = torch.nonzero(numbers >= 0)[:, 0]
    return rows, numbers[rows]


def texts_of(document_ids: Tensor) -> WholeRows | PackedTexts:
    """Return the order in which layers read texts by their document ids, (rows, length)."""
    ids = document_ids.cpu()
    if bool((ids == ids[:, :1]).all() and (ids >= 0).all()):
        return WholeRows()
    return PackedTexts.of(ids, document_ids.device)
