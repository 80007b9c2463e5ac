"""Each tokenizer as its authors published it, slow and plain, to compare ids with."""

import json
import unicodedata
from collections.abc import Callable, Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import regex
import sentencepiece

Encode = Callable[[str], list[int]]


def bert(vocab: Path, *, lowercase: bool) -> Encode:
    """Return BERT's own code as transformers keeps it; names of special tokens are plain text."""
    from transformers.models.bert.tokenization_bert_legacy import BertTokenizerLegacy

    theirs: Any = BertTokenizerLegacy(str(vocab), do_lower_case=lowercase)

    def encode(text: str) -> list[int]:
        chunks = theirs._tokenize(text, split_special_tokens=True)
        return list(theirs.convert_tokens_to_ids(chunks))

    return encode


def merged(word: tuple[str, ...], ranks: dict[tuple[str, str], int]) -> tuple[str, ...]:
    """Join the two neighbours that were joined first in training, until none were."""
    while len(word) > 1:
        best = min(pairwise(word), key=lambda pair: ranks.get(pair, 1 << 30))
        if best not in ranks:
            break
        joined, at = [], 0
        while at < len(word):
            pair = word[at : at + 2] == best
            joined.append(word[at] + word[at + 1] if pair else word[at])
            at += 2 if pair else 1
        word = tuple(joined)
    return word


def _ranks(merges: Path) -> dict[tuple[str, str], int]:
    lines = merges.read_text(encoding="utf-8").split("\n")[1:-1]
    pairs = (line.split(" ") for line in lines)
    return {(left, right): rank for rank, (left, right) in enumerate(pairs)}


def gpt2(vocab: Path, merges: Path) -> Encode:
    """Return GPT-2's encoder.py: bytes written as visible characters, merged inside words."""
    ids, ranks = json.loads(vocab.read_text(encoding="utf-8")), _ranks(merges)
    words = regex.compile(
        r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
    )
    visible = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in visible]
    signs = {b: chr(b) for b in visible} | {b: chr(256 + i) for i, b in enumerate(hidden)}

    @cache
    def chunks(word: str) -> list[int]:
        return [ids[p] for p in merged(tuple(signs[b] for b in word.encode()), ranks)]

    return lambda text: [id for word in words.findall(text) for id in chunks(word)]


def gpt(vocab: Path, merges: Path) -> Encode:
    """Return GPT's text_utils.py, with BERT's words in place of spaCy's, as transformers has it."""
    from transformers.models.bert.tokenization_bert_legacy import BasicTokenizer

    words: Any = BasicTokenizer(do_lower_case=True)
    encode_words = gpt_words(vocab, merges)
    return lambda text: encode_words(words.tokenize(text))


def gpt_words(vocab: Path, merges: Path) -> Callable[[Sequence[str]], list[int]]:
    """Return how GPT's text_utils.py encodes the words of a text."""
    ids, ranks = json.loads(vocab.read_text(encoding="utf-8")), _ranks(merges)

    @cache
    def chunks(word: str) -> list[int]:
        return [ids.get(p, ids["<unk>"]) for p in merged((*word[:-1], word[-1] + "</w>"), ranks)]

    return lambda words: [id for word in words for id in chunks(word)]


def t5(model: Path) -> Encode:
    """Return SentencePiece itself."""
    processor = sentencepiece.SentencePieceProcessor(model_file=str(model))
    return lambda text: list(processor.encode(text))


def xlnet(model: Path, *, lowercase: bool, accents: bool = False) -> Encode:
    """Return XLNet's prepro_utils.py, which ALBERT took over."""
    processor = sentencepiece.SentencePieceProcessor(model_file=str(model))

    def tidy(text: str) -> str:
        text = " ".join(text.strip().split()).replace("``", '"').replace("''", '"')
        if not accents:
            text = unicodedata.normalize("NFKD", text)
            text = "".join(c for c in text if not unicodedata.combining(c))
        return text.lower() if lowercase else text

    def parted(chunk: str) -> list[str]:
        if not (len(chunk) > 1 and chunk[-1] == "," and chunk[-2].isdigit()):
            return [chunk]
        inner: list[str] = processor.encode(chunk[:-1].replace("▁", ""), out_type=str)
        if chunk[0] != "▁" and inner[0][0] == "▁":
            inner = inner[1:] if len(inner[0]) == 1 else [inner[0][1:], *inner[1:]]
        return [*inner, ","]

    def encode(text: str) -> list[int]:
        chunks: list[str] = processor.encode(tidy(text), out_type=str)
        return [processor.piece_to_id(part) for chunk in chunks for part in parted(chunk)]

    return encode
