"""Masked language modelling (Devlin et al., 2018): mask some tokens and predict them.

text             the  cat  sat  down
input_ids  [C]   the  [M]  sat  down  [S]
labels      .     .   cat   .    .     .
attention  every token attends to every token

Of an encoder-decoder (the Transformer), the encoder reads `input_ids`, and the decoder is left as
it is.

With whole word masking (Cui et al., 2019), all tokens of a word are masked or none:

text             the  fidd ler  sat
words             1    1    0    1
input_ids  [C]   the  [M]  [M]  sat  [S]
labels      .     .   fidd ler   .    .
"""

from collections.abc import Iterable
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from kinfolk.batch import IGNORE_INDEX
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
from kinfolk.data.examples import Example
from kinfolk.objectives.objective import Objective, max_predictions_field
from kinfolk.text.tokenizer import SpecialTokens

START = np.ones(1, np.bool_)  # the mark of a special token


def mask_tokens(
    ids: IntArray,
    mask_rate: float,
    special_tokens: SpecialTokens,
    replacement_ids: IntArray,
    rng: Rng,
    word_starts: BoolArray | None = None,
    **fields: Any,
) -> Example:
    """Mask a fraction of the ordinary tokens: 80 % become [MASK], 10 % another token, 10 % stay.

    Their number is rounded, and at least one, so it is the same in every epoch
    (section 3.1, and appendix A.1 for the split). With `word_starts`, whole words are drawn, and
    each of their tokens is replaced or kept by itself.
    """
    (maskable,) = (~special_tokens.is_special(ids)).nonzero()
    count = min(len(maskable), max(1, round(mask_rate * len(maskable))))
    if word_starts is None:
        masked = rng.choice(maskable, count, replace=False)
    else:
        words = word_starts.cumsum(dtype=np.int64)[maskable]
        masked = maskable[_choose_whole_words(words, count, rng)]
    labels = np.empty_like(ids)
    labels.fill(IGNORE_INDEX)
    labels[masked] = ids[masked]
    uniform = rng.random(len(masked))
    input_ids = ids.copy()
    input_ids[masked[uniform < 0.8]] = special_tokens.require("mask")
    replaced = masked[uniform >= 0.9]
    input_ids[replaced] = rng.choice(replacement_ids, len(replaced))
    return Example(input_ids=input_ids, labels=labels, **fields)


def _choose_whole_words(words: IntArray, count: int, rng: Rng) -> BoolArray:
    """Draw words, given the word number of each token, until `count` tokens are masked.

    A word with too many tokens is skipped (BERT's released code); at least one word is masked.
    """
    if not len(words):
        return np.zeros(0, np.bool_)
    changes = (words[1:] != words[:-1]).nonzero()[0] + 1
    bounds = np.empty(len(changes) + 2, np.int64)
    bounds[0], bounds[1:-1], bounds[-1] = 0, changes, len(words)
    sizes = bounds[1:] - bounds[:-1]
    order, sizes_of = rng.permutation(len(sizes)), sizes.tolist()
    chosen, left = np.zeros(len(sizes), np.bool_), count
    for candidate in order.tolist():
        if sizes_of[candidate] <= left:
            chosen[candidate] = True
            left -= sizes_of[candidate]
        if not left:
            break
    if left == count:
        chosen[order[np.argmin(sizes[order])]] = True
    return chosen.repeat(sizes)


def mark_special_tokens(parts: Iterable[BoolArray]) -> BoolArray:
    """Add [CLS] and the [SEP] after each part to marks of tokens that start something."""
    return np.concatenate([START, *(marks for part in parts for marks in (part, START))])


@config("mlm")
class MLM(Objective):
    """Predict masked tokens from both their sides."""

    mask_rate: float = field(default=0.15, gt=0, lt=1, help="fraction of the tokens that is masked")
    whole_word_masking: bool = field(
        default=False, help="mask all tokens of a word or none (whole word masking)"
    )

    # BERT's masks are drawn once, before training; RoBERTa draws new ones (Liu et al. 2019, 4.1).
    fixed_masks: bool = field(
        default=False, help="mask the same tokens of a text in every epoch (static masking)"
    )

    loss_name = "mlm"
    encoder_alone = True
    required_tokens = ("mask", "cls", "sep")
    label_buckets = 64

    @cached_property
    def replacement_ids(self) -> IntArray:
        """The ids that may replace a token: all but the special tokens."""
        return np.setdiff1d(np.arange(self.vocab_size), np.array(sorted(self.special_tokens.ids)))

    def chunks(self, documents: TokenizedDocuments, /) -> ChunkIndex:
        """Cut documents into chunks that fit a row with [CLS] and [SEP]."""
        return self.split(documents, special_tokens=2)

    def split(self, documents: TokenizedDocuments, *, special_tokens: int) -> ChunkIndex:
        """Cut documents into chunks that fit a row with so many special tokens."""
        self.require_word_starts(documents)
        chunks = split_documents(documents, self.max_length - special_tokens)
        return replace(chunks, sizes=chunks.sizes + special_tokens)

    def example(self, chunk: Chunk, rng: Rng, /) -> Example:
        """Add the special tokens and mask some of the others."""
        return self.mask(self.add_special_tokens(chunk.ids), rng, self.word_starts(chunk))

    def example_epoch(self, epoch: int, /) -> int:
        """Return the first epoch where masks are fixed."""
        return 0 if self.fixed_masks else epoch

    def mask(
        self, ids: IntArray, rng: Rng, word_starts: BoolArray | None, **fields: Any
    ) -> Example:
        """Mask some tokens of a sequence that has its special tokens; add fields to the example."""
        return mask_tokens(
            ids,
            self.mask_rate,
            self.special_tokens,
            self.replacement_ids,
            rng,
            word_starts,
            **fields,
        )

    def add_special_tokens(self, *parts: IntArray) -> IntArray:
        """Return [CLS] and the parts, each followed by [SEP]."""
        cls, sep = self.cls_and_sep
        return np.concatenate([cls, *(ids for part in parts for ids in (part, sep))])

    @cached_property
    def cls_and_sep(self) -> tuple[IntArray, IntArray]:
        """The ids of [CLS] and [SEP], as arrays of one."""
        cls, sep = self.special_tokens.require("cls"), self.special_tokens.require("sep")
        return np.array([cls]), np.array([sep])

    def require_word_starts(self, documents: TokenizedDocuments) -> None:
        """Raise UserError if words are masked and the documents have no word boundaries."""
        if self.whole_word_masking:
            documents.words(0, 0)

    def word_starts(self, *parts: Chunk) -> BoolArray | None:
        """Return which tokens start a word, special tokens included; None for single tokens.

        The rest of a word that starts before its chunk counts as a word.
        """
        if not self.whole_word_masking:
            return None
        return mark_special_tokens([part.words for part in parts])

    def for_evaluation(self) -> "MLMScorer":
        """Predict every token from all the others."""
        return MLMScorer(**self.common_fields)


@config("mlm_pll")
class MLMScorer(MLM):
    """Pseudo-likelihood (Salazar et al., 2020): each token is masked alone, once."""

    max_predictions: int | None = max_predictions_field()

    def chunks(self, documents: TokenizedDocuments, /) -> ChunkIndex:
        """Take every chunk once per token."""
        chunks = super().chunks(documents)
        return chunks.with_repeats(chunks.stop - chunks.start, self.max_predictions)

    def example(self, chunk: Chunk, rng: Rng, /) -> Example:
        """Mask one token."""
        ids = self.add_special_tokens(chunk.ids)
        labels = np.full_like(ids, IGNORE_INDEX)
        labels[chunk.repeat + 1] = ids[chunk.repeat + 1]
        ids[chunk.repeat + 1] = self.special_tokens.require("mask")
        return Example(input_ids=ids, labels=labels)
