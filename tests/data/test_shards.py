"""A corpus gives back what was written, and says what is wrong with its files."""

import json
import pickle
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kinfolk.data.shards import Corpus
from kinfolk.data.writer import Encoded, Writer
from kinfolk.errors import UserError
from kinfolk.text import Tokenizer, train

TOKENIZER = train([], kind="byte", vocab=0)
DOCUMENTS = [[[110, 111, 112], [113]], [[200]], [], [[361, 0], [5, 6, 7], [8]]]


def write(folder: Path, documents: list[list[list[int]]], tokenizer: Tokenizer = TOKENIZER) -> None:
    with Writer(folder, tokenizer) as writer:
        for i, document in enumerate(documents):
            ids = [token for sentence in document for token in sentence]
            lengths = np.array([len(sentence) for sentence in document], np.int32)
            encoded = Encoded(np.array(ids), lengths, np.array([len(document)]), np.array([10 + i]))
            writer.add(encoded, ["a.txt"])


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    write(tmp_path / "corpus", DOCUMENTS)
    return Corpus.open(tmp_path / "corpus")


def test_a_corpus_gives_back_what_was_written(corpus: Corpus) -> None:
    flat = [[token for sentence in document for token in sentence] for document in DOCUMENTS]
    assert [corpus.document(i).tolist() for i in range(corpus.documents)] == flat
    assert corpus.starts.tolist() == [0, 4, 5, 5, 11]
    assert corpus.starts.dtype == np.int64
    assert corpus.document_bytes.tolist() == [10, 11, 12, 13]
    assert (corpus.documents, corpus.tokens, corpus.bytes) == (4, 11, 46)
    assert corpus.ids(2, 6).tolist() == [112, 113, 200, 361]
    assert corpus.ids(2, 6).dtype == np.int64
    assert corpus.vocab == TOKENIZER.vocab
    assert corpus.tokenizer().hash == corpus.tokenizer_hash == TOKENIZER.hash
    assert sorted(path.name for path in corpus.folder.iterdir()) == [
        "bytes.bin", "corpus.json", "tokenizer", "tokens.bin", "tokens.idx"
    ]  # fmt: skip


def test_the_card_says_what_is_inside(corpus: Corpus) -> None:
    assert json.loads((corpus.folder / "corpus.json").read_text()) == {
        "version": 1,
        "documents": 4,
        "sentences": 6,
        "tokens": 11,
        "bytes": 46,
        "vocab": 362,
        "tokenizer_hash": TOKENIZER.hash,
        "sources": [{"path": "a.txt", "documents": 4, "bytes": 46}],
    }


def test_the_index_is_megatrons(corpus: Corpus) -> None:
    """Read as megatron.core.datasets.indexed_dataset reads it."""
    data = (corpus.folder / "tokens.idx").read_bytes()
    assert data[:9] == b"MMIDIDX\x00\x00"
    assert struct.unpack("<QBQQ", data[9:34]) == (1, 8, 6, 5)
    lengths = np.frombuffer(data, np.int32, count=6, offset=34)
    pointers = np.frombuffer(data, np.int64, count=6, offset=34 + 24)
    firsts = np.frombuffer(data, np.int64, count=5, offset=34 + 24 + 48)
    assert lengths.tolist() == [3, 1, 1, 2, 3, 1]
    assert pointers.tolist() == [0, 6, 8, 10, 14, 20]
    assert firsts.tolist() == [0, 2, 3, 3, 6]
    assert len(data) == 34 + 24 + 48 + 40


def test_counts_add_up(corpus: Corpus) -> None:
    counts = corpus.counts()
    assert len(counts) == corpus.vocab
    assert counts.sum() == corpus.tokens
    assert (counts[361], counts[50]) == (1, 0)


@given(data=st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_sentences_fill_any_slice(corpus: Corpus, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, corpus.tokens))
    stop = data.draw(st.integers(start, corpus.tokens))
    owner = [i for i, n in enumerate([3, 1, 1, 2, 3, 1]) for _ in range(n)][start:stop]
    assert corpus.sentences(start, stop).tolist() == [owner.count(i) for i in sorted(set(owner))]


def test_pickling_opens_the_files_again(corpus: Corpus) -> None:
    twin = pickle.loads(pickle.dumps(corpus))
    assert len(pickle.dumps(corpus)) < 500
    assert twin.ids(0, 11).tolist() == corpus.ids(0, 11).tolist()


def test_large_vocabularies_take_four_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = pickle.loads(pickle.dumps(TOKENIZER))
    monkeypatch.setattr(tokenizer, "vocab", 70_000)
    write(tmp_path / "corpus", [[[69_999, 1]]], tokenizer)
    assert (tmp_path / "corpus" / "tokens.bin").stat().st_size == 8
    assert Corpus.open(tmp_path / "corpus").document(0).tolist() == [69_999, 1]


@pytest.mark.parametrize("name", ["tokens.bin", "tokens.idx", "bytes.bin", "corpus.json"])
def test_missing_and_cut_files_are_named(corpus: Corpus, name: str) -> None:
    file = corpus.folder / name
    file.write_bytes(file.read_bytes()[:-3])
    with pytest.raises(UserError, match=rf"{name} is damaged"):
        Corpus.open(corpus.folder)
    file.unlink()
    with pytest.raises(UserError, match=rf"{name} does not exist"):
        Corpus.open(corpus.folder)


def test_foreign_files_are_named(corpus: Corpus) -> None:
    index = corpus.folder / "tokens.idx"
    good = index.read_bytes()
    for bad in (
        b"x" * len(good),
        b"",
        good[:9] + b"\x07" + good[10:],
        good[:17] + b"\x05" + good[18:],
    ):
        index.write_bytes(bad)
        with pytest.raises(UserError, match=r"tokens\.idx is damaged or foreign"):
            Corpus.open(corpus.folder)
    index.write_bytes(good)
    (corpus.folder / "corpus.json").write_text('{"version": 1}')
    with pytest.raises(UserError, match="does not say its bytes"):
        Corpus.open(corpus.folder)


def test_another_tokenizer_is_noticed(corpus: Corpus) -> None:
    train([], kind="byte", vocab=0, lowercase=True).save(corpus.folder / "tokenizer")
    with pytest.raises(UserError, match="not the one that made this corpus"):
        corpus.tokenizer()
