"""Words begin where a reader begins them, in any script."""

import re
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinfolk.errors import UserError
from kinfolk.text import Tokenizer, train_tokenizer
from kinfolk.text.segment import HAN, SEGMENTERS, tokens_starting_words, word_segmenter, word_starts

TEXT = "The cat sat on the mat, it's 12 o'clock. 你好，世界。我们去北京大学看ＡＢＣ１２！"


def words(text: str, by: str) -> list[str]:
    """Give each word up to where the next begins."""
    found = word_starts(text, by)
    return [text[a:b] for a, b in zip(found, [*found[1:], len(text)], strict=True)]


@pytest.mark.parametrize(
    "expected",
    [
        ["It's ", "3 ", "o’clock", "."],
        ["'", "twas ", "dogs", "' ", "rock'n'roll"],
        ["snake", "_", "case ", "(", "x", ")", ".", ".", "."],
        ["x² ", "½ ", "naïve ", "cafe\u0301"],
        ["हिन्दी ", "में ", "한국어 ", "слово", "؟"],
        ["می\u200cخواهم ", "co\xadop"],
        ["ＡＢＣ", "，", "１２\u3000", "ｘ"],
        ["❤\ufe0f ", "👩\u200d", "👧"],
        ["a\ufeff\x00\n ", "b "],
    ],
)
@pytest.mark.parametrize("by", SEGMENTERS)
def test_words_with_spaces_are_the_same_by_any_segmenter(expected: list[str], by: str) -> None:
    assert words("".join(expected), by) == expected


def test_each_chinese_character_is_a_word_by_spaces() -> None:
    assert words("用Python写〇𠀀，好", "spaces") == ["用", "Python", "写", "〇", "𠀀", "，", "好"]


def test_jieba_finds_the_words_of_chinese() -> None:
    expected = ["我", "来到", "北京", "清华大学", "，", "学习", "Python3", "编程", "。"]
    assert words("".join(expected), "jieba") == expected


@pytest.mark.parametrize("by", SEGMENTERS)
def test_nothing_has_no_words(by: str) -> None:
    assert word_starts("", by) == word_starts(" \n\t\u3000", by) == []


@given(text=st.text(st.sampled_from(list("aé\u0301Z9 \n'’_-.。你好世界\u3000Ａ\u200d\ufeff𠀀"))))
@pytest.mark.parametrize("by", SEGMENTERS)
def test_starts_rise_and_every_letter_has_a_word(by: str, text: str) -> None:
    found = word_starts(text, by)
    assert found == sorted(set(found)) and all(not text[i].isspace() for i in found)
    # Whatever is written is in the word that began last, and no word goes on behind a space.
    for place in (i for i, c in enumerate(text) if c.isalnum()):
        begun = [i for i in found if i <= place]
        assert begun and not re.search(r"\s", text[begun[-1] : place])


@given(text=st.text(max_size=60))
def test_jieba_parts_chinese_only(text: str) -> None:
    fine, coarse = set(word_starts(text, "spaces")), set(word_starts(text, "jieba"))
    assert coarse <= fine
    assert all(re.match(f"[{HAN}]", text[i]) for i in fine - coarse)


def test_a_long_run_of_chinese_is_cut() -> None:
    text = "北京" * 5000
    assert words(text, "jieba") == ["北京"] * 5000


def test_unknown_segmenters_are_refused() -> None:
    with pytest.raises(UserError, match="unknown segmenter 'mecab': choose one of spaces, jieba"):
        word_segmenter("mecab")
    with pytest.raises(UserError, match="'mecab'"):
        word_starts("a", "mecab")


def test_a_missing_jieba_is_named() -> None:
    code = (
        "import sys; sys.modules['jieba'] = None\n"
        "from kinfolk.errors import UserError\n"
        "from kinfolk.text.segment import word_segmenter\n"
        "try: word_segmenter('jieba')\n"
        "except UserError as error: print(error)\n"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'kinfolk[zh]'" in said.stdout


def test_jieba_is_quiet() -> None:
    code = (
        "from kinfolk.text.segment import word_starts; "
        "assert word_starts('北京大学', 'jieba') == [0]"
    )
    command = [sys.executable, "-W", "error", "-c", code]
    said = subprocess.run(command, capture_output=True, text=True, check=True)
    assert said.stdout == said.stderr == ""


SIZES = {"bpe": 380, "word-bpe": 175, "wordpiece": 175, "unigram": 147, "word": 130}


@pytest.fixture(scope="module")
def tokenizers() -> dict[str, Tokenizer]:
    kinds = ("bpe", "word-bpe", "wordpiece", "unigram", "word", "char", "byte")
    return {
        kind: train_tokenizer([TEXT] * 3, kind=kind, vocab_size=SIZES.get(kind, 400))
        for kind in kinds
    }


@pytest.mark.parametrize(
    "kind", ["bpe", "word-bpe", "wordpiece", "unigram", "word", "char", "byte"]
)
@pytest.mark.parametrize("by", SEGMENTERS)
def test_exactly_one_token_begins_each_word(
    tokenizers: dict[str, Tokenizer], kind: str, by: str
) -> None:
    _, places = tokenizers[kind].offsets(TEXT)
    found = word_starts(TEXT, by)
    flags = tokens_starting_words(found, places)
    assert flags.dtype == np.bool_ and len(flags) == len(places)
    for place in found:
        # The first token that reaches past the start, also where three bytes are one character.
        first = next(i for i, (_, end) in enumerate(places) if end > place)
        assert flags[first]
    assert flags.sum() <= len(found)
    if kind not in ("bpe", "unigram"):
        assert flags.sum() == len(found)  # no token holds two words


def test_bytes_of_one_character_begin_one_word() -> None:
    assert tokens_starting_words([0, 1], [(0, 1), (0, 1), (0, 1), (1, 2), (1, 2)]).tolist() == [
        *[True, False, False],
        *[True, False],
    ]
    assert tokens_starting_words([1], [(0, 4), (4, 6)]).tolist() == [True, False]  # " cat", "ch"
    assert tokens_starting_words([0], []).tolist() == []
