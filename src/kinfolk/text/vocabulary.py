"""Learn a tokenizer from text; one serves every member of the family."""

import json
from collections.abc import Iterable, Iterator

import tokenizers
from tokenizers import (
    AddedToken,
    Regex,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)

from kinfolk.errors import UserError
from kinfolk.text.coverage import covered, cut
from kinfolk.text.tokenizer import Tokenizer

KINDS = ("bpe", "wordpiece", "unigram", "word", "char", "byte")

NAMES = {
    "pad": "[PAD]",
    "unk": "[UNK]",
    "cls": "[CLS]",
    "sep": "[SEP]",
    "mask": "[MASK]",
    "bos": "<|endoftext|>",
    "eos": "<|endoftext|>",
}
SPECIALS = (*dict.fromkeys(NAMES.values()), *(f"<extra_id_{i}>" for i in range(100)))

SEEN = 2  # a piece seen once teaches nothing

# Words keep their apostrophes, and the marks of ready-made corpora (<unk>, @-@) stay whole.
_WORD = r"<\w+>|@[-.,]@|\w+(?:['’]\w+)*|[^\w\s]"


def train(texts: Iterable[str], *, kind: str, vocab: int, lowercase: bool = False) -> Tokenizer:
    """Learn `vocab` tokens, special ones included, from a stream of texts.

    For "char", `vocab` is an upper limit; "byte" has 256 bytes whatever the text.
    """
    if kind not in KINDS:
        raise UserError(f"{kind!r} is no kind of tokenizer: choose one of {', '.join(KINDS)}")
    learn = {
        "bpe": _bpe,
        "wordpiece": _wordpiece,
        "unigram": _unigram,
        "word": _word,
        "char": _char,
        "byte": _byte,
    }[kind]
    backend = learn(cut(texts), vocab, lowercase)
    backend.add_special_tokens(
        [
            # As RoBERTa: where pieces carry the space before a word, so does the mask.
            AddedToken(name, special=True, lstrip=kind == "bpe" and name == NAMES["mask"])
            for name in SPECIALS
        ]
    )
    if kind not in ("char", "byte") and backend.get_vocab_size() < vocab:
        supported = backend.get_vocab_size()
        raise UserError(
            f"the text supports only {supported:,} pieces, {vocab:,} were asked for: "
            f"give more text or --vocab {supported}"
        )
    return Tokenizer(backend, NAMES)


def _bpe(texts: Iterator[str], vocab: int, lowercase: bool) -> tokenizers.Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    _enough(vocab, len(alphabet), "bytes")
    return _learn(
        _bytes(models.BPE(), lowercase),
        trainers.BpeTrainer(
            vocab_size=vocab,
            min_frequency=SEEN,
            special_tokens=list(SPECIALS),
            initial_alphabet=alphabet,
            show_progress=False,
        ),
        texts,
    )


def _byte(texts: Iterator[str], vocab: int, lowercase: bool) -> tokenizers.Tokenizer:
    pieces = (*SPECIALS, *sorted(pre_tokenizers.ByteLevel.alphabet()))
    ids = {piece: i for i, piece in enumerate(pieces)}
    return _bytes(models.BPE(vocab=ids, merges=[]), lowercase)


def _bytes(model: models.BPE, lowercase: bool) -> tokenizers.Tokenizer:
    backend = tokenizers.Tokenizer(model)
    if lowercase:
        backend.normalizer = normalizers.Lowercase()
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return backend


def _wordpiece(texts: Iterator[str], vocab: int, lowercase: bool) -> tokenizers.Tokenizer:
    def build(model: models.WordPiece) -> tokenizers.Tokenizer:
        backend = tokenizers.Tokenizer(model)
        backend.normalizer = _bert(lowercase)
        backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        backend.decoder = decoders.WordPiece(cleanup=False)
        return backend

    backend = build(models.WordPiece(unk_token=NAMES["unk"]))
    with covered(texts) as kept:
        alphabet = kept.alphabet(backend.normalizer.normalize_str)
        # Punctuation and Chinese characters are always words of their own.
        inner = [c for c in alphabet if len(backend.pre_tokenizer.pre_tokenize_str(f"a{c}a")) == 1]
        _enough(vocab, len(alphabet) + len(inner), "characters at the start and inside of words")
        trainer = trainers.WordPieceTrainer(
            vocab_size=vocab,
            min_frequency=SEEN,
            # The trainer numbers "##c" in the order of a hash map, and breaks ties by number:
            # naming them first makes one text give one vocabulary.
            special_tokens=[*SPECIALS, *(f"##{c}" for c in inner)],
            initial_alphabet=alphabet,
            show_progress=False,
        )
        backend = _learn(backend, trainer, kept)
    return build(models.WordPiece(vocab=backend.get_vocab(), unk_token=NAMES["unk"]))


def _unigram(texts: Iterator[str], vocab: int, lowercase: bool) -> tokenizers.Tokenizer:
    def build(model: models.Unigram) -> tokenizers.Tokenizer:
        backend = tokenizers.Tokenizer(model)
        # Deviation: T5 also folds by NFKC, which would turn Chinese punctuation into ASCII.
        steps = [normalizers.Nmt(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Strip()]
        backend.normalizer = normalizers.Sequence(
            [*steps, normalizers.Lowercase()] if lowercase else steps
        )
        backend.pre_tokenizer = pre_tokenizers.Metaspace()
        backend.decoder = decoders.Metaspace()
        return backend

    backend = build(models.Unigram())
    with covered(texts) as kept:
        alphabet = {*kept.alphabet(backend.normalizer.normalize_str), "▁"}
        # With no room for one piece more, the trainer forgets its limit.
        _enough(vocab, len(alphabet) + 1, "characters and pieces")
        trainer = trainers.UnigramTrainer(
            vocab_size=vocab,
            special_tokens=list(SPECIALS),
            unk_token=NAMES["unk"],
            show_progress=False,
        )
        backend = _learn(backend, trainer, kept)
    learned = json.loads(backend.to_str())["model"]["vocab"][len(SPECIALS) :]
    pieces = _settled([(str(piece), float(score)) for piece, score in learned])
    specials = [(name, 0.0) for name in SPECIALS]
    return build(models.Unigram(vocab=specials + pieces, unk_id=SPECIALS.index(NAMES["unk"])))


def _settled(pieces: list[tuple[str, float]]) -> list[tuple[str, float]]:
    """Put the trainer's pieces in one order, with one score each.

    It adds up in the order of a hash map, which shows in the last digits, and gives the
    characters it had to add back a score of the lowest, the lowest + 0.0001 ... in such an order.
    """
    lowest = min(score for _, score in pieces)
    added = lowest + 0.0001 * sum(len(piece) == 1 for piece, _ in pieces)
    scores = {p: lowest if len(p) == 1 and s <= added else s for p, s in pieces}
    return sorted(
        ((p, round(s, 6)) for p, s in scores.items()), key=lambda pair: (-pair[1], pair[0])
    )


def _word(texts: Iterator[str], vocab: int, lowercase: bool) -> tokenizers.Tokenizer:
    _enough(vocab, 1, "word")
    backend = tokenizers.Tokenizer(models.WordLevel(unk_token=NAMES["unk"]))
    backend.normalizer = _bert(lowercase)
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(_WORD), "removed", invert=True)
    return _learn(backend, _most_frequent(vocab), texts)


def _char(texts: Iterator[str], vocab: int, lowercase: bool) -> tokenizers.Tokenizer:
    _enough(vocab, 1, "character")
    backend = tokenizers.Tokenizer(models.WordLevel(unk_token=NAMES["unk"]))
    if lowercase:
        backend.normalizer = normalizers.Lowercase()
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    backend.decoder = decoders.Fuse()
    return _learn(backend, _most_frequent(vocab), texts)


def _most_frequent(vocab: int) -> trainers.WordLevelTrainer:
    return trainers.WordLevelTrainer(
        vocab_size=vocab, special_tokens=list(SPECIALS), show_progress=False
    )


def _bert(lowercase: bool) -> normalizers.BertNormalizer:
    return normalizers.BertNormalizer(lowercase=lowercase, strip_accents=lowercase)


def _learn(
    backend: tokenizers.Tokenizer, trainer: trainers.Trainer, texts: Iterable[str]
) -> tokenizers.Tokenizer:
    backend.train_from_iterator(texts, trainer)
    return backend


def _enough(vocab: int, alphabet: int, what: str) -> None:
    least = len(SPECIALS) + alphabet
    if vocab < least:
        raise UserError(
            f"--vocab {vocab} is too small: {len(SPECIALS)} special tokens and {alphabet} {what} "
            f"need at least --vocab {least}"
        )
