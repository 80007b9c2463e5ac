"""A text in pieces: nothing lost, white space seen, and bytes beside their character."""

import re
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kinfolk.text import KINDS, Tokenizer, train_tokenizer
from kinfolk.text.token_views import readable_tokens, show_whitespace, token_views
from support.runs import text

SIZES = {
    "bpe": 420,
    "word-bpe": 180,
    "wordpiece": 180,
    "unigram": 150,
    "word": 130,
    "char": 150,
    "byte": 362,
}


@cache
def trained(kind: str) -> Tokenizer:
    return train_tokenizer([text()], kind=kind, vocab_size=SIZES[kind])


@pytest.fixture(scope="module")
def tokenizers() -> dict[str, Tokenizer]:
    return {kind: trained(kind) for kind in SIZES}


def said(tokenizer: Tokenizer, text: str) -> list[str]:
    return [chunk.text for chunk in token_views(tokenizer, text)]


def test_byte_level_pieces_are_read_as_text(tokenizers: dict[str, Tokenizer]) -> None:
    assert said(tokenizers["bpe"], "in the\n") == ["in", "␣the", "⏎"]
    assert said(tokenizers["byte"], "é ") == ["é⟨c3⟩", "é⟨a9⟩", "␣"]
    assert said(tokenizers["byte"], "中") == ["中⟨e4⟩", "中⟨b8⟩", "中⟨ad⟩"]


def test_a_byte_by_itself_is_shown_as_a_byte(tokenizers: dict[str, Tokenizer]) -> None:
    ids = tokenizers["byte"].encode("中a", add_special_tokens=False)
    assert readable_tokens(tokenizers["byte"], ids) == ["⟨e4⟩", "⟨b8⟩", "⟨ad⟩", "a"]


def test_a_piece_may_hold_a_character_and_a_part_of_the_next() -> None:
    tokenizer = train_tokenizer(["é è ê ë " * 9], kind="bpe", vocab_size=364)
    # " \xc3" was merged before any letter was.
    found = token_views(tokenizer, "é è")
    assert any(re.fullmatch(r"␣?.⟨[0-9a-f]{2}⟩", chunk.text) for chunk in found)
    assert [chunk.token for chunk in found] == [
        tokenizer.id_to_token(i) for i in tokenizer.encode("é è")
    ]


def test_other_kinds_are_shown_as_their_vocabularies_write_them(
    tokenizers: dict[str, Tokenizer],
) -> None:
    assert said(tokenizers["char"], "a b") == ["a", "␣", "b"]
    assert said(tokenizers["word"], "the cat") == ["the", "cat"]
    assert "".join(said(tokenizers["wordpiece"], "forgotten")).replace("##", "") == "forgotten"
    assert "".join(said(tokenizers["unigram"], "the cat")) == "▁the▁cat"


def test_an_unknown_piece_says_what_it_stands_for(tokenizers: dict[str, Tokenizer]) -> None:
    (word,) = (p for p in token_views(tokenizers["word"], "the zebra the") if p.unknown)
    assert (word.token, word.text, word.special) == ("[UNK]", "[UNK]⟨zebra⟩", False)
    assert not any(p.unknown for p in token_views(tokenizers["bpe"], "zebra 龘 <|endoftext|>"))


def test_the_frame_and_special_tokens_are_marked(
    tokenizers: dict[str, Tokenizer], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("framed")
    tokenizers["word"].save(folder, template="bert")
    found = token_views(Tokenizer.load(folder), "the [MASK] zebra")
    assert [p.text for p in found] == ["[CLS]", "the", "[MASK]", "[UNK]", "[SEP]"]
    assert [p.special for p in found] == [True, False, True, False, True]
    found = token_views(Tokenizer.load(folder), "the zebra")
    assert [p.text for p in found] == ["[CLS]", "the", "[UNK]⟨zebra⟩", "[SEP]"]


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=25)
@given(st.text(max_size=30))
def test_any_text_has_as_many_pieces_as_ids(kind: str, text: str) -> None:
    tokenizer = trained(kind)
    found = token_views(tokenizer, text)
    assert [chunk.id for chunk in found] == tokenizer.encode(text)
    assert all(chunk.text.isprintable() for chunk in found), found
    assert not any(c.isspace() for chunk in found for c in chunk.text)


def test_what_cannot_be_seen_is_named() -> None:
    assert show_whitespace("a b\tc\n") == "a␣b⇥c⏎"
    assert show_whitespace("\u200b\x00\u2028") == "⟨U+200B⟩⟨U+0000⟩⟨U+2028⟩"
    assert show_whitespace("\u3000\xa0") == "□⍽"
