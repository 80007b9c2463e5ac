"""Parallel text: two files line by line or a table of two columns, and their corpus.

A pair is a document of two sequences, which the index holds as sentences. The bytes of such a
corpus are those of its targets, which are predicted and by which a score is divided.
"""

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice, zip_longest
from pathlib import Path

import numpy as np

from kinfolk.data.chunks import BoolArray, IntArray, TokenizedDocuments
from kinfolk.data.corpus import Corpus, CorpusWriter, EncodedDocuments
from kinfolk.data.encode import DocumentEncoder
from kinfolk.data.files import decoded_lines, open_input
from kinfolk.errors import UserError
from kinfolk.text import Tokenizer

PAIRS_PER_BATCH = 4096  # encoded at once


@dataclass(frozen=True)
class TextPair:
    """A source text and its target."""

    source: str
    target: str

    @property
    def empty(self) -> bool:
        """Whether one of the two is empty."""
        return not (self.source and self.target)


@dataclass(frozen=True)
class ParallelText:
    """Two files with one text per line; or one table with the pair in its first two columns.

    `swapped` reads the pairs in the other direction.
    """

    source: Path
    target: Path | None = None
    swapped: bool = False

    @property
    def names(self) -> tuple[str, str]:
        """The files of sources and targets, the same for a table."""
        names = str(self.source), str(self.target or self.source)
        return names[::-1] if self.swapped else names

    @property
    def description(self) -> str:
        """The files, for a sentence."""
        return " and ".join(dict.fromkeys(self.names))

    def check(self) -> None:
        """Check that the files exist, are aligned and have a pair."""
        for path in (self.source, self.target):
            if path is not None and not path.is_file():
                raise UserError(f"{path} does not exist: pass a file with one text per line")
        if self.target is not None:
            counts = [sum(1 for _ in _lines(path)) for path in (self.source, self.target)]
            if counts[0] != counts[1]:
                raise UserError(
                    f"{self.source} has {counts[0]:,} lines and {self.target} has {counts[1]:,}: "
                    "line n of one must be the pair of line n of the other"
                )
        if not sum(not pair.empty for pair in self.rows()):  # reads every line
            raise UserError(f"no text pair in {self.description}: every pair has an empty side")

    def rows(self) -> Iterator[TextPair]:
        """Stream all pairs, also those with an empty side."""
        if not self.swapped:
            return self._rows()
        return (TextPair(pair.target, pair.source) for pair in self._rows())

    def _rows(self) -> Iterator[TextPair]:
        if self.target is not None:
            both = zip_longest(_lines(self.source), _lines(self.target), fillvalue="")
            yield from (TextPair(source.strip(), target.strip()) for source, target in both)
            return
        for number, line in enumerate(_lines(self.source), 1):
            cells = line.split("\t")
            if line and len(cells) < 2:
                raise UserError(
                    f"line {number:,} of {self.source} has no tab: a pair needs two columns"
                )
            yield TextPair(cells[0].strip(), cells[1].strip() if line else "")

    def pairs(self) -> Iterator[tuple[int, TextPair]]:
        """Stream the pairs that have both sides, each with its line."""
        return ((line, pair) for line, pair in enumerate(self.rows(), 1) if not pair.empty)


def write_parallel_corpus(
    files: ParallelText,
    tokenizer: Tokenizer,
    out: Path,
    *,
    prefix: str = "",
    tag: int | None = None,
) -> None:
    """Write a corpus of pairs; warn about those left out.

    A prefix is text before every source; a tag is one token before it, such as <2de>.
    """
    encode_source = encode_target = DocumentEncoder(tokenizer)
    if tokenizer.target is not tokenizer:
        encode_target = DocumentEncoder(tokenizer.target)
    stream = files.pairs()
    kept: list[int] = []  # lines
    with CorpusWriter(out, tokenizer) as writer:
        while chunk := list(islice(stream, PAIRS_PER_BATCH)):
            sources = encode_source([prefix + pair.source for _, pair in chunk])
            targets = encode_target([pair.target for _, pair in chunk])
            encoded, bytes, complete = _joined(sources, targets)
            encoded = encoded if tag is None else _tagged(encoded, tag)
            source, target = files.names
            writer.add(encoded, [target] * len(encoded.documents))
            for size in bytes.tolist() if source != target else ():
                writer.count_source(source, size)
            kept += [line for (line, _), good in zip(chunk, complete.tolist(), strict=True) if good]
    for left in out.glob("*.part"):  # not needed once a corpus is finished
        left.unlink()
    if not kept:
        raise UserError(
            f"{files.source} has no text that this tokenizer can encode: use another tokenizer"
        )
    _warn_skipped(files, kept)


def _joined(
    sources: EncodedDocuments, targets: EncodedDocuments
) -> tuple[EncodedDocuments, IntArray, BoolArray]:
    """Join texts two by two; also return the bytes of sources, and which pairs are kept.

    A text may have no tokens, such as a zero-width space; its pair is left out.
    """
    sizes = np.stack([_lengths(sources), _lengths(targets)], axis=1)
    complete = sizes.min(axis=1) > 0
    numbers = np.arange(sizes.size).reshape(-1, 2)  # of the texts, source and target in turn
    owners = np.repeat(numbers.T.ravel(), sizes.T.ravel())
    ids = np.concatenate([sources.ids, targets.ids])[np.argsort(owners, kind="stable")]
    ids = ids[np.repeat(complete, sizes.sum(1))]
    sequences, bytes = sizes[complete].ravel().astype(np.int32), targets.bytes[complete]
    joined = EncodedDocuments(ids, sequences, np.full(len(bytes), 2), bytes)
    return joined, sources.bytes[complete], complete


def _tagged(pairs: EncodedDocuments, tag: int) -> EncodedDocuments:
    """Put a token before every source."""
    sizes = pairs.sentences.reshape(-1, 2)
    starts = np.cumsum(sizes.sum(1)) - sizes.sum(1)
    ids = np.insert(pairs.ids, starts, tag)
    return replace(pairs, ids=ids, sentences=(sizes + np.array([1, 0], sizes.dtype)).ravel())


def _lengths(texts: EncodedDocuments) -> IntArray:
    """Return the number of tokens of each text."""
    ends = np.concatenate([[0], np.cumsum(texts.sentences)])
    return np.diff(ends[np.concatenate([[0], np.cumsum(texts.documents)])])


def _warn_skipped(files: ParallelText, kept: Sequence[int]) -> None:
    lines = sum(1 for _ in files.rows())
    if len(kept) == lines:
        return
    first = next(line for line, known in enumerate([*kept, 0], 1) if line != known)
    warnings.warn(
        f"{lines - len(kept):,} of {lines:,} pairs in {files.description} have an empty side and "
        f"are skipped, the first on line {first:,}",
        stacklevel=3,
    )


def pair_lengths(documents: TokenizedDocuments) -> IntArray:
    """Return the tokens of source and target of every pair: (pairs, 2)."""
    starts = documents.starts
    lengths = documents.sentences(0, int(starts[-1]))
    lengths = lengths[lengths > 0]
    counts = np.diff(np.searchsorted(np.cumsum(lengths), starts, side="right"))
    if (wrong := np.flatnonzero(counts != 2)).size:
        raise UserError(
            f"document {wrong[0] + 1:,} of this text has {counts[wrong[0]]:,} sentences, and a "
            "pair has two sides: give pairs, with --source and --target or with --pairs"
        )
    return lengths.reshape(-1, 2)


class TargetDocuments:
    """The targets of a corpus of pairs, as documents."""

    def __init__(self, pairs: Corpus) -> None:
        self._pairs, self._sizes = pairs, pair_lengths(pairs)
        self.documents, self.vocab_size, self.bytes = pairs.documents, pairs.vocab_size, pairs.bytes
        self.starts: IntArray = np.concatenate([[0], np.cumsum(self._sizes[:, 1])])
        self.tokens = int(self.starts[-1])

    def document(self, i: int) -> IntArray:
        """Return the tokens of one target."""
        starts = self._pairs.starts
        return self._pairs.ids(int(starts[i] + self._sizes[i, 0]), int(starts[i + 1]))

    def blocks(self, documents: int | None = None) -> Iterator[tuple[IntArray, IntArray]]:
        """Yield the tokens of the first targets, all by default, and where targets end in them."""
        for i in range(self.documents if documents is None else documents):
            yield self.document(i), self._sizes[i, 1:]

    def token_counts(self) -> IntArray:
        """Return how often each id occurs."""
        counts, starts = np.zeros(self.vocab_size, np.int64), self._pairs.starts
        for first in range(0, self.documents, PAIRS_PER_BATCH):
            sizes = self._sizes[first : first + PAIRS_PER_BATCH]
            ids = self._pairs.ids(int(starts[first]), int(starts[first + len(sizes)]))
            written = np.repeat(np.tile([False, True], len(sizes)), sizes.ravel())
            counts += np.bincount(ids[written], minlength=self.vocab_size)
        return counts

    def tokenizer(self) -> Tokenizer:
        """Return the tokenizer of the corpus."""
        return self._pairs.tokenizer()


def _lines(path: Path) -> Iterator[str]:
    with open_input(path) as source:
        yield from decoded_lines(source)
