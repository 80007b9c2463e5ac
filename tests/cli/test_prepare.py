"""`kinfolk prepare` writes a corpus and tells what is in it."""

import gzip
import io
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kinfolk.data import dedup
from kinfolk.data.corpus import Corpus
from kinfolk.text.tokenizer import Tokenizer
from support.runs import Home, Kinfolk, one_sentence, tree


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
        "left_out": {"empty": 0},
        "skipped_files": {},
    }
    tokenizer = corpus.tokenizer()
    assert [tokenizer.decode(corpus.document(i)) for i in range(corpus.documents)] == blocks


def test_characters_of_several_tokens_are_pointed_out(kinfolk: Kinfolk, tmp_path: Path) -> None:
    words = [chr(0x4E00 + n % 900) + chr(0x4E00 + 7 * n % 900) for n in range(4000)]
    text = tmp_path / "zh.txt"
    text.write_text("\n\n".join("".join(words[n : n + 40]) for n in range(0, 4000, 40)))
    said = {}
    for size in (400, 1500):
        tokenizer = tmp_path / f"tok{size}"
        train = ("tokenizer", "train", text, "--vocab-size", size, "-o", tokenizer)
        assert kinfolk(*train).code == 0
        said[size] = kinfolk("prepare", text, "--tokenizer", tokenizer, "-o", tmp_path / f"c{size}")
    assert "a character takes 1.9 tokens, so that" in said[400].err
    assert "tokenizer with a larger --vocab-size" in said[400].err
    assert "a character takes" not in said[1500].err


def test_of_a_long_document_the_beginning_is_read(
    kinfolk: Kinfolk, home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decode, sizes = Tokenizer.decode, list[int]()

    def counted(tokenizer: Tokenizer, ids: Any, **settings: Any) -> str:
        sizes.append(len(ids))
        return decode(tokenizer, ids, **settings)

    monkeypatch.setattr(Tokenizer, "decode", counted)
    (tmp_path / "long.txt").write_text("The cat sat on the mat. " * 2000, encoding="utf-8")
    out = tmp_path / "c"
    assert (
        kinfolk("prepare", tmp_path / "long.txt", "--tokenizer", home.tokenizer, "-o", out).code
        == 0
    )
    assert Corpus.open(out).tokens > 2000 and sizes == [1000]


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


@pytest.mark.parametrize("share", ["0.2", "20%", "20.0%"])
def test_a_share_may_be_in_percent(
    share: str, kinfolk: Kinfolk, home: Home, tmp_path: Path
) -> None:
    said = kinfolk(
        *("prepare", home.text, "--tokenizer", home.tokenizer, "-o", tmp_path / "c"),
        *("--holdout", share),
    )
    assert said.code == 0
    assert tree(tmp_path / "c") == tree(home.corpus)


@pytest.mark.parametrize("share", ["some", "%", "100%", "-1%", "nan"])
def test_what_is_no_share_is_refused(
    share: str, kinfolk: Kinfolk, home: Home, tmp_path: Path
) -> None:
    said = kinfolk(
        *("prepare", home.text, "--tokenizer", home.tokenizer, "-o", tmp_path / "c"),
        f"--holdout={share}",
    )
    assert said.code == 2
    rule = "it must be a fraction from 0 to less than 1, e.g. 0.005 or 0.5%"
    assert f"holdout {share}: {rule}" in said.sentence
    assert not list(tmp_path.iterdir())


def test_the_room_it_needs_is_said(kinfolk: Kinfolk, home: Home, tmp_path: Path) -> None:
    said = kinfolk("prepare", home.text, "--tokenizer", home.tokenizer, "-o", tmp_path / "c")
    assert said.err.startswith("the corpus needs about ")
    assert said.err.count("\n") == 1


def test_text_may_come_from_elsewhere(
    kinfolk: Kinfolk, home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"The cat.\n\nA dog.")))
    said = kinfolk("prepare", "-", "--tokenizer", home.tokenizer, "-o", tmp_path / "c")
    assert "can be read only once" in said.err
    assert said.out.startswith("corpus: 2 documents, ")


def test_all_options_reach_the_corpus(kinfolk: Kinfolk, home: Home, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"body": "The cat."}\n{"body": "The cat."}\n')
    (tmp_path / "b.tsv").write_text("id\tbody\n1\tA dog.\n")
    (tmp_path / "test.txt").write_text(" ".join(f"w{i}" for i in range(20)))
    said = kinfolk(
        *("prepare", tmp_path / "a.jsonl", tmp_path / "b.tsv", "--tokenizer", home.tokenizer),
        *("--field", "body", "--column", "body", "--words", "spaces", "--dedup", "exact"),
        *("--decontaminate", tmp_path / "test.txt", "-o", tmp_path / "c", "--json"),
    )
    assert (said.code, said.err) == (0, "")
    assert json.loads(said.out)["documents"] == 2
    corpus = Corpus.open(tmp_path / "c")
    assert corpus.words(0, corpus.tokens).sum() == 6
    left_out = {"empty": 0, "exact duplicate": 1, "contaminated": 0}
    assert json.loads(said.out)["left_out"] == left_out
    (dropped,) = (tmp_path / "c" / "dropped.jsonl").read_text().splitlines()
    assert json.loads(dropped)["same_as"] == {
        "source": str(tmp_path / "a.jsonl"),
        "source_line": 1,
    }


def test_skipped_files_are_printed_and_strict_fails(
    kinfolk: Kinfolk, home: Home, tmp_path: Path
) -> None:
    notes = tmp_path / "notes"
    notes.mkdir()
    (notes / "diary 2024.01.05").write_text("The cat.")
    (notes / "photo.jpg").write_bytes(b"\xff\xd8\xff\0")
    arguments = ("prepare", notes, "--tokenizer", home.tokenizer, "-o", tmp_path / "c")
    said = kinfolk(*arguments, "--strict")
    assert said.code == 2
    assert (
        "1 file would be left out with --strict: 1 not text in UTF-8 (photo.jpg)" in said.sentence
    )
    assert not (tmp_path / "c").exists()
    said = kinfolk(*arguments)
    assert "skipped 1 file: 1 not text in UTF-8 (photo.jpg)" in said.err
    assert said.out.startswith("corpus: 1 documents")
    assert f"listed in {tmp_path / 'c'}/dropped.jsonl" in said.out


@pytest.mark.parametrize(
    ("limit", "value", "expected"),
    [
        ("MAX_EVALUATION_FILES", 5, "has more than 5 files: name the files, or a folder with"),
        ("MAX_EVALUATION_BYTES", 100, "evaluation files of 330 bytes are more than the 100 whose"),
    ],
)
@pytest.mark.parametrize("where", ["tests", "../tests", "tests/a/../.."])
def test_a_folder_with_too_much_to_decontaminate_with_is_one_sentence(
    where: str,
    limit: str,
    value: int,
    expected: str,
    kinfolk: Kinfolk,
    home: Home,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    inner = tmp_path / "tests" / "a"
    inner.mkdir(parents=True)
    (inner / "up").symlink_to(tmp_path)
    for number in range(30):
        (inner / f"{number}.json").write_text('"some text"')
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here" if where.startswith("..") else tmp_path)
    monkeypatch.setattr(dedup, limit, value)
    monkeypatch.setattr(dedup, "read_leniently", None)  # before a file is read
    start = time.process_time()
    said = kinfolk(
        *("prepare", home.text, "--tokenizer", home.tokenizer),
        *("--decontaminate", where, "-o", tmp_path / "c"),
    )
    sentence = one_sentence(said)
    assert expected in sentence and where in sentence
    assert time.process_time() - start < 2
    assert not list(tmp_path.glob("c*"))


def test_the_files_of_a_large_folder_are_not_all_listed(
    kinfolk: Kinfolk, home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(30):
        (tmp_path / "tests" / str(number)).mkdir(parents=True)
        (tmp_path / "tests" / str(number) / "a.txt").write_text("some text")
    walked = []
    walk = os.walk

    def watched(top: Path, **options: Any) -> Iterator[Any]:
        for found in walk(top, **options):
            walked.append(found[0])
            yield found

    monkeypatch.setattr(os, "walk", watched)
    monkeypatch.setattr(dedup, "MAX_EVALUATION_FILES", 5)
    said = kinfolk(
        *("prepare", home.text, "--tokenizer", home.tokenizer),
        *("--decontaminate", tmp_path / "tests", "-o", tmp_path / "c"),
    )
    assert "has more than 5 files" in one_sentence(said)
    assert len(walked) == 7  # the folder itself and the six files' folders


def test_shards_are_merged(kinfolk: Kinfolk, home: Home, tmp_path: Path) -> None:
    prepare = ("prepare", home.text, "--tokenizer", home.tokenizer, "--holdout", 0.2)
    shards = [tmp_path / "s1", tmp_path / "s2"]
    for number, shard in enumerate(shards, 1):
        said = kinfolk(*prepare, "--shard", f"{number}/2", "-o", shard)
        assert said.code == 0
        assert said.out.startswith(f"shard {number}/2: ")
    said = kinfolk("merge", *shards, "-o", tmp_path / "c")
    assert said.code == 0
    assert "held out: " in said.out
    assert tree(tmp_path / "c") == tree(home.corpus)
    said = kinfolk("merge", *shards, "-o", tmp_path / "d", "--json")
    assert json.loads(said.out)["documents"] == Corpus.open(home.corpus).documents
    said = kinfolk("merge", shards[1], "-o", tmp_path / "e")
    assert (said.code, said.out) == (2, "")
    assert "1 of 2 shards is missing (1)" in one_sentence(said)
