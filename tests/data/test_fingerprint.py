"""The fingerprint of a corpus: other text has another, and the same text has the same anywhere."""

import json
import shutil
from pathlib import Path

import pytest

from kinfolk.data.corpus import Corpus, corpus_fingerprint
from kinfolk.data.prepare import prepare
from kinfolk.errors import UserError
from kinfolk.files import sha256
from kinfolk.text import train_tokenizer
from support.runs import text

FILES = ["tokens.bin", "tokens.idx", "words.bin", "holdout/tokens.bin", "holdout/tokens.idx"]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("prints")
    (folder / "text.txt").write_text(text(), encoding="utf-8")
    tokenizer = train_tokenizer([text()], kind="bpe", vocab_size=400)
    source, out = folder / "text.txt", folder / "corpus"
    prepare([source], tokenizer=tokenizer, out=out, holdout=0.2, word_boundaries="spaces")
    return out


@pytest.fixture
def copy(corpus: Path, tmp_path: Path) -> Path:
    return shutil.copytree(corpus, tmp_path / "copy")


def flip(file: Path, share: float) -> None:
    content = bytearray(file.read_bytes())
    content[int(share * len(content))] ^= 1
    file.write_bytes(content)


def without_checksums(corpus: Path) -> None:
    """Make it a corpus of a version that kept none."""
    for file in (corpus / "corpus.json", corpus / "holdout" / "corpus.json"):
        metadata = json.loads(file.read_text(encoding="utf-8"))
        del metadata["sha256"]
        file.write_text(json.dumps(metadata), encoding="utf-8")


def test_a_copy_is_the_same_text(corpus: Path, copy: Path) -> None:
    assert corpus_fingerprint(copy) == corpus_fingerprint(corpus)


def test_prepare_keeps_the_checksum_of_every_file(corpus: Path) -> None:
    for folder in (corpus, corpus / "holdout"):
        saved = json.loads((folder / "corpus.json").read_text(encoding="utf-8"))["sha256"]
        assert saved.keys() == {"tokens.bin", "tokens.idx", "words.bin"}
        assert saved == {name: sha256(folder / name) for name in saved}


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("share", [0.0, 0.37, 0.9999])
def test_a_flipped_bit_anywhere_is_refused(name: str, share: float, copy: Path) -> None:
    flip(copy / name, share)
    with pytest.raises(UserError, match=f"{name} is corrupt: it differs from its checksum"):
        corpus_fingerprint(copy)


@pytest.mark.parametrize("name", FILES)
def test_a_corpus_without_checksums_opens_and_has_another_fingerprint_when_it_changes(
    name: str, corpus: Path, copy: Path
) -> None:
    without_checksums(copy)
    assert Corpus.open(copy).documents == Corpus.open(corpus).documents
    assert corpus_fingerprint(copy) == corpus_fingerprint(corpus)
    flip(copy / name, 0.37)
    assert corpus_fingerprint(copy) != corpus_fingerprint(corpus)


def test_a_holdout_gone_shows(corpus: Path, copy: Path) -> None:
    shutil.rmtree(copy / "holdout")
    assert corpus_fingerprint(copy) != corpus_fingerprint(corpus)


def test_checksums_of_another_type_are_refused(copy: Path) -> None:
    metadata = json.loads((copy / "corpus.json").read_text(encoding="utf-8"))
    (copy / "corpus.json").write_text(json.dumps(metadata | {"sha256": [1]}), encoding="utf-8")
    with pytest.raises(UserError, match=r"corpus.json is corrupt: its sha256 is \[1\]"):
        Corpus.open(copy)
