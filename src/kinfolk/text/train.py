"""Train a tokenizer on text files: BPE, WordPiece, unigram, bytes, words, characters.

The input is read in bounded chunks and every trainer is deterministic.
"""

import json
import math
import re
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import IO

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, trainers

from kinfolk.errors import UserError
from kinfolk.text.formats import join_chinese, whitespace_words
from kinfolk.text.patterns import WORD_PATTERN
from kinfolk.text.segment import HAN, SENTENCE_END_CHARS, word_segmenter
from kinfolk.text.tokenizer import Tokenizer

LONGEST = 8192  # characters passed to a trainer at once
CHARACTER_COVERAGE = 0.9995  # fraction of characters in the alphabet (SentencePiece's default)

# Text without spaces: nearly every run is distinct, and a trainer keeps each in memory.
_OTHERS = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff"  # Thai to Khmer, and kana
_GOLDEN = (5**0.5 - 1) / 2  # its multiples modulo 1 are evenly distributed
UNSPACED = re.compile(rf"[{_OTHERS}{HAN}]+|\S{{65,}}")
UNSPACED_BUT_CHINESE = re.compile(rf"[{_OTHERS}]+|[^\s{HAN}]{{65,}}")


# Receives the name of a stage, what is done of it, and the total if that is known.
StageProgress = Callable[[str, int, int | None], None]


def no_stage_progress(stage: str, done: int, total: int | None) -> None:
    """Report nothing."""


def cut(texts: Iterable[str]) -> Iterator[str]:
    """Split texts into parts of bounded length, before white space or after sentences."""
    empty = True
    for text in texts:
        empty = empty and not text.strip()
        start = 0
        while len(text) - start > LONGEST:
            stop = _stop(text, start, start + LONGEST)
            yield text[start:stop]
            start = stop
        yield text[start:]
    if empty:
        raise UserError("the text is empty: train a tokenizer on text with words in it")


def _stop(text: str, start: int, limit: int) -> int:
    space = max(text.rfind(" ", start + 1, limit), text.rfind("\n", start + 1, limit))
    if space > start:
        return space
    return max(text.rfind(mark, start, limit) for mark in SENTENCE_END_CHARS) + 1 or limit


@dataclass(frozen=True)
class SpooledTexts:
    """Texts on disk, which can be read several times; rare characters are replaced by spaces."""

    file: IO[str]
    common: list[str]
    rare_characters: dict[int, str]
    stride: int  # one part in `stride` is read
    size: int = 0  # of all parts, in characters of the file
    progress: StageProgress = no_stage_progress

    def alphabet(self, normalize: Callable[[str], str]) -> list[str]:
        """Return the common characters after normalization."""
        return sorted({c for raw in self.common for c in normalize(raw) if not c.isspace()})

    def __iter__(self) -> Iterator[str]:
        self.file.seek(0)
        done = 0
        for number, line in enumerate(self.file):
            done += len(line)
            self.progress("counting", done, self.size)
            if number * _GOLDEN % 1 < 1 / self.stride:
                yield json.loads(line).translate(self.rare_characters)
        self.progress("learning", 0, None)


@contextmanager
def spool_texts(
    texts: Iterable[str],
    unspaced: re.Pattern[str],
    limit: int,
    *,
    coverage: float = CHARACTER_COVERAGE,
    progress: StageProgress = no_stage_progress,
) -> Iterator[SpooledTexts]:
    """Count the characters of a stream, and keep it on disk for the trainer.

    To bound the memory of a trainer, texts with more than `limit` characters of `unspaced` text
    are sampled: one part in two, three ... is read, the same ones in every run.
    """
    counts: Counter[str] = Counter()
    runs = size = 0
    with tempfile.TemporaryFile("w+", encoding="utf-8") as file:
        for text in texts:
            runs += sum(map(len, unspaced.findall(text)))
            if coverage < 1:
                counts.update(text)
            size += file.write(json.dumps(text, ensure_ascii=False) + "\n")
        step = max(1, -(-runs // limit))
        if step > 1:
            warnings.warn(
                f"the text has {runs:,} characters without spaces between words, more than the "
                f"limit of {limit:,}: the tokenizer is trained on one part in {step} of it",
                stacklevel=3,
            )
        common, rest = [], coverage * counts.total()
        # Ties are sorted by character, so that the alphabet is deterministic.
        for character, count in sorted(counts.items(), key=lambda pair: (-pair[1], pair[0])):
            if rest > 0:
                common.append(character)
            rest -= count
        rare = {ord(c): " " for c in counts.keys() - set(common)}
        yield SpooledTexts(file, common, rare, step, size, progress)


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

UNK = SPECIAL_TOKEN_STRINGS["unk"]

MIN_FREQUENCY = 2  # of a merge
END_OF_WORD_SUFFIX = "</w>"  # as in GPT-1

# Limits of text without spaces, in characters. BPE takes about 250 bytes per character; unigram
# takes 400 bytes and ten times as long.
MAX_UNSPACED_CHARS = {"bpe": 10_000_000, "unigram": 3_000_000}

_MARKS = f"{SENTENCE_END_CHARS}…，、：」』）》】”"
# The words of a trainer, of bounded length also in text without spaces.
_RUN = rf"\s*[^\s{_MARKS}]{{1,32}}[{_MARKS}]*|\s*[{_MARKS}]{{1,32}}"


def bpe(
    texts: Iterator[str],
    vocab_size: int,
    lowercase: bool,
    progress: StageProgress = no_stage_progress,
) -> tokenizers.Tokenizer:
    """Train byte-level BPE, as in GPT-2."""
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
    byte_level = backend.pre_tokenizer
    backend.pre_tokenizer = pre_tokenizers.Sequence([_runs(), byte_level])
    limit = MAX_UNSPACED_CHARS["bpe"]
    with spool_texts(texts, UNSPACED, limit, coverage=1.0, progress=progress) as spooled:
        backend.train_from_iterator(spooled, trainer)
    backend.pre_tokenizer = byte_level
    return backend


def byte(texts: Iterator[str], vocab_size: int, lowercase: bool) -> tokenizers.Tokenizer:
    """Return a tokenizer with one token per byte."""
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


def word_bpe(
    texts: Iterator[str],
    vocab_size: int,
    lowercase: bool,
    progress: StageProgress = no_stage_progress,
) -> tokenizers.Tokenizer:
    """Train BPE on characters, as in GPT-1: the last token of a word has a suffix.

    Deviation: GPT-1 splits words with spaCy; this is the fallback of transformers.
    """
    decoder = decoders.BPEDecoder(END_OF_WORD_SUFFIX)
    options = {"unk_token": UNK, "end_of_word_suffix": END_OF_WORD_SUFFIX}
    backend = _bert_words(models.BPE(**options), decoder, lowercase)
    limit = MAX_UNSPACED_CHARS["bpe"]
    with spool_texts(texts, UNSPACED_BUT_CHINESE, limit, progress=progress) as spooled:
        alphabet, inner = _alphabet(spooled, backend)
        check_vocab_size(
            vocab_size, len(inner) + len(alphabet), "characters inside and at the end of words"
        )
        alone = set(alphabet) - set(inner)
        trainer = trainers.BpeTrainer(
            # Characters that only occur as words need no id without the suffix.
            vocab_size=vocab_size + len(alone),
            min_frequency=MIN_FREQUENCY,
            # Listed for a deterministic order, as for WordPiece.
            special_tokens=[*ALL_SPECIAL_TOKENS, *(f"{c}{END_OF_WORD_SUFFIX}" for c in alphabet)],
            initial_alphabet=alphabet,
            end_of_word_suffix=END_OF_WORD_SUFFIX,
            show_progress=False,
        )
        backend.train_from_iterator(spooled, trainer)
    state = json.loads(backend.to_str())["model"]
    subwords = [p for p in sorted(state["vocab"], key=state["vocab"].__getitem__) if p not in alone]
    vocab = {subword: i for i, subword in enumerate(subwords)}
    merges = [tuple(merge) for merge in state["merges"]]
    return _bert_words(models.BPE(vocab=vocab, merges=merges, **options), decoder, lowercase)


def wordpiece(
    texts: Iterator[str],
    vocab_size: int,
    lowercase: bool,
    progress: StageProgress = no_stage_progress,
) -> tokenizers.Tokenizer:
    """Train WordPiece, as in BERT: tokens inside a word begin with "##"."""
    decoder = join_chinese(decoders.WordPiece(cleanup=False))
    backend = _bert_words(models.WordPiece(unk_token=UNK), decoder, lowercase)
    limit = MAX_UNSPACED_CHARS["bpe"]
    with spool_texts(texts, UNSPACED_BUT_CHINESE, limit, progress=progress) as spooled:
        alphabet, inner = _alphabet(spooled, backend)
        check_vocab_size(
            vocab_size, len(alphabet) + len(inner), "characters at the start and inside of words"
        )
        trainer = trainers.WordPieceTrainer(
            vocab_size=vocab_size,
            min_frequency=MIN_FREQUENCY,
            # The trainer numbers "##c" in the order of a hash map, and breaks ties by id; listing
            # them makes the vocabulary deterministic.
            special_tokens=[*ALL_SPECIAL_TOKENS, *(f"##{c}" for c in inner)],
            initial_alphabet=alphabet,
            show_progress=False,
        )
        backend.train_from_iterator(spooled, trainer)
    model = models.WordPiece(vocab=backend.get_vocab(), unk_token=UNK)
    return _bert_words(model, decoder, lowercase)


def _bert_words(
    model: models.Model, decoder: decoders.Decoder, lowercase: bool
) -> tokenizers.Tokenizer:
    """Return a tokenizer that splits text into words as BERT does."""
    backend = tokenizers.Tokenizer(model)
    backend.normalizer = bert_normalizer(lowercase)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoder
    return backend


def _alphabet(texts: SpooledTexts, backend: tokenizers.Tokenizer) -> tuple[list[str], list[str]]:
    """Return the characters, and those that also occur inside of words."""

    def inside(character: str) -> bool:
        text = backend.normalizer.normalize_str(f"a{character}a")
        return len(backend.pre_tokenizer.pre_tokenize_str(text)) == 1

    # Punctuation and Chinese characters are single words.
    alphabet = texts.alphabet(backend.normalizer.normalize_str)
    return alphabet, [c for c in alphabet if inside(c)]


def unigram(
    texts: Iterator[str],
    vocab_size: int,
    lowercase: bool,
    progress: StageProgress = no_stage_progress,
) -> tokenizers.Tokenizer:
    """Train a unigram language model (Kudo 2018), as in T5."""

    def build(model: models.Unigram) -> tokenizers.Tokenizer:
        backend = tokenizers.Tokenizer(model)
        # Deviation: no NFKC, which turns Chinese punctuation into ASCII.
        steps = [normalizers.Nmt(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Strip()]
        backend.normalizer = normalizers.Sequence(
            [*steps, normalizers.Lowercase()] if lowercase else steps
        )
        backend.pre_tokenizer = pre_tokenizers.Metaspace()
        backend.decoder = decoders.Metaspace()
        return backend

    backend = build(models.Unigram())
    backend.pre_tokenizer = pre_tokenizers.Sequence([backend.pre_tokenizer, _runs()])
    limit = MAX_UNSPACED_CHARS["unigram"]
    with spool_texts(texts, UNSPACED, limit, progress=progress) as spooled:
        alphabet = {*spooled.alphabet(backend.normalizer.normalize_str), "▁"}
        # Without space for one more token, the trainer exceeds its limit.
        check_vocab_size(vocab_size, len(alphabet) + 1, "characters and tokens")
        trainer = trainers.UnigramTrainer(
            vocab_size=vocab_size,
            special_tokens=list(ALL_SPECIAL_TOKENS),
            unk_token=UNK,
            show_progress=False,
        )
        backend.train_from_iterator(spooled, trainer)
    learned = json.loads(backend.to_str())["model"]["vocab"][len(ALL_SPECIAL_TOKENS) :]
    subwords = _deterministic_order([(str(subword), float(score)) for subword, score in learned])
    return build(_unigram_model(subwords))


def _unigram_model(subwords: Iterable[tuple[str, float]]) -> models.Unigram:
    """Return a model of tokens with their scores, after the special tokens."""
    special_tokens = [(name, 0.0) for name in ALL_SPECIAL_TOKENS]
    return models.Unigram(vocab=[*special_tokens, *subwords], unk_id=ALL_SPECIAL_TOKENS.index(UNK))


def _deterministic_order(subwords: list[tuple[str, float]]) -> list[tuple[str, float]]:
    """Return the tokens of the trainer in a deterministic order, with deterministic scores.

    It sums scores in the order of a hash map, which changes the last digits, and gives characters
    that it adds at the end the scores lowest, lowest + 0.0001 ... in such an order.
    """
    lowest = min(score for _, score in subwords)
    added = lowest + 0.0001 * sum(len(subword) == 1 for subword, _ in subwords)
    scores = {p: lowest if len(p) == 1 and s <= added else s for p, s in subwords}
    return sorted(
        ((p, round(s, 6)) for p, s in scores.items()), key=lambda pair: (-pair[1], pair[0])
    )


def bert_normalizer(lowercase: bool, *, apart: bool = True) -> normalizers.BertNormalizer:
    """Return BERT's normalizer; `apart` puts spaces around Chinese characters."""
    return normalizers.BertNormalizer(
        lowercase=lowercase, strip_accents=lowercase, handle_chinese_chars=apart
    )


def _runs() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Split(Regex(_RUN), "isolated")


def check_vocab_size(vocab_size: int, alphabet: int, what: str) -> None:
    """Check that a vocabulary holds the special tokens and the alphabet."""
    minimum = len(ALL_SPECIAL_TOKENS) + alphabet
    if vocab_size < minimum:
        raise UserError(
            f"vocab_size {vocab_size} is too small: {len(ALL_SPECIAL_TOKENS)} special tokens "
            f"and {alphabet} {what} need at least vocab_size {minimum}"
        )


WORD_EDGE = "▁"
_LETTER = rf"[\w&&[^{HAN}]]"
_CHINESE_TEXT_WORD = rf"{_LETTER}+(?:['’]{_LETTER}+)*"


def _counts(texts: Iterable[str], backend: tokenizers.Tokenizer) -> Counter[str]:
    chinese = word_segmenter("jieba")
    counts: Counter[str] = Counter()
    for text in texts:
        plain = backend.normalizer.normalize_str(text)
        for run, _ in backend.pre_tokenizer.pre_tokenize_str(plain):
            starts = [0] if run.startswith(WORD_EDGE) else chinese(run)
            counts.update(run[start:stop] for start, stop in pairwise([*starts, len(run)]))
    return counts


KINDS = ("bpe", "word-bpe", "wordpiece", "unigram", "word", "char", "byte")

# Words keep apostrophes; the markup of published corpora (<unk>, @-@) is not split.


def train_tokenizer(
    texts: Iterable[str],
    *,
    kind: str,
    vocab_size: int,
    lowercase: bool = False,
    segmenter: str = "spaces",
    fewer: bool = False,
    progress: StageProgress = no_stage_progress,
) -> Tokenizer:
    """Train a tokenizer of `vocab_size` tokens, special ones included, on a stream of texts.

    For "char", `vocab_size` is an upper limit; "byte" always has 256 bytes. The segmenter "jieba"
    finds Chinese words for the kind "word", where each character is a word otherwise; "whitespace"
    splits at white space alone, for text in which words and marks are apart already. To keep
    memory under 4 GB, very large text without spaces is sampled. `fewer` allows a smaller
    vocabulary where the text does not yield enough tokens.
    """
    if kind not in KINDS:
        raise UserError(f"unknown tokenizer kind {kind!r}: choose one of {', '.join(KINDS)}")
    if segmenter not in WORD_BUILDERS or (segmenter != "spaces" and kind != "word"):
        raise UserError(
            f"segmenter {segmenter!r} does not apply to kind {kind!r}: "
            f"choose one of {', '.join(WORD_BUILDERS)} for kind 'word'"
        )
    builders: dict[str, Callable[[Iterator[str], int, bool], tokenizers.Tokenizer]] = {
        "bpe": partial(bpe, progress=progress),
        "word-bpe": partial(word_bpe, progress=progress),
        "wordpiece": partial(wordpiece, progress=progress),
        "unigram": partial(unigram, progress=progress),
        "word": WORD_BUILDERS[segmenter],
        "char": _char,
        "byte": byte,
    }
    backend = builders[kind](cut(texts), vocab_size, lowercase)
    backend.add_special_tokens(
        [
            # As in RoBERTa, the mask of byte-level BPE includes the space before it.
            AddedToken(
                name, special=True, lstrip=kind == "bpe" and name == SPECIAL_TOKEN_STRINGS["mask"]
            )
            for name in ALL_SPECIAL_TOKENS
        ]
    )
    if not fewer and kind not in ("char", "byte") and backend.get_vocab_size() < vocab_size:
        supported = backend.get_vocab_size()
        raise UserError(
            f"the text yields only {supported:,} distinct tokens, fewer than vocab_size "
            f"{vocab_size}: use more text or vocab_size {supported}"
        )
    return Tokenizer(backend, SPECIAL_TOKEN_STRINGS)


def _word(texts: Iterator[str], vocab_size: int, lowercase: bool) -> tokenizers.Tokenizer:
    check_vocab_size(vocab_size, 1, "word")
    backend = tokenizers.Tokenizer(models.WordLevel(unk_token=UNK))
    backend.normalizer = bert_normalizer(lowercase)
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(WORD_PATTERN), "removed", invert=True)
    return _train_most_frequent(backend, vocab_size, texts)


def _whitespace_word(texts: Iterator[str], vocab_size: int, lower: bool) -> tokenizers.Tokenizer:
    check_vocab_size(vocab_size, 1, "word")
    backend = whitespace_words(models.WordLevel(unk_token=UNK))
    if lower:
        backend.normalizer = normalizers.Lowercase()
    return _train_most_frequent(backend, vocab_size, texts)


def _chinese_word(texts: Iterator[str], vocab_size: int, lowercase: bool) -> tokenizers.Tokenizer:
    """Build a unigram model of the most frequent words, which jieba finds in Chinese text."""
    check_vocab_size(vocab_size, 1, "word")
    backend = tokenizers.Tokenizer(models.Unigram())
    backend.normalizer = normalizers.Sequence(
        [
            bert_normalizer(lowercase, apart=False),
            normalizers.Replace(WORD_EDGE, " "),
            # Only at the end: at the start, Replace would shift the offsets.
            normalizers.Replace(Regex(rf"(?<={_LETTER})(?!{_LETTER}|['’]{_LETTER})"), WORD_EDGE),
        ]
    )
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(
                Regex(rf"{_CHINESE_TEXT_WORD}{WORD_EDGE}|[{HAN}]+|\S"), "removed", invert=True
            ),
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
    # Ties are sorted by word, so that the vocabulary is deterministic.
    ranked = sorted(_counts(texts, backend).items(), key=lambda pair: (-pair[1], pair[0]))
    ranked = ranked[: vocab_size - len(ALL_SPECIAL_TOKENS)]
    total = sum(count for _, count in ranked)
    backend.model = _unigram_model(
        (word, round(math.log(count / total), 6)) for word, count in ranked
    )
    return backend


# How words are found, by the name of the segmenter.
WORD_BUILDERS = {
    "spaces": _word,
    "jieba": _chinese_word,
    "whitespace": _whitespace_word,
}


def _char(texts: Iterator[str], vocab_size: int, lowercase: bool) -> tokenizers.Tokenizer:
    check_vocab_size(vocab_size, 1, "character")
    backend = tokenizers.Tokenizer(models.WordLevel(unk_token=UNK))
    if lowercase:
        backend.normalizer = normalizers.Lowercase()
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    backend.decoder = decoders.Fuse()
    return _train_most_frequent(backend, vocab_size, texts)


def _train_most_frequent(
    backend: tokenizers.Tokenizer, vocab_size: int, texts: Iterator[str]
) -> tokenizers.Tokenizer:
    trainer = trainers.WordLevelTrainer(
        vocab_size=vocab_size, special_tokens=list(ALL_SPECIAL_TOKENS), show_progress=False
    )
    backend.train_from_iterator(texts, trainer)
    return backend
