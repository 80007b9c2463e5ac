"""Pairs of texts: read from two files or a table, and written as documents of two sequences."""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from kinfolk.data import parallel_text
from kinfolk.data.corpus import Corpus
from kinfolk.data.parallel_text import (
    ParallelText,
    TargetDocuments,
    TextPair,
    pair_lengths,
    write_parallel_corpus,
)
from kinfolk.errors import UserError
from kinfolk.text import Tokenizer, train_tokenizer

ENGLISH = ["A dog runs.", "Two cats sleep. They are old.", "  a red bird  ", "Kühe\u2028 & co"]
GERMAN = ["Ein Hund läuft.", "Zwei Katzen schlafen.", "ein roter Vogel", "cows"]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_tokenizer([*ENGLISH, *GERMAN] * 3, kind="bpe", vocab_size=380)


def files(folder: Path, source: str, target: str) -> ParallelText:
    for name, text in (("x.en", source), ("x.de", target)):
        (folder / name).write_text(text, encoding="utf-8")
    return ParallelText(folder / "x.en", folder / "x.de")


def lines(texts: list[str]) -> str:
    return "".join(f"{text}\n" for text in texts)


def test_line_n_of_one_file_is_the_pair_of_line_n_of_the_other(tmp_path: Path) -> None:
    found = files(tmp_path, lines(ENGLISH), lines(GERMAN).removesuffix("\n"))
    found.check()
    expected = [TextPair(a.strip(), b.strip()) for a, b in zip(ENGLISH, GERMAN, strict=True)]
    assert list(found.rows()) == expected
    windows = files(tmp_path, lines(ENGLISH).replace("\n", "\r\n"), lines(GERMAN))
    assert list(windows.rows()) == expected


def test_compressed_files_and_tables_are_read_alike(tmp_path: Path) -> None:
    table = "".join(f"{a}\t{b}\tsomeone\n" for a, b in zip(ENGLISH, GERMAN, strict=True))
    (tmp_path / "both.tsv").write_text(table, encoding="utf-8")
    for name, text in (("x.en", ENGLISH), ("x.de", GERMAN)):
        (tmp_path / f"{name}.gz").write_bytes(gzip.compress(lines(text).encode()))
    two = ParallelText(tmp_path / "x.en.gz", tmp_path / "x.de.gz")
    one = ParallelText(tmp_path / "both.tsv")
    one.check()
    assert list(two.rows()) == list(one.rows())


def test_a_pair_is_a_document_of_two_sequences(tmp_path: Path, tokenizer: Tokenizer) -> None:
    found = files(tmp_path, lines(ENGLISH), lines(GERMAN))
    write_parallel_corpus(found, tokenizer, tmp_path / "corpus", prefix="to German: ")
    corpus = Corpus.open(tmp_path / "corpus")
    sizes = pair_lengths(corpus)
    assert corpus.documents == len(ENGLISH) == len(sizes)
    for number, (source, target) in enumerate(zip(ENGLISH, GERMAN, strict=True)):
        read, written = np.split(corpus.document(number), sizes[number, :1])
        assert read.tolist() == tokenizer.offsets(f"to German: {source.strip()}")[0]
        assert written.tolist() == tokenizer.offsets(target)[0]
    # Bits per byte are those of what is predicted.
    assert corpus.bytes == sum(len(text.encode()) for text in GERMAN)
    facts = json.loads((tmp_path / "corpus" / "corpus.json").read_text(encoding="utf-8"))
    assert [(Path(s["path"]).name, s["documents"]) for s in facts["sources"]] == [
        ("x.de", 4),
        ("x.en", 4),
    ]
    assert not list((tmp_path / "corpus").glob("*.part"))


@pytest.mark.parametrize("chunk", [1, 3, 4096])
def test_targets_are_documents_of_their_own(
    chunk: int, tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parallel_text, "PAIRS_PER_BATCH", chunk)
    write_parallel_corpus(
        files(tmp_path, lines(ENGLISH), lines(GERMAN)), tokenizer, tmp_path / "corpus"
    )
    found = TargetDocuments(Corpus.open(tmp_path / "corpus"))
    ids = [tokenizer.offsets(text)[0] for text in GERMAN]
    assert [found.document(i).tolist() for i in range(found.documents)] == ids
    assert found.starts.tolist() == np.cumsum([0, *map(len, ids)]).tolist()
    stream = [i for some in ids for i in some]
    assert found.tokens == len(stream)
    assert found.token_counts().tolist() == np.bincount(stream, minlength=380).tolist()


def test_a_pair_with_an_empty_side_is_left_out_aloud(tmp_path: Path, tokenizer: Tokenizer) -> None:
    found = files(tmp_path, "one\n\n three\nfour\n\n", "eins\nzwei\n\t \nvier\n\n")
    found.check()
    with pytest.warns(UserWarning, match=r"3 of 5 pairs in .*x.en and .*x.de .* first on line 2$"):
        write_parallel_corpus(found, tokenizer, tmp_path / "corpus")
    corpus = Corpus.open(tmp_path / "corpus")
    assert corpus.documents == 2
    assert tokenizer.decode(corpus.document(1)) == "fourvier"


def test_a_text_that_is_nothing_to_the_tokenizer_is_left_out_too(tmp_path: Path) -> None:
    unigram = train_tokenizer(["one two three four"] * 5, kind="unigram", vocab_size=117)
    found = files(tmp_path, "one\ntwo\n", "one\n\u200b\n")
    assert unigram.offsets("\u200b")[0] == [], "a space of no width is no token of this one"
    with pytest.warns(UserWarning, match="1 of 2 pairs in .* first on line 2"):
        write_parallel_corpus(found, unigram, tmp_path / "corpus")
    assert Corpus.open(tmp_path / "corpus").documents == 1


def test_what_is_no_pairs_is_told_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"x.en has 2 lines and .*x.de has 1: line n"):
        files(tmp_path, "a\nb\n", "c\n").check()
    with pytest.raises(UserError, match=r"no text pair in .*x.en and .*x.de"):
        files(tmp_path, "a\n\n", "\nb\n").check()
    with pytest.raises(UserError, match="none does not exist: pass a file with one text per line"):
        ParallelText(tmp_path / "none", tmp_path / "x.en").check()
    (tmp_path / "bad.tsv").write_text("a\tb\nc d\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"line 2 of .*bad.tsv has no tab"):
        ParallelText(tmp_path / "bad.tsv").check()
