"""Span corruption (Raffel et al., 2020): cut spans out of a text and generate them.

text       the  cat  sat  on  the  mat
encoder    the  <x>  on   the  <y>  </s>
input_ids  <p>  <x>  cat  sat  <y>  mat
labels     <x>  cat  sat  <y>  mat  </s>
attention  the encoder attends to all of its input; the decoder to its past and the encoder
"""

from dataclasses import replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from kinfolk.batch import IGNORE_INDEX
from kinfolk.config import config, field
from kinfolk.data.chunks import (
    Chunk,
    ChunkIndex,
    IntArray,
    Rng,
    TokenizedDocuments,
    split_documents,
)
from kinfolk.data.examples import Example
from kinfolk.errors import UserError
from kinfolk.objectives.objective import Objective


@config("spans")
class SpanCorruption(Objective):
    """Mask spans of three tokens on average, 15 % in all, and predict them in order."""

    max_length: int = field(
        default=512,
        ge=1,
        le=2**24,
        help="length of a row of the encoder, in tokens",
    )
    mask_rate: float = field(default=0.15, gt=0, lt=1, help="fraction of the tokens that is masked")
    # Raffel et al. 2020, section 3.1.4.
    mean_span_length: float = field(
        default=3.0, ge=1, le=2**24, help="mean length of a masked span, in tokens"
    )

    loss_name = "spans"
    required_tokens = ("eos",)

    def __post_init__(self) -> None:
        super().__post_init__()
        needed = self.noise_counts(self.max_tokens)[1]
        if needed > len(self.special_tokens.sentinels):
            raise UserError(
                f"rows of {self.max_length} tokens need {needed} sentinels, and this tokenizer has "
                f"{len(self.special_tokens.sentinels)}: use a smaller length"
            )

    def noise_counts(self, tokens: int) -> tuple[int, int]:
        """Return how many tokens of a text are masked, and in how many spans."""
        masked = min(max(round(tokens * self.mask_rate), 1), max(tokens - 1, 1))
        spans = min(max(round(masked / self.mean_span_length), 1), max(tokens - masked, 1))
        return masked, spans

    def example_lengths(self, tokens: int) -> tuple[int, int]:
        """Return how many tokens encoder and decoder read of a text."""
        masked, spans = self.noise_counts(tokens)
        return tokens - masked + spans + 1, masked + spans + 1

    @cached_property
    def max_tokens(self) -> int:
        """The most tokens of a text whose encoder input fits a row."""
        tokens = self.max_length - 1  # always fits: no span is shorter than its sentinel
        while self.example_lengths(tokens + 1)[0] <= self.max_length:
            tokens += 1
        return tokens

    @property
    def row_lengths(self) -> tuple[int, int]:
        """A row of the encoder, and one of the decoder, for the longest text."""
        target = self.example_lengths(self.max_tokens)[1]
        return self.max_length, -(-target // 8) * 8

    def chunks(self, documents: TokenizedDocuments, /) -> ChunkIndex:
        """Cut documents into chunks whose encoder input fits a row."""
        chunks = split_documents(documents, self.max_tokens)
        lengths = [(0, 0), *(self.example_lengths(n) for n in range(1, self.max_tokens + 1))]
        return replace(chunks, sizes=np.array(lengths)[chunks.sizes[:, 0]])

    def example(self, chunk: Chunk, rng: Rng, /) -> Example:
        """Choose spans at random: kept and masked spans alternate, a kept one first."""
        masked, spans = self.noise_counts(len(chunk.ids))
        kept = random_partition(len(chunk.ids) - masked, spans, rng)
        gone = random_partition(masked, spans, rng)
        hidden = np.zeros(2 * spans, np.bool_)
        hidden[1::2] = True
        lengths = np.array([kept, gone]).T.ravel()
        return self.corrupt(chunk.ids, hidden.repeat(lengths))

    @cached_property
    def sentinel_ids(self) -> IntArray:
        """The sentinels in the order of their spans."""
        return np.array(self.special_tokens.sentinels)

    def corrupt(self, ids: IntArray, masked: NDArray[np.bool_]) -> Example:
        """Replace each masked span by a sentinel; the decoder writes sentinels and spans."""
        eos = self.special_tokens.require("eos")
        first = masked.copy()  # of each span
        first[1:] &= ~masked[:-1]
        sentinels = self.sentinel_ids[np.maximum(first.cumsum() - 1, 0)]
        encoder = np.where(first, sentinels, ids)[~masked | first]
        # Each masked token, with its sentinel before the first of a span.
        pairs = np.array([sentinels, ids]).T
        labels = np.concatenate([pairs[np.array([first, masked]).T], [eos]])
        # T5's decoder starts with the padding token (Hugging Face's `decoder_start_token_id`).
        return Example(
            encoder_input_ids=np.concatenate([encoder, [eos]]),
            input_ids=np.concatenate([[self.special_tokens.pad], labels[:-1]]),
            labels=labels,
            order=np.arange(len(labels)),
        )

    def for_evaluation(self) -> "SpanCorruptionScorer":
        """Predict every token once, in spans of the same length and share."""
        return SpanCorruptionScorer(
            **self.common_fields,
            mask_rate=self.mask_rate,
            mean_span_length=self.mean_span_length,
        )


@config("spans_pll")
class SpanCorruptionScorer(SpanCorruption):
    """Pseudo-likelihood by spans: every token is masked once, and sentinels are not scored."""

    @property
    def num_passes(self) -> int:
        """How many examples mask every token once."""
        return max(2, round(1 / self.mask_rate))

    @cached_property
    def max_tokens(self) -> int:
        """A masked span is at least as long as its sentinel, so this fits with the end token."""
        return self.max_length - 1

    def noise_counts(self, tokens: int) -> tuple[int, int]:
        """Return how many tokens of a text are masked at most, and in how many spans."""
        width = round(self.mean_span_length)
        spans = -(-tokens // width)
        most = -(-spans // self.num_passes)
        return min(most * width, tokens), most

    def example_lengths(self, tokens: int) -> tuple[int, int]:
        """Return how many tokens encoder and decoder read of a text at most."""
        masked, spans = self.noise_counts(tokens)
        return tokens + 1, masked + spans + 1

    def chunks(self, documents: TokenizedDocuments, /) -> ChunkIndex:
        """Take every chunk as often as it takes to mask each of its spans."""
        chunks = super().chunks(documents)
        spans = -(-(chunks.stop - chunks.start) // round(self.mean_span_length))
        return chunks.with_repeats(np.minimum(spans, self.num_passes))

    def example(self, chunk: Chunk, rng: Rng, /) -> Example:
        """Mask every n-th span."""
        span = np.arange(len(chunk.ids)) // round(self.mean_span_length)
        example = self.corrupt(chunk.ids, span % self.num_passes == chunk.repeat)
        assert example.labels is not None
        unscored = [*self.special_tokens.sentinels, self.special_tokens.require("eos")]
        labels = np.where(np.isin(example.labels, unscored), IGNORE_INDEX, example.labels)
        return replace(example, labels=labels)


def random_partition(total: int, parts: int, rng: Rng) -> IntArray:
    """Split a number into parts of at least one, all partitions equally likely."""
    if total < parts:  # a text of one token, which is masked: nothing is kept
        return np.array([total])
    cuts = rng.choice(np.arange(1, total), parts - 1, replace=False)
    bounds = np.concatenate([[0], cuts, [total]])
    bounds.sort()
    return bounds[1:] - bounds[:-1]
