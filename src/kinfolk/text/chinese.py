"""A vocabulary of words for text with Chinese in it, whose words no spaces part.

Jieba finds the words when the vocabulary is learned. The tokenizer itself does without: within a
run of Chinese it takes the words whose frequencies multiply to the most (a unigram model), as
jieba's own search does. All other words are known whole or not at all: "▁" stands at both their
ends, so that no piece fits a part of them.

text      学习PyTorch的人
runs      学习 ▁PyTorch▁ 的人
pieces    学习 ▁PyTorch▁ 的 人
"""

import math
from collections import Counter
from collections.abc import Iterable
from itertools import pairwise

import tokenizers
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers

from kinfolk.text.words import HAN, word_segmenter

WORD_EDGE = "▁"
_LETTER = rf"[\w&&[^{HAN}]]"
_WORD = rf"{_LETTER}+(?:['’]{_LETTER}+)*"


def words(
    texts: Iterable[str], normalizer: normalizers.Normalizer
) -> tuple[tokenizers.Tokenizer, Counter[str]]:
    """Return a tokenizer that still lacks its model, and the pieces of the texts with counts."""
    backend = tokenizers.Tokenizer(models.Unigram())
    backend.normalizer = normalizers.Sequence(
        [
            normalizer,
            normalizers.Replace(WORD_EDGE, " "),
            # Only the end: this way of adding it would take the start for the character before.
            normalizers.Replace(Regex(rf"(?<={_LETTER})(?!{_LETTER}|['’]{_LETTER})"), WORD_EDGE),
        ]
    )
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(rf"{_WORD}{WORD_EDGE}|[{HAN}]+|\S"), "removed", invert=True),
            pre_tokenizers.Metaspace(WORD_EDGE, "always", split=False),
            pre_tokenizers.Split(Regex(rf"\A{WORD_EDGE}(?!{_LETTER})"), "removed"),
        ]
    )
    backend.decoder = decoders.Sequence(
        [
            decoders.Fuse(),
            decoders.Replace(Regex(rf"\A{WORD_EDGE}+|{WORD_EDGE}+\z"), ""),
            decoders.Replace(Regex(f"{WORD_EDGE}+"), " "),
        ]
    )
    return backend, _counts(texts, backend)


def _counts(texts: Iterable[str], backend: tokenizers.Tokenizer) -> Counter[str]:
    chinese = word_segmenter("jieba")
    counts: Counter[str] = Counter()
    for text in texts:
        plain = backend.normalizer.normalize_str(text)
        for run, _ in backend.pre_tokenizer.pre_tokenize_str(plain):
            starts = [0] if run.startswith(WORD_EDGE) else chinese(run)
            counts.update(run[start:stop] for start, stop in pairwise([*starts, len(run)]))
    return counts


def model(
    counts: Counter[str], size: int, special_tokens: Iterable[str], unk: str
) -> models.Unigram:
    """Return the model that knows the most frequent pieces, after the special ones."""
    # Ties in the order of the words, so that one text gives one vocabulary.
    ranked = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))[:size]
    total = sum(count for _, count in ranked)
    subwords = [(name, 0.0) for name in special_tokens]
    return models.Unigram(
        vocab=[*subwords, *((word, round(math.log(count / total), 6)) for word, count in ranked)],
        unk_id=[name for name, _ in subwords].index(unk),
    )
