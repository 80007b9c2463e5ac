"""The characters of tokens as ids, in ELMo's convention (Peters et al., 2018).

    cat   <w> c a t </w> . . .      the bytes of UTF-8 between marks of a word's begin and end

The id of a byte is its value plus 1, and 0 stands for no token. Words that a vocabulary lacks are
read by their characters too: `OpenVocabulary` gives them ids beyond it for a while.
"""

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from kinfolk.text.tokenizer import Tokenizer

BEGIN_TEXT, END_TEXT, BEGIN_WORD, END_WORD, PADDING = range(257, 262)

CharacterIds = npt.NDArray[np.int16]


def encode_characters(characters: bytes | list[int], size: int) -> CharacterIds:
    """Return the ids of a word of some characters between marks, cut and padded to a size."""
    kept = [byte + 1 for byte in characters[: size - 2]]
    ids = np.full(size, PADDING, np.int16)
    ids[: len(kept) + 2] = [BEGIN_WORD, *kept, END_WORD]
    return ids


def encode_word(word: str, size: int) -> CharacterIds:
    """Return the characters of a word."""
    return encode_characters(word.encode("utf-8", "ignore"), size)


@lru_cache(maxsize=8)
def character_table(tokenizer: Tokenizer, size: int) -> CharacterIds:
    """Return the characters of every token: (vocabulary, size).

    The tokens of a text's begin and end have marks of their own. The table is shared: copy it
    before a change.
    """
    special_tokens = tokenizer.special_tokens
    table = np.stack(
        [encode_word(token_text(tokenizer, id), size) for id in range(tokenizer.vocab_size)]
    )
    table[special_tokens.pad] = 0
    # One token may be both; then it is the begin.
    for id, mark in ((special_tokens.eos, END_TEXT), (special_tokens.bos, BEGIN_TEXT)):
        if id is not None:
            table[id] = encode_characters([mark - 1], size)
    return table


def token_text(tokenizer: Tokenizer, id: int) -> str:
    """Return what a token spells; one inside a word, like "##ing", keeps its prefix."""
    if not tokenizer.has_id(id):  # some vocabularies have gaps
        return ""
    token = tokenizer.id_to_token(id)
    inner = id in tokenizer.special_tokens.ids or token.startswith("##")
    return token if inner else tokenizer.decode([id]) or token


class OpenVocabulary(Tokenizer):
    """A tokenizer whose unknown words have ids beyond its vocabulary, each its own.

    It is made for one row, and `character_ids` returns what such ids spell.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        vars(self).update(vars(tokenizer))  # a copy for each row would count the vocabulary anew
        self.tokenizer = tokenizer
        self.words: list[str] = []  # that the vocabulary lacks

    def offsets(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Return the ids of a text and the characters of each, as `Tokenizer.offsets` does."""
        ids, spans = self.tokenizer.offsets(text)
        unknown = self.special_tokens.unk
        for place, (start, stop) in enumerate(spans):
            if ids[place] == unknown:
                ids[place] = self.vocab_size + len(self.words)
                self.words.append(self.normalize(text[start:stop]))
        return ids, spans

    def close(self, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return ids of the vocabulary, the unknown token's for those beyond it."""
        unknown = self.special_tokens.unk
        return ids if unknown is None else np.where(self._beyond(ids), unknown, ids)

    def character_ids(self, ids: npt.NDArray[np.int64], size: int) -> npt.NDArray[np.int64]:
        """Return the characters of tokens: (tokens, size)."""
        characters = character_table(self.tokenizer, size)[self.close(ids)].astype(np.int64)
        for place in np.flatnonzero(self._beyond(ids)):
            word = self.words[int(ids[place]) - self.vocab_size]
            characters[place] = encode_word(word, size)
        return characters

    def _beyond(self, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        return ids >= self.vocab_size
