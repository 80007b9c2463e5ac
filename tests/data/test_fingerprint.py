"""The fingerprint of a corpus: other text has another, and the same text has the same anywhere."""

import shutil
from pathlib import Path

import pytest

from kinfolk.data.corpus import NUM_SAMPLES, SAMPLE_BYTES, corpus_fingerprint
from kinfolk.data.prepare import prepare
from kinfolk.text import train_tokenizer
from support.runs import text


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("prints")
    (folder / "text.txt").write_text(text(), encoding="utf-8")
    tokenizer = train_tokenizer([text()], kind="byte", vocab_size=0)
    prepare([folder / "text.txt"], tokenizer=tokenizer, out=folder / "corpus", holdout=0.2)
    return folder / "corpus"


def test_a_copy_is_the_same_text(corpus: Path, tmp_path: Path) -> None:
    assert corpus_fingerprint(shutil.copytree(corpus, tmp_path / "copy")) == corpus_fingerprint(
        corpus
    )


@pytest.mark.parametrize(
    "name", ["tokens.bin", "tokens.idx", "holdout/tokens.bin", "holdout/tokens.idx"]
)
@pytest.mark.parametrize("share", [0.0, 0.5, 0.9999])
def test_a_byte_changed_anywhere_in_a_small_corpus_shows(
    name: str, share: float, corpus: Path, tmp_path: Path
) -> None:
    copy = shutil.copytree(corpus, tmp_path / "copy")
    content = bytearray((copy / name).read_bytes())
    content[int(share * len(content))] ^= 1
    (copy / name).write_bytes(content)
    assert corpus_fingerprint(copy) != corpus_fingerprint(corpus)


def test_a_holdout_gone_shows(corpus: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(corpus, tmp_path / "copy")
    shutil.rmtree(copy / "holdout")
    assert corpus_fingerprint(copy) != corpus_fingerprint(corpus)


def test_a_large_file_is_read_in_stretches_from_its_first_byte_to_its_last(tmp_path: Path) -> None:
    size = 3 * NUM_SAMPLES * SAMPLE_BYTES
    with (tmp_path / "tokens.bin").open("wb") as file:
        file.truncate(size)
    before = corpus_fingerprint(tmp_path)
    for place in (0, 2 * SAMPLE_BYTES, size - 1):
        with (tmp_path / "tokens.bin").open("r+b") as file:
            file.seek(place)
            file.write(b"x")
        after = corpus_fingerprint(tmp_path)
        assert (after != before) == (place != 2 * SAMPLE_BYTES)  # between two stretches
        before = after
