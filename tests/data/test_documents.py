"""Files become documents, and what is wrong with a file is said by name."""

import bz2
import errno
import gzip
import io
import json
import lzma
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from kinfolk.data import documents, files
from kinfolk.data.documents import (
    Document,
    DocumentUnit,
    ReadOptions,
    read_documents,
    read_leniently,
    read_text_parts,
)
from kinfolk.data.files import FileProblems, SkippedFile, file_sizes, find_files, remedy
from kinfolk.errors import UserError

PACK: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".bz2": partial(bz2.compress, compresslevel=1),
    ".xz": lzma.compress,
    ".zst": zstandard.compress,
}


def texts(*paths: Path, per: DocumentUnit = "block") -> list[str]:
    return [d.text for d in read_documents(paths, ReadOptions(per))]


def piped(monkeypatch: pytest.MonkeyPatch, data: bytes) -> Path:
    """Put bytes on the standard input, and return its name."""
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(data)))
    return Path("-")


def blocks_of(lines: list[str]) -> list[str]:
    """Part lines where they are blank, as plainly as can be."""
    blocks: list[list[str]] = [[]]
    for line in lines:
        if line.strip():
            blocks[-1].append(line)
        else:
            blocks.append([])
    return ["\n".join(block) for block in blocks if block]


@pytest.mark.parametrize("suffix", PACK)
def test_blank_lines_part_documents(tmp_path: Path, suffix: str) -> None:
    file = tmp_path / f"a.txt{suffix}"
    file.write_bytes(PACK[suffix]("\n\none\n  two\n \t\n\n\n三\r\nfour\n\nfive".encode()))
    assert texts(file) == ["one\n  two", "三\nfour", "five"]
    assert texts(file, per="file") == ["one\n  two\n \t\n\n\n三\nfour\n\nfive"]


@pytest.mark.parametrize("suffix", PACK)
@settings(max_examples=30)
@given(text=st.text(st.sampled_from("ab é好𝄞 \t\r\n\n\n\u3000\x85")), size=st.integers(1, 9))
def test_parts_of_any_size_give_the_same_documents(
    suffix: str, text: str, size: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    file = tmp_path_factory.mktemp("blocks") / f"a.txt{suffix}"
    text = f"{text}\nend"
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    first = next(number for number, line in enumerate(lines) if line.strip())
    file.write_bytes(PACK[suffix](text.encode()))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "READ_BYTES", size)
        assert texts(file) == blocks_of(lines)
        assert texts(file, per="file") == ["\n".join(lines[first:])]


@given(text=st.text(st.sampled_from("ab 。好\n\n"), min_size=1), size=st.integers(1, 9))
def test_parts_joined_are_the_text(
    text: str, size: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    file = tmp_path_factory.mktemp("parts") / "a.txt"
    file.write_text(f"{text}。end", encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "READ_BYTES", size)
        patch.setattr(documents, "PART", size)
        found = list(read_text_parts([file]))
        assert "".join(found) == "".join(texts(file))
        assert all(0 < len(part) <= size for part in found)


def test_a_part_ends_where_a_word_or_a_sentence_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(documents, "PART", 8)
    file = tmp_path / "a.txt"
    file.write_text("one two three\n\n你好。我很好！他也很好吗\n\nunbreakable", encoding="utf-8")
    assert list(read_text_parts([file])) == [
        "one two", " three", "你好。我很好！", "他也很好吗", "unbreaka", "ble",
    ]  # fmt: skip


def test_folders_are_read_in_order_without_hidden_and_other_files(tmp_path: Path) -> None:
    for name in ("b/x.md", "a.txt", "b/LICENSE", "c.txt.gz", "d.py", ".git/config", "e.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(
            PACK[".gz"](b"zipped") if name.endswith(".gz") else name.encode()
        )
    (tmp_path / "e.txt").write_text("")  # in a folder, no mistake
    assert texts(tmp_path) == ["a.txt", "b/LICENSE", "b/x.md", "zipped"]
    assert find_files([tmp_path / "d.py"]) == [tmp_path / "d.py"]  # named, so meant


def test_files_of_a_folder_are_read_if_they_hold_text_and_the_others_are_listed(
    tmp_path: Path,
) -> None:
    text = ["diary 2024.01.05", "log", "a.rst", "b.text", "c.log", "d.log.bz2", "e.TEX"]
    for name in text:
        data = f"text of {name}".encode()
        (tmp_path / name).write_bytes(bz2.compress(data) if name.endswith("bz2") else data)
    (tmp_path / "f.html").write_text("<p>")
    (tmp_path / "g.json").write_text("{}")
    (tmp_path / "h.py").write_text("import os")
    (tmp_path / "i.pdf").write_bytes(b"%PDF\0")
    (tmp_path / "j.tar.gz").write_bytes(gzip.compress(b"a\0b"))
    (tmp_path / "k.doc").write_bytes("é".encode("latin-1"))
    (tmp_path / "l").symlink_to("nowhere")
    (tmp_path / "m").symlink_to("m")
    os.mkfifo(tmp_path / "n")
    (tmp_path / ".hidden").write_bytes(b"\0")
    skipped: list[SkippedFile] = []
    found = find_files([tmp_path], on_skip=skipped.append)
    assert [file.name for file in found] == sorted(text)
    assert [d.text for d in read_documents([tmp_path])] == [f"text of {n}" for n in sorted(text)]
    assert [(file.path.name, file.reason) for file in skipped] == [
        ("f.html", "markup or JSON"),
        ("g.json", "markup or JSON"),
        ("h.py", "source code or settings"),
        *((name, "not text in UTF-8") for name in ("i.pdf", "j.tar.gz", "k.doc")),
        ("l", "broken link"),
        ("m", "broken link"),
        ("n", "no regular file"),
    ]
    assert files.skipped_summary(skipped).startswith(
        "2 markup or JSON (f.html, g.json), 1 source code or settings (h.py), 3 not text in UTF-8"
    )


def test_linked_folders_are_read_once_and_loops_are_listed(tmp_path: Path) -> None:
    for name in ("notes/a.txt", "notes/b/c.txt", "far/d.txt", "far/e/f.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    notes = tmp_path / "notes"
    (notes / "a link").symlink_to(notes / "b")
    (notes / "b" / "up").symlink_to(notes)
    (notes / "far").symlink_to(tmp_path / "far")
    (tmp_path / "far" / "around").symlink_to(tmp_path)
    (tmp_path / "far" / "e" / "self").symlink_to(tmp_path / "far" / "e")
    skipped: list[SkippedFile] = []
    found = find_files([notes], on_skip=skipped.append)
    assert [str(file.relative_to(notes)) for file in found] == [
        "a.txt", "b/c.txt", "far/d.txt", "far/e/f.txt",
    ]  # fmt: skip
    assert [(str(file.path.relative_to(notes)), file.reason) for file in skipped] == [
        ("a link", "link to a folder that is read already"),
        ("b/up", "link to a folder that contains it"),
        ("far/around", "link to a folder that contains it"),
        ("far/e/self", "link to a folder that is read already"),
    ]


def test_each_file_of_a_folder_is_read_in_its_own_way(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\n\ntwo")
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(b'{"text": "three"}\n'))
    (tmp_path / "c.TSV").write_text("four\nfive\n")
    (tmp_path / "d.json").write_text("{}")  # settings, unless it is named
    (tmp_path / "f.csv").write_text("")
    (tmp_path / "g.jsonl.xz").write_bytes(b"")
    (tmp_path / "h.parquet").write_bytes(b"")
    assert texts(tmp_path) == ["one", "two", "three", "four", "five"]


def test_patterns_match_as_in_a_shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("b.txt", "a.txt", "c/d.txt", "c/e.md", ".hidden.txt", "[x].txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    assert texts(tmp_path / "?.txt") == ["a.txt", "b.txt"]
    assert texts(tmp_path / "**" / "*.txt") == ["[x].txt", "a.txt", "b.txt", "c/d.txt"]
    assert sorted(texts(tmp_path / "**")) == ["[x].txt", "a.txt", "b.txt", "c/d.txt", "c/e.md"]
    assert texts(tmp_path / "[x].txt") == ["[x].txt"]  # it is there, so it is meant
    monkeypatch.chdir(tmp_path)
    assert texts(Path("c/*")) == ["c/d.txt", "c/e.md"]
    with pytest.raises(UserError, match=r"\*\.log matches no file"):
        texts(tmp_path / "*.log")


def test_a_file_named_twice_is_read_once(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one")
    assert texts(tmp_path, tmp_path / "a.txt", tmp_path / "*.txt") == ["one"]


def test_a_document_knows_its_file_and_place(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_text("one\n\ntwo")
    assert list(read_documents([file]))[-1] == Document("two", file, 8, line=3)


@pytest.mark.parametrize("suffix", PACK)
def test_places_grow_to_the_size_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    monkeypatch.setattr(files, "READ_BYTES", 1 << 16)
    file = tmp_path / f"a.txt{suffix}"
    chance = os.urandom(300_000).hex()
    text = "\n\n".join(chance[place : place + 99] for place in range(0, 600_000, 99))
    file.write_bytes(PACK[suffix](text.encode()))
    places = [document.bytes_read for document in read_documents([file])]
    assert places == sorted(places)
    assert 0 < places[0] < places[-1] == file_sizes([file])[file]


def test_the_standard_input_is_text_or_what_it_is_said_to_be(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name = piped(monkeypatch, b"one\n\ntwo\n")
    assert list(read_documents([name])) == [
        Document("one", name, 9),
        Document("two", name, 9, line=3),
    ]
    name = piped(monkeypatch, b'{"body": "one"}\n')
    assert [d.text for d in read_documents([name], ReadOptions(field="body"))] == ["one"]
    name = piped(monkeypatch, b"1\tone\n2\ttwo\n")
    assert [d.text for d in read_documents([name], ReadOptions(column="2"))] == ["one", "two"]
    assert list(read_text_parts([piped(monkeypatch, b"one\n\ntwo\n")])) == ["one", "two"]
    assert file_sizes([name]) == {name: None}
    with pytest.raises(UserError, match="standard input is empty"):
        texts(piped(monkeypatch, b""))
    with pytest.raises(UserError, match=r"standard input is not UTF-8 at byte 2 \(line 2\)"):
        texts(piped(monkeypatch, b"a\n\xff"))


def test_a_pipe_with_a_name_is_read_and_has_no_size(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with subprocess.Popen(["sh", "-c", f"printf 'one\\n\\ntwo' > {pipe}"]):
        assert file_sizes([pipe]) == {pipe: None}
        assert texts(pipe) == ["one", "two"]


def test_a_byte_order_mark_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfone")
    assert texts(tmp_path) == ["one"]


@pytest.mark.parametrize("suffix", PACK)
def test_a_byte_that_is_not_utf8_is_named(tmp_path: Path, suffix: str) -> None:
    file = tmp_path / f"a.txt{suffix}"
    file.write_bytes(PACK[suffix]("é\n\n好".encode() + b"ab\xffc\n"))
    with pytest.raises(UserError, match=rf"a\.txt{suffix} is not UTF-8 at byte 9 \(line 3\):"):
        texts(file)


@pytest.mark.parametrize("read", [read_documents, read_text_parts])
def test_one_error_names_the_faulty_files_of_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read: Callable[..., Iterator[object]]
) -> None:
    faulty = {"b.txt": b"caf\xe9", "c.txt": b"a\0b", "d.jsonl": b'{"text": null}\n'}
    for name, data in {"a.txt": b"good", **faulty, "e.txt": b"good"}.items():
        (tmp_path / name).write_bytes(data)
    with pytest.raises(UserError) as raised:
        list(read([tmp_path]))
    first, *rest = str(raised.value).split("\n")
    assert first == "3 files cannot be read:"
    assert [name in line for name, line in zip(faulty, rest, strict=True)] == [True] * 3
    for number in range(4):
        (tmp_path / f"f{number}.txt").write_bytes(b"\xff")
    with pytest.raises(UserError, match=r"^7 files cannot be read, the first of them:(\n.*){5}$"):
        list(read([tmp_path]))
    monkeypatch.setattr(documents, "MAX_CHECKED_BYTES", 2)
    with pytest.raises(UserError, match=r"^2 files or more cannot be read:(\n.*){2}$"):
        list(read([tmp_path]))


@pytest.mark.parametrize("data", [b"one\ntw\xe5\xa5", b"one\ntw\xe5\xa5\nthree"])
@pytest.mark.parametrize("size", [1, 5, 100])
def test_a_character_cut_short_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: bytes, size: int
) -> None:
    monkeypatch.setattr(files, "READ_BYTES", size)
    (tmp_path / "a.txt").write_bytes(data)
    with pytest.raises(UserError, match=r"not UTF-8 at byte 6 \(line 2\)"):
        texts(tmp_path)


@pytest.mark.parametrize("size", [1, 5, 100])
def test_a_nul_byte_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr(files, "READ_BYTES", size)
    (tmp_path / "a.txt").write_bytes("é\nb\n\0c".encode())
    with pytest.raises(UserError, match=r"a\.txt holds a NUL byte on line 3"):
        texts(tmp_path)


def test_a_document_too_long_to_hold_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "READ_BYTES", 4)
    monkeypatch.setattr(files, "MAX_LINE_CHARS", 20)
    monkeypatch.setattr(documents, "MAX_LINE_CHARS", 20)
    file = tmp_path / "a.txt"
    file.write_text("one\n \n\n" + "x" * 20 + "\n")
    assert texts(file) == ["one", "x" * 20]
    file.write_text("one\n \n\n" + "x" * 21 + "\n")
    with pytest.raises(
        UserError, match=r"document that begins on line 4 of .*a\.txt is longer than"
    ):
        texts(file)
    file.write_text("one\n\n\n\n" + "two\n" * 6)
    with pytest.raises(UserError, match="begins on line 5 of"):
        texts(file)
    assert "".join(read_text_parts([file])) == "one" + "two\n" * 5 + "two"
    (tmp_path / "b.jsonl").write_text('{"text": "one"}\n{"text": "%s"}' % ("x" * 21))
    with pytest.raises(UserError, match=r"begins on line 2 of .*b\.jsonl is longer than 20 char"):
        texts(tmp_path / "b.jsonl")


def test_a_line_of_blanks_is_not_held_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "READ_BYTES", 4)
    monkeypatch.setattr(documents, "MAX_BLANK_CHARS", 8)
    (tmp_path / "a.txt").write_text("one\n" + " " * 30 + "two")
    assert texts(tmp_path) == ["one\n" + " " * 30 + "two"]
    (tmp_path / "a.txt").write_text(" " * 30 + "\n" * 30)
    with pytest.raises(UserError, match="is empty"):
        texts(tmp_path / "a.txt")


@pytest.mark.slow
def test_memory_does_not_grow_with_a_line(tmp_path: Path) -> None:
    code = (
        "import resource, sys; from pathlib import Path\n"
        "from kinfolk.data.documents import read_text_parts\n"
        "print(sum(map(len, read_text_parts([Path(sys.argv[1])]))),"
        " resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
    )
    (tmp_path / "a.txt").write_text("很" * 100)
    (tmp_path / "b.txt").write_text("很好的" * (1 << 23), encoding="utf-8")  # 75 MB
    said = [
        subprocess.run(
            [sys.executable, "-c", code, tmp_path / name],
            check=True,
            capture_output=True,
            text=True,
        ).stdout.split()
        for name in ("a.txt", "b.txt")
    ]
    (_, small), (count, large) = said
    assert int(count) == 3 << 23
    assert int(large) - int(small) < 32 << 10  # KiB


@pytest.mark.parametrize("suffix", [".gz", ".bz2", ".xz", ".zst"])
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
    with pytest.raises(UserError, match=rf"a\.txt{suffix} is (corrupt|not UTF-8)"):
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
    with pytest.raises(UserError, match="no input files"):
        read_documents([])
    with pytest.raises(UserError, match="nowhere does not exist"):
        read_documents([tmp_path / "nowhere"])
    with pytest.raises(UserError, match="holds no text"):
        read_documents([tmp_path])
    (tmp_path / "a.txt").write_text(" \n\n")
    with pytest.raises(UserError, match=r"a\.txt is empty"):
        texts(tmp_path / "a.txt")
    with pytest.raises(UserError, match=r"a\.txt is empty"):
        list(read_text_parts([tmp_path / "a.txt"]))
    (tmp_path / "b.xz").write_bytes(b"")
    with pytest.raises(UserError, match=r"b\.xz is empty"):
        texts(tmp_path / "b.xz")


def test_what_may_not_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b.txt").write_text("one")

    def refuse(path: object, *_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", refuse)
        with pytest.raises(UserError, match=r"b\.txt cannot be read \(Permission denied\)"):
            texts(tmp_path)
    scandir = os.scandir
    monkeypatch.setattr(os, "scandir", lambda p: scandir(p) if Path(p) == tmp_path else refuse(p))
    with pytest.raises(UserError, match=r"a cannot be read \(Permission denied\)"):
        texts(tmp_path)


def test_a_field_or_a_column_without_a_table_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one")
    with pytest.raises(UserError, match="--field body: only"):
        read_documents([tmp_path], ReadOptions(field="body"))
    with pytest.raises(UserError, match="--column 2: only"):
        read_text_parts([tmp_path], ReadOptions(column="2"))


@pytest.mark.real
def test_real_files_hold_the_documents_they_claim(real: Path) -> None:
    assert len(texts(real / "wiki_en" / "valid.txt.gz")) == 764
    assert len(texts(real / "wiki_zh" / "valid.txt.gz")) == 848


@given(st.text(st.sampled_from("a b\n\r\t你"), max_size=60), st.integers(1, 9))
def test_a_lenient_reader_finds_the_same_documents_and_their_lines(text: str, size: int) -> None:
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        patch.setattr(files, "READ_BYTES", size)
        file = Path(folder) / "a.txt"
        file.write_bytes(text.encode())
        problems = FileProblems()
        found = list(read_leniently(file, problems))
        lines = text.replace("\r\n", "\n").removesuffix("\r").split("\n")
        lines = lines if lines[-1] else lines[:-1]
        assert (problems.lines, problems.blank) == (len(lines), sum(not x.strip() for x in lines))
        for document in found:
            own = document.text.split("\n")
            assert lines[document.line - 1 : document.line - 1 + len(own)] == own
        if text.strip():
            assert found == list(read_documents([file]))


@pytest.mark.parametrize("suffix", [".txt", ".jsonl", ".csv", ".tsv", ".parquet"])
def test_line_ends_of_windows_are_the_same_in_every_format(tmp_path: Path, suffix: str) -> None:
    text, file = "one\r\ntwo", tmp_path / f"a{suffix}"
    if suffix == ".parquet":
        pyarrow = pytest.importorskip("pyarrow")
        pytest.importorskip("pyarrow.parquet").write_table(
            pyarrow.table({"text": [text]}), str(file)
        )
    else:
        data = {".jsonl": json.dumps({"text": text}), ".csv": f'"{text}"'}.get(suffix, text)
        file.write_bytes(data.encode())
    expected = ["one", "two"] if suffix == ".tsv" else ["one\ntwo"]
    assert texts(file) == expected
    assert [d.text for d in read_leniently(file, FileProblems())] == expected


def test_a_folder_has_all_its_files_or_those_with_text_and_never_hidden_ones(
    tmp_path: Path,
) -> None:
    for name in ("a.txt", "b.json", "c.conf", ".git/config", ".hidden.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    assert [file.name for file in find_files([tmp_path])] == ["a.txt"]
    every = find_files([tmp_path], any_suffix=True)
    assert [file.name for file in every] == ["a.txt", "b.json", "c.conf"]


@pytest.mark.parametrize(
    ("text", "encoding", "advice"),
    [
        ("这家酒店的房间很大，服务也不错。", "gbk", "-f gb18030"),
        ("Room 12: 房间很大, OK!", "gb18030", "-f gb18030"),
        ("C'était déjà l'été à Genève.", "latin1", "-f ENCODING"),
        ("Über größere Straßen", "cp1252", "-f ENCODING"),
        ("Привет, мир. Слова разной длины.", "cp1251", "-f ENCODING"),
        ("這家飯店的房間很大，服務也不錯。", "big5", "-f ENCODING"),
        ("这家酒店的房间很大", "utf-16", "-f utf-16"),
    ],
)
def test_the_remedy_names_the_encoding_of_a_file(text: str, encoding: str, advice: str) -> None:
    assert f"iconv {advice} -t utf-8" in remedy((text * 9).encode(encoding))


def test_a_damaged_byte_in_utf8_is_no_other_encoding() -> None:
    data = ("这家酒店的房间很大，服务也不错。" * 9).encode()
    assert "the text around it is UTF-8" in remedy(data[:40] + b"\xff" + data[42:])


@pytest.mark.parametrize("suffix", [".csv", ".tsv"])
@pytest.mark.parametrize(("name", "rows"), [("Text", 2), ("评论内容", 2), ("a fine film", 3)])
def test_the_name_of_a_single_column_is_no_text(
    tmp_path: Path, suffix: str, name: str, rows: int
) -> None:
    (tmp_path / f"a{suffix}").write_text(f"{name}\n一本好书\nno film\n", encoding="utf-8")
    assert texts(tmp_path) == [name, "一本好书", "no film"][-rows:]
