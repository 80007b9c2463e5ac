"""Tokens made readable, and statistics of a tokenizer on a text."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache

import numpy as np
from tokenizers import pre_tokenizers

from kinfolk.rng import text_uniform
from kinfolk.text.segment import word_starts
from kinfolk.text.tokenizer import Tokenizer
from kinfolk.text.unicode import count_scripts

WHITESPACE_SYMBOLS = {" ": "␣", "\n": "⏎", "\t": "⇥", "\r": "␍", "\u3000": "□", "\xa0": "⍽"}


@dataclass(frozen=True)
class TokenView:
    """A token in its text."""

    id: int
    token: str  # as the vocabulary writes it
    text: str  # for people: white space visible, bytes of a character beside that character
    special: bool = False
    unknown: bool = False


def token_views(tokenizer: Tokenizer, text: str) -> list[TokenView]:
    """Cut a text into its pieces, in the tokenizer's own frame.

    Byte-level pieces are read as text. One that holds only some bytes of a character shows them
    beside it: 中⟨e4 b8⟩, 中⟨ad⟩. An unknown one shows what it stands for: [UNK]⟨zebra⟩.
    """
    ids = tokenizer.encode(text)
    tokens = [tokenizer.id_to_token(id) for id in ids]
    special_tokens = tokenizer.special_tokens
    marked = [id in special_tokens.ids for id in ids]
    bytewise = is_byte_level(tokenizer)
    spelled = _spelled(tokens, marked) if bytewise else tokens
    sources = _sources(tokenizer, text, ids)
    found = []
    for id, token, said, special, source in zip(ids, tokens, spelled, marked, sources, strict=True):
        unknown = id == special_tokens.unk and not bytewise
        if unknown and source:
            said = f"{token}⟨{source}⟩"
        found.append(TokenView(id, token, show_whitespace(said), special and not unknown, unknown))
    return found


def show_whitespace(text: str) -> str:
    """Write white space and what is invisible as signs that are not: "a b" is a␣b."""

    def sign(character: str) -> str:
        shown = character.isprintable() and not character.isspace()
        return (
            character if shown else WHITESPACE_SYMBOLS.get(character, f"⟨U+{ord(character):04X}⟩")
        )

    return "".join(map(sign, text))


def is_byte_level(tokenizer: Tokenizer) -> bool:
    """Tell whether pieces are made of bytes, each written as a letter (GPT-2's Ġ is a space)."""
    return any(
        "Ġ" in tokenizer.id_to_token(id) for id in tokenizer.encode(" a", add_special_tokens=False)
    )


def _spelled(tokens: Sequence[str], marked: Sequence[bool]) -> list[str]:
    """Read byte-level pieces as text, each with the characters it holds, whole or in part."""
    letters = {letter: byte for byte, letter in enumerate(_letters())}
    raw = [
        b"" if special or not set(token) <= letters.keys() else bytes(letters[c] for c in token)
        for token, special in zip(tokens, marked, strict=True)
    ]
    stream = b"".join(raw)
    # The character each byte belongs to, and where that character begins and ends.
    spans: list[tuple[str, int, int]] = []
    for character in stream.decode("utf-8", "surrogateescape"):
        size = len(character.encode("utf-8", "surrogateescape"))
        spans += [(character, len(spans), len(spans) + size)] * size
    found, begin = [], 0
    for token, part in zip(tokens, raw, strict=True):
        end = begin + len(part)
        inside = dict.fromkeys(spans[begin:end])
        said = ""
        for character, first, last in inside:
            some = stream[max(first, begin) : min(last, end)]
            said += character if len(some) == last - first else f"{character}⟨{some.hex(' ')}⟩"
        found.append(said if part else token)
        begin = end
    return found


def _letters() -> list[str]:
    """Return the letter of each byte: printable ones stand for themselves, others from 256 on."""
    letters, spare = [], 256
    alphabet = set(pre_tokenizers.ByteLevel.alphabet())
    for byte in range(256):
        if chr(byte) in alphabet:
            letters.append(chr(byte))
        else:
            letters.append(chr(spare))
            spare += 1
    return letters


def _sources(tokenizer: Tokenizer, text: str, ids: Sequence[int]) -> list[str]:
    """Return the characters that each id came from, nothing for the frame around them."""
    plain, indices = tokenizer.offsets(text)
    spare = len(ids) - len(plain)
    for before in range(spare + 1):
        if list(ids[before : before + len(plain)]) == plain:
            inner = [text[start:end] for start, end in indices]
            return [*[""] * before, *inner, *[""] * (spare - before)]
    return [""] * len(ids)  # special tokens were named in the text itself


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
