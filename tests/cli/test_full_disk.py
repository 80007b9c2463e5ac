"""A full disk is one sentence, and nothing incomplete stays behind."""

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from support.runs import Home, Kinfolk


def full_disk(*arguments: Any, **named: Any) -> Any:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("full", ["write_text", "rename"])
@pytest.mark.parametrize(
    "command",
    [
        "export {gpt2} -o {out}",
        "import {gpt2}/checkpoints/last -o {out}",
        "tokenizer train {text} --vocab-size 420 -o {out}",
        "finetune {gpt2} --train {rows} --dev {rows} -o {out} --epochs 1",
    ],
)
def test_nothing_is_left_of_an_output_folder(
    command: str,
    full: str,
    kinfolk: Kinfolk,
    home: Home,
    runs: dict[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = tmp_path / "rows.tsv"
    rows.write_text("text\tlabel\n" + "good\tyes\nbad\tno\n" * 8)
    names = {"text": home.text, "out": tmp_path / "new" / "out", "gpt2": runs["gpt2"], "rows": rows}
    monkeypatch.setattr(Path, full, full_disk)
    said = kinfolk(*(part.format(**names) for part in command.split()))
    assert said.code == 2, said
    assert said.sentence.startswith("error: the disk is full"), said.err
    assert "Traceback" not in said.err
    assert [path.name for path in tmp_path.iterdir()] == ["rows.tsv"]


@pytest.mark.parametrize(
    "command",
    [
        "audit {text} -o {out}",
        "tokenizer compare {text} --tokenizer {tokenizer} -o {out}",
    ],
)
def test_nothing_is_left_of_a_page(
    command: str,
    kinfolk: Kinfolk,
    home: Home,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = {"text": home.text, "out": tmp_path / "page.html", "tokenizer": home.tokenizer}
    monkeypatch.setattr(Path, "replace", full_disk)
    said = kinfolk(*(part.format(**names) for part in command.split()))
    assert said.code == 2
    assert said.sentence.startswith("error: the disk is full")
    assert not list(tmp_path.iterdir())


def test_a_rust_library_gives_the_number_in_its_text(
    kinfolk: Kinfolk, runs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def save_file(tensors: Any, file: Path, **named: Any) -> None:
        file.write_bytes(b"half")
        raise RuntimeError("I/O error: No space left on device (os error 28)")

    monkeypatch.setattr("kinfolk.hub.folder.save_file", save_file)
    said = kinfolk("export", runs["gpt2"], "-o", tmp_path / "out")
    assert said.code == 2
    assert said.sentence.startswith("error: the disk is full")
    assert not list(tmp_path.iterdir())
