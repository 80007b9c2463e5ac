"""Statistics of tokenizers: tokens per word, bytes per token, unknown tokens, scripts."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache

import numpy as np

from kinfolk.rng import text_uniform
from kinfolk.text.segment import word_starts
from kinfolk.text.tokenizer import Tokenizer
from kinfolk.text.unicode import count_scripts

HELD_OUT_SHARE = 0.1  # fraction of documents held out when tokenizers are compared
SYMBOLS = "signs"  # script of numbers and punctuation


@dataclass
class TokenizerStats:
    """Counts of a tokenizer on some texts."""

    tokens: int = 0
    words: int = 0
    bytes: int = 0
    unknown: int = 0  # [UNK] tokens
    script_tokens: Counter[str] = field(default_factory=Counter)
    script_words: Counter[str] = field(default_factory=Counter)

    @property
    def tokens_per_word(self) -> float:
        """The fertility: 1 if every word is one token."""
        return self.tokens / self.words

    @property
    def bytes_per_token(self) -> float:
        """The compression: bytes of text per token."""
        return self.bytes / self.tokens

    @property
    def unknown_rate(self) -> float:
        """The fraction of unknown tokens."""
        return self.unknown / self.tokens

    def fertility(self, script: str) -> float:
        """Return the tokens per word of one script."""
        return self.script_tokens[script] / self.script_words[script]


def tokenizer_stats(tokenizers: Sequence[Tokenizer], texts: Iterable[str]) -> list[TokenizerStats]:
    """Return the statistics of each tokenizer, reading the texts once."""
    stats = [TokenizerStats() for _ in tokenizers]
    for text in texts:
        words = np.array(word_starts(text, "spaces"), np.int64)
        if not len(words):
            continue
        scripts = np.array([_script(text[start]) for start in words.tolist()])
        for tokenizer, counts in zip(tokenizers, stats, strict=True):
            ids, indices = tokenizer.offsets(text)
            # A token may begin with a space, so its last character decides its word.
            lasts = np.array([max(start, end - 1) for start, end in indices], np.int64)
            word_of = np.maximum(np.searchsorted(words, lasts, side="right") - 1, 0)
            counts.tokens += len(ids)
            counts.words += len(words)
            counts.bytes += len(text.encode())
            counts.unknown += sum(id == tokenizer.special_tokens.unk for id in ids)
            counts.script_words.update(scripts.tolist())
            counts.script_tokens.update(scripts[word_of].tolist())
    return stats


def held_out(text: str) -> bool:
    """Return whether `prepare --holdout 0.1` holds out a document."""
    return text_uniform(text) < HELD_OUT_SHARE


@cache
def _script(character: str) -> str:
    return next(iter(count_scripts(character)), SYMBOLS)
