"""SentencePiece's `.model` files (Kudo and Richardson, 2018), read without its package.

The file is a protobuf message, of which a few fields decide ids: the pieces with their scores, and
how text is normalised. The numbers below are those of `sentencepiece_model.proto`.
"""

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers

from kinfolk.errors import UserError

NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = range(1, 7)
UNIGRAM, BPE = 1, 2
SPACE = "▁"

# Makes whole numbers of scores, which have 32 bits. Those add up without rounding and pass through
# JSON unharmed, so that "I" + "II" and "II" + "I" stay equal; what is best stays best.
SCALE = 2**23

VARINT, EIGHT, SIZED, FOUR = 0, 1, 2, 5  # how protobuf lays out a value


@dataclass(frozen=True)
class SentencePiece:
    """One piece of the vocabulary; its id is its place in the file."""

    text: str
    score: float
    type: int


@dataclass(frozen=True, kw_only=True)
class SentencePieceModel:
    """What a model file says about ids."""

    subwords: tuple[SentencePiece, ...]
    algorithm: int  # UNIGRAM or BPE
    precompiled_charsmap: bytes  # how characters are replaced, in SentencePiece's own compiled form
    add_dummy_prefix: bool  # a space is put before the text
    remove_extra_whitespaces: bool  # spaces at the ends go, and of several inside one stays

    @property
    def names(self) -> frozenset[str]:
        """Return every piece as text."""
        return frozenset(subword.text for subword in self.subwords)

    @property
    def special(self) -> list[str]:
        """Return the pieces that no plain text turns into."""
        return [subword.text for subword in self.subwords if subword.type in (UNKNOWN, CONTROL)]


def read_model(file: Path) -> SentencePieceModel:
    """Read a SentencePiece model, or complain that it is none."""
    try:
        found = _pieces(file.read_bytes())
    except (ValueError, TypeError, AttributeError, struct.error) as error:
        raise UserError(
            f"{file} is no SentencePiece model that can be read ({error}): copy it again"
        ) from error
    if found.algorithm not in (UNIGRAM, BPE):
        raise UserError(f"{file} splits into words or characters: only unigram and BPE are read")
    if any(subword.type == UNUSED for subword in found.subwords):
        raise UserError(f"{file} has unused pieces, which cannot be kept apart here")
    return found


def _pieces(data: bytes) -> SentencePieceModel:
    subwords = []
    trainer: dict[int, Any] = {}
    normaliser: dict[int, Any] = {}
    for number, value in _fields(data):
        if number == 1:
            one = dict(_fields(value))
            score = struct.unpack("<f", one.get(2, bytes(4)))[0]
            subwords.append(SentencePiece(one.get(1, b"").decode(), score, one.get(3, NORMAL)))
        elif number == 2:
            trainer |= _fields(value)
        elif number == 3:
            normaliser |= _fields(value)
    if sum(subword.type == UNKNOWN for subword in subwords) != 1:
        raise ValueError("it does not hold pieces of which one is the unknown one")
    if not (trainer and normaliser):
        raise ValueError("it ends before its settings")
    if trainer.get(24):
        raise ValueError("its pieces carry the space behind a word")
    return SentencePieceModel(
        subwords=tuple(subwords),
        algorithm=trainer.get(3, UNIGRAM),
        precompiled_charsmap=normaliser.get(2, b""),
        add_dummy_prefix=bool(normaliser.get(3, 1)),
        remove_extra_whitespaces=bool(normaliser.get(4, 1)),
    )


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """Yield each field of a message: its number, and an integer or the bytes of its value."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        number, layout = divmod(key, 8)
        if layout == VARINT:
            value, at = _varint(data, at)
            yield number, value
            continue
        if layout == SIZED:
            size, at = _varint(data, at)
        elif layout in (EIGHT, FOUR):
            size = 8 if layout == EIGHT else 4
        else:
            raise ValueError(f"byte {at} begins no field")
        if at + size > len(data):
            raise ValueError("it ends in the middle of a field")
        yield number, data[at : at + size]
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(data):
        value |= (data[at] & 127) << shift
        shift += 7
        at += 1
        if data[at - 1] < 128:
            return value, at
    raise ValueError("it ends in the middle of a number")


def backend(
    found: SentencePieceModel, *, before: Sequence[normalizers.Normalizer] = (), commas: bool = True
) -> tokenizers.Tokenizer:
    """Set up the `tokenizers` library to give SentencePiece's ids.

    `before` is done to the text first; without `commas`, no piece joins a digit and a comma.
    """
    bytewise = any(subword.type == BYTE for subword in found.subwords)
    model = _unigram(found, bytewise, commas) if found.algorithm == UNIGRAM else _bpe(found)
    made = tokenizers.Tokenizer(model)
    steps = list(before)
    if found.precompiled_charsmap:
        steps.append(normalizers.Precompiled(found.precompiled_charsmap))
    if found.remove_extra_whitespaces:
        steps += [
            normalizers.Replace(Regex(" {2,}"), " "),
            normalizers.Replace(Regex(r"\A | \z"), ""),
        ]
    made.normalizer = normalizers.Sequence(steps)
    # Words are looked at one by one unless a piece spans several.
    split = not any(SPACE in subword.text.lstrip(SPACE) for subword in found.subwords)
    scheme = "always" if found.add_dummy_prefix else "never"
    made.pre_tokenizer = pre_tokenizers.Metaspace(SPACE, prepend_scheme=scheme, split=split)
    spaces = decoders.Metaspace(SPACE, prepend_scheme=scheme)
    made.decoder = decoders.Sequence([decoders.ByteFallback(), spaces]) if bytewise else spaces
    made.add_tokens(_user_defined_tokens(found, made.normalizer))
    return made


def _unigram(found: SentencePieceModel, bytewise: bool, commas: bool) -> models.Unigram:
    best = max((p.score for p in found.subwords if p.type == NORMAL), default=0.0)

    def score(subword: SentencePiece) -> float:
        if subword.type == USER:  # unigram_model.cc: a bonus, so that it always wins
            return len(subword.text) * best - 0.1
        ends = subword.text[-2:]
        return subword.score - 100 * (not commas and ends[:1].isdigit() and ends[1:] == ",")

    unknown = next(i for i, subword in enumerate(found.subwords) if subword.type == UNKNOWN)
    vocab = [(subword.text, float(round(score(subword) * SCALE))) for subword in found.subwords]
    return models.Unigram(vocab=vocab, unk_id=unknown, byte_fallback=bytewise)


def _bpe(found: SentencePieceModel) -> models.BPE:
    """Write the merges out: every two pieces that together are a third, the best third first."""
    ids = {subword.text: i for i, subword in enumerate(found.subwords)}
    ordinary = {subword.text: subword.score for subword in found.subwords if subword.type == NORMAL}
    merges = [
        (-score, ids[text[:cut]], ids[text[cut:]], (text[:cut], text[cut:]))
        for text, score in ordinary.items()
        for cut in range(1, len(text))
        if text[:cut] in ordinary and text[cut:] in ordinary
    ]
    return models.BPE(
        vocab=ids,
        merges=[pair for *_, pair in sorted(merges)],
        unk_token=next(subword.text for subword in found.subwords if subword.type == UNKNOWN),
        fuse_unk=True,
        byte_fallback=any(subword.type == BYTE for subword in found.subwords),
    )


def _user_defined_tokens(
    found: SentencePieceModel, normaliser: normalizers.Normalizer
) -> list[AddedToken]:
    """Return the user's symbols that the model cannot find by itself in normalised text."""
    symbols = [subword.text for subword in found.subwords if subword.type == USER]
    return [
        AddedToken(symbol, normalized=False, special=False)
        for symbol in symbols
        if found.algorithm == BPE or normaliser.normalize_str(symbol) != symbol
    ]
