"""Shards of any number, merged, are the bytes that one preparation of all the text writes."""

import gzip
import json
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kinfolk.data import corpus as corpus_module
from kinfolk.data import documents as documents_module
from kinfolk.data import files as files_module
from kinfolk.data import shards as module
from kinfolk.data.corpus import Corpus
from kinfolk.data.documents import Document, ReadOptions, read_files
from kinfolk.data.files import file_sizes
from kinfolk.data.merge import merge_shards
from kinfolk.data.prepare import prepare
from kinfolk.data.shards import Shard
from kinfolk.errors import UserError
from kinfolk.text import train_tokenizer
from support import killed_prepare
from support.runs import text as made_up
from support.runs import tree

BYTE = train_tokenizer([], kind="byte", vocab_size=0)
CHAR = train_tokenizer([made_up()], kind="char", vocab_size=150)


@pytest.fixture(autouse=True, scope="module")
def quick() -> Iterator[None]:
    """Do not wait for the disk, whose power does not fail here; copy few documents at once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda handle: None)
        patch.setattr(corpus_module, "BATCH_DOCUMENTS", 5)
        patch.setattr(corpus_module, "BATCH_SENTENCES", 3)
        yield


def prepare_shards(files: Sequence[Path], folder: Path, count: int, **options: Any) -> list[Path]:
    shards = [folder / f"c.shard-{number}" for number in range(1, count + 1)]
    for number, out in enumerate(shards, 1):
        prepare(files, BYTE, out, shard=f"{number}/{count}", **options)
    return shards


def outcome(make: Any, out: Path) -> dict[str, bytes] | str:
    """Return the files of a corpus, or the error that kept it from being written."""
    try:
        make()
    except UserError as error:
        assert not out.exists()
        return str(error)
    return tree(out)


def same_as_one(files: Sequence[Path], folder: Path, count: int, **options: Any) -> None:
    whole = outcome(lambda: prepare(files, BYTE, folder / "whole", **options), folder / "whole")

    def merged() -> None:
        shards = prepare_shards(files, folder, count, **options)
        merge_shards(shards[::-1], folder / "merged")

    assert outcome(merged, folder / "merged") == whole


PARTS = ["a", "bc d.", "好。", "\u3000", " ", "\n", "\n\n", "\r\n", "\n \n", "\t", "\ufeff", "\x85"]
TEXTS = st.lists(st.sampled_from(PARTS), max_size=30).map("".join)
ROWS = st.lists(TEXTS, max_size=6)


@st.composite
def written(draw: st.DrawFn) -> dict[str, bytes]:
    """Draw files by their names: text in blocks, JSON lines and tables, some of them compressed."""
    files = {}
    for number, kind in enumerate(draw(st.lists(st.sampled_from(KINDS), min_size=1, max_size=4))):
        if kind.startswith("txt"):
            data = draw(TEXTS).encode()
        elif kind.startswith("jsonl"):
            blank = draw(st.sampled_from(["", "\n", "\r\n \n"]))
            data = "".join(f"{json.dumps({'text': row})}\n{blank}" for row in draw(ROWS)).encode()
        else:
            rows = [row.replace("\n", " ").replace("\t", " ").strip() for row in draw(ROWS)]
            data = "".join(f"{row}\n" for row in ["text", *rows]).encode()
        files[f"{number}.{kind}"] = gzip.compress(data) if kind.endswith(".gz") else data
    return files


KINDS = ("txt", "txt", "jsonl", "tsv", "txt.gz", "jsonl.gz")
SETTINGS: dict[str, st.SearchStrategy[Any]] = {
    "document": st.sampled_from(["block", "file"]),
    "holdout": st.sampled_from([0.0, 0.4]),
    "dedup": st.sampled_from([None, "exact", "near"]),
    "word_boundaries": st.sampled_from([None, "spaces"]),
}


@given(files=written(), count=st.integers(1, 5), options=st.fixed_dictionaries(SETTINGS))
@settings(max_examples=30)
def test_merged_shards_are_one_corpus(
    files: dict[str, bytes], count: int, options: dict[str, Any]
) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name, "text")
        folder.mkdir()
        for file, data in {**files, "z.txt": b"the last\n\none more\n\n"}.items():
            (folder / file).write_bytes(data)
        same_as_one([folder], Path(name), count, **options)


def documents_of_shards(file: Path, count: int) -> list[list[Document]]:
    options, sizes = ReadOptions(), file_sizes([file])
    parts = [Shard(number, count).parts(sizes, options) for number in range(1, count + 1)]
    return [list(read_files([file], options, parts=part)) for part in parts]


def write(folder: str, name: str, data: bytes) -> Path:
    file = Path(folder, name)
    file.write_bytes(data)
    return file


@given(text=st.lists(st.sampled_from([p for p in PARTS if p != "\ufeff"])), count=st.integers(1, 5))
def test_a_document_belongs_to_the_shard_in_which_it_begins(text: list[str], count: int) -> None:
    data = "".join([*text, "end"]).encode()
    lines = [0, *(at + 1 for at, byte in enumerate(data) if byte == ord("\n"))]
    with tempfile.TemporaryDirectory() as folder:
        file = write(folder, "text.txt", data)
        whole = list(read_files([file], ReadOptions()))
        shards = documents_of_shards(file, count)
    owners = [number for number, shard in enumerate(shards) for _ in shard]
    assert [d.text for shard in shards for d in shard] == [d.text for d in whole]
    for document, owner in zip(whole, owners, strict=True):
        start = lines[document.line - 1]
        assert len(data) * owner // count <= start < len(data) * (owner + 1) // count


LONG = ["a", "b" * 7, "\n\n\ufeffc", "\n", "\n\n", " " * 9, "\n" + " " * 9 + "\n", "\u3000" * 3]


@given(text=st.lists(st.sampled_from(LONG), max_size=30), count=st.integers(2, 5))
@settings(max_examples=400)
def test_white_space_that_is_too_long_for_a_blank_line_is_not_cut(
    text: list[str], count: int
) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(documents_module, "MAX_BLANK_CHARS", 8)
        patch.setattr(module, "MAX_BLANK_CHARS", 8)
        patch.setattr(module, "LINE_BYTES", 2)
        patch.setattr(files_module, "READ_BYTES", 5)
        file = write(folder, "text.txt", "".join([*text, "end"]).encode())
        whole = [document.text for document in read_files([file], ReadOptions())]
        assert [d.text for shard in documents_of_shards(file, count) for d in shard] == whole


def test_a_byte_order_mark_inside_a_file_stays_where_a_shard_begins_with_it(tmp_path: Path) -> None:
    file = write(str(tmp_path), "text.txt", "\ufeffaaaa\n\n\ufeffcccc".encode())
    first, second = documents_of_shards(file, 2)
    assert [document.text for document in first] == ["aaaa"]
    assert [document.text for document in second] == ["\ufeffcccc"]


@pytest.mark.parametrize(
    ("name", "valid"), [("text.txt", b"word\n\n"), ("rows.jsonl", b'{"text": "word"}\n')]
)
def test_an_error_in_a_shard_names_the_byte_from_which_lines_count(
    name: str, valid: bytes, tmp_path: Path
) -> None:
    file = write(str(tmp_path), name, valid * 8 + b"\xff\n")
    prepare([file], BYTE, tmp_path / "1", shard="1/2")
    where = rf"\(lines counted from byte \d+\) is not UTF-8 at byte {8 * len(valid)} "
    with pytest.raises(UserError, match=where):
        prepare([file], BYTE, tmp_path / "2", shard="2/2")


@pytest.fixture
def texts(tmp_path: Path) -> list[Path]:
    """Return two files, in which every document occurs again, and lines are in dropped.jsonl."""
    blocks = made_up(30).split("\n\n")
    first, second = tmp_path / "a.txt", tmp_path / "b.jsonl"
    first.write_text("\n\n".join([*blocks, *blocks[5:25]]), encoding="utf-8")
    rows = [*blocks[20:], "", "  ", *made_up(20, seed=1).split("\n\n")]
    second.write_text("".join(json.dumps({"text": row}) + "\n" for row in rows), encoding="utf-8")
    return [first, second]


@pytest.mark.parametrize("dedup", [None, "exact", "near"])
def test_what_one_preparation_leaves_out_shards_leave_out(
    texts: list[Path], dedup: str | None, tmp_path: Path
) -> None:
    evaluation = tmp_path / "evaluation.txt"
    evaluation.write_text("\n".join(made_up(30).split("\n\n")[3:8]), encoding="utf-8")
    options = {"dedup": dedup, "decontaminate": [evaluation], "holdout": 0.2}
    same_as_one(texts, tmp_path, 4, **options)
    left_out = Corpus.open(tmp_path / "merged").left_out
    assert left_out["empty"] == 2
    assert left_out["contaminated"] >= 5
    assert dedup is None or left_out["exact duplicate"] >= 20
    shards = [Corpus.open(tmp_path / f"c.shard-{n}", shard=True).documents for n in range(1, 5)]
    assert all(shards)


def test_skipped_files_are_listed_once(tmp_path: Path) -> None:
    folder = tmp_path / "text"
    folder.mkdir()
    for name in ("a.txt", "b.txt", "c.py", "d.html"):
        (folder / name).write_text(made_up(5, seed=ord(name[0])), encoding="utf-8")
    same_as_one([folder], tmp_path, 3)
    assert Corpus.open(tmp_path / "merged").skipped_files
    assert (tmp_path / "merged" / "dropped.jsonl").read_text(encoding="utf-8").count("\n") == 2


def test_a_shard_is_no_corpus(texts: list[Path], tmp_path: Path) -> None:
    shards = prepare_shards(texts, tmp_path, 2)
    with pytest.raises(UserError, match=r"is a shard of a corpus: .* kinfolk merge"):
        Corpus.open(shards[0])


@pytest.mark.parametrize(
    ("shard", "reason"),
    [("0/2", "must be i/n"), ("3/2", "must be i/n"), ("2", "must be i/n"), ("1/0", "must be i/n")],
)
def test_a_shard_has_a_number_and_a_count(
    shard: str, reason: str, texts: list[Path], tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=reason):
        prepare(texts, BYTE, tmp_path / "c", shard=shard)
    assert not (tmp_path / "c").exists()


def test_the_standard_input_has_no_shards(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="- has no size before it is read"):
        prepare(["-"], BYTE, tmp_path / "c", shard="1/2")


def refused(shards: Sequence[Path], out: Path) -> str:
    """Return the one sentence with which a merge is refused, after which nothing is there."""
    before = sorted(out.parent.iterdir())
    with pytest.raises(UserError) as caught:
        merge_shards(shards, out)
    assert sorted(out.parent.iterdir()) == before
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_missing_and_repeated_shards_are_refused(texts: list[Path], tmp_path: Path) -> None:
    one, two, three = prepare_shards(texts, tmp_path, 3)
    out = tmp_path / "merged"
    assert "1 of 3 shards is missing (2)" in refused([three, one], out)
    assert "2 of 3 shards are missing (1, 3)" in refused([two], out)
    shutil.copytree(two, tmp_path / "copy")
    assert "are both shard 2 of 3" in refused([one, two, tmp_path / "copy", three], out)
    assert "are both shard 2 of 3" in refused([one, two, two, three], out)
    assert "does not exist" in refused([one, two, tmp_path / "none"], out)
    assert "is no shard" in refused([one, two, tmp_path], out)
    assert "no shards" in refused([], out)


def test_shards_of_other_corpora_are_refused(texts: list[Path], tmp_path: Path) -> None:
    one, two = prepare_shards(texts, tmp_path, 2)
    other, out = tmp_path / "other", tmp_path / "merged"
    differences: dict[str, dict[str, Any]] = {
        "is one of 2 shards and .* one of 3": {"shard": "2/3"},
        "different --holdout": {"holdout": 0.3},
        "different --dedup": {"dedup": "exact"},
        "different --word-boundaries": {"word_boundaries": "spaces"},
        "different --document": {"document": "file"},
        "different input files": {"files": texts[::-1]},
        "different tokenizers": {"tokenizer": CHAR},
    }
    for sentence, changed in differences.items():
        options = {"files": texts, "tokenizer": BYTE, "shard": "2/2", **changed}
        prepare(out=other, **options)
        with pytest.raises(UserError, match=sentence):
            merge_shards([one, other], out)
        shutil.rmtree(other)
    texts[0].write_text("new " + texts[0].read_text(encoding="utf-8"), encoding="utf-8")
    prepare(texts, BYTE, other, shard="2/2")
    assert "different input files" in refused([one, other], out)
    assert merge_shards([two, one], out).documents


def test_a_file_that_changed_between_shards_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "text.txt"
    file.write_text("aa\n\nbb\n\ncc\n\ndd\n\nee\n", encoding="utf-8")
    prepare([file], BYTE, tmp_path / "1", shard="1/2")
    file.write_text("aa\n\nbb\n\nccc\ndd\n\nee\n", encoding="utf-8")
    prepare([file], BYTE, tmp_path / "2", shard="2/2")
    found = refused([tmp_path / "1", tmp_path / "2"], tmp_path / "merged")
    assert "text.txt was cut at different places" in found


@pytest.mark.parametrize(
    "name", ["tokens.bin", "tokens.idx", "holdout/tokens.bin", "dropped.jsonl"]
)
def test_a_damaged_shard_is_refused(name: str, texts: list[Path], tmp_path: Path) -> None:
    one, two = prepare_shards(texts, tmp_path, 2, holdout=0.3)
    data = bytearray((two / name).read_bytes())
    data[-1] ^= 1
    (two / name).write_bytes(data)
    assert f"{two / name} " in refused([one, two], tmp_path / "merged")
    (two / "shard.json").write_text("{}", encoding="utf-8")
    assert "shard.json is corrupt" in refused([one, two], tmp_path / "merged")


def test_a_corpus_is_not_overwritten(texts: list[Path], tmp_path: Path) -> None:
    shards = prepare_shards(texts, tmp_path, 2)
    merge_shards(shards, tmp_path / "merged")
    assert "already a corpus" in refused(shards, tmp_path / "merged")


def doomed_shard(text: Path, out: Path) -> None:
    from kinfolk.data.corpus import CorpusWriter

    killed_prepare.dying(CorpusWriter, "add", 5)
    killed_prepare.go(text, out, shard="2/2")


def doomed_merge(shards: list[Path], out: Path, place: str, call: int) -> None:
    from kinfolk.data.corpus import CorpusWriter

    owner: Any = {"append": CorpusWriter, "_finish": CorpusWriter, "rename": Path}[place]
    killed_prepare.dying(owner, place, call)
    merge_shards(shards, out)


def test_a_killed_shard_is_not_complete_and_resumes(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text(made_up(80), encoding="utf-8")
    killed_prepare.go(text, tmp_path / "whole")
    one, two = tmp_path / "1", tmp_path / "2"
    killed_prepare.go(text, one, shard="1/2")
    assert killed_prepare.run(doomed_shard, text, two) == -signal.SIGKILL
    assert "2 is not complete: repeat" in refused([one, two], tmp_path / "merged")
    said: list[str] = []
    killed_prepare.go(text, two, shard="2/2", on_message=said.append)
    assert any(sentence.startswith("resuming after ") for sentence in said)
    merge_shards([one, two], tmp_path / "merged")
    assert tree(tmp_path / "merged") == tree(tmp_path / "whole")


@pytest.mark.parametrize(("place", "call"), [("append", 2), ("_finish", 2), ("rename", 1)])
def test_a_killed_merge_leaves_no_corpus_and_is_repeated(
    place: str, call: int, texts: list[Path], tmp_path: Path
) -> None:
    options: dict[str, Any] = {"holdout": 0.3, "dedup": "exact"}
    shards = prepare_shards(texts, tmp_path, 2, **options)
    out = tmp_path / "merged"
    assert killed_prepare.run(doomed_merge, shards, out, place, call) == -signal.SIGKILL
    assert not out.exists()
    merge_shards(shards, out)
    prepare(texts, BYTE, tmp_path / "whole", **options)
    assert tree(out) == tree(tmp_path / "whole")
    assert not list(tmp_path.glob(".*"))


@pytest.mark.real
def test_real_text_in_shards_is_one_corpus(real: Path, tmp_path: Path) -> None:
    with gzip.open(real / "wiki_en" / "valid.txt.gz") as file:
        data = file.read(1 << 18)
    text = tmp_path / "wiki.txt"
    text.write_bytes(data[: data.rindex(b"\n")])
    same_as_one([text], tmp_path, 5, holdout=0.05, dedup="exact")
    sizes = [Corpus.open(tmp_path / f"c.shard-{n}", shard=True).bytes for n in range(1, 6)]
    assert max(sizes) < 1.2 * min(sizes)
