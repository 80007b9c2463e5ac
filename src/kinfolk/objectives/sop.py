"""Sentence-order prediction (Lan et al., 2019): MLM over two neighbours that may be swapped.

text                  the  cat  |  sat  down
input_ids       [C]   sat  down [S] the  [M] [S]
token_type_ids   0     0    0   0   1    1   1
labels           .     .    .   .   .   cat  .
sequence_label   1 (swapped; 0 where they are in order)
attention       every token attends to every token

Both texts are whole sentences. A chunk of a single sentence is cut in its middle: its masked tokens
are predicted, and it has no sequence label.

Tokens are masked in n-grams of one to three; one of length n is drawn in proportion to 1/n:

text    the  cat  sat  down  on  the  mat
starts   1    1    0     1    1   0    0
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise

import numpy as np

from kinfolk.batch import IGNORE_INDEX
from kinfolk.config import config, field
from kinfolk.data.chunks import BoolArray, Chunk, ChunkIndex, IntArray, Rng, TokenizedDocuments
from kinfolk.data.examples import Example
from kinfolk.objectives.mlm import mark_special_tokens
from kinfolk.objectives.nsp import NSP

IN_ORDER, SWAPPED = 0, 1


def ngram_starts(units: BoolArray, max_ngram: int, rng: Rng) -> BoolArray:
    """Join units to n-grams, given which tokens begin a unit; return which begin an n-gram.

    Lengths are 1 to `max_ngram` units; n has a probability in proportion to 1/n (section 4.1).
    """
    (begins,) = units.nonzero()
    lengths, probs = ngram_lengths(max_ngram)
    drawn = rng.choice(lengths, len(begins), p=probs)
    starts = drawn.cumsum() - drawn
    result = np.zeros(len(units), np.bool_)
    result[begins[starts[starts < len(begins)]]] = True
    return result


@lru_cache(maxsize=8)
def ngram_lengths(max_ngram: int) -> tuple[IntArray, tuple[float, ...]]:
    """Return the lengths of masked n-grams, and their probabilities."""
    lengths = np.arange(1, max_ngram + 1)
    return lengths, tuple((1 / lengths / (1 / lengths).sum()).tolist())


def sentence_chunks(
    documents: TokenizedDocuments, max_length: int
) -> Iterator[tuple[int, int, int]]:
    """Yield as many whole sentences as fit: document, start, stop, from the document's start.

    A sentence that is too long is cut, and its chunks hold no other sentence: a chunk that began
    or ended inside a sentence would give its order away.
    """
    for number, (first, end) in enumerate(pairwise(documents.starts.tolist())):
        start = stop = 0
        for size in documents.sentences(first, end).tolist() if end > first else ():
            if stop > start and stop + size - start > max_length:
                yield number, start, stop
                start = stop
            stop += size
            if size > max_length:
                for cut in range(start, stop, max_length):
                    yield number, cut, min(cut + max_length, stop)
                start = stop
        if stop > start:
            yield number, start, stop


@config("sop")
class SOP(NSP):
    """MLM with masked n-grams, and whether two neighbouring texts are in order."""

    pair_loss_name = "sop"

    max_ngram: int = field(
        default=3,
        ge=1,
        le=512,
        help="longest masked n-gram, in tokens, or in words with whole word masking",
    )

    def chunks(self, documents: TokenizedDocuments, /) -> ChunkIndex:
        """Cut documents into whole sentences, as many as fit a row with [CLS] and two [SEP]."""
        self.require_word_starts(documents)
        numbers = (n for cut in sentence_chunks(documents, self.max_length - 3) for n in cut)
        bounds = np.fromiter(numbers, np.int64).reshape(-1, 3)
        pairs = bounds[:, 2] - bounds[:, 1] >= 2  # a token on each side
        chunks = ChunkIndex.from_bounds(documents, bounds[pairs])
        return replace(chunks, sizes=chunks.sizes + 3)

    def example(self, chunk: Chunk, rng: Rng, /) -> Example:
        """Split at a sentence end, half the time swap the texts, and mask some n-grams."""
        ends = chunk.sentences.cumsum()[:-1]
        middle = int(rng.choice(ends)) if len(ends) else len(chunk.ids) // 2
        swapped = rng.random() < 0.5 and len(ends) > 0
        first, second = chunk.split(middle)[:: -1 if swapped else 1]
        starts = mark_special_tokens(
            [ngram_starts(self.unit_starts(part), self.max_ngram, rng) for part in (first, second)]
        )
        label = IGNORE_INDEX if not len(ends) else SWAPPED if swapped else IN_ORDER
        return self.pair(first, second, label, rng, starts)

    def unit_starts(self, part: Chunk) -> BoolArray:
        """Return which tokens begin a unit of an n-gram: a word with whole word masking, else all.

        The rest of a word that starts before its chunk counts as a word.
        """
        units = part.words.copy() if self.whole_word_masking else np.ones(len(part.ids), np.bool_)
        units[0] = True
        return units
