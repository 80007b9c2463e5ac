"""Sentence-order prediction (Lan et al., 2019): MLM over two stretches that may be swapped.

text        the  cat  |  sat  down
ids    [C]  sat  down [S] the  [M] [S]
segments 0   0    0   0   1    1   1
labels   .   .    .   .   .   cat  .
next     1 (swapped; 0 where they stand in their order)
sight  everyone sees everyone

Both sides are whole sentences. A stretch of a single one is no pair: its tokens are learned, and
its order is not asked for.

Tokens are hidden in runs of one to three neighbours; a run of n is drawn with a chance of 1/n:

text    the  cat  sat  down  on  the  mat
runs     1    1    0     1    1   0    0
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from kinfolk.batch import IGNORE_INDEX
from kinfolk.config import config, field
from kinfolk.data.chunks import BoolArray, Chunk, ChunkIndex, Rng, TokenizedDocuments
from kinfolk.objectives.mlm import mask_tokens
from kinfolk.objectives.nsp import NSP, SentencePair

IN_ORDER, SWAPPED = 0, 1


@dataclass(frozen=True)
class Ordered(SentencePair):
    """Two neighbours with some tokens hidden; `next` tells whether they were swapped."""


def ngram_starts(units: BoolArray, longest: int, rng: Rng) -> BoolArray:
    """Join units into runs, given which tokens begin a unit; tell which tokens begin a run.

    A run has up to `longest` units; one of n has a chance in proportion to 1/n (section 4.1).
    """
    begins = np.flatnonzero(units)
    sizes = np.arange(1, longest + 1)
    drawn = rng.choice(sizes, len(begins), p=1 / sizes / (1 / sizes).sum())
    starts = np.cumsum(drawn) - drawn
    found = np.zeros_like(units)
    found[begins[starts[starts < len(begins)]]] = True
    return found


def sentence_chunks(documents: TokenizedDocuments, longest: int) -> Iterator[tuple[int, int, int]]:
    """Yield as many whole sentences as fit: document, start, stop, counted from its start.

    A sentence that is too long is cut, and shares its stretches with no other: one that began or
    ended amid a sentence would give the order of its sides away.
    """
    for number, (first, end) in enumerate(pairwise(documents.starts.tolist())):
        start = stop = 0
        for size in documents.sentences(first, end).tolist() if end > first else ():
            if stop > start and stop + size - start > longest:
                yield number, start, stop
                start = stop
            stop += size
            if size > longest:
                yield from (
                    (number, at, min(at + longest, stop)) for at in range(start, stop, longest)
                )
                start = stop
        if stop > start:
            yield number, start, stop


@config("sop")
class SOP(NSP):
    """MLM with runs hidden, and whether two neighbours stand in their order."""

    max_ngram: int = field(
        default=3,
        ge=1,
        help="longest masked n-gram, in tokens, or in words with whole word masking",
    )

    def chunks(self, documents: TokenizedDocuments, /) -> ChunkIndex:
        """Cut documents into whole sentences, as many as fit between [CLS] and two [SEP]."""
        self.require_word_starts(documents)
        numbers = (
            n for stretch in sentence_chunks(documents, self.max_length - 3) for n in stretch
        )
        bounds = np.fromiter(numbers, np.int64).reshape(-1, 3)
        document, start, stop = bounds[bounds[:, 2] - bounds[:, 1] >= 2].T  # a token on each side
        return ChunkIndex(
            documents, document, start, stop, np.zeros_like(start), (stop - start)[:, None] + 3
        )

    def example(self, chunk: Chunk, rng: Rng, /) -> Ordered:  # type: ignore[override]
        """Split at a sentence end, half the time swap the sides, and hide some runs."""
        ends = np.cumsum(chunk.sentences)[:-1]
        middle = int(rng.choice(ends)) if len(ends) else len(chunk.ids) // 2
        swapped = rng.random() < 0.5 and len(ends) > 0
        first, second = chunk.split(middle)[:: -1 if swapped else 1]
        ids = np.concatenate([self.frame(first.ids), second.ids, [self.special_tokens.sep]])
        segments = np.repeat([0, 1], [len(first.ids) + 2, len(second.ids) + 1])
        units = [
            ngram_starts(self.unit_starts(text), self.max_ngram, rng) for text in (first, second)
        ]
        words = np.concatenate([[True], *(np.append(unit, True) for unit in units)])
        masked = mask_tokens(
            ids, self.mask_rate, self.special_tokens, self.replacement_ids, rng, words
        )
        verdict = IGNORE_INDEX if not len(ends) else SWAPPED if swapped else IN_ORDER
        return Ordered(masked.ids, masked.labels, segments, verdict)

    def unit_starts(self, text: Chunk) -> BoolArray:
        """Tell which tokens begin what runs are made of: words where they are whole, else tokens.

        What is left of a word that began before its piece counts as a word.
        """
        units = text.words.copy() if self.whole_word_masking else np.ones(len(text.ids), np.bool_)
        units[0] = True
        return units
