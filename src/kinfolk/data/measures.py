"""How well tokenizers suit a text: tokens a word, bytes a token, and what they do not know."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache

import numpy as np

from kinfolk.data.scripts import count_scripts
from kinfolk.rng import text_uniform
from kinfolk.text import Tokenizer
from kinfolk.text.words import word_starts

HELD_OUT = 0.1  # the share of documents that tokenizers trained to be compared do not see
SYMBOLS = "signs"  # the script of what has no letters: numbers and punctuation


@dataclass
class TokenizerStats:
    """What a tokenizer made of a text, counted."""

    tokens: int = 0
    words: int = 0
    bytes: int = 0
    unknown: int = 0  # tokens that stand for what the vocabulary cannot spell
    script_tokens: Counter[str] = field(default_factory=Counter)
    script_words: Counter[str] = field(default_factory=Counter)

    @property
    def tokens_per_word(self) -> float:
        """The fertility: 1 where every word is a token."""
        return self.tokens / self.words

    @property
    def bytes_per_token(self) -> float:
        """How much text a token holds: the same scale for every language."""
        return self.bytes / self.tokens

    @property
    def unknown_rate(self) -> float:
        """The share of tokens that are unknown."""
        return self.unknown / self.tokens

    def fertility(self, script: str) -> float:
        """Tokens a word, of the words in one script."""
        return self.script_tokens[script] / self.script_words[script]


def tokenizer_stats(tokenizers: Sequence[Tokenizer], texts: Iterable[str]) -> list[TokenizerStats]:
    """Measure tokenizers side by side, reading the texts once."""
    found = [TokenizerStats() for _ in tokenizers]
    for text in texts:
        words = np.array(word_starts(text, "spaces"), np.int64)
        if not len(words):
            continue
        written = np.array([_script(text[start]) for start in words.tolist()])
        for tokenizer, measures in zip(tokenizers, found, strict=True):
            ids, indices = tokenizer.offsets(text)
            # A token belongs to the word its last character is in: a space before it comes first.
            lasts = np.array([max(start, end - 1) for start, end in indices], np.int64)
            of = np.maximum(np.searchsorted(words, lasts, side="right") - 1, 0)
            measures.tokens += len(ids)
            measures.words += len(words)
            measures.bytes += len(text.encode())
            measures.unknown += sum(id == tokenizer.special_tokens.unk for id in ids)
            measures.script_words.update(written.tolist())
            measures.script_tokens.update(written[of].tolist())
    return found


def held_out(text: str) -> bool:
    """Tell whether a document is among the tenth that `prepare --holdout 0.1` holds out."""
    return text_uniform(text) < HELD_OUT


@cache
def _script(character: str) -> str:
    return next(iter(count_scripts(character)), SYMBOLS)
