"""Files become documents, and what is wrong with a file is said by name."""

import gzip
import lzma
from pathlib import Path

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from kinfolk.data.sources import Document, documents, files
from kinfolk.errors import UserError

PACK = {"": bytes, ".gz": gzip.compress, ".xz": lzma.compress, ".zst": zstandard.compress}


def texts(*paths: Path, per: str = "block") -> list[str]:
    return [d.text for d in documents(paths, per="file" if per == "file" else "block")]


@pytest.mark.parametrize("suffix", PACK)
def test_blank_lines_part_documents(tmp_path: Path, suffix: str) -> None:
    file = tmp_path / f"a.txt{suffix}"
    file.write_bytes(PACK[suffix]("\n\none\n  two\n \t\n\n\n三\r\nfour\n\nfive".encode()))
    assert texts(file) == ["one\n  two", "三\nfour", "five"]
    assert texts(file, per="file") == ["one\n  two\n \t\n\n\n三\nfour\n\nfive"]


@given(blocks=st.lists(st.lists(st.text("ab .", min_size=1), min_size=1)))
def test_every_block_with_text_is_one_document(
    blocks: list[list[str]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    blocks = [[line for line in block if line.strip()] for block in blocks]
    expected = ["\n".join(block) for block in blocks if block]
    file = tmp_path_factory.mktemp("blocks") / "a.txt"
    file.write_text("\n\n".join(["begin", *expected]), encoding="utf-8")
    assert texts(file) == ["begin", *expected]


def test_folders_are_read_in_order_without_hidden_and_other_files(tmp_path: Path) -> None:
    for name in ("b/x.md", "a.txt", "b/LICENSE", "c.txt.gz", "d.py", ".git/config", "e.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(
            PACK[".gz"](b"zipped") if name.endswith(".gz") else name.encode()
        )
    (tmp_path / "e.txt").write_text("")  # in a folder, no mistake
    assert texts(tmp_path) == ["a.txt", "b/LICENSE", "b/x.md", "zipped"]
    assert files([tmp_path / "d.py"]) == [tmp_path / "d.py"]  # named, so meant


def test_a_document_knows_its_file_and_place(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_text("one\n\ntwo")
    assert list(documents([file]))[-1] == Document("two", file, 8)


def test_a_byte_order_mark_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfone")
    assert texts(tmp_path) == ["one"]


@pytest.mark.parametrize("suffix", PACK)
def test_a_byte_that_is_not_utf8_is_named(tmp_path: Path, suffix: str) -> None:
    file = tmp_path / f"a.txt{suffix}"
    file.write_bytes(PACK[suffix]("é\n\n好".encode() + b"ab\xffc\n"))
    with pytest.raises(UserError, match=rf"a\.txt{suffix} is not UTF-8 at byte 9:"):
        texts(file)


@pytest.mark.parametrize("suffix", [".gz", ".xz", ".zst"])
@pytest.mark.parametrize("damage", ["cut", "foreign", "flipped"])
def test_damaged_files_are_named(tmp_path: Path, suffix: str, damage: str) -> None:
    whole = PACK[suffix](b"some text\n\n" * 1000)
    middle = len(whole) // 2
    file = tmp_path / f"a.txt{suffix}"
    file.write_bytes(
        {
            "cut": whole[:-6],
            "foreign": b"plain text",
            "flipped": whole[:middle] + bytes([whole[middle] ^ 255]) + whole[middle + 1 :],
        }[damage]
    )
    with pytest.raises(UserError, match=rf"a\.txt{suffix} is (damaged|not UTF-8)"):
        texts(file)


def test_zstandard_frames_follow_each_other(tmp_path: Path) -> None:
    file = tmp_path / "a.txt.zst"
    file.write_bytes(zstandard.compress(b"one\n\nt") + zstandard.compress(b"wo"))
    assert texts(file) == ["one", "two"]


def test_missing_zstandard_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.txt.zst").write_bytes(b"x")
    monkeypatch.setitem(__import__("sys").modules, "zstandard", None)
    with pytest.raises(UserError, match=r"pip install 'kinfolk\[zst\]'"):
        texts(tmp_path)


def test_nothing_to_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no text was named"):
        documents([])
    with pytest.raises(UserError, match="nowhere does not exist"):
        documents([tmp_path / "nowhere"])
    with pytest.raises(UserError, match="holds no text"):
        documents([tmp_path])
    (tmp_path / "a.txt").write_text(" \n\n")
    with pytest.raises(UserError, match=r"a\.txt is empty"):
        texts(tmp_path / "a.txt")


@pytest.mark.real
def test_real_files_hold_the_documents_they_claim(real: Path) -> None:
    assert len(texts(real / "wiki_en" / "valid.txt.gz")) == 764
    assert len(texts(real / "wiki_zh" / "valid.txt.gz")) == 848
