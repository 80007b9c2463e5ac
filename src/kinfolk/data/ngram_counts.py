"""Count the n-grams of documents on disk: sorted runs, merged; memory does not grow with the text.

An n-gram of two or more tokens is one integer, `context * vocab_size + token`: the context is the
index of its first n - 1 tokens among the sorted (n - 1)-grams, so that the integers of an order are
sorted like its n-grams and fit 63 bits at every order.

    tokens        -1  the  cat  sat  eos  -1  the ...   -1 is the start of a document
    1-grams            the  cat  sat  eos
    2-grams       (bos the) (the cat) (cat sat) (sat eos)
"""

import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from kinfolk.errors import UserError
from kinfolk.files import new_file, sync
from kinfolk.types import IntArray

Array: TypeAlias = npt.NDArray[Any]
# Tokens of documents that follow each other, and the positions in them where a document ends.
TokenBlock: TypeAlias = tuple[npt.NDArray[np.integer[Any]], IntArray]

CHUNK = 1 << 20  # numbers in memory at once; a sort holds about a hundred bytes for each
BLOCK = 1 << 22  # numbers of a table that is read at random
START, MISSING = -1, -1  # of a document, in the tokens; no such n-gram, among the contexts
JOURNAL = "source.json"  # what was counted


@dataclass(frozen=True)
class NumberFile:
    """Numbers of one type in a file."""

    path: Path
    dtype: npt.DTypeLike = np.int64

    def __len__(self) -> int:
        return self.path.stat().st_size // np.dtype(self.dtype).itemsize

    def read(self, start: int, stop: int) -> Array:
        """Read the numbers of a range."""
        itemsize = np.dtype(self.dtype).itemsize
        return np.fromfile(self.path, self.dtype, stop - start, offset=start * itemsize)

    def chunks(self, size: int | None = None) -> Iterator[tuple[int, Array]]:
        """Yield all numbers in parts, each with its start."""
        size = size or CHUNK
        for start in range(0, len(self), size):
            yield start, self.read(start, min(start + size, len(self)))

    def write(self, parts: Iterable[Array]) -> "NumberFile":
        """Write the file anew, part by part."""
        with self.path.open("wb") as file:
            for part in parts:
                part.astype(self.dtype, copy=False).tofile(file)
        return self


def gather(values: NumberFile, indices: NumberFile, out: NumberFile) -> NumberFile:
    """Write the value at each index; a block of values is in memory at a time."""
    out.write(np.zeros(len(part), out.dtype) for _, part in indices.chunks())
    itemsize = np.dtype(out.dtype).itemsize
    with out.path.open("r+b") as file:
        for low, block in values.chunks(BLOCK):
            for start, part in indices.chunks():
                (inside,) = np.nonzero((part >= low) & (part < low + len(block)))
                if not len(inside):
                    continue
                result = out.read(start, start + len(part))
                result[inside] = block[part[inside] - low]
                file.seek(start * itemsize)
                result.tofile(file)
                file.flush()
    return out


def occurrences(indices: NumberFile, size: int) -> Iterator[IntArray]:
    """Yield how often each index below `size` occurs, block by block."""
    for low in range(0, size, BLOCK):
        counts = np.zeros(min(BLOCK, size - low), np.int64)
        for _, part in indices.chunks():
            inside = part[(part >= low) & (part < low + len(counts))] - low
            counts += np.bincount(inside, minlength=len(counts))
        yield counts


@dataclass(frozen=True)
class OrderCounts:
    """The n-grams of one order, sorted, and how often each occurs."""

    folder: Path
    order: int

    def file(self, name: str, dtype: npt.DTypeLike = np.int64) -> NumberFile:
        """Return a file with a number for each n-gram, or for each position of the text."""
        return NumberFile(self.folder / f"{self.order}-{name}", dtype)

    @property
    def keys(self) -> NumberFile:
        """The n-grams as integers; for single tokens, their ids."""
        return self.file("keys")

    @property
    def counts(self) -> NumberFile:
        """How often each occurs."""
        return self.file("counts")

    @property
    def suffixes(self) -> NumberFile:
        """The index of each n-gram without its first token, among those of the order below."""
        return self.file("suffixes")

    @property
    def contexts(self) -> NumberFile:
        """The index of the n-gram that ends at each position of the text, or MISSING."""
        return self.file("contexts")

    def __len__(self) -> int:
        return len(self.keys)


class NGramCounter:
    """The n-gram counts of documents in a folder; what an earlier process counted is kept."""

    def __init__(
        self,
        folder: Path,
        blocks: Callable[[], Iterable[TokenBlock]],
        *,
        vocab_size: int,
        bos: int,
        eos: int,
        source: Sequence[str] = (),  # names the text: other counts in the folder are removed
        durable: bool = False,  # flush to the disk what a later process relies on
    ) -> None:
        self.folder, self.blocks, self.durable = folder, blocks, durable
        self.vocab_size, self.bos, self.eos = vocab_size, bos, eos
        self.tokens = NumberFile(folder / "tokens", np.int32)
        journal = json.dumps([*source, vocab_size, bos, eos])
        if not (folder / JOURNAL).is_file() or (folder / JOURNAL).read_text() != journal:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            with new_file(folder / JOURNAL, durable=durable) as file:
                file.write(journal)

    def count(self, order: int) -> OrderCounts:
        """Return the counts of an order, which need those of the orders below."""
        counts = OrderCounts(self.folder, order)
        if not counts.keys.path.is_file():
            if order == 1:
                self._count_tokens(counts)
            else:
                self._count_order(counts, self.count(order - 1))
        return counts

    def _commit(self, counts: OrderCounts, *files: NumberFile) -> None:
        """Declare an order complete, which the file of its n-grams does."""
        if self.durable:
            for file in files:
                sync(file.path)
        part = counts.file("keys.part").path
        if self.durable:
            sync(part)
        part.rename(counts.keys.path)

    def _count_tokens(self, counts: OrderCounts) -> None:
        """Write the text with its document bounds, and the count of each token."""
        totals = np.zeros(self.vocab_size, np.int64)
        self.tokens.write(self._marked(totals))
        if not totals.any():
            raise UserError("no documents to count: an n-gram model needs at least one")
        counts.counts.write([totals])
        counts.file("keys.part").write([np.arange(self.vocab_size)])
        self._commit(counts, self.tokens, counts.counts)

    def _marked(self, totals: IntArray) -> Iterator[Array]:
        """Yield the tokens with `eos` after each document and START before; add to the totals."""
        begun = False
        for ids, ends in self.blocks():
            wrong = ids[(ids < 0) | (ids >= self.vocab_size)]
            if len(wrong):
                raise UserError(
                    f"token id {wrong[0]} is outside a vocabulary of {self.vocab_size}: check the "
                    "tokenizer"
                )
            marks = np.tile(np.array([self.eos, START]), len(ends))
            tokens = np.insert(ids.astype(np.int64), np.repeat(ends, 2), marks)
            if not begun and len(tokens):
                tokens, begun = np.concatenate([[START], tokens]), True
            totals += np.bincount(ids, minlength=self.vocab_size)
            totals[self.eos] += len(ends)
            yield tokens

    def _count_order(self, counts: OrderCounts, below: OrderCounts) -> None:
        runs = SortedRuns(self.folder)
        for tokens, before, here in self._positions(below):
            counted = (tokens >= 0) & (before >= 0)
            runs.add(before[counted] * self.vocab_size + tokens[counted], here[counted])
        runs.merge(counts)
        ranks = runs.ranks()
        counts.contexts.write(
            _placed((tokens >= 0) & (before >= 0), ranks)
            for tokens, before, _ in self._positions(below)
        )
        runs.remove()
        self._commit(counts, counts.counts, counts.suffixes, counts.contexts)

    def _positions(self, below: OrderCounts) -> Iterator[tuple[IntArray, IntArray, IntArray]]:
        """Yield the tokens, and the index of the (n - 1)-gram that ends before and at each."""
        last = np.array([MISSING])
        for start, part in self.tokens.chunks():
            tokens = part.astype(np.int64)
            if below.order == 1:
                here = np.where(tokens < 0, self.bos, tokens)
            else:
                here = below.contexts.read(start, start + len(tokens))
            before = np.concatenate([last, here[:-1]])
            last = here[-1:]
            yield tokens, before, here


def _placed(counted: npt.NDArray[np.bool_], ranks: Iterator[IntArray]) -> IntArray:
    """Return the indices at the positions that were counted, MISSING at the others."""
    placed = np.full(len(counted), MISSING, np.int64)
    placed[counted] = next(ranks)
    return placed


def is_first(ordered: IntArray) -> npt.NDArray[np.bool_]:
    """Return which of sorted numbers are the first of equal ones."""
    first = np.ones(len(ordered), np.bool_)
    np.not_equal(ordered[1:], ordered[:-1], out=first[1:])
    return first


class SortedRuns:
    """N-grams in sorted runs on disk, each with its count and its suffix, and their merge."""

    def __init__(self, folder: Path) -> None:
        self.columns = {
            name: NumberFile(folder / f"runs-{name}")
            for name in ("keys", "counts", "suffixes", "ranks")
        }
        self.indices = NumberFile(folder / "runs-indices", np.int32)  # in its run, of each n-gram
        self.bounds, self.sizes = [0], list[int]()
        for file in (*self.columns.values(), self.indices):
            file.path.unlink(missing_ok=True)

    def add(self, keys: IntArray, suffixes: IntArray) -> None:
        """Sort n-grams with their suffixes, equal ones once, into a new run."""
        order = np.argsort(keys)
        ordered = keys[order]
        first = is_first(ordered)
        (starts,) = np.nonzero(first)
        indices = np.empty(len(keys), np.int32)
        indices[order] = np.cumsum(first, dtype=np.int32) - 1
        counts = np.diff(starts, append=len(keys))
        run = {"keys": ordered[starts], "counts": counts, "suffixes": suffixes[order[starts]]}
        for name, values in run.items():
            with self.columns[name].path.open("ab") as file:
                values.tofile(file)
        with self.indices.path.open("ab") as file:
            indices.tofile(file)
        self.bounds.append(self.bounds[-1] + len(starts))
        self.sizes.append(len(keys))

    def merge(self, counts: OrderCounts) -> None:
        """Write all n-grams in one order, equal ones once, and the rank of each of every run."""
        done = 0
        with ExitStack() as stack:
            outputs = {
                "keys": stack.enter_context(counts.file("keys.part").path.open("wb")),
                "counts": stack.enter_context(counts.counts.path.open("wb")),
                "suffixes": stack.enter_context(counts.suffixes.path.open("wb")),
            }
            ranks = stack.enter_context(self.columns["ranks"].path.open("wb"))
            for group, starts, sizes in self._groups():
                order = np.argsort(group["keys"], kind="stable")
                ordered = group["keys"][order]
                first = is_first(ordered)
                (firsts,) = np.nonzero(first)
                ordered[firsts].tofile(outputs["keys"])
                np.add.reduceat(group["counts"][order], firsts).tofile(outputs["counts"])
                group["suffixes"][order[firsts]].tofile(outputs["suffixes"])
                rank = np.empty(len(order), np.int64)
                rank[order] = done + np.cumsum(first) - 1
                for start, part in zip(starts, np.split(rank, np.cumsum(sizes)[:-1]), strict=True):
                    ranks.seek(8 * start)
                    part.tofile(ranks)
                done += len(firsts)

    def _groups(self) -> Iterator[tuple[dict[str, IntArray], list[int], list[int]]]:
        """Yield the n-grams of all runs up to a bound, with their starts and sizes in the runs."""
        runs = len(self.sizes)
        position, ends = self.bounds[:-1].copy(), self.bounds[1:]
        room = max(CHUNK // max(runs, 1), 1)
        while any(map(int.__lt__, position, ends)):
            parts = [
                {
                    name: self.columns[name].read(start, min(start + room, end))
                    for name in ("keys", "counts", "suffixes")
                }
                for start, end in zip(position, ends, strict=True)
            ]
            # All n-grams up to the smallest last key of a part that does not end its run are here.
            open_ends = [
                part["keys"][-1]
                for part, start, end in zip(parts, position, ends, strict=True)
                if start + room < end
            ]
            sizes = [len(part["keys"]) for part in parts]
            if open_ends:
                bound = min(open_ends)
                sizes = [int(np.searchsorted(part["keys"], bound, "right")) for part in parts]
            yield (
                {
                    name: np.concatenate(
                        [part[name][:size] for part, size in zip(parts, sizes, strict=True)]
                    )
                    for name in ("keys", "counts", "suffixes")
                },
                position.copy(),
                sizes,
            )
            position = [start + size for start, size in zip(position, sizes, strict=True)]

    def ranks(self) -> Iterator[IntArray]:
        """Yield the index of each n-gram as it was added, run by run."""
        done = 0
        for start, end, size in zip(self.bounds, self.bounds[1:], self.sizes, strict=False):
            ranks = self.columns["ranks"].read(start, end)
            yield ranks[self.indices.read(done, done + size)]
            done += size

    def remove(self) -> None:
        """Remove the runs."""
        for file in (*self.columns.values(), self.indices):
            file.path.unlink(missing_ok=True)
