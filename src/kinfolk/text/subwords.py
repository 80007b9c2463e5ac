"""Learn parts of words: by merging (BPE, WordPiece), or by leaving out (unigram)."""

import json
from collections.abc import Iterable, Iterator

import tokenizers
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, trainers

from kinfolk.errors import UserError
from kinfolk.text.coverage import UNSPACED, UNSPACED_BUT_CHINESE, Covered, covered
from kinfolk.text.sentences import STOPS

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
SUFFIX = "</w>"  # GPT-1's sign for the end of a word

# Characters without spaces that a trainer may see: it needs some 250 bytes for each of BPE's,
# and 400 and ten times the time for each of unigram's.
MOST = {"bpe": 10_000_000, "unigram": 3_000_000}

_MARKS = f"{STOPS}…，、：」』）》】”"
# What a trainer takes for a word: without spaces it would be all that stands between two of them.
_RUN = rf"\s*[^\s{_MARKS}]{{1,32}}[{_MARKS}]*|\s*[{_MARKS}]{{1,32}}"


def bpe(texts: Iterator[str], vocab: int, lowercase: bool) -> tokenizers.Tokenizer:
    """Merge bytes, as GPT-2: any text can be written."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    enough(vocab, len(alphabet), "bytes")
    backend = _bytes(models.BPE(), lowercase)
    trainer = trainers.BpeTrainer(
        vocab_size=vocab,
        min_frequency=SEEN,
        special_tokens=list(SPECIALS),
        initial_alphabet=alphabet,
        show_progress=False,
    )
    whole = backend.pre_tokenizer
    backend.pre_tokenizer = pre_tokenizers.Sequence([_runs(), whole])
    with covered(texts, UNSPACED, MOST["bpe"], share=1.0) as kept:
        backend = learn(backend, trainer, kept)
    backend.pre_tokenizer = whole
    return backend


def byte(texts: Iterator[str], vocab: int, lowercase: bool) -> tokenizers.Tokenizer:
    """Know the bytes alone."""
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


def word_bpe(texts: Iterator[str], vocab: int, lowercase: bool) -> tokenizers.Tokenizer:
    """Merge characters, as GPT-1: pieces that end a word bear a suffix."""

    def build(model: models.BPE) -> tokenizers.Tokenizer:
        backend = tokenizers.Tokenizer(model)
        # Deviation: GPT-1 cut words by spaCy; this is what its users without spaCy were given.
        backend.normalizer = bert(lowercase)
        backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        backend.decoder = decoders.BPEDecoder(SUFFIX)
        return backend

    backend = build(models.BPE(unk_token=NAMES["unk"], end_of_word_suffix=SUFFIX))
    with covered(texts, UNSPACED_BUT_CHINESE, MOST["bpe"]) as kept:
        alphabet, inner = _alphabet(kept, backend)
        enough(vocab, len(inner) + len(alphabet), "characters inside and at the end of words")
        alone = set(alphabet) - set(inner)
        trainer = trainers.BpeTrainer(
            # Characters that are always words need no id without the suffix.
            vocab_size=vocab + len(alone),
            min_frequency=SEEN,
            # As for WordPiece: without names these are numbered in the order of a hash map.
            special_tokens=[*SPECIALS, *(f"{c}{SUFFIX}" for c in alphabet)],
            initial_alphabet=alphabet,
            end_of_word_suffix=SUFFIX,
            show_progress=False,
        )
        state = json.loads(learn(backend, trainer, kept).to_str())["model"]
    pieces = [p for p in sorted(state["vocab"], key=state["vocab"].__getitem__) if p not in alone]
    model = models.BPE(
        vocab={piece: i for i, piece in enumerate(pieces)},
        merges=[tuple(merge) for merge in state["merges"]],
        unk_token=NAMES["unk"],
        end_of_word_suffix=SUFFIX,
    )
    return build(model)


def wordpiece(texts: Iterator[str], vocab: int, lowercase: bool) -> tokenizers.Tokenizer:
    """Merge characters, as BERT: pieces inside a word bear "##"."""

    def build(model: models.WordPiece) -> tokenizers.Tokenizer:
        backend = tokenizers.Tokenizer(model)
        backend.normalizer = bert(lowercase)
        backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        backend.decoder = decoders.WordPiece(cleanup=False)
        return backend

    backend = build(models.WordPiece(unk_token=NAMES["unk"]))
    with covered(texts, UNSPACED_BUT_CHINESE, MOST["bpe"]) as kept:
        alphabet, inner = _alphabet(kept, backend)
        enough(vocab, len(alphabet) + len(inner), "characters at the start and inside of words")
        trainer = trainers.WordPieceTrainer(
            vocab_size=vocab,
            min_frequency=SEEN,
            # The trainer numbers "##c" in the order of a hash map, and breaks ties by number:
            # naming them first makes one text give one vocabulary.
            special_tokens=[*SPECIALS, *(f"##{c}" for c in inner)],
            initial_alphabet=alphabet,
            show_progress=False,
        )
        backend = learn(backend, trainer, kept)
    return build(models.WordPiece(vocab=backend.get_vocab(), unk_token=NAMES["unk"]))


def _alphabet(kept: Covered, backend: tokenizers.Tokenizer) -> tuple[list[str], list[str]]:
    """Return the characters, and those of them that stand inside of words too."""

    def inside(character: str) -> bool:
        text = backend.normalizer.normalize_str(f"a{character}a")
        return len(backend.pre_tokenizer.pre_tokenize_str(text)) == 1

    # Punctuation and Chinese characters are always words of their own.
    alphabet = kept.alphabet(backend.normalizer.normalize_str)
    return alphabet, [c for c in alphabet if inside(c)]


def unigram(texts: Iterator[str], vocab: int, lowercase: bool) -> tokenizers.Tokenizer:
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
    with covered(texts, UNSPACED, MOST["unigram"]) as kept:
        alphabet = {*kept.alphabet(backend.normalizer.normalize_str), "▁"}
        # With no room for one piece more, the trainer forgets its limit.
        enough(vocab, len(alphabet) + 1, "characters and pieces")
        trainer = trainers.UnigramTrainer(
            vocab_size=vocab,
            special_tokens=list(SPECIALS),
            unk_token=NAMES["unk"],
            show_progress=False,
        )
        backend = learn(backend, trainer, kept)
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


def bert(lowercase: bool, *, apart: bool = True) -> normalizers.BertNormalizer:
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


def enough(vocab: int, alphabet: int, what: str) -> None:
    """Complain about a vocabulary without room for what it must hold."""
    least = len(SPECIALS) + alphabet
    if vocab < least:
        raise UserError(
            f"--vocab {vocab} is too small: {len(SPECIALS)} special tokens and {alphabet} {what} "
            f"need at least --vocab {least}"
        )
