"""Word vectors of a file belong to the tokens of a tokenizer that spell its words."""

import gzip
import lzma
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from kinfolk.errors import UserError
from kinfolk.text import Tokenizer, train_tokenizer
from kinfolk.text.vectors import read_vectors, token_words, vector_size

GLOVE = "the 1 2\ncat 3 4\nThe -5 6e-1\n. . . 7 8\nzebra 9 10\n"


@pytest.fixture(scope="module")
def words() -> Tokenizer:
    return train_tokenizer(["The the Cat dog"], kind="word", vocab_size=200, fewer=True)


def vectors_of(path: Path, tokenizer: Tokenizer) -> dict[str, list[float]]:
    found = read_vectors(path, tokenizer)
    return {
        tokenizer.id_to_token(int(id)): values.tolist()
        for id, values in zip(found.ids, found.values, strict=True)
    }


def test_a_word_is_looked_up_as_it_is_and_then_in_lower_case(
    words: Tokenizer, tmp_path: Path
) -> None:
    (tmp_path / "glove.txt").write_text(GLOVE, encoding="utf-8")
    found = vectors_of(tmp_path / "glove.txt", words)
    assert found == {"the": [1, 2], "The": [-5, pytest.approx(0.6)], "Cat": [3, 4]}
    assert read_vectors(tmp_path / "glove.txt", words).summary == "vectors of 3 of 4 words"


def test_the_spelling_itself_wins_wherever_it_stands(words: Tokenizer, tmp_path: Path) -> None:
    lines = GLOVE.splitlines(keepends=True)
    (tmp_path / "turned.txt").write_text("".join(reversed(lines[:3])), encoding="utf-8")
    assert vectors_of(tmp_path / "turned.txt", words)["The"] == [-5, pytest.approx(0.6)]


@pytest.mark.parametrize("compress", [gzip.compress, lzma.compress], ids=["gz", "xz"])
def test_a_compressed_file_with_a_header_of_word2vec_gives_the_same(
    compress: Callable[[bytes], bytes], words: Tokenizer, tmp_path: Path
) -> None:
    (tmp_path / "glove.txt").write_text(GLOVE, encoding="utf-8")
    file = tmp_path / f"word2vec.txt.{'gz' if compress is gzip.compress else 'xz'}"
    file.write_bytes(compress(b"5 2\n" + GLOVE.replace("\n", " \n").encode()))
    assert vectors_of(file, words) == vectors_of(tmp_path / "glove.txt", words)
    assert vector_size(file) == 2


def test_subword_tokens_have_the_vectors_of_the_words_that_they_spell(tmp_path: Path) -> None:
    (tmp_path / "glove.txt").write_text("cat 3 4\ns 5 6\n", encoding="utf-8")
    text = ["the cat the cats"] * 3
    bpe = train_tokenizer(text, kind="bpe", vocab_size=500, fewer=True)
    assert vectors_of(tmp_path / "glove.txt", bpe)["Ġcat"] == [3, 4]
    pieces = train_tokenizer(text, kind="wordpiece", vocab_size=160, fewer=True)
    assert "##s" not in vectors_of(tmp_path / "glove.txt", pieces)


def test_special_tokens_have_no_words(words: Tokenizer) -> None:
    assert not token_words(words).keys() & words.special_tokens.ids
    assert sorted(token_words(words).values()) == ["Cat", "The", "dog", "the"]


@pytest.mark.parametrize("value", ["nan", "inf", "x"])
def test_a_value_that_is_no_number_is_refused(value: str, words: Tokenizer, tmp_path: Path) -> None:
    (tmp_path / "broken.txt").write_text(f"dog 1 2\ncat 1 {value}\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"line 2 of .* not a finite number"):
        read_vectors(tmp_path / "broken.txt", words)


@pytest.mark.real
def test_published_glove_vectors_are_read(real: Path) -> None:
    file = real / "glove_6b_50d_top40k" / "glove.6B.50d.top40k.txt.xz"
    tokenizer = train_tokenizer(["The man and woman"], kind="word", vocab_size=200, fewer=True)
    found = vectors_of(file, tokenizer)
    assert list(found) and np.allclose(found["The"][:3], [0.418, 0.24968, -0.41242])
