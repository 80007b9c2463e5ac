"""Labelled tables are read by name or number, and a bad row is named by its line."""

import csv
import gzip
import io
import json
import lzma
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinfolk.errors import UserError
from kinfolk.tasks.formats.base import Columns, FileSpec, ReadReport, parse_columns, read_rows
from kinfolk.tasks.rows import LabelledText, SourceTarget

PACK: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".xz": lzma.compress,
}


def read_labelled(
    path: Path,
    columns: Columns,
    *,
    task: str = "classify",
    header: bool = True,
    report: ReadReport | None = None,
) -> Iterator[LabelledText]:
    return read_rows(path, FileSpec(task, "table", "", columns, header), report=report)


def read_pairs(
    path: Path, columns: Columns, *, header: bool = True, report: ReadReport | None = None
) -> Iterator[SourceTarget]:
    return read_rows(path, FileSpec("write", "table", "", columns, header), report=report)


def file(folder: Path, name: str, *lines: str) -> Path:
    path = folder / name
    pack = PACK.get(path.suffix, bytes)
    path.write_bytes(pack("".join(f"{line}\n" for line in lines).encode()))
    return path


@pytest.mark.parametrize("pack", PACK)
def test_a_named_column_is_read_from_every_form(tmp_path: Path, pack: str) -> None:
    texts = ["一部好电影", "a 'bad' one"]
    forms = {
        ".tsv": ["label\ttext", f"pos\t{texts[0]}", f"neg\t{texts[1]}"],
        ".csv": ["label,text", f'pos,"{texts[0]}"', f"neg,{texts[1]}"],
        ".jsonl": [
            json.dumps({"text": text, "label": label}, ensure_ascii=False)
            for text, label in zip(texts, ["pos", "neg"], strict=True)
        ],
    }
    for kind, lines in forms.items():
        path = file(tmp_path, f"train{kind}{pack}", *lines)
        found = list(read_labelled(path, Columns(("text",), "label"), header=kind != ".jsonl"))
        first = 1 if kind == ".jsonl" else 2
        assert found == [
            LabelledText((texts[0],), "pos", first),
            LabelledText((texts[1],), "neg", first + 1),
        ]


def test_quotes_are_text_between_tabs_and_marks_between_commas(tmp_path: Path) -> None:
    tabbed = file(tmp_path, "a.tsv", '"so\t1')
    assert list(read_labelled(tabbed, Columns((1,), 2), header=False)) == [
        LabelledText(('"so',), "1", 1)
    ]
    quoted = file(tmp_path, "a.csv", '"so, he\nsaid ""no""",1', "yes,0")
    assert list(read_labelled(quoted, Columns((1,), 2), header=False)) == [
        LabelledText(('so, he\nsaid "no"',), "1", 1),
        LabelledText(("yes",), "0", 3),
    ]


CELLS = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1)
CLASSES = st.sampled_from(["pos", "neg", "中"])


@given(st.lists(st.tuples(CELLS, CELLS, CLASSES), min_size=1))
def test_what_csv_writes_is_read_back(
    tmp_path_factory: pytest.TempPathFactory, table: list[tuple[str, str, str]]
) -> None:
    path = tmp_path_factory.mktemp("csv") / "a.csv"
    text = io.StringIO(newline="")
    csv.writer(text).writerows([("one", "two", "label"), *table])
    path.write_text(text.getvalue(), encoding="utf-8", newline="")
    found = read_labelled(path, Columns(("one", "two"), "label"))
    assert [(*row.texts, row.label) for row in found] == table


def test_numbers_are_read_as_numbers(tmp_path: Path) -> None:
    path = file(tmp_path, "a.tsv", "3.8\ta b\tc d", "5\te\tf")
    found = list(read_labelled(path, Columns((2, 3), 1), task="regress", header=False))
    assert found == [LabelledText(("a b", "c d"), 3.8, 1), LabelledText(("e", "f"), 5.0, 2)]


def test_labels_of_json_are_written_as_json_writes_them(tmp_path: Path) -> None:
    path = file(tmp_path, "a.jsonl", *(f'{{"t": "x", "l": {v}}}' for v in ("true", "115", '"a"')))
    assert [row.label for row in read_labelled(path, Columns(("t",), "l"))] == ["true", "115", "a"]


def test_without_a_label_there_is_none(tmp_path: Path) -> None:
    path = file(tmp_path, "a.tsv", "text\tid", "so\t7")
    assert list(read_labelled(path, Columns(("text",), None))) == [LabelledText(("so",), None, 2)]


def test_a_field_of_a_field_and_a_list_of_texts(tmp_path: Path) -> None:
    path = file(tmp_path, "a.json", '{"a": {"b": ["x", "y"]}, "label": 1}')
    assert list(read_labelled(path, Columns(("a.b",), "label"))) == [LabelledText(("x y",), "1", 1)]


def test_winograd_spans_are_marked_where_they_are(tmp_path: Path) -> None:
    target = {"span1_text": "树叶", "span1_index": 2, "span2_text": "他", "span2_index": 5}
    row = {"text": "一片树叶，他走了", "target": target, "label": "false"}
    path = file(tmp_path, "a.json", json.dumps(row, ensure_ascii=False))
    assert list(read_labelled(path, Columns(("text",), "label"))) == [
        LabelledText(("一片_树叶_，[他]走了",), "false", 1)
    ]


@pytest.mark.parametrize("short", ["so", "so\t1\tmore"])
def test_a_ragged_row_is_refused_by_its_line(tmp_path: Path, short: str) -> None:
    path = file(tmp_path, "a.tsv", "text\tlabel", "so\t1", short)
    with pytest.raises(
        UserError, match=r"line 3 of .*a\.tsv has [13] columns .* has 2: check the tabs"
    ):
        list(read_labelled(path, Columns(("text",), "label")))


def test_more_columns_after_the_texts_are_noted_and_before_the_label_refused(
    tmp_path: Path,
) -> None:
    path, notes = file(tmp_path, "a.tsv", "1\tso", "0\tno\tlicence"), ReadReport()
    assert len(list(read_labelled(path, Columns((2,), 1), header=False, report=notes))) == 2
    assert "extra columns ignored" in notes.messages()[0]
    path = file(tmp_path, "b.tsv", "so\t1", "n\to\t0")
    with pytest.raises(UserError, match="line 2"):
        list(read_labelled(path, Columns((1,), 2), header=False))


@pytest.mark.parametrize("label", ["", " ", "nan", "NaN"])
@pytest.mark.parametrize("task", ["classify", "regress"])
def test_no_label_is_refused_by_its_line(tmp_path: Path, label: str, task: str) -> None:
    path = file(tmp_path, "a.tsv", "text\tlabel", "so\t1", f"no\t{label}")
    with pytest.raises(UserError, match=r"the label in line 3 of .*fix or remove the row"):
        list(read_labelled(path, Columns(("text",), "label"), task=task))


@pytest.mark.parametrize("label", ["null", "NaN", "[1]", '""'])
def test_no_label_in_json_is_refused_by_its_line(tmp_path: Path, label: str) -> None:
    path = file(tmp_path, "a.jsonl", f'{{"text": "so", "label": {label}}}')
    with pytest.raises(UserError, match="the label in line 1"):
        list(read_labelled(path, Columns(("text",), "label")))


@pytest.mark.parametrize("label", ["good", "inf"])
def test_a_word_is_no_number(tmp_path: Path, label: str) -> None:
    path = file(tmp_path, "a.tsv", "text\tlabel", f"so\t{label}")
    with pytest.raises(UserError, match=f'is "{label}", not a number: .*--task classify'):
        list(read_labelled(path, Columns(("text",), "label"), task="regress"))


def test_labels_nobody_agreed_on_are_left_out_and_noted(tmp_path: Path) -> None:
    path, notes = file(tmp_path, "a.tsv", "text\tlabel", "so\t-", "no\t1"), ReadReport()
    assert [
        row.number for row in read_labelled(path, Columns(("text",), "label"), report=notes)
    ] == [3]
    assert notes.messages() == ["1 rows without an agreed label ('-') skipped, on lines: 2"]


def test_an_absent_column_is_named_with_those_there_are(tmp_path: Path) -> None:
    path = file(tmp_path, "a.tsv", "text\tlabel", "so\t1")
    with pytest.raises(UserError, match="has no 'sentence': choose one of text, label"):
        list(read_labelled(path, Columns(("sentence",), "label")))
    with pytest.raises(UserError, match=r"--columns 3: .* has the columns 1 to 2"):
        list(read_labelled(path, Columns((1,), 3)))
    with pytest.raises(UserError, match=r"--columns text: .* is not a header; use numbers"):
        list(read_labelled(path, Columns(("text",), 2), header=False))
    path = file(tmp_path, "a.jsonl", '{"text": "so"}')
    with pytest.raises(UserError, match=r"line 1 of .* has no 'label': choose one of text"):
        list(read_labelled(path, Columns(("text",), "label")))


def test_broken_json_is_named_by_its_line(tmp_path: Path) -> None:
    path = file(tmp_path, "a.jsonl", '{"text": "so", "label": 1}', '{"text": ')
    with pytest.raises(UserError, match=r"line 2 of .* is not JSON"):
        list(read_labelled(path, Columns(("text",), "label")))
    path = file(tmp_path, "b.json", "[", '{"text": "so", "label": 1},', '{"text"}', "]")
    with pytest.raises(UserError, match=r"line 3 of .* is not JSON"):
        list(read_labelled(path, Columns(("text",), "label")))


def test_one_list_is_read_as_its_records(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps([{"text": "so", "label": n} for n in range(2)], indent=1))
    found = list(read_labelled(path, Columns(("text",), "label")))
    assert found == [LabelledText(("so",), "0", 1), LabelledText(("so",), "1", 2)]


def test_columns_are_read_as_a_user_writes_them() -> None:
    assert parse_columns("sentence1, sentence2,label") == Columns(
        ("sentence1", "sentence2"), "label"
    )
    assert parse_columns("4,2") == Columns((4,), 2)
    assert parse_columns("text,") == Columns(("text",), None)
    assert str(Columns(("a", 2), None)) == "a,2,"
    for bad in ("", "text", ",label"):
        with pytest.raises(UserError, match="must list the text columns and then the label"):
            parse_columns(bad)


def test_targets_are_written_and_empty_sides_noted(tmp_path: Path) -> None:
    path, notes = file(tmp_path, "a.tsv", "Hi.\t嗨。\tby", "\t好\tby", "No.\t\tby"), ReadReport()
    found = list(read_pairs(path, Columns((1,), 2), header=False, report=notes))
    assert found == [SourceTarget("Hi.", "嗨。", 1)]
    assert notes.messages() == ["2 pairs with an empty side skipped, on lines: 2, 3"]


def test_a_list_of_answers_is_a_target_and_others(tmp_path: Path) -> None:
    path = file(tmp_path, "a.jsonl", '{"question": "q", "answer": ["a", "b"]}')
    assert list(read_pairs(path, Columns(("question",), "answer"))) == [
        SourceTarget("q", "a", 1, ("b",))
    ]


def test_nothing_in_a_field_is_an_empty_side(tmp_path: Path) -> None:
    path, notes = (
        file(tmp_path, "a.jsonl", '{"a": NaN, "b": "t"}', '{"a": "s", "b": null}'),
        ReadReport(),
    )
    assert list(read_pairs(path, Columns(("a",), "b"), report=notes)) == []
    assert "2 pairs with an empty side skipped, on lines: 1, 2" in notes.messages()[0]


def test_rows_are_streamed(tmp_path: Path) -> None:
    path = file(tmp_path, "a.tsv.gz", *(f"{n} {'words ' * 100}\t{n % 2}" for n in range(40_000)))
    tracemalloc.start()
    count = sum(1 for _ in read_labelled(path, Columns((1,), 2), header=False))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert count == 40_000
    assert peak < 12 << 20  # of 24 MB


TREES = FileSpec("classify", "trees", "")


def test_words_are_the_leaves_and_the_label_is_on_top(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("(3 (2 It) (4 (2 -LRB-) (4 works)))\n\n(0 (1 没有) (2 意思))\n")
    assert list(read_rows(path, TREES)) == [
        LabelledText(("It ( works",), "3", 1),
        LabelledText(("没有 意思",), "0", 3),
    ]


@pytest.mark.parametrize("line", ["It works", "(3 (2 It) (4 works)", "(3)"])
def test_what_is_no_tree_is_refused_by_its_line(tmp_path: Path, line: str) -> None:
    path = tmp_path / "a.txt"
    path.write_text(f"(2 so)\n{line}\n")
    with pytest.raises(UserError, match=r"line 2 of .* is not a tree: write \(label"):
        list(read_rows(path, TREES))
