"""The characters of tokens, in ELMo's convention, and of words that a vocabulary lacks."""

import numpy as np
import pytest

from kinfolk.text import Tokenizer, train_tokenizer
from kinfolk.text.characters import OpenVocabulary, character_table, encode_word

TEXT = ["the cat sat on the mat , the dog ran .", "a 猫 and a café"] * 3


def tokenizer(kind: str = "word", size: int = 400, *, lowercase: bool = False) -> Tokenizer:
    return train_tokenizer(TEXT, kind=kind, vocab_size=size, fewer=True, lowercase=lowercase)


def test_a_word_is_its_bytes_between_marks() -> None:
    # AllenNLP's ELMoCharacterMapper: convert_word_to_char_ids("cat"), with 50 for 8 characters.
    assert encode_word("cat", 8).tolist() == [259, 100, 98, 117, 260, 261, 261, 261]
    assert encode_word("é", 6).tolist() == [259, 0xC3 + 1, 0xA9 + 1, 260, 261, 261]
    assert encode_word("abcdefgh", 5).tolist() == [259, 98, 99, 100, 260], "cut to fit"
    assert encode_word("", 4).tolist() == [259, 260, 261, 261]


@pytest.mark.parametrize("kind", ["word", "wordpiece", "bpe", "unigram", "char", "byte"])
def test_every_token_of_every_kind_of_tokenizer_has_characters(kind: str) -> None:
    known = tokenizer(kind)
    table = character_table(known, 20)
    assert table.shape == (known.vocab_size, 20) and table.max() <= 261
    assert not table[known.special_tokens.pad].any()
    rows = {row.tobytes() for row in table}
    # A byte that is no character alone is shown as the replacement character.
    assert len(rows) > (0.4 if kind in ("bpe", "byte") else 0.99) * known.vocab_size
    begin = [259, 257, 260, *[261] * 17]
    assert table[known.special_tokens.bos].tolist() == begin


def test_unknown_words_are_read_by_their_characters_and_known_ones_as_in_the_table() -> None:
    for lowercase in (False, True):
        known = tokenizer(lowercase=lowercase)
        opened = OpenVocabulary(known)
        ids, spans = opened.offsets("the Zebra sat on Zanzibar")
        plain, same = known.offsets("the Zebra sat on Zanzibar")
        assert spans == same
        assert ids[1] != ids[4], "each has its own id for the row"
        array = np.array(ids)
        assert opened.close(array).tolist() == plain
        characters = opened.character_ids(array, 12)
        table = character_table(known, 12)
        for place in (0, 2, 3):
            assert characters[place].tolist() == table[plain[place]].tolist()
        word = "zebra" if lowercase else "Zebra"
        assert characters[1].tolist() == encode_word(word, 12).tolist()
