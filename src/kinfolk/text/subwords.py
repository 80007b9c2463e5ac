"""Learn parts of words: by merging (BPE, WordPiece), or by leaving out (unigram)."""

import json
from collections.abc import Iterable, Iterator

import tokenizers
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, trainers

from kinfolk.errors import UserError
from kinfolk.text.coverage import UNSPACED, UNSPACED_BUT_CHINESE, SpooledTexts, spool_texts
from kinfolk.text.sentences import SENTENCE_END_CHARS

SPECIAL_TOKEN_STRINGS = {
    "pad": "[PAD]",
    "unk": "[UNK]",
    "cls": "[CLS]",
    "sep": "[SEP]",
    "mask": "[MASK]",
    "bos": "<|endoftext|>",
    "eos": "<|endoftext|>",
}
ALL_SPECIAL_TOKENS = (
    *dict.fromkeys(SPECIAL_TOKEN_STRINGS.values()),
    *(f"<extra_id_{i}>" for i in range(100)),
)

MIN_FREQUENCY = 2  # a piece seen once teaches nothing
END_OF_WORD_SUFFIX = "</w>"  # GPT-1's sign for the end of a word

# Characters without spaces that a trainer may see: it needs some 250 bytes for each of BPE's,
# and 400 and ten times the time for each of unigram's.
MOST = {"bpe": 10_000_000, "unigram": 3_000_000}

_MARKS = f"{SENTENCE_END_CHARS}…，、：」』）》】”"
# What a trainer takes for a word: without spaces it would be all that stands between two of them.
_RUN = rf"\s*[^\s{_MARKS}]{{1,32}}[{_MARKS}]*|\s*[{_MARKS}]{{1,32}}"


def bpe(texts: Iterator[str], vocab_size: int, lowercase: bool) -> tokenizers.Tokenizer:
    """Merge bytes, as GPT-2: any text can be written."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    check_vocab_size(vocab_size, len(alphabet), "bytes")
    backend = _bytes(models.BPE(), lowercase)
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=MIN_FREQUENCY,
        special_tokens=list(ALL_SPECIAL_TOKENS),
        initial_alphabet=alphabet,
        show_progress=False,
    )
    whole = backend.pre_tokenizer
    backend.pre_tokenizer = pre_tokenizers.Sequence([_runs(), whole])
    with spool_texts(texts, UNSPACED, MOST["bpe"], share=1.0) as kept:
        backend = learn(backend, trainer, kept)
    backend.pre_tokenizer = whole
    return backend


def byte(texts: Iterator[str], vocab_size: int, lowercase: bool) -> tokenizers.Tokenizer:
    """Know the bytes alone."""
    subwords = (*ALL_SPECIAL_TOKENS, *sorted(pre_tokenizers.ByteLevel.alphabet()))
    ids = {subword: i for i, subword in enumerate(subwords)}
    return _bytes(models.BPE(vocab=ids, merges=[]), lowercase)


def _bytes(model: models.BPE, lowercase: bool) -> tokenizers.Tokenizer:
    backend = tokenizers.Tokenizer(model)
    if lowercase:
        backend.normalizer = normalizers.Lowercase()
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return backend


def word_bpe(texts: Iterator[str], vocab_size: int, lowercase: bool) -> tokenizers.Tokenizer:
    """Merge characters, as GPT-1: pieces that end a word bear a suffix."""

    def build(model: models.BPE) -> tokenizers.Tokenizer:
        backend = tokenizers.Tokenizer(model)
        # Deviation: GPT-1 cut words by spaCy; this is what its users without spaCy were given.
        backend.normalizer = bert_normalizer(lowercase)
        backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        backend.decoder = decoders.BPEDecoder(END_OF_WORD_SUFFIX)
        return backend

    backend = build(
        models.BPE(unk_token=SPECIAL_TOKEN_STRINGS["unk"], end_of_word_suffix=END_OF_WORD_SUFFIX)
    )
    with spool_texts(texts, UNSPACED_BUT_CHINESE, MOST["bpe"]) as kept:
        alphabet, inner = _alphabet(kept, backend)
        check_vocab_size(
            vocab_size, len(inner) + len(alphabet), "characters inside and at the end of words"
        )
        alone = set(alphabet) - set(inner)
        trainer = trainers.BpeTrainer(
            # Characters that are always words need no id without the suffix.
            vocab_size=vocab_size + len(alone),
            min_frequency=MIN_FREQUENCY,
            # As for WordPiece: without names these are numbered in the order of a hash map.
            special_tokens=[*ALL_SPECIAL_TOKENS, *(f"{c}{END_OF_WORD_SUFFIX}" for c in alphabet)],
            initial_alphabet=alphabet,
            end_of_word_suffix=END_OF_WORD_SUFFIX,
            show_progress=False,
        )
        state = json.loads(learn(backend, trainer, kept).to_str())["model"]
    subwords = [p for p in sorted(state["vocab"], key=state["vocab"].__getitem__) if p not in alone]
    model = models.BPE(
        vocab={subword: i for i, subword in enumerate(subwords)},
        merges=[tuple(merge) for merge in state["merges"]],
        unk_token=SPECIAL_TOKEN_STRINGS["unk"],
        end_of_word_suffix=END_OF_WORD_SUFFIX,
    )
    return build(model)


def wordpiece(texts: Iterator[str], vocab_size: int, lowercase: bool) -> tokenizers.Tokenizer:
    """Merge characters, as BERT: pieces inside a word bear "##"."""

    def build(model: models.WordPiece) -> tokenizers.Tokenizer:
        backend = tokenizers.Tokenizer(model)
        backend.normalizer = bert_normalizer(lowercase)
        backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        backend.decoder = decoders.WordPiece(cleanup=False)
        return backend

    backend = build(models.WordPiece(unk_token=SPECIAL_TOKEN_STRINGS["unk"]))
    with spool_texts(texts, UNSPACED_BUT_CHINESE, MOST["bpe"]) as kept:
        alphabet, inner = _alphabet(kept, backend)
        check_vocab_size(
            vocab_size, len(alphabet) + len(inner), "characters at the start and inside of words"
        )
        trainer = trainers.WordPieceTrainer(
            vocab_size=vocab_size,
            min_frequency=MIN_FREQUENCY,
            # The trainer numbers "##c" in the order of a hash map, and breaks ties by number:
            # naming them first makes one text give one vocabulary.
            special_tokens=[*ALL_SPECIAL_TOKENS, *(f"##{c}" for c in inner)],
            initial_alphabet=alphabet,
            show_progress=False,
        )
        backend = learn(backend, trainer, kept)
    return build(
        models.WordPiece(vocab=backend.get_vocab(), unk_token=SPECIAL_TOKEN_STRINGS["unk"])
    )


def _alphabet(kept: SpooledTexts, backend: tokenizers.Tokenizer) -> tuple[list[str], list[str]]:
    """Return the characters, and those of them that stand inside of words too."""

    def inside(character: str) -> bool:
        text = backend.normalizer.normalize_str(f"a{character}a")
        return len(backend.pre_tokenizer.pre_tokenize_str(text)) == 1

    # Punctuation and Chinese characters are always words of their own.
    alphabet = kept.alphabet(backend.normalizer.normalize_str)
    return alphabet, [c for c in alphabet if inside(c)]


def unigram(texts: Iterator[str], vocab_size: int, lowercase: bool) -> tokenizers.Tokenizer:
    """Begin with many pieces and drop what is missed least, as T5."""

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
    backend.pre_tokenizer = pre_tokenizers.Sequence([backend.pre_tokenizer, _runs()])
    with spool_texts(texts, UNSPACED, MOST["unigram"]) as kept:
        alphabet = {*kept.alphabet(backend.normalizer.normalize_str), "▁"}
        # With no room for one piece more, the trainer forgets its limit.
        check_vocab_size(vocab_size, len(alphabet) + 1, "characters and pieces")
        trainer = trainers.UnigramTrainer(
            vocab_size=vocab_size,
            special_tokens=list(ALL_SPECIAL_TOKENS),
            unk_token=SPECIAL_TOKEN_STRINGS["unk"],
            show_progress=False,
        )
        backend = learn(backend, trainer, kept)
    learned = json.loads(backend.to_str())["model"]["vocab"][len(ALL_SPECIAL_TOKENS) :]
    subwords = _deterministic_order([(str(subword), float(score)) for subword, score in learned])
    special_tokens = [(name, 0.0) for name in ALL_SPECIAL_TOKENS]
    return build(
        models.Unigram(
            vocab=special_tokens + subwords,
            unk_id=ALL_SPECIAL_TOKENS.index(SPECIAL_TOKEN_STRINGS["unk"]),
        )
    )


def _deterministic_order(subwords: list[tuple[str, float]]) -> list[tuple[str, float]]:
    """Put the trainer's pieces in one order, with one score each.

    It adds up in the order of a hash map, which shows in the last digits, and gives the
    characters it had to add back a score of the lowest, the lowest + 0.0001 ... in such an order.
    """
    lowest = min(score for _, score in subwords)
    added = lowest + 0.0001 * sum(len(subword) == 1 for subword, _ in subwords)
    scores = {p: lowest if len(p) == 1 and s <= added else s for p, s in subwords}
    return sorted(
        ((p, round(s, 6)) for p, s in scores.items()), key=lambda pair: (-pair[1], pair[0])
    )


def bert_normalizer(lowercase: bool, *, apart: bool = True) -> normalizers.BertNormalizer:
    """Clean text as BERT; `apart` puts spaces around Chinese characters."""
    return normalizers.BertNormalizer(
        lowercase=lowercase, strip_accents=lowercase, handle_chinese_chars=apart
    )


def _runs() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Split(Regex(_RUN), "isolated")


def learn(
    backend: tokenizers.Tokenizer, trainer: trainers.Trainer, texts: Iterable[str]
) -> tokenizers.Tokenizer:
    """Train a tokenizer, and return it."""
    backend.train_from_iterator(texts, trainer)
    return backend


def check_vocab_size(vocab_size: int, alphabet: int, what: str) -> None:
    """Complain about a vocabulary without room for what it must hold."""
    least = len(ALL_SPECIAL_TOKENS) + alphabet
    if vocab_size < least:
        raise UserError(
            f"--vocab {vocab_size} is too small: {len(ALL_SPECIAL_TOKENS)} special tokens "
            f"and {alphabet} {what} need at least --vocab {least}"
        )
