"""What is measured about tokenizers can be counted by hand."""

from pathlib import Path

import pytest

from kinfolk.data.prepare import prepare
from kinfolk.text import train_tokenizer
from kinfolk.text.tokenizer_stats import SYMBOLS, held_out, tokenizer_stats
from support.runs import text


def test_measures_are_counts_over_all_texts() -> None:
    tokenizers = [train_tokenizer([text()], kind=kind, vocab_size=362) for kind in ("byte", "char")]
    texts = ["The cat saw.", "中文 é!", "  ", ""]
    byte, char = tokenizer_stats(tokenizers, texts)
    # Words: The, cat, saw, "." and 中, 文, é, "!"; bytes: 12 and 6 + 1 + 2 + 1.
    assert (byte.words, byte.bytes, byte.tokens, byte.unknown) == (8, 22, 22, 0)
    assert byte.tokens_per_word == 22 / 8
    assert byte.bytes_per_token == 1.0
    assert (char.tokens, char.unknown) == (12 + 5, 4)  # 中, 文, é and !
    assert char.unknown_rate == 4 / 17
    assert char.bytes_per_token == 22 / 17


def test_a_token_belongs_to_the_script_of_its_word() -> None:
    (byte,) = tokenizer_stats(
        [train_tokenizer([text()], kind="byte", vocab_size=362)], ["The cat 中文 7."]
    )
    assert dict(byte.script_words) == {"Latin": 2, "Han": 2, SYMBOLS: 2}
    # A space is counted with the word before it.
    assert byte.fertility("Latin") == 8 / 2
    assert byte.fertility("Han") == 7 / 2
    assert byte.fertility(SYMBOLS) == 2 / 2
    assert byte.script_tokens.total() == byte.tokens


@pytest.mark.parametrize("kind", ["bpe", "wordpiece", "unigram", "word", "char", "byte"])
def test_scripts_share_all_tokens_and_words_whatever_the_kind(kind: str) -> None:
    sizes = {"bpe": 420, "wordpiece": 180, "unigram": 150, "word": 130, "char": 150, "byte": 362}
    tokenizer = train_tokenizer([text()], kind=kind, vocab_size=sizes[kind])
    (found,) = tokenizer_stats([tokenizer], [text(seed=1), "Ein Käfer, 五 и κ."])
    assert found.script_tokens.total() == found.tokens
    assert found.script_words.total() == found.words
    assert found.fertility("Latin") >= 1 or kind == "unigram"
    assert {"Latin", "Han", "Cyrillic", "Greek", SYMBOLS} == found.script_words.keys()


def test_the_tenth_kept_aside_is_that_of_prepare(tmp_path: Path) -> None:
    source = tmp_path / "text.txt"
    source.write_text(text(300), encoding="utf-8")
    tokenizer = train_tokenizer([text()], kind="byte", vocab_size=362)
    prepare([source], tokenizer=tokenizer, out=tmp_path / "corpus", holdout=0.1)
    kept = prepare([source], tokenizer=tokenizer, out=tmp_path / "whole", holdout=0.0).documents
    from kinfolk.data.corpus import Corpus

    corpus = Corpus.open(tmp_path / "corpus" / "holdout")
    theirs = [tokenizer.decode(corpus.document(i)) for i in range(corpus.documents)]
    documents = text(300).strip().split("\n\n")
    assert [one for one in documents if held_out(one)] == theirs
    assert 0.05 < len(theirs) / kept < 0.15
