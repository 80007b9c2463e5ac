"""Rows of tables become documents, and a row that does not is named by its line."""

import csv
import gzip
import io
import json
import lzma
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from kinfolk.data import documents, row_faults
from kinfolk.data.documents import ReadOptions, read_documents, read_text_parts
from kinfolk.data.files import READ_BYTES, file_sizes
from kinfolk.errors import UserError

PACK: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".xz": lzma.compress,
    ".zst": zstandard.compress,
}
TEXTS = st.lists(
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")), min_size=1
)


def texts(path: Path, **reading: Any) -> list[str]:
    return [document.text for document in read_documents([path], ReadOptions(**reading))]


def parquet_of(rows: list[dict[str, Any]], **options: Any) -> bytes:
    file = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), file, **options)
    return file.getvalue()


def csv_of(rows: list[list[str]]) -> bytes:
    file = io.StringIO(newline="")
    csv.writer(file).writerows(rows)
    return file.getvalue().encode()


def written(kind: str, found: list[str]) -> bytes:
    """Write a column `text` beside another."""
    if kind == ".parquet":
        return parquet_of([{"id": n, "text": text} for n, text in enumerate(found)])
    if kind == ".csv":
        return csv_of([["id", "text"], *([str(n), text] for n, text in enumerate(found))])
    if kind == ".tsv":
        return "".join(f"{text}\t{n}\n" for n, text in enumerate(["text", *found])).encode()
    ascii = kind == ".json"
    rows = ({"id": n, "text": text} for n, text in enumerate(found))
    return "".join(json.dumps(row, ensure_ascii=ascii) + "\n" for row in rows).encode()


@pytest.mark.parametrize("pack", PACK)
@pytest.mark.parametrize("kind", [".jsonl", ".json", ".csv", ".tsv", ".parquet"])
@settings(max_examples=30)
@given(found=TEXTS)
def test_what_is_written_is_read(
    kind: str, pack: str, found: list[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    if kind == ".tsv":
        found = [text.replace("\t", " ").replace("\n", " ") for text in found]
    found = ["first", *found]
    data = written(kind, found)
    found = [text.replace("\r\n", "\n") for text in found]
    file = tmp_path_factory.mktemp("table") / f"a{kind}{pack}"
    file.write_bytes(PACK[pack](data))
    named = {"column": "text"} if kind in (".csv", ".tsv") else {}
    expected = [text for text in found if text.strip()]
    assert texts(file, **named) == expected
    assert "".join(read_text_parts([file], ReadOptions(**named))) == "".join(found)


def test_a_dot_leads_into_a_field(tmp_path: Path) -> None:
    row = {"meta": {"body": {"text": "one"}}, "a.b": "two", "a": {"b": "three"}}
    (tmp_path / "a.jsonl").write_text(json.dumps(row) + "\n\n \n")
    (tmp_path / "a.parquet").write_bytes(parquet_of([row]))
    for name in ("a.jsonl", "a.parquet"):
        assert texts(tmp_path / name, field="meta.body.text") == ["one"]
        assert texts(tmp_path / name, field="a.b") == ["two"]


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ('{"text": "one"', r"line 3 of .*a\.jsonl is not JSON \(Expecting ',' delimiter"),
        ("[" * 100_000, r"line 3 of .*a\.jsonl is not valid JSON \("),
        ('{"n": ' + "9" * 5000 + "}", r"line 3 of .*a\.jsonl is not valid JSON \("),
        ('["one"]', r"line 3 of .*a\.jsonl has no field 'text': it is a list, not an object"),
        ('{"id": 1, "body": "one"}', r"line 3 of .*a\.jsonl has no 'text': choose one of id, body"),
        ("{}", r"line 3 of .*a\.jsonl has no 'text': nothing is there"),
        (
            '{"text": null}',
            r"'text' in line 3 of .*a\.jsonl is null, not text: remove the line, or n",
        ),
        ('{"text": 3.5}', "is a number, not text: choose another --field"),
        ('{"text": ["one"]}', "is a list, not text"),
        (r'{"text": "a\ud800b"}', r"line 3 .*contains a lone surrogate \('\\ud800'\)"),
        (r'{"text": "a\u0000b"}', r"'text' in line 3 of .* holds a NUL character"),
        ('{"text": "\0"}', r"a\.jsonl holds a NUL byte on line 3"),
    ],
)
def test_a_line_that_is_no_document_is_named(tmp_path: Path, line: str, sentence: str) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text('{"text": "\\ud83d\\ude00"}\n\n' + line + "\n")
    with pytest.raises(UserError, match=sentence):
        texts(file)


def test_a_number_takes_the_first_row_for_text_and_a_name_does_not(tmp_path: Path) -> None:
    for name, data in (
        ("a.tsv", b"0\tone \"b\n\n1\t'two\r\n"),
        ("b.csv", b'0,"one ""b"\n\n1,\'two\r\n'),
    ):
        (tmp_path / name).write_bytes(data)
        assert texts(tmp_path / name, column=2) == ['one "b', "'two"]
        assert texts(tmp_path / name, column='one "b') == ["'two"]
        assert texts(tmp_path / name, column="1") == ["0", "1"]


def test_quotes_hold_line_ends(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_bytes('\ufefftext,label\r\n"one,\r\n\r\ntwo",1\r\n三,0\r\n'.encode())
    assert texts(file, column="text") == ["one,\n\ntwo", "三"]


@pytest.mark.parametrize(
    ("name", "data", "column", "sentence"),
    [
        ("a.tsv", "x\ty\tz\n", None, r"a\.tsv has 3 columns \(x, y, z\): choose the one"),
        ("a.tsv", "x\ty\n1\t2\n", "w", r"the first row of .*a\.tsv has no 'w': choose one of x, y"),
        ("a.csv", "x,y\n", "3", r"--column 3: .*a\.csv has 2 columns \(x, y\), counted from 1"),
        ("a.csv", "x,y\n", "0", "--column 0:"),
        ("a.tsv", "x\ty\n1\t2\n\n3\n", "y", r"line 4 of .*a\.tsv has no column 2, it is"),
        (
            "a.csv",
            'x,y\n"1\n",2\n3\n',
            "y",
            r"line 4 of .*a\.csv has no column 2, it is too short",
        ),
        ("a.csv", 'x,y\n1,2\n3,"4\n5,6\n', "y", r"begins on line 3 of .*a\.csv is not CSV \(unexp"),
        ("a.csv", 'x\n"1"2\n', "x", r"begins on line 2 of .*a\.csv is not CSV"),
        ("a.csv", b"x\ncaf\xe9\n", "x", r"a\.csv is not UTF-8 at byte 5 \(line 2\)"),
        ("a.tsv", "\n\nx\ty\n1\n", "2", r"line 4 of .*a\.tsv has no column 2"),
        ("a.tsv", "", "x", r"a\.tsv is empty"),
        ("a.tsv", "x\ty\n", "y", r"a\.tsv is empty"),
        ("a.parquet", "plain text", None, r"a\.parquet is not a valid Parquet file"),
    ],
)
def test_a_bad_table_is_named(
    tmp_path: Path, name: str, data: str | bytes, column: str | None, sentence: str
) -> None:
    (tmp_path / name).write_bytes(data.encode() if isinstance(data, str) else data)
    with pytest.raises(UserError, match=sentence):
        texts(tmp_path / name, column=column)


def test_a_forgotten_quote_does_not_swallow_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(documents, "MAX_CELL_CHARS", 100)
    file = tmp_path / "a.csv"
    file.write_text('x\n"one\n' + "two\n" * 1000)
    with pytest.raises(UserError, match=r"line 2 of .* is not CSV \(field larger than field limit"):
        texts(file, column="x")


def test_parquet_is_streamed_and_knows_its_place(tmp_path: Path) -> None:
    file = tmp_path / "a.parquet"
    file.write_bytes(
        parquet_of([{"id": n, "text": f"text {n}"} for n in range(1000)], row_group_size=300)
    )
    found = list(read_documents([file]))
    assert [document.text for document in found] == [f"text {n}" for n in range(1000)]
    places = [document.bytes_read for document in found]
    assert places == sorted(places)
    assert 0 < places[0] < places[-1] == file_sizes([file])[file]
    assert texts(file, column=2) == texts(file, column="text")


def test_a_bad_parquet_row_is_named(tmp_path: Path) -> None:
    file = tmp_path / "a.parquet"
    file.write_bytes(parquet_of([{"id": 1, "text": "one"}, {"id": 2, "text": None}]))
    with pytest.raises(
        UserError, match=r"'text' in row 2 of .*a\.parquet is null, .*: remove the row"
    ):
        texts(file)
    with pytest.raises(UserError, match=r"'id' in row 1 of .*a\.parquet is a number"):
        texts(file, field="id")
    with pytest.raises(UserError, match=r"a\.parquet has no 'body': choose one of id, text"):
        texts(file, column="body")
    with pytest.raises(UserError, match=r"--column 3: .*a\.parquet has 2 columns \(id, text\)"):
        texts(file, column=3)
    file.write_bytes(file.read_bytes()[:-20])
    with pytest.raises(UserError, match=r"a\.parquet is not a valid Parquet file"):
        texts(file)


FAULTY_ROWS = {  # as bytes: the rows 2, 4, 5, 7 and 8 are wrong
    "a.jsonl": "\n".join(
        ('{"text": "one"}', "{", '{"text": "two"}', "[]", "3", '{"text": "four"}', "[", '"five"')
    ).encode(),
    "a.tsv": b"a\tone\nb\nc\ttwo\nd\ne\nf\tthree\ng\nh\n",
    "a.csv": b"a,one\nb\nc,two\nd\ne\nf,three\ng\nh\n",
}
COLUMN_TWO = ReadOptions(column="2")


@pytest.mark.parametrize("name", FAULTY_ROWS)
@pytest.mark.parametrize("read", [read_documents, read_text_parts])
def test_one_error_names_the_first_faulty_rows_and_counts_all(
    tmp_path: Path, name: str, read: Callable[..., Any]
) -> None:
    (tmp_path / name).write_bytes(FAULTY_ROWS[name])
    options = ReadOptions() if name == "a.jsonl" else COLUMN_TWO
    with pytest.raises(UserError) as raised:
        list(read([tmp_path / name], options))
    heading, *listed = str(raised.value).split("\n")
    assert heading == f"5 rows of {tmp_path / name} cannot be read, the first of them:"
    found = [line.split(" of ")[0] for line in listed]
    assert found == ["  line 2", "  line 4", "  line 5"]


def test_faulty_rows_of_parquet_are_counted_too(tmp_path: Path) -> None:
    rows = [{"text": None if number % 2 else "some text"} for number in range(1, 1000)]
    (tmp_path / "a.parquet").write_bytes(parquet_of(rows))
    with pytest.raises(UserError) as raised:
        list(read_documents([tmp_path / "a.parquet"]))
    heading, *listed = str(raised.value).split("\n")
    assert heading == f"500 rows of {tmp_path}/a.parquet cannot be read, the first of them:"
    assert [line.split(" of ")[0] for line in listed] == [
        "  'text' in row 1",
        "  'text' in row 3",
        "  'text' in row 5",
    ]


def test_rows_are_counted_as_far_as_a_file_can_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "a.jsonl"
    file.write_bytes(b"{\n" * READ_BYTES + b"\xff\n")  # the last byte is read after rows
    counted = r"^\d[\d,]* rows or more of .*a\.jsonl cannot be read, the first of them:(\n.*){3}$"
    with pytest.raises(UserError, match=counted):
        list(read_documents([file]))
    monkeypatch.setattr(row_faults, "MAX_CHECKED_BYTES", 0)
    file.write_bytes(b"{\n" * READ_BYTES)  # two blocks, of which one is read
    with pytest.raises(UserError, match=r"^52\d,\d{3} rows or more of .*(\n.*){3}$"):
        list(read_documents([file]))


def test_the_faulty_rows_of_several_files_are_in_one_error(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b"{\n[\n")
    (tmp_path / "b.jsonl").write_bytes(b'{"text": "one"}\n{\n')
    with pytest.raises(UserError) as raised:
        list(read_documents([tmp_path]))
    starts = [line.split(f" of {tmp_path}")[0] for line in str(raised.value).split("\n")]
    assert starts == [
        "2 files cannot be read:",
        "  2 rows",
        "    line 1",
        "    line 2",
        "  line 2",
    ]


def test_missing_pyarrow_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.parquet").write_bytes(parquet_of([{"text": "one"}]))
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(UserError, match=r"pip install 'kinfolk\[parquet\]'"):
        texts(tmp_path)


@pytest.mark.real
def test_real_tables_hold_the_rows_they_claim(real: Path) -> None:
    assert len(texts(real / "wikinews_en" / "valid.jsonl.gz")) == 267
    assert len(texts(real / "wikinews_en" / "valid.jsonl.gz", field="title")) == 267
    assert len(texts(real / "sst2" / "dev.tsv", column="sentence")) == 6735
    assert len(texts(real / "cola" / "dev.tsv", column=4)) == 1043
    reviews = real / "chnsenticorp_htl" / "ChnSentiCorp_htl_all.csv.gz"
    assert abs(len(texts(reviews, column="review")) - 7766) <= 1
    questions = real / "commonsense_qa" / "dev_rand_split.jsonl.gz"
    assert len(texts(questions, field="question.stem")) == 1221
