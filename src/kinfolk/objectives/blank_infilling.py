"""Blank infilling (Du et al., 2021): cut spans out of a text and generate them in any order.

text                the  cat  sat  down  on   mat
input_ids           the  cat  [M]  down  [M]  <s>  on   mat   <s>  sat
labels               .    .    .    .     .   on   mat  </s>  sat  </s>
position_ids         0    1    2    3     4    4    4    4     2    2
block_position_ids   0    0    0    0     0    1    2    3     1    2
order                0    0    0    0     0    1    2    3     4    5
attention           the text attends to all of itself; the spans to the text and to earlier spans

Several short spans, several sentences or the end of a text is masked, each with its mask token.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from math import ceil
from typing import Literal

import numpy as np

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
from kinfolk.text.tokenizer import GLMTokens, glm_tokens

Span = tuple[int, int]  # start and stop
BlankKind = Literal["spans", "sentences", "tail"]  # short spans, sentences, the end of a text
MIN_TAIL_FRACTION = 0.5  # of a text is masked, where its end is one blank (section 2.1.2)
MAX_SPAN_LENGTH = 40  # a short span has fewer tokens (the released code)


@config("blanks")
class BlankInfilling(Objective):
    """Mask 15 % of the tokens in short spans or in sentences, or at least half of them at the end.

    The shares of the three are those of the released configuration of the large model.
    """

    mask_rate: float = field(default=0.15, gt=0, lt=1, help="fraction of the tokens that is masked")
    mean_span_length: float = field(
        default=3.0, ge=1, le=2**24, help="mean length of a masked span, in tokens"
    )
    sentence_mask_prob: float = field(
        default=0.3, ge=0, le=1, help="fraction of the texts in which whole sentences are masked"
    )
    gmask_prob: float = field(
        default=0.2, ge=0, le=1, help="fraction of the texts whose end is masked"
    )

    loss_name = "blanks"
    label_buckets = 4  # the number of predictions varies, and shapes should not

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sentence_mask_prob + self.gmask_prob > 1:
            raise UserError(
                f"objective.sentence_mask_prob={self.sentence_mask_prob} and "
                f"objective.gmask_prob={self.gmask_prob} sum to more than 1: lower one of them"
            )
        glm_tokens(self.special_tokens)

    @cached_property
    def glm_tokens(self) -> GLMTokens:
        """The ids of the mask, start and end tokens."""
        return glm_tokens(self.special_tokens)

    @cached_property
    def span_length_probs(self) -> tuple[float, ...]:
        """The probabilities of lengths 1, 2, 3 ... of a short span: Poisson, without 0."""
        lengths = np.arange(1, max(MAX_SPAN_LENGTH, int(4 * self.mean_span_length)))
        logs = lengths * np.log(self.mean_span_length) - np.cumsum(np.log(lengths))
        odds = np.exp(logs - logs.max())
        return tuple((odds / odds.sum()).tolist())

    def num_masked(self, tokens: int) -> int:
        """Return how many tokens of a text are masked in short spans."""
        return max(1, round(self.mask_rate * tokens))

    def max_spans(self, tokens: int) -> int:
        """Return the most spans of a text; each takes a mask token and a start token."""
        return min(
            self.num_masked(tokens),
            ceil(self.num_masked(tokens) / self.mean_span_length) + 1,
        )

    @cached_property
    def max_tokens(self) -> int:
        """The most tokens of a text that fits a row with its blanks."""
        tokens = 1
        while tokens + 1 + 2 * self.max_spans(tokens + 1) <= self.max_length:
            tokens += 1
        return tokens

    def chunks(self, documents: TokenizedDocuments, /) -> ChunkIndex:
        """Cut documents into chunks that fit a row with their blanks."""
        chunks = split_documents(documents, self.max_tokens)
        sizes = np.array([n + 2 * self.max_spans(n) for n in range(self.max_tokens + 1)])
        return replace(chunks, sizes=sizes[chunks.sizes])

    def example(self, chunk: Chunk, rng: Rng, /) -> Example:
        """Draw the spans that are masked, and the order in which they are generated."""
        size, kind = len(chunk.ids), self.draw_kind(chunk, rng)
        if kind == "tail":
            # Deviation: the released code places it anywhere, half of the time. The end token is
            # not predicted where the chunk, and not the document, ends.
            blank = (size - ceil(rng.uniform(MIN_TAIL_FRACTION, 1.0) * size), size)
            return self.corrupt(
                chunk.ids, [blank], self.glm_tokens.gmask, end=chunk.reaches_document_end
            )
        if kind == "sentences":
            spans, mask = self.draw_sentences(chunk.sentences, rng), self.glm_tokens.sentence
        else:
            spans, mask = self.draw_spans(size, rng), self.glm_tokens.mask
        order = rng.permutation(len(spans)).tolist()
        return self.corrupt(chunk.ids, [spans[i] for i in order], mask)

    def draw_kind(self, chunk: Chunk, rng: Rng) -> BlankKind:
        """Draw what is masked: the first random number of an example."""
        uniform = rng.random()
        if uniform < self.gmask_prob:
            return "tail"
        if uniform < self.gmask_prob + self.sentence_mask_prob and len(chunk.sentences) > 1:
            return "sentences"
        return "spans"

    def draw_spans(self, tokens: int, rng: Rng) -> list[Span]:
        """Draw short spans with at least one token between any two."""
        hidden = self.num_masked(tokens)
        lengths = rng.choice(len(self.span_length_probs), hidden, p=self.span_length_probs) + 1
        ends = lengths.cumsum()
        ends = np.concatenate([ends[: ends.searchsorted(hidden)], [hidden]])
        most = min(self.max_spans(tokens), tokens - hidden + 1)
        if len(ends) > most:  # spans that do not fit are joined to the one before
            ends = np.concatenate([rng.choice(ends[:-1], most - 1, replace=False), [hidden]])
            ends.sort()
        lengths = ends.copy()
        lengths[1:] -= ends[:-1]
        between = np.arange(len(ends))
        kept = rng.integers(tokens - hidden - len(ends) + 2, size=len(ends))
        kept.sort()
        stops = kept + between + ends
        return list(zip((stops - lengths).tolist(), stops.tolist(), strict=True))

    def draw_sentences(self, sentences: IntArray, rng: Rng) -> list[Span]:
        """Draw sentences until enough tokens are masked; at least one sentence is kept."""
        ends = np.cumsum(sentences)
        order = rng.permutation(len(sentences))[: min(self.max_spans(ends[-1]), len(sentences) - 1)]
        enough = int(np.searchsorted(np.cumsum(sentences[order]), self.num_masked(ends[-1]))) + 1
        return [(int(ends[i] - sentences[i]), int(ends[i])) for i in sorted(order[:enough])]

    def corrupt(
        self, ids: IntArray, spans: Sequence[Span], mask: int, *, end: bool = True
    ) -> Example:
        """Replace each span by a mask token, and append the spans in the order given.

        `end`: the end token of each span is predicted too.
        """
        text, kept = ids.copy(), np.ones(len(ids), np.bool_)
        for start, stop in spans:
            text[start], kept[start + 1 : stop] = mask, False
        text, position = text[kept], kept.cumsum() - 1
        length, count = len(text), np.arange(len(ids) + 2)
        total = length + sum(stop - start + 1 for start, stop in spans)
        input_ids, labels, position_ids, block_ids, order = np.zeros((5, total), np.int64)
        input_ids[:length], position_ids[:length] = text, count[:length]
        first = length
        for start, stop in spans:
            after = first + stop - start + 1
            input_ids[first], input_ids[first + 1 : after] = self.glm_tokens.start, ids[start:stop]
            labels[first : after - 1] = ids[start:stop]
            labels[after - 1] = self.glm_tokens.end if end else IGNORE_INDEX
            position_ids[first:after] = position[start]
            block_ids[first:after] = count[1 : after - first + 1]
            first = after
        labels[:length] = IGNORE_INDEX
        order[length:] = np.arange(1, total - length + 1)
        return Example(
            input_ids=input_ids,
            labels=labels,
            position_ids=position_ids,
            block_position_ids=block_ids,
            order=order,
        )

    def for_evaluation(self) -> "BlankInfillingScorer":
        """Predict every token once, in spans of the same length and share."""
        return BlankInfillingScorer(
            **self.common_fields,
            mask_rate=self.mask_rate,
            mean_span_length=self.mean_span_length,
        )


@config("blanks_pll")
class BlankInfillingScorer(BlankInfilling):
    """Pseudo-likelihood by spans: every token is masked once, and end tokens are not scored."""

    @property
    def num_passes(self) -> int:
        """How many examples mask every token once."""
        return max(2, round(1 / self.mask_rate))

    def max_spans(self, tokens: int) -> int:
        """Return the most spans of a text that one example masks."""
        spans = -(-tokens // round(self.mean_span_length))
        return -(-spans // self.num_passes)

    def chunks(self, documents: TokenizedDocuments, /) -> ChunkIndex:
        """Take every chunk as often as it takes to mask each of its spans."""
        chunks = super().chunks(documents)
        spans = -(-(chunks.stop - chunks.start) // round(self.mean_span_length))
        return chunks.with_repeats(np.minimum(spans, self.num_passes))

    def example(self, chunk: Chunk, rng: Rng, /) -> Example:
        """Mask every n-th span."""
        width, size = round(self.mean_span_length), len(chunk.ids)
        starts = range(chunk.repeat * width, size, self.num_passes * width)
        spans = [(start, min(start + width, size)) for start in starts]
        return self.corrupt(chunk.ids, spans, self.glm_tokens.mask, end=False)
