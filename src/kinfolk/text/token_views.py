"""Tokens of a text as a reader can read them: visible white space, characters, unknown tokens."""

from collections.abc import Sequence
from dataclasses import dataclass

from tokenizers import pre_tokenizers

from kinfolk.text.tokenizer import Tokenizer

WHITESPACE_SYMBOLS = {" ": "␣", "\n": "⏎", "\t": "⇥", "\r": "␍", "\u3000": "□", "\xa0": "⍽"}


@dataclass(frozen=True)
class TokenView:
    """A token of a text, for display."""

    id: int
    token: str  # in the vocabulary
    text: str  # readable: visible white space, partial characters with their bytes
    special: bool = False
    unknown: bool = False


def token_views(tokenizer: Tokenizer, text: str) -> list[TokenView]:
    """Tokenize a text with the tokenizer's special tokens, and make each token readable.

    A byte-level token is decoded; one with only some bytes of a character shows the character and
    these bytes: 中⟨e4 b8⟩, 中⟨ad⟩. An unknown token shows its source text: [UNK]⟨zebra⟩.
    """
    ids = tokenizer.encode(text)
    tokens = [tokenizer.id_to_token(id) for id in ids]
    special_tokens = tokenizer.special_tokens
    is_special = [id in special_tokens.ids for id in ids]
    byte_level = is_byte_level(tokenizer)
    decoded = _decode_bytes(tokens, is_special) if byte_level else tokens
    sources = _sources(tokenizer, text, ids)
    views = []
    columns = zip(ids, tokens, decoded, is_special, sources, strict=True)
    for id, token, shown, special, source in columns:
        unknown = id == special_tokens.unk and not byte_level
        if unknown and source:
            shown = f"{token}⟨{source}⟩"
        views.append(TokenView(id, token, show_whitespace(shown), special and not unknown, unknown))
    return views


def readable_tokens(tokenizer: Tokenizer, ids: Sequence[int]) -> list[str]:
    """Return each id as readable text, by itself; an id without a token is shown as a number."""
    byte_level = is_byte_level(tokenizer)
    special = tokenizer.special_tokens.ids
    readable = []
    for id in ids:
        token = tokenizer.id_to_token(id) if tokenizer.has_id(id) else f"<{id}>"
        if byte_level and tokenizer.has_id(id):
            (token,) = _decode_bytes([token], [id in special])
        readable.append(show_whitespace(token))
    return readable


def unknown_note(unknown: int, total: int, tokenizer: str) -> str:
    """Return the sentence about tokens that a tokenizer does not know."""
    return f"{unknown:,} of {total:,} tokens are unknown to {tokenizer}"


def show_whitespace(text: str) -> str:
    """Replace white space and invisible characters by visible symbols: "a b" is a␣b."""

    def symbol(c: str) -> str:
        visible = c.isprintable() and not c.isspace()
        return c if visible else WHITESPACE_SYMBOLS.get(c, f"⟨U+{ord(c):04X}⟩")

    return "".join(map(symbol, text))


def is_byte_level(tokenizer: Tokenizer) -> bool:
    """Return whether tokens are sequences of bytes, as in GPT-2, where Ġ is a space."""
    return any(
        "Ġ" in tokenizer.id_to_token(id) for id in tokenizer.encode(" a", add_special_tokens=False)
    )


def _decode_bytes(tokens: Sequence[str], is_special: Sequence[bool]) -> list[str]:
    """Decode byte-level tokens; a partial character is followed by its bytes in the token."""
    letters = {letter: byte for byte, letter in enumerate(_letters())}
    raw = [
        b"" if special or not set(token) <= letters.keys() else bytes(letters[c] for c in token)
        for token, special in zip(tokens, is_special, strict=True)
    ]
    stream = b"".join(raw)
    # For each byte: its character, and where that character begins and ends.
    spans: list[tuple[str, int, int]] = []
    for character in stream.decode("utf-8", "surrogateescape"):
        size = len(character.encode("utf-8", "surrogateescape"))
        spans += [(character, len(spans), len(spans) + size)] * size
    decoded, begin = [], 0
    for token, part in zip(tokens, raw, strict=True):
        end = begin + len(part)
        text = ""
        for character, first, last in dict.fromkeys(spans[begin:end]):
            held = stream[max(first, begin) : min(last, end)]
            alone = "\udc80" <= character <= "\udcff"  # a byte that is no character
            if alone or len(held) < last - first:
                text += f"{'' if alone else character}⟨{held.hex(' ')}⟩"
            else:
                text += character
        decoded.append(text if part else token)
        begin = end
    return decoded


def _letters() -> list[str]:
    """Return GPT-2's letter of each byte: itself if printable, others from U+0100 on."""
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
    """Return the source text of each id; "" for special tokens of the template."""
    plain, indices = tokenizer.offsets(text)
    spare = len(ids) - len(plain)
    for before in range(spare + 1):
        if list(ids[before : before + len(plain)]) == plain:
            inner = [text[start:end] for start, end in indices]
            return [*[""] * before, *inner, *[""] * (spare - before)]
    return [""] * len(ids)  # the text itself contains special tokens
