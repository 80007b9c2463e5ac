"""A corpus gives back what was written, and says what is wrong with its files."""

import json
import pickle
import struct
import tempfile
import tracemalloc
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kinfolk.data import corpus as corpora
from kinfolk.data.corpus import Corpus, CorpusWriter, EncodedDocuments
from kinfolk.errors import UserError
from kinfolk.files import sha256
from kinfolk.text import Tokenizer, train_tokenizer

TOKENIZER = train_tokenizer([], kind="byte", vocab_size=0)
DOCUMENTS = [[[110, 111, 112], [113]], [[200]], [], [[361, 0], [5, 6, 7], [8]]]


def write(
    folder: Path,
    documents: list[list[list[int]]],
    tokenizer: Tokenizer = TOKENIZER,
    words: str | None = None,
) -> None:
    """Write documents one by one; a token begins a word where its id is even."""
    with CorpusWriter(folder, tokenizer, words=words) as writer:
        for i, document in enumerate(documents):
            ids = [token for sentence in document for token in sentence]
            lengths = np.array([len(sentence) for sentence in document], np.int32)
            sizes, marks = np.array([10 + i]), np.array(ids, np.int64) % 2 == 0
            encoded = EncodedDocuments(
                np.array(ids), lengths, np.array([len(document)]), sizes, marks
            )
            writer.add(encoded, ["a.txt"])
    for part in folder.glob("*.part"):
        part.unlink()


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    write(tmp_path / "corpus", DOCUMENTS)
    return Corpus.open(tmp_path / "corpus")


def test_a_corpus_gives_back_what_was_written(corpus: Corpus) -> None:
    flat = [[token for sentence in document for token in sentence] for document in DOCUMENTS]
    assert [corpus.document(i).tolist() for i in range(corpus.documents)] == flat
    assert corpus.starts.tolist() == [0, 4, 5, 5, 11]
    assert corpus.starts.dtype == np.int64
    assert (corpus.documents, corpus.tokens, corpus.bytes) == (4, 11, 46)
    assert corpus.ids(2, 6).tolist() == [112, 113, 200, 361]
    assert corpus.ids(2, 6).dtype == np.int64
    assert corpus.vocab_size == TOKENIZER.vocab_size
    assert corpus.tokenizer().fingerprint == corpus.tokenizer_hash == TOKENIZER.fingerprint
    assert sorted(path.name for path in corpus.folder.iterdir()) == [
        "corpus.json", "tokenizer", "tokens.bin", "tokens.idx"
    ]  # fmt: skip


def test_the_card_says_what_is_inside(corpus: Corpus) -> None:
    assert json.loads((corpus.folder / "corpus.json").read_text()) == {
        "version": 2,
        "documents": 4,
        "sentences": 6,
        "tokens": 11,
        "bytes": 46,
        "vocab": 362,
        "tokenizer_hash": TOKENIZER.fingerprint,
        "words": None,
        "left_out": {},
        "skipped_files": {},
        "sources": [{"path": "a.txt", "documents": 4, "bytes": 46}],
        "sha256": {name: sha256(corpus.folder / name) for name in ("tokens.idx", "tokens.bin")},
    }


CODES = {1: "u1", 2: "i1", 3: "<i2", 4: "<i4", 5: "<i8", 6: "<f8", 7: "<f4", 8: "<u2"}


class Megatron:
    """Read a pair of files by the layout that Megatron-LM publishes, with nothing of ours.

    megatron/core/datasets/indexed_dataset.py: 9 bytes of magic, <Q version, <B code of the type,
    <Q sequences, <Q document indices; then int32 lengths, int64 pointers (in bytes) and int64
    document indices.
    """

    def __init__(self, prefix: Path) -> None:
        data = prefix.with_suffix(".idx").read_bytes()
        assert data[:9] == b"MMIDIDX\x00\x00"
        version, code, sequences, documents = struct.unpack_from("<QBQQ", data, 9)
        assert version == 1
        self.type = np.dtype(CODES[code])
        self.lengths = np.frombuffer(data, "<i4", sequences, 34)
        self.pointers = np.frombuffer(data, "<i8", sequences, 34 + self.lengths.nbytes)
        at = 34 + self.lengths.nbytes + self.pointers.nbytes
        self.documents = np.frombuffer(data, "<i8", documents, at)
        assert at + self.documents.nbytes == len(data)
        self.bin = prefix.with_suffix(".bin").read_bytes()

    def sequence(self, i: int) -> list[int]:
        found = np.frombuffer(self.bin, self.type, int(self.lengths[i]), int(self.pointers[i]))
        return [int(token) for token in found]

    def all(self) -> list[list[list[int]]]:
        bounds = pairwise(self.documents.tolist())
        return [[self.sequence(i) for i in range(first, last)] for first, last in bounds]


SENTENCES = st.lists(st.integers(0, TOKENIZER.vocab_size - 1), min_size=1, max_size=5)


@given(documents=st.lists(st.lists(SENTENCES, max_size=4), max_size=6))
@settings(max_examples=25)
def test_megatron_reads_what_was_written(documents: list[list[list[int]]]) -> None:
    with tempfile.TemporaryDirectory() as name:
        write(Path(name), documents)
        assert Megatron(Path(name) / "tokens").all() == documents


@given(
    documents=st.lists(st.lists(SENTENCES, max_size=4), max_size=9),
    size=st.integers(1, 7),
    group=st.integers(1, 4),
    stop=st.integers(0, 9),
)
@settings(max_examples=60)
def test_blocks_hold_the_first_documents_and_their_ends(
    documents: list[list[list[int]]], size: int, group: int, stop: int
) -> None:
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        patch.setattr(corpora, "BATCH_NUMBERS", size)
        patch.setattr(corpora, "BATCH_DOCUMENTS", group)
        write(Path(name), documents)
        found: list[list[int]] = [[]]
        for ids, ends in Corpus.open(name).blocks(min(stop, len(documents))):
            assert len(ids) <= size
            for part in np.split(ids, ends)[:-1]:
                found[-1] += part.tolist()
                found.append([])
            found[-1] += ids[ends[-1] if len(ends) else 0 :].tolist()
        flat = [[token for sentence in one for token in sentence] for one in documents]
        assert found == [*flat[:stop], []]


def test_the_index_is_megatrons(corpus: Corpus) -> None:
    read = Megatron(corpus.folder / "tokens")
    assert read.type == np.uint16
    assert read.lengths.tolist() == [3, 1, 1, 2, 3, 1]
    assert read.pointers.tolist() == [0, 6, 8, 10, 14, 20]
    assert read.documents.tolist() == [0, 2, 3, 3, 6]
    assert read.all() == DOCUMENTS


@given(data=st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_words_are_a_bit_a_token(tmp_path: Path, data: st.DataObject) -> None:
    folder = tmp_path / "words"
    if not folder.exists():
        write(folder, [*DOCUMENTS, *DOCUMENTS], words="spaces")
    corpus = Corpus.open(folder)
    assert (folder / "words.bin").stat().st_size == 3  # 22 tokens
    start = data.draw(st.integers(0, corpus.tokens))
    stop = data.draw(st.integers(start, corpus.tokens))
    assert corpus.words(start, stop).tolist() == (corpus.ids(start, stop) % 2 == 0).tolist()
    assert corpus.words(start, stop).dtype == np.bool_


def test_a_corpus_without_words_says_so(corpus: Corpus, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has no word boundaries: prepare it with --words"):
        corpus.words(0, 3)
    write(tmp_path / "words", DOCUMENTS, words="spaces")
    (tmp_path / "words" / "words.bin").unlink()
    with pytest.raises(UserError, match=r"words\.bin is corrupt"):
        Corpus.open(tmp_path / "words")


def test_sizes_are_the_least(corpus: Corpus) -> None:
    sizes = {file.name: file.stat().st_size for file in corpus.folder.glob("*.*")}
    assert sizes["tokens.bin"] == 2 * 11
    assert sizes["tokens.idx"] == 34 + 12 * 6 + 8 * 5


def test_counts_add_up(corpus: Corpus) -> None:
    counts = corpus.token_counts()
    assert len(counts) == corpus.vocab_size
    assert counts.sum() == corpus.tokens
    assert (counts[361], counts[50]) == (1, 0)


@given(data=st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_sentences_fill_any_slice(corpus: Corpus, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, corpus.tokens))
    stop = data.draw(st.integers(start, corpus.tokens))
    owner = [i for i, n in enumerate([3, 1, 1, 2, 3, 1]) for _ in range(n)][start:stop]
    assert corpus.sentences(start, stop).tolist() == [owner.count(i) for i in sorted(set(owner))]


def test_the_index_is_not_copied_to_find_a_sentence(tmp_path: Path) -> None:
    """It lies at odd addresses, where numpy's search makes a copy of all of it, at every call."""
    write(tmp_path / "corpus", [[[110]] * 50_000])
    corpus = Corpus.open(tmp_path / "corpus")
    tracemalloc.start()
    assert corpus.sentences(40_000, 40_003).tolist() == [1, 1, 1]
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 50_000


def test_pickling_opens_the_files_again(corpus: Corpus) -> None:
    twin = pickle.loads(pickle.dumps(corpus))
    assert len(pickle.dumps(corpus)) < 500
    assert twin.ids(0, 11).tolist() == corpus.ids(0, 11).tolist()


def test_large_vocabularies_take_four_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = pickle.loads(pickle.dumps(TOKENIZER))
    monkeypatch.setattr(tokenizer, "vocab_size", 70_000)
    write(tmp_path / "corpus", [[[69_999, 1]]], tokenizer)
    assert (tmp_path / "corpus" / "tokens.bin").stat().st_size == 8
    assert Corpus.open(tmp_path / "corpus").document(0).tolist() == [69_999, 1]


@pytest.mark.parametrize("name", ["tokens.bin", "tokens.idx", "corpus.json"])
def test_missing_and_cut_files_are_named(corpus: Corpus, name: str) -> None:
    file = corpus.folder / name
    file.write_bytes(file.read_bytes()[:-3])
    with pytest.raises(UserError, match=rf"{name} is corrupt"):
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
        with pytest.raises(UserError, match=r"tokens\.idx is corrupt"):
            Corpus.open(corpus.folder)
    index.write_bytes(good)
    (corpus.folder / "corpus.json").write_text('{"version": 1}')
    with pytest.raises(UserError, match="it has format 1, and only 2 is supported"):
        Corpus.open(corpus.folder)
    (corpus.folder / "corpus.json").write_text('{"version": 2}')
    with pytest.raises(UserError, match="has no bytes"):
        Corpus.open(corpus.folder)


def test_another_tokenizer_is_noticed(corpus: Corpus) -> None:
    train_tokenizer([], kind="byte", vocab_size=0, lowercase=True).save(corpus.folder / "tokenizer")
    with pytest.raises(UserError, match="not the tokenizer of this corpus"):
        corpus.tokenizer()


@pytest.mark.parametrize(
    ("name", "value"),
    [("tokens", "x"), ("tokens", None), ("documents", -1), ("vocab", 2.5), ("tokenizer_hash", 7)],
)
def test_a_card_with_values_of_the_wrong_kind_is_refused(
    corpus: Corpus, name: str, value: object
) -> None:
    file = corpus.folder / "corpus.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), name: value}))
    with pytest.raises(UserError, match=rf"corpus\.json is corrupt: its {name} is "):
        Corpus.open(corpus.folder)
