"""Learn a tokenizer from text; one serves every member of the family."""

from collections.abc import Iterable, Iterator

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, trainers

from kinfolk.errors import UserError
from kinfolk.text import chinese, subwords
from kinfolk.text.coverage import cut
from kinfolk.text.subwords import NAMES, SPECIALS, bert, enough, learn
from kinfolk.text.tokenizer import Tokenizer
from kinfolk.text.words import SEGMENTERS

KINDS = ("bpe", "word-bpe", "wordpiece", "unigram", "word", "char", "byte")

# Words keep their apostrophes, and the marks of ready-made corpora (<unk>, @-@) stay whole.
_WORD = r"<(?!extra_id_)\w+>|@[-.,]@|\w+(?:['’]\w+)*|[^\w\s]"


def train(
    texts: Iterable[str],
    *,
    kind: str,
    vocab: int,
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
    backend = way(cut(texts), vocab, lowercase)
    backend.add_special_tokens(
        [
            # As RoBERTa: where pieces carry the space before a word, so does the mask.
            AddedToken(name, special=True, lstrip=kind == "bpe" and name == NAMES["mask"])
            for name in SPECIALS
        ]
    )
    if not fewer and kind not in ("char", "byte") and backend.get_vocab_size() < vocab:
        supported = backend.get_vocab_size()
        raise UserError(
            f"the text supports only {supported:,} pieces, {vocab:,} were asked for: "
            f"give more text or --vocab {supported}"
        )
    return Tokenizer(backend, NAMES)


def _word(texts: Iterator[str], vocab: int, lowercase: bool) -> tokenizers.Tokenizer:
    enough(vocab, 1, "word")
    backend = tokenizers.Tokenizer(models.WordLevel(unk_token=NAMES["unk"]))
    backend.normalizer = bert(lowercase)
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(_WORD), "removed", invert=True)
    return learn(backend, _most_frequent(vocab), texts)


def _chinese_word(texts: Iterator[str], vocab: int, lowercase: bool) -> tokenizers.Tokenizer:
    enough(vocab, 1, "word")
    backend, counts = chinese.words(texts, bert(lowercase, apart=False))
    size = vocab - len(SPECIALS)
    backend.model = chinese.model(counts, size, SPECIALS, NAMES["unk"])
    return backend


def _char(texts: Iterator[str], vocab: int, lowercase: bool) -> tokenizers.Tokenizer:
    enough(vocab, 1, "character")
    backend = tokenizers.Tokenizer(models.WordLevel(unk_token=NAMES["unk"]))
    if lowercase:
        backend.normalizer = normalizers.Lowercase()
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    backend.decoder = decoders.Fuse()
    return learn(backend, _most_frequent(vocab), texts)


def _most_frequent(vocab: int) -> trainers.WordLevelTrainer:
    return trainers.WordLevelTrainer(
        vocab_size=vocab, special_tokens=list(SPECIALS), show_progress=False
    )
