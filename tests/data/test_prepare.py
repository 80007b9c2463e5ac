"""Preparing keeps every document, gives the same bytes for any workers, and leaves no ruins."""

import gzip
import json
import os
import tracemalloc
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinfolk.data import encode
from kinfolk.data import files as files_module
from kinfolk.data import prepare as module
from kinfolk.data.corpus import Corpus
from kinfolk.data.documents import ReadOptions
from kinfolk.data.encode import DocumentEncoder
from kinfolk.data.files import file_sizes
from kinfolk.data.prepare import prepare
from kinfolk.errors import UserError
from kinfolk.text import KINDS, Tokenizer, sentence_ends, train_tokenizer
from kinfolk.text.segment import word_starts

TEXT = (
    "The cat sat. It purred!\nThe dog [MASK] sat\n\n你好。再见。\n\n \n\n" * 3 + "U.S. law <pad>."
)
BYTE = train_tokenizer([], kind="byte", vocab_size=0)


@pytest.fixture
def text(tmp_path: Path) -> Path:
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "a.txt").write_text(TEXT, encoding="utf-8")
    (tmp_path / "text" / "b.txt").write_text("last", encoding="utf-8")
    return tmp_path / "text"


def tree(folder: Path) -> dict[str, bytes]:
    found = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


def test_every_document_is_kept_as_it_is(text: Path, tmp_path: Path) -> None:
    corpus = prepare([text], tokenizer=BYTE, out=tmp_path / "corpus")
    blocks = [*(TEXT.replace("\n \n", "\n").split("\n\n")), "last"]
    blocks = [block.strip("\n") for block in blocks if block.strip()]
    assert [BYTE.decode(corpus.document(i)) for i in range(corpus.documents)] == blocks
    assert corpus.bytes == sum(len(block.encode()) for block in blocks)
    assert corpus.bytes == corpus.tokens
    assert not BYTE.special_tokens.ids & set(corpus.ids(0, corpus.tokens).tolist())
    ends = np.cumsum(corpus.sentences(0, corpus.starts[1])).tolist()
    assert ends == sentence_ends(blocks[0])


@pytest.mark.parametrize("kind", KINDS)
def test_ids_are_those_of_the_whole_text_and_sentences_fill_them(kind: str) -> None:
    lines = ["The cat sat. It's here, and the dog sat!", "  好的。 再见；", "a [MASK] b", "\tEnd. "]
    sizes = {"bpe": 363, "word-bpe": 165, "wordpiece": 165, "unigram": 143, "word": 110}
    sizes |= {"char": 200, "byte": 0}
    tokenizer = train_tokenizer(lines * 3, kind=kind, vocab_size=sizes[kind])
    text = "\n".join(lines)
    encoded = DocumentEncoder(tokenizer)([text, "", "x"])
    assert encoded.ids.tolist() == tokenizer.offsets(text)[0] + tokenizer.offsets("x")[0]
    assert encoded.sentences.sum() == len(encoded.ids)
    assert encoded.sentences.min() > 0
    assert encoded.documents[1:].tolist() == [0, 1]
    assert encoded.documents.sum() == len(encoded.sentences)


LINES = st.lists(st.text(st.sampled_from(list("aB .,'好。\t"))), min_size=1, max_size=12)
TRAINED = {
    kind: train_tokenizer(["aB a B'a. 好，a 。"] * 3, kind=kind, vocab_size=vocab)
    for kind, vocab in {"bpe": 365, "wordpiece": 115, "unigram": 115, "word": 110}.items()
}


@given(lines=LINES)
@pytest.mark.parametrize("kind", TRAINED)
def test_a_long_text_in_parts_has_the_same_ids(kind: str, lines: list[str]) -> None:
    text = "\n".join(lines)
    whole = DocumentEncoder(TRAINED[kind])([text])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(encode, "MAX_ENCODE_CHARS", 4)
        parts = DocumentEncoder(TRAINED[kind])([text])
    assert parts.ids.tolist() == whole.ids.tolist()
    assert parts.sentences.sum() == whole.sentences.sum()
    assert parts.documents.sum() == len(parts.sentences)


@pytest.mark.real
def test_real_articles_give_the_same_bytes_for_any_workers(
    real: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "GROUP_CHARS", 1 << 17)
    heard: list[tuple[int, int | None]] = []
    tokenizer = train_tokenizer(["The cat sat on the mat."] * 3, kind="bpe", vocab_size=365)
    for workers in (1, 2):
        corpus = prepare(
            [real / "wiki_en" / "valid.txt.gz"],
            tokenizer=tokenizer,
            out=tmp_path / str(workers),
            workers=workers,
            holdout=0.05,
            progress=lambda done, whole: heard.append((done, whole)),
        )
    assert tree(tmp_path / "1") == tree(tmp_path / "2")
    held = Corpus.open(tmp_path / "2" / "holdout")
    assert corpus.documents + held.documents == 764
    assert 20 < held.documents < 60
    size = (real / "wiki_en" / "valid.txt.gz").stat().st_size
    assert all(done <= size == whole for done, whole in heard)
    assert heard[-1] == (size, size)


def test_held_out_documents_stay_so_when_text_is_added(tmp_path: Path) -> None:
    def held(documents: int) -> set[str]:
        (tmp_path / "a.txt").write_text("\n\n".join(f"text {i}" for i in range(documents)))
        out = tmp_path / str(documents)
        kept = prepare([tmp_path / "a.txt"], tokenizer=BYTE, out=out, holdout=0.2)
        held = Corpus.open(out / "holdout")
        assert kept.documents + held.documents == documents
        return {BYTE.decode(held.document(i)) for i in range(held.documents)}

    few, many = held(100), held(200)
    assert few == {text for text in many if int(text.split()[1]) < 100}


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("holdout", [0.0, 0.3])
def test_every_document_arrives_for_any_number_of_workers(
    workers: int, holdout: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "GROUP_CHARS", 50)
    texts = [f"{'word ' * (i % 7)}number {i}." for i in range(100)]
    (tmp_path / "a.txt").write_text("\n\n".join(texts[:60]))
    (tmp_path / "b.jsonl").write_text("".join(json.dumps({"text": t}) + "\n" for t in texts[60:]))
    out, paths = tmp_path / "c", [tmp_path / "a.txt", tmp_path / "b.jsonl"]
    corpus = prepare(paths, tokenizer=BYTE, out=out, workers=workers, holdout=holdout)
    corpora = [corpus, *([Corpus.open(out / "holdout")] if holdout else [])]
    found = [BYTE.decode(c.document(i)) for c in corpora for i in range(c.documents)]
    assert sorted(found) == sorted(texts)
    facts = [json.loads((c.folder / "corpus.json").read_text()) for c in corpora]
    counts = [source["documents"] for fact in facts for source in fact["sources"]]
    assert sum(counts) == len(texts)


def test_words_are_those_of_the_text(text: Path, tmp_path: Path) -> None:
    corpus = prepare([text], tokenizer=BYTE, out=tmp_path / "c", word_boundaries="spaces")
    for i in range(corpus.documents):
        start, stop = corpus.starts[i], corpus.starts[i + 1]
        words = word_starts(BYTE.decode(corpus.document(i)), "spaces")
        assert corpus.words(start, stop).sum() == len(words)
    assert json.loads((corpus.folder / "corpus.json").read_text())["words"] == "spaces"


def test_documents_that_come_back_or_are_in_a_test_are_left_out(tmp_path: Path) -> None:
    test = " ".join(f"w{i}" for i in range(20))
    (tmp_path / "test.txt").write_text(test)
    (tmp_path / "a.txt").write_text(f"one\n\ntwo\n\none\n\nsee {test} there\n\nthree")
    corpus = prepare(
        [tmp_path / "a.txt"],
        tokenizer=BYTE,
        out=tmp_path / "c",
        dedup="exact",
        decontaminate=[tmp_path / "test.txt"],
    )
    found = [BYTE.decode(corpus.document(i)) for i in range(corpus.documents)]
    assert found == ["one", "two", "three"]
    dropped = read_dropped(tmp_path / "c")
    assert [record["reason"] for record in dropped] == ["exact duplicate", "contaminated"]


def test_nothing_left_is_said(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(" ".join(f"w{i}" for i in range(20)))
    paths = [tmp_path / "a.txt"]
    with pytest.raises(UserError, match="no document is left after filtering \\(1 contaminated\\)"):
        prepare(paths, tokenizer=BYTE, out=tmp_path / "c", decontaminate=paths)


def test_a_table_is_read_by_its_field_or_column(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"x": {"y": "deep"}}\n')
    (tmp_path / "b.tsv").write_text("no\tyes\n1\tsecond\n")
    deep = prepare([tmp_path / "a.jsonl"], tokenizer=BYTE, out=tmp_path / "a", field="x.y")
    second = prepare([tmp_path / "b.tsv"], tokenizer=BYTE, out=tmp_path / "b", column="yes")
    assert BYTE.decode(deep.document(0)) == "deep"
    assert BYTE.decode(second.document(0)) == "second"


def test_line_ends_inside_quotes_change_no_token(tmp_path: Path) -> None:
    ids = []
    for name, end in (("unix", "\n"), ("windows", "\r\n")):
        file = tmp_path / f"{name}.csv"
        file.write_bytes(f'text,label{end}"one{end}{end}two",1{end}three,0{end}'.encode())
        corpus = prepare([file], tokenizer=BYTE, out=tmp_path / name, column="text")
        ids.append(corpus.ids(0, corpus.tokens).tolist())
    assert ids[0] == ids[1]


def peak(text: Path, out: Path, connection: Connection) -> None:
    """Prepare, and send the most memory that this process had, in kilobytes."""
    encode.MAX_CACHED_WORDS = 4096  # so that little text fills it
    prepare([text], tokenizer=train_tokenizer([], kind="byte", vocab_size=0), out=out)
    status = Path("/proc/self/status").read_text()
    connection.send(int(status.split("VmHWM:")[1].split()[0]))


@pytest.mark.slow
@pytest.mark.real
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")
def test_memory_does_not_grow_with_the_text(real: Path, tmp_path: Path) -> None:
    with gzip.open(real / "wiki_en" / "valid.txt.gz", "rt", encoding="utf-8") as file:
        text = file.read()
    peaks = []
    for times in (1, 6):
        path = tmp_path / f"{times}.txt"
        copies = (text.replace("e", letter) for letter in "eaiouy"[:times])
        path.write_text("\n\n".join(copies), encoding="utf-8")
        receive, send = get_context("spawn").Pipe(duplex=False)
        arguments = (path, tmp_path / str(times), send)
        process = get_context("spawn").Process(target=peak, args=arguments)
        process.start()
        peaks.append(receive.recv())
        process.join()
    assert peaks[1] < 1.15 * peaks[0]


def test_one_document_a_file(text: Path, tmp_path: Path) -> None:
    corpus = prepare([text], tokenizer=BYTE, out=tmp_path / "corpus", document="file")
    assert [BYTE.decode(corpus.document(i)) for i in range(2)] == [TEXT, "last"]


def test_what_is_there_is_never_overwritten(text: Path, tmp_path: Path) -> None:
    out = tmp_path / "corpus"
    out.mkdir()  # an empty folder holds nothing to lose
    prepare([text], tokenizer=BYTE, out=out)
    before = tree(out)
    with pytest.raises(UserError, match="already a corpus: choose another -o or remove it"):
        prepare([text], tokenizer=BYTE, out=out)
    assert tree(out) == before
    with pytest.raises(UserError, match="already exists and is not empty"):
        prepare([text], tokenizer=BYTE, out=text)
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(UserError, match="loop is a link to nothing"):
        prepare([text], tokenizer=BYTE, out=tmp_path / "loop")


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError, UserError])
@pytest.mark.parametrize("workers", [1, 2])
def test_no_ruins_are_left(
    text: Path, tmp_path: Path, error: type[BaseException], workers: int
) -> None:
    def fail(done: int, whole: int | None) -> None:
        raise error

    with pytest.raises(error):
        prepare([text], tokenizer=BYTE, out=tmp_path / "c", workers=workers, progress=fail)
    assert [path.name for path in tmp_path.iterdir()] == ["text"]


def test_a_bad_byte_late_in_the_text_leaves_nothing(text: Path, tmp_path: Path) -> None:
    (text / "c.txt").write_bytes(b"good\n\n" + b"\xff")
    with pytest.raises(UserError, match="not UTF-8 at byte 6"):
        prepare([text], tokenizer=BYTE, out=tmp_path / "deep" / "corpus", workers=2)
    assert [path.name for path in tmp_path.iterdir()] == ["text"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"holdout": 1.0}, "holdout 1.0: it must be a fraction from 0 to less than 1"),
        ({"holdout": 1e-9}, "leaves 8 of 8 documents and holds out 0"),
        ({"holdout": 1e-9}, "blocks between blank lines, or with --document file whole files"),
        ({"workers": 0}, "workers 0: it must be at least 1"),
        ({"word_boundaries": "letters"}, "unknown segmenter 'letters'"),
        ({"dedup": "some"}, "dedup some: choose exact or near"),
    ],
)
def test_impossible_settings_are_refused(
    text: Path, tmp_path: Path, settings: dict[str, object], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        prepare([text], tokenizer=BYTE, out=tmp_path / "corpus", **settings)  # type: ignore[arg-type]
    assert [path.name for path in tmp_path.iterdir()] == ["text"]


def test_a_place_that_cannot_be_written_is_refused(text: Path) -> None:
    with pytest.raises(UserError, match="cannot be written"):
        prepare([text], tokenizer=BYTE, out=text / "a.txt" / "corpus")


def test_text_that_gives_no_tokens_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("\x01\x02")
    tokenizer: Tokenizer = TRAINED["wordpiece"]
    with pytest.raises(UserError, match="no characters that this tokenizer can encode"):
        prepare([tmp_path / "a.txt"], tokenizer=tokenizer, out=tmp_path / "corpus")


def test_what_filters_left_out_is_said_and_written_down(tmp_path: Path) -> None:
    words = [" ".join(f"{start}{i}" for i in range(20)) for start in "abc"]
    (tmp_path / "a.txt").write_text("\n\n".join([words[0], words[0], words[1], words[2]]))
    (tmp_path / "test.txt").write_text(words[1])
    said: list[str] = []
    corpus = prepare(
        [tmp_path / "a.txt"],
        tokenizer=BYTE,
        out=tmp_path / "c",
        dedup="near",
        decontaminate=[tmp_path / "test.txt"],
        on_message=said.append,
    )
    assert corpus.documents == 2
    assert said[-1] == "left out: 1 exact duplicate, 0 near duplicates, 1 contaminated"
    expected = {"empty": 0, "exact duplicate": 1, "near duplicate": 0, "contaminated": 1}
    assert json.loads((tmp_path / "c" / "corpus.json").read_text())["left_out"] == expected
    assert corpus.left_out == Corpus.open(tmp_path / "c").left_out == expected
    assert repr(corpus) == (
        f"Corpus('{tmp_path}/c': 2 documents, {corpus.tokens} tokens, {corpus.bytes} bytes, "
        "left_out {'exact duplicate': 1, 'contaminated': 1})"
    )


def read_dropped(corpus: Path) -> list[dict[str, Any]]:
    lines = (corpus / module.DROPPED_FILE).read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def test_every_document_and_file_that_is_left_out_is_listed_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "GROUP_CHARS", 50)
    words = [" ".join(f"{start}{i}" for i in range(20)) for start in "abcdefgh"]
    (tmp_path / "notes").mkdir()
    rows = [words[0], "", words[1], " \n", words[0]]
    (tmp_path / "notes" / "a.jsonl").write_text(
        "".join(json.dumps({"text": text}) + "\n" for text in rows)
    )
    (tmp_path / "notes" / "b.txt").write_text(f"{words[2]}\n\n{words[1]} more\n\n{words[3]}")
    (tmp_path / "notes" / "c.png").write_bytes(b"\x89PNG\0")
    (tmp_path / "test.tsv").write_text(f"id\ttext\n1\t{words[3]}\n")
    expected = [
        ("file skipped: not text in UTF-8", "c.png", None, None),
        ("empty", "a.jsonl", 2, None),
        ("empty", "a.jsonl", 4, None),
        ("exact duplicate", "a.jsonl", 5, ("a.jsonl", 1)),
        ("near duplicate", "b.txt", 3, ("a.jsonl", 3)),
        ("contaminated", "b.txt", 5, ("test.tsv", 2)),
    ]
    monkeypatch.setattr("kinfolk.data.dedup.JACCARD_THRESHOLD", 0.7)
    trees = []
    for workers in (1, 2):
        out = tmp_path / str(workers)
        corpus = prepare(
            *([tmp_path / "notes"], BYTE, out),
            dedup="near",
            decontaminate=[tmp_path / "test.tsv"],
            workers=workers,
        )
        assert (corpus.documents, corpus.skipped_files) == (3, {"not text in UTF-8": 1})
        trees.append(tree(out))
    assert trees[0] == trees[1]
    dropped = read_dropped(tmp_path / "1")
    found = []
    for record in dropped:
        earlier = record.get("same_as")
        where = None if earlier is None else (Path(earlier["source"]).name, earlier["source_line"])
        if "evaluation_file" in record:
            where = (Path(record["evaluation_file"]).name, record["evaluation_line"])
        source = Path(record["source"]).name
        found.append((record["reason"], source, record["source_line"], where))
    assert found == expected
    assert [record["excerpt"] for record in dropped[3:]] == [
        words[0][:80], f"{words[1]} more"[:80], words[3][:80],
    ]  # fmt: skip


def test_a_skipped_file_is_said_and_strict_refuses_it(tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.txt").write_text("one")
    (tmp_path / "notes" / "b.json").write_text("{}")
    said: list[str] = []
    with pytest.raises(UserError, match=r"1 file would be left out .*: 1 markup or JSON \(b\.json"):
        prepare(tmp_path / "notes", BYTE, tmp_path / "c", strict=True)
    assert not (tmp_path / "c").exists()
    prepare(tmp_path / "notes", BYTE, tmp_path / "c", on_message=said.append)
    assert said[0].startswith("skipped 1 file: 1 markup or JSON (b.json); a file that is named")


def test_a_file_without_text_is_listed_as_skipped(tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    for name, text in {"a.txt": "one", "b.txt": "", "c.rst": " \n\n"}.items():
        (tmp_path / "notes" / name).write_text(text)
    said: list[str] = []
    for number, files in enumerate((tmp_path / "notes", tmp_path / "notes" / "*")):
        out = tmp_path / f"corpus-{number}"
        corpus = prepare(files, BYTE, out, on_message=said.append)
        assert corpus.skipped_files == {"empty file": 2}
        lines = (out / "dropped.jsonl").read_text(encoding="utf-8").splitlines()
        dropped = [json.loads(line) for line in lines]
        assert [(record["reason"], Path(record["source"]).name) for record in dropped] == [
            ("file skipped: empty file", "b.txt"),
            ("file skipped: empty file", "c.rst"),
        ]
        assert "skipped 2 files: 2 empty file (b.txt, c.rst)" in said
    with pytest.raises(UserError, match="2 files would be left out with --strict: 2 empty file"):
        prepare(tmp_path / "notes", BYTE, tmp_path / "strict", strict=True)
    with pytest.raises(UserError, match=r"b\.txt is empty"):
        prepare(tmp_path / "notes" / "b.txt", BYTE, tmp_path / "named")


def test_a_folder_of_test_data_is_found_once_with_json_and_without_hidden_files(
    tmp_path: Path,
) -> None:
    words = [" ".join(f"{start}{i}" for i in range(20)) for start in "abc"]
    (tmp_path / "a.txt").write_text("\n\n".join(words))
    tests = tmp_path / "tests"
    (tests / ".git").mkdir(parents=True)
    (tests / "squad.json").write_text(json.dumps({"data": [{"context": words[0]}]}))
    (tests / ".git" / "config").write_text(words[1])
    corpus = prepare(
        [tmp_path / "a.txt"], tokenizer=BYTE, out=tmp_path / "c", decontaminate=[tests]
    )
    assert corpus.documents == 2  # what only the hidden file holds is kept


def test_reading_test_data_is_part_of_the_progress(tmp_path: Path) -> None:
    words = [" ".join(f"{start}{i}" for i in range(20)) for start in "abcd"]
    text = tmp_path / "a.txt"
    text.write_text("\n\n".join(words[:2]))
    (tmp_path / "tests").mkdir()
    for name, line in zip(("1.txt", "2.txt"), words[2:], strict=True):
        (tmp_path / "tests" / name).write_text(line)
    heard: list[tuple[int, int | None]] = []
    corpus = prepare(
        *(text, BYTE, tmp_path / "c"),
        decontaminate=tmp_path / "tests",
        progress=lambda read, whole: heard.append((read, whole)),
    )
    assert corpus.documents == 2
    sizes = [len(line) for line in words[2:]]
    whole = sum(sizes) + text.stat().st_size
    assert heard == [(sizes[0], whole), (sum(sizes), whole), (whole, whole)]


def test_a_change_of_test_data_starts_again(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    test = tmp_path / "tests" / "a.json"
    (tmp_path / "a.txt").write_text("some text")

    def fingerprint() -> str | None:
        files = file_sizes([tmp_path / "tests"], any_suffix=True)
        config = module.PrepareConfig(
            file_sizes([tmp_path / "a.txt"]), frozenset(), ReadOptions(), BYTE, 0, None, None, files
        )
        return config.fingerprint()

    test.write_text(json.dumps("one"))
    before = fingerprint()
    test.write_text(json.dumps("another"))
    assert before is not None and fingerprint() != before


def test_the_text_is_listed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "a.txt").write_text("The cat.\n\nA dog.")
    walks = []
    walk = os.walk
    monkeypatch.setattr(os, "walk", lambda top, **how: walks.append(top) or walk(top, **how))
    prepare([tmp_path / "text"], tokenizer=BYTE, out=tmp_path / "c")
    assert walks == [tmp_path / "text"]


def test_little_of_a_longer_text_stays_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Text sixteen times as long, in small parts: at most an eighth of what is added stays."""
    monkeypatch.setattr(module, "GROUP_CHARS", 1 << 13)
    monkeypatch.setattr(module, "GROUPS_PER_CHECKPOINT", 2)
    monkeypatch.setattr(files_module, "READ_BYTES", 1 << 13)

    def peak(copies: int) -> int:
        source = tmp_path / f"{copies}.txt"
        source.write_text("".join(f"Cat {n % 97} saw a dog.\n\n" for n in range(copies)))
        tracemalloc.start()
        prepare([source], tokenizer=BYTE, out=tmp_path / f"c{copies}", holdout=0.1)
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found

    sizes = (2_000, 32_000)
    peak(100)  # what is made once for all
    small, large = (peak(copies) for copies in sizes)
    added = (tmp_path / f"{sizes[1]}.txt").stat().st_size * (1 - sizes[0] / sizes[1])
    assert large - small < added / 8
