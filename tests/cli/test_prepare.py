"""`kinfolk prepare` writes a corpus and tells what is in it."""

import gzip
import json
from pathlib import Path

import pytest

from kinfolk.data.shards import Corpus
from little import Home, Kinfolk, tree


def test_what_is_told_is_what_is_there(kinfolk: Kinfolk, home: Home, tmp_path: Path) -> None:
    said = kinfolk(
        "prepare", home.text, "--tokenizer", home.tokenizer, "-o", tmp_path / "c", "--json"
    )
    assert (said.code, said.err) == (0, "")
    corpus = Corpus.open(tmp_path / "c")
    blocks = home.text.read_text(encoding="utf-8").strip().split("\n\n")
    assert json.loads(said.out) == {
        "folder": str(tmp_path / "c"),
        "documents": len(blocks),
        "tokens": corpus.tokens,
        "bytes": sum(len(block.encode()) for block in blocks),
    }
    tokenizer = corpus.tokenizer()
    assert [tokenizer.decode(corpus.document(i)) for i in range(corpus.documents)] == blocks


def test_a_part_can_be_held_out(kinfolk: Kinfolk, home: Home, tmp_path: Path) -> None:
    kinfolk(
        "prepare", home.text, "--tokenizer", home.tokenizer, "-o", tmp_path / "c", "--holdout", 0.2
    )
    assert tree(tmp_path / "c") == tree(home.corpus)
    kept, held = Corpus.open(tmp_path / "c"), Corpus.open(tmp_path / "c" / "holdout")
    assert kept.documents + held.documents == 80
    assert 4 < held.documents < 40


@pytest.mark.parametrize(
    "source", ["tokenizer", "corpus", "runs/gpt2", "runs/bert/checkpoints/last"]
)
def test_the_tokenizer_may_come_from_anywhere(
    source: str, kinfolk: Kinfolk, home: Home, runs: dict[str, Path], tmp_path: Path
) -> None:
    said = kinfolk("prepare", home.text, "--tokenizer", home.folder / source, "-o", tmp_path / "c")
    assert said.code == 0
    assert f" in {tmp_path / 'c'}\n" in said.out
    assert Corpus.open(tmp_path / "c").tokenizer_hash == Corpus.open(home.corpus).tokenizer_hash


def test_files_folders_and_compressed_text_are_read(
    kinfolk: Kinfolk, home: Home, tmp_path: Path
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_text("The cat.\n\nA dog.", encoding="utf-8")
    with gzip.open(tmp_path / "b.txt.gz", "wt", encoding="utf-8") as file:
        file.write("The king.\n\nAgain.")
    said = kinfolk(
        *("prepare", tmp_path / "in", tmp_path / "b.txt.gz", "--per", "file", "--json"),
        *("--tokenizer", home.tokenizer, "-o", tmp_path / "c"),
    )
    assert json.loads(said.out)["documents"] == 2
