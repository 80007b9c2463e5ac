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
from kinfolk.data.packing import lay, number
from kinfolk.data.pieces import Documents, Ids, Piece, Pieces, Rng, cut
from kinfolk.errors import UserError
from kinfolk.text.tokenizer import Specials


@dataclass(frozen=True)
class Holes:
    """A text with holes, and what stood in them, a step apart."""

    source: Ids
    ids: Ids
    labels: Ids


@config("spans")
class Spans:
    """Hide spans of three tokens on average, 15 % in all, and predict them in order."""

    specials: Specials = field(help="ids of the special tokens")
    vocab: int = field(ge=1, help="number of token ids")
    length: int = field(default=512, ge=1, help="length of a row of the encoder, in tokens")
    rate: float = field(default=0.15, gt=0, lt=1, help="fraction of the tokens that is masked")
    # Raffel et al. 2020, section 3.1.4.
    span: float = field(default=3.0, ge=1, help="mean length of a masked span, in tokens")

    def __post_init__(self) -> None:
        self.specials.need("eos")
        needed = self.holes(self.longest)[1]
        if needed > len(self.specials.sentinels):
            raise UserError(
                f"rows of {self.length} tokens need {needed} sentinels, and this tokenizer has "
                f"{len(self.specials.sentinels)}: use a smaller length"
            )

    def holes(self, tokens: int) -> tuple[int, int]:
        """Say how many tokens of a text are hidden, and in how many spans."""
        hidden = min(max(round(tokens * self.rate), 1), max(tokens - 1, 1))
        spans = min(max(round(hidden / self.span), 1), max(tokens - hidden, 1))
        return hidden, spans

    def sizes(self, tokens: int) -> tuple[int, int]:
        """Say how long source and target of a text are."""
        hidden, spans = self.holes(tokens)
        return tokens - hidden + spans + 1, hidden + spans + 1

    @property
    def longest(self) -> int:
        """The longest text whose source fits a row."""
        tokens = self.length - 1  # which always fits: no hole is shorter than its sentinel
        while self.sizes(tokens + 1)[0] <= self.length:
            tokens += 1
        return tokens

    @property
    def capacity(self) -> tuple[int, int]:
        """A row of sources, and one for what they lack: short texts lack relatively more."""
        target = self.sizes(self.longest)[1]
        return self.length, -(-target // 8) * 8

    def pieces(self, documents: Documents, /) -> Pieces:
        """Cut documents into stretches whose sources fit a row."""
        document, start, stop = cut(documents, self.longest)
        table = np.array([(0, 0), *(self.sizes(n) for n in range(1, self.longest + 1))])
        sizes = table[stop - start]
        return Pieces(documents, document, start, stop, np.zeros_like(start), sizes)

    def example(self, piece: Piece, rng: Rng, /) -> Holes:
        """Cut spans at chance: text and spans take turns, and text comes first."""
        hidden, spans = self.holes(len(piece.ids))
        kept = split(len(piece.ids) - hidden, spans, rng)
        gone = split(hidden, spans, rng)
        lengths = np.stack([kept, gone], axis=1).ravel()
        return self.punch(piece.ids, np.repeat(np.arange(2 * spans) % 2 == 1, lengths))

    def punch(self, ids: Ids, hidden: NDArray[np.bool_]) -> Holes:
        """Put a sentinel for each hidden span, and write the spans behind their sentinels."""
        eos = self.specials.need("eos")
        first = hidden & ~np.concatenate([[False], hidden[:-1]])
        sentinels = np.array(self.specials.sentinels)[np.maximum(np.cumsum(first) - 1, 0)]
        source = np.where(first, sentinels, ids)[~hidden | first]
        # Each hidden token, with its sentinel before the first of a span.
        pairs = np.stack([sentinels, ids], axis=1)
        labels = pairs[np.stack([first, hidden], axis=1)]
        labels = np.append(labels, eos)
        # T5's decoder starts with the padding token (Hugging Face's `decoder_start_token_id`).
        ids = np.concatenate([[self.specials.pad], labels[:-1]])
        return Holes(np.append(source, eos), ids, labels)

    def collate(self, rows: Sequence[Sequence[Holes]], /) -> Batch[TokenTargets]:
        """Lay sources side by side, and their targets likewise."""
        length, target = self.capacity
        pad = self.specials.pad
        document, places = number([[len(e.source) for e in row] for row in rows], length)
        source = Inputs(
            input_ids=lay([[e.source for e in row] for row in rows], length, pad),
            attention_mask=AttentionMask.bidirectional(document),
            position_ids=places,
        )
        document, places = number([[len(e.ids) for e in row] for row in rows], target)
        inputs = Inputs(
            input_ids=lay([[e.ids for e in row] for row in rows], target, pad),
            attention_mask=AttentionMask.causal(document),
            position_ids=places,
            encoder_inputs=source,
        )
        labels = lay([[e.labels for e in row] for row in rows], target, IGNORE_INDEX)
        count = int((labels != IGNORE_INDEX).sum())
        return Batch(inputs, TokenTargets(labels.flatten()), {"tokens": count})

    def loss(self, model: PredictsTokens, batch: Batch[TokenTargets], /) -> Loss:
        """Sum -log p(next token of the target)."""
        hidden = batch.targets.gather(model(batch.inputs).hidden)
        return Loss({"tokens": model.lm_logits(hidden).nll(batch.targets.labels)})

    def exam(self) -> "EachSpan":
        """Predict every token once, in spans of the same length and share."""
        return EachSpan(
            specials=self.specials,
            vocab=self.vocab,
            length=self.length,
            rate=self.rate,
            span=self.span,
        )


@config("spans_pll")
class EachSpan(Spans):
    """Pseudo-likelihood by spans: every token is hidden once, and sentinels are not scored."""

    @property
    def rounds(self) -> int:
        """How many examples it takes to hide every token once."""
        return max(2, round(1 / self.rate))

    @property
    def longest(self) -> int:
        """Every hidden span is at least as long as its sentinel, so this fits beside the end."""
        return self.length - 1

    def holes(self, tokens: int) -> tuple[int, int]:
        """Say how many tokens of a text are hidden at most, and in how many spans."""
        width = round(self.span)
        spans = -(-tokens // width)
        most = -(-spans // self.rounds)
        return min(most * width, tokens), most

    def sizes(self, tokens: int) -> tuple[int, int]:
        """Say how long source and target of a text are at most."""
        hidden, spans = self.holes(tokens)
        return tokens + 1, hidden + spans + 1

    def pieces(self, documents: Documents, /) -> Pieces:
        """Take every stretch as often as it takes to hide each of its spans."""
        whole = super().pieces(documents)
        spans = -(-(whole.stop - whole.start) // round(self.span))
        return whole.turns(np.minimum(spans, self.rounds))

    def example(self, piece: Piece, rng: Rng, /) -> Holes:
        """Hide every n-th span, starting with the one whose turn it is."""
        span = np.arange(len(piece.ids)) // round(self.span)
        holes = self.punch(piece.ids, span % self.rounds == piece.turn)
        scored = ~np.isin(holes.labels, [*self.specials.sentinels, self.specials.need("eos")])
        return Holes(holes.source, holes.ids, np.where(scored, holes.labels, IGNORE_INDEX))


def split(total: int, parts: int, rng: Rng) -> Ids:
    """Split a number into parts of at least one, each way as likely as any other."""
    if total < parts:  # a text of one token: nothing is left beside its hole
        return np.array([total])
    cuts = np.sort(rng.choice(np.arange(1, total), parts - 1, replace=False))
    return np.diff(np.concatenate([[0], cuts, [total]]))
