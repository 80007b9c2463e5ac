"""The command `inspect`: a page is written, and what it has is printed."""

import io
import json
import sys
from pathlib import Path

import pytest

from kinfolk.text import train_tokenizer
from support.runs import Kinfolk, one_sentence

SMALL = ("gpt2/nano", "bert/nano")


def test_a_page_is_written_and_replaced_only_by_force(kinfolk: Kinfolk, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    said = kinfolk("inspect", "The cat sat. It slept.", *SMALL, "-o", page)
    assert said.code == 0 and f"report: {page}" in said.out
    assert "bert/nano  unilm" in said.out and page.read_text(encoding="utf-8").count("<canvas") == 6
    assert "already exists" in one_sentence(kinfolk("inspect", "x y", *SMALL, "-o", page))
    assert kinfolk("inspect", "x y", *SMALL, "-o", page, "--force").code == 0


def test_programs_read_json_and_texts_come_from_stdin(
    kinfolk: Kinfolk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = io.TextIOWrapper(io.BytesIO(b"The cat sat.\n\nA dog came.\n"))
    monkeypatch.setattr(sys, "stdin", given)
    page = tmp_path / "page.html"
    found = json.loads(kinfolk("inspect", "-", "gpt2/nano", "-o", page, "--json").out)
    assert found["objectives"][0] == {
        "family": "gpt2/nano",
        "objective": "clm",
        "tokens": 10,  # four of each document, and their starts
        "predicted": 10,
    }
    assert found["models"] == [] and found["report"] == str(page)


def test_unknown_tokens_are_warned_of(
    kinfolk: Kinfolk, runs: dict[str, Path], tmp_path: Path
) -> None:
    words = train_tokenizer(["the cat sat"], kind="word", vocab_size=1000, fewer=True)
    words.save(tmp_path / "words")
    given = ("--tokenizer", tmp_path / "words", "-o", tmp_path / "page.html", "--json", "--force")
    unknown = f"1 of 3 tokens are unknown to --tokenizer {tmp_path / 'words'}"
    said = kinfolk("inspect", "the cat slept", "bert/nano", *given)
    assert said.err.splitlines()[-1] == unknown and json.loads(said.out)["models"] == []
    assert unknown in (tmp_path / "page.html").read_text(encoding="utf-8")
    said = kinfolk("inspect", "the cat slept", runs["gpt2"], *given)
    assert "gpt2 has another tokenizer of its own" in said.err and unknown in said.err


def test_the_folder_of_a_page_is_made(kinfolk: Kinfolk, tmp_path: Path) -> None:
    page = tmp_path / "new" / "folder" / "page.html"
    assert kinfolk("inspect", "x y", *SMALL, "-o", page).code == 0 and page.is_file()


def test_trained_models_run_on_the_device_that_is_named(
    kinfolk: Kinfolk, runs: dict[str, Path], tmp_path: Path
) -> None:
    page = tmp_path / "page.html"
    words = ("inspect", "the cat saw a dog", runs["gpt2"], "-o", page, "--device")
    assert "unknown device 'tpu'" in one_sentence(kinfolk(*words, "tpu"))
    assert not page.exists()
    assert kinfolk(*words, "cpu").code == 0 and page.is_file()


def test_an_empty_text_and_a_long_one_are_refused(kinfolk: Kinfolk, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    assert "the text is empty" in one_sentence(kinfolk("inspect", " ", *SMALL, "-o", page))
    long = kinfolk("inspect", "word " * 300, *SMALL, "-o", page)
    assert "300 tokens, and a page shows at most 256" in one_sentence(long)
    assert not page.exists()


def test_the_name_of_a_file_is_a_text_with_a_note(
    kinfolk: Kinfolk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("notes").mkdir()
    Path("notes/a.txt").write_text("The cat sat.")
    said = kinfolk("inspect", "notes/a.txt", "gpt2/nano", "-o", "page.html")
    assert said.code == 0 and Path("page.html").exists()
    assert "notes/a.txt is a file" in said.err and "inspect - < notes/a.txt" in said.err
    for text in ("notes", "The cat sat.", "é" * 200):  # a folder, a text, more than a name has
        said = kinfolk("inspect", text, "gpt2/nano", "-o", "page.html", "--force")
        assert said.code == 0 and "is a file" not in said.err
