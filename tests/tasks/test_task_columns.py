"""Words in columns become sentences with tags; tags that do not nest are repaired."""

import gzip
from pathlib import Path

import pytest

from kinfolk.errors import UserError
from kinfolk.tasks.formats.base import Columns, FileSpec, ReadReport, read_rows
from kinfolk.tasks.rows import TaggedSentence

NEWS = """-DOCSTART- -X- -X- O

EU NNP B-NP B-ORG
rejects VBZ B-VP O

# # B-NP O
1 CD I-NP O
"""


def read(
    path: Path,
    format: str,
    report: ReadReport | None = None,
    *,
    word: int = 1,
    tag: int | None = -1,
) -> list[TaggedSentence]:
    return list(read_rows(path, FileSpec("tag", format, "", Columns((word,), tag)), report=report))


def file(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return path


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz"])
def test_the_first_column_is_the_word_and_the_last_the_tag(tmp_path: Path, name: str) -> None:
    assert read(file(tmp_path, name, NEWS), "columns") == [
        TaggedSentence(("EU", "rejects"), ("B-ORG", "O"), 3),
        TaggedSentence(("#", "1"), ("O", "O"), 6),
    ]


def test_another_column_may_be_the_tag_or_none(tmp_path: Path) -> None:
    path = file(tmp_path, "a.txt", NEWS)
    assert [row.tags for row in read(path, "columns", tag=2)] == [("NNP", "VBZ"), ("#", "CD")]
    assert [row.tags for row in read(path, "columns", tag=None)] == [None, None]
    with pytest.raises(UserError, match=r"line 3 of .* has 4 columns, so no 5: use numbers from 1"):
        read(path, "columns", tag=5)


def test_chinese_characters_between_tabs_and_line_ends_of_windows(tmp_path: Path) -> None:
    path = file(tmp_path, "a.bio", "北\tB-LOC\r\n京\tI-LOC\r\n\r\n\r\n我\tO")
    assert read(path, "columns") == [
        TaggedSentence(("北", "京"), ("B-LOC", "I-LOC"), 1),
        TaggedSentence(("我",), ("O",), 5),
    ]


def test_a_digit_behind_each_character_is_cut_off(tmp_path: Path) -> None:
    path = file(tmp_path, "a.train", "科0\tO\n技1\tO\n10\tO\n")
    assert read(path, "digits") == [TaggedSentence(("科", "技", "1"), ("O", "O", "O"), 1)]


def test_a_ragged_line_is_refused_by_its_number(tmp_path: Path) -> None:
    path = file(tmp_path, "a.txt", "EU B-ORG\n\nrejects\n")
    with pytest.raises(UserError, match=r"line 3 of .*a\.txt has 1 columns and .* have 2"):
        read(path, "columns")


def test_comments_and_joined_words_of_conllu_are_no_words(tmp_path: Path) -> None:
    lines = ["# sent_id = 1", "# text = it's", "1-2\tit's\t_\t_", "1\tit\tit\tPRON",
             "2\t's\tbe\tAUX", "2.1\tx\tx\tX", ""]  # fmt: skip
    path = file(tmp_path, "a.conllu", "\n".join(lines))
    assert read(path, "columns", word=2, tag=4) == [
        TaggedSentence(("it", "'s"), ("PRON", "AUX"), 4)
    ]


def test_comments_between_sentences_of_plain_columns_are_no_words(tmp_path: Path) -> None:
    path = file(tmp_path, "a.txt", "# id 1 of 2\nEU B-ORG\n\n# id 2\n# O\n")
    assert [row.words for row in read(path, "columns")] == [("EU",), ("#",)]


@pytest.mark.parametrize(
    ("tags", "mended", "count"),
    [
        ("O I-PER I-PER", "O B-PER I-PER", 1),
        ("B-PER I-LOC O", "B-PER B-LOC O", 1),
        ("I-PER O I-PER", "B-PER O B-PER", 2),
        ("B-PER I-PER O", "B-PER I-PER O", 0),
        ("O E-PER S-LOC", "O S-PER S-LOC", 1),
        ("NN I-x VB", "NN I-x VB", 0),
    ],
)
def test_tags_that_do_not_nest_are_repaired_and_counted(
    tmp_path: Path, tags: str, mended: str, count: int
) -> None:
    path = file(tmp_path, "a.txt", "".join(f"w {tag}\n" for tag in tags.split()))
    notes = ReadReport()
    (row,) = read(path, "columns", notes)
    assert row.tags == tuple(mended.split())
    assert sum(notes.counts.values()) == count


def test_roles_are_a_sentence_for_each_predicate(tmp_path: Path) -> None:
    cells = [
        ("She", "_", "ARG0", "_"),
        ("asked", "ask.01", "V", ""),
        ("to", "_", "_", "_"),
        ("go", "go.02", "ARG1", "V"),
    ]
    lines = ["\t".join([str(n), word, *"_" * 8, *rest]) for n, (word, *rest) in enumerate(cells, 1)]
    lines += ["", "\t".join(["1", "Yes", *"_" * 8, "_", "_"]), ""]
    path, notes = file(tmp_path, "a.conllu", "\n".join(lines)), ReadReport()
    words = ("She", "asked", "to", "go")
    assert read(path, "roles", notes) == [
        TaggedSentence(words, ("ARG0", "V", "O", "ARG1"), 1, 1),
        TaggedSentence(words, ("O", "O", "O", "V"), 1, 3),
    ]
    assert notes.messages() == ["1 sentences without a predicate skipped, on lines: 6"]


def test_a_tag_stands_behind_the_last_slash(tmp_path: Path) -> None:
    path = file(tmp_path, "a.txt", "迈向/v  1/2/m\n\n充满/v\n")
    assert read(path, "slashes") == [
        TaggedSentence(("迈向", "1/2"), ("v", "m"), 1),
        TaggedSentence(("充满",), ("v",), 3),
    ]
    with pytest.raises(UserError, match=r"word 2 on line 1 of .* is '充满': write word/tag"):
        read(file(tmp_path, "b.txt", "迈向/v 充满\n"), "slashes")


def test_json_has_a_list_of_words_and_one_of_tags(tmp_path: Path) -> None:
    path = file(tmp_path, "a.jsonl", '{"tokens": ["北", "京"], "ner_tags": ["B-LOC", "I-LOC"]}\n'
                '{"words": ["a"], "tags": [3]}\n{"words": ["a"]}\n')  # fmt: skip
    assert read(path, "objects") == [
        TaggedSentence(("北", "京"), ("B-LOC", "I-LOC"), 1),
        TaggedSentence(("a",), ("3",), 2),
        TaggedSentence(("a",), None, 3),
    ]
    path = file(tmp_path, "b.jsonl", '{"words": ["a", "b"], "tags": ["O"]}')
    with pytest.raises(
        UserError, match=r"'tags' in line 1 of .* for 2 words: give one tag per word"
    ):
        read(path, "objects")
