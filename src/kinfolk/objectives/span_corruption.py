"""Span corruption (Raffel et al., 2020): cut spans out of a text and write them down.

text      the  cat  sat  on  the  mat
source    the  <x>  on   the  <y>  </s>
ids       <p>  <x>  cat  sat  <y>  mat
labels    <x>  cat  sat  <y>  mat  </s>
sight     the encoder sees all of the source; the decoder the past, and all of the source
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kinfolk.attention_mask import AttentionMask
from kinfolk.batch import IGNORE_INDEX, Batch, Inputs, Loss, PredictsTokens, TokenTargets
from kinfolk.config import config, field
from kinfolk.data.chunks import (
    Chunk,
    ChunkIndex,
    IntArray,
    Rng,
    TokenizedDocuments,
    split_documents,
)
from kinfolk.data.examples import document_and_position_ids, pad_rows
from kinfolk.errors import UserError
from kinfolk.text.tokenizer import SpecialTokens


@dataclass(frozen=True)
class CorruptedSpans:
    """A text with holes, and what stood in them, a step apart."""

    source: IntArray
    ids: IntArray
    labels: IntArray


@config("spans")
class SpanCorruption:
    """Hide spans of three tokens on average, 15 % in all, and predict them in order."""

    special_tokens: SpecialTokens = field(help="ids of the special tokens")
    vocab_size: int = field(ge=1, help="number of token ids")
    max_length: int = field(default=512, ge=1, help="length of a row of the encoder, in tokens")
    mask_rate: float = field(default=0.15, gt=0, lt=1, help="fraction of the tokens that is masked")
    # Raffel et al. 2020, section 3.1.4.
    mean_span_length: float = field(
        default=3.0, ge=1, help="mean length of a masked span, in tokens"
    )

    def __post_init__(self) -> None:
        self.special_tokens.require("eos")
        needed = self.noise_counts(self.longest)[1]
        if needed > len(self.special_tokens.sentinels):
            raise UserError(
                f"rows of {self.max_length} tokens need {needed} sentinels, and this tokenizer has "
                f"{len(self.special_tokens.sentinels)}: use a smaller length"
            )

    def noise_counts(self, tokens: int) -> tuple[int, int]:
        """Say how many tokens of a text are hidden, and in how many spans."""
        hidden = min(max(round(tokens * self.mask_rate), 1), max(tokens - 1, 1))
        spans = min(max(round(hidden / self.mean_span_length), 1), max(tokens - hidden, 1))
        return hidden, spans

    def example_lengths(self, tokens: int) -> tuple[int, int]:
        """Say how long source and target of a text are."""
        hidden, spans = self.noise_counts(tokens)
        return tokens - hidden + spans + 1, hidden + spans + 1

    @property
    def longest(self) -> int:
        """The longest text whose source fits a row."""
        tokens = self.max_length - 1  # which always fits: no hole is shorter than its sentinel
        while self.example_lengths(tokens + 1)[0] <= self.max_length:
            tokens += 1
        return tokens

    @property
    def row_lengths(self) -> tuple[int, int]:
        """A row of sources, and one for what they lack: short texts lack relatively more."""
        target = self.example_lengths(self.longest)[1]
        return self.max_length, -(-target // 8) * 8

    def chunks(self, documents: TokenizedDocuments, /) -> ChunkIndex:
        """Cut documents into stretches whose sources fit a row."""
        document, start, stop = split_documents(documents, self.longest)
        table = np.array([(0, 0), *(self.example_lengths(n) for n in range(1, self.longest + 1))])
        sizes = table[stop - start]
        return ChunkIndex(documents, document, start, stop, np.zeros_like(start), sizes)

    def example(self, chunk: Chunk, rng: Rng, /) -> CorruptedSpans:
        """Cut spans at chance: text and spans take turns, and text comes first."""
        hidden, spans = self.noise_counts(len(chunk.ids))
        kept = random_partition(len(chunk.ids) - hidden, spans, rng)
        gone = random_partition(hidden, spans, rng)
        lengths = np.stack([kept, gone], axis=1).ravel()
        return self.corrupt(chunk.ids, np.repeat(np.arange(2 * spans) % 2 == 1, lengths))

    def corrupt(self, ids: IntArray, hidden: NDArray[np.bool_]) -> CorruptedSpans:
        """Put a sentinel for each hidden span, and write the spans behind their sentinels."""
        eos = self.special_tokens.require("eos")
        first = hidden & ~np.concatenate([[False], hidden[:-1]])
        sentinels = np.array(self.special_tokens.sentinels)[np.maximum(np.cumsum(first) - 1, 0)]
        source = np.where(first, sentinels, ids)[~hidden | first]
        # Each hidden token, with its sentinel before the first of a span.
        pairs = np.stack([sentinels, ids], axis=1)
        labels = pairs[np.stack([first, hidden], axis=1)]
        labels = np.append(labels, eos)
        # T5's decoder starts with the padding token (Hugging Face's `decoder_start_token_id`).
        ids = np.concatenate([[self.special_tokens.pad], labels[:-1]])
        return CorruptedSpans(np.append(source, eos), ids, labels)

    def collate(self, rows: Sequence[Sequence[CorruptedSpans]], /) -> Batch[TokenTargets]:
        """Lay sources side by side, and their targets likewise."""
        length, target = self.row_lengths
        pad = self.special_tokens.pad
        document, position_ids = document_and_position_ids(
            [[len(e.source) for e in row] for row in rows], length
        )
        source = Inputs(
            input_ids=pad_rows([[e.source for e in row] for row in rows], length, pad),
            attention_mask=AttentionMask.bidirectional(document),
            position_ids=position_ids,
        )
        document, position_ids = document_and_position_ids(
            [[len(e.ids) for e in row] for row in rows], target
        )
        inputs = Inputs(
            input_ids=pad_rows([[e.ids for e in row] for row in rows], target, pad),
            attention_mask=AttentionMask.causal(document),
            position_ids=position_ids,
            encoder_inputs=source,
        )
        labels = pad_rows([[e.labels for e in row] for row in rows], target, IGNORE_INDEX)
        count = int((labels != IGNORE_INDEX).sum())
        return Batch(inputs, TokenTargets(labels.flatten()), {"tokens": count})

    def loss(self, model: PredictsTokens, batch: Batch[TokenTargets], /) -> Loss:
        """Sum -log p(next token of the target)."""
        hidden = batch.targets.gather(model(batch.inputs).hidden)
        return Loss({"tokens": model.lm_logits(hidden).nll(batch.targets.labels)})

    def for_evaluation(self) -> "SpanCorruptionScorer":
        """Predict every token once, in spans of the same length and share."""
        return SpanCorruptionScorer(
            special_tokens=self.special_tokens,
            vocab_size=self.vocab_size,
            max_length=self.max_length,
            mask_rate=self.mask_rate,
            mean_span_length=self.mean_span_length,
        )


@config("spans_pll")
class SpanCorruptionScorer(SpanCorruption):
    """Pseudo-likelihood by spans: every token is hidden once, and sentinels are not scored."""

    @property
    def num_passes(self) -> int:
        """How many examples it takes to hide every token once."""
        return max(2, round(1 / self.mask_rate))

    @property
    def longest(self) -> int:
        """Every hidden span is at least as long as its sentinel, so this fits beside the end."""
        return self.max_length - 1

    def noise_counts(self, tokens: int) -> tuple[int, int]:
        """Say how many tokens of a text are hidden at most, and in how many spans."""
        width = round(self.mean_span_length)
        spans = -(-tokens // width)
        most = -(-spans // self.num_passes)
        return min(most * width, tokens), most

    def example_lengths(self, tokens: int) -> tuple[int, int]:
        """Say how long source and target of a text are at most."""
        hidden, spans = self.noise_counts(tokens)
        return tokens + 1, hidden + spans + 1

    def chunks(self, documents: TokenizedDocuments, /) -> ChunkIndex:
        """Take every stretch as often as it takes to hide each of its spans."""
        whole = super().chunks(documents)
        spans = -(-(whole.stop - whole.start) // round(self.mean_span_length))
        return whole.with_repeats(np.minimum(spans, self.num_passes))

    def example(self, chunk: Chunk, rng: Rng, /) -> CorruptedSpans:
        """Hide every n-th span, starting with the one whose turn it is."""
        span = np.arange(len(chunk.ids)) // round(self.mean_span_length)
        holes = self.corrupt(chunk.ids, span % self.num_passes == chunk.repeat)
        scored = ~np.isin(
            holes.labels, [*self.special_tokens.sentinels, self.special_tokens.require("eos")]
        )
        return CorruptedSpans(holes.source, holes.ids, np.where(scored, holes.labels, IGNORE_INDEX))


def random_partition(total: int, parts: int, rng: Rng) -> IntArray:
    """Split a number into parts of at least one, each way as likely as any other."""
    if total < parts:  # a text of one token: nothing is left beside its hole
        return np.array([total])
    cuts = np.sort(rng.choice(np.arange(1, total), parts - 1, replace=False))
    return np.diff(np.concatenate([[0], cuts, [total]]))
