"""Completion rows are read from JSON, lines and the Children's Book Test."""

import json
from pathlib import Path

import pytest

from kinfolk.errors import UserError
from kinfolk.tasks.formats.base import FileSpec, ReadReport, read_rows
from kinfolk.tasks.rows import CompletionRow


def read(path: Path, report: ReadReport | None = None) -> list[CompletionRow]:
    return list(read_rows(path, FileSpec("complete", "lines", ""), report=report))


def test_json_has_a_context_and_its_word(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    records = [
        {"prompt": "I don't care about", "label": "signs"},
        {"context": "He", "target": "ran", "options": ["ran", "sea"]},
        {"text": "She said no"},
    ]
    path.write_text("\n".join(map(json.dumps, records)))
    assert read(path) == [
        CompletionRow("I don't care about", "signs", None, 1),
        CompletionRow("He", "ran", ("ran", "sea"), 2),
        CompletionRow("She said", "no", None, 3),
    ]
    path.write_text('{"a": 1}')
    with pytest.raises(UserError, match=r"line 1 of .* has no context: add a field prompt"):
        read(path)


def test_a_line_is_a_context_and_its_last_word(tmp_path: Path) -> None:
    path, notes = tmp_path / "a.txt", ReadReport()
    path.write_text("so he went home \n\nno\n")
    assert read(path, notes) == [CompletionRow("so he went", "home", None, 1)]
    assert notes.messages() == ["1 lines of one word skipped, on lines: 3"]


BOOK = (
    "1 Once upon a time .\n2 There was a cat .\n3 The XXXXX slept .\tcat\t\tdog|cat|sea\n\n"
    "1 He ran .\n2 So did XXXXX .\tshe\t\tshe|it\n"
)


def test_a_hole_in_a_book_has_a_word_before_and_after(tmp_path: Path) -> None:
    path = tmp_path / "cbt.txt"
    path.write_text(BOOK)
    assert read(path) == [
        CompletionRow("Once upon a time . There was a cat . The", "cat", ("dog", "cat", "sea"), 3,
                   " slept ."),
        CompletionRow("He ran . So did", "she", ("she", "it"), 6, " ."),
    ]  # fmt: skip


def test_an_answer_that_is_no_candidate_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "cbt.txt"
    path.write_text(BOOK.replace("\tshe\t", "\thim\t"))
    with pytest.raises(UserError, match=r"line 6 of .*'him' is not among its candidates"):
        read(path)
    path.write_text("Once upon\n" + BOOK)
    with pytest.raises(UserError, match=r"line 1 of .* begins with 'Once': .* numbers"):
        read(path)


def test_an_answer_that_is_no_option_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"prompt": "the dog says", "label": "woof", "options": ["moo", "hoot"]}\n')
    with pytest.raises(
        UserError, match=r"line 1 of .*: the answer 'woof' is not among its options"
    ):
        read(path)
