"""`kinfolk audit` tells what is in text, as a table, as JSON and as a page."""

import json
from html.parser import HTMLParser
from pathlib import Path

import pytest

from support.pages import without_scripts
from support.runs import Home, Kinfolk


@pytest.fixture
def bad(tmp_path: Path) -> Path:
    folder = tmp_path / "bad"
    folder.mkdir()
    (folder / "a.txt").write_bytes(
        b"[b]same[/b]\n\n[b]same[/b]\n\nbad \xff\n\n<script>x</script>\n"
    )
    (folder / "b.jsonl").write_text('{"text": "ok"}\n{oops\n')
    (folder / "c.txt.gz").write_bytes(b"no gzip")
    (folder / "empty.txt").write_text("")
    return folder


def test_json_says_what_is_there(kinfolk: Kinfolk, home: Home) -> None:
    said = kinfolk("audit", home.text, "--json")
    assert (said.code, said.err) == (0, "")
    found = json.loads(said.out)
    blocks = home.text.read_text(encoding="utf-8").strip().split("\n\n")
    assert found["documents"] == len(blocks)
    assert found["characters"] == sum(map(len, blocks))
    assert (
        found["exact"]
        == found["exact_duplicates"]
        == len(blocks) - len({block.strip() for block in blocks})
    )
    assert [file["path"] for file in found["files"]] == [str(home.text)]
    assert sum(count for _, count in found["lengths"]) == len(blocks)


def test_the_table_names_the_damage_and_shows_markup_as_it_is(kinfolk: Kinfolk, bad: Path) -> None:
    said = kinfolk("audit", bad)
    assert (said.code, said.err) == (0, "")
    assert f"! {bad / 'a.txt'}: 1 invalid UTF-8 sequences, the first at a.txt:5" in said.out
    assert f"! {bad / 'b.jsonl'}: 1 line not JSON" in said.out
    assert f"! {bad / 'c.txt.gz'} is corrupt" in said.out
    stops = [line for line in said.out.splitlines() if line.endswith("(prepare stops there)")]
    assert [name in line for name, line in zip("abc", stops, strict=True)] == [True] * 3
    assert f"! {bad / 'a.txt'} is not UTF-8 at byte 30 (line 5)" in said.out
    assert f"! {bad / 'empty.txt'}: no text" in said.out
    assert "2  [b]same[/b]" in said.out
    assert "1 exact, 0 near" in said.out
    assert "1 duplicate document (17%): kinfolk prepare --dedup exact removes them" in said.out


class Page(HTMLParser):
    """The words of a page, its tags, and that every tag is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.words: list[str] = []
        self.tags: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag != "meta":
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def test_the_page_stands_alone_with_its_pictures(kinfolk: Kinfolk, bad: Path) -> None:
    page = bad.parent / "pages" / "audit.html"
    said = kinfolk("audit", bad, "-o", page)
    assert said.code == 0
    assert f"report: {page}" in said.out
    text = page.read_text(encoding="utf-8")
    read = Page(text)
    assert read.tags.count("figure") == 3  # lengths, scripts, languages
    assert "http:" not in without_scripts(text) and "link" not in read.tags
    words = " ".join(read.words)
    assert "6 documents" in words
    assert "4 files, of which 1 could not be read to the end." in words
    assert "1 invalid UTF-8 sequences, the first at a.txt:5" in words
    assert "[b]same[/b]" in words


def test_a_page_of_nothing_is_a_page(kinfolk: Kinfolk, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("")
    assert kinfolk("audit", tmp_path / "a.txt", "-o", tmp_path / "p.html").code == 0
    assert "figure" not in Page((tmp_path / "p.html").read_text()).tags


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["nowhere"], "nowhere does not exist"),
        (["{text}", "--per", "line"], "--document must be block or file (got line)"),
        (["{text}", "-o", "{folder}"], "is a folder: -o must name a file"),
    ],
)
def test_mistakes_are_one_sentence(
    kinfolk: Kinfolk, home: Home, arguments: list[str], sentence: str
) -> None:
    said = kinfolk("audit", *(a.format(text=home.text, folder=home.folder) for a in arguments))
    assert said.code == 2
    assert sentence in said.err
    assert said.err.count("error: ") == 1


def test_exact_duplicates_and_skipped_files_are_named(kinfolk: Kinfolk, tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    notes.mkdir()
    (notes / "a.txt").write_text("one two\n\nthree")
    (notes / "b").write_text("four\n\none two")
    (notes / "c.pdf").write_bytes(b"%PDF\0")
    said = kinfolk("audit", notes, "-o", tmp_path / "audit.html")
    assert said.code == 0
    assert "1 file not read: 1 not text in UTF-8 (c.pdf)" in said.out
    (row,) = [line for line in said.out.splitlines() if line.startswith("b:3")]
    assert row.split() == ["b:3", "a.txt:1", "one", "two"]
    page = (tmp_path / "audit.html").read_text()
    assert "Exact duplicates" in page and "a.txt:1" in page and "c.pdf" in page
    values = json.loads(kinfolk("audit", notes, "--json").out)
    assert values["skipped"] == [{"path": str(notes / "c.pdf"), "reason": "not text in UTF-8"}]
    assert values["exact_examples"][0]["same_as_line"] == 1
