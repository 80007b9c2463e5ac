"""Read SentencePiece's `.model` files (Kudo and Richardson, 2018) without its package.

The file is a protobuf message; the constants below are those of `sentencepiece_model.proto`. Only
the fields that decide ids are read: tokens with their scores, and the normalization.
"""

import struct
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers

from kinfolk.errors import UserError

NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = range(1, 7)
UNIGRAM, BPE = 1, 2
SPACE = "▁"

# After a token that is decoded and never found in a text; a noncharacter of Unicode.
DECODE_ONLY = "\ufdd0"

# Scores become integers, which add up without rounding and survive JSON: "I" + "II" and "II" + "I"
# stay equal, and the best segmentation does not change.
SCALE = 2**23

VARINT, EIGHT, SIZED, FOUR = 0, 1, 2, 5  # wire types of protobuf


@dataclass(frozen=True)
class SentencePiece:
    """One token of the vocabulary; its id is its index in the file."""

    text: str
    score: float
    type: int


@dataclass(frozen=True, kw_only=True)
class SentencePieceModel:
    """The contents of a model file."""

    subwords: tuple[SentencePiece, ...]
    algorithm: int  # UNIGRAM or BPE
    precompiled_charsmap: bytes  # character replacements, in compiled form
    add_dummy_prefix: bool  # add a space before the text
    remove_extra_whitespaces: bool  # strip, and collapse runs of spaces

    @property
    def names(self) -> frozenset[str]:
        """All tokens."""
        return frozenset(subword.text for subword in self.subwords)

    @property
    def special(self) -> list[str]:
        """The unknown and control tokens."""
        return [subword.text for subword in self.subwords if subword.type in (UNKNOWN, CONTROL)]


def read_model(file: Path) -> SentencePieceModel:
    """Read a SentencePiece model."""
    try:
        model = _parse(file.read_bytes())
    except (ValueError, TypeError, AttributeError, struct.error) as error:
        raise UserError(
            f"{file} is not a valid SentencePiece model ({error}): copy it again"
        ) from error
    if model.algorithm not in (UNIGRAM, BPE):
        raise UserError(f"{file}: only unigram and BPE SentencePiece models are supported")
    if any(subword.type == UNUSED for subword in model.subwords):
        raise UserError(f"{file}: SentencePiece models with UNUSED tokens are not supported")
    return model


def _parse(data: bytes) -> SentencePieceModel:
    subwords = []
    trainer: dict[int, Any] = {}
    normalizer: dict[int, Any] = {}
    for number, value in _fields(data):
        if number == 1:
            fields = dict(_fields(value))
            score = struct.unpack("<f", fields.get(2, bytes(4)))[0]
            text = fields.get(1, b"").decode()
            subwords.append(SentencePiece(text, score, fields.get(3, NORMAL)))
        elif number == 2:
            trainer |= _fields(value)
        elif number == 3:
            normalizer |= _fields(value)
    if sum(subword.type == UNKNOWN for subword in subwords) != 1:
        raise ValueError("expected exactly one unknown token")
    if not (trainer and normalizer):
        raise ValueError("no trainer or normalizer settings")
    if trainer.get(24):
        raise ValueError("treat_whitespace_as_suffix is not supported")
    return SentencePieceModel(
        subwords=tuple(subwords),
        algorithm=trainer.get(3, UNIGRAM),
        precompiled_charsmap=normalizer.get(2, b""),
        add_dummy_prefix=bool(normalizer.get(3, 1)),
        remove_extra_whitespaces=bool(normalizer.get(4, 1)),
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
            raise ValueError(f"invalid wire type at byte {at}")
        if at + size > len(data):
            raise ValueError("truncated field")
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
    raise ValueError("truncated integer")


def renumber(
    model: SentencePieceModel, vocab: Mapping[str, int], control: Collection[str]
) -> SentencePieceModel:
    """Return the model with the ids of another vocabulary, which may be that of two models.

    Tokens that only the vocabulary has are marked with DECODE_ONLY, except control tokens and those
    of unknown characters: SentencePiece leaves these characters as they are.
    """
    own = {subword.text: subword for subword in model.subwords}
    known = set("".join(own))
    least = min(subword.score for subword in model.subwords)

    def subword(text: str) -> SentencePiece:
        if text in own:
            return own[text]
        if text in control:
            return SentencePiece(text, least, CONTROL)
        unknown = known.isdisjoint(text)
        return SentencePiece(text if unknown else text + DECODE_ONLY, least, NORMAL)

    texts = sorted(vocab, key=lambda text: vocab[text])
    return replace(model, subwords=tuple(map(subword, texts)))


def backend(
    model: SentencePieceModel, *, before: Sequence[normalizers.Normalizer] = (), commas: bool = True
) -> tokenizers.Tokenizer:
    """Return a `tokenizers` tokenizer with the ids of SentencePiece.

    `before` are the first normalizers; without `commas`, no token is a digit and a comma.
    """
    byte_fallback = any(subword.type == BYTE for subword in model.subwords)
    unigram = model.algorithm == UNIGRAM
    tokenizer = tokenizers.Tokenizer(
        _unigram(model, byte_fallback, commas) if unigram else _bpe(model, byte_fallback)
    )
    steps = list(before)
    if model.precompiled_charsmap:
        steps.append(normalizers.Precompiled(model.precompiled_charsmap))
    if model.remove_extra_whitespaces:
        steps += [
            normalizers.Replace(Regex(" {2,}"), " "),
            normalizers.Replace(Regex(r"\A | \z"), ""),
        ]
    tokenizer.normalizer = normalizers.Sequence(steps)
    # Words are tokenized one by one unless a token spans several.
    split = not any(SPACE in subword.text.lstrip(SPACE) for subword in model.subwords)
    scheme = "always" if model.add_dummy_prefix else "never"
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(SPACE, prepend_scheme=scheme, split=split)
    spaces = decoders.Metaspace(SPACE, prepend_scheme=scheme)
    tokenizer.decoder = (
        decoders.Sequence([decoders.ByteFallback(), spaces]) if byte_fallback else spaces
    )
    tokenizer.add_tokens(_user_defined_tokens(model, tokenizer.normalizer))
    return tokenizer


def _unigram(model: SentencePieceModel, byte_fallback: bool, commas: bool) -> models.Unigram:
    best = max((p.score for p in model.subwords if p.type == NORMAL), default=0.0)

    def score(subword: SentencePiece) -> float:
        if subword.type == USER:  # unigram_model.cc adds a bonus, so that it is always chosen
            return len(subword.text) * best - 0.1
        ends = subword.text[-2:]
        return subword.score - 100 * (not commas and ends[:1].isdigit() and ends[1:] == ",")

    unknown = next(i for i, subword in enumerate(model.subwords) if subword.type == UNKNOWN)
    vocab = [(subword.text, float(round(score(subword) * SCALE))) for subword in model.subwords]
    return models.Unigram(vocab=vocab, unk_id=unknown, byte_fallback=byte_fallback)


def _bpe(model: SentencePieceModel, byte_fallback: bool) -> models.BPE:
    """Reconstruct the merges: every split of a token into two tokens, by descending score."""
    ids = {subword.text: i for i, subword in enumerate(model.subwords)}
    ordinary = {subword.text: subword.score for subword in model.subwords if subword.type == NORMAL}
    merges = [
        (-score, ids[text[:cut]], ids[text[cut:]], (text[:cut], text[cut:]))
        for text, score in ordinary.items()
        for cut in range(1, len(text))
        if text[:cut] in ordinary and text[cut:] in ordinary
    ]
    return models.BPE(
        vocab=ids,
        merges=[pair for *_, pair in sorted(merges)],
        unk_token=next(subword.text for subword in model.subwords if subword.type == UNKNOWN),
        fuse_unk=True,
        byte_fallback=byte_fallback,
    )


def _user_defined_tokens(
    model: SentencePieceModel, normalizer: normalizers.Normalizer
) -> list[AddedToken]:
    """Return the user-defined symbols that the model would not find in normalized text."""
    symbols = [subword.text for subword in model.subwords if subword.type == USER]
    return [
        AddedToken(symbol, normalized=False, special=False)
        for symbol in symbols
        if model.algorithm == BPE or normalizer.normalize_str(symbol) != symbol
    ]
