"""Looking words up gives what encoding the whole text gives: ids, sentences and words."""

import gzip
import sys
import unicodedata
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, normalizers, pre_tokenizers

from kinfolk.data import encode as encode_module
from kinfolk.data.corpus import EncodedDocuments
from kinfolk.data.encode import DocumentEncoder, WordCache
from kinfolk.text import Tokenizer, sentence_ends, train_tokenizer
from kinfolk.text.segment import tokens_starting_words, word_starts

LEARNED = ["The cat's mat, it's 3 o'clock. Don't [stop]! 你好，世界。 naïve café"] * 4
SIZES = {
    "bpe": 400,
    "word-bpe": 170,
    "wordpiece": 165,
    "unigram": 140,
    "word": 120,
    "char": 200,
    "byte": 0,
}
TOKENIZERS = {
    (kind, low): train_tokenizer(LEARNED, kind=kind, vocab_size=vocab, lowercase=low)
    for kind, vocab in SIZES.items()
    for low in (False, True)
}
WORDS = "The cat 's ' ’ it's 3 12 café I İ ß Σ é ﬁ ½ 你 好世界 [MASK] <|endoftext|> ## ▁ 👍🏽 𝓐"
MARKS = ". , - ( ) ! … _ $ ` “ ” 。 ！"
BLANKS = [" ", "  ", "   ", "\n", "\n\n", "\t", "\r\n", "\xa0", "\u3000", "\u2028", "\x85"]
ODD = ["e\u0301", "\u0301", "\x1c", "\x1f", "\u200b", "\ufeff", "\u180e", "\ufffd", "\x00"]
PIECES = [*WORDS.split(), *MARKS.split(), *BLANKS, *ODD]
TEXTS = st.lists(st.sampled_from(PIECES), max_size=24).map("".join) | st.text(max_size=24)


def plain(tokenizer: Tokenizer, text: str, words: str | None = None) -> EncodedDocuments:
    """Encode a whole text at once."""
    ids, places = tokenizer.offsets(text)
    cuts = np.searchsorted([start for start, _ in places], sentence_ends(text), side="left")
    lengths = np.diff(cuts, prepend=0)
    marks = None if words is None else tokens_starting_words(word_starts(text, words), places)
    counts = np.array([(lengths > 0).sum()])
    size = np.array([len(text.encode())])
    return EncodedDocuments(
        np.array(ids, np.int64), lengths[lengths > 0].astype(np.int32), counts, size, marks
    )


def same(found: EncodedDocuments, wanted: EncodedDocuments) -> None:
    assert found.ids.tolist() == wanted.ids.tolist()
    assert found.sentences.tolist() == wanted.sentences.tolist()
    assert found.documents.tolist() == wanted.documents.tolist()
    assert found.bytes.tolist() == wanted.bytes.tolist()
    if wanted.words is not None:
        assert found.words is not None
        assert found.words.tolist() == wanted.words.tolist()


@given(text=TEXTS)
@pytest.mark.parametrize(
    ("kind", "low"),
    [
        pytest.param(kind, low, marks=pytest.mark.slow if low and kind != "wordpiece" else ())
        for kind, low in TOKENIZERS
    ],
)
def test_any_text_has_the_ids_and_sentences_of_the_whole(kind: str, low: bool, text: str) -> None:
    tokenizer = TOKENIZERS[kind, low]
    same(DocumentEncoder(tokenizer)([text]), plain(tokenizer, text))


@given(text=TEXTS)
@pytest.mark.parametrize("kind", ["bpe", "wordpiece", "unigram", "char"])
def test_any_text_has_the_words_of_the_whole(kind: str, text: str) -> None:
    tokenizer = TOKENIZERS[kind, False]
    same(DocumentEncoder(tokenizer, words="spaces")([text]), plain(tokenizer, text, "spaces"))


@pytest.mark.parametrize("kind", ["bpe", "word-bpe", "wordpiece"])
def test_every_blank_and_invisible_character_is_met(kind: str) -> None:
    tokenizer = TOKENIZERS[kind, False]
    encode = DocumentEncoder(tokenizer)
    odd = [c for c in map(chr, range(sys.maxunicode)) if unicodedata.category(c) in ("Cc", "Zs")]
    odd += [c for c in map(chr, range(0x10000)) if unicodedata.category(c) in ("Zl", "Zp", "Cf")]
    assert len(odd) > 100
    for c in odd:
        for text in (f"a{c}b", f"cat {c}{c} The", f"it's{c} {c}cat,{c}", f"{c}{c}{c}", f"a.{c}B"):
            same(encode([text]), plain(tokenizer, text))


@pytest.mark.parametrize(("kind", "low"), TOKENIZERS)
def test_plain_letters_and_digits_are_met(kind: str, low: bool) -> None:
    text = "The THE the 3 33 1990s x2 A.b a.B 1,000.50 (THE) \"Cat\" -Cat don't O'CLOCK The\nTHE 7"
    same(DocumentEncoder(TOKENIZERS[kind, low])([text]), plain(TOKENIZERS[kind, low], text))


def test_documents_are_encoded_each_by_itself() -> None:
    tokenizer = TOKENIZERS["bpe", False]
    texts = ["The cat. It", "", " sat\n", "你好。世界。" * 9, "s"]
    found = DocumentEncoder(tokenizer)(texts)
    apart = [plain(tokenizer, text) for text in texts]
    assert found.ids.tolist() == [i for one in apart for i in one.ids.tolist()]
    assert found.sentences.tolist() == [n for one in apart for n in one.sentences.tolist()]
    assert found.documents.tolist() == [one.documents[0] for one in apart]


def test_no_documents_have_no_ids() -> None:
    found = DocumentEncoder(TOKENIZERS["bpe", False])([])
    assert len(found.ids) == len(found.sentences) == len(found.documents) == 0


@pytest.mark.real
@pytest.mark.parametrize(
    ("name", "words", "kind"),
    [
        *(("wiki_en", "spaces", "bpe"), ("wiki_zh", "jieba", "wordpiece")),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (
                *(("wiki_en", "spaces", kind) for kind in ("word-bpe", "wordpiece")),
                *(("wiki_zh", "jieba", kind) for kind in ("bpe", "word-bpe")),
            )
        ),
    ],
)
def test_real_text_has_the_ids_of_the_whole(real: Path, name: str, words: str, kind: str) -> None:
    with gzip.open(real / name / "valid.txt.gz", "rt", encoding="utf-8") as file:
        texts = file.read(20_000).split("\n\n")
    tokenizer = TOKENIZERS[kind, False]
    encode = DocumentEncoder(tokenizer, words=words)
    for text in texts:
        same(encode([text]), plain(tokenizer, text, words))


def test_text_of_long_words_has_the_ids_of_the_whole() -> None:
    text = f"{'x' * 40}  {'y_' * 30} {'z' * 50}   {'https://a.b/' * 9}"
    for kind in ("bpe", "word-bpe", "wordpiece"):
        tokenizer = TOKENIZERS[kind, False]
        same(DocumentEncoder(tokenizer)([text]), plain(tokenizer, text))


def words_of(words: WordCache, text: str) -> list[str]:
    """Return the words that a lexicon finds in a text."""
    bounds = words.encode(f"{text}\n", np.array([len(text)])).starts.tolist()
    return [text[start:end] for start, end in pairwise(bounds)]


def test_words_are_cut_as_the_docstring_says() -> None:
    cut = "The| cat's| mat|,| 3|.|5"
    for kind in ("bpe", "word-bpe", "wordpiece"):
        assert words_of(WordCache(TOKENIZERS[kind, False]), cut.replace("|", "")) == cut.split("|")


def test_memory_of_words_is_bounded_and_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encode_module, "MAX_CACHED_WORDS", 50)
    monkeypatch.setattr(encode_module, "TABLE_SIZE", 64)
    monkeypatch.setattr(encode_module, "POOL_TOKENS", 600)
    tokenizer = TOKENIZERS["bpe", False]
    words = WordCache(tokenizer)
    forgot, kept = 0, 0
    for i in range(40):
        text = " ".join(f"cat{i % 7}x{j}" for j in range(20)) + "y" * 100
        before = len(words._others)
        found = words.encode(f"{text}\n", np.array([len(text)]))
        assert found.ids.tolist() == tokenizer.offsets(text)[0]
        forgot, kept = forgot + (len(words._others) < before), max(kept, len(words._others))
        assert not any("y" * 100 in word for word in words._others)
    assert forgot > 0
    assert 0 < kept <= 50


def test_words_that_come_back_are_not_encoded_again(monkeypatch: pytest.MonkeyPatch) -> None:
    words = WordCache(TOKENIZERS["bpe", False])
    asked: list[str] = []

    def spell(word: str) -> bytes:
        asked.append(word)
        return b"1234"

    monkeypatch.setattr(words, "_encode_word", spell)
    for text in ("The cat sat. The cat sat, it's.", "The cat sat. It's café", " sat café"):
        assert words_of(words, text)
    assert sorted(asked) == sorted(
        ["The", " cat", " sat", ".", " The", ",", " it's", " It's", " café"]
    )


def changed(change: str) -> Tokenizer:
    """Return a tokenizer whose words cannot be told by spaces, or are not known to."""
    backend = tokenizers.Tokenizer.from_str(TOKENIZERS["bpe", False]._backend.to_str())
    if change == "folded":
        backend.normalizer = normalizers.NFKC()
    elif change == "prefixed":
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    elif change == "whole":
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    elif change == "split":
        backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"cat\s"), "isolated")
    elif change == "added":
        backend.add_tokens([AddedToken("cat sat", special=False)])
    elif change == "none":
        backend.pre_tokenizer = None
    return Tokenizer(backend, {})


@pytest.mark.parametrize("change", ["folded", "prefixed", "whole", "split", "added", "none"])
def test_unknown_tokenizers_read_the_whole_text(change: str) -> None:
    tokenizer = changed(change)
    text = "The cat sat.\xa0It's a   cat sat. ﬁ"
    assert words_of(WordCache(tokenizer), text) == [text]
    same(DocumentEncoder(tokenizer)([text]), plain(tokenizer, text))
