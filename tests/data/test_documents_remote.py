"""A dataset is streamed by its name; here from a folder, and from a library that is made up."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import datasets
import pytest

from kinfolk.data.documents import (
    Document,
    ReadOptions,
    parse_dataset_name,
    read_documents,
    read_text_parts,
)
from kinfolk.data.files import file_sizes, find_files
from kinfolk.errors import UserError

ROWS = [{"id": 1, "text": "one"}, {"id": 2, "text": "二"}]


class Hub:
    """Stand for the library, and remember what it was asked."""

    def __init__(self, rows: list[dict[str, Any]], failure: Exception | None = None) -> None:
        self.rows, self.failure = rows, failure
        self.asked: tuple[Any, ...] = ()

    def __call__(self, name: str, configuration: str | None, **options: Any) -> Iterator[Any]:
        self.asked = (name, configuration, options)
        return self.answer()

    def answer(self) -> Iterator[Any]:
        yield from self.rows
        if self.failure is not None:
            raise self.failure


def hub(monkeypatch: pytest.MonkeyPatch, *arguments: Any) -> Hub:
    made = Hub(*arguments)
    monkeypatch.setattr(datasets, "load_dataset", made)
    return made


def test_an_address_has_an_owner_a_name_a_configuration_and_a_split(tmp_path: Path) -> None:
    expected = {
        "hf:imdb": ("imdb", None, "train"),
        "hf:imdb:test": ("imdb", None, "test"),
        "hf:stanfordnlp/imdb": ("stanfordnlp/imdb", None, "train"),
        "hf:allenai/c4/en:validation": ("allenai/c4", "en", "validation"),
        f"hf:{tmp_path}:dev": (str(tmp_path), None, "dev"),
    }
    assert {name: parse_dataset_name(Path(name)) for name in expected} == expected


def test_rows_of_a_dataset_are_documents(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, name = hub(monkeypatch, ROWS), Path("hf:owner/name/small:test")
    assert list(read_documents([name])) == [
        Document("one", name, 3),
        Document("二", name, 6, line=2),
    ]
    assert asked.asked == ("owner/name", "small", {"split": "test", "streaming": True})
    assert list(read_text_parts([name])) == ["one", "二"]
    assert [d.text for d in read_documents([name], ReadOptions(column="text"))] == ["one", "二"]
    assert find_files([name]) == [name]
    assert file_sizes([name]) == {name: None}


def test_what_goes_wrong_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    name = Path("hf:owner/name")
    hub(monkeypatch, ROWS, ConnectionError("the line is dead\nand more"))
    with pytest.raises(UserError, match=r"hf:owner/name cannot be read \(the line is dead\): "):
        list(read_documents([name]))
    hub(monkeypatch, ROWS)
    with pytest.raises(UserError, match=r"row 1 of hf:owner/name has no 'body': .* id, text"):
        list(read_documents([name], ReadOptions(field="body")))
    hub(monkeypatch, [])
    with pytest.raises(UserError, match="hf:owner/name is empty"):
        list(read_documents([name]))
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(UserError, match=r"pip install 'kinfolk\[hub\]'"):
        list(read_documents([name]))


@pytest.mark.slow
def test_the_library_itself_streams_a_folder(tmp_path: Path) -> None:
    lines = "".join(json.dumps(row) + "\n" for row in ROWS)
    (tmp_path / "train.jsonl").write_text(lines, encoding="utf-8")
    assert [d.text for d in read_documents([Path(f"hf:{tmp_path}")])] == ["one", "二"]
    with pytest.raises(UserError, match=r"cannot be read \(Bad split: dev"):
        list(read_documents([Path(f"hf:{tmp_path}:dev")]))
    with pytest.raises(UserError, match="hf:nobody/nothing cannot be read"):
        list(read_documents([Path("hf:nobody/nothing")]))
