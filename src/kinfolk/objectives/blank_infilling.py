"""Blank infilling (Du et al., 2021): cut spans out of a text and write them in any order.

text      the  cat  sat  down  on   mat
ids       the  cat  [M]  down  [M]  <s>  on   mat   <s>  sat
labels     .    .    .    .     .   on   mat  </s>  sat  </s>
places     0    1    2    3     4    4    4    4     2    2
within     0    0    0    0     0    1    2    3     1    2
time       0    0    0    0     0    1    2    3     4    5
sight     the text sees all of itself; the spans see it and, of the spans, what is not later

A text loses several short spans, or several sentences, or all its end: three masks say which.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
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
from kinfolk.data.examples import document_and_position_ids, pad_rows, select_targets
from kinfolk.errors import UserError
from kinfolk.text.tokenizer import GLMTokens, SpecialTokens, glm_tokens

Span = tuple[int, int]  # where it starts and where it stops
MIN_TAIL_FRACTION = 0.5  # of a text is its end, where that is one blank (section 2.1.2)
LONGEST = 40  # tokens that a short span stays under (the released code)
LABEL_BUCKETS = (
    4  # sizes that the predictions of a batch may have: they vary, and shapes should not
)


@dataclass(frozen=True)
class Blanked:
    """A text with blanks and what fills them, where all of it stands, and when it is written."""

    ids: IntArray
    labels: IntArray
    position_ids: IntArray
    block_position_ids: IntArray
    order: IntArray


@config("blanks")
class BlankInfilling:
    """Hide 15 % of the tokens in short spans or in sentences, or half of them and more at the end.

    How often which: as the released configuration of the large model, which knows all three.
    """

    special_tokens: SpecialTokens = field(help="ids of the special tokens")
    vocab_size: int = field(ge=1, help="number of token ids")
    max_length: int = field(default=512, ge=1, help="length of a row, in tokens")
    mask_rate: float = field(default=0.15, gt=0, lt=1, help="fraction of the tokens that is masked")
    mean_span_length: float = field(
        default=3.0, ge=1, help="mean length of a masked span, in tokens"
    )
    sentence_mask_prob: float = field(
        default=0.3, ge=0, le=1, help="fraction of the texts in which whole sentences are masked"
    )
    gmask_prob: float = field(
        default=0.2, ge=0, le=1, help="fraction of the texts whose end is masked"
    )

    def __post_init__(self) -> None:
        if self.sentence_mask_prob + self.gmask_prob > 1:
            raise UserError(
                f"objective.sentence_mask_prob={self.sentence_mask_prob} and "
                f"objective.gmask_prob={self.gmask_prob} are more than 1 together: lower one"
            )
        glm_tokens(self.special_tokens)

    @cached_property
    def marks(self) -> GLMTokens:
        """The ids of the marks."""
        return glm_tokens(self.special_tokens)

    @cached_property
    def span_length_probs(self) -> NDArray[np.float64]:
        """How likely a short span has one token, two, three: Poisson's, without none."""
        sizes = np.arange(1, max(LONGEST, int(4 * self.mean_span_length)))
        logs = sizes * np.log(self.mean_span_length) - np.cumsum(np.log(sizes))
        odds = np.exp(logs - logs.max())
        return odds / odds.sum()

    def num_masked(self, tokens: int) -> int:
        """Say how many tokens of a text are hidden in short spans."""
        return max(1, round(self.mask_rate * tokens))

    def max_spans(self, tokens: int) -> int:
        """Say how many spans a text may lose: each takes a slot for its mask and one to start."""
        return min(
            self.num_masked(tokens),
            int(np.ceil(self.num_masked(tokens) / self.mean_span_length)) + 1,
        )

    @cached_property
    def longest(self) -> int:
        """The longest text that fits a row with its blanks."""
        tokens = 1
        while tokens + 1 + 2 * self.max_spans(tokens + 1) <= self.max_length:
            tokens += 1
        return tokens

    @property
    def row_lengths(self) -> tuple[int]:
        """One stream of `length` slots."""
        return (self.max_length,)

    def chunks(self, documents: TokenizedDocuments, /) -> ChunkIndex:
        """Cut documents into stretches that fit a row with their blanks."""
        document, start, stop = split_documents(documents, self.longest)
        table = np.array([n + 2 * self.max_spans(n) for n in range(self.longest + 1)])
        sizes = table[stop - start][:, None]
        return ChunkIndex(documents, document, start, stop, np.zeros_like(start), sizes)

    def example(self, chunk: Chunk, rng: Rng, /) -> Blanked:
        """Draw what is cut out, and in which order it is written."""
        size, dice = len(chunk.ids), rng.random()
        if dice < self.gmask_prob:
            # Deviation: the released code puts it anywhere, half of the time. An end that only the
            # cut made is not predicted, so that nothing is learned of it.
            blank = (size - int(np.ceil(rng.uniform(MIN_TAIL_FRACTION, 1.0) * size)), size)
            return self.corrupt(chunk.ids, [blank], self.marks.gmask, closed=finished(chunk))
        if dice < self.gmask_prob + self.sentence_mask_prob and len(chunk.sentences) > 1:
            spans, mask = self.whole(chunk.sentences, rng), self.marks.sentence
        else:
            spans, mask = self.draw_spans(size, rng), self.marks.mask
        order = rng.permutation(len(spans)).tolist()
        return self.corrupt(chunk.ids, [spans[i] for i in order], mask)

    def draw_spans(self, tokens: int, rng: Rng) -> list[Span]:
        """Draw short spans with at least a token between any two."""
        hidden = self.num_masked(tokens)
        lengths = rng.choice(len(self.span_length_probs), hidden, p=self.span_length_probs) + 1
        ends = np.unique(np.minimum(np.cumsum(lengths), hidden))
        most = min(self.max_spans(tokens), tokens - hidden + 1)
        if len(ends) > most:  # what has no room of its own joins the span before
            ends = np.append(np.sort(rng.choice(ends[:-1], most - 1, replace=False)), hidden)
        lengths = np.diff(ends, prepend=0)
        between = np.arange(len(ends))
        kept = np.sort(rng.integers(tokens - hidden - between[-1] + 1, size=len(ends))) + between
        starts = kept + ends - lengths
        return list(zip(starts.tolist(), (starts + lengths).tolist(), strict=True))

    def whole(self, sentences: IntArray, rng: Rng) -> list[Span]:
        """Draw sentences until they hold the share that is hidden; one always stays."""
        ends = np.cumsum(sentences)
        order = rng.permutation(len(sentences))[: min(self.max_spans(ends[-1]), len(sentences) - 1)]
        enough = int(np.searchsorted(np.cumsum(sentences[order]), self.num_masked(ends[-1]))) + 1
        return [(int(ends[i] - sentences[i]), int(ends[i])) for i in sorted(order[:enough])]

    def corrupt(
        self, ids: IntArray, spans: Sequence[Span], mask: int, *, closed: bool = True
    ) -> Blanked:
        """Put a mask for each span, and write the spans behind the text in the order given."""
        inside = np.zeros(len(ids), np.bool_)
        first = np.zeros(len(ids), np.bool_)
        for start, stop in spans:
            inside[start:stop], first[start] = True, True
        kept = ~inside | first
        text, place = np.where(first, mask, ids)[kept], np.cumsum(kept) - 1
        parts = [ids[start:stop] for start, stop in spans]
        sizes = [len(part) + 1 for part in parts]
        end = self.marks.end if closed else IGNORE_INDEX
        apart = np.zeros(len(text), np.int64)
        return Blanked(
            ids=np.concatenate([text, *(np.append(self.marks.start, part) for part in parts)]),
            labels=np.concatenate(
                [apart + IGNORE_INDEX, *(np.append(part, end) for part in parts)]
            ),
            position_ids=np.append(
                np.arange(len(text)), np.repeat(place[[a for a, _ in spans]], sizes)
            ),
            block_position_ids=np.concatenate([apart, *(np.arange(1, size + 1) for size in sizes)]),
            order=np.append(apart, np.arange(1, sum(sizes) + 1)),
        )

    def collate(self, rows: Sequence[Sequence[Blanked]], /) -> Batch[TokenTargets]:
        """Lay texts side by side, and keep only the slots that predict."""
        document, _ = document_and_position_ids(
            [[len(e.ids) for e in row] for row in rows], self.max_length
        )
        time = pad_rows([[e.order for e in row] for row in rows], self.max_length, 0).to(
            document.dtype
        )
        inputs = Inputs(
            input_ids=pad_rows(
                [[e.ids for e in row] for row in rows], self.max_length, self.special_tokens.pad
            ),
            attention_mask=AttentionMask(document, time, time),
            position_ids=pad_rows(
                [[e.position_ids for e in row] for row in rows], self.max_length, 0
            ),
            block_position_ids=pad_rows(
                [[e.block_position_ids for e in row] for row in rows], self.max_length, 0
            ),
        )
        labels = pad_rows([[e.labels for e in row] for row in rows], self.max_length, IGNORE_INDEX)
        targets, count = select_targets(labels)
        return Batch(inputs, rounded(targets, labels.numel()), {"tokens": count})

    def loss(self, model: PredictsTokens, batch: Batch[TokenTargets], /) -> Loss:
        """Sum -log p(next token of a span)."""
        hidden = batch.targets.gather(model(batch.inputs).hidden)
        return Loss({"tokens": model.lm_logits(hidden).nll(batch.targets.labels)})

    def for_evaluation(self) -> "BlankInfillingScorer":
        """Predict every token once, in spans of the same length and share."""
        return BlankInfillingScorer(
            special_tokens=self.special_tokens,
            vocab_size=self.vocab_size,
            max_length=self.max_length,
            mask_rate=self.mask_rate,
            mean_span_length=self.mean_span_length,
        )


@config("blanks_pll")
class BlankInfillingScorer(BlankInfilling):
    """Pseudo-likelihood by spans: every token is hidden once, and ends are not scored."""

    @property
    def num_passes(self) -> int:
        """How many examples it takes to hide every token once."""
        return max(2, round(1 / self.mask_rate))

    def max_spans(self, tokens: int) -> int:
        """Say how many spans of a text are hidden at most."""
        spans = -(-tokens // round(self.mean_span_length))
        return -(-spans // self.num_passes)

    def chunks(self, documents: TokenizedDocuments, /) -> ChunkIndex:
        """Take every stretch as often as it takes to hide each of its spans."""
        stretches = super().chunks(documents)
        spans = -(-(stretches.stop - stretches.start) // round(self.mean_span_length))
        return stretches.with_repeats(np.minimum(spans, self.num_passes))

    def example(self, chunk: Chunk, rng: Rng, /) -> Blanked:
        """Hide every n-th span, starting with the one whose turn it is."""
        width, size = round(self.mean_span_length), len(chunk.ids)
        starts = range(chunk.repeat * width, size, self.num_passes * width)
        spans = [(start, min(start + width, size)) for start in starts]
        return self.corrupt(chunk.ids, spans, self.marks.mask, closed=False)


def finished(chunk: Chunk) -> bool:
    """Say whether a piece ends where its document does."""
    first, end = chunk.documents.starts[chunk.document : chunk.document + 2].tolist()
    return bool(chunk.stop == end - first)


def rounded(labels: TokenTargets, slots: int) -> TokenTargets:
    """Fill up with empty predictions to a quarter of the slots, or two, three or all of them."""
    assert labels.positions is not None
    empty = -len(labels.labels) % max(1, slots // LABEL_BUCKETS)
    ids = torch.cat([labels.labels, labels.labels.new_full((empty,), IGNORE_INDEX)])
    return TokenTargets(ids, torch.cat([labels.positions, labels.positions.new_zeros(empty)]))
