"""A parse tree becomes its words and the label on its top."""

from pathlib import Path

import pytest

from kinfolk.errors import UserError
from kinfolk.tasks.formats.base import FileSpec, read_rows
from kinfolk.tasks.rows import LabelledText

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
