"""The task and the columns of a file are detected and described; options of the user go first."""

import gzip
import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from kinfolk.errors import UserError
from kinfolk.tasks.formats.base import Columns, FileSpec, ReadReport, parse_columns, read_rows
from kinfolk.tasks.formats.detect import detect_format
from kinfolk.tasks.formats.labelled_file import LabelledFile
from kinfolk.tasks.rows import (
    LabelledText,
    MultipleChoiceRow,
    QuestionRow,
    Row,
    SourceTarget,
    TaggedSentence,
)


def file(folder: Path, name: str, *lines: str) -> Path:
    path = folder / name
    data = "".join(f"{line}\n" for line in lines).encode()
    path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return path


def objects(folder: Path, *records: Any) -> Path:
    return file(folder, "a.jsonl", *(json.dumps(record, ensure_ascii=False) for record in records))


@pytest.mark.parametrize(
    ("header", "label", "found"),
    [
        ("sentence\tlabel", "1", ("classify", "sentence,label")),
        ("id\tText\tLabel", "1", ("classify", "Text,Label")),
        (
            "premise\thypothesis\tgold_label",
            "neutral",
            ("classify", "premise,hypothesis,gold_label"),
        ),
        ("index\tsentence1\tsentence2\tscore", "3.25", ("regress", "sentence1,sentence2,score")),
        ("sentence1\tsentence2\tscore", "3", ("classify", "sentence1,sentence2,score")),
        (
            "question1\tquestion2\tis_duplicate",
            "0",
            ("classify", "question1,question2,is_duplicate"),
        ),
        ("source\ttarget", "ein Film", ("write", "source,target")),
        ("document\tsummary", "a film", ("write", "document,summary")),
    ],
)
def test_named_columns_are_known(
    tmp_path: Path, header: str, label: str, found: tuple[str, str]
) -> None:
    width = header.count("\t")
    lines = ["\t".join([*[f"a film {n}"] * width, label]) for n in range(3)]
    for kind in (".tsv", ".csv"):
        mark = "\t" if kind == ".tsv" else ","
        path = file(tmp_path, f"a{kind}", *(line.replace("\t", mark) for line in [header, *lines]))
        one = detect_format(path)
        assert (one.task, str(one.columns), one.header) == (*found, True)
        assert one.description.startswith(one.task)


def guessed(path: Path) -> tuple[str, str, bool]:
    one = detect_format(path)
    return one.task, str(one.columns), one.header


def test_without_names_the_label_is_the_column_of_few_short_values(tmp_path: Path) -> None:
    lines = [f"gj04\t{n % 2}\t\tThe {n} sailors rode." for n in range(9)]
    assert guessed(file(tmp_path, "a.tsv", *lines)) == ("classify", "4,2", False)
    lines = [f"这是第{n}条新闻\t{('体育', '财经')[n % 2]}" for n in range(9)]
    assert guessed(file(tmp_path, "b.tsv", *lines)) == ("classify", "1,2", False)
    lines = [f"{n}\tone text {n}\tsome other {n}\t{'yes' if n % 3 else 'no'}" for n in range(30)]
    assert guessed(file(tmp_path, "c.tsv", *lines)) == ("classify", "2,3,4", False)


def test_numbers_are_amounts_when_they_are_not_few_whole_ones(tmp_path: Path) -> None:
    lines = [f"{n / 4:.2f}\ta text {n}\tanother {n}" for n in range(9)]
    assert guessed(file(tmp_path, "a.tsv", *lines)) == ("regress", "2,3,1", False)
    lines = [f"{n % 5}\ta text {n}\tanother {n}" for n in range(9)]
    assert guessed(file(tmp_path, "b.tsv", *lines)) == ("classify", "2,3,1", False)
    lines = ["text\tscore", *(f"a text {n}\t{n}" for n in range(40))]
    assert guessed(file(tmp_path, "c.tsv", *lines)) == ("regress", "text,score", True)
    lines = ["text\tlabel", *(f"a text {n}\t{n}" for n in range(40))]
    assert guessed(file(tmp_path, "d.tsv", *lines)) == ("classify", "text,label", True)


def test_names_that_nobody_knows_are_kept(tmp_path: Path) -> None:
    lines = ["satz\tnote", *(f"ein Satz {n}\t{n % 2}" for n in range(6))]
    assert guessed(file(tmp_path, "a.tsv", *lines)) == ("classify", "satz,note", True)


def test_two_texts_without_a_label_are_a_source_and_its_target(tmp_path: Path) -> None:
    lines = [f"I see {n} cats.\t我看见{n}只猫。\tCC-BY {n} by a" for n in range(9)]
    assert guessed(file(tmp_path, "cmn.txt.gz", *lines)) == ("write", "1,2", False)


def test_a_named_pair_without_a_label_is_to_be_predicted(tmp_path: Path) -> None:
    lines = ["sentence1\tsentence2", *(f"a cat {n}\ta dog {n}" for n in range(4))]
    path = file(tmp_path, "test.tsv", *lines)
    assert guessed(path) == ("classify", "sentence1,sentence2,", True)
    assert next(read_rows(path, detect_format(path))) == LabelledText(
        ("a cat 0", "a dog 0"), None, 2
    )


def test_one_ragged_row_does_not_hide_the_columns(tmp_path: Path) -> None:
    path = file(tmp_path, "a.tsv", *(f"a text {n}\t{n % 2}" for n in range(9)), "broken")
    found = detect_format(path)
    assert found.columns == Columns((1,), 2)
    with pytest.raises(UserError, match="line 10"):
        list(read_rows(path, found))


@pytest.mark.parametrize(
    ("record", "task", "form"),
    [
        ({"text": "so", "label": 1}, "classify", "table"),
        ({"sentence1": "a", "sentence2": "b", "label": "0"}, "classify", "table"),
        ({"question": "q", "passage": "p", "answer": True}, "classify", "table"),
        ({"sentence1": "a", "sentence2": "b", "score": 0.5}, "regress", "table"),
        ({"words": ["a"], "tags": ["O"]}, "tag", "objects"),
        ({"context": "a", "endings": ["b", "c"], "label": 0}, "choose", "objects"),
        ({"prompt": "a", "label": "b"}, "complete", "objects"),
        ({"question": "q", "answer": ["a", "b"]}, "write", "table"),
        ({"article": "a long one", "summary": "one"}, "write", "table"),
        ({"data": [{"paragraphs": []}]}, "span", "squad"),
        ({"sentences": [["a"]], "clusters": []}, "coref", "objects"),
        ({"id": 1, "title": "t", "text": "so"}, "lm", "text"),
        ({"title": "t", "paragraphs": ["so"]}, "lm", "text"),
    ],
)
def test_json_is_known_by_its_fields(tmp_path: Path, record: Any, task: str, form: str) -> None:
    found = detect_format(objects(tmp_path, record))
    assert (found.task, found.format) == (task, form)


@pytest.mark.parametrize(
    ("lines", "task", "form"),
    [
        (["EU NNP B-ORG", "ran VB O", "", "He PRP O"], "tag", "columns"),
        (["北\tB-LOC", "京\tI-LOC", "", "我\tO"], "tag", "columns"),
        (["科0\tO", "技1\tO", "", "全0\tO"], "tag", "digits"),
        (["迈向/v  充满/v", "希望/n"], "tag", "slashes"),
        (["(3 (2 It) (4 works))", "(2 so)"], "classify", "trees"),
        (["1 Once .", "2 The XXXXX ran .\tcat\t\tcat|dog"], "complete", "lines"),
        (["#begin document (a); part 000", "a 0 0 b NN -", "#end document"], "coref", "conll2012"),
        (["= A title =", "Plain text, of more words.", "", "And so on."], "lm", "text"),
        (["two words", "and more", "", "so on"], "lm", "text"),
        ([*["a b O"] * 20, "", "broken"], "tag", "columns"),
    ],
)
def test_lines_are_known_by_how_they_look(
    tmp_path: Path, lines: list[str], task: str, form: str
) -> None:
    found = detect_format(file(tmp_path, "a.txt", *lines))
    assert (found.task, found.format) == (task, form)


def test_words_in_columns_may_be_called_a_table(tmp_path: Path) -> None:
    path = file(tmp_path, "train.tsv", "北\tB-LOC", "京\tI-LOC", "", "我\tO")
    assert guessed(path) == ("tag", "1,2", False)


def test_the_users_columns_go_first(tmp_path: Path) -> None:
    path = file(tmp_path, "a.tsv", "text\tlabel\tmark", "so\t1\t2.5", "no\t0\t3")
    found = detect_format(path, columns=parse_columns("text,mark"))
    assert (found.task, found.header) == ("regress", True)
    assert [row.label for row in labelled(path, found)] == [2.5, 3.0]
    found = detect_format(path, columns=parse_columns("1,2"))
    assert [row.label for row in labelled(path, found)] == ["1", "0"]
    found = detect_format(path, columns=parse_columns("text,label"), task="write")
    assert next(read_rows(path, found)) == SourceTarget("so", "1", 2)


def test_the_users_task_goes_first(tmp_path: Path) -> None:
    path = file(tmp_path, "a.tsv", "text\tlabel", "so\t1", "no\t0")
    assert next(labelled(path, detect_format(path, task="regress"))).label == 1.0
    with pytest.raises(UserError, match=r"--task tag: .* was detected as classify"):
        detect_format(path, task="tag")
    with pytest.raises(UserError, match="--columns does not apply to --task span"):
        detect_format(path, task="span", columns=parse_columns("text,label"))
    words = file(tmp_path, "b.txt", "EU NNP B-ORG", "", "He PRP O")
    found = detect_format(words, task="tag", columns=parse_columns("1,2"))
    assert [row.tags for row in read_rows(words, found) if isinstance(row, TaggedSentence)] == [
        ("NNP",),
        ("PRP",),
    ]
    assert detect_format(file(tmp_path, "c.txt", "so he ran"), task="complete").format == "lines"


def test_two_files_are_pairs_by_line(tmp_path: Path) -> None:
    source = file(tmp_path, "a.en", "a cat", "", "a dog")
    target = file(tmp_path, "a.de.gz", "eine Katze", "x", "ein Hund")
    notes, found = ReadReport(), detect_format(source, target=target)
    assert list(read_rows(source, found, target=target, report=notes)) == [
        SourceTarget("a cat", "eine Katze", 1),
        SourceTarget("a dog", "ein Hund", 3),
    ]
    assert notes.messages() == ["1 pairs with an empty side skipped, on lines: 2"]
    short = file(tmp_path, "b.de", "eine Katze")
    with pytest.raises(UserError, match=r"has 3 lines and .* has 1"):
        list(read_rows(source, found, target=short))


def test_what_cannot_be_guessed_is_asked_for(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no text and label columns .*--columns text,label"):
        detect_format(file(tmp_path, "a.tsv", "1\t2", "3\t4"))
    with pytest.raises(UserError, match="is empty"):
        detect_format(file(tmp_path, "b.tsv"))
    for name in ("b.json", "b.jsonl"):  # a list without records
        with pytest.raises(UserError, match="is empty"):
            detect_format(file(tmp_path, name, "[]"))
    with pytest.raises(UserError, match="is empty"):
        detect_format(file(tmp_path, "b.jsonl"))
    with pytest.raises(UserError, match="no such file"):
        detect_format(tmp_path / "none.tsv")
    text = file(tmp_path, "c.txt", "Only words, no labels.")
    assert list(read_rows(text, detect_format(text))) == [
        SourceTarget("", "Only words, no labels.", 1)
    ]


def labelled(path: Path, found: FileSpec) -> Iterator[LabelledText]:
    return (row for row in read_rows(path, found) if isinstance(row, LabelledText))


# Every labelled file of the real data, as its page says; but one text of xsum_sample is NaN, and in
# srl_up_en_ewt the page also counts predicates whose sense is empty.
REAL = Path(__file__).with_name("labelled.tsv").read_text(encoding="utf-8").splitlines()[1:]


MOST = 500  # rows that are read by default; `slow` reads whole files
MOST_JSON = 2000  # one JSON text is read whole
CASES = [line.split("\t") for line in REAL]
LONG = [cells for cells in CASES if int(cells[3]) > (MOST_JSON if ".json." in cells[0] else MOST)]
BEGUN = [cells for cells in LONG if ".json." not in cells[0]]


@pytest.mark.real
@pytest.mark.parametrize(
    ("name", "task", "where", "count", "labels"),
    [
        pytest.param(*cells, marks=[pytest.mark.slow] if cells in LONG else [], id=cells[0])
        for cells in CASES
    ],
)
def test_real_files_are_guessed_and_read(
    real: Path, name: str, task: str, where: str, count: str, labels: str
) -> None:
    path, target, found = opened(real, name)
    assert (found.task, str(found.columns or "-")) == (task, where)
    read = list(read_rows(path, found, target=target))
    assert len(read) == int(count)
    assert (kinds(read) or "-") == labels


@pytest.mark.real
@pytest.mark.parametrize(
    ("name", "task", "where"), [cells[:3] for cells in BEGUN], ids=[cells[0] for cells in BEGUN]
)
def test_long_real_files_are_guessed_and_begun(
    real: Path, name: str, task: str, where: str
) -> None:
    path, target, found = opened(real, name)
    assert (found.task, str(found.columns or "-")) == (task, where)
    assert len(list(islice(read_rows(path, found, target=target), MOST))) == MOST


def opened(real: Path, name: str) -> tuple[Path, Path | None, FileSpec]:
    """Guess what a file of the real data is for; its targets may lie in another one."""
    path, _, other = name.partition(" + ")
    target = (real / path).parent / other if other else None
    return real / path, target, detect_format(real / path, target=target)


def kinds(read: list[Row]) -> str:
    """Name the different labels, or count them where they are many."""
    different: set[str] = set()
    for row in read:
        match row:
            case LabelledText(label=str(label)):
                different.add(label)
            case LabelledText(label=float(label)):
                different |= {"0..5"} if 0 <= label <= 5 else {str(label)}
            case MultipleChoiceRow(label=label):
                different.add(str(label))
            case TaggedSentence(tags=tags):
                different |= set(tags or ())
            case QuestionRow():
                different.add("possible" if row.answerable else "impossible")
            case _:
                pass
    return " ".join(sorted(different)) if len(different) <= 8 else str(len(different))


@pytest.mark.real
def test_the_first_rows_of_real_files_say_what_they_say(real: Path) -> None:
    def first(name: str) -> Row:
        return next(read_rows(real / name, detect_format(real / name)))

    assert first("sick/train.txt") == LabelledText(
        (
            "A group of kids is playing in a yard and an old man is standing in the background",
            "A group of boys in a yard is playing and a man is standing in the background",
        ),
        "NEUTRAL",
        2,
    )
    assert first("sts_b/sts-train.tsv") == LabelledText(
        ("A plane is taking off.", "An air plane is taking off."), 5.0, 1
    )
    assert first("weibo_ner/weiboNER_2nd_conll.test") == TaggedSentence(
        tuple("一节课的时间真心感动了李开复感动"),
        (*"O" * 11, "B-PER.NAM", "I-PER.NAM", "I-PER.NAM", "O", "O"),
        1,
    )


@pytest.mark.real
def test_answers_of_cmrc_that_are_off_are_counted(real: Path) -> None:
    """In 205 answers the file's own offset is wrong: 12 are elsewhere, 193 nowhere."""
    counts = [0, 0]
    for name in ("cmrc2018_dev.json.gz", "cmrc2018_trial.json.gz"):
        notes, path = ReadReport(), real / "cmrc2018" / name
        read = [
            row
            for row in read_rows(path, detect_format(path), report=notes)
            if isinstance(row, QuestionRow)
        ]
        counts[0] += notes.counts["answers found at another offset than given"]
        counts[1] += sum(start < 0 for row in read for _, start in row.answers)
        for row in islice(read, 500):
            assert all(row.context[a : a + len(t)] == t for t, a in row.answers if a >= 0)
    assert counts == [12, 193]


def test_a_header_may_hold_a_number(tmp_path: Path) -> None:
    path = file(tmp_path, "a.tsv", "sentence\tlabel\t2020", "so it is\tgood\t1", "no\tbad\t2")
    assert guessed(path) == ("classify", "sentence,label", True)


def test_two_columns_of_one_name_are_refused_until_they_are_numbered(tmp_path: Path) -> None:
    path = file(tmp_path, "a.tsv", "text\ttext\tlabel", "so it\tis\tgood", "no\tway\tbad")
    with pytest.raises(UserError, match=r"2 columns of .* are called 'text': rename them"):
        list(read_rows(path, detect_format(path)))
    found = detect_format(path, columns=parse_columns("1,2,3"))
    assert [row.texts for row in read_rows(path, found)] == [("so it", "is"), ("no", "way")]


@pytest.mark.parametrize(("labels", "kept"), [("+-+-", "+-+-"), ("1--1", "1--1"), ("ab-a", "aba")])
def test_a_minus_is_a_class_beside_one_other(tmp_path: Path, labels: str, kept: str) -> None:
    rows = [f"film {n} is so\t{label}" for n, label in enumerate(labels)]
    path = file(tmp_path, "a.tsv", "text\tlabel", *rows)
    for columns in (None, parse_columns("text,label")):
        found = read_rows(path, detect_format(path, columns=columns))
        assert [row.label for row in found] == [*kept]


@pytest.mark.parametrize("index", ["1", None, [1]])
def test_winograd_spans_of_another_type_are_refused(tmp_path: Path, index: Any) -> None:
    target = {"span1_index": 0, "span1_text": "Ann", "span2_index": index, "span2_text": "she"}
    path = objects(tmp_path, {"text": "Ann says she", "target": target, "label": "true"})
    with pytest.raises(UserError, match=r"'target' in line 1 of .* must have indices"):
        list(read_rows(path, detect_format(path)))


def test_a_list_of_lists_of_words_is_no_passage_with_questions(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no text and label columns were detected"):
        detect_format(objects(tmp_path, [["so", "it"], ["O", "O"]]))


def test_columns_of_an_empty_file_are_refused(tmp_path: Path) -> None:
    for columns in ("1,2", "text,label"):
        with pytest.raises(UserError, match="is empty"):
            detect_format(file(tmp_path, "a.csv", ""), columns=parse_columns(columns))


def test_a_header_alone_has_no_rows(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no text and label columns were detected"):
        detect_format(file(tmp_path, "a.tsv", "label\tscore"))


def test_a_tagger_has_one_column_of_words(tmp_path: Path) -> None:
    path = file(tmp_path, "a.txt", "so X O", "", "it X O")
    with pytest.raises(UserError, match="--columns 1,2,3: a tagger reads one column of words"):
        detect_format(path, task="tag", columns=parse_columns("1,2,3"))


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("a.tsv", ["sentence\tlabel", *["a fine day\tgood", "a bad day\tpoor"] * 3]),
        ("a.jsonl", ['{"sentence": "a fine day", "label": "good"}'] * 3),
    ],
)
def test_a_text_column_that_is_not_there_is_refused_before_the_rows_are_read(
    name: str, lines: list[str], tmp_path: Path
) -> None:
    (tmp_path / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    columns = Columns(("text",), "label")
    with pytest.raises(UserError, match="has no 'text': choose one of sentence, label"):
        detect_format(tmp_path / name, columns=columns)
    found = detect_format(tmp_path / name, columns=Columns(("sentence",), "label"))
    assert found.description == "classify column sentence by column label"


def test_two_fields_of_json_are_found_by_their_contents(tmp_path: Path) -> None:
    rows = [{"意见": f"第{n}家酒店的房间很大", "结论": ("好", "差")[n % 2]} for n in range(9)]
    found = detect_format(objects(tmp_path, *rows))
    assert (found.task, found.columns) == ("classify", Columns(("意见",), "结论"))
    three = [{**row, "作者": "甲"} for row in rows]
    wrong = (
        "no text and label columns were detected among 意见, 结论, 作者; .* --columns text,label$"
    )
    with pytest.raises(UserError, match=wrong):
        detect_format(objects(tmp_path, *three))


def test_columns_are_a_text() -> None:
    with pytest.raises(UserError, match=r"columns=\('text', 'label'\) must be a text such as"):
        parse_columns(("text", "label"))  # type: ignore[arg-type]


REVIEWS = [f"第{n}家酒店的房间很大，服务也不错\t{('好评', '差评')[n % 2]}" for n in range(20)]


@pytest.mark.parametrize(
    ("header", "found"),
    [
        ("评论内容\t情感", "评论内容,情感"),  # known names
        ("评论内容\t品类", "评论内容,品类"),  # the name of the label is not known
        ("客户意见\t结论", "客户意见,结论"),  # neither is: short names above texts and classes
    ],
)
def test_a_header_with_other_names_is_no_row(tmp_path: Path, header: str, found: str) -> None:
    path = file(tmp_path, "a.tsv", header, *REVIEWS)
    assert guessed(path) == ("classify", found, True)
    assert {row.label for row in read_rows(path, detect_format(path))} == {"好评", "差评"}


@pytest.mark.parametrize(
    "first",
    [
        "很好\t差评",  # a known label
        "这家酒店的房间很大，服务也很不错\t中评",  # as long as the other texts
        "很好。\t中评",  # a sentence
    ],
)
def test_a_first_row_like_the_others_is_no_header(tmp_path: Path, first: str) -> None:
    assert guessed(file(tmp_path, "a.tsv", first, *REVIEWS)) == ("classify", "1,2", False)


def test_where_labels_are_rare_a_new_one_in_the_first_row_is_no_header(tmp_path: Path) -> None:
    rare = [f"第{n}家酒店的房间很大，服务也不错\t罕见{n}" for n in range(3)]
    path = file(tmp_path, "a.tsv", "很好\t中评", *REVIEWS, *rare)
    assert guessed(path) == ("classify", "1,2", False)


def test_rows_without_a_label_do_not_hide_the_column_of_labels(tmp_path: Path) -> None:
    lines = ["评论内容\t品类", *REVIEWS[:10], "第11家酒店的房间很大\t", *REVIEWS[11:]]
    path = file(tmp_path, "a.tsv", *lines)
    assert guessed(path) == ("classify", "评论内容,品类", True)
    with pytest.raises(UserError, match=r"the label in line 12 of .* \(品类\) is empty"):
        list(read_rows(path, detect_format(path)))


@pytest.mark.parametrize(
    ("first", "others"),
    [
        ("怎么开户\t问题", "问题 投诉"),
        ("东西非常不错\t情感", "情感 主题"),
        ("how do I open it\tquestion", "question complaint"),
    ],
)
def test_a_label_that_is_a_usual_name_of_a_column_is_no_header(
    tmp_path: Path, first: str, others: str
) -> None:
    labels = others.split()
    rows = [f"the {n}th of many texts that are about something\t{labels[n % 2]}" for n in range(60)]
    path = file(tmp_path, "a.tsv", first, *rows)
    assert guessed(path) == ("classify", "1,2", False)
    assert len(list(read_rows(path, detect_format(path)))) == 61


def test_a_file_sorted_by_label_may_begin_with_a_label_of_its_own(tmp_path: Path) -> None:
    rows = [
        f"the {n}th of many texts that are about something\t{label}"
        for label in ("praise", "doubt")
        for n in range(60)
    ]
    path = file(tmp_path, "a.tsv", "lost it\tabuse", *rows)
    assert guessed(path) == ("classify", "1,2", False)


def test_semicolons_in_texts_are_not_those_between_columns(tmp_path: Path) -> None:
    rows = [f'"Dear sir; I write\nabout bill {n}; it is wrong",{"ab"[n % 2]}' for n in range(21)]
    path = file(tmp_path, "a.csv", *rows)
    assert len(list(read_rows(path, detect_format(path)))) == 21
    entities = file(tmp_path, "b.csv", *[f"the &amp; of {n} rows and of others" for n in range(9)])
    LabelledFile(entities).check_commas()


def test_semicolons_are_seen_where_texts_hold_commas(tmp_path: Path) -> None:
    rows = [f'"{n} rooms, all of them large";good' for n in range(4)]
    path = file(tmp_path, "a.csv", "text;label", *rows, '"one, two";bad')
    with pytest.raises(UserError, match=r"the columns of .* are separated by semicolons"):
        detect_format(path)
    rows = [f'"one; two; and {n}, three"' for n in range(4)]
    assert detect_format(file(tmp_path, "b.csv", "text", *rows)).columns == Columns(("text",), None)
