"""Masked language modelling (Devlin et al., 2018): hide some words and predict them.

text        the  cat  sat  down
ids    [C]  the  [M]  sat  down  [S]
labels  .    .   cat   .    .     .
sight  everyone sees everyone

With `whole` words (Cui et al., 2019), all of a word's tokens are hidden or none:

text        the  fidd ler  sat
words        1    1    0    1
ids    [C]  the  [M]  [M]  sat  [S]
labels  .    .   fidd ler   .    .
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from kinfolk.attention_mask import AttentionMask
from kinfolk.batch import IGNORE_INDEX, Batch, Inputs, Loss, PredictsTokens, TokenTargets
from kinfolk.config import config, field
from kinfolk.data.chunks import (
    BoolArray,
    Chunk,
    ChunkIndex,
    IntArray,
    Rng,
    TokenizedDocuments,
    split_documents,
)
from kinfolk.data.examples import document_and_position_ids, pad_rows, select_targets
from kinfolk.text.tokenizer import SpecialTokens


@dataclass(frozen=True)
class Masked:
    """Tokens, some of them hidden, and what the hidden ones were."""

    ids: IntArray
    labels: IntArray


def mask_tokens(
    ids: IntArray,
    rate: float,
    special_tokens: SpecialTokens,
    ordinary: IntArray,
    rng: Rng,
    words: BoolArray | None = None,
) -> Masked:
    """Hide a share of the ordinary tokens: 80 % behind [MASK], 10 % behind another, 10 % not.

    The share is rounded to a whole number, at least one, so it is the same in every draw
    (section 3.1, and appendix A.1 for the split). `words` says which tokens begin a word: then
    whole words are drawn, and each token of them meets its own fate.
    """
    maskable = np.flatnonzero(~special_tokens.is_special(ids))
    count = min(len(maskable), max(1, round(rate * len(maskable))))
    if words is None:
        chosen = rng.choice(maskable, count, replace=False)
    else:
        chosen = maskable[
            _choose_whole_words(np.cumsum(words, dtype=np.int64)[maskable], count, rng)
        ]
    labels = np.full_like(ids, IGNORE_INDEX)
    labels[chosen] = ids[chosen]
    dice = rng.random(len(chosen))
    hidden = ids.copy()
    hidden[chosen[dice < 0.8]] = special_tokens.require("mask")
    swapped = chosen[dice >= 0.9]
    hidden[swapped] = rng.choice(ordinary, len(swapped))
    return Masked(hidden, labels)


def _choose_whole_words(words: IntArray, count: int, rng: Rng) -> BoolArray:
    """Draw words, given the number of each token's, until `count` tokens are hidden.

    A word that would be too much is passed over (BERT's released code); at least one is hidden.
    """
    _, word, sizes = np.unique(words, return_inverse=True, return_counts=True)
    order = rng.permutation(len(sizes))
    picked: list[int] = []
    for one in order.tolist():
        if sizes[one] <= count:
            picked.append(one)
            count -= sizes[one]
        if not count:
            break
    if len(order) and not picked:
        picked = [order[np.argmin(sizes[order])]]
    return np.isin(word, picked)


@config("mlm")
class MLM:
    """Predict hidden tokens from both their sides."""

    special_tokens: SpecialTokens = field(help="ids of the special tokens")
    vocab_size: int = field(ge=1, help="number of token ids")
    max_length: int = field(default=512, ge=1, help="length of a row, in tokens")
    mask_rate: float = field(default=0.15, gt=0, lt=1, help="fraction of the tokens that is masked")
    whole_word_masking: bool = field(
        default=False, help="mask all tokens of a word or none (whole word masking)"
    )

    def __post_init__(self) -> None:
        for role in ("mask", "cls", "sep"):
            self.special_tokens.require(role)

    @property
    def row_lengths(self) -> tuple[int]:
        """One stream of `length` slots."""
        return (self.max_length,)

    @cached_property
    def replacement_ids(self) -> IntArray:
        """The ids that may stand in for another: all but the specials."""
        return np.setdiff1d(np.arange(self.vocab_size), np.array(sorted(self.special_tokens.ids)))

    def chunks(self, documents: TokenizedDocuments, /) -> ChunkIndex:
        """Cut documents into stretches that fit between [CLS] and [SEP]."""
        self.require_word_starts(documents)
        document, start, stop = split_documents(documents, self.max_length - 2)
        sizes = (stop - start)[:, None] + 2
        return ChunkIndex(documents, document, start, stop, np.zeros_like(start), sizes)

    def example(self, chunk: Chunk, rng: Rng, /) -> Masked:
        """Frame the piece and hide some of it."""
        ids, words = self.frame(chunk.ids), self.words(chunk)
        return mask_tokens(
            ids, self.mask_rate, self.special_tokens, self.replacement_ids, rng, words
        )

    def frame(self, ids: IntArray) -> IntArray:
        """Put a text between [CLS] and [SEP]."""
        return np.concatenate([[self.special_tokens.cls], ids, [self.special_tokens.sep]])

    def require_word_starts(self, documents: TokenizedDocuments) -> None:
        """Complain at once where whole words are wanted and the documents do not know them."""
        if self.whole_word_masking:
            documents.words(0, 0)

    def words(self, *texts: Chunk) -> BoolArray | None:
        """Tell which tokens begin a word, marks among them; None where that does not matter.

        What is left of a word that began before its piece counts as a word.
        """
        if not self.whole_word_masking:
            return None
        return np.concatenate([[True], *(np.append(text.words, True) for text in texts)])

    def collate(self, rows: Sequence[Sequence[Masked]], /) -> Batch[TokenTargets]:
        """Lay texts side by side, and keep only the slots that predict."""
        document, position_ids = document_and_position_ids(
            [[len(e.ids) for e in row] for row in rows], self.max_length
        )
        ids = pad_rows(
            [[e.ids for e in row] for row in rows], self.max_length, self.special_tokens.pad
        )
        labels = pad_rows([[e.labels for e in row] for row in rows], self.max_length, IGNORE_INDEX)
        inputs = Inputs(
            input_ids=ids,
            attention_mask=AttentionMask.bidirectional(document),
            position_ids=position_ids,
        )
        targets, count = select_targets(labels)
        return Batch(inputs, targets, {"tokens": count})

    def loss(self, model: PredictsTokens, batch: Batch[TokenTargets], /) -> Loss:
        """Sum -log p(hidden token)."""
        hidden = batch.targets.gather(model(batch.inputs).hidden)
        return Loss({"tokens": model.lm_logits(hidden).nll(batch.targets.labels)})

    def for_evaluation(self) -> "MLMScorer":
        """Predict every token from all the others."""
        return MLMScorer(
            special_tokens=self.special_tokens,
            vocab_size=self.vocab_size,
            max_length=self.max_length,
        )


@config("mlm_pll")
class MLMScorer(MLM):
    """Pseudo-likelihood (Salazar et al., 2020): hide each token by itself, once."""

    def chunks(self, documents: TokenizedDocuments, /) -> ChunkIndex:
        """Take every stretch as often as it has tokens."""
        whole = super().chunks(documents)
        return whole.with_repeats(whole.stop - whole.start)

    def example(self, chunk: Chunk, rng: Rng, /) -> Masked:
        """Hide the token whose turn it is."""
        ids = self.frame(chunk.ids)
        labels = np.full_like(ids, IGNORE_INDEX)
        labels[chunk.repeat + 1] = ids[chunk.repeat + 1]
        ids[chunk.repeat + 1] = self.special_tokens.require("mask")
        return Masked(ids, labels)
