"""The documentation of Python as a corpus."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from kinfolk.data import demo_text
from kinfolk.errors import UserError


@pytest.fixture(scope="module")
def documents() -> list[str]:
    return list(demo_text.demo_documents())


@pytest.mark.slow
def test_there_are_megabytes_of_it(documents: list[str]) -> None:
    assert len(documents) > 500
    assert sum(len(document.encode()) for document in documents) > 1_500_000


@pytest.mark.slow
def test_it_is_english_in_documents_of_a_paragraph_to_a_few_pages(documents: list[str]) -> None:
    words = " ".join(documents).lower().split()
    assert words.count("the") > len(words) / 30
    assert min(map(len, documents)) >= demo_text.MIN_DOCUMENT_CHARS
    assert sum(len(document) > 20_000 for document in documents) < len(documents) / 100


@pytest.mark.slow
def test_nothing_comes_twice(documents: list[str]) -> None:
    assert len(set(documents)) == len(documents)


def test_a_written_block_is_a_document_and_a_second_walk_gives_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    some = list(demo_text.stdlib())[:60]
    monkeypatch.setattr(demo_text, "stdlib", lambda: iter(some))
    first = list(demo_text.demo_documents())
    text = demo_text.write(tmp_path / "new").read_bytes().decode()
    flat = ["\n".join(line for line in d.split("\n") if line.strip()) for d in first]
    assert len(flat) > 100
    assert text == "\n\n".join(flat) + "\n"


def test_a_module_is_read_and_never_run(tmp_path: Path) -> None:
    source = tmp_path / "module.py"
    source.write_text('"""Module."""\nraise SystemExit\nclass A:\n  "A."\n  def f(self): "F."\n')
    assert list(demo_text.groups(source)) == [["Module."], ["A.", "F."]]


def test_a_python_without_sources_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing() -> Iterator[Path]:
        return iter(())

    monkeypatch.setattr(demo_text, "stdlib", nothing)
    with pytest.raises(UserError, match="no Python sources in"):
        next(demo_text.demo_documents())
