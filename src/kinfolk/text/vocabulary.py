"""Learn a tokenizer from text; one serves every member of the family."""

from collections.abc import Iterable, Iterator

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, trainers

from kinfolk.errors import UserError
from kinfolk.text import chinese, subwords
from kinfolk.text.coverage import cut
from kinfolk.text.subwords import (
    ALL_SPECIAL_TOKENS,
    SPECIAL_TOKEN_STRINGS,
    bert_normalizer,
    check_vocab_size,
    learn,
)
from kinfolk.text.tokenizer import Tokenizer
from kinfolk.text.words import SEGMENTERS

KINDS = ("bpe", "word-bpe", "wordpiece", "unigram", "word", "char", "byte")

# Words keep their apostrophes, and the marks of ready-made corpora (<unk>, @-@) stay whole.
_WORD = r"<(?!extra_id_)\w+>|@[-.,]@|\w+(?:['’]\w+)*|[^\w\s]"


def train_tokenizer(
    texts: Iterable[str],
    *,
    kind: str,
    vocab_size: int,
    lowercase: bool = False,
    segmenter: str = "spaces",
    fewer: bool = False,
) -> Tokenizer:
    """Learn `vocab` tokens, special ones included, from a stream of texts.

    For "char", `vocab` is an upper limit; "byte" has 256 bytes whatever the text. The segmenter
    "jieba" makes words of Chinese for the kind "word", where each character is one otherwise.
    Of very much text without spaces, a share is read: memory stays under 4 GB. Where the text
    supports `fewer` tokens, there may be as many as it does.
    """
    if kind not in KINDS:
        raise UserError(f"{kind!r} is no kind of tokenizer: choose one of {', '.join(KINDS)}")
    if segmenter not in SEGMENTERS or (segmenter != "spaces" and kind != "word"):
        raise UserError(
            f"words by {segmenter!r} and the kind {kind!r} do not go together: "
            f"choose one of {', '.join(SEGMENTERS)} for the kind 'word'"
        )
    way = {
        "bpe": subwords.bpe,
        "word-bpe": subwords.word_bpe,
        "wordpiece": subwords.wordpiece,
        "unigram": subwords.unigram,
        "word": _chinese_word if segmenter == "jieba" else _word,
        "char": _char,
        "byte": subwords.byte,
    }[kind]
    backend = way(cut(texts), vocab_size, lowercase)
    backend.add_special_tokens(
        [
            # As RoBERTa: where pieces carry the space before a word, so does the mask.
            AddedToken(
                name, special=True, lstrip=kind == "bpe" and name == SPECIAL_TOKEN_STRINGS["mask"]
            )
            for name in ALL_SPECIAL_TOKENS
        ]
    )
    if not fewer and kind not in ("char", "byte") and backend.get_vocab_size() < vocab_size:
        supported = backend.get_vocab_size()
        raise UserError(
            f"the text supports only {supported:,} pieces, {vocab_size:,} were asked for: "
            f"give more text or --vocab {supported}"
        )
    return Tokenizer(backend, SPECIAL_TOKEN_STRINGS)


def _word(texts: Iterator[str], vocab_size: int, lowercase: bool) -> tokenizers.Tokenizer:
    check_vocab_size(vocab_size, 1, "word")
    backend = tokenizers.Tokenizer(models.WordLevel(unk_token=SPECIAL_TOKEN_STRINGS["unk"]))
    backend.normalizer = bert_normalizer(lowercase)
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(_WORD), "removed", invert=True)
    return learn(backend, _most_frequent(vocab_size), texts)


def _chinese_word(texts: Iterator[str], vocab_size: int, lowercase: bool) -> tokenizers.Tokenizer:
    check_vocab_size(vocab_size, 1, "word")
    backend, counts = chinese.words(texts, bert_normalizer(lowercase, apart=False))
    size = vocab_size - len(ALL_SPECIAL_TOKENS)
    backend.model = chinese.model(counts, size, ALL_SPECIAL_TOKENS, SPECIAL_TOKEN_STRINGS["unk"])
    return backend


def _char(texts: Iterator[str], vocab_size: int, lowercase: bool) -> tokenizers.Tokenizer:
    check_vocab_size(vocab_size, 1, "character")
    backend = tokenizers.Tokenizer(models.WordLevel(unk_token=SPECIAL_TOKEN_STRINGS["unk"]))
    if lowercase:
        backend.normalizer = normalizers.Lowercase()
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    backend.decoder = decoders.Fuse()
    return learn(backend, _most_frequent(vocab_size), texts)


def _most_frequent(vocab_size: int) -> trainers.WordLevelTrainer:
    return trainers.WordLevelTrainer(
        vocab_size=vocab_size, special_tokens=list(ALL_SPECIAL_TOKENS), show_progress=False
    )
