"""Every mistake of a user is one sentence, exit code 2, and nothing half-written."""

import errno
import io
import json
import resource
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from kinfolk.cli import output
from kinfolk.files import checksum_fault, write_checksums
from kinfolk.training import checkpoint
from support.runs import Home, Kinfolk, one_sentence, tree

FEW = "--length 32 --steps 12 --batch 4 --device cpu train.save_every=4"


@pytest.fixture(scope="session")
def other(tmp_path_factory: pytest.TempPathFactory) -> Home:
    return Home.make(tmp_path_factory.mktemp("other"), seed=1)


def test_a_path_in_brackets_is_printed_as_it_is(kinfolk: Kinfolk, tmp_path: Path) -> None:
    name = tmp_path / "[bold]notes[/bold] [/]"
    sentence = one_sentence(kinfolk("evaluate", name, "--text", name))
    assert str(name) in sentence


def test_force_replaces_an_output_that_is_no_input(
    kinfolk: Kinfolk, home: Home, tmp_path: Path
) -> None:
    page = tmp_path / "[x] page.html"
    assert kinfolk("audit", home.text, "-o", page).code == 0
    page.write_text("mine", encoding="utf-8")
    assert "already exists" in one_sentence(kinfolk("audit", home.text, "-o", page))
    assert page.read_text(encoding="utf-8") == "mine"
    assert kinfolk("audit", home.text, "-o", page, "--force").code == 0
    assert "<html" in page.read_text(encoding="utf-8")


def test_markup_in_the_label_of_a_progress_bar_is_text(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()
    monkeypatch.setattr(output, "errors", Console(file=screen, force_terminal=True, width=80))
    with output.row_progress("[/x] [bold]", 2) as update:
        update(1)
    assert "[/x] [bold]" in screen.getvalue()


def test_control_sequences_do_not_reach_a_terminal(
    kinfolk: Kinfolk, runs: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = ("generate", runs["gpt2"], "--max-new-tokens", "1", "--", "-The \x1b[31mcat")
    assert "-The \x1b[31mcat" in kinfolk(*asked).out  # in a pipe the text is unchanged
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert "-The \\x1b[31mcat" in kinfolk(*asked).out
    said = kinfolk("evaluate", "\x1b]0;title\x07", "--text", "none")
    assert said.code == 2 and "\x1b" not in said.err and "\\x1b]0;title\\x07" in said.err


@pytest.mark.parametrize(
    ("path", "value", "fault"),
    [
        ("step", -1, "wrong step"),
        ("step", 10**12, "wrong step"),
        ("best", "x", "wrong best"),
        ("evals_since_best", -1, "wrong evals_since_best"),
        ("fingerprints", [1], "wrong fingerprints"),
        ("finished", "x", "wrong finished"),
        ("optimizer", None, "wrong optimizer"),
        ("optimizer.state", {}, "wrong optimizer"),
        ("optimizer.state.$numbered", 7, "AttributeError"),
        ("optimizer.state.$numbered.0", [], "wrong optimizer"),
        ("optimizer.state.$numbered.0.exp_avg", 1e308, "wrong optimizer"),
        ("optimizer.state.$numbered.0.exp_avg.$tensor", "x", "KeyError"),
        ("optimizer.state.$numbered.0.exp_avg.$tensor", [], "TypeError"),
    ],
)
def test_a_training_state_that_no_run_wrote_is_refused(
    path: str, value: Any, fault: str, kinfolk: Kinfolk, runs: dict[str, Path], tmp_path: Path
) -> None:
    run = shutil.copytree(runs["gpt2"], tmp_path / "run", symlinks=True)
    (run / "report.html").unlink()  # a resume would write it
    folder = (run / "checkpoints" / "last").resolve()
    state = json.loads((folder / "training.json").read_text(encoding="utf-8"))
    *groups, name = path.split(".")
    inner = state
    for group in groups:
        inner = inner[group]
    inner[name] = value
    (folder / "training.json").write_text(json.dumps(state), encoding="utf-8")
    (folder / "checksums.json").unlink()
    write_checksums(folder)
    sentence = one_sentence(kinfolk("pretrain", "--resume", run))
    assert "training.json is not the state of this run" in sentence and fault in sentence
    assert f"remove {folder.name} to resume from the checkpoint before it" in sentence


def test_a_damaged_corpus_is_not_scored(
    kinfolk: Kinfolk, home: Home, runs: dict[str, Path], tmp_path: Path
) -> None:
    corpus = shutil.copytree(home.corpus, tmp_path / "corpus")
    data = bytearray((corpus / "tokens.bin").read_bytes())
    data[100] ^= 0xFF
    (corpus / "tokens.bin").write_bytes(data)
    sentence = one_sentence(kinfolk("evaluate", runs["gpt2"], "--corpus", corpus))
    assert "tokens.bin is corrupt: it differs from its checksum in corpus.json" in sentence


def test_a_value_of_the_wrong_kind_is_told_by_the_option(
    kinfolk: Kinfolk, home: Home, tmp_path: Path
) -> None:
    said = kinfolk(
        "pretrain", "gpt2", "--corpus", home.corpus, "-o", tmp_path / "r", "--steps", "x"
    )
    assert said.code == 2
    assert "--steps" in said.err and "Traceback" not in said.err
    assert not (tmp_path / "r").exists()


def full(limited: Callable[..., None]) -> Callable[..., None]:
    """Let a writer meet the end of the disk: no file may grow past a few bytes."""

    def write(*arguments: Any) -> None:
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
        try:
            limited(*arguments)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    return write


def refusing(original: Callable[..., None]) -> Callable[..., None]:
    """Let a writer fail as it does on a full disk."""

    def write(*arguments: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    return write


@pytest.mark.parametrize("broken", [full, refusing])
def test_a_full_disk_leaves_the_checkpoint_before_it_whole(
    broken: Callable[..., Any],
    kinfolk: Kinfolk,
    home: Home,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run, original = tmp_path / "run", checkpoint.save_training_state
    asked = ("pretrain", "gpt2/nano", "--corpus", home.corpus, *FEW.split())

    def write(folder: Path, state: dict[str, Any]) -> None:
        (broken(original) if state["step"] == 8 else original)(folder, state)

    monkeypatch.setattr(checkpoint, "save_training_state", write)
    sentence = one_sentence(kinfolk(*asked, "-o", run))
    assert "the disk is full while saving step 8" in sentence
    assert "the checkpoint of step 4 is intact" in sentence
    names = {f.name for f in (run / "checkpoints").iterdir()}
    assert names == {"step-00000004", "last", "best"}
    assert checksum_fault(run / "checkpoints" / "last") is None
    # With room again, the run arrives where it would have.
    monkeypatch.setattr(checkpoint, "save_training_state", original)
    assert kinfolk("pretrain", "--resume", run).code == 0
    kinfolk(*asked, "-o", tmp_path / "whole")
    last = [tree(r / "checkpoints" / "last") for r in (run, tmp_path / "whole")]
    assert last[0] == last[1]


def test_a_torn_checkpoint_is_a_warning(
    kinfolk: Kinfolk, runs: dict[str, Path], tmp_path: Path
) -> None:
    run = shutil.copytree(runs["gpt2"], tmp_path / "run", symlinks=True)
    (run / "checkpoints" / "step-00000012" / "model.safetensors").write_bytes(b"torn")
    said = kinfolk("pretrain", "--resume", run)
    assert said.code == 0
    assert said.err.startswith("warning: checkpoint ")
    assert "step-00000012 is corrupt" in said.err.splitlines()[0]
    last = [tree(r / "checkpoints" / "last") for r in (run, runs["gpt2"])]
    assert last[0] == last[1]


def test_a_corpus_replaced_before_a_resume_is_refused(
    kinfolk: Kinfolk, home: Home, other: Home, tmp_path: Path
) -> None:
    corpus, run = shutil.copytree(home.corpus, tmp_path / "corpus"), tmp_path / "run"
    asked = ("pretrain", "gpt2/nano", "--corpus", corpus, *FEW.split(), "-o", run)
    assert kinfolk(*asked).code == 0
    shutil.rmtree(run / "checkpoints" / "step-00000012")  # as if stopped after step 8
    shutil.rmtree(corpus)
    shutil.copytree(other.corpus, corpus)
    before = tree(run)
    assert "tokenized with another tokenizer" in one_sentence(kinfolk("pretrain", "--resume", run))
    assert tree(run) == before
